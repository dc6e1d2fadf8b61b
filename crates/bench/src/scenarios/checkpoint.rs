//! What a checkpoint of a million partitions costs, and what pushes notice of it.
//!
//! Two phases over the same partitions, each beside one and the same quiet load of pushes to a queue of its own:
//!
//! - **burst**: every partition changes between two checkpoints, and the load runs before, during and after the second;
//! - **spread**: some partitions at random change in every second, for which single pages of the store are the whole
//!   cost; once with a checkpoint a second, once without any.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::http::Client;
use crate::load::{End, Load, Shape, micros};
use crate::measure::Line;
use crate::node::{Node, Program, Scratch};
use crate::scenarios::{Bed, REST};
use crate::usage;
use crate::wire::{Form, Item, Lane, Pusher, now_us};

const CONNECTIONS: u32 = 8;
/// Partitions of one request.
const WIDE: u32 = 100;
/// Partitions that change in a second of the spread phase.
const SPREAD_PER_S: f64 = 20_000.0;
/// Requests a second of the load whose latency is looked at.
const PROBES_PER_S: f64 = 200.0;
const PROBE_CONNECTIONS: u32 = 4;
/// No checkpoint within a scenario, but for the one that a stop makes.
const NEVER_MS: &str = "3600000";
/// The longest wait for one checkpoint.
const LIMIT: Duration = Duration::from_mins(5);

/// Runs both phases over `count` partitions.
pub(super) async fn checkpoint(bed: &Bed<'_>, count: u32) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let mut line = Line::default();
    line.add("partitions", count);
    create(bed, &scratch, count, &mut line).await?;
    line.adopt("burst_", burst(bed, &scratch, count).await?);
    let with = spread(bed, &scratch, count, None).await?;
    let without = spread(bed, &scratch, count, Some(NEVER_MS)).await?;
    line.adopt("spread_", with);
    line.adopt("spread_without_", without);
    Ok(line)
}

/// The broker with another time between checkpoints.
async fn node(bed: &Bed<'_>, scratch: &Scratch, every_ms: Option<&str>) -> anyhow::Result<Node> {
    let mut settings = bed.options.settings.clone();
    if let Some(every_ms) = every_ms {
        settings.push(("QUEEN_RAFT_DURABLE_EVERY_MS".to_owned(), every_ms.to_owned()));
        settings.push(("QUEEN_RAFT_DURABLE_EVERY_BYTES".to_owned(), (1u64 << 40).to_string()));
    }
    let broker = Program::Broker { binary: &bed.options.binary, settings: &settings };
    Node::start(&broker, scratch.path()).await
}

fn everywhere(bed: &Bed<'_>, count: u32, pass: u64) -> Load {
    let load = bed.load("checkpoint", CONNECTIONS, Shape::Spread(WIDE));
    Load { lanes: count, end: End::PerLane(pass + 1), first_seq: pass, ..load }
}

/// Makes all partitions, with checkpoints as they come.
async fn create(
    bed: &Bed<'_>,
    scratch: &Scratch,
    count: u32,
    line: &mut Line,
) -> anyhow::Result<()> {
    let node = node(bed, scratch, None).await?;
    node.configure("checkpoint").await?;
    let before = Written::of(&node).await?;
    everywhere(bed, count, 0).run(&node).await?;
    tokio::time::sleep(REST).await;
    settle(&node).await?;
    Written::of(&node).await?.since(&before, "create_", line);
    node.stop()
}

/// What the checkpoint thread has done.
#[derive(Clone, Copy, Debug)]
struct Written {
    checkpoints: f64,
    rows: f64,
    seconds: f64,
    bytes: u64,
}

impl Written {
    async fn of(node: &Node) -> anyhow::Result<Self> {
        let metrics = node.metrics().await?;
        Ok(Self {
            checkpoints: metrics.value("queen_raft_durable_point_seconds_count"),
            rows: metrics.value("queen_raft_checkpoint_rows_sum"),
            seconds: metrics.value("queen_raft_durable_point_seconds_sum"),
            bytes: usage::thread_write_bytes(node.pid(), "queen-checkpoint"),
        })
    }

