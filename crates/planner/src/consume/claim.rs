//! Taking messages: which partitions a pop claims, and what the claim becomes once the messages were read.
//!
//! A claim has two steps, because its payload must have been read before it may be committed. *Claim* reserves
//! partitions and says what to read; *grant* turns what was read into a lease, or gives the reservation back.

use std::sync::Arc;

use queen_model::Lease;
use queen_record::ids::{Micros, Offset, PartitionId, QueueId, TxHash, Uuid};
use queen_state::{Partition, State};

use super::retention::pass_removed;
use super::{Engine, EngineGroup, PartKey, QUEUE_MODE};
use crate::overlay::{Overlay, QueueView, Subscription};

/// Where a group starts in a partition that it has no cursor in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nowhere but at its stored row.
    Stored,
    /// Before the oldest retained message.
    All,
    /// After the newest message.
    End,
    /// Before the first message at or after this time.
    From(Micros),
}

/// What a pop may take.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// The pop's token: only it can grant or give back what it reserved.
    pub token: u64,
    /// Messages at most over all partitions.
    pub messages_max: u32,
    /// Partitions at most.
    pub partitions_max: u32,
    /// The queue's options.
    pub queue: QueueView,
    /// Now.
    pub now: Micros,
    /// Where an unregistered group starts in a pinned partition.
    pub pinned_start: Start,
    /// Whether only the newest message is taken, for all before it.
    pub conflates: bool,
}

/// Where a claim begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimFrom {
    /// At this offset.
    Offset(Offset),
    /// At the first message at or after this time.
    Time(Micros),
    /// At the newest message that may be delivered, which stands for all before it.
    Newest {
        /// First offset that the group has not done.
        wanted: Offset,
        /// Newest message of the partition.
        last: Offset,
        /// Only a message at or after this time.
        since: Option<Micros>,
    },
}

/// A reserved partition and what to read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The partition.
    pub partition: PartitionId,
    /// Routes to its log.
    pub route: QueueId,
    /// Where to begin.
    pub from: ClaimFrom,
    /// Oldest offset that is retained: nothing below it may be delivered.
    pub start: Offset,
    /// Messages at most.
    pub messages_max: u32,
    /// Only messages appended at or before this time may be delivered.
    pub deliver_until: Option<Micros>,
}

/// What was read for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Offset of the first message that may be delivered; where the group stands when there is none.
    pub first: Offset,
    /// Hashes of the deliverable messages from `first` on, in order.
    pub hashes: Vec<TxHash>,
    /// When the first message that is too young was appended.
    pub too_young: Option<Micros>,
}

/// What the claimed messages are held under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTerms {
    /// A lease under this id until then.
    Lease {
        /// The pop's lease id.
        id: Uuid,
        /// When it ends.
        expires: Micros,
    },
    /// Committed at delivery.
    Commit,
}

/// What a claim became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// 1, or one more than the previous leased delivery that started at the same offset.
    pub attempt: u32,
}

/// The end of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Messages are held or committed.
    Granted(Grant),
    /// There was nothing to deliver; the reservation is given back.
    Nothing,
    /// The reservation is gone: the queue or group was deleted meanwhile.
    Lost,
}

enum Readiness {
    Ready { from: ClaimFrom, available: u64 },
    Later(Micros),
    Idle,
}

impl Engine {
    /// Reserves partitions of a queue for a pop, those that waited longest first.
    pub fn claim(
        &mut self,
        state: &State,
        overlay: &Overlay,
        group: EngineGroup,
        request: &ClaimRequest,
    ) -> Vec<Claim> {
        self.load_group(state, overlay, group);
        let mut claims = Vec::new();
        let mut left = request.messages_max;
        while left > 0
            && claims.len() < request.partitions_max as usize
            && let Some(partition) = self.state_of_mut(group).take()
        {
            let claim = self.reserve(state, overlay, (partition, group), request, left);
            if let Some(claim) = claim {
                left -= claim.messages_max.min(left);
                claims.push(claim);
            }
        }
        claims
    }

    /// Reserves one named partition for a pop.
    pub fn claim_pinned(
        &mut self,
        state: &State,
        overlay: &Overlay,
        group: EngineGroup,
        partition: PartitionId,
        request: &ClaimRequest,
    ) -> Option<Claim> {
        self.load_group(state, overlay, group);
        let (_, is_unregistered) = self.start(state, overlay, group, request.pinned_start);
        if is_unregistered {
            self.polls.note(partition);
        }
        self.reserve(state, overlay, (partition, group), request, request.messages_max)
    }

