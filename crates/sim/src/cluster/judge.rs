//! What must hold of a cluster, whatever happens to it.
//!
//! - J1 what was acknowledged is in the log of every node at the offset that was answered, with its bytes;
//! - J2 a transactionId is stored once in its partition, and a repeat is answered with the first offset;
//! - J3 nothing is in the log that nobody pushed, and offsets have no gap;
//! - J4 of two pushes to a partition the one that was answered before the other began has the lower offset;
//! - J5 what a pop delivers is what the log holds there;
//! - J6 nothing is delivered again whose acknowledgment was answered before the pop began, and no node forgets it;
//! - J7 of two claims of one partition by one leader, the later does not begin before the earlier one ended;
//! - J8 an output of the pipeline is stored once for each input, and no input is acknowledged without it;
//! - J9 nodes that applied the same entries have the same rows; the applied entry never goes back;
//! - J10 no node stops, refuses to start or panics but for a fault that it met;
//! - J11 once everything is healed the cluster serves, and every group gets everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use queen_record::ids::{EntryIndex, PartitionId};
use xxhash_rust::xxh3::xxh3_64;

use super::trace::Trace;
use crate::history::Digest;

/// Violations of one run after which no more are noted.
const VIOLATIONS_MAX: usize = 20;
/// Entries between two that are compared.
const COMPARE_EVERY: u64 = 8;

/// A partition by the names that clients use.
pub(crate) type Lane = (String, String);

/// The judge of a run. Clones are handles of one.
#[derive(Clone)]
pub(crate) struct Judge {
    trace: Trace,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    violations: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    digests: BTreeMap<EntryIndex, (u64, Digest)>,
    lanes: BTreeMap<Lane, BTreeMap<String, Pushed>>,
    names: BTreeMap<PartitionId, Lane>,
    /// What pops delivered at an offset.
    delivered: BTreeMap<(PartitionId, u64), (String, u64)>,
    /// Offsets up to which a group's acknowledgments were answered, and when.
    acknowledged: BTreeMap<(String, PartitionId), Vec<(u64, u64)>>,
    claims: BTreeMap<(String, PartitionId), Claim>,
}

/// A message that a client has pushed.
#[derive(Clone, Debug)]
struct Pushed {
    payload: u64,
    began_us: u64,
    /// Where it is, and since when the client knows.
    answered: Option<(u64, u64)>,
}

/// The last claim of a partition.
#[derive(Clone, Debug)]
struct Claim {
    /// Which leader granted it.
    by: (u64, u64),
    /// Until when nobody else has one, µs of simulated time.
    until_us: u64,
}

/// A message that a pop delivered.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// Whose.
    pub group: String,
    /// Where.
    pub partition: PartitionId,
    /// Its place.
    pub offset: u64,
    /// Its transactionId.
    pub transaction_id: String,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// When the pop began.
    pub began_us: u64,
}

/// The messages of a partition: offset, transactionId and bytes.
pub(crate) type Messages = Vec<(u64, String, Vec<u8>)>;

/// What a node holds at the end.
pub(crate) struct Content {
    /// Its number.
    pub node: u64,
    /// The messages of each partition, by offset.
    pub lanes: BTreeMap<(PartitionId, Lane), Messages>,
    /// How many messages of a partition each group is done with.
    pub done: BTreeMap<(String, PartitionId), u64>,
}

impl Judge {
    /// A judge who has seen nothing.
    pub(crate) fn new(trace: Trace) -> Self {
        Self { trace, inner: Arc::default() }
    }

    /// Counts something that happened.
    pub(crate) fn count(&self, what: &'static str) {
        *self.inner.lock().counts.entry(what).or_default() += 1;
    }

