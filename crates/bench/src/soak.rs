//! A soak: one node under a steady mixed load, and whether it stays as it was.
//!
//! ```text
//!   queue     retention   who reads it
//!   taken     a period    two consumers, at once
//!   unread    a period    nobody; at the end a group reads what is left
//!   kept      none        one consumer at once; at the end a group reads all of it again
//!   remade    none        filled, read, deleted and made again
//!   still     none        one message in each of many partitions, before all else; at the end a group reads them
//! ```
//!
//! Everything goes by one *period*: a checkpoint in each, and the life of a message. What the node is and works at is watched
//! from outside ([`watch`]); [`mod@judge`] has the rules; every message is accounted for ([`ledger`]).

mod judge;
mod ledger;
mod load;
mod plan;
mod remake;
mod rng;
mod watch;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};

use crate::drain::{Ask, Drain, Goal, Work};
use crate::http::Client;
use crate::load::{End, Load, Shape};
use crate::measure::Line;
use crate::node::{Node, Program, Scratch};
use crate::soak::ledger::SharedLedger;
use crate::soak::load::{Consumer, Producers, Queue, Sample};
use crate::soak::plan::Plan;
use crate::soak::remake::Remade;
use crate::soak::watch::{Counters, Watch, Watched};
use crate::usage;
use crate::wire::{Form, Lane, Pad, now_us};

const CONNECTIONS: u32 = 8;
/// The longest that reading everything again may take.
const AGAIN_LIMIT: Duration = Duration::from_mins(5);
/// Shares of the producers' requests, and partitions.
const TAKEN: (u64, u32) = (55, 1000);
const UNREAD: (u64, u32) = (40, 1000);
const KEPT: (u64, u32) = (5, 100);
/// Partitions that nobody touches: what a checkpoint passes by and a scrub reads.
const STILL: u32 = 20_000;

/// Runs a soak; the line and whether all is right. `None` when only help was asked for.
///
/// # Errors
/// The node does not start, ends, or refuses a request.
pub(crate) async fn run(args: impl Iterator<Item = String>) -> anyhow::Result<Option<Line>> {
    let Some(plan) = Plan::parse(args)? else { return Ok(None) };
    let settings = plan.settings();
    println!(
        "soak: {} s, seed {}, {} pushes a second, a period of {} s",
        plan.time.as_secs(),
        plan.seed,
        plan.rate,
        plan.period().as_secs()
    );
    let mut scratch = Scratch::new(&plan.dir)?;
    let soaked = soak(&plan, &settings, scratch.path()).await;
    if soaked.as_ref().map_or(true, |line| line.is_wrong) {
        scratch.keep();
        println!("the data and the node's log are kept in {}", scratch.path().display());
    }
    soaked.map(Some)
}

async fn soak(plan: &Plan, settings: &[(String, String)], scratch: &Path) -> anyhow::Result<Line> {
    let program = Program::Broker { binary: &plan.binary, settings };
    let node = Node::start(&program, scratch).await?;
    let data = scratch.join("data");
    let mut soak = Soak::new(plan, node);
    let mut line = Line::default();
    let shown = settings.iter().map(|(name, value)| (name.clone(), value.clone().into()));
    line.add("settings", Value::Object(shown.collect()));
    line.add("seconds", plan.time.as_secs());
    line.add("seed", plan.seed);
    line.number("rate", plan.rate);
    line.number("period_s", plan.period().as_secs_f64());
    let busy = usage::machine_busy_s();
    let outcome = soak.load(&data).await?;
    line.number("machine_cores", (usage::machine_busy_s() - busy) / plan.time.as_secs_f64());
    soak.account(&outcome, &mut line).await?;
    soak.node.stop()?;
    let mut wrong = soak.wrong;
    judge(plan, settings, &outcome, &mut line, &mut wrong);
    doctor(&plan.binary, &data, &mut line, &mut wrong)?;
    line.is_wrong |= !wrong.is_empty();
    line.add("wrong", wrong);
    Ok(line)
}

/// What the load and the watch came to.
struct Outcome {
    started: Instant,
    samples: Vec<Sample>,
    watched: Watched,
    remade: Remade,
}

struct Soak<'a> {
    plan: &'a Plan,
    node: Node,
    pad: Arc<Pad>,
    queues: [Queue; 3],
    wrong: Vec<String>,
}

impl<'a> Soak<'a> {
    fn new(plan: &'a Plan, node: Node) -> Self {
        let queue = |name, (share, lanes), retention| {
            let ledger = SharedLedger::new(lanes, retention);
            Queue { name, share, lanes, ledger }
        };
        let period = Some(plan.period());
        let queues = [
            queue("taken", TAKEN, period),
            queue("unread", UNREAD, period),
            queue("kept", KEPT, None),
        ];
        Self { plan, node, pad: Arc::new(Pad::new()), queues, wrong: Vec::new() }
    }

