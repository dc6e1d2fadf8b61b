//! How much a queue's consumers have left to do.

use std::sync::Arc;

use queen_record::ids::Uuid;

/// What is left on a queue, or in one partition of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Not consumed; includes what is leased.
    pub pending: u64,
    /// Under a live lease, at most `pending`.
    pub processing: u64,
}

impl Backlog {
    /// What is neither consumed nor leased.
    pub fn ready(&self) -> u64 {
        self.pending.saturating_sub(self.processing)
    }
}

/// The backlog of a queue, for one group or for the slowest of each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// Over all partitions.
    pub total: Backlog,
    /// Partitions with something pending.
    pub partitions_pending: u64,
    /// Partitions with something ready.
    pub partitions_ready: u64,
    /// Whether the group delivers only the newest message of a partition; false without a group.
    pub conflation: bool,
    /// Sorted by name, at most as many as were asked for.
    pub partitions: Vec<(String, Backlog)>,
    /// Whether there are more partitions.
    pub truncated: bool,
}

/// One of the partitions with the most to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyPartition {
    /// Queue name.
    pub queue: Arc<str>,
    /// Partition name.
    pub partition: String,
    /// Partition UUID.
    pub uuid: Uuid,
    /// Its backlog.
    pub backlog: Backlog,
    /// Age of its oldest message that the slowest group has not consumed.
    pub lag_seconds: Option<u64>,
}

/// The partitions with the most pending messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusyPartitions {
    /// Most ready first.
    pub rows: Vec<BusyPartition>,
    /// Partitions looked at.
    pub walked: u64,
    /// Whether there are partitions that were not looked at.
    pub truncated: bool,
}