    /// How often what happened.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.lock().counts.clone()
    }

    /// Notes a violation.
    pub(crate) fn violated(&self, mut what: String) {
        self.trace.note(format_args!("VIOLATION {what}"));
        let mut inner = self.inner.lock();
        if inner.violations.len() < VIOLATIONS_MAX {
            let at_ms = self.trace.now_us() / 1000;
            what.insert_str(0, &format!("at {at_ms} ms: "));
            inner.violations.push(what);
        }
    }

    /// What was violated.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.inner.lock().violations.clone()
    }

    /// A node has applied entries.
    pub(crate) fn applied(
        &self,
        node: u64,
        before: EntryIndex,
        now: EntryIndex,
        digest: impl FnOnce() -> Digest,
    ) {
        if now < before {
            self.violated(format!("J9 node {node} went back from entry {before} to {now}"));
        }
        self.trace.note(format_args!("node {node} applied {now}"));
        if now.0.is_multiple_of(COMPARE_EVERY) {
            self.compare(node, now, digest());
        }
    }

    /// A node has these rows as of an entry.
    pub(crate) fn compare(&self, node: u64, at: EntryIndex, digest: Digest) {
        let known = *self.inner.lock().digests.entry(at).or_insert((node, digest));
        self.count("digests compared");
        if known.1 != digest {
            self.violated(format!("J9 nodes {} and {node} differ at entry {at}", known.0));
        }
    }

    /// A client begins to push a message; the time it began first counts.
    pub(crate) fn push_begins(&self, lane: &Lane, transaction_id: &str, payload: &[u8]) {
        let began_us = self.trace.now_us();
        let mut inner = self.inner.lock();
        let lane = inner.lanes.entry(lane.clone()).or_default();
        lane.entry(transaction_id.to_owned()).or_insert(Pushed {
            payload: xxh3_64(payload),
            began_us,
            answered: None,
        });
    }

    /// A push was answered with this offset.
    pub(crate) fn pushed(&self, lane: &Lane, transaction_id: &str, offset: u64, is_repeat: bool) {
        let now_us = self.trace.now_us();
        let mut inner = self.inner.lock();
        let pushed = inner.lanes.get_mut(lane).and_then(|lane| lane.get_mut(transaction_id));
        let wrong = match pushed {
            None => Some("nobody pushed it".to_owned()),
            Some(Pushed { answered: Some((at, _)), .. }) if *at != offset => {
                Some(format!("J2 it was at {at} before"))
            }
            Some(Pushed { answered: Some(_), .. }) if !is_repeat => {
                Some("J2 it was stored before".to_owned())
            }
            Some(pushed) => {
                pushed.answered.get_or_insert((offset, now_us));
                None
            }
        };
        drop(inner);
        if let Some(wrong) = wrong {
            self.violated(format!("{transaction_id} in {lane:?} answered at {offset}: {wrong}"));
        }
    }

    /// A pop delivered this.
    pub(crate) fn delivered(&self, delivery: &Delivery) {
        let Delivery { group, partition, offset, transaction_id, payload, began_us } = delivery;
        let hash = xxh3_64(payload);
        let mut inner = self.inner.lock();
        let mut wrong = Vec::new();
        let known = inner
            .delivered
            .entry((*partition, *offset))
            .or_insert_with(|| (transaction_id.clone(), hash));
        if *known != (transaction_id.clone(), hash) {
            wrong.push(format!("J5 {} was delivered there before", known.0));
        }
        let acknowledged = inner.acknowledged.get(&(group.clone(), *partition));
        let again = acknowledged
            .and_then(|acks| acks.iter().find(|(upto, at)| upto >= offset && at < began_us));
        if let Some((upto, at)) = again {
            wrong.push(format!(
                "J6 acknowledged up to {upto} at {at} us, the pop began at {began_us}"
            ));
        }
        drop(inner);
        for wrong in wrong {
            self.violated(format!("{group} got {transaction_id} at {partition}/{offset}: {wrong}"));
        }
    }

    /// A leader granted a claim that ends when it is acknowledged, or then.
    pub(crate) fn claimed(
        &self,
        group: &str,
        partition: PartitionId,
        by: (u64, u64),
        until_us: u64,
    ) {
        let now_us = self.trace.now_us();
        let mut inner = self.inner.lock();
        let before = inner.claims.insert((group.to_owned(), partition), Claim { by, until_us });
        drop(inner);
        if let Some(before) = before.filter(|claim| claim.by == by && claim.until_us > now_us) {
            self.violated(format!(
                "J7 {group} was granted {partition} while another has it until {} us",
                before.until_us
            ));
        }
    }

    /// Whoever has a claim settles it, or gives it back: the next may come.
    pub(crate) fn settles(&self, group: &str, partition: PartitionId) {
        self.inner.lock().claims.remove(&(group.to_owned(), partition));
    }

    /// All up to this offset was acknowledged, and that was answered.
    pub(crate) fn acknowledged(&self, group: &str, partition: PartitionId, upto: u64) {
        let now_us = self.trace.now_us();
        let mut inner = self.inner.lock();
        let acks = inner.acknowledged.entry((group.to_owned(), partition)).or_default();
        if acks.last().is_none_or(|(last, _)| *last < upto) {
            acks.push((upto, now_us));
        }
    }

    /// Messages that were pushed, and those that were answered.
    pub(crate) fn pushes(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        let all = || inner.lanes.values().flat_map(BTreeMap::values);
        (all().count(), all().filter(|pushed| pushed.answered.is_some()).count())
    }

    /// Holds what a node has at the end against what clients know.
    pub(crate) fn judge(&self, content: &Content) {
        let mut wrong = Vec::new();
        {
            let inner = &mut *self.inner.lock();
            for ((partition, lane), messages) in &content.lanes {
                let pushed = inner.lanes.get(lane);
                inner.names.insert(*partition, lane.clone());
                check_lane(lane, messages, pushed, &mut wrong);
                for (offset, transaction_id, payload) in messages {
                    let delivered = inner.delivered.get(&(*partition, *offset));
                    let is_same = |(id, hash): &(String, u64)| {
                        id == transaction_id && *hash == xxh3_64(payload)
                    };
                    if !delivered.is_none_or(is_same) {
                        wrong.push(format!(
                            "J5 another message was delivered at {partition}/{offset}"
                        ));
                    }
                }
            }
            for (place @ (group, partition), acks) in &inner.acknowledged {
                let done = content.done.get(place).copied().unwrap_or_default();
                if let Some((upto, _)) = acks.last().filter(|(upto, _)| *upto >= done) {
                    wrong.push(format!(
                        "J6 {group} is done with {done} of {partition}, {upto} was acknowledged"
                    ));
                }
            }
            for (lane, pushed) in &inner.lanes {
                let is_there = content.lanes.keys().any(|(_, name)| name == lane);
                if !is_there && pushed.values().any(|pushed| pushed.answered.is_some()) {
                    wrong.push(format!("J1 partition {lane:?} is gone"));
                }
            }
        }
        for wrong in wrong {
            self.violated(format!("node {}: {wrong}", content.node));
        }
    }

    /// Checks that a group got everything that a node holds of a queue.
    pub(crate) fn judge_group(&self, content: &Content, group: &str, queue: &str) {
        for ((partition, (of, name)), messages) in &content.lanes {
            let done = content.done.get(&(group.to_owned(), *partition)).copied().unwrap_or(0);
            let count = messages.len();
            if of == queue && done != count as u64 {
                self.violated(format!("J11 {group} is done with {done} of {count} of {of}/{name}"));
            }
        }
    }

    /// Checks that each input of the pipeline has its output, once, and no other.
    pub(crate) fn judge_pipeline(&self, content: &Content, from: &str, to: &str) {
        let ids = |queue: &str| {
            let lanes = content.lanes.iter().filter(|((_, lane), _)| lane.0 == queue);
            lanes
                .flat_map(|(_, messages)| messages.iter().map(|(_, id, _)| id.clone()))
                .collect::<Vec<String>>()
        };
        let inputs: BTreeSet<String> = ids(from).iter().map(|id| output_of(id)).collect();
        let all = ids(to);
        let outputs: BTreeSet<String> = all.iter().cloned().collect();
        if outputs.len() != all.len() {
            self.violated(format!("J8 {} outputs are stored twice", all.len() - outputs.len()));
        }
        if inputs != outputs {
            let (missing, foreign) =
                (inputs.difference(&outputs).count(), outputs.difference(&inputs).count());
            self.violated(format!(
                "J8 {missing} inputs have no output, {foreign} outputs no input"
            ));
        }
    }
}

