//! Producers: connections that push, each with one request in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::task::JoinSet;

use crate::http::Client;
use crate::node::Node;
use crate::wire::{self, Form, Item, Lane, Pad, Pusher};

/// What producers do.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) queue: String,
    pub(crate) lane: Lane,
    pub(crate) connections: u32,
    /// Over all connections; each lane belongs to one of them, so its order is known.
    pub(crate) lanes: u32,
    pub(crate) shape: Shape,
    pub(crate) form: Form,
    pub(crate) end: End,
    /// The number of each lane's first message.
    pub(crate) first_seq: u64,
    /// The server is killed meanwhile: a failed push ends its producer.
    pub(crate) may_fail: bool,
    pub(crate) pad: Arc<Pad>,
}

/// What one request holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// This many messages of one lane, the producer's lanes in turn.
    OneLane(u32),
    /// One message to each of this many lanes.
    Spread(u32),
}

/// When a producer ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// After this time.
    After(Duration),
    /// When each of its lanes has this many messages; only with `Spread`.
    PerLane(u64),
    /// Open loop: this many requests a second over all connections for this time; only with `OneLane`.
    Paced(f64, Duration),
}

/// What producers did.
#[derive(Default)]
pub(crate) struct Pushed {
    pub(crate) messages: u64,
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// Microseconds of each request.
    pub(crate) latency: Vec<u32>,
    /// Per lane the number after its last confirmed message.
    pub(crate) confirmed: Vec<u64>,
}

impl Load {
    /// Runs all producers to their end.
    pub(crate) async fn run(&self, node: &Node) -> anyhow::Result<Pushed> {
        let mut producers = Vec::new();
        for number in 0..self.connections {
            producers.push(Producer::new(self.clone(), number, node).await?);
        }
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for producer in producers {
            tasks.spawn(producer.run(started));
        }
        let mut all = Pushed { confirmed: vec![0; self.lanes as usize], ..Pushed::default() };
        while let Some(done) = tasks.join_next().await {
            let producer = done??;
            all.messages += producer.messages;
            all.requests += producer.latency.len() as u64;
            all.latency.extend(producer.latency);
            let slots = all.confirmed.iter_mut().skip(producer.first_lane as usize);
            slots.zip(producer.next).for_each(|(slot, next)| *slot = next);
        }
        all.seconds = started.elapsed().as_secs_f64();
        Ok(all)
    }
}

struct Producer {
    load: Load,
    number: u32,
    client: Client,
    strict: bool,
    first_lane: u32,
    next: Vec<u64>,
    at: usize,
    messages: u64,
    latency: Vec<u32>,
}

impl Producer {
    async fn new(load: Load, number: u32, node: &Node) -> anyhow::Result<Self> {
        let place = |number: u32| {
            let lanes = u64::from(load.lanes) * u64::from(number) / u64::from(load.connections);
            u32::try_from(lanes).unwrap_or(u32::MAX)
        };
        let (first_lane, end_lane) = (place(number), place(number + 1));
        let next = vec![load.first_seq; (end_lane - first_lane) as usize];
        let client = Client::connect(node.port).await?;
        let strict = node.is_broker;
        let (at, messages, latency) = (0, 0, Vec::new());
        Ok(Self { load, number, client, strict, first_lane, next, at, messages, latency })
    }

    async fn run(mut self, started: Instant) -> anyhow::Result<Self> {
        let load = self.load.clone();
        let prefix = format!("{:x}-{}", wire::now_us(), self.number);
        let (queue, pad) = (load.queue.as_str(), &*load.pad);
        let mut pusher = Pusher::new((queue, load.lane), pad, prefix, load.form)?;
        let (mut body, mut items) = (Vec::new(), Vec::new());
        let mut free = started;
        while let Some(due) = self.due(started, self.latency.len() as u64) {
            if let Some(due) = due {
                tokio::time::sleep_until(due.into()).await;
            }
            self.choose(&mut items);
            pusher.body(&mut body, &items)?;
            // A request that had to wait for its connection counts from its scheduled time; the timer's own
            // millisecond does not count.
            let from = due.filter(|due| free > *due).unwrap_or_else(Instant::now);
            if let Err(reason) = self.push(&body, items.len()).await {
                if load.may_fail {
                    break;
                }
                return Err(reason);
            }
            free = Instant::now();
            self.latency.push(micros(free - from));
            self.messages += items.len() as u64;
            for item in &items {
                if let Some(next) = self.next.get_mut((item.lane - self.first_lane) as usize) {
                    *next = item.seq + 1;
                }
            }
        }
        Ok(self)
    }

