//! Consumption on the leader: which partitions are ready for which group, and who holds them.
//!
//! The engine is the only writer of cursors and leases. It works on copies of cursor rows (*parts*) that exist only
//! while something is going on in a partition: an idle partition costs nothing here. What changed in a cycle becomes
//! one whole row per part, however many pops and acks touched it, and rides in the cycle's entry.
//!
//! E1. A partition is in a group's ready list at most once, and may be there although it is not ready: readiness is
//!     judged when it is taken out.
//! E2. A part that is leased or reserved is in nobody's hands but its holder's; it comes back to the list when the
//!     lease ends, by whatever way.
//! E3. A part lives until every row written from it is applied: until then it, not the state, is the truth.

mod ack;
mod bundle;
mod claim;
mod group;
mod part;
mod polls;
mod position;
mod retention;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_model::Effect;
use queen_record::ids::{Micros, PartitionId, Tenant, Uuid};
use queen_state::State;
use smallvec::SmallVec;

use crate::draft::{Draft, Route};
use crate::overlay::Overlay;

pub use ack::{
    AckCall, AckFacts, AckItem, AckOutcome, AckQuestion, AckResult, DeadMessage, ItemResult,
};
pub use bundle::{BundleAck, BundleStep, BundleVerdict};
pub use claim::{Claim, ClaimFrom, ClaimRequest, Delivered, Grant, LeaseTerms, Start, Taken};
use group::GroupState;
use part::Part;
use polls::Polls;
pub use position::Place;

/// A consumer group on one queue, by its number in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineGroup(u32);

/// The group of a consumer that names none: it has no subscription and starts at the oldest message.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// The first moment at which a lease is not live any more.
fn over(expires: Micros) -> Micros {
    Micros(expires.0 + 1)
}

type Table<K, V> = HashMap<K, V, FixedState>;
type PartKey = (PartitionId, EngineGroup);

/// The consumption engine.
#[derive(Default)]
pub struct Engine {
    groups: Vec<GroupState>,
    /// Numbers of collected groups, to be used again.
    free: Vec<EngineGroup>,
    index: Table<(Tenant, Arc<str>, Arc<str>), EngineGroup>,
    by_queue: Table<(Tenant, Arc<str>), Vec<EngineGroup>>,
    parts: Table<PartKey, Part>,
    leases: Table<Uuid, SmallVec<[PartKey; 1]>>,
    /// Ends of live leases and of delays; what ends early is taken out, so this is as large as what is live.
    due: BTreeSet<(Micros, PartKey)>,
    held: Table<PartKey, Micros>,
    dirty: Vec<PartKey>,
    in_flight: VecDeque<(u64, Vec<PartKey>)>,
    /// Groups whose stored cursors a plan in flight deletes: they must not be read any more.
    fresh: Table<EngineGroup, u64>,
    /// The same for single cursors.
    forgotten: Table<PartKey, u64>,
    woken: Vec<(EngineGroup, PartitionId)>,
    polls: Polls,
}

/// What is going on in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// Partitions in its ready list.
    pub ready: usize,
    /// Leases that hold a partition of it.
    pub holders: usize,
    /// Messages settled per second of lease; 0 while that was not measured.
    pub drain_rate: u64,
}

/// What the engine holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Groups it knows.
    pub groups: usize,
    /// Parts it holds.
    pub parts: usize,
    /// Live leases by id.
    pub leases: usize,
}

impl Engine {
    /// The engine of a node that starts: leases of the stored cursors go on until they expire.
    pub fn new(state: &State) -> Self {
        let mut engine = Self::default();
        for (id, row) in state.partitions() {
            let Some(queue) = state.partition(id).and_then(|_| state.queue_by_number(row.queue))
            else {
                continue;
            };
            if row.cursor.is_none() {
                continue;
            }
            for group in queue.groups() {
                let leased = state.cursor(id, group.number).is_some_and(|c| c.lease().is_some());
                if leased {
                    let group = engine.group(queue.tenant, &queue.name, &group.name);
                    engine.load_part(state, id, group, Start::Stored);
                }
            }
        }
        engine
    }

    /// The engine's number of a group, made on first use. The queue need not exist.
    pub fn group(&mut self, tenant: Tenant, queue: &str, name: &str) -> EngineGroup {
        let key = (tenant, Arc::from(queue), Arc::from(name));
        if let Some(group) = self.index.get(&key).copied() {
            self.state_of_mut(group).used = true;
            return group;
        }
        let (_, queue, name) = key.clone();
        let made = GroupState::new(tenant, queue.clone(), name);
        let group = if let Some(group) = self.free.pop() {
            *self.state_of_mut(group) = made;
            group
        } else {
            self.groups.push(made);
            EngineGroup(u32::try_from(self.groups.len() - 1).unwrap_or(u32::MAX))
        };
        self.index.insert(key, group);
        self.by_queue.entry((tenant, queue)).or_default().push(group);
        group
    }

