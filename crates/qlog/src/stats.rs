//! Counters for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the logs were opened, and sizes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Logs now.
    pub logs: u64,
    /// Record files now, those made ahead not counted.
    pub files: u64,
    /// Bytes of records and headers now.
    pub bytes: u64,
    /// Calls of fdatasync on files.
    pub syncs: u64,
    /// Syncs of directories.
    pub dir_syncs: u64,
    /// Bytes of records written.
    pub appended_bytes: u64,
    /// Zeros written ahead of the end.
    pub prealloc_bytes: u64,
    /// Groups appended.
    pub groups: u64,
    /// Logs touched, summed over groups.
    pub logs_touched: u64,
    /// Files sealed by a roll.
    pub rolls: u64,
    /// Records read and verified.
    pub records_read: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) syncs: AtomicU64,
    pub(crate) dir_syncs: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) prealloc_bytes: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) logs_touched: AtomicU64,
    pub(crate) rolls: AtomicU64,
    pub(crate) records_read: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