    fn since(&self, before: &Self, prefix: &str, line: &mut Line) {
        let rows = self.rows - before.rows;
        let bytes = (self.bytes - before.bytes) as f64;
        let checkpoints = self.checkpoints - before.checkpoints;
        line.number(&format!("{prefix}checkpoints"), checkpoints);
        line.number(&format!("{prefix}changed_rows"), rows);
        line.number(&format!("{prefix}device_bytes_per_changed_row"), bytes / rows.max(1.0));
        line.number(&format!("{prefix}device_mib"), bytes / f64::from(1 << 20));
        let mean = (self.seconds - before.seconds) / checkpoints.max(1.0);
        line.number(&format!("{prefix}checkpoint_s"), mean);
    }
}

/// Waits until the checkpoint thread writes nothing any more.
async fn settle(node: &Node) -> anyhow::Result<()> {
    const QUIET: Duration = Duration::from_secs(3);
    let until = Instant::now() + LIMIT;
    let mut before = u64::MAX;
    loop {
        let now = usage::thread_write_bytes(node.pid(), "queen-checkpoint");
        if std::mem::replace(&mut before, now) == now {
            return Ok(());
        }
        ensure!(Instant::now() < until, "the checkpoint thread does not come to rest");
        tokio::time::sleep(QUIET).await;
    }
}

/// Latencies of pushes with the times at which they were sent.
type Samples = Vec<(Instant, u32)>;

/// The load whose latency is looked at: open loop, one message of its own queue a request.
async fn probe(bed: &Bed<'_>, node: &Node, time: Duration) -> anyhow::Result<Samples> {
    let mut samples = Samples::new();
    let mut tasks = tokio::task::JoinSet::new();
    let started = Instant::now();
    for number in 0..PROBE_CONNECTIONS {
        let (pad, port) = (bed.pad.clone(), node.port);
        tasks.spawn(async move {
            let mut client = Client::connect(port).await?;
            let prefix = format!("{:x}-probe-{number}", now_us());
            let mut pusher = Pusher::new(("probe", Lane::Partition), &pad, prefix, Form::Json)?;
            let (mut body, mut samples) = (Vec::new(), Samples::new());
            let each = f64::from(PROBE_CONNECTIONS) / PROBES_PER_S;
            for seq in 0u64.. {
                let share = f64::from(number) / f64::from(PROBE_CONNECTIONS);
                let after = Duration::from_secs_f64(each * (share + seq as f64));
                if after > time {
                    break;
                }
                let due = started + after;
                tokio::time::sleep_until(due.into()).await;
                pusher.body(&mut body, &[Item { lane: number, seq }])?;
                // A request that had to wait for its connection counts from its scheduled time.
                let late = due.elapsed() > Duration::from_millis(2);
                let from = if late { due } else { Instant::now() };
                let answer = client.post("/api/v1/push", &body).await?;
                ensure!(answer.status == 201, "push: {} {}", answer.status, answer.excerpt());
                samples.push((from, micros(from.elapsed())));
            }
            anyhow::Ok(samples)
        });
    }
    while let Some(done) = tasks.join_next().await {
        samples.extend(done??);
    }
    Ok(samples)
}

