//! Producers that offer more than fits: an open loop with refusals.
//!
//! Each connection has its own timetable and its own lane, and one request in flight; one that is late goes on at once.
//! A refused request is sent again until it is taken. Every second producer waits as long as the refusal says, the
//! others ask again at once.

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
    /// New requests a second over all connections.
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
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            clients.push(Client::connect(port).await?);
        }
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
        let confirmed = vec![0; self.connections as usize];
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
    /// Ask again after this time.
    Refused(Duration),
}

impl Producer {
    async fn run(mut self) -> anyhow::Result<(u32, Flooded)> {
        let Flood { queue, pad, batch, rate, connections, .. } = self.flood.clone();
        let prefix = format!("{:x}-{}", wire::now_us(), self.lane);
        let mut pusher = Pusher::new((&queue, Lane::Partition), &pad, prefix, Form::Json)?;
        let each = f64::from(connections) / rate;
        let (mut body, mut items) = (Vec::new(), Vec::new());
        for number in 0_u32.. {
            let place = f64::from(self.lane) / f64::from(connections);
            let due = self.started + Duration::from_secs_f64(each * (f64::from(number) + place));
            if due >= self.end {
                break;
            }
            tokio::time::sleep_until(due.into()).await;
            let first = u64::from(number) * u64::from(batch);
            items.clear();
            let seqs = first..first + u64::from(batch);
            items.extend(seqs.map(|seq| Item { lane: self.lane, seq }));
            pusher.body(&mut body, &items)?;
            if !self.offer(&body).await? {
                break;
            }
            self.done.confirmed = vec![first + u64::from(batch)];
        }
        Ok((self.lane, self.done))
    }

    /// Sends a request until it is taken; false when the time is over before that.
    async fn offer(&mut self, body: &[u8]) -> anyhow::Result<bool> {
        while Instant::now() < self.end {
            let asked = Instant::now();
            match self.push(body).await? {
                Verdict::Taken => {
                    self.done.latency.push(micros(asked.elapsed()));
                    self.done.good += u64::from(Instant::now() < self.end);
                    return Ok(true);
                }
                Verdict::Refused(wait) if self.lane.is_multiple_of(2) => {
                    let again = (Instant::now() + wait).min(self.end);
                    tokio::time::sleep_until(again.into()).await;
                }
                Verdict::Refused(_) => {}
            }
        }
        Ok(false)
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
