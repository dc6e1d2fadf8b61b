//! Producers that offer more than fits: an open loop with refusals.
//!
//! Each connection has its own timetable and its own lane, and one request in flight; one that is late sends at once.
//! A refused request is sent again, in the place of a new one, until it is taken. Every second producer waits as long as
//! the refusal says, the others send again when the timetable says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tokio::task::JoinSet;

use crate::http::Client;
use crate::load::micros;
use crate::wire::{self, Form, Item, Lane, Pad, Pusher};

/// What producers offer.
#[derive(Clone)]
pub(crate) struct Flood {
    pub(crate) queue: String,
    /// One lane each.
    pub(crate) connections: u32,
    /// Messages of a request.
    pub(crate) batch: u32,
    /// Requests a second over all connections.
    pub(crate) rate: f64,
    pub(crate) time: Duration,
    pub(crate) pad: Arc<Pad>,
}

/// What became of it.
#[derive(Default)]
pub(crate) struct Flooded {
    /// Requests that were answered, refusals too.
    pub(crate) requests: u64,
    /// Requests whose confirmation came within the time.
    pub(crate) good: u64,
    /// Answers 429.
    pub(crate) refused: u64,
    /// Answers 503: stored or not.
    pub(crate) unknown: u64,
    /// The longest wait that a refusal asked for.
    pub(crate) retry_after_max_s: u64,
    /// Microseconds of the requests that were taken; without those before that were refused.
    pub(crate) latency: Vec<u32>,
    /// Per lane the number after its last confirmed message.
    pub(crate) confirmed: Vec<u64>,
}

impl Flood {
    /// Runs all producers to their end.
    pub(crate) async fn run(&self, port: u16) -> anyhow::Result<Flooded> {
        let count = self.connections as usize;
        let clients = Client::connect_many(port, count, ("/health", 200)).await?;
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for (lane, client) in (0..).zip(clients) {
            let producer = Producer {
                flood: self.clone(),
                lane,
                client,
                started,
                end: started + self.time,
                done: Flooded::default(),
            };
            tasks.spawn(producer.run());
        }
        let confirmed = vec![0; count];
        let mut all = Flooded { confirmed, ..Flooded::default() };
        while let Some(done) = tasks.join_next().await {
            let (lane, done) = done??;
            all.requests += done.requests;
            all.good += done.good;
            all.refused += done.refused;
            all.unknown += done.unknown;
            all.retry_after_max_s = all.retry_after_max_s.max(done.retry_after_max_s);
            all.latency.extend(done.latency);
            all.confirmed[lane as usize] = done.confirmed.iter().sum();
        }
        Ok(all)
    }
}

struct Producer {
    flood: Flood,
    lane: u32,
    client: Client,
    started: Instant,
    end: Instant,
    done: Flooded,
}

/// What an answer says.
enum Verdict {
    Taken,
    /// Send it again, not before this time has passed.
    Refused(Duration),
}

impl Producer {
    async fn run(mut self) -> anyhow::Result<(u32, Flooded)> {
        let Flood { queue, pad, batch, rate, connections, .. } = self.flood.clone();
        let prefix = format!("{:x}-{}", wire::now_us(), self.lane);
        let mut pusher = Pusher::new((&queue, Lane::Partition), &pad, prefix, Form::Json)?;
        let place = f64::from(self.lane) / f64::from(connections);
        let each = f64::from(connections) / rate;
        let mut slots = (0_u32..).map(|slot| each * (f64::from(slot) + place));
        let (mut body, mut next, mut not_before) = (Vec::new(), 0, self.started);
        loop {
            let slot = Duration::from_secs_f64(slots.next().unwrap_or(f64::from(u32::MAX)));
            let due = (self.started + slot).max(not_before);
            if due >= self.end {
                break;
            }
            tokio::time::sleep_until(due.into()).await;
            // A connection that is late may be late for the end too.
            if Instant::now() >= self.end {
                break;
            }
            if body.is_empty() {
                let seqs = next..next + u64::from(batch);
                let items: Vec<Item> = seqs.map(|seq| Item { lane: self.lane, seq }).collect();
                pusher.body(&mut body, &items)?;
            }
            let asked = Instant::now();
            match self.push(&body).await? {
                Verdict::Taken => {
                    self.done.latency.push(micros(asked.elapsed()));
                    self.done.good += u64::from(Instant::now() < self.end);
                    next += u64::from(batch);
                    body.clear();
                }
                Verdict::Refused(wait) if self.lane.is_multiple_of(2) => {
                    not_before = Instant::now() + wait;
                }
                Verdict::Refused(_) => {}
            }
        }
        self.done.confirmed = vec![next];
        Ok((self.lane, self.done))
    }

    async fn push(&mut self, body: &[u8]) -> anyhow::Result<Verdict> {
        let answer = self.client.post("/api/v1/push", body).await?;
        let done = &mut self.done;
        done.requests += 1;
        match answer.status {
            201 => {
                // A request that was stored although its answer was 503 is a duplicate of itself.
                let stored = wire::count(answer.body, b"\"status\":\"queued\"")
                    + wire::count(answer.body, b"\"status\":\"duplicate\"");
                ensure!(stored == self.flood.batch as usize, "push: {}", answer.excerpt());
                return Ok(Verdict::Taken);
            }
            429 => done.refused += 1,
            503 => done.unknown += 1,
            status => bail!("push: {status} {}", answer.excerpt()),
        }
        let seconds = answer.retry_after_s.unwrap_or(0);
        ensure!((1..=5).contains(&seconds), "{} after {seconds} s", answer.status);
        done.retry_after_max_s = done.retry_after_max_s.max(seconds);
        Ok(Verdict::Refused(Duration::from_secs(seconds)))
    }
}