    /// Forgets groups that were not used since the last call and hold nothing: their ready lists, and their names.
    /// `in_use` says which have callers.
    pub fn collect(&mut self, in_use: impl Fn(EngineGroup) -> bool) {
        for at in 0..self.groups.len() {
            let group = EngineGroup(u32::try_from(at).unwrap_or(u32::MAX));
            let state = self.state_of_mut(group);
            let used = std::mem::take(&mut state.used);
            if used || state.collected || state.parts > 0 || in_use(group) {
                continue;
            }
            state.collected = true;
            state.unload();
            let (tenant, queue, name) = (state.tenant, state.queue.clone(), state.name.clone());
            if let Some(groups) = self.by_queue.get_mut(&(tenant, queue.clone())) {
                groups.retain(|known| *known != group);
                if groups.is_empty() {
                    self.by_queue.remove(&(tenant, queue.clone()));
                }
            }
            self.index.remove(&(tenant, queue, name));
            self.held.retain(|key, _| key.1 != group);
            self.due.retain(|(_, key)| key.1 != group);
            self.woken.retain(|(woken, _)| *woken != group);
            self.free.push(group);
        }
    }

    /// A group's queue and name.
    pub fn names(&self, group: EngineGroup) -> (Tenant, Arc<str>, Arc<str>) {
        let state = self.state_of(group);
        (state.tenant, state.queue.clone(), state.name.clone())
    }

    fn state_of(&self, group: EngineGroup) -> &GroupState {
        match self.groups.get(group.0 as usize) {
            Some(state) => state,
            None => unreachable!("a group number comes from this engine"),
        }
    }

    fn state_of_mut(&mut self, group: EngineGroup) -> &mut GroupState {
        match self.groups.get_mut(group.0 as usize) {
            Some(state) => state,
            None => unreachable!("a group number comes from this engine"),
        }
    }

    /// The groups and partitions that something became ready for since the last call.
    pub fn take_woken(&mut self) -> Vec<(EngineGroup, PartitionId)> {
        std::mem::take(&mut self.woken)
    }

