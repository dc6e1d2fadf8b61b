//! Transactions in the cycle: everything is judged first, and carried out only when all of it holds.
//!
//! What the log must be asked for is collected over the whole transaction; with the facts it is judged anew from the
//! start, since other commands were planned in between.

use queen_model::{Effect, Refusal};
use queen_planner::catalog::{Catalog, GroupTerms};
use queen_planner::consume::{
    AckFacts, BundleAck, BundleStep, BundleVerdict, ItemResult, Place, QUEUE_MODE,
};
use queen_planner::draft::{Draft, Route};
use queen_planner::limits::{check_names, check_note};
use queen_planner::overlay::Original;
use queen_planner::push::{PushFacts, PushJudged, PushPart, PushVerdict};
use queen_record::hash::queue_id;
use queen_record::ids::{PartitionId, Tenant, Uuid};
use queen_state::State;

use super::acks::{self, AckGroup};
use super::pops::start_of;
use super::{Cycle, Ready, Reply, Table};
use crate::api::{AckDone, CallError, PositionSet, Rollback, RollbackReason, TransactionAck};
use crate::lookup::{Known, Lookup, LookupError};

/// A transaction to be planned.
#[derive(Debug)]
pub struct TransactionCommand {
    /// Whose.
    pub tenant: Tenant,
    /// In order.
    pub acks: Vec<TransactionAck>,
    /// One per (queue, partition).
    pub parts: Vec<PushPart>,
    /// In order.
    pub positions: Vec<PositionSet>,
    /// A dead letter that goes with it: its queue and id.
    pub letter: Option<(String, Uuid)>,
    /// Where the outcome goes.
    pub reply: Reply<TransactionOutcome>,
}

/// The end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// All of it is in one entry.
    Committed {
        /// One per acknowledgment.
        acks: Vec<AckDone>,
        /// One per part.
        parts: Vec<Vec<PushVerdict>>,
    },
    /// Nothing changed.
    RolledBack(Rollback),
    /// A pushed transactionId is stored already: the same as a rollback, with the original.
    Duplicate(Rollback, Original),
    /// The dead letter is not there.
    LetterGone,
}

/// A transaction that is not answered yet.
pub(super) struct PendingTransaction {
    tenant: Tenant,
    ack_count: usize,
    groups: Vec<(AckGroup, AckFacts)>,
    parts: Vec<(PushPart, PushFacts)>,
    positions: Vec<PositionSet>,
    letter: Option<(String, Uuid)>,
    /// Answers of the log that are still to come.
    open: usize,
    asked_at: Option<u64>,
    failed: Option<CallError>,
    reply: Reply<TransactionOutcome>,
}

/// What judging came to.
enum Judged {
    /// Carried out as given here.
    Holds(Vec<(BundleAck, AckFacts)>, Vec<BundleStep>),
    Ends(TransactionOutcome),
    NeedLog(Vec<Lookup>),
}

impl Cycle {
    pub(super) fn transaction(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        command: TransactionCommand,
    ) {
        let TransactionCommand { tenant, acks, parts, positions, letter, reply } = command;
        let ack_count = acks.len();
        let acks = acks.into_iter().map(|ack| (Some(ack.group), ack.item));
        let (groups, strays) = acks::group_items(tenant, acks);
        if !strays.is_empty() {
            let outcome = rolled_back(RollbackReason::BadRequest, acks::NO_PARTITION_ID);
            return self.answer_transaction(draft, reply, Ok(outcome));
        }
        let pending = PendingTransaction {
            tenant,
            ack_count,
            groups: groups.into_iter().map(|group| (group, AckFacts::default())).collect(),
            parts: parts.into_iter().map(|part| (part, PushFacts::default())).collect(),
            positions,
            letter,
            open: 0,
            asked_at: None,
            failed: None,
            reply,
        };
        let ticket = self.ticket();
        self.decide_transaction(state, draft, ticket, pending);
    }

    fn decide_transaction(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        ticket: u64,
        mut pending: PendingTransaction,
    ) {
        let judged = self.judge_transaction(state, draft, ticket, &pending);
        let outcome = match judged {
            Judged::NeedLog(lookups) => {
                pending.open = lookups.len();
                if pending.asked_at.is_none() {
                    // The overlay holds every hash that comes later, so each is asked for at most once.
                    pending.asked_at = Some(self.applied);
                    *self.asked.entry(self.applied).or_default() += 1;
                }
                self.lookups.extend(lookups);
                self.transactions.insert(ticket, pending);
                return;
            }
            Judged::Ends(outcome) => outcome,
            Judged::Holds(acks, steps) => {
                self.carry_out_transaction(state, draft, &mut pending, &acks, steps)
            }
        };
        self.decided(pending.asked_at);
        self.answer_transaction(draft, pending.reply, Ok(outcome));
    }

