//! Retention: how far a partition's marks may move, and when a partition is removed.
//!
//! Somebody who reads the logs proposes; what he says is only what stands there. Whether it is due is decided here, against
//! the options, the groups and the time of this very plan.
//!
//! T1. Marks never go back. They move over whole appends, but for a lease that begins within one (T4).
//! T2. By completed-retention nothing goes that a group of the partition has yet to do.
//! T3. A message that a push may repeat is not reclaimed: its hash and its id are in its record.
//! T4. What somebody holds under a live lease keeps its bytes, though readers do not see it any more: it can be
//!     acknowledged and filed.
//! T5. One effect of retention per partition is in flight; a partition goes only when nothing that touches it is.

use queen_model::{Effect, QueueOptions, SINK_HOLD_MAX_SECONDS_DEFAULT, Watermark};
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, QueueId};
use queen_state::{Partition, Queue, State};

use crate::consume::Engine;
use crate::draft::{Draft, Route};
use crate::overlay::Overlay;

/// What applies to all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionTerms {
    /// Seconds for which a hash is kept whatever the queue's window says.
    pub hash_window_min_s: i64,
    /// Seconds after which a partition that nobody uses is removed; `None` never.
    pub cleanup_s: Option<i64>,
}

impl RetentionTerms {
    /// What was used last before this is disused at `now`.
    pub fn cleanup_before(&self, now: Micros) -> Option<Micros> {
        self.cleanup_s.map(|seconds| now.plus_seconds(-seconds))
    }
}

/// Times before which the messages of a queue are too old.
///
/// Source: the storage page, cutoffs of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Whatever became of them.
    pub any: Option<Micros>,
    /// Once every group has done them.
    pub completed: Option<Micros>,
    /// Their hashes, once they are gone.
    pub rows: Micros,
}

impl Cutoffs {
    /// The cutoffs of a queue with these options.
    ///
    /// A sink that holds data back reports nothing to a broker: what it holds goes when it has been held for the longest
    /// that it may be.
    pub fn of(options: &QueueOptions, now: Micros, terms: &RetentionTerms) -> Self {
        let before = |seconds: i32| (seconds > 0).then(|| now.plus_seconds(-i64::from(seconds)));
        let enabled = |seconds: i32| before(seconds).filter(|_| options.retention_enabled);
        let held_for = match options.retention_sink_hold_max_seconds {
            0 => SINK_HOLD_MAX_SECONDS_DEFAULT,
            seconds => seconds,
        };
        let hold = (!options.retention_sink_hold.is_empty()).then(|| before(held_for)).flatten();
        let lowered = |cutoff: Micros| hold.map_or(cutoff, |hold| cutoff.min(hold));
        let all = enabled(options.retention_seconds).map(lowered);
        let windows = options.dedup_window_seconds.max(options.completed_retention_seconds);
        let hashes_s = i64::from(windows).max(terms.hash_window_min_s);
        Self {
            any: all.max(before(options.max_wait_time_seconds)),
            completed: enabled(options.completed_retention_seconds).map(lowered),
            rows: now.plus_seconds(-hashes_s),
        }
    }

    /// The latest time before which a message may be too old; `None` when none ever is.
    pub fn latest(&self) -> Option<Micros> {
        self.any.max(self.completed)
    }
}

/// What the groups of a partition have yet to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Whether there is a group.
    pub any: bool,
    /// The lowest offset that a group has yet to do, over those that have a place.
    pub wanted: Option<Offset>,
    /// The earliest time at which a group without a place starts.
    pub since: Option<Micros>,
}

impl Holds {
    pub(crate) fn at(&mut self, wanted: Offset) {
        self.any = true;
        self.wanted = Some(self.wanted.map_or(wanted, |lowest| lowest.min(wanted)));
    }

    pub(crate) fn from(&mut self, time: Micros) {
        self.any = true;
        self.since = Some(self.since.map_or(time, |earliest| earliest.min(time)));
    }

