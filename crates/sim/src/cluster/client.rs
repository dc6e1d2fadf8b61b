//! Clients of a cluster: each a task of its own that calls whichever node leads, and tells the judge what it was answered.

use std::time::Duration;

use queen_broker::api::{
    AckItem, AckStatus, PopRequest, PopTarget, PushBatch, PushItem, Subscribe, TransactionAck,
};
use queen_broker::cipher::Sealing;
use queen_broker::cycle::{
    AckCommand, Input, PopCommand, PopGranted, PushCommand, Reply, TransactionCommand,
    TransactionOutcome,
};
use queen_broker::prepare::{Prepared, prepare};
use queen_planner::push::PushVerdict;
use queen_record::ids::{PartitionId, Tenant, Uuid};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::judge::{Delivery, Judge, output_of};
use super::node::LiveNode;
use super::world::World;
use crate::oracle::messages_of;
use crate::rng::Rng;

/// How long a call waits for its answer.
const CALL_MAX: Duration = Duration::from_secs(2);
/// How long a claim holds, as pops ask for it.
pub(crate) const LEASE_SECONDS: i32 = 2;
/// Messages of one push at most.
const PUSH_MAX: u64 = 4;
/// Tries of one push.
const TRIES_MAX: u64 = 8;

/// What came of a call.
pub(crate) enum Outcome<T> {
    /// It was answered.
    Done(T),
    /// It was not carried out, or nobody knows.
    Unknown,
}

/// What a client works on.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Partitions of a queue.
    pub lanes: u64,
    /// Time between two calls, at most.
    pub pause_ms: u64,
}

/// A client.
pub(crate) struct Client {
    /// The cluster.
    pub world: World,
    /// Its number.
    pub number: u64,
    /// Its chance.
    pub rng: Rng,
    /// What it works on.
    pub work: Work,
    /// How many pushes, or pops, it has made.
    pub made: u64,
}

/// A claim that a pop brought.
#[derive(Debug)]
struct Held {
    partition: PartitionId,
    lease: Option<Uuid>,
    messages: Vec<(u64, String)>,
}

impl Client {
    fn judge(&self) -> &Judge {
        &self.world.watchers.judge
    }

    async fn pause(&mut self) {
        let ms = 1 + self.rng.below(self.work.pause_ms);
        sleep(Duration::from_millis(ms)).await;
    }

    /// Asks whoever leads.
    async fn call<T: Send>(
        &self,
        what: &'static str,
        input: impl FnOnce(&LiveNode, Reply<T>) -> Result<Input, String> + Send,
    ) -> Outcome<T> {
        self.judge().count("operations");
        let Some(node) = self.world.leader() else {
            sleep(Duration::from_millis(20)).await;
            return Outcome::Unknown;
        };
        // The way there.
        sleep(Duration::from_millis(1)).await;
        let (reply, answer) = oneshot::channel();
        let input = match input(&node, reply) {
            Ok(input) => input,
            Err(reason) => {
                self.judge().violated(format!("{what} is refused: {reason}"));
                return Outcome::Unknown;
            }
        };
        node.send(input);
        match timeout(CALL_MAX, answer).await {
            Ok(Ok(Ok(done))) => {
                self.judge().count("answered");
                Outcome::Done(done)
            }
            Ok(Ok(Err(error))) => {
                self.judge().violated(format!("{what} of client {} failed: {error}", self.number));
                Outcome::Unknown
            }
            Ok(Err(_)) | Err(_) => Outcome::Unknown,
        }
    }

    /// Pushes to random partitions of a queue until the run ends, some of it again.
    pub(crate) async fn push(mut self, queue: &'static str) {
        let mut known: Vec<Vec<(String, String, Vec<u8>)>> = Vec::new();
        while !self.world.is_over() {
            self.pause().await;
            let again = self.rng.below(8) == 0 && !known.is_empty();
            let items = if again {
                let at = usize::try_from(self.rng.below(known.len() as u64)).unwrap_or(0);
                known.get(at).cloned().unwrap_or_default()
            } else {
                self.new_items()
            };
            let mut is_known = false;
            for _ in 0..TRIES_MAX {
                is_known = self.push_once(queue, &items).await;
                if is_known || self.rng.below(10) == 0 {
                    break;
                }
                sleep(Duration::from_millis(50 + self.rng.below(200))).await;
            }
            if is_known && !again && known.len() < 64 {
                known.push(items);
            }
        }
    }

    fn new_items(&mut self) -> Vec<(String, String, Vec<u8>)> {
        let count = 1 + self.rng.below(PUSH_MAX);
        (0..count)
            .map(|_| {
                self.made += 1;
                let lane = format!("lane {}", self.rng.below(self.work.lanes));
                let len = usize::try_from(self.rng.below(160)).unwrap_or(0);
                (lane, format!("{} of {}", self.made, self.number), self.rng.bytes(len))
            })
            .collect()
    }