    /// Loads and watches the node for the plan's time, then lets the consumers come to their ends.
    async fn load(&mut self, data: &Path) -> anyhow::Result<Outcome> {
        let (plan, port) = (self.plan, self.node.port);
        let mut client = Client::connect(port).await?;
        let period_s = plan.period().as_secs();
        for queue in &self.queues {
            let retention = match queue.name {
                "kept" => String::new(),
                _ => format!(",\"retentionEnabled\":true,\"retentionSeconds\":{period_s}"),
            };
            let options = format!("{{\"dedupWindowSeconds\":1{retention}}}");
            configure(&mut client, queue.name, &options).await?;
        }
        self.fill_still(&mut client).await?;
        let (pushed, kept) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let over = || Arc::new(AtomicBool::new(false));
        let (is_pushed, is_seen) = (over(), over());
        let watch = tokio::spawn(self.watch(data, &pushed, &kept, &is_seen).run());
        let consumers = self.consumers(&is_pushed);
        let life = plan.period() * 3 / 2;
        let remaking = remake::run(port, life, self.pad.clone(), is_pushed.clone());
        let remaking = tokio::spawn(remaking);
        let started = Instant::now();
        let samples = self.push(started, &pushed, &kept).await?;
        is_pushed.store(true, Ordering::SeqCst);
        is_seen.store(true, Ordering::SeqCst);
        let watched = watch.await??;
        for consumer in consumers {
            consumer.await??;
        }
        let remade = remaking.await??;
        Ok(Outcome { started, samples, watched, remade })
    }

