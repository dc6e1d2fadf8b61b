//! Acknowledgments in the cycle: one call is split by partition and lease, and each part is decided as a whole.

use queen_planner::ack::Verdict;
use queen_planner::consume::{
    AckCall, AckFacts, AckItem, AckOutcome, AckResult, DeadMessage, ItemResult,
};
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_record::hash::tx_hash;
use queen_record::ids::{Offset, PartitionId, Tenant, TxHash, Uuid};
use queen_state::State;

use super::{Cycle, Ready, Reply, Table};
use crate::api::{self, AckDone, AckStatus, CallError};
use crate::lookup::{Lookup, LookupError};

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

struct Part {
    call: AckCall,
    facts: AckFacts,
    /// Which input items it has, in order.
    items: Vec<usize>,
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

const LEASE_LOST: &str = "invalid or expired lease";
const UNRESOLVED: &str = "unresolvable transactionId, or its offset is already committed";

impl Cycle {
    pub(super) fn ack(&mut self, state: &State, draft: &mut Draft<'_>, command: AckCommand) {
        let ticket = self.ticket();
        let mut results = vec![None; command.items.len()];
        let parts = split(command.tenant, command.items, &mut results);
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
        let partition = part.call.partition;
        let tenant = part.call.tenant;
        let queue = state
            .partition(partition)
            .and_then(|row| state.queue_by_number(row.queue))
            .filter(|queue| queue.tenant == tenant);
        let view = queue.and_then(|queue| self.overlay.queue(state, tenant, &queue.name));
        let (Some(queue), Some(view)) = (queue, view.filter(|view| !view.in_flight)) else {
            let error = format!("no partition {partition}");
            for item in part.items.clone() {
                if let Some(slot) = ack.results.get_mut(item) {
                    *slot = Some(Err(error.clone()));
                }
            }
            ack.open -= 1;
            return;
        };
        if let Err(refusal) = check_names(&queue.name, &ack.group) {
            ack.failed = Some(refusal.into());
            ack.open -= 1;
            return;
        }
        let group = self.engine.group(tenant, &queue.name, &ack.group);
        match self.engine.ack(state, draft, group, &view, &part.call, &part.facts) {
            AckOutcome::Done(result) => {
                put_results(&mut ack.results, &part.items, &result);
                ack.open -= 1;
            }
            AckOutcome::NeedLog(question) => {
                self.lookups.push(Lookup::Ack { ack: (ticket, at), partition, question });
            }
        }
    }

    pub(super) fn offsets_found(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        at: (u64, usize),
        offsets: Result<Vec<(TxHash, Vec<Offset>)>, LookupError>,
    ) {
        let put = offsets.map(|found| move |facts: &mut AckFacts| facts.offsets.extend(found));
        self.ack_facts(state, draft, at, put);
    }

    pub(super) fn messages_found(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        at: (u64, usize),
        messages: Result<Vec<(Offset, DeadMessage)>, LookupError>,
    ) {
        let put = messages.map(|found| move |facts: &mut AckFacts| facts.messages.extend(found));
        self.ack_facts(state, draft, at, put);
    }

    fn ack_facts(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (ticket, at): (u64, usize),
        put: Result<impl FnOnce(&mut AckFacts), LookupError>,
    ) {
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

/// Splits a call by partition and lease; items without a partition are answered at once.
fn split(
    tenant: Tenant,
    items: Vec<api::AckItem>,
    results: &mut [Option<AckDoneItem>],
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut known: Table<(PartitionId, Option<String>), usize> = Table::default();
    for (at, item) in items.into_iter().enumerate() {
        let Some(partition) = item.partition_id else {
            if let Some(slot) = results.get_mut(at) {
                *slot = Some(Err("partitionId is not a partition id".to_owned()));
            }
            continue;
        };
        let presented = item.lease.as_deref().map(Uuid::parse);
        let place = *known.entry((partition, item.lease)).or_insert_with(|| {
            let call = AckCall { tenant, partition, lease: presented, items: Vec::new() };
            parts.push(Part { call, facts: AckFacts::default(), items: Vec::new() });
            parts.len() - 1
        });
        if let Some(part) = parts.get_mut(place) {
            part.items.push(at);
            part.call.items.push(AckItem {
                hash: tx_hash(&item.transaction_id),
                verdict: verdict(item.status),
                error: item.error,
            });
        }
    }
    parts
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
