//! Very many partitions: made, used again, drained, then idle.

use crate::drain::{Ask, Drain, Goal, Work};
use crate::load::{End, Load, Shape};
use crate::measure::{Line, Window};
use crate::node::Node;
use crate::scenarios::{Bed, REST, drain_limit};
use crate::usage;

const CONNECTIONS: u32 = 8;
/// Partitions of one request.
const WIDE: u32 = 100;
/// What one pop may claim at most.
const CLAIMS: u32 = 64;

/// One message to each partition, once more, drained; then the memory of an idle partition.
pub(super) async fn lanes(bed: &Bed<'_>, count: u32) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure("lanes").await?;
    tokio::time::sleep(REST).await;
    let empty = usage::memory(node.pid()).anon_bytes as f64;
    let load = bed.load("lanes", CONNECTIONS, Shape::Spread(WIDE));
    let load = Load { lanes: count, end: End::PerLane(1), ..load };
    let mut line = Line::default();
    line.add("partitions", count);
    let mut confirmed = Vec::new();
    for (pass, name) in [(0, "create_"), (1, "again_")] {
        let load = Load { end: End::PerLane(pass + 1), first_seq: pass, ..load.clone() };
        let window = Window::open(&node).await?;
        let pushed = load.run(&node).await?;
        let mut part = Line::default();
        part.number("msg_s", (pushed.messages as f64 / pushed.seconds).round());
        part.latency("push", pushed.latency);
        window.close(&node, pushed.messages, pushed.requests, &mut part).await?;
        line.adopt(name, part);
        confirmed = pushed.confirmed;
    }
    tokio::time::sleep(REST).await;
    let pushed = usage::memory(node.pid()).anon_bytes as f64;
    let drain = Drain {
        queue: load.queue.clone(),
        connections: CONNECTIONS,
        lanes: count,
        ask: Ask::fixed(WIDE, CLAIMS),
        work: Work::None,
        limit: drain_limit(count.into()),
    };
    let goal = Goal::of(confirmed.iter().sum());
    let window = Window::open(&node).await?;
    let drained = drain.run(node.port, goal).await?;
    let mut part = Line::default();
    part.number("msg_s", (drained.messages as f64 / drained.seconds).round());
    part.latency("pop", drained.pop);
    part.latency("ack", drained.ack);
    window.close(&node, drained.messages, 2 * drained.pops, &mut part).await?;
    line.adopt("drain_", part);
    line.verdict(drained.check.verdict(&confirmed));
    tokio::time::sleep(REST).await;
    let idle = usage::memory(node.pid()).anon_bytes as f64;
    let partitions = f64::from(count);
    line.number("empty_anon_mib", empty / f64::from(1 << 20));
    line.number("anon_bytes_per_pushed_partition", (pushed - empty) / partitions);
    line.number("anon_bytes_per_idle_partition", (idle - empty) / partitions);
    let filter = node.metrics().await?.value("queen_raft_dedup_filter_bytes");
    line.number("filter_bytes_per_partition", filter / partitions);
    node.stop()?;
    Ok(line)
}
