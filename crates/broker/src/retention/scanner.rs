//! The walk over all partitions, and what the logs say to it.

use std::collections::BTreeSet;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use queen_planner::retention::{Boundary, Cutoffs, Expiry, Proposal, RetentionTerms};
use queen_qlog::{Place, Qlog, ReadError};
use queen_record::ids::{LogId, Micros, Offset, PartitionId};
use queen_state::{QueueNumber, State};

use super::visit::{Look, Visit, visit};

/// A partition with more to remove than one step may is looked at again after this long.
const AGAIN_US: i64 = 40_000;
/// Partitions whose next hashes are known to be young: 32 bytes each.
const KNOWN_MAX: usize = 1 << 20;

/// How the scanner walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannerOptions {
    /// Least time between the starts of two rounds, µs.
    pub interval_us: i64,
    /// Partitions a second at most.
    pub partitions_per_s: u64,
    /// Appends that one step moves a mark by at most.
    pub appends_max: usize,
    /// What applies to all queues; the cycle must have the same.
    pub terms: RetentionTerms,
}

/// The walk.
pub struct Scanner {
    options: ScannerOptions,
    /// Where the round goes on; `None` between two rounds.
    next: Option<PartitionId>,
    round_began: Micros,
    /// How long the last round took, until somebody asks.
    round_us: Option<i64>,
    /// When the walk may go on.
    paced: Micros,
    again: BTreeSet<(Micros, PartitionId)>,
    /// The partitions of `again`: each is in it once.
    is_again: HashSet<PartitionId, FixedState>,
    /// When the append at the `txns_start` of a partition was made, while it is too young to leave.
    known: HashMap<PartitionId, (Offset, Micros), FixedState>,
}

impl Scanner {
    /// A walk that begins at once.
    pub fn new(options: ScannerOptions) -> Self {
        let longest_ago = Micros(i64::MIN);
        Self {
            options,
            next: None,
            round_began: longest_ago,
            round_us: None,
            paced: longest_ago,
            again: BTreeSet::new(),
            is_again: HashSet::with_hasher(FixedState::default()),
            known: HashMap::with_hasher(FixedState::default()),
        }
    }

    /// When the next call of [`Scanner::walk`] has something to do.
    pub fn next_due(&self) -> Micros {
        let round = match self.next {
            Some(_) => self.paced,
            None => {
                self.paced.max(Micros(self.round_began.0.saturating_add(self.options.interval_us)))
            }
        };
        self.again.first().map_or(round, |(at, _)| round.min(*at))
    }

    /// How long the round took that ended since the last call, µs.
    pub fn take_round_us(&mut self) -> Option<i64> {
        self.round_us.take()
    }

    /// Walks up to `max` partitions on, and those whose last step was full; returns those that may have something due.
    pub fn walk(&mut self, state: &State, now: Micros, max: usize) -> Vec<Visit> {
        let mut visits = Vec::new();
        let mut cutoffs = None;
        while visits.len() < max
            && let Some((at, id)) = self.again.first().copied()
            && at <= now
        {
            self.again.pop_first();
            self.is_again.remove(&id);
            visits.extend(self.visit(state, id, now, &mut cutoffs));
        }
        let round_due = self.round_began.0.saturating_add(self.options.interval_us);
        if self.next.is_none() && now.0 >= round_due {
            self.round_began = now;
            self.next = Some(PartitionId(0));
        }
        if now < self.paced {
            return visits;
        }
        let Some(from) = self.next else { return visits };
        let mut walked = 0;
        self.next = None;
        for (id, _) in state.partitions_from(from) {
            if walked == max {
                self.next = Some(id);
                break;
            }
            walked += 1;
            visits.extend(self.visit(state, id, now, &mut cutoffs));
        }
        if self.next.is_none() {
            self.round_us = Some(now.0 - self.round_began.0);
        }
        let rest_us = walked as u64 * 1_000_000 / self.options.partitions_per_s.max(1);
        self.paced = Micros(now.0.saturating_add(i64::try_from(rest_us).unwrap_or(i64::MAX)));
        visits
    }