    /// Whether the groups have done everything below `at`, of which the newest was made at `newest` (T2).
    pub fn release(&self, at: Offset, newest: Micros) -> bool {
        self.any
            && self.wanted.is_none_or(|wanted| at <= wanted)
            && self.since.is_none_or(|since| newest < since)
    }
}

/// A place between two appends up to which messages may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// First offset that stays.
    pub at: Offset,
    /// When the last append below was made.
    pub newest: Micros,
    /// When the append at the boundary was made; `None` when there was none.
    pub next: Option<Micros>,
    /// What the appends below count as retained. Not used when everything goes.
    pub freed: u64,
}

/// What the log says about the oldest appends of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The partition.
    pub partition: PartitionId,
    /// Where its log started when it was looked at.
    pub from: Offset,
    /// Places up to which messages may be removed, the nearest first.
    pub boundaries: Vec<Boundary>,
    /// A place up to which hashes may leave, and when the last append below was made.
    pub rows: Option<(Offset, Micros)>,
}

/// Something that retention may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Move marks.
    Expire(Expiry),
    /// Remove a disused partition.
    Remove(PartitionId),
}

/// What became of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Marks move.
    Moved {
        /// Messages removed.
        messages: u64,
        /// Bytes that they counted.
        bytes: u64,
    },
    /// The partition is removed.
    Removed,
    /// Nothing changes.
    Dropped(Dropped),
}

/// Why nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The partition or its queue is deleted.
    Gone,
    /// Something in flight touches it.
    InFlight,
    /// The log was looked at before something changed.
    Stale,
    /// It is not due, or held by a group.
    NotDue,
}

/// What retention is judged on.
pub struct RetentionContext<'a> {
    /// Applied state.
    pub state: &'a State,
    /// Changes in flight.
    pub overlay: &'a mut Overlay,
    /// The cursors, as of everything planned.
    pub engine: &'a Engine,
    /// What applies to all queues.
    pub terms: &'a RetentionTerms,
    /// Number of this plan.
    pub plan: u64,
}

impl<'a> RetentionContext<'a> {
    /// Judges a proposal; the draft gets what changes. Nothing may be planned after it that touches the partition.
    pub fn judge(&mut self, draft: &mut Draft<'_>, proposal: &Proposal) -> Judged {
        let judged = match proposal {
            Proposal::Expire(expiry) => self.expire(draft, expiry),
            Proposal::Remove(id) => self.remove(draft, *id),
        };
        judged.unwrap_or_else(Judged::Dropped)
    }

    fn expire(&mut self, draft: &mut Draft<'_>, expiry: &Expiry) -> Result<Judged, Dropped> {
        let id = expiry.partition;
        let (queue, row, options) = self.live(id)?;
        let cutoffs = Cutoffs::of(&options, draft.now(), self.terms);
        let start = row.log_start();
        let chosen = self.choose(queue, row, expiry, &cutoffs)?;
        let log_start = chosen.map_or(start, |boundary| boundary.at);
        let due =
            |(at, newest): &(Offset, Micros)| *newest < cutoffs.rows && *at > row.txns_start();
        let rows = expiry.rows.filter(due).map(|(at, _)| at.min(log_start));
        let leased = self.engine.lowest_leased((queue, id), draft.now());
        let rows = rows.map(|at| leased.map_or(at, |leased| at.min(leased)));
        let txns_start = rows.map_or(row.txns_start(), |at| at.max(row.txns_start()));
        if log_start == start && txns_start == row.txns_start() {
            return Err(Dropped::NotDue);
        }
        let freed = match chosen {
            None => 0,
            Some(boundary) if boundary.at == row.next_offset() => {
                u64::try_from(row.retained_bytes).unwrap_or(0)
            }
            Some(boundary) => boundary.freed,
        };
        let stored = row.marks.as_deref().copied().unwrap_or_default();
        let mark = Watermark {
            id,
            log_start,
            txns_start,
            // Hashes stand in the records, so they leave with them.
            rows_start: txns_start.max(Offset(stored.rows_start)),
            oldest: chosen.map_or(stored.oldest, |boundary| boundary.next),
            freed,
        };
        let route = Route::Partition(route_of(queue), id);
        draft.add(Effect::Watermark(mark), route, 70);
        self.overlay.note_retention(self.plan, id);
        Ok(Judged::Moved { messages: log_start.0 - start.0, bytes: freed })
    }