/// Every partition changes; then one checkpoint, met by the load.
async fn burst(bed: &Bed<'_>, scratch: &Scratch, count: u32) -> anyhow::Result<Line> {
    let every = Duration::from_secs(if bed.options.is_full { 90 } else { 45 });
    let node = node(bed, scratch, Some(&every.as_millis().to_string())).await?;
    let opened = Instant::now();
    node.configure("probe").await?;
    let before = Written::of(&node).await?;
    everywhere(bed, count, 1).run(&node).await?;
    ensure!(opened.elapsed() < every, "the partitions do not change within {every:?}");
    let quiet = Duration::from_secs(4);
    let wait = every.saturating_sub(opened.elapsed() + quiet);
    tokio::time::sleep(wait).await;
    let watched = quiet + Duration::from_secs(12);
    let watch = async {
        let mut seen = None;
        let until = Instant::now() + watched;
        while Instant::now() < until {
            let now = Written::of(&node).await?;
            if now.checkpoints > before.checkpoints {
                let took = Duration::from_secs_f64(now.seconds - before.seconds);
                seen = Some((Instant::now(), took));
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(seen)
    };
    let (samples, seen) = tokio::join!(probe(bed, &node, watched), watch);
    let (samples, seen) = (samples?, seen?);
    let mut line = Line::default();
    ensure!(seen.is_some(), "no checkpoint within {watched:?}");
    if let Some((end, took)) = seen {
        let begin = end.checked_sub(took + Duration::from_millis(60)).unwrap_or(end);
        let (during, without): (Samples, Samples) =
            samples.into_iter().partition(|(at, _)| *at >= begin && *at <= end);
        line.add("probes_during", during.len());
        for (name, samples) in [("push_during", during), ("push_without", without)] {
            let longest = samples.iter().map(|(_, micros)| *micros).max().unwrap_or(0);
            line.latency(name, samples.into_iter().map(|(_, micros)| micros).collect());
            line.number(&format!("{name}_max_ms"), f64::from(longest) / 1000.0);
        }
    }
    Written::of(&node).await?.since(&before, "point_", &mut line);
    settle(&node).await?;
    Written::of(&node).await?.since(&before, "", &mut line);
    node.stop()?;
    Ok(line)
}

/// Partitions at random change, at an even pace.
async fn spread(
    bed: &Bed<'_>,
    scratch: &Scratch,
    count: u32,
    every_ms: Option<&str>,
) -> anyhow::Result<Line> {
    let time = Duration::from_secs(if bed.options.is_full { 60 } else { 20 });
    let node = node(bed, scratch, every_ms).await?;
    let before = Written::of(&node).await?;
    let busy = usage::machine_busy_s();
    let (samples, pushed) =
        tokio::join!(probe(bed, &node, time), scatter(bed, &node, count, time));
    let (samples, pushed) = (samples?, pushed?);
    let mut line = Line::default();
    line.number("changed_s", pushed as f64 / time.as_secs_f64());
    line.number("machine_cores", (usage::machine_busy_s() - busy) / time.as_secs_f64());
    line.latency("push", samples.into_iter().map(|(_, micros)| micros).collect());
    Written::of(&node).await?.since(&before, "", &mut line);
    node.stop()?;
    Ok(line)
}

/// Pushes to partitions at random; returns to how many.
async fn scatter(bed: &Bed<'_>, node: &Node, count: u32, time: Duration) -> anyhow::Result<u64> {
    let mut tasks = tokio::task::JoinSet::new();
    let started = Instant::now();
    for number in 0..PROBE_CONNECTIONS {
        let (pad, port) = (bed.pad.clone(), node.port);
        tasks.spawn(async move {
            let mut client = Client::connect(port).await?;
            let prefix = format!("{:x}-spread-{number}", now_us());
            let place = ("checkpoint", Lane::Partition);
            let mut pusher = Pusher::new(place, &pad, prefix, Form::Json)?;
            let (mut body, mut items, mut pushed) = (Vec::new(), Vec::new(), 0);
            let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(number) << 40;
            let each = f64::from(PROBE_CONNECTIONS * WIDE) / SPREAD_PER_S;
            for turn in 0u64.. {
                let after = Duration::from_secs_f64(each * turn as f64);
                if after > time || started.elapsed() > time {
                    break;
                }
                tokio::time::sleep_until((started + after).into()).await;
                items.clear();
                for _ in 0..WIDE {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let lane = (u64::from(count) * (random >> 32) >> 32) as u32;
                    items.push(Item { lane, seq: turn });
                }
                pusher.body(&mut body, &items)?;
                let answer = client.post("/api/v1/push", &body).await?;
                ensure!(answer.status == 201, "push: {} {}", answer.status, answer.excerpt());
                pushed += u64::from(WIDE);
            }
            anyhow::Ok(pushed)
        });
    }
    let mut pushed = 0;
    while let Some(done) = tasks.join_next().await {
        pushed += done??;
    }
    Ok(pushed)
}
