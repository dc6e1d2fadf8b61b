//! The entry being planned: its effects, where each is routed, and the numbers it hands out.

use queen_model::{CommandSpan, Effect, Entry};
use queen_record::ids::{Micros, PartitionId, QueueId, Uuid};

/// Time and randomness of one entry, chosen by the leader.
pub struct Stamp<'a> {
    /// Strictly above every earlier entry's time and every append's.
    pub now: Micros,
    /// Unpredictable bits: ids of leases are made of them.
    pub entropy: &'a mut dyn FnMut() -> u64,
}

/// Which log an effect belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The log of a partition.
    Partition(QueueId, PartitionId),
    /// The log of a queue as a whole.
    Queue(QueueId),
    /// No queue's log.
    System,
}

/// An entry under construction.
pub struct Draft<'a> {
    stamp: Stamp<'a>,
    pid_base: PartitionId,
    next_pid: PartitionId,
    kv_version_base: u64,
    effects: Vec<Effect>,
    routes: Vec<Route>,
    bytes: usize,
    minted: u16,
}

impl<'a> Draft<'a> {
    /// An empty draft that numbers partitions from `pid_base`.
    pub fn new(stamp: Stamp<'a>, pid_base: PartitionId, kv_version_base: u64) -> Self {
        Self {
            stamp,
            pid_base,
            next_pid: pid_base,
            kv_version_base,
            effects: Vec::new(),
            routes: Vec::new(),
            bytes: 0,
            minted: 0,
        }
    }

    /// The entry's time.
    pub fn now(&self) -> Micros {
        self.stamp.now
    }

    /// Adds an effect; `bytes` is about what it takes in the log.
    pub fn add(&mut self, effect: Effect, route: Route, bytes: usize) {
        self.effects.push(effect);
        self.routes.push(route);
        self.bytes += bytes;
    }

    /// A fresh `UUIDv7` with 62 unpredictable bits.
    pub fn mint(&mut self) -> Uuid {
        let millis = u64::try_from(self.stamp.now.0 / 1000).unwrap_or(0);
        self.minted = self.minted.wrapping_add(1);
        Uuid::v7(millis, self.minted, (self.stamp.entropy)())
    }

    /// The number of a partition made here.
    pub fn new_partition(&mut self) -> PartitionId {
        let id = self.next_pid;
        self.next_pid = PartitionId(id.0 + 1);
        id
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    /// About how many bytes the entry takes in the logs.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry and the route of each effect.
    pub fn finish(mut self) -> (Entry, Vec<Route>) {
        let effect_count = u32::try_from(self.effects.len()).unwrap_or_else(|_| {
            panic!("a cycle of {} effects passed its limits", self.effects.len())
        });
        let commands = if effect_count == 0 {
            Vec::new()
        } else {
            vec![CommandSpan { request: self.mint(), first_effect: 0, effect_count }]
        };
        let entry = Entry {
            now: self.stamp.now,
            pid_base: self.pid_base,
            kv_version_base: self.kv_version_base,
            commands,
            effects: self.effects,
        };
        (entry, self.routes)
    }
}
