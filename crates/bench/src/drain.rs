//! Consumers: connections that pop, check and acknowledge.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::task::JoinSet;
use zstd::bulk::Decompressor;

use crate::check::Check;
use crate::http::Client;
use crate::load::micros;
use crate::wire::{self, Autopilot, FRAMED_MAGIC, Framed, Message, Popped, ack_body, now_us};

/// What consumers do.
pub(crate) struct Drain {
    pub(crate) queue: String,
    pub(crate) connections: u32,
    pub(crate) lanes: u32,
    pub(crate) ask: Ask,
    pub(crate) work: Work,
    /// No consumer goes on for longer.
    pub(crate) limit: Duration,
}

/// How a consumer asks.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// A group that starts at the oldest message; queue mode without.
    pub(crate) group: Option<String>,
    pub(crate) sizes: Sizes,
    /// Answers in stored records.
    pub(crate) is_framed: bool,
}

/// How much one pop takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizes {
    /// What the broker does when it is not told: 200 messages of one partition.
    Defaults,
    /// Messages, and partitions that it may claim.
    Fixed { batch: u32, partitions: u32 },
    /// What the broker chooses.
    Autopilot,
}

/// What a consumer does beside popping and acknowledging.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    None,
    /// Handles each message for this long before the acknowledgment.
    PerMessage(Duration),
    /// Pops no more often than this.
    Paced(Duration),
}

impl Ask {
    /// In queue mode, this many messages of so many partitions.
    pub(crate) fn fixed(batch: u32, partitions: u32) -> Self {
        let sizes = Sizes::Fixed { batch, partitions };
        Self { group: None, sizes, is_framed: false }
    }

    fn path(&self, queue: &str) -> String {
        let mut path = format!("/api/v1/pop/queue/{queue}?wait=true&timeout=200");
        if let Some(group) = &self.group {
            write!(path, "&consumerGroup={group}&subscriptionMode=all").unwrap();
        }
        match self.sizes {
            Sizes::Defaults => {}
            Sizes::Fixed { batch, partitions } => {
                write!(path, "&batch={batch}&partitions={partitions}").unwrap();
            }
            Sizes::Autopilot => path.push_str("&autopilot=true"),
        }
        if self.is_framed {
            path.push_str("&frames=true");
        }
        path
    }
}

/// What producers tell consumers.
pub(crate) struct Goal {
    /// Messages to receive, once known.
    messages: AtomicU64,
    is_known: AtomicBool,
    is_over: AtomicBool,
}

impl Goal {
    /// A goal that is not known yet.
    pub(crate) fn open() -> Arc<Self> {
        let (is_known, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { messages: AtomicU64::new(0), is_known, is_over })
    }

    /// So many messages.
    pub(crate) fn of(messages: u64) -> Arc<Self> {
        let goal = Self::open();
        goal.set(messages);
        goal
    }

    /// Makes it known.
    pub(crate) fn set(&self, messages: u64) {
        self.messages.store(messages, Ordering::SeqCst);
        self.is_known.store(true, Ordering::SeqCst);
    }

    /// Ends the consumers, whatever is left.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
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
    /// Those of `pops` that were answered in stored records.
    pub(crate) framed: u64,
    /// Sums of what the broker chose.
    pub(crate) chosen: Autopilot,
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
    framed: u64,
    chosen: Autopilot,
}

struct Common {
    path: String,
    group: Option<String>,
    work: Work,
    limit: Duration,
    goal: Arc<Goal>,
    started: Instant,
    done: AtomicU64,
    last_us: AtomicU64,
    check: Mutex<Check>,
}

impl Drain {
    /// Consumes until the goal is reached and a further pop finds nothing.
    pub(crate) async fn run(&self, port: u16, goal: Arc<Goal>) -> anyhow::Result<Drained> {
        self.resume(port, goal, Check::new(self.lanes)).await
    }

