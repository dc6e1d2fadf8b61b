//! Judges what the load saw: a pure function over histories.
//!
//! | rule | says |
//! | --- | --- |
//! | O1 | the log of every partition has no gap and no offset twice |
//! | O2 | every acknowledged push is in the log at its answered offset, whatever was asked how often |
//! | O3 | no id is in the log twice |
//! | O4 | nothing is in the log, or was delivered, that nobody pushed or that differs from what was pushed |
//! | O5 | a push that began after another's answer stands behind it in their partition |
//! | O6 | every delivery agrees with the log, and every acknowledged push was delivered |
//! | O7 | nothing is delivered by a pop that began after an ack of it was answered |
//! | O8 | a claim has no gap, and begins no later than after what acks may have settled |
//! | O9 | while one holds a partition for sure, nobody else gets it |

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::load::LEASE;

/// One send of an id, with all its repeats.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) id: u64,
    pub(super) partition: u64,
    /// When it was first sent.
    pub(super) started: u64,
    /// None when its answer is unknown.
    pub(super) stored: Option<Stored>,
}

/// What a push was answered.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) offset: u64,
    pub(super) is_duplicate: bool,
    pub(super) ended: u64,
}

/// One partition of one pop.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) partition: u64,
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) messages: Vec<Delivered>,
    /// When something was sent that may have released the lease.
    pub(super) released: Option<u64>,
}

/// One message of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivered {
    pub(super) offset: u64,
    pub(super) id: u64,
    /// Payload and transactionId are what the id's push sent.
    pub(super) is_whole: bool,
}

/// One acked message.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) partition: u64,
    pub(super) offset: u64,
    pub(super) started: u64,
    /// When success was answered.
    pub(super) ended: Option<u64>,
}

/// What threads saw.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) pushes: Vec<Push>,
    pub(super) claims: Vec<Claim>,
    pub(super) settled: Vec<Settled>,
    /// Answers that no correct node gives to this load.
    pub(super) refused: Vec<String>,
}

impl History {
    /// Adds another thread's.
    pub(super) fn extend(&mut self, other: Self) {
        self.pushes.extend(other.pushes);
        self.claims.extend(other.claims);
        self.settled.extend(other.settled);
        self.refused.extend(other.refused);
    }
}

/// The result.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) acknowledged: usize,
    pub(super) given_up: usize,
    pub(super) duplicates: usize,
    pub(super) deliveries: usize,
    pub(super) violations: Vec<String>,
}

/// An offset of a partition.
type Place = (u64, u64);

/// Judges histories against the log that was read at the end.
pub(super) fn judge(history: &History, log: &[(u64, Delivered)]) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.violations.extend(history.refused.iter().map(|text| format!("refused: {text}")));
    let places = judge_log(log, &mut verdict.violations);
    judge_pushes(history, &places, &mut verdict);
    judge_real_time(history, &mut verdict.violations);
    judge_deliveries(history, &places, &mut verdict);
    judge_acks(history, &mut verdict.violations);
    judge_leases(history, &mut verdict.violations);
    verdict
}

/// O1, O3: the log by itself; ids by their place.
fn judge_log(log: &[(u64, Delivered)], violations: &mut Vec<String>) -> BTreeMap<Place, u64> {
    let mut due: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut places, mut ids) = (BTreeMap::new(), HashMap::new());
    for (partition, message) in log {
        let due = due.entry(*partition).or_default();
        if message.offset != *due {
            violations.push(format!(
                "O1: p{partition} has offset {} where {due} was due",
                message.offset
            ));
        }
        *due = message.offset + 1;
        places.insert((*partition, message.offset), message.id);
        if let Some(before) = ids.insert(message.id, message.offset) {
            let offset = message.offset;
            violations.push(format!(
                "O3: id {} at offsets {before} and {offset} of p{partition}",
                message.id
            ));
        }
        if !message.is_whole {
            violations
                .push(format!("O4: p{partition} offset {} holds other bytes", message.offset));
        }
    }
    places
}

