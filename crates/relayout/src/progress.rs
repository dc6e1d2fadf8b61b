//! How far a run is, for whoever watches it from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The start of a node is run in memory, and room is looked for.
    Start,
    /// Records are copied.
    Copy,
    /// The store is written.
    Store,
    /// The new directory is read and compared.
    Compare,
    /// The doctor examines the new directory.
    Examine,
}

/// Counters that both sides share.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    stage: Arc<AtomicU8>,
    done: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
    doctor: queen_doctor::Progress,
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
            1 => Stage::Copy,
            2 => Stage::Store,
            3 => Stage::Compare,
            _ => Stage::Examine,
        }
    }

    /// Bytes, or rows of the store, that this stage has done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// All bytes of this stage, as far as they are known; 0 when they are not.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// How far the doctor is, in its stage.
    pub fn doctor(&self) -> &queen_doctor::Progress {
        &self.doctor
    }

    pub(crate) fn enter(&self, stage: Stage, total: u64) {
        let number = match stage {
            Stage::Start => 0,
            Stage::Copy => 1,
            Stage::Store => 2,
            Stage::Compare => 3,
            Stage::Examine => 4,
        };
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.stage.store(number, Ordering::Relaxed);
    }

    pub(crate) fn set_done(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    pub(crate) fn add_done(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }
}