    fn reserve(
        &mut self,
        state: &State,
        overlay: &Overlay,
        key: PartKey,
        request: &ClaimRequest,
        left: u32,
    ) -> Option<Claim> {
        let row = state.partition(key.0).filter(|_| !overlay.is_partition_gone(key.0))?;
        let start = self.start(state, overlay, key.1, request.pinned_start);
        match self.readiness(state, row, key, request, start) {
            Readiness::Ready { from, available } => {
                let route = request.queue.route;
                if let Some(part) = self.parts.get_mut(&key) {
                    part.reserved = Some(request.token);
                }
                let delay_us = request.queue.delay_us;
                let available = u32::try_from(available).unwrap_or(u32::MAX);
                Some(Claim {
                    partition: key.0,
                    route,
                    from,
                    start: row.log_start(),
                    messages_max: if request.conflates { 1 } else { available.min(left) },
                    deliver_until: (delay_us > 0).then_some(Micros(request.now.0 - delay_us)),
                })
            }
            Readiness::Later(at) => {
                self.hold(key, at);
                self.unload_if_idle(key);
                None
            }
            Readiness::Idle => {
                self.unload_if_idle(key);
                None
            }
        }
    }

    /// Where the group starts in a partition that it has no cursor in; and whether only this pop says so, which must
    /// then be stored: the next pop would say something later.
    fn start(
        &self,
        state: &State,
        overlay: &Overlay,
        group: EngineGroup,
        pinned_start: Start,
    ) -> (Start, bool) {
        let known = self.state_of(group);
        if &*known.name == QUEUE_MODE {
            return (Start::All, false);
        }
        match overlay.subscription(state, known.tenant, &known.queue, &known.name) {
            Some(Subscription::All) => (Start::All, false),
            Some(Subscription::From(time)) => (Start::From(time), false),
            None => (pinned_start, true),
        }
    }

    fn readiness(
        &mut self,
        state: &State,
        row: &Partition,
        key: PartKey,
        request: &ClaimRequest,
        (start, own): (Start, bool),
    ) -> Readiness {
        if let Some(until) = self.held.get(&key)
            && *until > request.now
        {
            return Readiness::Idle;
        }
        let Some(part) = self.load_part(state, key.0, key.1, start) else { return Readiness::Idle };
        if part.lease.is_some_and(|lease| lease.expires < request.now) {
            self.end_lease(key);
        }
        let Some(part) = self.parts.get_mut(&key) else { return Readiness::Idle };
        if part.is_taken() {
            return Readiness::Idle;
        }
        let behind = row.last_offset - part.committed;
        let wanted = part.wanted().max(row.log_start());
        let since = part.seed_time;
        // Whatever keeps a pinned group from taking something now: the next time it must not begin later.
        if part.created == Micros(0) && own && start != Start::All && since.is_none() {
            part.created = request.now;
            self.mark_dirty(key);
        }
        if behind <= 0 {
            return Readiness::Idle;
        }
        let available = row.next_offset().0.saturating_sub(wanted.0);
        if available == 0 {
            self.pass_to_end(key, row);
            return Readiness::Idle;
        }
        let quiet_at = Micros(row.last_created.0 + request.queue.window_us);
        if request.queue.window_us > 0 && quiet_at > request.now {
            return Readiness::Later(quiet_at);
        }
        let from = match since {
            since if request.conflates => {
                let last = Offset(u64::try_from(row.last_offset).unwrap_or(0));
                ClaimFrom::Newest { wanted, last, since }
            }
            Some(time) => ClaimFrom::Time(time),
            None => ClaimFrom::Offset(wanted),
        };
        Readiness::Ready { from, available }
    }

    /// Keeps a partition out of the ready list until a time.
    fn hold(&mut self, key: PartKey, until: Micros) {
        if let Some(before) = self.held.insert(key, until) {
            self.due.remove(&(before, key));
        }
        self.due.insert((until, key));
    }