    /// The furthest boundary up to which everything is due.
    fn choose(
        &self,
        queue: &Queue,
        row: &Partition,
        expiry: &Expiry,
        cutoffs: &Cutoffs,
    ) -> Result<Option<Boundary>, Dropped> {
        let id = expiry.partition;
        if expiry.boundaries.is_empty() {
            return Ok(None);
        }
        if expiry.from != row.log_start() {
            return Err(Dropped::Stale);
        }
        let holds = cutoffs
            .completed
            .map(|_| holds(self.state, self.overlay, Some(self.engine), (queue, id)));
        let is_due = |boundary: &&Boundary| {
            let old = |cutoff: Option<Micros>| cutoff.is_some_and(|at| boundary.newest < at);
            let done = || holds.is_some_and(|holds| holds.release(boundary.at, boundary.newest));
            boundary.at > row.log_start() && (old(cutoffs.any) || old(cutoffs.completed) && done())
        };
        let Some(boundary) = expiry.boundaries.iter().rev().find(is_due) else { return Ok(None) };
        let (at, next) = (boundary.at, row.next_offset());
        if at > next || boundary.next.is_some() == (at == next) {
            return Err(Dropped::Stale);
        }
        let tip = self.overlay.tip(self.state, id).map_or(-1, |tip| tip.last_offset);
        if at == next && tip > row.last_offset {
            // What is appended in this plan would be the oldest, and its time is not known here.
            return Err(Dropped::InFlight);
        }
        Ok(Some(*boundary))
    }

    fn remove(&mut self, draft: &mut Draft<'_>, id: PartitionId) -> Result<Judged, Dropped> {
        let (queue, row, _) = self.live(id)?;
        let cutoff = self.terms.cleanup_before(draft.now()).ok_or(Dropped::NotDue)?;
        if !is_disused(self.state, (queue, id), row, cutoff) {
            return Err(Dropped::NotDue);
        }
        if self.engine.may_be_asked_for(self.state, self.overlay, (queue, id), draft.now()) {
            return Err(Dropped::NotDue);
        }
        if self.overlay.is_appended(id) || self.engine.is_touched(queue, id) {
            return Err(Dropped::InFlight);
        }
        let name = self.state.partition_name(row).to_owned();
        self.overlay.remove_partition(self.plan, queue.id, &name, id);
        self.overlay.note_retention(self.plan, id);
        let route = Route::Partition(route_of(queue), id);
        draft.add(Effect::PartitionDelete { id }, route, 30);
        Ok(Judged::Removed)
    }

    /// The partition, its queue and the options as planned, unless something in flight forbids.
    fn live(&self, id: PartitionId) -> Result<(&'a Queue, &'a Partition, QueueOptions), Dropped> {
        let row = self.state.partition(id).ok_or(Dropped::Gone)?;
        let queue = self.state.queue_by_number(row.queue).ok_or(Dropped::Gone)?;
        let view = self.overlay.queue(self.state, queue.tenant, &queue.name);
        view.filter(|view| view.id == queue.id).ok_or(Dropped::Gone)?;
        if self.overlay.has_retention(id) {
            return Err(Dropped::InFlight);
        }
        let options = self.overlay.options(self.state, queue.tenant, &queue.name);
        Ok((queue, row, options.ok_or(Dropped::Gone)?))
    }
}

fn route_of(queue: &Queue) -> QueueId {
    queue_id(queue.tenant, &queue.name)
}

/// What the groups of a partition have yet to do: as applied, or as planned where the engine knows more.
///
/// Shape: a registered group without a cursor here has its start; queue mode, which registers nothing, counts once it has
/// a cursor.
pub fn holds(
    state: &State,
    overlay: &Overlay,
    engine: Option<&Engine>,
    (queue, id): (&Queue, PartitionId),
) -> Holds {
    let mut holds = Holds::default();
    let idle = Engine::default();
    engine.unwrap_or(&idle).add_holds(state, overlay, (queue, id), &mut holds);
    holds
}

