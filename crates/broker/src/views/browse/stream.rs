//! The wanted messages of one partition, newest first, found through the log's index as far as they are asked for.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};

use queen_record::ids::{Micros, Offset, PartitionId};

use super::super::stored::{check_missing, damaged};
use super::super::walk::{At, Target};
use super::status::Consumed;
use crate::api::{CallError, MessageStatus};
use crate::core::Shared;

/// Records looked up at first, and at most.
const LOOK_UP: (usize, usize) = (1, 128);
/// Messages taken from the looked-up records at once.
const READY_MAX: usize = 1024;

/// What is wanted.
pub(super) struct Filter {
    pub(super) from: Micros,
    pub(super) to: Micros,
    pub(super) status: Option<MessageStatus>,
    /// Leases that end before are over.
    pub(super) now: Micros,
}

/// What one merge may cost.
pub(super) struct Budget {
    lookups: usize,
    offsets: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { lookups: 30_000, offsets: 1_000_000 }
    }
}

impl Budget {
    pub(super) fn is_spent(&self) -> bool {
        self.lookups == 0 || self.offsets == 0
    }

    fn take(&mut self, lookups: usize, offsets: usize) {
        self.lookups = self.lookups.saturating_sub(lookups);
        self.offsets = self.offsets.saturating_sub(offsets);
    }
}

/// One partition. Ordered by the time that its next message is not younger than; one whose next message is not known
/// yet goes before those of the same time.
pub(super) struct Stream {
    bound: Micros,
    id: PartitionId,
    queue: usize,
    /// Offsets still to be looked up: from, and up to without.
    from: u64,
    end: u64,
    /// Whether records from `to` on were passed over.
    is_cut: bool,
    look_up: usize,
    ready: VecDeque<(Micros, u64)>,
}

impl Stream {
    /// The stream of a partition; `None` when the state knows that nothing in it is wanted.
    pub(super) fn of(at: At<'_>, queue: usize, filter: &Filter) -> Option<Self> {
        let row = at.row;
        let oldest = super::super::oldest::known_time(row, row.log_start());
        if row.last_created < filter.from || oldest.is_none_or(|oldest| oldest >= filter.to) {
            return None;
        }
        let first = i64::try_from(row.log_start().0).unwrap_or(i64::MAX);
        let consumed = Consumed::of(at, filter.now);
        let (first, last) = consumed.offsets(filter.status, first, row.last_offset);
        if filter.status == Some(MessageStatus::DeadLetter) {
            at.queue.dead_letters_at(at.id, first..=last).next()?;
        }
        let from = u64::try_from(first).ok()?;
        let end = u64::try_from(last.checked_add(1)?).ok()?;
        (from < end).then(|| Self {
            bound: row.last_created.min(Micros(filter.to.0.saturating_sub(1))),
            id: at.id,
            queue,
            from,
            end,
            is_cut: row.last_created < filter.to,
            look_up: LOOK_UP.0,
            ready: VecDeque::new(),
        })
    }

    fn bound(&self) -> Micros {
        self.ready.front().map_or(self.bound, |(created, _)| *created)
    }

    /// Where its next message stands among those of all partitions, at the newest.
    pub(super) fn place(&self) -> (Micros, PartitionId) {
        (self.bound(), self.id)
    }

    pub(super) fn id(&self) -> PartitionId {
        self.id
    }

    pub(super) fn queue(&self) -> usize {
        self.queue
    }

    pub(super) fn is_done(&self) -> bool {
        self.ready.is_empty() && self.from >= self.end
    }