    async fn fill_still(&self, client: &mut Client) -> anyhow::Result<()> {
        configure(client, "still", r#"{"dedupWindowSeconds":1}"#).await?;
        let load = Load {
            queue: "still".to_owned(),
            lane: Lane::Partition,
            connections: 4,
            lanes: STILL,
            shape: Shape::Spread(100),
            form: Form::Json,
            end: End::PerLane(1),
            first_seq: 0,
            may_fail: false,
            pad: self.pad.clone(),
        };
        load.run(&self.node).await.map(drop)
    }

    fn watch(
        &self,
        data: &Path,
        pushed: &Arc<AtomicU64>,
        kept: &Arc<AtomicU64>,
        is_over: &Arc<AtomicBool>,
    ) -> Watch {
        Watch {
            port: self.node.port,
            pid: self.node.pid(),
            dir: data.to_owned(),
            kept: kept.clone(),
            pushed: pushed.clone(),
            time: self.plan.time,
            series: self.plan.series.clone(),
            is_over: is_over.clone(),
        }
    }

    /// Two for what is taken at once, one for what is kept.
    fn consumers(&self, is_over: &Arc<AtomicBool>) -> Vec<JoinHandle<anyhow::Result<()>>> {
        let [taken, _, kept] = &self.queues;
        let start = |queue: &Queue| {
            let (port, queue, is_over) = (self.node.port, queue.clone(), is_over.clone());
            tokio::spawn(Consumer { port, queue, group: None, is_over }.run())
        };
        [taken, taken, kept].into_iter().map(start).collect()
    }

    async fn push(
        &self,
        started: Instant,
        pushed: &Arc<AtomicU64>,
        kept: &Arc<AtomicU64>,
    ) -> anyhow::Result<Vec<Sample>> {
        let plan = self.plan;
        let producers = Producers {
            port: self.node.port,
            queues: self.queues.to_vec(),
            connections: CONNECTIONS,
            rate: plan.rate,
            seed: plan.seed,
            started,
            time: plan.time,
            pad: self.pad.clone(),
            pushed: pushed.clone(),
        };
        let mut tasks = JoinSet::new();
        for number in 0..CONNECTIONS {
            tasks.spawn(producers.clone().run(number));
        }
        let counting = async {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            loop {
                ticks.tick().await;
                let confirmed = self.queues[2].ledger.lock().confirmed();
                kept.store(confirmed.iter().sum(), Ordering::Relaxed);
            }
        };
        let pushing = async {
            let mut samples = Vec::new();
            while let Some(done) = tasks.join_next().await {
                samples.extend(done??);
            }
            anyhow::Ok(samples)
        };
        tokio::select! {
            samples = pushing => samples,
            () = counting => unreachable!("it counts until the pushes are over"),
        }
    }

    /// Reads what nobody read, and what was kept once more; everything must be there.
    async fn account(&mut self, outcome: &Outcome, line: &mut Line) -> anyhow::Result<()> {
        let [_, unread, kept] = &self.queues;
        let is_over = Arc::new(AtomicBool::new(true));
        let (port, queue) = (self.node.port, unread.clone());
        Consumer { port, queue, group: Some("late"), is_over }.run().await?;
        for queue in &self.queues {
            let mut ledger = queue.ledger.lock();
            ledger.close(now_us());
            let mut own = Line::default();
            own.add("pushed", ledger.confirmed().iter().sum::<u64>());
            own.add("received", ledger.received());
            own.add("expired", ledger.expired());
            own.verdict(ledger.verdict());
            self.wrong.extend(fault(queue.name, &own));
            line.adopt(&format!("{}_", queue.name), own);
        }
        let confirmed = kept.ledger.lock().confirmed();
        self.again("kept", confirmed, line).await?;
        self.again("still", vec![1; STILL as usize], line).await?;
        let mut own = Line::default();
        own.add("lives", outcome.remade.lives);
        own.add("pushed", outcome.remade.messages);
        own.verdict(outcome.remade.verdict);
        self.wrong.extend(fault("remade", &own));
        line.adopt("remade_", own);
        Ok(())
    }

    /// Reads all of a queue through a new group.
    async fn again(
        &mut self,
        queue: &str,
        confirmed: Vec<u64>,
        line: &mut Line,
    ) -> anyhow::Result<()> {
        let drain = Drain {
            queue: queue.to_owned(),
            connections: 2,
            lanes: confirmed.len() as u32,
            ask: Ask { group: Some("again".to_owned()), ..Ask::fixed(1000, 64) },
            work: Work::None,
            limit: AGAIN_LIMIT,
        };
        let again = drain.run(self.node.port, Goal::of(confirmed.iter().sum())).await?;
        let mut own = Line::default();
        own.verdict(again.check.verdict(&confirmed));
        self.wrong.extend(fault(&format!("{queue}, read again"), &own));
        line.adopt(&format!("{queue}_again_"), own);
        Ok(())
    }
}

/// What is wrong with the messages of a queue.
fn fault(queue: &str, line: &Line) -> Option<String> {
    let [missing, duplicates, late] =
        ["missing", "duplicates", "out_of_order"].map(|name| line.value(name));
    line.is_wrong.then(|| {
        format!("{queue}: {missing} messages are missing, {duplicates} came twice, {late} late")
    })
}

fn judge(
    plan: &Plan,
    settings: &[(String, String)],
    outcome: &Outcome,
    line: &mut Line,
    wrong: &mut Vec<String>,
) {
    let Outcome { started, samples, watched, .. } = outcome;
    let file = settings.iter().rev().find(|(name, _)| name == "QUEEN_RAFT_SEGMENT_BYTES");
    let file: f64 = file.and_then(|(_, bytes)| bytes.parse().ok()).unwrap_or(0.0);
    judge::flat(&watched.seconds, file / f64::from(1 << 20), line, wrong);
    judge::latencies(samples, (*started, plan.time), watched, line, wrong);
    line.number("push_req_s", samples.len() as f64 / plan.time.as_secs_f64());
    line.latency("push", samples.iter().map(|sample| sample.micros).collect());
    let last: &Counters = &watched.last;
    for (name, count) in [
        ("checkpoints", last.checkpoints),
        ("rewrites", last.rewrites),
        ("rewritten_mib", last.rewritten_bytes / f64::from(1 << 20)),
        ("files_removed", last.files_removed),
        ("log_scrubbed_mib", last.log_scrubbed_bytes / f64::from(1 << 20)),
        ("rows_scrubbed", last.rows_scrubbed),
        ("removed_by_retention", last.expired),
    ] {
        line.number(name, count);
        if count == 0.0 {
            wrong.push(format!("{name} is 0: the node did not do what the soak is about"));
        }
    }
    if last.checksum_failures > 0.0 {
        wrong.push(format!("{} reads met damaged bytes", last.checksum_failures));
    }
}

/// Lets the broker's own examination look at what is left.
fn doctor(
    binary: &Path,
    data: &Path,
    line: &mut Line,
    wrong: &mut Vec<String>,
) -> anyhow::Result<()> {
    let output = Command::new(binary)
        .args(["doctor", "--json"])
        .arg(data)
        .env_clear()
        .output()
        .with_context(|| binary.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text).with_context(|| {
        format!("the doctor said {text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let is_clean = output.status.success() && report["clean"] == true;
    line.add("doctor_clean", is_clean);
    if !is_clean {
        wrong.push(format!("the doctor is not content: {}: {report}", output.status));
    }
    Ok(())
}

/// Makes a queue with options.
async fn configure(client: &mut Client, queue: &str, options: &str) -> anyhow::Result<()> {
    let body = format!("{{\"queue\":\"{queue}\",\"options\":{options}}}");
    let answer = client.post("/api/v1/configure", body.as_bytes()).await?;
    ensure!(answer.status == 200, "configure: {} {}", answer.status, answer.excerpt());
    Ok(())
}

/// Deletes a queue that is there.
async fn delete(client: &mut Client, queue: &str) -> anyhow::Result<()> {
    let answer = client.delete(&format!("/api/v1/resources/queues/{queue}")).await?;
    let body = String::from_utf8_lossy(answer.body);
    ensure!(
        answer.status == 200 && body.contains("\"existed\":true"),
        "delete: {} {}",
        answer.status,
        answer.excerpt()
    );
    Ok(())
}
