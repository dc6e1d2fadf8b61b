//! Consumer groups as they are listed, and their positions.

use std::sync::Arc;

use queen_model::SubscriptionMode;
use queen_record::ids::{Micros, Uuid};

/// A stored subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionView {
    /// Where the group started.
    pub mode: SubscriptionMode,
    /// The instant that `mode` refers to; 0 with `All`.
    pub at: Micros,
    /// When it was registered.
    pub registered: Micros,
    /// Whether the group delivers only the newest message of a partition.
    pub conflation: bool,
}

/// One group on one queue where it has a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Group name.
    pub group: Arc<str>,
    /// Queue name.
    pub queue: Arc<str>,
    /// Partitions in which it has a cursor.
    pub cursors: u64,
    /// Those in which it has something left.
    pub with_lag: u64,
    /// Messages left over all of them.
    pub lag: u64,
    /// Age of the oldest of these, as far as it was looked up; never more than it is.
    pub lag_seconds: u64,
    /// Messages consumed so far.
    pub consumed: u64,
    /// `None` for queue mode and for a group that was only used pinned.
    pub subscription: Option<SubscriptionView>,
}

/// One cursor of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPartition {
    /// Partition name.
    pub partition: String,
    /// The live lease.
    pub lease: Option<Uuid>,
    /// Messages consumed so far.
    pub consumed: u64,
    /// Messages left.
    pub lag: u64,
    /// Age of the oldest of these, as far as it was looked up; never more than it is.
    pub lag_seconds: u64,
}

/// A group's cursors on one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOnQueue {
    /// Queue name.
    pub queue: Arc<str>,
    /// Whether the group delivers only the newest message of a partition there.
    pub conflation: bool,
    /// At least one, in the order the partitions were made.
    pub partitions: Vec<GroupPartition>,
}

/// A cursor that lags behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaggingCursor {
    /// Group name.
    pub group: Arc<str>,
    /// Queue name.
    pub queue: Arc<str>,
    /// Partition name.
    pub partition: String,
    /// Partition UUID.
    pub partition_uuid: Uuid,
    /// The live lease.
    pub lease: Option<Uuid>,
    /// Messages left.
    pub lag: u64,
    /// When the oldest of them was appended.
    pub oldest: Micros,
    /// Seconds since then.
    pub lag_seconds: u64,
}

/// Where a group reads next in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// The next offset and what was committed with it; `None` where the group has no cursor.
    pub next: Option<(u64, String)>,
}