    /// Whether `take_woken` would return something.
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// When the engine must be called next although nothing was asked.
    pub fn next_due(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends leases and delays that are over at `now`.
    pub fn fire_due(&mut self, now: Micros) {
        self.polls.turn(now);
        while let Some((at, key)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            let expired = self
                .parts
                .get(&key)
                .and_then(|part| part.lease)
                .is_some_and(|lease| lease.expires < now);
            if expired {
                self.end_lease(key);
                self.unload_if_idle(key);
                self.offer(key);
            } else if self.held.get(&key).is_some_and(|until| *until <= now) {
                self.held.remove(&key);
                self.offer(key);
            }
        }
    }

    /// Puts a partition into a group's ready list and notes that its waiters have something to look at.
    fn offer(&mut self, key: PartKey) {
        let (partition, group) = key;
        if self.held.contains_key(&key) || self.parts.get(&key).is_some_and(Part::is_taken) {
            return;
        }
        self.state_of_mut(group).offer(partition);
        // Also when it was in the list: a pinned pop may wait for it that no wildcard pop knows of.
        self.woken.push((group, partition));
    }

    /// Messages were appended to a partition and are applied.
    pub fn appended(&mut self, state: &State, partition: PartitionId) {
        let Some(row) = state.partition(partition) else { return };
        let Some(queue) = state.queue_by_number(row.queue) else { return };
        let Some(groups) = self.by_queue.get(&(queue.tenant, queue.name.clone())) else { return };
        let groups: SmallVec<[EngineGroup; 8]> = groups.iter().copied().collect();
        for group in groups {
            if self.state_of(group).loaded {
                self.offer((partition, group));
            } else {
                // Its list is filled on its next use; somebody may already wait for that.
                self.woken.push((group, partition));
            }
        }
    }

    /// Adds one row per changed part to the draft; `plan` is the number of this plan.
    pub fn flush(&mut self, plan: u64, draft: &mut Draft<'_>) {
        if self.dirty.is_empty() {
            return;
        }
        let mut flushed = Vec::with_capacity(self.dirty.len());
        for key in std::mem::take(&mut self.dirty) {
            let name = self.state_of(key.1).name.clone();
            let Some(part) = self.parts.get_mut(&key) else { continue };
            if !std::mem::take(&mut part.dirty) {
                continue;
            }
            part.rows_in_flight += 1;
            let set = part.row(key.0, &name);
            let route = Route::Partition(part.route, key.0);
            draft.add(Effect::CursorSet(set), route, 160 + name.len());
            flushed.push(key);
        }
        if !flushed.is_empty() {
            self.in_flight.push_back((plan, flushed));
        }
    }

    /// Plans up to `plan` are applied.
    pub fn applied(&mut self, plan: u64) {
        self.fresh.retain(|_, deleted| *deleted > plan);
        self.forgotten.retain(|_, deleted| *deleted > plan);
        while let Some((first, _)) = self.in_flight.front()
            && *first <= plan
            && let Some((_, keys)) = self.in_flight.pop_front()
        {
            for key in keys {
                if let Some(part) = self.parts.get_mut(&key) {
                    part.rows_in_flight -= 1;
                    self.unload_if_idle(key);
                }
            }
        }
        if self.parts.capacity() > 4096 && self.parts.len() < self.parts.capacity() / 8 {
            self.parts.shrink_to_fit();
        }
    }

    /// Moves the expiry of every live part under a lease id; returns how many and the earliest new expiry.
    pub fn extend(
        &mut self,
        state: &State,
        tenant: Tenant,
        lease: Uuid,
        (now, seconds): (Micros, i64),
    ) -> (u32, Option<Micros>) {
        let keys = self.leases.get(&lease).cloned().unwrap_or_default();
        let expires = now.plus_seconds(seconds.max(1));
        let mut renewed = 0;
        for key in keys {
            if self.state_of(key.1).tenant != tenant || state.partition(key.0).is_none() {
                continue;
            }
            let Some(part) = self.parts.get_mut(&key) else { continue };
            let Some(held) = part.lease.as_mut().filter(|held| held.expires >= now) else {
                continue;
            };
            let before = std::mem::replace(&mut held.expires, expires);
            renewed += 1;
            self.due.remove(&(over(before), key));
            self.due.insert((over(expires), key));
            self.mark_dirty(key);
        }
        (renewed, (renewed > 0).then_some(expires))
    }

    /// A queue is deleted by this plan: nothing of it is held any more.
    pub fn drop_queue(&mut self, plan: u64, tenant: Tenant, queue: &str) {
        let groups = self.by_queue.get(&(tenant, Arc::from(queue))).cloned().unwrap_or_default();
        for group in groups {
            self.drop_parts(group);
            self.fresh.insert(group, plan);
        }
    }

    /// A group's cursors on a queue are deleted by this plan.
    pub fn drop_group(&mut self, plan: u64, tenant: Tenant, queue: &str, name: &str) {
        let group = self.group(tenant, queue, name);
        let mut parts = self.drop_parts(group);
        parts.sort_unstable();
        self.fresh.insert(group, plan);
        // Its leases and delays are gone with it: whoever waited for their end looks again, and whoever waits for any.
        self.woken.extend(parts.into_iter().chain([PartitionId(0)]).map(|part| (group, part)));
    }

    /// Where a group starts was changed: its ready list is filled anew, for those who wait too.
    pub fn start_changed(&mut self, tenant: Tenant, queue: &str, name: &str) {
        let group = self.group(tenant, queue, name);
        self.state_of_mut(group).unload();
        // No partition has this number; whoever waits for any looks again.
        self.woken.push((group, PartitionId(0)));
    }

    /// The delays of a queue changed: what was kept back for them is judged again.
    pub fn release_held(&mut self, tenant: Tenant, queue: &str) {
        let groups = self.by_queue.get(&(tenant, Arc::from(queue))).cloned().unwrap_or_default();
        let (due, mut released) = (&mut self.due, Vec::new());
        self.held.retain(|key, until| {
            let of_queue = groups.contains(&key.1);
            if of_queue {
                due.remove(&(*until, *key));
                released.push(*key);
            }
            !of_queue
        });
        released.sort_unstable();
        for key in released {
            self.offer(key);
        }
    }

    /// A delay that keeps a partition out of the ready list does not count any more.
    fn release_hold(&mut self, key: PartKey) {
        if let Some(until) = self.held.remove(&key) {
            self.due.remove(&(until, key));
        }
    }

    /// Rows in flight of a part that was dropped say nothing about the part that may follow it.
    fn disown_rows(&mut self, of: impl Fn(&PartKey) -> bool) {
        for (_, keys) in &mut self.in_flight {
            keys.retain(|key| !of(key));
        }
    }

    /// The partitions of the parts that were there.
    fn drop_parts(&mut self, group: EngineGroup) -> Vec<PartitionId> {
        self.disown_rows(|key| key.1 == group);
        let (mut parts, mut leases) = (Vec::new(), Vec::new());
        self.parts.retain(|key, part| {
            let dropped = key.1 == group;
            if dropped {
                parts.push(key.0);
            }
            if dropped && let Some(lease) = part.lease {
                leases.push((lease, *key));
            }
            !dropped
        });
        for (lease, key) in leases {
            self.due.remove(&(over(lease.expires), key));
            self.forget_lease(lease.worker, key);
        }
        let due = &mut self.due;
        self.held.retain(|key, until| {
            let dropped = key.1 == group;
            if dropped {
                due.remove(&(*until, *key));
            }
            !dropped
        });
        self.state_of_mut(group).parts = 0;
        self.state_of_mut(group).unload();
        parts
    }

    /// What an autopilot goes by: partitions that may be ready, consumers that hold some, messages settled per second
    /// of lease.
    pub fn load(&mut self, state: &State, overlay: &Overlay, group: EngineGroup) -> GroupLoad {
        self.load_group(state, overlay, group);
        let known = self.state_of(group);
        GroupLoad {
            ready: known.ready_count(),
            holders: known.holders,
            drain_rate: known.drain_rate(),
        }
    }

    /// Counts for metrics.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            groups: self.groups.len() - self.free.len(),
            parts: self.parts.len(),
            leases: self.leases.len(),
        }
    }

    fn mark_dirty(&mut self, key: PartKey) {
        if let Some(part) = self.parts.get_mut(&key)
            && !part.dirty
        {
            part.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Takes the lease off a part, if it has one.
    fn end_lease(&mut self, key: PartKey) {
        if let Some(part) = self.parts.get_mut(&key)
            && let Some(lease) = part.lease.take()
        {
            part.keys = None;
            self.due.remove(&(over(lease.expires), key));
            self.forget_lease(lease.worker, key);
        }
    }

    /// Notes that a lease holds a part.
    fn note_lease(&mut self, lease: Uuid, key: PartKey) {
        let keys = self.leases.entry(lease).or_default();
        let is_first = keys.iter().all(|held| held.1 != key.1);
        keys.push(key);
        if is_first {
            self.state_of_mut(key.1).holders += 1;
        }
    }

    fn forget_lease(&mut self, lease: Uuid, key: PartKey) {
        if let Some(keys) = self.leases.get_mut(&lease) {
            let before = keys.len();
            keys.retain(|held| *held != key);
            let was_last = keys.len() < before && keys.iter().all(|held| held.1 != key.1);
            if was_last && let Some(group) = self.groups.get_mut(key.1.0 as usize) {
                group.holders -= 1;
            }
            if keys.is_empty() {
                self.leases.remove(&lease);
            }
        }
        if self.leases.capacity() > 4096 && self.leases.len() < self.leases.capacity() / 8 {
            self.leases.shrink_to_fit();
        }
    }

    fn unload_if_idle(&mut self, key: PartKey) {
        if self.parts.get(&key).is_some_and(Part::is_idle) {
            self.parts.remove(&key);
            self.state_of_mut(key.1).parts -= 1;
        }
    }

    /// Fills a group's ready list from the applied state when that has not been done.
    fn load_group(&mut self, state: &State, overlay: &Overlay, group: EngineGroup) {
        if self.state_of(group).loaded {
            return;
        }
        self.state_of_mut(group).loaded = true;
        let (tenant, queue, name) = self.names(group);
        let Some(queue) = state.queue(tenant, &queue) else { return };
        let subscription = overlay.subscription(state, tenant, &queue.name, &name);
        let number = queue.group(&name).map(|group| group.number);
        for id in queue.partitions() {
            let Some(row) = state.partition(id).filter(|_| !overlay.is_partition_gone(id)) else {
                continue;
            };
            let cursor = number.and_then(|number| state.cursor(id, number));
            let gone =
                |key: PartKey| self.fresh.contains_key(&group) || self.forgotten.contains_key(&key);
            let cursor = cursor.filter(|_| !gone((id, group)));
            let behind = match cursor {
                Some(cursor) => cursor.committed < row.last_offset,
                None => part::may_have_messages(row, &name, subscription),
            };
            if behind {
                self.offer((id, group));
            }
        }
    }
}
