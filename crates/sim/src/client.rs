//! A client of one node: sends commands, takes the answers, and notes in the node's history what they promise.
//!
//! It also judges the answers themselves: offsets without a gap, the first offset for a repeat, messages as stored.

mod retention;

use std::time::Duration;

use queen_broker::api::{
    AckItem, AckStatus, PopRequest, PopTarget, PushBatch, PushItem, Subscribe, TransactionAck,
};
use queen_broker::cipher::Sealing;
use queen_broker::cycle::{
    AckCommand, AckDoneItem, ConfigureCommand, DeleteGroupCommand, DeleteQueueCommand,
    ExtendCommand, Input, PartAnswer, PopCommand, PopGranted, PushCommand, SeekCommand,
    TransactionCommand, TransactionOutcome,
};
use queen_broker::prepare::{Prepared, prepare};
use queen_model::OptionsPatch;
use queen_planner::consume::Place as SeekPlace;
use queen_planner::push::PushVerdict;
use queen_qlog::ReadLimit;
use queen_record::hash::queue_id;
use queen_record::ids::{Offset, PartitionId, Tenant, Uuid};
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::channel;

use crate::history::{Part, Place, Stored, What};
use crate::node::SimNode;
use crate::oracle::messages_of;

type Answer<T> = Receiver<Result<T, queen_broker::api::CallError>>;

/// How the error of a wrong answer begins; every other error is a node that stopped.
pub const WRONG: &str = "wrong answer: ";

/// One message to push.
#[derive(Clone, Debug)]
pub struct Item {
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// The transactionId.
    pub transaction_id: String,
    /// The payload.
    pub payload: Vec<u8>,
}

/// What a pop was granted from one partition.
#[derive(Clone, Debug)]
pub struct Held {
    /// Whose place.
    pub place: Place,
    /// The lease.
    pub lease: Option<Uuid>,
    /// Offset and transactionId of each message.
    pub messages: Vec<(u64, String)>,
}

struct Popping {
    queue: String,
    group: String,
    commit: bool,
    /// The entry that was applied when it was sent.
    sent_at: u64,
}

enum Waiting {
    Push(Vec<Item>, Vec<(u32, u32)>, Answer<Vec<PartAnswer>>),
    Pop(Popping, Answer<PopGranted>),
    Ack(Held, Vec<AckStatus>, Answer<Vec<AckDoneItem>>),
    Transaction(Box<Bundle>, Answer<TransactionOutcome>),
    Seek(Place, i64, Answer<u64>),
    Configure(String, Answer<queen_broker::api::Configured>),
    DeleteQueue(String, Answer<bool>),
    DeleteGroup(String, String, Answer<queen_broker::api::GroupDeleted>),
    Extend(Answer<queen_broker::api::Extended>),
}

/// A transaction that was sent.
struct Bundle {
    held: Vec<(Held, Vec<AckStatus>)>,
    items: Vec<Item>,
    places: Vec<(u32, u32)>,
    /// Whether it must be refused, and then leave nothing.
    refused: bool,
}

/// The client.
#[derive(Default)]
pub struct Client {
    waiting: Vec<Waiting>,
    /// What pops were granted and no ack has settled.
    pub held: Vec<Held>,
    /// Pushed items answered as duplicates.
    pub duplicates: u64,
}

impl Client {
    /// Sends a push.
    ///
    /// # Errors
    /// When it is refused before it is sent.
    pub fn push(&mut self, node: &mut SimNode, items: Vec<Item>) -> Result<(), String> {
        let prepared = framed(node, &items)?;
        let (reply, answer) = channel();
        node.send(Input::Push(PushCommand { parts: prepared.parts, reply }));
        self.waiting.push(Waiting::Push(items, prepared.places, answer));
        Ok(())
    }

    /// Sends a pop of up to `batch` messages from any partition.
    pub fn pop(&mut self, node: &mut SimNode, queue: &str, group: &str, batch: u32) {
        self.pop_with(node, queue, group, batch, false);
    }

    /// Sends a pop that commits what it delivers.
    pub fn pop_committed(&mut self, node: &mut SimNode, queue: &str, group: &str, batch: u32) {
        self.pop_with(node, queue, group, batch, true);
    }

