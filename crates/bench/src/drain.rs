//! Consumers: connections that pop, check and acknowledge.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::task::JoinSet;

use crate::check::Check;
use crate::http::Client;
use crate::load::micros;
use crate::node::Node;
use crate::wire::{self, Popped, ack_body, now_us};

/// What consumers do.
pub(crate) struct Drain {
    pub(crate) queue: String,
    pub(crate) connections: u32,
    pub(crate) lanes: u32,
    /// Messages of one pop.
    pub(crate) batch: u32,
    /// Partitions that one pop may claim.
    pub(crate) partitions: u32,
    /// No consumer goes on for longer.
    pub(crate) limit: Duration,
}

/// What producers tell consumers.
pub(crate) struct Goal {
    /// Messages to receive, once known.
    pub(crate) messages: AtomicU64,
    pub(crate) is_known: AtomicBool,
}

impl Goal {
    /// A goal that is not known yet.
    pub(crate) fn open() -> Arc<Self> {
        Arc::new(Self { messages: AtomicU64::new(0), is_known: AtomicBool::new(false) })
    }

    /// Makes it known.
    pub(crate) fn set(&self, messages: u64) {
        self.messages.store(messages, Ordering::SeqCst);
        self.is_known.store(true, Ordering::SeqCst);
    }

    fn is_reached(&self, done: u64) -> bool {
        self.is_known.load(Ordering::SeqCst) && done >= self.messages.load(Ordering::SeqCst)
    }
}

/// What consumers did.
pub(crate) struct Drained {
    pub(crate) messages: u64,
    /// Until the last acknowledgment.
    pub(crate) seconds: f64,
    /// Pops that delivered something.
    pub(crate) pops: u64,
    pub(crate) pop: Vec<u32>,
    pub(crate) ack: Vec<u32>,
    /// From the making of a message to its receipt.
    pub(crate) e2e: Vec<u32>,
    pub(crate) check: Check,
}

#[derive(Default)]
struct Own {
    pop: Vec<u32>,
    ack: Vec<u32>,
    e2e: Vec<u32>,
}

struct Common {
    path: String,
    limit: Duration,
    goal: Arc<Goal>,
    started: Instant,
    done: AtomicU64,
    last_us: AtomicU64,
    check: Mutex<Check>,
}

impl Drain {
    /// Consumes until the goal is reached and a further pop finds nothing.
    pub(crate) async fn run(&self, node: &Node, goal: Arc<Goal>) -> anyhow::Result<Drained> {
        let Self { queue, batch, partitions, .. } = self;
        let common = Arc::new(Common {
            path: format!(
                "/api/v1/pop/queue/{queue}?batch={batch}&partitions={partitions}&wait=true&timeout=200"
            ),
            limit: self.limit,
            goal,
            started: Instant::now(),
            done: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            check: Mutex::new(Check::new(self.lanes)),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            let client = Client::connect(node.port).await?;
            tasks.spawn(consume(client, common.clone()));
        }
        let mut all = Own::default();
        while let Some(done) = tasks.join_next().await {
            let own = done??;
            all.pop.extend(own.pop);
            all.ack.extend(own.ack);
            all.e2e.extend(own.e2e);
        }
        let common = Arc::into_inner(common).context("a consumer is left")?;
        Ok(Drained {
            messages: common.done.into_inner(),
            seconds: common.last_us.into_inner() as f64 / 1e6,
            pops: all.pop.len() as u64,
            pop: all.pop,
            ack: all.ack,
            e2e: all.e2e,
            check: common.check.into_inner().unwrap(),
        })
    }
}

async fn consume(mut client: Client, common: Arc<Common>) -> anyhow::Result<Own> {
    let mut own = Own::default();
    let mut body = Vec::new();
    while common.started.elapsed() < common.limit {
        let asked = Instant::now();
        let answer = client.get(&common.path).await?;
        let popped = match answer.status {
            200 => serde_json::from_slice::<Popped<'_>>(answer.body)
                .with_context(|| answer.excerpt())?,
            204 => Popped { messages: Vec::new() },
            status => bail!("pop: {status} {}", answer.excerpt()),
        };
        if popped.messages.is_empty() {
            if common.goal.is_reached(common.done.load(Ordering::SeqCst)) {
                break;
            }
            continue;
        }
        own.pop.push(micros(asked.elapsed()));
        let now = now_us();
        {
            let mut check = common.check.lock().unwrap();
            for message in &popped.messages {
                let data = &message.data;
                check.receive(data.lane, data.seq);
                let age = now.saturating_sub(data.made_us);
                own.e2e.push(u32::try_from(age).unwrap_or(u32::MAX));
            }
        }
        ack_body(&mut body, &popped.messages);
        let count = popped.messages.len();
        let asked = Instant::now();
        let answer = client.post("/api/v1/ack/batch", &body).await?;
        if answer.status != 200 || wire::count(answer.body, b"\"success\":true") != count {
            bail!("ack: {} {}", answer.status, answer.excerpt());
        }
        own.ack.push(micros(asked.elapsed()));
        common.done.fetch_add(count as u64, Ordering::SeqCst);
        let at = u64::try_from(common.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        common.last_us.fetch_max(at, Ordering::SeqCst);
    }
    Ok(own)
}