    fn visit(
        &self,
        state: &State,
        id: PartitionId,
        now: Micros,
        cutoffs: &mut Option<(QueueNumber, Cutoffs)>,
    ) -> Option<Visit> {
        let row = state.partition(id)?;
        let queue = state.queue_by_number(row.queue)?;
        let terms = &self.options.terms;
        // Neighbours are mostly of one queue.
        let cutoffs = match cutoffs {
            Some((of, cutoffs)) if *of == row.queue => *cutoffs,
            _ => cutoffs.insert((row.queue, Cutoffs::of(&queue.options, now, terms))).1,
        };
        let known = self.known.get(&id).filter(|(at, _)| *at == row.txns_start());
        let row_made = known.map(|(_, made)| *made);
        visit(state, (queue, id, row), (&cutoffs, terms, now), row_made)
    }

    /// Asks the log what a visit is about; `None` when nothing is due after all.
    ///
    /// # Errors
    /// Damage or I/O: the partition is left as it is.
    pub fn look(
        &mut self,
        qlog: &Qlog,
        visit: &Visit,
        now: Micros,
    ) -> Result<Option<Proposal>, ReadError> {
        let look = match visit {
            Visit::Look(look) => look,
            Visit::Disused(id) => return Ok(Some(Proposal::Remove(*id))),
        };
        let log = qlog.log_of(look.route, Some(look.id));
        let max = self.options.appends_max.max(1);
        let until = look.cutoffs.latest().filter(|_| look.messages);
        let appends = match until {
            Some(until) => qlog.appends(log, look.id, look.log_start, until, max)?,
            None => Vec::new(),
        };
        let steps = steps(look, &appends, max);
        let boundaries = boundaries(qlog, log, look, &appends, &steps)?;
        let furthest = boundaries.last().map_or(look.log_start, |boundary| boundary.at);
        let is_full = steps.contains(&max);
        let (rows, rows_full) = if look.rows || look.txns_start == look.log_start {
            self.rows(qlog, log, look, (furthest, &appends))?
        } else {
            (None, false)
        };
        if (is_full || rows_full) && self.is_again.insert(look.id) {
            self.again.insert((Micros(now.0 + AGAIN_US), look.id));
        }
        if boundaries.is_empty() && rows.is_none() {
            return Ok(None);
        }
        let (partition, from) = (look.id, look.log_start);
        Ok(Some(Proposal::Expire(Expiry { partition, from, boundaries, rows })))
    }

    /// How far hashes may leave, and whether that was all that one step may.
    fn rows(
        &mut self,
        qlog: &Qlog,
        log: LogId,
        look: &Look,
        (furthest, appends): (Offset, &[Place]),
    ) -> Result<(Option<(Offset, Micros)>, bool), ReadError> {
        let (max, cutoff) = (self.options.appends_max.max(1), look.cutoffs.rows);
        let asked;
        let appends = if look.txns_start == look.log_start {
            appends
        } else {
            asked = qlog.appends(log, look.id, look.txns_start, cutoff, max)?;
            &asked
        };
        let leaves = |place: &&Place| place.created < cutoff && place.end <= furthest;
        let count = appends.iter().take(max).take_while(leaves).count();
        if let Some(next) = appends.get(count).filter(|next| next.created >= cutoff) {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            let at = if count == 0 { look.txns_start } else { next.base };
            self.known.insert(look.id, (at, next.created));
        } else {
            self.known.remove(&look.id);
        }
        let last = count.checked_sub(1).and_then(|last| appends.get(last));
        Ok((last.map(|place| (place.end, place.created)), count == max))
    }
}

/// How many of the appends may go, by each cutoff, ascending and without repetition.
fn steps(look: &Look, appends: &[Place], max: usize) -> Vec<usize> {
    let prefix = |cutoff: Option<Micros>, done: &dyn Fn(&Place) -> bool| {
        let Some(cutoff) = cutoff else { return 0 };
        let goes = |place: &&Place| place.created < cutoff && done(place);
        appends.iter().take(max).take_while(goes).count()
    };
    let any = prefix(look.cutoffs.any, &|_| true);
    let done =
        |place: &Place| look.holds.is_some_and(|holds| holds.release(place.end, place.created));
    let completed = prefix(look.cutoffs.completed, &done);
    let mut steps = vec![any, completed];
    steps.sort_unstable();
    steps.dedup();
    steps.retain(|count| *count > 0);
    steps
}

