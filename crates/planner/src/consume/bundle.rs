//! Settling several calls together or not at all: the acknowledgments of a transaction.
//!
//! The calls are judged on shadows of their parts, so that nothing has to be undone when one of them is refused, or when
//! something else in the transaction is.

use queen_record::ids::Micros;
use queen_state::State;

use super::ack::{Judged, Moved, advance, judge, results};
use super::part::Part;
use super::{
    AckCall, AckFacts, AckQuestion, AckResult, Engine, EngineGroup, ItemResult, PartKey, Start,
    Table,
};
use crate::ack::{AckDecision, ItemVerdict};
use crate::draft::Draft;
use crate::overlay::QueueView;

/// One call of a transaction.
#[derive(Clone, Debug)]
pub struct BundleAck {
    /// The group that settles.
    pub group: EngineGroup,
    /// The partition's queue.
    pub queue: QueueView,
    /// What is settled.
    pub call: AckCall,
}

/// What a transaction's calls come to.
#[derive(Debug)]
pub enum BundleVerdict {
    /// All hold: carried out with [`Engine::settle_bundle`] in this same plan.
    Holds(Vec<BundleStep>),
    /// The log must be asked first: the question of each call that needs one.
    NeedLog(Vec<(usize, AckQuestion)>),
    /// One does not hold.
    Refused {
        /// Which call.
        at: usize,
        /// The results of its items.
        result: AckResult,
    },
}

/// One decision of a bundle.
#[derive(Debug)]
pub struct BundleStep {
    key: PartKey,
    decision: AckDecision,
}

/// Whether every message of the call was done before it. Such a call in a transaction is the sign of one that committed
/// and is sent again while the lease still lives: what it pushes would be stored twice.
fn settles_nothing(decision: &AckDecision) -> bool {
    !decision.items.is_empty() && decision.items.iter().all(|item| *item == ItemVerdict::Noop)
}

impl Engine {
    /// Judges all calls in order, each on what those before it left; changes nothing.
    pub fn judge_bundle(
        &mut self,
        state: &State,
        now: Micros,
        acks: &[(BundleAck, AckFacts)],
    ) -> BundleVerdict {
        let key_of = |ack: &BundleAck| (ack.call.partition, ack.group);
        // The last call on each part.
        let last: Table<PartKey, usize> =
            acks.iter().enumerate().map(|(at, (ack, _))| (key_of(ack), at)).collect();
        let mut shadows: Table<PartKey, Part> = Table::default();
        let mut steps = Vec::with_capacity(acks.len());
        let mut questions = Vec::new();
        // Parts with a question open.
        let mut open: Table<PartKey, ()> = Table::default();
        let mut refused = None;
        for (at, (ack, facts)) in acks.iter().enumerate() {
            let key = key_of(ack);
            if open.contains_key(&key) {
                // What it stands on is not known yet.
                continue;
            }
            match self.judge_one(state, now, (ack, facts), &shadows) {
                Judged::NeedLog(question) => {
                    open.insert(key, ());
                    questions.push((at, question));
                }
                Judged::Unchanged(result) => {
                    refused = Some((at, result));
                    break;
                }
                Judged::Decided(decision) => {
                    let mut result = results(&decision, false);
                    if settles_nothing(&decision) && !shadows.contains_key(&key) {
                        result.fill(ItemResult::Unresolved);
                    }
                    if result.contains(&ItemResult::Unresolved) {
                        refused = Some((at, result));
                        break;
                    }
                    // A later call on the same part must see what this one does.
                    if last.get(&key).is_some_and(|last| *last > at) {
                        self.shadow(key, &decision, now, &mut shadows);
                    }
                    steps.push(BundleStep { key, decision });
                }
            }
        }
        for (ack, _) in acks {
            self.unload_if_idle(key_of(ack));
        }
        match refused {
            Some((at, result)) => BundleVerdict::Refused { at, result },
            None if questions.is_empty() => BundleVerdict::Holds(steps),
            None => BundleVerdict::NeedLog(questions),
        }
    }

    fn judge_one(
        &mut self,
        state: &State,
        now: Micros,
        (ack, facts): (&BundleAck, &AckFacts),
        shadows: &Table<PartKey, Part>,
    ) -> Judged {
        let call = &ack.call;
        let key = (call.partition, ack.group);
        let unresolved = || Judged::Unchanged(vec![ItemResult::Unresolved; call.items.len()]);
        let Some(row) = state.partition(key.0) else { return unresolved() };
        let part = match shadows.get(&key) {
            Some(part) => part,
            None => match self.load_part(state, key.0, key.1, Start::All) {
                Some(part) => part,
                None => return unresolved(),
            },
        };
        if let Some(presented) = call.lease
            && part.live_lease(now).is_none_or(|lease| Some(lease.worker) != presented)
        {
            // A settled lease is not answered again here: a transaction that repeats is a new one.
            return Judged::Unchanged(vec![ItemResult::LeaseLost; call.items.len()]);
        }
        judge(part, (call, facts), &ack.queue, (now, row))
    }

    fn shadow(
        &self,
        key: PartKey,
        decision: &AckDecision,
        now: Micros,
        shadows: &mut Table<PartKey, Part>,
    ) {
        let before = shadows.get(&key).or_else(|| self.parts.get(&key));
        let Some(mut part) = before.cloned() else { return };
        if advance(&mut part, decision, now) == Moved::LeaseEnds {
            (part.lease, part.keys) = (None, None);
        }
        shadows.insert(key, part);
    }

    /// Carries out what was judged to hold; returns the results of each call.
    pub fn settle_bundle(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        acks: &[(BundleAck, AckFacts)],
        steps: Vec<BundleStep>,
    ) -> Vec<AckResult> {
        let now = draft.now();
        let mut answers = Vec::with_capacity(steps.len());
        for ((ack, facts), BundleStep { key, decision }) in acks.iter().zip(steps) {
            let part = self.load_part(state, key.0, key.1, Start::All);
            let leased = part.is_some_and(|part| part.live_lease(now).is_some());
            self.file(state, draft, key, (&ack.call, facts, &decision));
            self.settle(state, key, &decision, now);
            answers.push(results(&decision, leased));
        }
        answers
    }
}
