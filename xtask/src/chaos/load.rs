//! The load: pushers with ids of their own, one group of consumers, and what they saw.
//!
//! An answer other than success leaves unknown whether a request was carried out: it is sent again with the same
//! ids, or given up and counted as unknown. Times are taken before a request is sent and after its answer is read.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use serde_json::{Value, json};

use super::oracle::{Claim, Delivered, History, Push, Settled, Stored};
use crate::http::{Answer, Client};
use crate::rng::Rng;
use crate::shell::pause;

const QUEUE: &str = "chaos";
const PARTITIONS: u64 = 20;
const PUSHERS: u32 = 4;
const CONSUMERS: u32 = 4;
/// Lease of every pop: short, since a kill leaves leases that nobody will settle.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// How long a request may take before it counts as unknown.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// A drained group has been empty for this long.
const EMPTY_FOR: Duration = Duration::from_secs(5);

/// What the threads and the nemesis know of each other.
pub(super) struct Shared {
    /// Where the nodes answer.
    addresses: Vec<SocketAddr>,
    started: Instant,
    /// Nobody disturbs any more: pushers end, consumers drain.
    pub(super) is_calm: AtomicBool,
    /// Everybody ends.
    pub(super) is_over: AtomicBool,
    pushers_left: AtomicU64,
    /// Consumers that were answered since nobody disturbs, a bit each.
    heard: AtomicU64,
    /// When a message was last delivered, in microseconds since the start.
    delivered_at: AtomicU64,
}

