//! The binary forms against JSON: pushes, and pops in stored records.

use std::time::Duration;

use anyhow::ensure;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::load::{Load, Shape, fill};
use crate::measure::{Line, Window};
use crate::node::{Node, Program};
use crate::scenarios::{Bed, drain_limit, report, warm_up};
use crate::wire::{Form, PAYLOAD_BYTES};

const CONNECTIONS: u32 = 8;
const BATCH: u32 = 100;
const LANES: usize = 64;

/// 100 messages of one partition a request in the three forms, each on a broker of its own, and the floor under the
/// same bodies.
///
/// What was stored is drained and checked. The ratios are those of messages a second and of the broker's processor time
/// a message to the same figures of JSON.
pub(super) async fn push(bed: &Bed<'_>) -> anyhow::Result<Line> {
    let mut line = Line::default();
    line.add("connections", CONNECTIONS);
    let mut json = None;
    for (name, form) in [("json", Form::Json), ("plain", Form::Plain), ("framed", Form::Framed)] {
        let load = bed.load("push", CONNECTIONS, Shape::OneLane(BATCH));
        let load = Load { form, ..load };
        let mut part = pushed(bed, &bed.broker(), &load).await?;
        part.adopt("floor_", pushed(bed, &Program::Floor, &load).await?);
        let figures = ["push_msg_s", "floor_push_msg_s", "server_cpu_us_per_msg"];
        let [rate, floor, cpu] = figures.map(|name| part.value(name));
        part.number("over_floor", rate / floor);
        let (json_rate, json_cpu) = *json.get_or_insert((rate, cpu));
        part.number("over_json", rate / json_rate);
        part.number("cpu_over_json", cpu / json_cpu);
        line.adopt(&format!("{name}_"), part);
    }
    Ok(line)
}

async fn pushed(bed: &Bed<'_>, program: &Program<'_>, load: &Load) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = Node::start(program, scratch.path()).await?;
    node.configure(&load.queue).await?;
    warm_up(load, &node).await?;
    let window = Window::open(&node).await?;
    let pushed = load.run(&node).await?;
    let mut line = Line::default();
    let (messages, requests) = (pushed.messages, pushed.requests);
    let confirmed = pushed.confirmed.clone();
    report(&mut line, pushed);
    window.close(&node, messages, requests, &mut line).await?;
    if node.is_broker {
        let drain = Drain {
            queue: load.queue.clone(),
            connections: CONNECTIONS,
            lanes: load.lanes,
            ask: Ask { is_framed: true, ..Ask::fixed(1000, 10) },
            work: Work::None,
            limit: drain_limit(messages),
        };
        let drained = drain.run(node.port, Goal::of(messages)).await?;
        line.verdict(drained.check.verdict(&confirmed));
    }
    node.stop()?;
    Ok(line)
}

/// One backlog drained by 100 by one group in JSON and by another in stored records.
pub(super) async fn pop(bed: &Bed<'_>, messages: u64) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure("pop").await?;
    let counts = [messages / LANES as u64; LANES];
    let messages = counts.iter().sum();
    fill(&node, "pop", &bed.pad, &counts).await?;
    let mut line = Line::default();
    line.add("messages", messages);
    line.add("payload_bytes", PAYLOAD_BYTES);
    line.add("consumers", CONNECTIONS);
    line.add("batch", BATCH);
    let mut json = None;
    for (name, is_framed) in [("json", false), ("framed", true)] {
        let drain = Drain {
            queue: "pop".to_owned(),
            connections: CONNECTIONS,
            lanes: LANES as u32,
            ask: Ask { group: Some(name.to_owned()), is_framed, ..Ask::fixed(BATCH, 10) },
            work: Work::None,
            limit: drain_limit(messages) + Duration::from_secs(30),
        };
        let window = Window::open(&node).await?;
        let drained = drain.run(node.port, Goal::of(messages)).await?;
        let (pops, framed) = (drained.pops, drained.framed);
        ensure!(framed == if is_framed { pops } else { 0 }, "{framed} of {pops} were framed");
        let mut part = Line::default();
        part.number("msg_s", (drained.messages as f64 / drained.seconds).round());
        part.add("pops", pops);
        part.verdict(drained.check.verdict(&counts));
        part.latency("pop", drained.pop);
        part.latency("ack", drained.ack);
        window.close(&node, drained.messages, 2 * pops, &mut part).await?;
        let (rate, cpu) = (part.value("msg_s"), part.value("server_cpu_us_per_msg"));
        let (json_rate, json_cpu) = *json.get_or_insert((rate, cpu));
        part.number("over_json", rate / json_rate);
        part.number("cpu_over_json", cpu / json_cpu);
        line.adopt(&format!("{name}_"), part);
    }
    node.stop()?;
    Ok(line)
}
