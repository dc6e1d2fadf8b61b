//! Pushes in the cycle: each part is planned as soon as the log has answered what it must know.

use queen_model::Refusal;
use queen_planner::draft::Draft;
use queen_planner::push::{PushContext, PushFacts, PushPart, PushPlan, PushVerdict};
use queen_state::State;

use super::transactions::TransactionFacts;
use super::{Cycle, Ready, Reply};
use crate::api::CallError;
use crate::lookup::{Known, Lookup, LookupError};

/// The verdicts on one part's items, or why all of it was refused.
pub type PartAnswer = Result<Vec<PushVerdict>, Refusal>;

/// A push to be planned.
#[derive(Debug)]
pub struct PushCommand {
    /// Its parts.
    pub parts: Vec<PushPart>,
    /// Where one answer per part goes.
    pub reply: Reply<Vec<PartAnswer>>,
}

/// A push that is not answered yet.
///
/// A part that asked the log keeps what it asked at until it is decided: the overlay holds every hash that came later, so
/// each hash is asked for at most once.
pub(super) struct PendingPush {
    parts: Vec<Option<Part>>,
    answers: Vec<Option<PartAnswer>>,
    open: usize,
    failed: Option<CallError>,
    reply: Reply<Vec<PartAnswer>>,
}

struct Part {
    wanted: PushPart,
    facts: PushFacts,
    asked_at: Option<u64>,
}

impl PendingPush {
    pub(super) fn answer(self) {
        let answer = match self.failed {
            Some(error) => Err(error),
            None => Ok(self.answers.into_iter().flatten().collect()),
        };
        // A caller that is gone does not change that the messages are stored.
        drop(self.reply.send(answer));
    }
}

impl Part {
    fn new(wanted: PushPart) -> Self {
        Self { wanted, facts: PushFacts::default(), asked_at: None }
    }
}

impl Cycle {
    pub(super) fn push(&mut self, state: &State, draft: &mut Draft<'_>, command: PushCommand) {
        let open = command.parts.len();
        let ticket = self.ticket();
        let mut push = PendingPush {
            answers: vec![None; open],
            parts: command.parts.into_iter().map(|part| Some(Part::new(part))).collect(),
            open,
            failed: None,
            reply: command.reply,
        };
        for at in 0..open {
            self.plan_part(state, draft, (ticket, at), &mut push);
        }
        self.keep_or_answer(draft, ticket, push);
    }

    fn plan_part(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (ticket, at): (u64, usize),
        push: &mut PendingPush,
    ) {
        let Some(mut held) = push.parts.get_mut(at).and_then(Option::take) else { return };
        let mut context = self.push_context(state);
        let part = &held.wanted;
        let answer = match context.plan(draft, part, &held.facts) {
            PushPlan::Done(verdicts) => Ok(verdicts),
            PushPlan::Refused(refusal) => Err(refusal),
            PushPlan::NeedLog(partition, questions) => {
                let route = queen_record::hash::queue_id(part.tenant, &part.queue);
                let asked_at = held.asked_at.unwrap_or(self.applied);
                if held.asked_at.replace(asked_at).is_none() {
                    *self.asked.entry(asked_at).or_default() += 1;
                }
                let push_at = (ticket, at);
                let of = Known::of(state, partition);
                self.lookups.push(Lookup::Originals { push: push_at, of, route, questions });
                if let Some(slot) = push.parts.get_mut(at) {
                    *slot = Some(held);
                }
                return;
            }
        };
        self.decided(held.asked_at);
        if let Some(slot) = push.answers.get_mut(at) {
            *slot = Some(answer);
        }
        push.open -= 1;
    }

    pub(super) fn push_context<'a>(&'a mut self, state: &'a State) -> PushContext<'a> {
        PushContext {
            state,
            overlay: &mut self.overlay,
            filter: &self.filter,
            order: &mut self.order,
            limits: &self.limits.planning,
            plan: self.proposed + 1,
        }
    }

    pub(super) fn originals_found(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (ticket, at): (u64, usize),
        facts: Result<PushFacts, LookupError>,
    ) {
        if self.transactions.contains_key(&ticket) {
            let put = facts.map(|found| {
                move |facts: &mut TransactionFacts<'_>| {
                    if let Some(facts) = facts.of_push(at) {
                        facts.extend(found);
                    }
                }
            });
            return self.transaction_fact(state, draft, ticket, put);
        }
        let Some(mut push) = self.pushes.remove(&ticket) else { return };
        match facts {
            Ok(facts) => {
                if let Some(part) = push.parts.get_mut(at).and_then(Option::as_mut) {
                    part.facts.extend(facts);
                }
                self.plan_part(state, draft, (ticket, at), &mut push);
            }
            Err(error) => {
                push.failed = Some(self.lookup_failed(&error));
                push.open -= 1;
                let part = push.parts.get_mut(at).and_then(Option::take);
                self.decided(part.and_then(|part| part.asked_at));
            }
        }
        self.keep_or_answer(draft, ticket, push);
    }

    /// A part is decided: hashes that were kept for its question may leave the overlay.
    pub(super) fn decided(&mut self, asked_at: Option<u64>) {
        let Some(asked_at) = asked_at else { return };
        if let Some(count) = self.asked.get_mut(&asked_at) {
            *count -= 1;
            if *count == 0 {
                self.asked.remove(&asked_at);
                self.retire_hashes();
            }
        }
    }

    fn keep_or_answer(&mut self, draft: &Draft<'_>, ticket: u64, push: PendingPush) {
        if push.open == 0 {
            self.after_plan(draft, Ready::Push(push));
        } else {
            self.pushes.insert(ticket, push);
        }
    }

    /// Notes damage for the shell and turns it into the caller's error.
    pub(super) fn lookup_failed(&mut self, error: &LookupError) -> CallError {
        let text = error.to_string();
        self.damage = Some(text.clone());
        CallError::Internal(text)
    }
}