    /// Turns what was read for a claim into a lease or a commit.
    pub fn grant(
        &mut self,
        state: &State,
        group: EngineGroup,
        token: u64,
        claim: &Claim,
        delivered: &Delivered,
        (now, delay_us, terms): (Micros, i64, LeaseTerms),
    ) -> Taken {
        let key = (claim.partition, group);
        let (Some(row), Some(part)) = (
            state.partition(claim.partition),
            self.parts.get_mut(&key).filter(|part| part.reserved == Some(token)),
        ) else {
            return Taken::Lost;
        };
        part.reserved = None;
        if delivered.first < row.log_start() && !delivered.hashes.is_empty() {
            // Removed while it was read: the rest is claimed anew.
            self.unload_if_idle(key);
            self.offer_rest(state, key);
            return Taken::Nothing;
        }
        pass_removed(part, row.log_start());
        if part.created == Micros(0) {
            part.created = now;
        }
        let count = delivered.hashes.len();
        let conflated = matches!(claim.from, ClaimFrom::Newest { .. });
        // The newest message says nothing about where the group starts.
        let sought = part.seed_time.is_some() && !conflated;
        if sought {
            // What was read does. If the lease comes to nothing, the group starts there again.
            part.committed = part.committed.max(before(delivered.first));
        }
        if sought || count > 0 {
            part.seed_time = None;
        }
        let Some(last) =
            (count as u64).checked_sub(1).map(|ahead| Offset(delivered.first.0 + ahead))
        else {
            return self.nothing(key, delivered, (delay_us, sought));
        };
        let taken = match terms {
            LeaseTerms::Commit => {
                let position = i64::try_from(last.0).unwrap_or(i64::MAX);
                part.consumed += u64::try_from(position - part.committed).unwrap_or(0);
                part.committed = position;
                (part.retries, part.attempt_offset, part.attempts) = (0, None, 0);
                Grant { attempt: 1 }
            }
            LeaseTerms::Lease { id, expires } => {
                // What stands for a span is a newer message each time; the span starts at the same place.
                let start = if conflated { part.wanted() } else { delivered.first };
                let again = part.attempt_offset == Some(start);
                part.attempts = if again { part.attempts.saturating_add(1) } else { 1 };
                part.attempt_offset = Some(start);
                part.lease =
                    Some(Lease { worker: id, batch_end: last, expires, acquired: now, conflated });
                part.lease_low = delivered.first;
                part.keys = Some(Arc::from(&*delivered.hashes));
                let attempt = part.attempts;
                self.note_lease(id, key);
                self.due.insert((super::over(expires), key));
                Grant { attempt }
            }
        };
        self.mark_dirty(key);
        self.offer_rest(state, key);
        Taken::Granted(taken)
    }

    /// Nothing could be delivered: the partition waits for its delay, or for its next message.
    fn nothing(
        &mut self,
        key: PartKey,
        delivered: &Delivered,
        (delay_us, sought): (i64, bool),
    ) -> Taken {
        if let Some(part) = self.parts.get_mut(&key) {
            part.committed = part.committed.max(before(delivered.first));
        }
        if let Some(created) = delivered.too_young {
            self.hold(key, Micros(created.0 + delay_us));
        }
        if sought || delivered.too_young.is_none() {
            // Remember what the log said about where the group starts.
            self.mark_dirty(key);
        }
        self.unload_if_idle(key);
        Taken::Nothing
    }

    /// Gives a reservation back as if it had never been made.
    pub fn give_back(&mut self, state: &State, group: EngineGroup, token: u64, claim: &Claim) {
        let key = (claim.partition, group);
        if let Some(part) = self.parts.get_mut(&key)
            && part.reserved == Some(token)
        {
            part.reserved = None;
            self.unload_if_idle(key);
            self.offer_rest(state, key);
        }
    }

    /// Takes back what a pop was granted but could not be told: lease, attempt and all.
    pub fn revoke(
        &mut self,
        state: &State,
        group: EngineGroup,
        partition: PartitionId,
        lease: Uuid,
    ) {
        let key = (partition, group);
        let Some(part) = self.parts.get_mut(&key) else { return };
        if part.lease.is_none_or(|held| held.worker != lease) {
            return;
        }
        part.attempts = part.attempts.saturating_sub(1);
        if part.attempts == 0 {
            part.attempt_offset = None;
        }
        self.end_lease(key);
        self.mark_dirty(key);
        self.offer_rest(state, key);
    }

    /// Puts a partition behind the others when the group has more to read in it.
    pub(super) fn offer_rest(&mut self, state: &State, key: PartKey) {
        let Some(row) = state.partition(key.0) else { return };
        let behind = match self.parts.get(&key) {
            Some(part) => part.committed < row.last_offset,
            None => true,
        };
        if behind && self.state_of(key.1).loaded {
            self.offer(key);
        } else if behind {
            // The list is filled on its next use; a pop that waits for this partition by name does not look there.
            self.woken.push((key.1, key.0));
        }
    }
}

/// The cursor of a group that reads this offset next.
fn before(first: Offset) -> i64 {
    i64::try_from(first.0).unwrap_or(i64::MAX) - 1
}