/// Whether nothing is in a partition and nobody has used it since `cutoff`.
pub fn is_disused(
    state: &State,
    (queue, id): (&Queue, PartitionId),
    row: &Partition,
    cutoff: Micros,
) -> bool {
    // With its last row goes what deduplication knows (T3).
    row.created < cutoff
        && row.last_created < cutoff
        && row.txns_start() >= row.next_offset()
        && queue.dead_letters_at(id, i64::MIN..=i64::MAX).next().is_none()
        && queue.groups().filter_map(|group| state.cursor(id, group.number)).all(|cursor| {
            cursor.created < cutoff && cursor.lease().is_none_or(|lease| lease.expires < cutoff)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_000_000_000_000_000);
    const TERMS: RetentionTerms = RetentionTerms { hash_window_min_s: 900, cleanup_s: None };

    fn check(
        change: impl Fn(&mut QueueOptions),
        any: Option<i64>,
        completed: Option<i64>,
        rows: i64,
    ) {
        let mut options = QueueOptions::configured();
        change(&mut options);
        let before = |seconds: i64| NOW.plus_seconds(-seconds);
        let expected =
            Cutoffs { any: any.map(before), completed: completed.map(before), rows: before(rows) };
        assert_eq!(Cutoffs::of(&options, NOW, &TERMS), expected, "{options:?}");
    }

    #[test]
    fn cutoffs_of_a_queue() {
        check(|_| {}, None, None, 3600);
        let off = |options: &mut QueueOptions| {
            (options.retention_seconds, options.completed_retention_seconds) = (60, 30);
        };
        check(off, None, None, 3600);
        let on = |options: &mut QueueOptions| {
            off(options);
            options.retention_enabled = true;
        };
        check(on, Some(60), Some(30), 3600);
        let negative = |options: &mut QueueOptions| {
            on(options);
            options.retention_seconds = -5;
            options.dedup_window_seconds = 0;
        };
        check(negative, None, Some(30), 900);
        let wait = |options: &mut QueueOptions| options.max_wait_time_seconds = 10;
        check(wait, Some(10), None, 3600);
        let both = |options: &mut QueueOptions| {
            on(options);
            wait(options);
        };
        check(both, Some(10), Some(30), 3600);
        let long = |options: &mut QueueOptions| {
            on(options);
            options.completed_retention_seconds = 9000;
        };
        check(long, Some(60), Some(9000), 9000);
    }

    #[test]
    fn a_sink_holds_all_but_what_waited_too_long() {
        let held = |max: i32, wait: i32| {
            move |options: &mut QueueOptions| {
                options.retention_enabled = true;
                (options.retention_seconds, options.completed_retention_seconds) = (60, 30);
                options.retention_sink_hold = "archive".to_owned();
                options.retention_sink_hold_max_seconds = max;
                options.max_wait_time_seconds = wait;
            }
        };
        check(held(500, 0), Some(500), Some(500), 3600);
        check(held(500, 10), Some(10), Some(500), 3600);
        check(held(60, 0), Some(60), Some(60), 3600);
        check(held(0, 0), Some(604_800), Some(604_800), 3600);
    }

    #[test]
    fn groups_hold_what_they_have_yet_to_do() {
        let check = |holds: Holds, at: u64, newest: i64, expected: bool| {
            assert_eq!(holds.release(Offset(at), Micros(newest)), expected, "{holds:?} {at}");
        };
        check(Holds::default(), 0, 0, false);
        let mut holds = Holds::default();
        holds.at(Offset(7));
        holds.at(Offset(5));
        check(holds, 5, 100, true);
        check(holds, 6, 0, false);
        holds.from(Micros(50));
        holds.from(Micros(60));
        check(holds, 5, 49, true);
        check(holds, 5, 50, false);
    }
}