    /// The same after other consumers, who received what `check` knows.
    pub(crate) async fn resume(
        &self,
        port: u16,
        goal: Arc<Goal>,
        check: Check,
    ) -> anyhow::Result<Drained> {
        let common = Arc::new(Common {
            path: self.ask.path(&self.queue),
            group: self.ask.group.clone(),
            work: self.work,
            limit: self.limit,
            goal,
            started: Instant::now(),
            done: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            check: Mutex::new(check),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            let client = Client::connect(port).await?;
            let consumer = Consumer {
                client,
                common: common.clone(),
                own: Own::default(),
                body: Vec::new(),
                unpacker: Decompressor::new()?,
            };
            tasks.spawn(consumer.run());
        }
        let mut all = Own::default();
        while let Some(done) = tasks.join_next().await {
            let own = done??;
            all.pop.extend(own.pop);
            all.ack.extend(own.ack);
            all.e2e.extend(own.e2e);
            all.framed += own.framed;
            all.chosen.add(own.chosen);
        }
        let common = Arc::into_inner(common).context("a consumer is left")?;
        Ok(Drained {
            messages: common.done.into_inner(),
            seconds: common.last_us.into_inner() as f64 / 1e6,
            pops: all.pop.len() as u64,
            framed: all.framed,
            chosen: all.chosen,
            pop: all.pop,
            ack: all.ack,
            e2e: all.e2e,
            check: common.check.into_inner().unwrap(),
        })
    }
}

struct Consumer {
    client: Client,
    common: Arc<Common>,
    own: Own,
    body: Vec<u8>,
    unpacker: Decompressor<'static>,
}

impl Consumer {
    async fn run(mut self) -> anyhow::Result<Own> {
        let common = self.common.clone();
        while common.started.elapsed() < common.limit && !common.goal.is_over.load(Ordering::SeqCst)
        {
            let began = Instant::now();
            let count = self.pop(&common).await?;
            if count == 0 {
                if common.goal.is_reached(common.done.load(Ordering::SeqCst)) {
                    break;
                }
                continue;
            }
            if let Work::PerMessage(each) = common.work {
                tokio::time::sleep(each * count).await;
            }
            self.ack(count as usize).await?;
            common.done.fetch_add(u64::from(count), Ordering::SeqCst);
            let at = u64::try_from(common.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            common.last_us.fetch_max(at, Ordering::SeqCst);
            if let Work::Paced(each) = common.work {
                tokio::time::sleep_until((began + each).into()).await;
            }
        }
        Ok(self.own)
    }

    /// Pops and checks; leaves the body that acknowledges. Returns how many messages came.
    async fn pop(&mut self, common: &Common) -> anyhow::Result<u32> {
        let Self { client, own, body, unpacker, .. } = self;
        let asked = Instant::now();
        let answer = client.get(&common.path).await?;
        let took = asked.elapsed();
        let framed;
        let messages = match answer.status {
            200 if answer.body.starts_with(FRAMED_MAGIC) => {
                framed = Framed::read(answer.body, unpacker)?;
                own.framed += 1;
                framed.messages()?
            }
            200 => {
                let popped = serde_json::from_slice::<Popped<'_>>(answer.body)
                    .with_context(|| answer.excerpt())?;
                own.chosen.add(popped.autopilot.unwrap_or_default());
                popped.messages
            }
            204 => Vec::new(),
            status => bail!("pop: {status} {}", answer.excerpt()),
        };
        if !messages.is_empty() {
            own.pop.push(micros(took));
            own.receive(&messages, &mut common.check.lock().unwrap());
            ack_body(body, &messages, common.group.as_deref());
        }
        Ok(messages.len() as u32)
    }

    async fn ack(&mut self, count: usize) -> anyhow::Result<()> {
        let asked = Instant::now();
        let answer = self.client.post("/api/v1/ack/batch", &self.body).await?;
        if answer.status != 200 || wire::count(answer.body, b"\"success\":true") != count {
            bail!("ack: {} {}", answer.status, answer.excerpt());
        }
        self.own.ack.push(micros(asked.elapsed()));
        Ok(())
    }
}

impl Own {
    fn receive(&mut self, messages: &[Message<'_>], check: &mut Check) {
        let now = now_us();
        for message in messages {
            let data = message.data;
            check.receive(data.lane, data.seq);
            let age = now.saturating_sub(data.made_us);
            self.e2e.push(u32::try_from(age).unwrap_or(u32::MAX));
        }
    }
}
