//! What checkpoints of a million partitions cost, and what pushes notice of them.
//!
//! Two phases over the same partitions, each beside one and the same quiet load of pushes to a queue of its own:
//!
//! - **burst**: one message to every partition, as fast as they are taken;
//! - **spread**: partitions at random change at an even pace, for which single pages of the store are the whole cost.
//!
//! The quiet load's latencies are told apart by whether a checkpoint was being written meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::files;
use crate::http::Client;
use crate::load::{End, Load, Shape, micros};
use crate::measure::Line;
use crate::node::Node;
use crate::scenarios::Bed;
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
/// The longest wait for the checkpoint thread.
const LIMIT: Duration = Duration::from_mins(5);

/// Runs both phases over `count` partitions.
pub(super) async fn checkpoint(bed: &Bed<'_>, count: u32) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let mut line = Line::default();
    line.add("partitions", count);
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure("checkpoint").await?;
    node.configure("probe").await?;
    for phase in [Phase::Create, Phase::Burst, Phase::Spread] {
        let (name, figures) = phase.run(bed, &node, count).await?;
        line.adopt(name, figures);
    }
    let store = files::bytes(&scratch.path().join("data").join("store"))?;
    line.number("store_mib", store as f64 / f64::from(1 << 20));
    node.stop()?;
    Ok(line)
}

#[derive(Clone, Copy)]
enum Phase {
    Create,
    Burst,
    Spread,
}

impl Phase {
    async fn run(
        self,
        bed: &Bed<'_>,
        node: &Node,
        count: u32,
    ) -> anyhow::Result<(&'static str, Line)> {
        let before = Written::of(node).await?;
        let busy = usage::machine_busy_s();
        let started = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let load = async {
            let pushed = match self {
                Self::Create => everywhere(bed, count, 0).run(node).await.map(|done| done.messages),
                Self::Burst => everywhere(bed, count, 1).run(node).await.map(|done| done.messages),
                Self::Spread => scatter(bed, node, count, spread_time(bed)).await,
            };
            is_over.store(true, Ordering::SeqCst);
            pushed
        };
        let (pushed, samples, points) =
            tokio::join!(load, probe(bed, node, is_over.clone()), points(node, &is_over));
        let (pushed, samples, points) = (pushed?, samples?, points?);
        let took = started.elapsed().as_secs_f64();
        let mut line = Line::default();
        line.number("changed_s", pushed as f64 / took);
        line.number("machine_cores", (usage::machine_busy_s() - busy) / took);
        let is_within = |at: &Instant| points.iter().any(|(from, to)| from <= at && at <= to);
        let (during, between): (Samples, Samples) =
            samples.into_iter().partition(|(at, _)| is_within(at));
        for (name, samples) in [("push_during", during), ("push_between", between)] {
            line.add(&format!("{name}_count"), samples.len());
            line.latency(name, samples.into_iter().map(|(_, micros)| micros).collect());
        }
        settle(node).await?;
        Written::of(node).await?.since(&before, &mut line);
        let name = match self {
            Self::Create => "create_",
            Self::Burst => "burst_",
            Self::Spread => "spread_",
        };
        Ok((name, line))
    }
}

fn spread_time(bed: &Bed<'_>) -> Duration {
    Duration::from_secs(bed.sized(30, 120))
}

/// When checkpoints were written, until the load is over.
async fn points(node: &Node, is_over: &AtomicBool) -> anyhow::Result<Vec<(Instant, Instant)>> {
    const LOOK: Duration = Duration::from_millis(40);
    let mut points = Vec::new();
    let mut before = Written::of(node).await?;
    while !is_over.load(Ordering::SeqCst) {
        tokio::time::sleep(LOOK).await;
        let now = Written::of(node).await?;
        if now.checkpoints > before.checkpoints {
            let (end, took) = (Instant::now(), now.seconds - before.seconds);
            let begin = end.checked_sub(Duration::from_secs_f64(took) + LOOK).unwrap_or(end);
            points.push((begin, end));
            before = now;
        }
    }
    Ok(points)
}

fn everywhere(bed: &Bed<'_>, count: u32, pass: u64) -> Load {
    let load = bed.load("checkpoint", CONNECTIONS, Shape::Spread(WIDE));
    Load { lanes: count, end: End::PerLane(pass + 1), first_seq: pass, ..load }
}

/// What the checkpoint thread has done.
#[derive(Clone, Copy, Debug)]
struct Written {
    checkpoints: f64,
    rows: f64,
    seconds: f64,
    merge_seconds: f64,
    bytes: u64,
}

impl Written {
    async fn of(node: &Node) -> anyhow::Result<Self> {
        let metrics = node.metrics().await?;
        Ok(Self {
            checkpoints: metrics.value("queen_raft_durable_point_seconds_count"),
            rows: metrics.value("queen_raft_checkpoint_rows_sum"),
            seconds: metrics.value("queen_raft_durable_point_seconds_sum"),
            merge_seconds: metrics.value("queen_raft_store_merge_seconds_sum"),
            bytes: usage::thread_write_bytes(node.pid(), "queen-checkpoint"),
        })
    }

    fn since(&self, before: &Self, line: &mut Line) {
        let rows = self.rows - before.rows;
        let bytes = (self.bytes - before.bytes) as f64;
        let checkpoints = self.checkpoints - before.checkpoints;
        line.number("checkpoints", checkpoints);
        line.number("changed_rows", rows);
        line.number("device_bytes_per_changed_row", bytes / rows.max(1.0));
        line.number("device_mib", bytes / f64::from(1 << 20));
        line.number("checkpoint_s", (self.seconds - before.seconds) / checkpoints.max(1.0));
        line.number("merge_s", self.merge_seconds - before.merge_seconds);
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
async fn probe(bed: &Bed<'_>, node: &Node, is_over: Arc<AtomicBool>) -> anyhow::Result<Samples> {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..PROBE_CONNECTIONS {
        let (pad, port, is_over) = (bed.pad.clone(), node.port, is_over.clone());
        tasks.spawn(async move {
            let mut client = Client::connect(port).await?;
            let prefix = format!("{:x}-probe-{number}", now_us());
            let mut pusher = Pusher::new(("probe", Lane::Partition), &pad, prefix, Form::Json)?;
            let (mut body, mut samples) = (Vec::new(), Samples::new());
            let each = f64::from(PROBE_CONNECTIONS) / PROBES_PER_S;
            for seq in 0u64.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let share = f64::from(number) / f64::from(PROBE_CONNECTIONS);
                let due = started + Duration::from_secs_f64(each * (share + seq as f64));
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
    let mut samples = Samples::new();
    while let Some(done) = tasks.join_next().await {
        samples.extend(done??);
    }
    Ok(samples)
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
            let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ (u64::from(number) << 40);
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
                    let lane = ((u64::from(count) * (random >> 32)) >> 32) as u32;
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
