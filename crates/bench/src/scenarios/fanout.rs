//! One stream of messages, read whole by several consumer groups.

use tokio::task::JoinSet;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::load::{Load, Shape};
use crate::measure::{Line, Window};
use crate::node::Node;
use crate::scenarios::{Bed, drain_limit, report};

const GROUPS: usize = 5;
/// Consumers of each group.
const CONSUMERS: u32 = 2;
const LANES: u32 = 16;
const BATCH: u32 = 100;

/// One producer that pushes by 100, and five groups that each take everything meanwhile.
///
/// Shape: costs are over the messages that all groups received; `group_N_` holds each group's own count and check.
pub(super) async fn five_groups(bed: &Bed<'_>) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    let load = Load { lanes: LANES, ..bed.load("fanout", 1, Shape::OneLane(BATCH)) };
    node.configure(&load.queue).await?;
    let window = Window::open(&node).await?;
    let goal = Goal::open();
    let drains = (0..GROUPS).map(|number| Drain {
        queue: load.queue.clone(),
        connections: CONSUMERS,
        lanes: LANES,
        ask: Ask { group: Some(format!("g{number}")), ..Ask::fixed(BATCH, 10) },
        work: Work::None,
        limit: bed.options.time + drain_limit(1_000_000),
    });
    let pushing = async {
        let pushed = load.run(&node).await;
        goal.set(pushed.as_ref().map_or(0, |pushed| pushed.messages));
        pushed
    };
    let mut groups = JoinSet::new();
    for (number, drain) in drains.enumerate() {
        let (goal, port) = (goal.clone(), node.port);
        groups.spawn(async move { (number, drain.run(port, goal).await) });
    }
    let pushed = pushing.await?;
    let mut drained = Vec::new();
    while let Some(done) = groups.join_next().await {
        let (number, done) = done?;
        drained.push((number, done?));
    }
    drained.sort_by_key(|(number, _)| *number);
    let mut line = Line::default();
    line.add("groups", GROUPS);
    line.add("consumers_per_group", CONSUMERS);
    let (received, pops) = drained
        .iter()
        .fold((0, 0), |(messages, pops), (_, done)| (messages + done.messages, pops + done.pops));
    let seconds = drained.iter().map(|(_, done)| done.seconds).fold(0.0, f64::max);
    line.add("received", received);
    line.number("msg_s", (received as f64 / seconds).round());
    let requests = pushed.requests + 2 * pops;
    let confirmed = pushed.confirmed.clone();
    report(&mut line, pushed);
    let (mut pop, mut ack, mut e2e) = (Vec::new(), Vec::new(), Vec::new());
    for (number, done) in drained {
        let mut group = Line::default();
        group.add("received", done.messages);
        group.verdict(done.check.verdict(&confirmed));
        line.adopt(&format!("group_{number}_"), group);
        pop.extend(done.pop);
        ack.extend(done.ack);
        e2e.extend(done.e2e);
    }
    line.latency("pop", pop);
    line.latency("ack", ack);
    line.latency("e2e", e2e);
    window.close(&node, received, requests, &mut line).await?;
    node.stop()?;
    Ok(line)
}
