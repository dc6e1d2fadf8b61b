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
    /// Leases that hold a part of it.
    pub(super) holders: usize,
    /// Messages settled per second of lease, smoothed; 0 while none was measured.
    drain_rate: u64,
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
            holders: 0,
            drain_rate: 0,
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

    /// Partitions in the list.
    pub(super) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Notes a batch that was settled whole.
    pub(super) fn drained(&mut self, messages: u64, took_us: i64) {
        let took_us = u64::try_from(took_us).unwrap_or(0).max(1);
        let rate = messages.saturating_mul(1_000_000) / took_us;
        // A quarter of the newest: one slow batch does not turn the choice over.
        self.drain_rate =
            if self.drain_rate == 0 { rate } else { (self.drain_rate / 4) * 3 + rate / 4 };
    }

    /// Messages that its consumers settle per second of lease; 0 while that was not measured.
    pub(super) fn drain_rate(&self) -> u64 {
        self.drain_rate
    }

    /// Forgets the list: the next use fills it again.
    pub(super) fn unload(&mut self) {
        self.loaded = false;
        self.ready = VecDeque::new();
        self.queued = HashSet::with_hasher(FixedState::default());
    }
}
