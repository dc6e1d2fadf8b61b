//! Pushes that nobody consumes.

use crate::load::{End, Load, Shape};
use crate::measure::{Line, Window};
use crate::node::{Node, Program};
use crate::scenarios::{Bed, REST, report, warm_up};
use crate::usage;
use crate::wire::Lane;

/// Lanes that one wide request touches.
const WIDE: u32 = 100;
/// Partitions of the duplicate filter's load.
const DEDUP_LANES: u32 = 64;

/// Confirmed pushes, and the floor under the same load.
pub(super) async fn push(bed: &Bed<'_>, connections: u32, shape: Shape) -> anyhow::Result<Line> {
    let load = bed.load("push", connections, shape);
    let mut line = timed(bed, &bed.broker(), &load).await?;
    if bed.through.is_none() {
        line.adopt("floor_", timed(bed, &Program::Floor, &load).await?);
    }
    Ok(line)
}

/// Requests that touch many partitions of one queue, or many queues.
pub(super) async fn wide(bed: &Bed<'_>, lane: Lane) -> anyhow::Result<Line> {
    let load = bed.load("wide", 8, Shape::Spread(WIDE));
    let load = Load { lane, lanes: 8 * WIDE, ..load };
    let mut settings = bed.options.settings.clone();
    if lane == Lane::Queue {
        settings.push(("QUEEN_QLOG_SHARDS".to_owned(), "4".to_owned()));
    }
    let program = Program::Broker { binary: &bed.options.binary, settings: &settings };
    let mut line = timed(bed, &program, &load).await?;
    line.add("lanes_per_request", WIDE);
    line.add("shards", if lane == Lane::Queue { 4 } else { 0 });
    Ok(line)
}

async fn timed(bed: &Bed<'_>, program: &Program<'_>, load: &Load) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = bed.start_program(program, &scratch).await?;
    node.configure(&load.queue).await?;
    warm_up(load, &node).await?;
    if load.lane == Lane::Queue {
        // Queues are made by the first push to them, which is not what is measured.
        Load { end: End::PerLane(1), ..load.clone() }.run(&node).await?;
    }
    let first_seq = u64::from(load.lane == Lane::Queue);
    let (window, watch) = (Window::open(&node).await?, node.watch().await?);
    let pushed = Load { first_seq, ..load.clone() }.run(&node).await?;
    let mut line = Line::default();
    let (messages, requests) = (pushed.messages, pushed.requests);
    line.add("connections", load.connections);
    report(&mut line, pushed);
    window.close(&node, messages, requests, &mut line).await?;
    node.report(watch, messages, &mut line).await?;
    node.stop()?;
    Ok(line)
}

/// Memory of pushes inside the duplicate window, each an append of its own.
///
/// Shape: `anon_bytes_per_push` is what the whole load added to an empty node; `..._slope` is what its second half
/// added, without the buffers that any load brings.
pub(super) async fn dedup(bed: &Bed<'_>, count: u32) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure("dedup").await?;
    tokio::time::sleep(REST).await;
    let empty = usage::memory(node.pid()).anon_bytes as f64;
    let half = u64::from(count / DEDUP_LANES / 2);
    let load = bed.load("dedup", 1, Shape::Spread(DEDUP_LANES));
    let load = Load { lanes: DEDUP_LANES, ..load };
    let window = Window::open(&node).await?;
    let first = Load { end: End::PerLane(half), ..load.clone() }.run(&node).await?;
    tokio::time::sleep(REST).await;
    let between = usage::memory(node.pid()).anon_bytes as f64;
    let second = Load { end: End::PerLane(2 * half), first_seq: half, ..load }.run(&node).await?;
    let (messages, requests) = (first.messages + second.messages, first.requests + second.requests);
    let mut line = Line::default();
    report(&mut line, second);
    window.close(&node, messages, requests, &mut line).await?;
    tokio::time::sleep(REST).await;
    let after = usage::memory(node.pid()).anon_bytes as f64;
    let metrics = node.metrics().await?;
    line.add("pushed", messages);
    line.number("anon_bytes_per_push", (after - empty) / messages as f64);
    line.number("anon_bytes_per_push_slope", 2.0 * (after - between) / messages as f64);
    let filter = metrics.value("queen_raft_dedup_filter_bytes");
    line.number("filter_bytes_per_push", filter / messages as f64);
    node.stop()?;
    Ok(line)
}