    fn answer_transaction(
        &mut self,
        draft: &Draft<'_>,
        reply: Reply<TransactionOutcome>,
        outcome: Result<TransactionOutcome, CallError>,
    ) {
        let changes = matches!(outcome, Ok(TransactionOutcome::Committed { .. }));
        let answer = Ready::Done(Box::new(move || drop(reply.send(outcome))));
        if changes {
            // Cursor rows join this plan when it is finished.
            self.after_this(answer);
        } else {
            self.after_plan(draft, answer);
        }
    }

    /// Judges everything in the order acks, pushes, positions; changes nothing.
    fn judge_transaction(
        &mut self,
        state: &State,
        draft: &Draft<'_>,
        ticket: u64,
        pending: &PendingTransaction,
    ) -> Judged {
        if let Some((queue, id)) = &pending.letter {
            let live = self.overlay.queue(state, pending.tenant, queue);
            let applied = live.filter(|view| !view.in_flight);
            let applied = applied.and_then(|_| state.queue(pending.tenant, queue));
            let there = applied.and_then(|queue| queue.dead_letter(*id));
            if there.is_none() || self.overlay.is_letter_gone(*id) {
                return Judged::Ends(TransactionOutcome::LetterGone);
            }
        }
        let acks = match self.bundle_acks(state, pending) {
            Ok(acks) => acks,
            Err(rollback) => return Judged::Ends(TransactionOutcome::RolledBack(rollback)),
        };
        let mut lookups = Vec::new();
        let mut steps = Vec::new();
        match self.engine.judge_bundle(state, draft.now(), &acks) {
            BundleVerdict::Holds(found) => steps = found,
            BundleVerdict::Refused { at, result } => {
                let partition = acks.get(at).map_or(PartitionId(0), |(ack, _)| ack.call.partition);
                let rollback = rejected_ack(partition, &result);
                return Judged::Ends(TransactionOutcome::RolledBack(rollback));
            }
            BundleVerdict::NeedLog(questions) => {
                for (at, question) in questions {
                    let Some((ack, _)) = acks.get(at) else { continue };
                    let partition = ack.call.partition;
                    let of = Known::of(state, partition);
                    lookups.push(Lookup::Ack { ack: (ticket, at), of, question });
                }
            }
        }
        if let Err(outcome) = self.judge_pushes(state, draft, ticket, pending, &mut lookups) {
            return Judged::Ends(outcome);
        }
        if let Err(rollback) = self.judge_positions(state, pending) {
            return Judged::Ends(TransactionOutcome::RolledBack(rollback));
        }
        if lookups.is_empty() { Judged::Holds(acks, steps) } else { Judged::NeedLog(lookups) }
    }

    /// The acknowledgments with their groups and queues as they are now.
    fn bundle_acks(
        &mut self,
        state: &State,
        pending: &PendingTransaction,
    ) -> Result<Vec<(BundleAck, AckFacts)>, Rollback> {
        let mut acks = Vec::with_capacity(pending.groups.len());
        for (group, facts) in &pending.groups {
            let partition = group.call.partition;
            let found = self.queue_of_partition(state, pending.tenant, partition);
            let Some((queue, view)) = found else {
                let error =
                    format!("transaction rolled back: no partition {partition}, so no lease on it");
                return Err(Rollback { reason: RollbackReason::RejectedAck, error });
            };
            let name = group.name.as_deref().unwrap_or(QUEUE_MODE);
            check_names(queue, name).map_err(|refusal| of_refusal(&refusal))?;
            let id = self.engine.group(pending.tenant, queue, name);
            let ack = BundleAck { group: id, queue: view, call: group.call.clone() };
            acks.push((ack, facts.clone()));
        }
        Ok(acks)
    }

