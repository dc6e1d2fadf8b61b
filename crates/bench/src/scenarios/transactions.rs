//! Transactions over three queues: what came out of one goes into two others, all or nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use tokio::task::JoinSet;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::http::Client;
use crate::load::{fill, micros};
use crate::measure::{Line, Window};
use crate::node::Node;
use crate::scenarios::{Bed, drain_limit};
use crate::wire::{self, Form, Item, Lane, Pad, Popped, Pusher, acks, now_us};

const WORKERS: u32 = 8;
const BATCH: u32 = 10;
const LANES: usize = 64;
const INPUT: &str = "in";
const OUTPUTS: [&str; 2] = ["left", "right"];

/// Workers lease 10 messages, and one transaction acknowledges them and pushes 10 to each of two queues.
///
/// At the end both outputs are drained: each must hold every input message once, in its partition's order.
/// Shape: `syncs_per_txn` holds the claim of the pop before it too; `syncs_per_request` is over pops and transactions.
pub(super) async fn three_queues(bed: &Bed<'_>, messages: u64) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = bed.start(&scratch).await?;
    for queue in [INPUT, OUTPUTS[0], OUTPUTS[1]] {
        node.configure(queue).await?;
    }
    let counts = [messages / LANES as u64; LANES];
    let messages = counts.iter().sum();
    fill(&node, INPUT, &bed.pad, &counts).await?;
    let (window, watch) = (Window::open(&node).await?, node.watch().await?);
    let done = work(bed, &node, messages).await?;
    let mut line = Line::default();
    let transactions = done.transaction.len() as u64;
    line.add("workers", WORKERS);
    line.add("messages", messages);
    line.add("transactions", transactions);
    line.number("txn_s", (transactions as f64 / done.seconds).round());
    line.latency("txn", done.transaction);
    line.latency("pop", done.pop);
    window.close(&node, messages, 2 * transactions, &mut line).await?;
    // Each message goes on into two queues.
    node.report(watch, 2 * messages, &mut line).await?;
    line.number("syncs_per_txn", 2.0 * line.value("syncs_per_request"));
    for queue in OUTPUTS {
        let drain = Drain {
            queue: queue.to_owned(),
            connections: WORKERS,
            lanes: LANES as u32,
            ask: Ask::fixed(1000, 10),
            work: Work::None,
            limit: drain_limit(messages),
        };
        let drained = drain.run(node.port, Goal::of(messages)).await?;
        let mut output = Line::default();
        output.verdict(drained.check.verdict(&counts));
        line.adopt(&format!("{queue}_"), output);
    }
    node.stop()?;
    Ok(line)
}

/// What workers did.
struct Done {
    pop: Vec<u32>,
    transaction: Vec<u32>,
    /// Until the last commit.
    seconds: f64,
}

async fn work(bed: &Bed<'_>, node: &Node, messages: u64) -> anyhow::Result<Done> {
    let started = Instant::now();
    let until = started + drain_limit(messages);
    let moved = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let (client, pad) = (Client::connect(node.port).await?, bed.pad.clone());
        let prefix = format!("{:x}-{number}", now_us());
        let worker = Worker { client, moved: moved.clone(), messages, until };
        workers.spawn(worker.run(pad, prefix));
    }
    let (mut pop, mut transaction, mut seconds) = (Vec::new(), Vec::new(), 0.0_f64);
    while let Some(done) = workers.join_next().await {
        let own = done??;
        pop.extend(own.pop);
        transaction.extend(own.transaction);
        seconds = seconds.max((own.ended - started).as_secs_f64());
    }
    Ok(Done { pop, transaction, seconds })
}

struct Worker {
    client: Client,
    moved: Arc<AtomicU64>,
    messages: u64,
    until: Instant,
}

struct Own {
    pop: Vec<u32>,
    transaction: Vec<u32>,
    ended: Instant,
}

impl Worker {
    async fn run(mut self, pad: Arc<Pad>, prefix: String) -> anyhow::Result<Own> {
        let mut pusher = Pusher::new((INPUT, Lane::Partition), &pad, prefix, Form::Json)?;
        let (pop, transaction) = (Vec::new(), Vec::new());
        let mut own = Own { pop, transaction, ended: Instant::now() };
        let mut body = Vec::new();
        let path = format!("/api/v1/pop/queue/{INPUT}?batch={BATCH}&wait=true&timeout=200");
        while self.moved.load(Ordering::SeqCst) < self.messages && Instant::now() < self.until {
            let asked = Instant::now();
            let answer = self.client.get(&path).await?;
            let took = micros(asked.elapsed());
            let popped = match answer.status {
                200 => serde_json::from_slice::<Popped<'_>>(answer.body)
                    .with_context(|| answer.excerpt())?,
                204 => continue,
                status => bail!("pop: {status} {}", answer.excerpt()),
            };
            own.pop.push(took);
            let data = popped.messages.iter().map(|message| message.data);
            let items: Vec<Item> =
                data.map(|data| Item { lane: data.lane, seq: data.seq }).collect();
            bundle(&mut body, &popped, &items, &mut pusher);
            let asked = Instant::now();
            let answer = self.client.post("/api/v1/transaction", &body).await?;
            // One for the whole, one for each acknowledgment and each pushed message.
            let results = wire::count(answer.body, b"\"success\":true");
            if answer.status != 200 || results != 1 + 3 * items.len() {
                bail!("transaction: {} {}", answer.status, answer.excerpt());
            }
            own.transaction.push(micros(asked.elapsed()));
            self.moved.fetch_add(items.len() as u64, Ordering::SeqCst);
            own.ended = Instant::now();
        }
        Ok(own)
    }
}

/// The body of the transaction that moves these messages.
fn bundle(out: &mut Vec<u8>, popped: &Popped<'_>, items: &[Item], pusher: &mut Pusher<'_>) {
    out.clear();
    out.extend_from_slice(b"{\"operations\":[");
    acks(out, &popped.messages, "\"type\":\"ack\",");
    for queue in OUTPUTS {
        out.extend_from_slice(b",{\"type\":\"push\",\"items\":");
        pusher.items(out, queue, items);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}
