//! What comes from the disk: a start over a million partitions, and a backlog that no cache holds.

use std::time::Instant;

use anyhow::ensure;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::files;
use crate::load::{End, Load, Shape};
use crate::measure::{Line, Window};
use crate::node::Node;
use crate::scenarios::restart::{first_push, kill};
use crate::scenarios::{Bed, drain_limit};
use crate::usage;

const CONNECTIONS: u32 = 8;
/// Partitions of one request.
const WIDE: u32 = 100;
/// What one pop may claim at most.
const CLAIMS: u32 = 64;
/// Partitions of the backlog.
const LANES: u32 = 16;
const MIB: f64 = 1024.0 * 1024.0;

/// One message in each of `count` partitions, kill -9, then the time from a cold page cache to a confirmed push, beside the
/// time that reading the same bytes takes; everything confirmed must come out.
pub(super) async fn restart(bed: &Bed<'_>, count: u32) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let mut node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure("restart").await?;
    let load = bed.load("restart", CONNECTIONS, Shape::Spread(WIDE));
    let load = Load { lanes: count, end: End::PerLane(1), ..load };
    let pushed = load.run(&node).await?;
    kill(node.pid())?;
    node.kill();
    let data = scratch.path().join("data");
    let mut line = Line::default();
    line.add("partitions", count);
    line.number("store_mib", files::bytes(&data.join("store"))? as f64 / MIB);
    line.number("logs_mib", files::bytes(&data.join("qlog"))? as f64 / MIB);
    let floor = files::read_seconds(&data)?;
    line.number("floor_read_s", floor);
    let node = first_push(bed, &scratch, pushed.messages, &mut line).await?;
    line.number("over_floor", line.value("first_push_s") / floor);
    let memory = usage::memory(node.pid());
    line.number("anon_mib", memory.anon_bytes as f64 / MIB);
    let drain = Drain {
        queue: load.queue.clone(),
        connections: CONNECTIONS,
        lanes: count,
        ask: Ask::fixed(WIDE, CLAIMS),
        work: Work::None,
        limit: drain_limit(count.into()),
    };
    let drained = drain.run(node.port, Goal::of(pushed.confirmed.iter().sum())).await?;
    line.verdict(drained.check.verdict(&pushed.confirmed));
    node.stop()?;
    Ok(line)
}

/// A backlog that is drained by a fresh process from a cold page cache.
pub(super) async fn read(bed: &Bed<'_>, count: u64) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let load = Load {
        lanes: LANES,
        end: End::PerLane(count / u64::from(LANES)),
        ..bed.load("cold", 1, Shape::OneLane(WIDE))
    };
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure(&load.queue).await?;
    let counts = vec![count / u64::from(LANES); LANES as usize];
    crate::load::fill(&node, &load.queue, &bed.pad, &counts).await?;
    node.stop()?;
    let data = scratch.path().join("data");
    let logs = files::bytes(&data.join("qlog"))? as f64;
    let mut line = Line::default();
    line.add("messages", count);
    line.number("logs_mib", logs / MIB);
    line.number("floor_read_s", files::read_seconds(&data)?);
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    // What the start has read would be warm.
    files::evict(&data)?;
    let before = usage::usage(node.pid()).read_bytes;
    let window = Window::open(&node).await?;
    let drain = Drain {
        queue: load.queue.clone(),
        connections: CONNECTIONS,
        lanes: LANES,
        ask: Ask::fixed(WIDE, 10),
        work: Work::None,
        limit: drain_limit(count),
    };
    let started = Instant::now();
    let drained = drain.run(node.port, Goal::of(counts.iter().sum())).await?;
    ensure!(drained.messages > 0, "nothing was drained in {:?}", started.elapsed());
    let read = (usage::usage(node.pid()).read_bytes - before) as f64;
    line.number("msg_s", (drained.messages as f64 / drained.seconds).round());
    line.number("drain_s", drained.seconds);
    line.number("read_bytes_per_msg", read / drained.messages as f64);
    line.number("log_bytes_stored_per_msg", logs / count as f64);
    line.latency("pop", drained.pop);
    window.close(&node, drained.messages, 2 * drained.pops, &mut line).await?;
    line.verdict(drained.check.verdict(&counts));
    node.stop()?;
    Ok(line)
}