impl Shared {
    /// For nodes at these addresses.
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self {
            addresses,
            started: Instant::now(),
            is_calm: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            pushers_left: AtomicU64::new(u64::from(PUSHERS)),
            heard: AtomicU64::new(0),
            delivered_at: AtomicU64::new(0),
        }
    }

    /// Whether all pushes are answered, every consumer is heard, and the group has had nothing for longer than a lease.
    pub(super) fn is_settled(&self) -> bool {
        let all = (1 << CONSUMERS) - 1;
        let since = self.now().saturating_sub(self.delivered_at.load(Ordering::SeqCst));
        self.pushers_left.load(Ordering::SeqCst) == 0
            && self.heard.load(Ordering::SeqCst) == all
            && Duration::from_micros(since) > EMPTY_FOR
    }

    /// For a message when it does not settle.
    pub(super) fn state(&self) -> String {
        let (left, heard, at) = (&self.pushers_left, &self.heard, &self.delivered_at);
        let now = self.now();
        format!(
            "{left:?} pushers left, consumers heard {heard:?}, last delivery at {at:?} of {now} us"
        )
    }

    /// Microseconds since the start.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn caller(&self) -> Caller {
        let clients = self.addresses.iter().map(|address| Client::new(*address, REQUEST_LIMIT));
        Caller { clients: clients.collect(), at: 0 }
    }

    /// A consumer was answered.
    fn hear(&self, number: u32, is_calm: bool) {
        if is_calm {
            self.heard.fetch_or(1 << (number - PUSHERS), Ordering::SeqCst);
        }
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

/// A client of one node, that goes to another one when it likes.
struct Caller {
    clients: Vec<Client>,
    at: usize,
}

impl Caller {
    /// Goes to any node.
    fn roam(&mut self, rng: &mut Rng) {
        let count = self.clients.len() as u64;
        self.at = usize::try_from(rng.next() % count).unwrap_or_default();
    }

    fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.client()?.get(path)
    }

    fn post(&mut self, path: &str, body: &Value) -> io::Result<Answer> {
        self.client()?.post(path, body)
    }

    fn client(&mut self) -> io::Result<&mut Client> {
        self.clients.get_mut(self.at).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}

/// The running threads.
pub(super) struct Load(Vec<JoinHandle<History>>);

impl Load {
    /// Starts them.
    pub(super) fn start(shared: &Arc<Shared>, seed: u64) -> Self {
        let spawn = |number: u32, run: fn(&Shared, u32, Rng) -> History| {
            let (shared, rng) = (Arc::clone(shared), Rng::new(seed ^ u64::from(number + 1) << 32));
            thread::spawn(move || run(&shared, number, rng))
        };
        let pushers = (0..PUSHERS).map(|number| spawn(number, push_loop));
        let consumers = (PUSHERS..PUSHERS + CONSUMERS).map(|number| spawn(number, consume_loop));
        Self(pushers.chain(consumers).collect())
    }

    /// Waits for them and puts what they saw together.
    pub(super) fn join(self) -> anyhow::Result<History> {
        let mut all = History::default();
        for thread in self.0 {
            let Ok(history) = thread.join() else { bail!("a thread of the load panicked") };
            all.extend(history);
        }
        Ok(all)
    }
}

/// Makes the queue.
pub(super) fn configure(shared: &Shared) -> anyhow::Result<()> {
    let body =
        json!({"queue": QUEUE, "options": {"leaseTime": LEASE.as_secs(), "retryLimit": 1_000_000}});
    let answer = shared.caller().post("/api/v1/configure", &body)?;
    ensure!(answer.status == 200, "configure: {} {}", answer.status, answer.json());
    Ok(())
}

/// The text that belongs to an id: some are long and shrink, so that compression is met too.
pub(super) fn payload(id: u64) -> Value {
    let mut rng = Rng::new(id);
    let words = if rng.chance(10) { rng.within(20, 200) } else { rng.within(0, 6) };
    let words: Vec<_> = (0..words).map(|_| format!("{:x}", rng.next() % 65_536)).collect();
    json!({"id": id, "text": words.join(" ")})
}

/// An id as a transactionId.
fn transaction(id: u64) -> String {
    format!("{}-{}", id >> 32, id & u64::from(u32::MAX))
}

/// A pusher's loop: new ids in a row, now and then an old one again.
fn push_loop(shared: &Shared, number: u32, mut rng: Rng) -> History {
    let (mut client, mut history) = (shared.caller(), History::default());
    client.roam(&mut rng);
    let mut next = u64::from(number) << 32;
    while !shared.is_calm() {
        let mut batch = Vec::new();
        for _ in 0..rng.within(1, 8) {
            batch.push((next, rng.within(0, PARTITIONS - 1)));
            next += 1;
        }
        if let Some(old) = old_push(&history, &mut rng) {
            batch.push(old);
        }
        push(shared, &mut client, &mut history, &batch, &mut rng);
        pause(Duration::from_micros(rng.within(0, 12_000)));
    }
    shared.pushers_left.fetch_sub(1, Ordering::SeqCst);
    history
}

/// Sometimes the id of a push of before.
fn old_push(history: &History, rng: &mut Rng) -> Option<(u64, u64)> {
    if history.pushes.is_empty() || !rng.chance(10) {
        return None;
    }
    let at = usize::try_from(rng.next() % history.pushes.len() as u64).ok()?;
    history.pushes.get(at).map(|push| (push.id, push.partition))
}

/// Sends a batch until it is answered, or only once when it may be given up.
fn push(
    shared: &Shared,
    client: &mut Caller,
    history: &mut History,
    batch: &[(u64, u64)],
    rng: &mut Rng,
) {
    let may_give_up = rng.chance(3);
    let item = |(id, partition): &(u64, u64)| {
        let (id, partition) = (*id, format!("p{partition}"));
        json!({"queue": QUEUE, "partition": partition, "transactionId": transaction(id), "payload": payload(id)})
    };
    let body = json!({"items": batch.iter().map(item).collect::<Vec<_>>()});
    let started = shared.now();
    let answers = loop {
        match client.post("/api/v1/push", &body) {
            Ok(answer) if answer.status == 201 => break answer.json(),
            Ok(answer) if answer.status < 500 && answer.status != 429 => {
                history.refused.push(format!("push: {} {}", answer.status, answer.json()));
                break Value::Null;
            }
            _ => {}
        }
        if may_give_up || shared.is_over() {
            break Value::Null;
        }
        client.roam(rng);
        pause(Duration::from_millis(20));
    };
    let ended = shared.now();
    for (at, (id, partition)) in batch.iter().enumerate() {
        let answer = answers.get(at);
        let field = |name: &str| answer.and_then(|answer| answer.get(name));
        let stored = match (
            field("status").and_then(Value::as_str),
            field("offset").and_then(Value::as_u64),
        ) {
            (Some("queued"), Some(offset)) => Some(Stored { offset, is_duplicate: false, ended }),
            (Some("duplicate"), Some(offset)) => Some(Stored { offset, is_duplicate: true, ended }),
            _ => {
                if let Some(answer) = answer {
                    history.refused.push(format!("push of {id}: {answer}"));
                }
                None
            }
        };
        history.pushes.push(Push { id: *id, partition: *partition, started, stored });
    }
}

/// A consumer's loop: pop, then settle all of it, a part, nothing, or ask for it again.
fn consume_loop(shared: &Shared, number: u32, mut rng: Rng) -> History {
    let (mut client, mut history) = (shared.caller(), History::default());
    client.roam(&mut rng);
    while !shared.is_over() {
        let is_calm = shared.is_calm();
        let (batch, partitions) = (rng.within(1, 50), rng.within(1, 4));
        let path = format!(
            "/api/v1/pop/queue/{QUEUE}?consumerGroup=load&subscriptionMode=all&wait=true&timeout=300\
             &leaseSeconds={}&batch={batch}&partitions={partitions}",
            LEASE.as_secs()
        );
        let started = shared.now();
        let Ok(answer) = client.get(&path) else {
            client.roam(&mut rng);
            pause(Duration::from_millis(20));
            continue;
        };
        let ended = shared.now();
        if answer.status != 200 {
            if answer.status == 204 {
                shared.hear(number, is_calm);
            } else {
                client.roam(&mut rng);
                pause(Duration::from_millis(20));
            }
            continue;
        }
        shared.hear(number, is_calm);
        let body = answer.json();
        let claims = claims_of(&body, started, ended);
        if !claims.is_empty() {
            shared.delivered_at.fetch_max(ended, Ordering::SeqCst);
        }
        // While the load drains, everything is settled.
        let plan = if is_calm { 100 } else { rng.within(0, 99) };
        settle(shared, &mut client, &mut history, claims, (plan, &mut rng));
    }
    history
}

/// A claim and what an ack of it names.
struct Held {
    claim: Claim,
    partition_id: String,
    lease: String,
}

/// Takes an answer apart by partition.
fn claims_of(body: &Value, started: u64, ended: u64) -> Vec<Held> {
    let mut claims: BTreeMap<String, Held> = BTreeMap::new();
    for message in body.get("messages").and_then(Value::as_array).into_iter().flatten() {
        let text =
            |name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let partition = text("partition");
        let number = partition.strip_prefix('p').and_then(|number| number.parse().ok());
        let held = claims.entry(partition).or_insert_with(|| Held {
            claim: Claim {
                partition: number.unwrap_or(u64::MAX),
                started,
                ended,
                messages: Vec::new(),
                released: None,
            },
            partition_id: text("partitionId"),
            lease: text("leaseId"),
        });
        held.claim.messages.push(delivered(message, "data"));
    }
    claims.into_values().collect()
}

/// Reads a message: its offset, its id, and whether it is what was pushed.
fn delivered(message: &Value, data: &str) -> Delivered {
    let offset = message.get("offset").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let data = message.get(data).unwrap_or(&Value::Null);
    let id = data.get("id").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let named = message.get("transactionId").and_then(Value::as_str).unwrap_or_default();
    Delivered { offset, id, is_whole: *data == payload(id) && named == transaction(id) }
}

fn settle(
    shared: &Shared,
    client: &mut Caller,
    history: &mut History,
    held: Vec<Held>,
    (plan, rng): (u64, &mut Rng),
) {
    let mut acks = Vec::new();
    let mut names = Vec::new();
    for Held { claim, partition_id, lease } in &held {
        let count = match plan {
            0..5 => 0,
            5..12 => claim.messages.len().div_ceil(2),
            _ => claim.messages.len(),
        };
        for (at, message) in claim.messages.iter().take(count).enumerate() {
            // Asked for again: the first of the claim, and with it all after it.
            let status = if (12..16).contains(&plan) { "retry" } else { "completed" };
            acks.push(json!({
                "transactionId": transaction(message.id), "partitionId": partition_id, "leaseId": lease,
                "status": status,
            }));
            names.push((claim.partition, message.offset, status == "completed"));
            if status == "retry" && at == 0 {
                break;
            }
        }
    }
    let started = shared.now();
    history.claims.extend(held.into_iter().map(|held| {
        // From here on the lease may be gone.
        let released = (!acks.is_empty()).then_some(started);
        Claim { released, ..held.claim }
    }));
    if acks.is_empty() {
        return;
    }
    let body = json!({"acknowledgments": acks, "consumerGroup": "load"});
    let mut answer = Value::Null;
    for _ in 0..5 {
        if let Ok(found) = client.post("/api/v1/ack/batch", &body)
            && found.status == 200
        {
            answer = found.json();
            break;
        }
        client.roam(rng);
        pause(Duration::from_millis(50));
    }
    let ended = shared.now();
    for (at, (partition, offset, is_completed)) in names.into_iter().enumerate() {
        if !is_completed {
            continue;
        }
        let verdict =
            answer.get(at).and_then(|answer| answer.get("success")).and_then(Value::as_bool);
        let ended = (verdict == Some(true)).then_some(ended);
        history.settled.push(Settled { partition, offset, started, ended });
    }
}

/// Reads the whole log through a group of its own, in the order of the answers.
pub(super) fn read_all(shared: &Shared, group: &str) -> anyhow::Result<Vec<(u64, Delivered)>> {
    let (mut client, mut log, mut empty) = (shared.caller(), Vec::new(), 0);
    let path = format!(
        "/api/v1/pop/queue/{QUEUE}?consumerGroup={group}&subscriptionMode=all&autoAck=true&wait=false\
         &batch=1000&partitions={PARTITIONS}"
    );
    // A pop may be empty once because of a claim that is just ending.
    while empty < 3 {
        let answer = client.get(&path)?;
        ensure!(matches!(answer.status, 200 | 204), "audit: {} {}", answer.status, answer.json());
        let claims = claims_of(&answer.json(), 0, 0);
        empty = if claims.is_empty() { empty + 1 } else { 0 };
        for held in claims {
            let partition = held.claim.partition;
            log.extend(held.claim.messages.into_iter().map(|message| (partition, message)));
        }
    }
    Ok(log)
}
