//! A group's ready list.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use queen_record::ids::{PartitionId, Tenant};

pub(super) struct GroupState {
    pub(super) tenant: Tenant,
    pub(super) queue: Arc<str>,
    pub(super) name: Arc<str>,
    /// Whether the list was filled from the state; from then on it is kept by events.
    pub(super) loaded: bool,
    /// Whether it was asked for since the last collection.
    pub(super) used: bool,
    /// Whether its number is free.
    pub(super) collected: bool,
    /// Parts the engine holds for it.
    pub(super) parts: usize,
    ready: VecDeque<PartitionId>,
    queued: HashSet<PartitionId, FixedState>,
}

impl GroupState {
    pub(super) fn new(tenant: Tenant, queue: Arc<str>, name: Arc<str>) -> Self {
        Self {
            tenant,
            queue,
            name,
            loaded: false,
            used: true,
            collected: false,
            parts: 0,
            ready: VecDeque::new(),
            queued: HashSet::with_hasher(FixedState::default()),
        }
    }

    /// Puts a partition behind the others, unless it is there.
    pub(super) fn offer(&mut self, partition: PartitionId) {
        if self.queued.insert(partition) {
            self.ready.push_back(partition);
        }
    }

    /// Takes the partition that waited longest.
    pub(super) fn take(&mut self) -> Option<PartitionId> {
        let partition = self.ready.pop_front()?;
        self.queued.remove(&partition);
        // A burst of a million ready partitions must not be paid for ever after.
        if self.ready.capacity() > 4096 && self.ready.len() < self.ready.capacity() / 8 {
            self.ready.shrink_to(self.ready.len() * 2);
            self.queued.shrink_to(self.queued.len() * 2);
        }
        Some(partition)
    }

    /// Forgets the list: the next use fills it again.
    pub(super) fn unload(&mut self) {
        self.loaded = false;
        self.ready = VecDeque::new();
        self.queued = HashSet::with_hasher(FixedState::default());
    }
}