fn boundaries(
    qlog: &Qlog,
    log: LogId,
    look: &Look,
    appends: &[Place],
    steps: &[usize],
) -> Result<Vec<Boundary>, ReadError> {
    let mut boundaries: Vec<Boundary> = Vec::with_capacity(steps.len());
    for count in steps {
        let Some(last) = count.checked_sub(1).and_then(|last| appends.get(last)) else { continue };
        let next = appends.get(*count).map(|place| place.created);
        let (from, freed) =
            boundaries.last().map_or((look.log_start, 0), |nearer| (nearer.at, nearer.freed));
        let everything = next.is_none() && last.end == look.next;
        let more = if everything {
            // The partition's own counter says it.
            0
        } else {
            qlog.retained_bytes(log, look.id, from..last.end)?
        };
        boundaries.push(Boundary { at: last.end, newest: last.created, next, freed: freed + more });
    }
    Ok(boundaries)
}

#[cfg(test)]
mod tests {
    use queen_model::{CommandSpan, Effect, Entry, PartitionCreate, QueueOptions};
    use queen_record::ids::{EntryIndex, Tenant, Uuid};

    use super::*;

    /// A queue with empty partitions that nobody uses.
    fn state(partitions: u64) -> State {
        let (tenant, queue, created) = (Tenant::DEFAULT, "q".to_owned(), Micros(1));
        let mut effects = vec![Effect::QueueUpsert {
            tenant,
            queue: queue.clone(),
            id: Uuid([1; 16]),
            options: QueueOptions::configured(),
            created,
        }];
        effects.extend((1..=partitions).map(|number| {
            Effect::PartitionCreate(PartitionCreate {
                id: PartitionId(number),
                uuid: Uuid([2; 16]),
                tenant,
                queue: queue.clone(),
                partition: number.to_string(),
                created,
            })
        }));
        let effect_count = u32::try_from(effects.len()).unwrap();
        let span = CommandSpan { request: Uuid([3; 16]), first_effect: 0, effect_count };
        let entry = Entry {
            now: Micros(2),
            pid_base: PartitionId(1),
            kv_version_base: 1,
            commands: vec![span],
            effects,
        };
        let mut state = State::new();
        state.apply(EntryIndex(1), 1, &entry).unwrap();
        state
    }

    fn disused(visits: &[Visit]) -> Vec<u64> {
        let number = |visit: &Visit| match visit {
            Visit::Disused(id) => id.0,
            Visit::Look(look) => panic!("{look:?} holds nothing"),
        };
        visits.iter().map(number).collect()
    }

    #[test]
    fn a_walk_is_in_order_paced_and_not_begun_too_often() {
        let terms = RetentionTerms { hash_window_min_s: 0, cleanup_s: Some(5) };
        let options =
            ScannerOptions { interval_us: 10_000, partitions_per_s: 1000, appends_max: 1, terms };
        let (mut scanner, state) = (Scanner::new(options), state(7));
        let began = Micros(100_000_000);
        assert!(scanner.next_due() <= began);
        let mut now = began;
        for (expected, pause_us) in [(vec![1, 2, 3], 3000), (vec![4, 5, 6], 3000), (vec![7], 4000)]
        {
            assert_eq!(disused(&scanner.walk(&state, now, 3)), expected);
            assert_eq!(scanner.walk(&state, now, 3), [], "it is paced");
            let due = Micros(now.0 + pause_us);
            assert_eq!(scanner.next_due(), due, "a millisecond for each, ten for a round");
            now = due;
        }
        assert_eq!(scanner.take_round_us(), Some(6000));
        assert_eq!(scanner.take_round_us(), None);
        assert_eq!(now, Micros(began.0 + 10_000));
        assert_eq!(disused(&scanner.walk(&state, now, 3)), [1, 2, 3], "the next round");
        let young = RetentionTerms { cleanup_s: Some(500), ..terms };
        let mut scanner = Scanner::new(ScannerOptions { terms: young, ..options });
        assert_eq!(scanner.walk(&state, began, 100), []);
        let never = RetentionTerms { cleanup_s: None, ..terms };
        let mut scanner = Scanner::new(ScannerOptions { terms: never, ..options });
        assert_eq!(scanner.walk(&state, began, 100), []);
    }
}