/// O2, O4: what was acknowledged is there, what is there was pushed.
fn judge_pushes(history: &History, places: &BTreeMap<Place, u64>, verdict: &mut Verdict) {
    let mut pushed = BTreeSet::new();
    let (mut acknowledged, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for push in &history.pushes {
        pushed.insert((push.partition, push.id));
        let Some(stored) = &push.stored else {
            unknown.insert(push.id);
            continue;
        };
        acknowledged.insert(push.id);
        verdict.duplicates += usize::from(stored.is_duplicate);
        let found = places.get(&(push.partition, stored.offset));
        if found != Some(&push.id) {
            verdict.violations.push(format!(
                "O2: id {} was acknowledged at p{} offset {}, there is {found:?}",
                push.id, push.partition, stored.offset
            ));
        }
    }
    for ((partition, offset), id) in places {
        if !pushed.contains(&(*partition, *id)) {
            verdict
                .violations
                .push(format!("O4: nobody pushed id {id}, at p{partition} offset {offset}"));
        }
    }
    verdict.acknowledged = acknowledged.len();
    verdict.given_up = unknown.difference(&acknowledged).count();
}

/// O5: an answered push is before every push that began later.
fn judge_real_time(history: &History, violations: &mut Vec<String>) {
    let mut by_partition: BTreeMap<u64, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for push in &history.pushes {
        if let Some(stored) = &push.stored
            && !stored.is_duplicate
        {
            by_partition.entry(push.partition).or_default().push((
                stored.offset,
                push.started,
                stored.ended,
            ));
        }
    }
    for (partition, mut pushes) in by_partition {
        pushes.sort_unstable();
        // From the end: the earliest answer of what stands behind.
        let (mut earliest, mut at) = (u64::MAX, 0);
        for (offset, started, ended) in pushes.into_iter().rev() {
            if earliest < started {
                let text = format!(
                    "O5: p{partition} offset {offset} began after offset {at} was answered"
                );
                violations.push(text);
            }
            if ended < earliest {
                (earliest, at) = (ended, offset);
            }
        }
    }
}

/// O4, O6: deliveries agree with the log and are complete.
fn judge_deliveries(history: &History, places: &BTreeMap<Place, u64>, verdict: &mut Verdict) {
    let mut delivered = BTreeSet::new();
    for claim in &history.claims {
        for message in &claim.messages {
            verdict.deliveries += 1;
            let place = (claim.partition, message.offset);
            delivered.insert(place);
            if places.get(&place) != Some(&message.id) || !message.is_whole {
                verdict.violations.push(format!(
                    "O6: p{} offset {} was delivered with id {}, the log has {:?}",
                    claim.partition,
                    message.offset,
                    message.id,
                    places.get(&place)
                ));
            }
        }
    }
    for push in &history.pushes {
        if let Some(stored) = &push.stored
            && !delivered.contains(&(push.partition, stored.offset))
        {
            let (id, partition, offset) = (push.id, push.partition, stored.offset);
            verdict
                .violations
                .push(format!("O6: id {id} at p{partition} offset {offset} was never delivered"));
        }
    }
}

/// The highest offset by a time, looked up for any time.
struct Highest(Vec<(u64, u64)>);

impl Highest {
    fn new(mut points: Vec<(u64, u64)>) -> Self {
        points.sort_unstable();
        let mut highest = 0;
        for (_, offset) in &mut points {
            highest = highest.max(*offset);
            *offset = highest;
        }
        Self(points)
    }

    /// The highest offset, plus one, of all points up to this time.
    fn after(&self, time: u64) -> u64 {
        let count = self.0.partition_point(|(at, _)| *at <= time);
        count.checked_sub(1).and_then(|last| self.0.get(last)).map_or(0, |(_, offset)| offset + 1)
    }
}

/// O7, O8: where a claim may begin.
fn judge_acks(history: &History, violations: &mut Vec<String>) {
    let mut sure: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut possible: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for ack in &history.settled {
        possible.entry(ack.partition).or_default().push((ack.started, ack.offset));
        if let Some(ended) = ack.ended {
            sure.entry(ack.partition).or_default().push((ended, ack.offset));
        }
    }
    let index = |points: BTreeMap<u64, Vec<(u64, u64)>>| -> BTreeMap<u64, Highest> {
        points.into_iter().map(|(partition, points)| (partition, Highest::new(points))).collect()
    };
    let (sure, possible) = (index(sure), index(possible));
    for claim in &history.claims {
        let partition = claim.partition;
        let Some(first) = claim.messages.first().map(|message| message.offset) else { continue };
        // An ack answered in the very microsecond in which the pop began proves nothing.
        let settled =
            sure.get(&partition).map_or(0, |acks| acks.after(claim.started.saturating_sub(1)));
        if first < settled {
            violations.push(format!(
                "O7: p{partition} offset {first} was delivered at {} us although {settled} was settled before",
                claim.started
            ));
        }
        let reached = possible.get(&partition).map_or(0, |acks| acks.after(claim.ended));
        if first > reached {
            violations.push(format!(
                "O8: p{partition} offset {first} was delivered before offset {reached}"
            ));
        }
        for (due, message) in (first..).zip(&claim.messages) {
            if message.offset != due {
                violations.push(format!(
                    "O8: p{partition} delivered {} where {due} was due",
                    message.offset
                ));
            }
        }
    }
}

/// O9: nobody gets a partition that somebody holds for sure.
fn judge_leases(history: &History, violations: &mut Vec<String>) {
    let lease = u64::try_from(LEASE.as_micros()).unwrap_or(u64::MAX);
    let mut by_partition: BTreeMap<u64, Vec<&Claim>> = BTreeMap::new();
    for claim in &history.claims {
        by_partition.entry(claim.partition).or_default().push(claim);
    }
    for (partition, mut claims) in by_partition {
        claims.sort_by_key(|claim| claim.started);
        let mut held: Option<(u64, u64)> = None;
        for claim in claims {
            if let Some((from, until)) = held
                && claim.started >= from
                && claim.ended < until
            {
                violations.push(format!(
                    "O9: p{partition} was given at {}..{} us while held from {from} to {until} us",
                    claim.started, claim.ended
                ));
            }
            let until = claim.released.unwrap_or(u64::MAX).min(claim.started + lease);
            if claim.ended < until && held.is_none_or(|(_, before)| before < until) {
                held = Some((claim.ended, until));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(id: u64, started: u64, offset: u64, ended: u64) -> Push {
        let stored = Some(Stored { offset, is_duplicate: false, ended });
        Push { id, partition: 0, started, stored }
    }

    fn message(offset: u64) -> Delivered {
        Delivered { offset, id: 10 + offset, is_whole: true }
    }

    fn claim(started: u64, offsets: std::ops::Range<u64>) -> Claim {
        let messages = offsets.map(message).collect();
        Claim { partition: 0, started, ended: started + 10, messages, released: Some(started + 20) }
    }

    fn ack(offset: u64, started: u64) -> Settled {
        Settled { partition: 0, offset, started, ended: Some(started + 10) }
    }

    /// Two pushes, two claims, all acked.
    fn good() -> (History, Vec<(u64, Delivered)>) {
        let history = History {
            pushes: vec![push(10, 0, 0, 10), push(11, 20, 1, 30)],
            claims: vec![claim(100, 0..1), claim(200, 1..2)],
            settled: vec![ack(0, 120), ack(1, 220)],
            refused: Vec::new(),
        };
        (history, vec![(0, message(0)), (0, message(1))])
    }

    /// Changes the good run and names the rules that then speak.
    fn check(change: impl FnOnce(&mut History, &mut Vec<(u64, Delivered)>), rules: &[&str]) {
        let (mut history, mut log) = good();
        change(&mut history, &mut log);
        let violations = judge(&history, &log).violations;
        let found: BTreeSet<&str> = violations.iter().filter_map(|text| text.get(..2)).collect();
        assert_eq!(found, rules.iter().copied().collect(), "{violations:?}");
    }

    #[test]
    fn a_right_run_has_no_violation() {
        check(|_, _| {}, &[]);
        let (history, log) = good();
        let verdict = judge(&history, &log);
        assert_eq!((verdict.acknowledged, verdict.deliveries, verdict.given_up), (2, 2, 0));
    }

    #[test]
    fn an_unknown_push_may_be_there_or_not() {
        check(|history, _| history.pushes.push(Push { stored: None, ..push(12, 0, 0, 0) }), &[]);
    }

    #[test]
    fn what_the_log_shows() {
        check(|_, log| log.truncate(1), &["O2", "O6"]);
        check(|_, log| log.retain(|(_, message)| message.offset > 0), &["O1", "O2", "O6"]);
        check(|_, log| log.push((0, Delivered { id: 10, ..message(2) })), &["O3"]);
        check(|_, log| log.push((0, message(2))), &["O4"]);
        check(|_, log| log.iter_mut().for_each(|(_, message)| message.is_whole = false), &["O4"]);
    }

    #[test]
    fn the_order_of_pushes_is_that_of_their_answers() {
        let late = |history: &mut History| {
            history.pushes.iter_mut().find(|push| push.id == 10).unwrap().started = 40;
        };
        check(|history, _| late(history), &["O5"]);
    }

    #[test]
    fn what_deliveries_show() {
        check(|history, _| history.claims.truncate(1), &["O6"]);
        check(|history, _| history.claims.push(claim(300, 1..2)), &["O7"]);
        check(|history, _| history.settled.clear(), &["O8"]);
        // Unanswered: it may have been settled or not.
        check(|history, _| history.settled.iter_mut().for_each(|ack| ack.ended = None), &[]);
    }

    #[test]
    fn a_held_partition_is_given_to_nobody_else() {
        let hold = |history: &mut History, until| {
            history.claims = vec![claim(100, 0..2), claim(200, 0..2)];
            history.claims[0].released = until;
            history.settled.clear();
        };
        check(|history, _| hold(history, None), &["O9"]);
        check(|history, _| hold(history, Some(150)), &[]);
    }
}
