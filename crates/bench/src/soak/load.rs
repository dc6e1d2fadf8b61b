//! The load: producers with a timetable, consumers that take what comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::http::Client;
use crate::load::micros;
use crate::soak::ledger::SharedLedger;
use crate::soak::rng::Rng;
use crate::wire::{self, Form, Item, Lane, Pad, Popped, Pusher, ack_body, now_us};

/// Messages of one request, at most.
const BATCH_MAX: u64 = 7;
/// A consumer pops no more often than this.
const PACE: Duration = Duration::from_millis(25);
/// How long what was pushed may take to come, once nobody pushes any more.
const DRAIN_LIMIT: Duration = Duration::from_mins(2);

/// A queue and what is known of it.
#[derive(Clone)]
pub(super) struct Queue {
    pub(super) name: &'static str,
    /// Requests of a hundred that go to it.
    pub(super) share: u64,
    pub(super) lanes: u32,
    pub(super) ledger: SharedLedger,
}

/// What all producers share.
#[derive(Clone)]
pub(super) struct Producers {
    pub(super) port: u16,
    pub(super) queues: Vec<Queue>,
    pub(super) connections: u32,
    /// Requests a second over all connections.
    pub(super) rate: f64,
    pub(super) seed: u64,
    pub(super) started: Instant,
    pub(super) time: Duration,
    pub(super) pad: Arc<Pad>,
    /// Messages confirmed so far.
    pub(super) pushed: Arc<AtomicU64>,
}

/// When a request was due, and how long after that it was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) from: Instant,
    pub(super) micros: u32,
}

impl Producers {
    /// Runs one of the connections to its end.
    pub(super) async fn run(self, number: u32) -> anyhow::Result<Vec<Sample>> {
        let mut client = Client::connect(self.port).await?;
        let mut rng = Rng::new(self.seed, u64::from(number));
        let prefix = format!("{:x}-{number}", now_us());
        let pusher = |queue: &Queue| {
            let place = (queue.name, Lane::Partition);
            Pusher::new(place, &self.pad, format!("{prefix}-{}", queue.name), Form::Json)
        };
        let mut pushers = self.queues.iter().map(pusher).collect::<anyhow::Result<Vec<_>>>()?;
        let (mut body, mut items, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        let connections = f64::from(self.connections);
        let first = f64::from(number) / self.rate;
        for turn in 0_u32.. {
            let due = Duration::from_secs_f64(first + connections / self.rate * f64::from(turn));
            if due >= self.time {
                break;
            }
            let due = self.started + due;
            tokio::time::sleep_until(due.into()).await;
            let at = self.choose(&mut rng);
            let queue = &self.queues[at];
            self.fill(queue, number, &mut rng, &mut items);
            pushers[at].body(&mut body, &items)?;
            // A request that had to wait for its connection counts from its time; the timer's own millisecond does not
            // count.
            let is_late = due.elapsed() > Duration::from_millis(2);
            let from = if is_late { due } else { Instant::now() };
            let answer = client.post("/api/v1/push", &body).await?;
            let queued = wire::count(answer.body, b"\"status\":\"queued\"");
            ensure!(
                answer.status == 201 && queued == items.len(),
                "push: {} {}",
                answer.status,
                answer.excerpt()
            );
            samples.push(Sample { from, micros: micros(from.elapsed()) });
            let mut ledger = queue.ledger.lock();
            for item in &items {
                ledger.confirm(item.lane, item.seq);
            }
            self.pushed.fetch_add(items.len() as u64, Ordering::Relaxed);
        }
        Ok(samples)
    }

    /// The place of a queue, by their shares.
    fn choose(&self, rng: &mut Rng) -> usize {
        let all = self.queues.iter().map(|queue| queue.share).sum();
        let mut left = rng.below(all);
        for (at, queue) in self.queues.iter().enumerate() {
            if left < queue.share {
                return at;
            }
            left -= queue.share;
        }
        unreachable!("it is below the sum")
    }

    /// Some messages of one or two lanes; each lane belongs to one connection, so its order is known.
    fn fill(&self, queue: &Queue, number: u32, rng: &mut Rng, items: &mut Vec<Item>) {
        items.clear();
        let own = u64::from((queue.lanes - 1 - number) / self.connections + 1);
        let mut ledger = queue.ledger.lock();
        let mut lane = 0;
        for turn in 0..=rng.below(BATCH_MAX) {
            if turn % 4 == 0 {
                lane = number + self.connections * rng.below(own) as u32;
            }
            items.push(Item { lane, seq: ledger.make(lane, now_us()) });
        }
    }
}

/// A consumer of one queue.
pub(super) struct Consumer {
    pub(super) port: u16,
    pub(super) queue: Queue,
    /// Queue mode without; a group begins with the oldest message.
    pub(super) group: Option<&'static str>,
    /// Nobody pushes any more: what is there is taken, then the consumer ends.
    pub(super) is_over: Arc<AtomicBool>,
}

impl Consumer {
    /// Consumes to the end.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut client = Client::connect(self.port).await?;
        let mut body = Vec::new();
        let mut over: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let count = self.pop(&mut client, &mut body).await?;
            if count > 0 {
                settle(&mut client, &body, count).await?;
            }
            if self.is_over.load(Ordering::SeqCst) {
                let since = *over.get_or_insert(began);
                let is_settled = self.queue.ledger.lock().is_settled(now_us());
                if count == 0 && (is_settled || since.elapsed() > DRAIN_LIMIT) {
                    return Ok(());
                }
            } else {
                tokio::time::sleep_until((began + PACE).into()).await;
            }
        }
    }

    async fn pop(&self, client: &mut Client, body: &mut Vec<u8>) -> anyhow::Result<usize> {
        let group = self
            .group
            .map_or(String::new(), |group| format!("&consumerGroup={group}&subscriptionMode=all"));
        let path = format!(
            "/api/v1/pop/queue/{}?wait=true&timeout=200&batch=100&partitions=20{group}",
            self.queue.name
        );
        take(client, &path, self.group, body, |lane, seq| {
            self.queue.ledger.lock().receive(lane, seq, now_us());
        })
        .await
    }
}

/// Pops once; leaves the body that acknowledges what came, and tells `see` each lane and number. How many came.
pub(super) async fn take(
    client: &mut Client,
    path: &str,
    group: Option<&str>,
    body: &mut Vec<u8>,
    mut see: impl FnMut(u32, u64),
) -> anyhow::Result<usize> {
    let answer = client.get(path).await?;
    let popped = match answer.status {
        200 => {
            serde_json::from_slice::<Popped<'_>>(answer.body).with_context(|| answer.excerpt())?
        }
        204 => Popped::default(),
        status => bail!("pop: {status} {}", answer.excerpt()),
    };
    popped.messages.iter().for_each(|message| see(message.data.lane, message.data.seq));
    ack_body(body, &popped.messages, group);
    Ok(popped.messages.len())
}

/// Sends the acknowledgment of so many messages.
pub(super) async fn settle(client: &mut Client, body: &[u8], count: usize) -> anyhow::Result<()> {
    let answer = client.post("/api/v1/ack/batch", body).await?;
    ensure!(
        answer.status == 200 && wire::count(answer.body, b"\"success\":true") == count,
        "ack: {} {}",
        answer.status,
        answer.excerpt()
    );
    Ok(())
}