    /// The next message, if it is known.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.ready.pop_front().map(|(_, offset)| offset)
    }

    /// Looks up the next messages.
    pub(super) fn fill(
        &mut self,
        shared: &Shared,
        target: &Target,
        filter: &Filter,
        budget: &mut Budget,
    ) -> Result<(), CallError> {
        let qlog = shared.reader.qlog();
        let log = qlog.log_of(target.route(), Some(self.id));
        if !self.is_cut {
            let found = qlog.first_at_or_after(log, self.id, filter.to);
            let found = found.map_err(|error| damaged(shared, error))?;
            self.end = found.map_or(self.end, |(base, _)| self.end.min(base.0));
            self.is_cut = true;
            budget.take(1, 0);
            if self.is_done() {
                return Ok(());
            }
        }
        if filter.status == Some(MessageStatus::DeadLetter) {
            return self.fill_dead(shared, target, filter, budget);
        }
        let wanted = Offset(self.from)..Offset(self.end);
        let places = qlog.places_back(log, self.id, &wanted, self.look_up);
        let places = places.map_err(|error| damaged(shared, error))?;
        budget.take(1 + places.len() / 16, 0);
        self.look_up = (self.look_up * 4).min(LOOK_UP.1);
        if places.is_empty() {
            check_missing(shared, self.id, self.end.saturating_sub(1))?;
            self.end = self.from;
        }
        for place in places {
            if place.created < filter.from {
                self.end = self.from;
                break;
            }
            if self.ready.len() >= READY_MAX {
                break;
            }
            let room = (READY_MAX - self.ready.len()) as u64;
            let end = place.end.0.min(self.end);
            let start = place.base.0.max(self.from).max(end.saturating_sub(room));
            self.ready.extend((start..end).rev().map(|offset| (place.created, offset)));
            self.bound = place.created;
            self.end = start;
        }
        budget.take(0, self.ready.len());
        if filter.status.is_some() {
            self.leave_out_dead(shared, target);
        }
        Ok(())
    }

    /// A dead letter has a status of its own.
    fn leave_out_dead(&mut self, shared: &Shared, target: &Target) {
        let (Some((_, last)), Some((_, first))) = (self.ready.front(), self.ready.back()) else {
            return;
        };
        let (first, last) = (*first, *last);
        let dead = self.dead(shared, target, first, last, usize::MAX);
        self.ready.retain(|(_, offset)| !dead.contains(offset));
    }

    /// The newest offsets from `first` to `last` that a dead letter holds.
    fn dead(
        &self,
        shared: &Shared,
        target: &Target,
        first: u64,
        last: u64,
        max: usize,
    ) -> BTreeSet<u64> {
        let signed = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let state = shared.state.read();
        let Some(queue) = target.queue(&state) else { return BTreeSet::new() };
        let letters = queue.dead_letters_at(self.id, signed(first)..=signed(last)).rev();
        let mut offsets = BTreeSet::new();
        for letter in letters {
            offsets.extend(u64::try_from(letter.letter.offset));
            if offsets.len() >= max {
                break;
            }
        }
        offsets
    }

    /// The next messages that dead letters hold.
    fn fill_dead(
        &mut self,
        shared: &Shared,
        target: &Target,
        filter: &Filter,
        budget: &mut Budget,
    ) -> Result<(), CallError> {
        let Some(last) = self.end.checked_sub(1).filter(|last| *last >= self.from) else {
            self.end = self.from;
            return Ok(());
        };
        let dead = self.dead(shared, target, self.from, last, self.look_up);
        if dead.len() < self.look_up {
            self.end = self.from;
        } else if let Some(lowest) = dead.first() {
            self.end = *lowest;
        }
        budget.take(1 + dead.len(), 0);
        self.look_up = (self.look_up * 4).min(LOOK_UP.1);
        let qlog = shared.reader.qlog();
        let log = qlog.log_of(target.route(), Some(self.id));
        for offset in dead.into_iter().rev() {
            let place = qlog.place_of(log, self.id, Offset(offset));
            let place = place.map_err(|error| damaged(shared, error))?;
            let Some(place) = place.filter(|place| place.base.0 <= offset) else { continue };
            if place.created < filter.from {
                self.end = self.from;
                break;
            }
            self.ready.push_back((place.created, offset));
            self.bound = place.created;
        }
        Ok(())
    }

    fn key(&self) -> (Micros, bool, PartitionId) {
        (self.bound(), self.ready.is_empty(), self.id)
    }
}

impl Ord for Stream {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Stream {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Stream {}
