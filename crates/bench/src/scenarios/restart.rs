//! A kill in the middle of a load, and the way back.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::http::Client;
use crate::load::{Load, Shape};
use crate::measure::Line;
use crate::node::{Node, Scratch};
use crate::scenarios::Bed;
use crate::wire::{Form, Item, Lane, Pusher};

const CONNECTIONS: u32 = 8;
const LIMIT: Duration = Duration::from_mins(2);

/// Kill -9 while pushing, then the time until a push is confirmed; everything confirmed must come out again.
pub(super) async fn restart(bed: &Bed<'_>) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let mut node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure("restart").await?;
    let load = bed.load("restart", CONNECTIONS, Shape::OneLane(100));
    let load = Load { end: crate::load::End::After(LIMIT), may_fail: true, ..load };
    let pid = node.pid();
    let pushing = load.run(&node);
    let killing = async {
        tokio::time::sleep(bed.options.time).await;
        kill(pid)
    };
    let (pushed, killed) = tokio::join!(pushing, killing);
    let pushed = pushed?;
    killed?;
    node.kill();
    let mut line = Line::default();
    line.add("messages", pushed.messages);
    line.number("push_msg_s", (pushed.messages as f64 / bed.options.time.as_secs_f64()).round());
    let node = first_push(bed, &scratch, pushed.messages, &mut line).await?;
    let drain = Drain {
        queue: load.queue.clone(),
        connections: CONNECTIONS,
        lanes: load.lanes,
        ask: Ask::fixed(100, 10),
        work: Work::None,
        limit: LIMIT,
    };
    let goal = Goal::of(pushed.confirmed.iter().sum());
    let drained = drain.run(node.port, goal).await?;
    line.number("drain_msg_s", (drained.messages as f64 / drained.seconds).round());
    line.verdict(drained.check.verdict(&pushed.confirmed));
    node.stop()?;
    Ok(line)
}

pub(super) fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    ensure!(pid.is_some(), "no process id");
    if let Some(pid) = pid {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    Ok(())
}

/// Starts the server again and pushes until one push is confirmed.
pub(super) async fn first_push(
    bed: &Bed<'_>,
    scratch: &Scratch,
    messages: u64,
    line: &mut Line,
) -> anyhow::Result<Node> {
    let mut body = Vec::new();
    let prefix = "again".to_owned();
    let place = ("after", Lane::Partition);
    let mut pusher = Pusher::new(place, &bed.pad, prefix, Form::Json)?;
    pusher.body(&mut body, &[Item { lane: 0, seq: 0 }])?;
    let started = Instant::now();
    let node = Node::launch(&bed.broker(), scratch.path())?;
    loop {
        if let Ok(mut client) = Client::connect(node.port).await
            && let Ok(answer) = client.post("/api/v1/push", &body).await
            && answer.status == 201
        {
            break;
        }
        ensure!(started.elapsed() < LIMIT, "no push is confirmed after the restart");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let took = started.elapsed().as_secs_f64();
    line.number("first_push_s", took);
    line.number("first_push_s_per_million", took * 1e6 / messages as f64);
    Ok(node)
}