    fn pop_with(&mut self, node: &mut SimNode, queue: &str, group: &str, batch: u32, commit: bool) {
        let request = PopRequest {
            tenant: Tenant::DEFAULT,
            target: PopTarget::Queue(queue.to_owned()),
            group: group.to_owned(),
            batch: Some(batch),
            partitions: Some(2),
            autopilot: false,
            wait: false,
            timeout: Duration::ZERO,
            lease_seconds: None,
            commit_on_delivery: commit,
            subscribe: Subscribe::All,
            conflation: None,
            frames: false,
        };
        let (reply, answer) = channel();
        let token = node.token();
        node.send(Input::Pop(PopCommand { token, request, reply }));
        let sent_at = node.applied();
        let of = |place: &Place| place.queue == queue && place.group == group;
        node.history.end(sent_at, |what| matches!(what, What::NoCursor(place) if of(place)));
        let (queue, group) = (queue.to_owned(), group.to_owned());
        self.waiting.push(Waiting::Pop(Popping { queue, group, commit, sent_at }, answer));
    }

    /// Sends verdicts on the messages of the oldest claim, in order; the last one stands for the rest.
    pub fn ack(&mut self, node: &mut SimNode, statuses: &[AckStatus]) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.remove(0);
        let status = |at: usize| statuses.get(at).or(statuses.last()).copied();
        let statuses: Vec<AckStatus> = (0..held.messages.len()).filter_map(status).collect();
        let items = ack_items(&held, &statuses);
        end_lease(node, &held.place);
        let (reply, answer) = channel();
        let (tenant, group) = (Tenant::DEFAULT, held.place.group.clone());
        node.send(Input::Ack(AckCommand { tenant, group, items, reply }));
        self.waiting.push(Waiting::Ack(held, statuses, answer));
    }

    /// Sends a transaction that completes the oldest `count` claims and pushes `items`. One that is `spoiled` repeats an id
    /// that is stored, and must be refused.
    ///
    /// # Errors
    /// When it is refused before it is sent.
    pub fn transact(
        &mut self,
        node: &mut SimNode,
        count: usize,
        items: Vec<Item>,
        spoiled: bool,
    ) -> Result<(), String> {
        let count = count.min(self.held.len());
        let held: Vec<Held> = if spoiled {
            self.held.iter().take(count).cloned().collect()
        } else {
            self.held.drain(..count).collect()
        };
        let completed = |held: Held| {
            let statuses = vec![AckStatus::Completed; held.messages.len()];
            (held, statuses)
        };
        let held: Vec<(Held, Vec<AckStatus>)> = held.into_iter().map(completed).collect();
        let mut acks = Vec::new();
        for (held, statuses) in &held {
            let group = || held.place.group.clone();
            let items = ack_items(held, statuses).into_iter();
            acks.extend(items.map(|item| TransactionAck { group: group(), item }));
            if !spoiled {
                end_lease(node, &held.place);
            }
        }
        let prepared = framed(node, &items)?;
        let (reply, answer) = channel();
        node.send(Input::Transaction(Box::new(TransactionCommand {
            tenant: Tenant::DEFAULT,
            acks,
            parts: prepared.parts,
            positions: Vec::new(),
            letter: None,
            reply,
        })));
        let bundle = Bundle { held, items, places: prepared.places, refused: spoiled };
        self.waiting.push(Waiting::Transaction(Box::new(bundle), answer));
        Ok(())
    }

    /// Puts a group's cursor on a partition back to its first message.
    pub fn rewind(&mut self, node: &mut SimNode, queue: &str, group: &str, partition: PartitionId) {
        let (reply, answer) = channel();
        let place = Place { queue: queue.to_owned(), group: group.to_owned(), partition };
        end_lease(node, &place);
        self.held.retain(|held| held.place != place);
        let applied = node.applied();
        let same = |what: &What| matches!(what, What::Committed(at, _) if *at == place);
        node.history.end(applied, same);
        node.send(Input::Seek(SeekCommand {
            tenant: Tenant::DEFAULT,
            queue: place.queue.clone(),
            group: place.group.clone(),
            places: vec![(partition, SeekPlace::Next(Offset(0)))],
            reply,
        }));
        self.waiting.push(Waiting::Seek(place, -1, answer));
    }

    /// Extends the lease of the oldest claim.
    pub fn extend(&mut self, node: &mut SimNode, seconds: i64) {
        let Some(held) = self.held.first() else { return };
        let (reply, answer) = channel();
        let (tenant, lease) = (Tenant::DEFAULT, held.lease);
        node.send(Input::Extend(ExtendCommand { tenant, lease, seconds, reply }));
        self.waiting.push(Waiting::Extend(answer));
    }

    /// Makes or changes a queue.
    pub fn configure(&mut self, node: &mut SimNode, queue: &str, patch: OptionsPatch) {
        let applied = node.applied();
        let same = |what: &What| matches!(what, What::Options(name, _) | What::NoQueue(name) if name == queue);
        node.history.end(applied, same);
        let (reply, answer) = channel();
        let (tenant, replace) = (Tenant::DEFAULT, false);
        let command = ConfigureCommand { tenant, queue: queue.to_owned(), patch, replace, reply };
        node.send(Input::Configure(command));
        self.waiting.push(Waiting::Configure(queue.to_owned(), answer));
    }

    /// Deletes a queue.
    pub fn delete_queue(&mut self, node: &mut SimNode, queue: &str) {
        let applied = node.applied();
        node.history.end_queue(applied, queue);
        self.held.retain(|held| held.place.queue != queue);
        let (reply, answer) = channel();
        node.send(Input::DeleteQueue(DeleteQueueCommand(
            (Tenant::DEFAULT, queue.to_owned()),
            reply,
        )));
        self.waiting.push(Waiting::DeleteQueue(queue.to_owned(), answer));
    }

    /// Deletes a group of a queue with its subscription.
    pub fn delete_group(&mut self, node: &mut SimNode, queue: &str, group: &str) {
        let applied = node.applied();
        let of = |place: &Place| place.queue == queue && place.group == group;
        node.history.end(applied, |what| what.place().is_some_and(of));
        self.held.retain(|held| !of(&held.place));
        let (reply, answer) = channel();
        node.send(Input::DeleteGroup(DeleteGroupCommand {
            tenant: Tenant::DEFAULT,
            group: group.to_owned(),
            queue: Some(queue.to_owned()),
            metadata: true,
            reply,
        }));
        self.waiting.push(Waiting::DeleteGroup(queue.to_owned(), group.to_owned(), answer));
    }

    /// Runs the node until it is quiet, and takes all answers.
    ///
    /// # Errors
    /// Why the node stopped, or what is wrong with an answer.
    pub fn settle(&mut self, node: &mut SimNode) -> Result<(), String> {
        node.settle()?;
        for waiting in std::mem::take(&mut self.waiting) {
            self.take(node, waiting).map_err(|reason| format!("{WRONG}{reason}"))?;
        }
        Ok(())
    }

    fn take(&mut self, node: &mut SimNode, waiting: Waiting) -> Result<(), String> {
        match waiting {
            Waiting::Push(items, places, answer) => {
                self.pushed(node, &items, &places, &ready(answer)?)
            }
            Waiting::Pop(popping, answer) => self.popped(node, &popping, ready(answer)?),
            Waiting::Ack(held, statuses, answer) => acked(node, &held, &statuses, &ready(answer)?),
            Waiting::Transaction(bundle, answer) => self.transacted(node, &bundle, ready(answer)?),
            Waiting::Seek(place, committed, answer) => match ready(answer)? {
                1 => note(node, What::Committed(place, committed)),
                other => Err(format!("a seek moved {other} cursors")),
            },
            Waiting::Configure(queue, answer) => {
                let configured = ready(answer)?;
                note(node, What::Options(queue, Box::new(configured.options)))
            }
            Waiting::DeleteQueue(queue, answer) => {
                if ready(answer)? {
                    return note(node, What::NoQueue(queue));
                }
                Err(format!("there was no queue {queue} to delete"))
            }
            Waiting::DeleteGroup(queue, group, answer) => {
                ready(answer)?;
                let parts = node.history.parts.iter();
                let ids: Vec<PartitionId> =
                    parts.filter(|(_, part)| part.queue == queue).map(|(id, _)| *id).collect();
                for partition in ids {
                    let (queue, group) = (queue.clone(), group.clone());
                    note(node, What::NoCursor(Place { queue, group, partition }))?;
                }
                Ok(())
            }
            Waiting::Extend(answer) => match ready(answer)?.renewed {
                0 => Err("a live lease was not extended".to_owned()),
                _ => Ok(()),
            },
        }
    }

    /// All of it is true of the node, or none.
    fn transacted(
        &mut self,
        node: &mut SimNode,
        bundle: &Bundle,
        outcome: TransactionOutcome,
    ) -> Result<(), String> {
        match outcome {
            TransactionOutcome::Committed { acks, parts } if !bundle.refused => {
                let parts: Vec<PartAnswer> = parts.into_iter().map(Ok).collect();
                self.pushed(node, &bundle.items, &bundle.places, &parts)?;
                let mut acks = acks.into_iter().map(Ok);
                for (held, statuses) in &bundle.held {
                    let answers: Vec<AckDoneItem> = acks.by_ref().take(statuses.len()).collect();
                    acked(node, held, statuses, &answers)?;
                }
                Ok(())
            }
            TransactionOutcome::Duplicate(..) if bundle.refused => Ok(()),
            other => Err(format!("a transaction was answered {other:?}")),
        }
    }

    fn pushed(
        &mut self,
        node: &mut SimNode,
        items: &[Item],
        places: &[(u32, u32)],
        answers: &[PartAnswer],
    ) -> Result<(), String> {
        for (item, (part, at)) in items.iter().zip(places) {
            let verdict = match answers.get(*part as usize) {
                Some(Ok(verdicts)) => verdicts.get(*at as usize),
                other => return Err(format!("a push was answered {other:?}")),
            };
            let found = node.with_state(|state| {
                let queue = state.queue(Tenant::DEFAULT, &item.queue)?;
                state.partition_named(queue, &item.partition)
            });
            let id = found.ok_or("an acknowledged push has no partition")?;
            let index = match verdict {
                Some(PushVerdict::Queued { offset, .. }) => {
                    entry_of(node, &item.queue, id, *offset)?
                }
                _ => node.applied(),
            };
            let gone = |what: &What| matches!(what, What::NoQueue(name) if *name == item.queue);
            // The queue is back as of the entry that this push is in.
            node.history.end(index - 1, gone);
            let part = node.history.parts.entry(id).or_insert_with(|| Part {
                queue: item.queue.clone(),
                name: item.partition.clone(),
                ..Part::default()
            });
            match verdict {
                Some(PushVerdict::Queued { offset, id }) => {
                    if offset.0 != part.messages.len() as u64 {
                        let due = part.messages.len();
                        return Err(format!("offset {offset} was answered where {due} was due"));
                    }
                    part.messages.push(Stored {
                        index,
                        id: *id,
                        transaction_id: item.transaction_id.clone(),
                        payload: item.payload.clone(),
                    });
                }
                Some(PushVerdict::Duplicate(original)) => {
                    self.duplicates += 1;
                    let first = part
                        .messages
                        .iter()
                        .position(|stored| stored.transaction_id == item.transaction_id);
                    let same = first.is_some_and(|first| first as u64 == original.offset.0);
                    let stored = first.and_then(|first| part.messages.get(first));
                    if !same || stored.is_none_or(|stored| stored.id != original.id) {
                        return Err(format!(
                            "{} was answered as a repeat of offset {}, {first:?} holds it",
                            item.transaction_id, original.offset
                        ));
                    }
                }
                None => return Err("an item has no answer".to_owned()),
            }
            let stored = part.messages.iter().filter(|s| s.transaction_id == item.transaction_id);
            if stored.count() != 1 {
                return Err(format!("{} is stored twice", item.transaction_id));
            }
        }
        Ok(())
    }

    fn popped(
        &mut self,
        node: &mut SimNode,
        popping: &Popping,
        granted: PopGranted,
    ) -> Result<(), String> {
        for claim in granted.claims {
            let partition = claim.partition;
            let (queue, group) = (popping.queue.clone(), popping.group.clone());
            let place = Place { queue, group, partition };
            let end = claim.first.0 + claim.count as u64;
            let mut messages = Vec::new();
            for (offset, found) in messages_of(&claim.records)? {
                if offset < claim.first.0 || offset >= end {
                    continue;
                }
                let stored = node.history.parts.get(&partition);
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let stored = stored.and_then(|part| part.messages.get(at));
                if !stored.is_some_and(|stored| found.is(stored)) {
                    return Err(format!("a pop delivered a wrong message {partition}/{offset}"));
                }
                messages.push((offset, found.transaction_id));
            }
            if messages.len() != claim.count {
                return Err(format!("a pop holds {} of {}", messages.len(), claim.count));
            }
            node.history
                .end(popping.sent_at, |what| matches!(what, What::Leased(at, _) if *at == place));
            if popping.commit {
                let last = i64::try_from(end).unwrap_or(i64::MAX) - 1;
                note(node, What::Committed(place, last))?;
            } else if let Some(lease) = granted.lease {
                note(node, What::Leased(place.clone(), lease))?;
                self.held.push(Held { place, lease: granted.lease, messages });
            }
        }
        Ok(())
    }
}