    fn judge_pushes(
        &mut self,
        state: &State,
        draft: &Draft<'_>,
        ticket: u64,
        pending: &PendingTransaction,
        lookups: &mut Vec<Lookup>,
    ) -> Result<(), TransactionOutcome> {
        let bytes: usize = pending.parts.iter().map(|(part, _)| part.bytes()).sum();
        let max = self.limits.planning.command_bytes_max;
        if bytes > max {
            let rollback = of_refusal(&Refusal::TooLarge { bytes, max });
            return Err(TransactionOutcome::RolledBack(rollback));
        }
        let context = self.push_context(state);
        for (at, (part, facts)) in pending.parts.iter().enumerate() {
            match context.judge(draft.now(), part, facts) {
                PushJudged::Decided(stored) => {
                    if let Some(original) = stored.into_iter().flatten().next() {
                        return Err(duplicate(part, original));
                    }
                }
                PushJudged::Refused(refusal) => {
                    return Err(TransactionOutcome::RolledBack(of_refusal(&refusal)));
                }
                PushJudged::NeedLog(partition, questions) => {
                    let route = queue_id(part.tenant, &part.queue);
                    let (push, of) = ((ticket, at), Known::of(state, partition));
                    lookups.push(Lookup::Originals { push, of, route, questions });
                }
            }
        }
        Ok(())
    }

    fn judge_positions(&self, state: &State, pending: &PendingTransaction) -> Result<(), Rollback> {
        if pending.positions.is_empty() {
            return Ok(());
        }
        let tenant = pending.tenant;
        // What the transaction adds: messages per partition, and queues that may come to be with it.
        let mut more: Table<(&str, &str), usize> = Table::default();
        let mut pushed: Table<&str, ()> = Table::default();
        for (part, _) in &pending.parts {
            *more.entry((&*part.queue, &*part.partition)).or_default() += part.items.len();
            pushed.insert(&*part.queue, ());
        }
        for position in &pending.positions {
            check_names(&position.queue, &position.group)
                .map_err(|refusal| of_refusal(&refusal))?;
            check_names(&position.queue, &position.partition)
                .map_err(|refusal| of_refusal(&refusal))?;
            check_note(position.note.as_deref()).map_err(|refusal| of_refusal(&refusal))?;
            let view = self.overlay.queue(state, tenant, &position.queue);
            if view.is_none() && !pushed.contains_key(&*position.queue) {
                let error = format!("transaction rolled back: no queue {:?}", position.queue);
                return Err(Rollback { reason: RollbackReason::QueueNotFound, error });
            }
            let id = view.and_then(|view| {
                let (queue, partition) = (&position.queue, &position.partition);
                self.overlay.partition(state, tenant, queue, &view, partition)
            });
            let tip =
                id.and_then(|id| self.overlay.tip(state, id)).map_or(-1, |tip| tip.last_offset);
            let more = more.get(&(&*position.queue, &*position.partition)).copied().unwrap_or(0);
            let end = u64::try_from(tip + 1).unwrap_or(0) + more as u64;
            if let Some(offset) = position.offset.filter(|offset| offset.0 > end) {
                let error = format!(
                    "transaction rolled back: position {offset} is beyond the end of partition {:?}, {end}",
                    position.partition
                );
                return Err(Rollback { reason: RollbackReason::BadRequest, error });
            }
        }
        Ok(())
    }

    fn carry_out_transaction(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        pending: &mut PendingTransaction,
        acks: &[(BundleAck, AckFacts)],
        steps: Vec<BundleStep>,
    ) -> TransactionOutcome {
        let settled = self.engine.settle_bundle(state, draft, acks, steps);
        let mut done = vec![AckDone::default(); pending.ack_count];
        for ((group, _), results) in pending.groups.iter().zip(&settled) {
            acks::put_done(&mut done, &group.items, results);
        }
        let mut parts = Vec::with_capacity(pending.parts.len());
        for (part, _) in &pending.parts {
            parts.push(self.push_context(state).carry_out(draft, part, &[]));
        }
        for position in std::mem::take(&mut pending.positions) {
            self.set_position(state, draft, pending.tenant, position);
        }
        if let Some((queue, id)) = pending.letter.take() {
            self.remove_letter(draft, pending.tenant, queue, id);
        }
        TransactionOutcome::Committed { acks: done, parts }
    }

