//! Acknowledgments in the cycle: one call is split by partition and lease, and each part is decided as a whole.

use queen_planner::ack::Verdict;
use queen_planner::consume::{
    AckCall, AckFacts, AckItem, AckOutcome, AckResult, DeadMessage, ItemResult,
};
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_planner::overlay::QueueView;
use queen_record::hash::tx_hash;
use queen_record::ids::{Offset, PartitionId, Tenant, TxHash, Uuid};
use queen_state::State;

use super::transactions::TransactionFacts;
use super::{Cycle, Ready, Reply, Table};
use crate::api::{self, AckDone, AckStatus, CallError};
use crate::lookup::{Known, Lookup, LookupError};

/// An acknowledgment call.
#[derive(Debug)]
pub struct AckCommand {
    /// Whose.
    pub tenant: Tenant,
    /// Group name.
    pub group: String,
    /// The items.
    pub items: Vec<api::AckItem>,
    /// Where one answer per item goes.
    pub reply: Reply<Vec<AckDoneItem>>,
}

/// The result of one item: done, or the text of its failure.
pub type AckDoneItem = Result<AckDone, String>;

/// The items of a call for one partition, lease and group.
pub(super) struct AckGroup {
    /// Group name; `None` is the call's.
    pub(super) name: Option<String>,
    pub(super) call: AckCall,
    /// Which input items it has, in order.
    pub(super) items: Vec<usize>,
}

struct Part {
    group: AckGroup,
    facts: AckFacts,
}

/// A call that is not answered yet.
pub(super) struct PendingAck {
    group: String,
    parts: Vec<Part>,
    results: Vec<Option<AckDoneItem>>,
    open: usize,
    failed: Option<CallError>,
    reply: Reply<Vec<AckDoneItem>>,
}

pub(super) const NO_PARTITION_ID: &str = "partitionId is not a partition id";
pub(super) const LEASE_LOST: &str = "invalid or expired lease";
const UNRESOLVED: &str = "unresolvable transactionId, or its offset is already committed";

impl Cycle {
    pub(super) fn ack(&mut self, state: &State, draft: &mut Draft<'_>, command: AckCommand) {
        let ticket = self.ticket();
        let mut results = vec![None; command.items.len()];
        let items = command.items.into_iter().map(|item| (None, item));
        let (groups, strays) = group_items(command.tenant, items);
        for at in strays {
            if let Some(slot) = results.get_mut(at) {
                *slot = Some(Err(NO_PARTITION_ID.to_owned()));
            }
        }
        let parts: Vec<Part> =
            groups.into_iter().map(|group| Part { group, facts: AckFacts::default() }).collect();
        let mut ack = PendingAck {
            group: command.group,
            open: parts.len(),
            parts,
            results,
            failed: None,
            reply: command.reply,
        };
        for at in 0..ack.parts.len() {
            self.decide_part(state, draft, (ticket, at), &mut ack);
        }
        self.keep_or_answer_ack(ticket, ack);
    }

    fn decide_part(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (ticket, at): (u64, usize),
        ack: &mut PendingAck,
    ) {
        let Some(part) = ack.parts.get(at) else { return };
        let AckCall { partition, tenant, .. } = part.group.call;
        let Some((queue, view)) = self.queue_of_partition(state, tenant, partition) else {
            let error = format!("no partition {partition}");
            for item in &part.group.items {
                let item = *item;
                if let Some(slot) = ack.results.get_mut(item) {
                    *slot = Some(Err(error.clone()));
                }
            }
            ack.open -= 1;
            return;
        };
        if let Err(refusal) = check_names(queue, &ack.group) {
            ack.failed = Some(refusal.into());
            ack.open -= 1;
            return;
        }
        let group = self.engine.group(tenant, queue, &ack.group);
        match self.engine.ack(state, draft, group, &view, &part.group.call, &part.facts) {
            AckOutcome::Done(result) => {
                put_results(&mut ack.results, &part.group.items, &result);
                ack.open -= 1;
            }
            AckOutcome::NeedLog(question) => {
                let of = Known::of(state, partition);
                self.lookups.push(Lookup::Ack { ack: (ticket, at), of, question });
            }
        }
    }

