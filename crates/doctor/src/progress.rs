//! How far an examination is, for whoever watches it from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The start of a node is run in memory.
    Start,
    /// Every byte of every file is read.
    Read,
    /// Nothing any more.
    Done,
}

/// Counters that both sides share.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    stage: Arc<AtomicU8>,
    read: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

impl Progress {
    /// Before the first step.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is being done.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Start,
            1 => Stage::Read,
            _ => Stage::Done,
        }
    }

    /// Bytes read in this stage.
    pub fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes of all files; how many a start reads of them is not known before.
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.read.store(0, Ordering::Relaxed);
        let number = match stage {
            Stage::Start => 0,
            Stage::Read => 1,
            Stage::Done => 2,
        };
        self.stage.store(number, Ordering::Relaxed);
    }

    pub(crate) fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }
}