    fn set_position(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        tenant: Tenant,
        position: PositionSet,
    ) {
        let plan = self.proposed + 1;
        let PositionSet { queue, partition, group, offset, note, subscribe } = position;
        if let Some(subscribe) = subscribe {
            let since = draft.now();
            let terms = GroupTerms { start: start_of(&subscribe), since, conflation: false };
            let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
            let entered = catalog.register(draft, (tenant, &queue), &group, terms);
            debug_assert!(entered.is_ok(), "its names were judged");
        }
        let Some(view) = self.overlay.queue(state, tenant, &queue) else { return };
        let known = self.overlay.partition(state, tenant, &queue, &view, &partition);
        let engine_group = self.engine.group(tenant, &queue, &group);
        let now = draft.now();
        match (offset, known) {
            (Some(offset), known) => {
                let id = known.unwrap_or_else(|| {
                    self.push_context(state).make_partition(
                        draft,
                        tenant,
                        (&queue, &view),
                        &partition,
                    )
                });
                let place = (Place::Next(offset), note);
                self.engine.move_cursor(state, (id, engine_group), view.route, place, now);
            }
            (None, Some(id)) => {
                self.engine.forget_cursor(state, draft, (id, engine_group), plan);
            }
            (None, None) => {}
        }
    }

    /// Removes a dead letter that is there.
    pub(super) fn remove_letter(
        &mut self,
        draft: &mut Draft<'_>,
        tenant: Tenant,
        queue: String,
        id: Uuid,
    ) {
        self.overlay.remove_letter(self.proposed + 1, id);
        let route = Route::Queue(queue_id(tenant, &queue));
        let bytes = 80 + queue.len();
        draft.add(Effect::DlqDelete { tenant, queue, id }, route, bytes);
    }

    /// A fact for a transaction arrived; with the last of them it is decided.
    pub(super) fn transaction_fact(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        ticket: u64,
        put: Result<impl FnOnce(&mut TransactionFacts<'_>), LookupError>,
    ) {
        let Some(mut pending) = self.transactions.remove(&ticket) else { return };
        match put {
            Ok(put) => {
                let PendingTransaction { groups, parts, .. } = &mut pending;
                put(&mut TransactionFacts { groups, parts });
            }
            Err(error) => pending.failed = Some(self.lookup_failed(&error)),
        }
        pending.open -= 1;
        if pending.open > 0 {
            self.transactions.insert(ticket, pending);
        } else if let Some(error) = pending.failed.take() {
            self.decided(pending.asked_at);
            self.answer_transaction(draft, pending.reply, Err(error));
        } else {
            self.decide_transaction(state, draft, ticket, pending);
        }
    }
}

/// Where the facts of a transaction go.
pub(super) struct TransactionFacts<'a> {
    groups: &'a mut [(AckGroup, AckFacts)],
    parts: &'a mut [(PushPart, PushFacts)],
}

impl TransactionFacts<'_> {
    pub(super) fn of_ack(&mut self, at: usize) -> Option<&mut AckFacts> {
        self.groups.get_mut(at).map(|(_, facts)| facts)
    }

    pub(super) fn of_push(&mut self, at: usize) -> Option<&mut PushFacts> {
        self.parts.get_mut(at).map(|(_, facts)| facts)
    }
}

fn rolled_back(reason: RollbackReason, error: &str) -> TransactionOutcome {
    let error = format!("transaction rolled back: {error}");
    TransactionOutcome::RolledBack(Rollback { reason, error })
}

fn of_refusal(refusal: &Refusal) -> Rollback {
    let error = format!("transaction rolled back: {refusal}");
    Rollback { reason: RollbackReason::of(refusal), error }
}

fn rejected_ack(partition: PartitionId, results: &[ItemResult]) -> Rollback {
    let refused =
        |result: &&ItemResult| matches!(result, ItemResult::LeaseLost | ItemResult::Unresolved);
    let count = results.iter().filter(refused).count();
    let why = if results.contains(&ItemResult::LeaseLost) {
        acks::LEASE_LOST
    } else {
        "unresolvable transactionId under this lease, or its offset is already committed"
    };
    let error = format!(
        "transaction rolled back: {count} of {} acks on partition {partition} refused: {why}",
        results.len()
    );
    Rollback { reason: RollbackReason::RejectedAck, error }
}

fn duplicate(part: &PushPart, original: Original) -> TransactionOutcome {
    let error = format!(
        "transaction rolled back: a pushed transactionId is already in queue {:?}, partition {:?}, at offset {}",
        part.queue, part.partition, original.offset
    );
    TransactionOutcome::Duplicate(Rollback { reason: RollbackReason::Duplicate, error }, original)
}
