//! Queues and partitions as listings show them.

use queen_model::QueueOptions;
use queen_record::ids::{Micros, PartitionId, Uuid};

/// Message counts of a partition, a queue or the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Retained messages.
    pub total: u64,
    /// Not consumed by the slowest group; includes what is leased.
    pub pending: u64,
    /// Under a live lease.
    pub processing: u64,
    /// `total - pending - dead_letter`, not below 0.
    pub completed: u64,
    /// Dead letters.
    pub dead_letter: u64,
}

/// One row of the queue list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSummary {
    /// Queue id.
    pub id: Uuid,
    /// Queue name.
    pub name: String,
    /// Partitions it has.
    pub partitions: u64,
    /// Its options.
    pub options: QueueOptions,
    /// When it was made.
    pub created: Micros,
    /// Counts over its partitions; `None` in the lanes form.
    pub counts: Option<Counts>,
    /// Bytes of the retained appends.
    pub retained_bytes: i64,
    /// Record files of the queue's own logs; 0 when queues share their logs.
    pub log_files: u64,
}

/// One partition in a queue's detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionSummary {
    /// The partition's UUID.
    pub uuid: Uuid,
    /// The partition's number.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Micros,
    /// Its counts.
    pub counts: Counts,
    /// Messages consumed by all groups.
    pub total_consumed: u64,
    /// When its newest message was appended.
    pub newest: Option<Micros>,
    /// When its oldest retained message was appended.
    pub oldest: Option<Micros>,
    /// Bytes of the retained appends.
    pub retained_bytes: i64,
}

/// A queue with its partitions, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDetail {
    /// The row of the list, with counts.
    pub summary: QueueSummary,
    /// At most `partitions_max` of the request.
    pub partitions: Vec<PartitionSummary>,
    /// Whether there are more.
    pub truncated: bool,
}