/// The transactionId of what the pipeline makes of a message.
pub(crate) fn output_of(input: &str) -> String {
    format!("made of {input}")
}

fn check_lane(
    lane: &Lane,
    messages: &[(u64, String, Vec<u8>)],
    pushed: Option<&BTreeMap<String, Pushed>>,
    wrong: &mut Vec<String>,
) {
    let none = BTreeMap::new();
    let pushed = pushed.unwrap_or(&none);
    let mut places: BTreeMap<&str, u64> = BTreeMap::new();
    // The earliest answer to anything above, from the end on.
    let mut answered_above: Option<(u64, u64)> = None;
    for (due, (offset, id, payload)) in (0..).zip(messages) {
        if *offset != due {
            wrong.push(format!("J3 {lane:?} has offset {offset} where {due} is due"));
        }
        if places.insert(id, *offset).is_some() {
            wrong.push(format!("J2 {id} is stored twice in {lane:?}"));
        }
        match pushed.get(id) {
            None => wrong.push(format!("J3 {lane:?} holds {id}, which nobody pushed")),
            Some(pushed) if pushed.payload != xxh3_64(payload) => {
                wrong.push(format!("J1 {id} of {lane:?} has other bytes"));
            }
            Some(_) => {}
        }
    }
    for (offset, id, _) in messages.iter().rev() {
        let Some(pushed) = pushed.get(id) else { continue };
        if let Some((above, at)) = answered_above.filter(|(_, at)| *at < pushed.began_us) {
            let mut text = String::new();
            write!(text, "J4 {id} at {offset} of {lane:?} began at {} us,", pushed.began_us)
                .and_then(|()| write!(text, " {above} was answered at {at} us"))
                .unwrap_or_default();
            wrong.push(text);
        }
        if let Some((_, at)) = pushed.answered {
            answered_above = match answered_above {
                Some((above, least)) if least <= at => Some((above, least)),
                _ => Some((*offset, at)),
            };
        }
    }
    for (id, pushed) in pushed {
        let Some((offset, _)) = pushed.answered else { continue };
        match places.get(id.as_str()) {
            None => {
                wrong.push(format!("J1 {id} of {lane:?} was acknowledged at {offset} and is lost"));
            }
            Some(at) if *at != offset => {
                wrong.push(format!(
                    "J1 {id} of {lane:?} was acknowledged at {offset} and is at {at}"
                ));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str = "g";
    const AT: PartitionId = PartitionId(1);

    fn lane() -> Lane {
        ("q".to_owned(), "p".to_owned())
    }

    /// What a judge says who saw `done`, and then this content of a node.
    async fn said(
        done: impl AsyncFnOnce(&Judge),
        messages: &[(u64, &str)],
        group_done: u64,
    ) -> String {
        let judge = Judge::new(Trace::new(false));
        done(&judge).await;
        let messages = messages
            .iter()
            .map(|(offset, id)| (*offset, (*id).to_owned(), id.as_bytes().to_vec()))
            .collect();
        let lanes = BTreeMap::from([((AT, lane()), messages)]);
        let done = BTreeMap::from([((GROUP.to_owned(), AT), group_done)]);
        let content = Content { node: 1, lanes, done };
        judge.judge(&content);
        judge.judge_group(&content, GROUP, "q");
        judge.violations().join("; ")
    }

    async fn push(judge: &Judge, id: &str, offset: u64, is_repeat: bool) {
        judge.push_begins(&lane(), id, id.as_bytes());
        pass().await;
        judge.pushed(&lane(), id, offset, is_repeat);
        pass().await;
    }

    async fn pass() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }

    fn delivery(offset: u64, id: &str, began_us: u64) -> Delivery {
        let (group, transaction_id) = (GROUP.to_owned(), id.to_owned());
        let payload = id.as_bytes().to_vec();
        Delivery { group, partition: AT, offset, transaction_id, payload, began_us }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_as_it_should_be_is_no_violation() {
        let done = async |judge: &Judge| {
            push(judge, "a", 0, false).await;
            judge.push_begins(&lane(), "unknown", b"unknown");
            push(judge, "b", 1, false).await;
            push(judge, "a", 0, true).await;
            judge.delivered(&delivery(0, "a", 0));
            judge.claimed(GROUP, AT, (1, 1), 1_000_000);
            judge.settles(GROUP, AT);
            judge.acknowledged(GROUP, AT, 1);
            judge.claimed(GROUP, AT, (1, 1), 2_000_000);
            judge.compare(1, EntryIndex(8), Digest::default());
            judge.compare(2, EntryIndex(8), Digest::default());
        };
        assert_eq!(said(done, &[(0, "a"), (1, "b"), (2, "unknown")], 3).await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn every_rule_is_kept_watch_over() {
        let two = async |judge: &Judge| {
            push(judge, "a", 0, false).await;
            push(judge, "b", 1, false).await;
        };
        let check = |said: String, rule: &str| assert!(said.contains(rule), "{rule}: {said}");
        check(said(two, &[(0, "a")], 1).await, "J1 b");
        check(said(two, &[(0, "a"), (1, "c")], 2).await, "J3");
        check(said(two, &[(0, "a"), (1, "a"), (2, "b")], 3).await, "J2 a");
        check(said(two, &[(0, "a"), (2, "b")], 2).await, "J3");
        check(said(two, &[(0, "b"), (1, "a")], 2).await, "J4 b");
        check(said(two, &[(0, "a"), (1, "b")], 1).await, "J11");
        let again = async |judge: &Judge| {
            push(judge, "a", 0, false).await;
            push(judge, "a", 1, true).await;
        };
        check(said(again, &[(0, "a")], 1).await, "J2");
        let other = async |judge: &Judge| {
            push(judge, "a", 0, false).await;
            judge.delivered(&delivery(0, "z", 0));
        };
        check(said(other, &[(0, "a")], 1).await, "J5");
        let redelivered = async |judge: &Judge| {
            push(judge, "a", 0, false).await;
            judge.acknowledged(GROUP, AT, 0);
            pass().await;
            judge.delivered(&delivery(0, "a", judge.trace.now_us()));
        };
        check(said(redelivered, &[(0, "a")], 1).await, "J6");
        let forgotten = async |judge: &Judge| {
            push(judge, "a", 0, false).await;
            judge.acknowledged(GROUP, AT, 0);
        };
        check(said(forgotten, &[(0, "a")], 0).await, "J6");
        let twice = async |judge: &Judge| {
            judge.claimed(GROUP, AT, (1, 1), 1_000_000);
            judge.claimed(GROUP, AT, (1, 1), 1_000_000);
        };
        check(said(twice, &[], 0).await, "J7");
        let apart = async |judge: &Judge| {
            judge.compare(1, EntryIndex(8), Digest::default());
            judge.compare(2, EntryIndex(8), [1; size_of::<Digest>() / 8]);
        };
        check(said(apart, &[], 0).await, "J9");
        let back =
            async |judge: &Judge| judge.applied(1, EntryIndex(5), EntryIndex(4), Digest::default);
        check(said(back, &[], 0).await, "J9");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pipeline_makes_one_of_each() {
        let lane_of = |queue: &str, id: u64| (PartitionId(id), (queue.to_owned(), "p".to_owned()));
        let held = |ids: &[&str]| {
            (0..).zip(ids).map(|(at, id)| (at, (*id).to_owned(), Vec::new())).collect::<Vec<_>>()
        };
        let check = |outputs: &[&str], is_right: bool| {
            let judge = Judge::new(Trace::new(false));
            let lanes = BTreeMap::from([
                (lane_of("in", 1), held(&["a", "b"])),
                (lane_of("out", 2), held(outputs)),
            ]);
            judge.judge_pipeline(&Content { node: 1, lanes, done: BTreeMap::new() }, "in", "out");
            assert_eq!(judge.violations().is_empty(), is_right, "{outputs:?}");
        };
        check(&["made of b", "made of a"], true);
        check(&["made of a"], false);
        check(&["made of a", "made of b", "made of b"], false);
        check(&["made of a", "made of b", "made of c"], false);
    }
}