/// Items made ready to be planned.
fn framed(node: &SimNode, items: &[Item]) -> Result<Prepared, String> {
    let refs: Vec<PushItem<'_>> = items
        .iter()
        .map(|item| PushItem {
            queue: &item.queue,
            partition: &item.partition,
            transaction_id: Some(&item.transaction_id),
            payload: &item.payload,
            producer_sub: None,
            trace_id: None,
        })
        .collect();
    prepare(Tenant::DEFAULT, PushBatch::Items(&refs), node.ids(), 1, Sealing::PLAIN)
        .map_err(|refused| refused.to_string())
}

/// Verdicts on the messages of a claim.
fn ack_items(held: &Held, statuses: &[AckStatus]) -> Vec<AckItem> {
    let item = |((_, transaction_id), status): (&(u64, String), &AckStatus)| AckItem {
        transaction_id: transaction_id.clone(),
        partition_id: Some(held.place.partition),
        lease: held.lease.map(|lease| String::from_utf8_lossy(&lease.text()).into_owned()),
        status: *status,
        error: Some("the script says so".to_owned()),
    };
    held.messages.iter().zip(statuses).map(item).collect()
}

/// A lease that is being settled may be gone from here on.
fn end_lease(node: &mut SimNode, place: &Place) {
    let applied = node.applied();
    let lease = |what: &What| matches!(what, What::Leased(at, _) if at == place);
    node.history.end(applied, lease);
}