    async fn push_once(&mut self, queue: &str, items: &[(String, String, Vec<u8>)]) -> bool {
        for (lane, id, payload) in items {
            self.judge().push_begins(&(queue.to_owned(), lane.clone()), id, payload);
        }
        let mut places = Vec::new();
        let made = |node: &LiveNode, reply| {
            let Prepared { parts, places: found } = prepared(node, queue, items)?;
            places = found;
            Ok(Input::Push(PushCommand { parts, reply }))
        };
        let Outcome::Done(answers) = self.call("a push", made).await else { return false };
        for ((lane, id, _), (part, at)) in items.iter().zip(&places) {
            let verdict = match answers.get(*part as usize) {
                Some(Ok(verdicts)) => verdicts.get(*at as usize),
                other => {
                    self.judge().violated(format!("a push was answered {other:?}"));
                    return false;
                }
            };
            self.note_push(&(queue.to_owned(), lane.clone()), id, verdict);
        }
        self.judge().count("pushes");
        true
    }

    fn note_push(&self, lane: &(String, String), id: &str, verdict: Option<&PushVerdict>) {
        match verdict {
            Some(PushVerdict::Queued { offset, .. }) => {
                self.judge().pushed(lane, id, offset.0, false);
            }
            Some(PushVerdict::Duplicate(original)) => {
                self.judge().count("duplicates");
                self.judge().pushed(lane, id, original.offset.0, true);
            }
            None => self.judge().violated(format!("{id} has no answer")),
        }
    }

    /// Pops and acknowledges until the run ends: all, a part, or nothing of what came.
    pub(crate) async fn consume(mut self, queue: &'static str, group: &'static str) {
        while !self.world.is_over() {
            self.pause().await;
            let batch = 1 + self.rng.below(12);
            let claims = self.pop(queue, group, batch, 2).await.unwrap_or_default();
            for held in claims {
                match self.rng.below(8) {
                    // It dies: the lease runs out.
                    0 => {}
                    1 => {
                        let half = held.messages.len().div_ceil(2);
                        self.acknowledge(group, &held, half).await;
                    }
                    _ => {
                        self.acknowledge(group, &held, held.messages.len()).await;
                    }
                }
            }
        }
    }