    /// The queue of a tenant's partition, unless it is gone or going.
    pub(super) fn queue_of_partition<'s>(
        &self,
        state: &'s State,
        tenant: Tenant,
        partition: PartitionId,
    ) -> Option<(&'s str, QueueView)> {
        let row = state.partition(partition)?;
        if self.overlay.is_partition_gone(partition) {
            return None;
        }
        let queue = state.queue_by_number(row.queue).filter(|queue| queue.tenant == tenant)?;
        let view = self.overlay.queue(state, tenant, &queue.name)?;
        // One of the same name that was made since does not have this partition.
        (!view.in_flight).then_some((&*queue.name, view))
    }

    pub(super) fn offsets_found(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        at: (u64, usize),
        offsets: Result<Vec<(TxHash, Vec<Offset>)>, LookupError>,
    ) {
        self.ack_facts(
            state,
            draft,
            at,
            offsets.map(|found| move |facts: &mut AckFacts| facts.offsets.extend(found)),
        );
    }

    pub(super) fn messages_found(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        at: (u64, usize),
        messages: Result<Vec<(Offset, DeadMessage)>, LookupError>,
    ) {
        self.ack_facts(
            state,
            draft,
            at,
            messages.map(|found| move |facts: &mut AckFacts| facts.messages.extend(found)),
        );
    }

    fn ack_facts(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (ticket, at): (u64, usize),
        put: Result<impl FnOnce(&mut AckFacts), LookupError>,
    ) {
        if self.transactions.contains_key(&ticket) {
            let put = put.map(|put| {
                move |facts: &mut TransactionFacts<'_>| {
                    if let Some(facts) = facts.of_ack(at) {
                        put(facts);
                    }
                }
            });
            return self.transaction_fact(state, draft, ticket, put);
        }
        let Some(mut ack) = self.acks.remove(&ticket) else { return };
        match put {
            Ok(put) => {
                if let Some(part) = ack.parts.get_mut(at) {
                    put(&mut part.facts);
                }
                self.decide_part(state, draft, (ticket, at), &mut ack);
            }
            Err(error) => {
                ack.failed = Some(self.lookup_failed(&error));
                ack.open -= 1;
            }
        }
        self.keep_or_answer_ack(ticket, ack);
    }

    fn keep_or_answer_ack(&mut self, ticket: u64, ack: PendingAck) {
        if ack.open > 0 {
            self.acks.insert(ticket, ack);
            return;
        }
        let answer = match ack.failed {
            Some(error) => Err(error),
            None => Ok(ack.results.into_iter().flatten().collect()),
        };
        let reply = ack.reply;
        // The rows that the call changed join this plan when it is finished.
        self.after_this(Ready::Done(Box::new(move || drop(reply.send(answer)))));
    }
}

/// Groups items by partition, lease and group, and names those without a partition.
pub(super) fn group_items(
    tenant: Tenant,
    items: impl Iterator<Item = (Option<String>, api::AckItem)>,
) -> (Vec<AckGroup>, Vec<usize>) {
    let (mut groups, mut strays) = (Vec::new(), Vec::new());
    let mut known: Table<(PartitionId, Option<String>, Option<String>), usize> = Table::default();
    for (at, (name, item)) in items.enumerate() {
        let Some(partition) = item.partition_id else {
            strays.push(at);
            continue;
        };
        let presented = item.lease.as_deref().map(Uuid::parse);
        let place = *known.entry((partition, item.lease, name.clone())).or_insert_with(|| {
            let call = AckCall { tenant, partition, lease: presented, items: Vec::new() };
            groups.push(AckGroup { name, call, items: Vec::new() });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(place) {
            group.items.push(at);
            group.call.items.push(AckItem {
                hash: tx_hash(&item.transaction_id),
                verdict: verdict(item.status),
                error: item.error,
            });
        }
    }
    (groups, strays)
}

fn verdict(status: AckStatus) -> Verdict {
    match status {
        AckStatus::Completed => Verdict::Completed,
        AckStatus::Failed => Verdict::Failed,
        AckStatus::Retry => Verdict::Retry,
        AckStatus::DeadLetter => Verdict::Dead,
    }
}

fn put_results(results: &mut [Option<AckDoneItem>], items: &[usize], found: &AckResult) {
    for (item, result) in items.iter().zip(found) {
        let result = match result {
            ItemResult::Done { released, dead_lettered, noop } => Ok(AckDone {
                lease_released: *released,
                dead_lettered: *dead_lettered,
                noop: *noop,
            }),
            ItemResult::LeaseLost => Err(LEASE_LOST.to_owned()),
            ItemResult::Unresolved => Err(UNRESOLVED.to_owned()),
        };
        if let Some(slot) = results.get_mut(*item) {
            *slot = Some(result);
        }
    }
}

/// Puts the results of a call of which every item holds.
pub(super) fn put_done(done: &mut [AckDone], items: &[usize], found: &AckResult) {
    for (item, result) in items.iter().zip(found) {
        if let (Some(slot), ItemResult::Done { released, dead_lettered, noop }) =
            (done.get_mut(*item), result)
        {
            *slot =
                AckDone { lease_released: *released, dead_lettered: *dead_lettered, noop: *noop };
        }
    }
}
