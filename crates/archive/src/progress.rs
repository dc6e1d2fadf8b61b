//! How far a long copy is, for whoever watches from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes done, and all of them. Clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Nothing done of nothing known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.counts.done.load(Ordering::Relaxed)
    }

    /// Bytes in all; 0 before they are known.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.total.load(Ordering::Relaxed)
    }

    /// Notes how many there are.
    pub fn set_total(&self, bytes: u64) {
        self.counts.total.store(bytes, Ordering::Relaxed);
    }

    /// Notes that some are done.
    pub fn add(&self, bytes: u64) {
        self.counts.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