    /// Whether another request follows, and when.
    #[expect(clippy::option_option, reason = "no request, a request at once, a request at a time")]
    fn due(&self, started: Instant, done: u64) -> Option<Option<Instant>> {
        match self.load.end {
            End::After(time) => (started.elapsed() < time).then_some(None),
            End::PerLane(count) => {
                let more = self.next.get(self.at).is_some_and(|next| *next < count);
                more.then_some(None)
            }
            End::Paced(rate, time) => {
                let connections = f64::from(self.load.connections);
                let each = connections / rate;
                let after = each * (f64::from(self.number) / connections + done as f64);
                let due = Duration::from_secs_f64(after);
                (due < time).then(|| Some(started + due))
            }
        }
    }

    fn choose(&mut self, items: &mut Vec<Item>) {
        items.clear();
        let mut add = |at: usize, ahead: u64| {
            let lane = self.first_lane + at as u32;
            let next = self.next.get(at).copied().unwrap_or(0);
            items.push(Item { lane, seq: next + ahead });
        };
        let lanes = self.next.len();
        match self.load.shape {
            Shape::OneLane(count) => {
                (0..count).for_each(|ahead| add(self.at, u64::from(ahead)));
                self.at = (self.at + 1) % lanes;
            }
            Shape::Spread(count) => {
                // The last request of a pass is smaller, so that no request holds a lane twice.
                let end = lanes.min(self.at + count as usize);
                (self.at..end).for_each(|at| add(at, 0));
                self.at = end % lanes;
            }
        }
    }

    async fn push(&mut self, body: &[u8], count: usize) -> anyhow::Result<()> {
        let content_type = self.load.form.content_type();
        let answer = self.client.post_as(content_type, "/api/v1/push", body).await?;
        let queued = wire::count(answer.body, b"\"status\":\"queued\"");
        if !matches!(answer.status, 200 | 201) || (self.strict && queued != count) {
            bail!("push: {} {}", answer.status, answer.excerpt());
        }
        Ok(())
    }
}

/// Pushes this many messages to each lane of a queue: 100 of one lane a request, the lanes in turn, over one connection.
pub(crate) async fn fill(
    node: &Node,
    queue: &str,
    pad: &Pad,
    counts: &[u64],
) -> anyhow::Result<()> {
    const BATCH: u64 = 100;
    let mut client = Client::connect(node.port).await?;
    let prefix = format!("{:x}-fill", wire::now_us());
    let mut pusher = Pusher::new((queue, Lane::Partition), pad, prefix, Form::Json)?;
    let (mut body, mut items) = (Vec::new(), Vec::new());
    let most = counts.iter().copied().max().unwrap_or(0);
    for first in (0..most).step_by(BATCH as usize) {
        for (lane, count) in (0..).zip(counts) {
            items.clear();
            let seqs = first..(first + BATCH).min(*count);
            items.extend(seqs.map(|seq| Item { lane, seq }));
            if items.is_empty() {
                continue;
            }
            pusher.body(&mut body, &items)?;
            let answer = client.post("/api/v1/push", &body).await?;
            let queued = wire::count(answer.body, b"\"status\":\"queued\"");
            if answer.status != 201 || queued != items.len() {
                bail!("push: {} {}", answer.status, answer.excerpt());
            }
        }
    }
    Ok(())
}

/// A time in whole microseconds.
pub(crate) fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
