//! Sums over queues.

use queen_record::ids::Micros;

use super::Counts;

/// What queues are summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// Their namespace.
    Namespace,
    /// Their task.
    Task,
}

/// The queues under one label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSummary {
    /// The label, not empty.
    pub label: String,
    /// Queues.
    pub queues: u64,
    /// Their partitions.
    pub partitions: u64,
    /// Counts over them.
    pub counts: Counts,
}

/// Mean and maximum over the queues that have any; 0 when none has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Mean, rounded down.
    pub mean: u64,
    /// Maximum.
    pub max: u64,
}

/// Everything of a tenant in one view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Queues.
    pub queues: u64,
    /// Partitions.
    pub partitions: u64,
    /// Different namespaces, the empty one not counted.
    pub namespaces: u64,
    /// Different tasks, the empty one not counted.
    pub tasks: u64,
    /// Counts over all queues.
    pub counts: Counts,
    /// Seconds since the oldest unconsumed message of a queue.
    pub lag_seconds: Spread,
    /// Unconsumed messages of a queue.
    pub lag_messages: Spread,
    /// When this was asked.
    pub now: Micros,
    /// Age of the oldest figure that went into it.
    pub age_seconds: u64,
}
