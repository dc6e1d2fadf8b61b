//! Messages from push to acknowledgment.

use std::time::Duration;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::load::{End, Load, Shape};
use crate::measure::{Line, Window};
use crate::scenarios::{Bed, report, warm_up};

/// Offered messages a second.
const PACED_RATE: f64 = 500.0;
const PACED_PRODUCERS: u32 = 32;
const PACED_CONSUMERS: u32 = 16;

/// As many producers as consumers, as fast as they can, through to empty.
pub(super) async fn push_pop_ack(
    bed: &Bed<'_>,
    connections: u32,
    batch: u32,
) -> anyhow::Result<Line> {
    let load = bed.load("work", connections, Shape::OneLane(batch));
    through(bed, load, connections, batch).await
}

/// Below saturation: a fixed rate, waiting consumers.
pub(super) async fn paced(bed: &Bed<'_>) -> anyhow::Result<Line> {
    let load = bed.load("paced", PACED_PRODUCERS, Shape::OneLane(1));
    let end = End::Paced(PACED_RATE, bed.options.time);
    through(bed, Load { lanes: PACED_PRODUCERS, end, ..load }, PACED_CONSUMERS, 1).await
}

async fn through(bed: &Bed<'_>, load: Load, consumers: u32, batch: u32) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = bed.start(&scratch).await?;
    node.configure(&load.queue).await?;
    warm_up(&load, &node).await?;
    let drain = Drain {
        queue: load.queue.clone(),
        connections: consumers,
        lanes: load.lanes,
        ask: Ask::fixed(batch, batch.min(10)),
        work: Work::None,
        limit: bed.options.time * 6 + Duration::from_secs(30),
    };
    let goal = Goal::open();
    let (window, watch) = (Window::open(&node).await?, node.watch().await?);
    let pushing = async {
        let pushed = load.run(&node).await;
        goal.set(pushed.as_ref().map_or(0, |pushed| pushed.messages));
        pushed
    };
    let (pushed, drained) = tokio::join!(pushing, drain.run(node.port, goal.clone()));
    let (pushed, drained) = (pushed?, drained?);
    let mut line = Line::default();
    line.add("batch", batch);
    line.add("producers", load.connections);
    line.add("consumers", consumers);
    line.number("msg_s", (drained.messages as f64 / drained.seconds).round());
    line.verdict(drained.check.verdict(&pushed.confirmed));
    let requests = pushed.requests + 2 * drained.pops;
    line.add("requests", requests);
    report(&mut line, pushed);
    line.latency("pop", drained.pop);
    line.latency("ack", drained.ack);
    line.latency("e2e", drained.e2e);
    window.close(&node, drained.messages, requests, &mut line).await?;
    node.report(watch, drained.messages, &mut line).await?;
    node.stop()?;
    Ok(line)
}