/// The entry that wrote a message, as the log has it.
fn entry_of(
    node: &SimNode,
    queue: &str,
    partition: PartitionId,
    offset: Offset,
) -> Result<u64, String> {
    let log = node.qlog().log_of(queue_id(Tenant::DEFAULT, queue), Some(partition));
    let limit = ReadLimit { messages: 1, bytes: 1 };
    let records = node.qlog().read(log, partition, offset, limit);
    let records = records.map_err(|error| error.to_string())?;
    let first = records.first().filter(|record| record.base <= offset);
    first.map(|record| record.index.0).ok_or_else(|| "an answered message is not in its log".into())
}

/// Notes what an ack's answers promise.
fn acked(
    node: &mut SimNode,
    held: &Held,
    statuses: &[AckStatus],
    answers: &[AckDoneItem],
) -> Result<(), String> {
    let mut in_order = true;
    for (((offset, transaction_id), status), answer) in
        held.messages.iter().zip(statuses).zip(answers)
    {
        let done = answer.as_ref().map_err(|text| format!("an ack failed: {text}"))?;
        let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
        if done.dead_lettered {
            note(node, What::Dead(held.place.clone(), offset, transaction_id.clone()))?;
        }
        in_order &= *status == AckStatus::Completed || done.dead_lettered;
        if in_order {
            note(node, What::Committed(held.place.clone(), offset))?;
        }
    }
    Ok(())
}

/// Adds a fact, which must hold here and now.
fn note(node: &mut SimNode, what: What) -> Result<(), String> {
    if !node.with_state(|state| what.holds(state)) {
        return Err(format!("an answer is not true of the node that gave it: {what:?}"));
    }
    let index = node.applied();
    node.history.add(index, what);
    Ok(())
}

fn ready<T>(mut answer: Answer<T>) -> Result<T, String> {
    match answer.try_recv() {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("a call failed: {error}")),
        Err(error) => Err(format!("a call was not answered: {error}")),
    }
}