    /// Pops and acknowledges until nothing more comes; whether it came to that.
    pub(crate) async fn drain(&mut self, queue: &str, group: &str) -> bool {
        let (mut empty, patience) = (0, self.patience());
        for _ in 0..2_000 {
            match self.pop(queue, group, 50, 4).await {
                Some(claims) if claims.is_empty() => {
                    empty += 1;
                    // What somebody died with comes back when its lease has run out.
                    if empty > patience {
                        return true;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
                Some(claims) => {
                    empty = 0;
                    for held in claims {
                        self.acknowledge(group, &held, held.messages.len()).await;
                    }
                }
                None => sleep(Duration::from_millis(100)).await,
            }
        }
        false
    }

    /// Seconds after which a lease has run out, by whatever clock.
    fn patience(&self) -> u64 {
        u64::from(LEASE_SECONDS.unsigned_abs()) + self.world.clocks_apart().as_secs() + 2
    }

    /// Takes messages of one queue, and pushes what it makes of them to another in the transaction that acknowledges them.
    pub(crate) async fn pipeline(
        mut self,
        from: &'static str,
        to: &'static str,
        group: &'static str,
    ) {
        while !self.world.is_over() {
            self.pause().await;
            self.step(from, to, group).await;
        }
    }

    /// As `drain`, through the pipeline.
    pub(crate) async fn drain_pipeline(&mut self, from: &str, to: &str, group: &str) -> bool {
        let (mut empty, patience) = (0, self.patience());
        for _ in 0..4_000 {
            match self.step(from, to, group).await {
                Some(0) => {
                    empty += 1;
                    if empty > patience {
                        return true;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
                Some(_) => empty = 0,
                None => sleep(Duration::from_millis(100)).await,
            }
        }
        false
    }

    /// One step of it: how many claims it took.
    async fn step(&mut self, from: &str, to: &str, group: &str) -> Option<usize> {
        let claims = self.pop(from, group, 3, 2).await?;
        let count = claims.len();
        if count > 0 {
            self.transact(to, group, &claims).await;
        }
        Some(count)
    }

    async fn transact(&mut self, to: &str, group: &str, claims: &[Held]) {
        let outputs: Vec<(String, String, Vec<u8>)> = claims
            .iter()
            .flat_map(|held| &held.messages)
            .map(|(_, id)| ("made".to_owned(), output_of(id), id.clone().into_bytes()))
            .collect();
        let lane = (to.to_owned(), "made".to_owned());
        for (_, id, payload) in &outputs {
            self.judge().push_begins(&lane, id, payload);
        }
        let mut acks = Vec::new();
        for held in claims {
            self.judge().settles(group, held.partition);
            let items = ack_items(held, held.messages.len()).into_iter();
            acks.extend(items.map(|item| TransactionAck { group: group.to_owned(), item }));
        }
        let made = |node: &LiveNode, reply| {
            let Prepared { parts, .. } = prepared(node, to, &outputs)?;
            Ok(Input::Transaction(Box::new(TransactionCommand {
                tenant: Tenant::DEFAULT,
                acks,
                parts,
                positions: Vec::new(),
                letter: None,
                reply,
            })))
        };
        match self.call("a transaction", made).await {
            Outcome::Done(TransactionOutcome::Committed { parts, .. }) => {
                for ((_, id, _), verdict) in outputs.iter().zip(parts.iter().flatten()) {
                    self.note_push(&lane, id, Some(verdict));
                }
                for held in claims {
                    self.acknowledged(group, held, held.messages.len());
                }
                self.judge().count("transactions");
            }
            // A lease that ran out while nobody led.
            Outcome::Done(_) => self.judge().count("transactions refused"),
            Outcome::Unknown => {}
        }
    }

    /// What a pop brought; `None` when it was not answered.
    async fn pop(
        &mut self,
        queue: &str,
        group: &str,
        batch: u64,
        partitions: u32,
    ) -> Option<Vec<Held>> {
        self.made += 1;
        let token = (self.number << 32) + self.made;
        let began_us = self.world.watchers.trace.now_us();
        let request = PopRequest {
            tenant: Tenant::DEFAULT,
            target: PopTarget::Queue(queue.to_owned()),
            group: group.to_owned(),
            batch: u32::try_from(batch).ok(),
            partitions: Some(partitions),
            autopilot: false,
            wait: false,
            timeout: Duration::ZERO,
            lease_seconds: Some(LEASE_SECONDS),
            commit_on_delivery: false,
            subscribe: Subscribe::All,
            conflation: None,
            frames: false,
        };
        let mut by = (0, 0);
        let made = |node: &LiveNode, reply| {
            by = (node.node, node.cluster.view().term);
            Ok(Input::Pop(PopCommand { token, request, reply }))
        };
        let Outcome::Done(granted) = self.call("a pop", made).await else { return None };
        self.judge().count("pops");
        Some(self.take(group, granted, began_us, by))
    }

    fn take(&self, group: &str, granted: PopGranted, began_us: u64, by: (u64, u64)) -> Vec<Held> {
        let mut claims = Vec::new();
        for claim in granted.claims {
            let partition = claim.partition;
            let end = claim.first.0 + claim.count as u64;
            let found = match messages_of(&claim.records) {
                Ok(found) => found,
                Err(error) => {
                    self.judge().violated(format!("a pop's records do not decode: {error}"));
                    continue;
                }
            };
            let mut messages = Vec::new();
            for (offset, found) in found {
                if offset < claim.first.0 || offset >= end {
                    continue;
                }
                self.judge().delivered(&Delivery {
                    group: group.to_owned(),
                    partition,
                    offset,
                    transaction_id: found.transaction_id.clone(),
                    payload: found.payload,
                    began_us,
                });
                messages.push((offset, found.transaction_id));
            }
            if messages.len() != claim.count {
                let due = claim.count;
                self.judge().violated(format!("a pop holds {} messages of {due}", messages.len()));
            }
            // The lease began when it was granted, not before the pop.
            let until_us = began_us + u64::from(LEASE_SECONDS.unsigned_abs()) * 1_000_000;
            self.judge().claimed(group, partition, by, until_us);
            claims.push(Held { partition, lease: granted.lease, messages });
        }
        claims
    }

    /// Acknowledges the first messages of a claim; whether all of that was answered well.
    async fn acknowledge(&self, group: &str, held: &Held, count: usize) -> bool {
        self.judge().settles(group, held.partition);
        let items = ack_items(held, count);
        let made = |_: &LiveNode, reply| {
            let (tenant, group) = (Tenant::DEFAULT, group.to_owned());
            Ok(Input::Ack(AckCommand { tenant, group, items, reply }))
        };
        let Outcome::Done(answers) = self.call("an ack", made).await else { return false };
        let is_done = answers.len() == count && answers.iter().all(Result::is_ok);
        if is_done {
            self.judge().count("acks");
            self.acknowledged(group, held, count);
        }
        is_done
    }

    fn acknowledged(&self, group: &str, held: &Held, count: usize) {
        if let Some((last, _)) = held.messages.iter().take(count).next_back() {
            self.judge().acknowledged(group, held.partition, *last);
        }
    }
}

fn prepared(
    node: &LiveNode,
    queue: &str,
    items: &[(String, String, Vec<u8>)],
) -> Result<Prepared, String> {
    let refs: Vec<PushItem<'_>> = items
        .iter()
        .map(|(lane, id, payload)| PushItem {
            queue,
            partition: lane,
            transaction_id: Some(id),
            payload,
            producer_sub: None,
            trace_id: None,
        })
        .collect();
    prepare(Tenant::DEFAULT, PushBatch::Items(&refs), &node.ids, 1, Sealing::PLAIN)
        .map_err(|refused| refused.to_string())
}

fn ack_items(held: &Held, count: usize) -> Vec<AckItem> {
    let item = |(_, transaction_id): &(u64, String)| AckItem {
        transaction_id: transaction_id.clone(),
        partition_id: Some(held.partition),
        lease: held.lease.map(|lease| String::from_utf8_lossy(&lease.text()).into_owned()),
        status: AckStatus::Completed,
        error: None,
    };
    held.messages.iter().take(count).map(item).collect()
}
