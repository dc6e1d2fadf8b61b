//! Ten thousand pops that wait for a message.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::{AbortHandle, JoinSet};

use crate::drain::{Ask, Drain, Goal, Work};
use crate::http::Client;
use crate::load::{fill, micros};
use crate::measure::Line;
use crate::node::Node;
use crate::scenarios::{Bed, REST, drain_limit};
use crate::usage;
use crate::wire::{Form, Item, Lane, Popped, Pusher, ack_body, now_us};

const COUNT: usize = 10_000;
const LANES: usize = 16;
const QUEUE: &str = "parked";
const POP: &str = "/api/v1/pop/queue/parked?batch=1&wait=true&timeout=60000";
const POP_NOW: &str = "/api/v1/pop/queue/parked?batch=1";
/// Descriptors of this program and of the broker beside the connections.
const OTHER_FILES: u64 = 600;
/// How long nothing happens.
const QUIET: Duration = Duration::from_secs(5);
/// How long a condition is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// Each of 10,000 connections has one pop parked on a queue of 16 partitions.
///
/// Shape: `anon_bytes_per_connection` is an idle connection that was answered once; `anon_bytes_per_parked` is what its
/// parked pop adds to that. Processor time is that of five seconds in which nothing happens: no connection, idle
/// connections, parked pops. One message wakes one pop (`first_wake_ms`), then one more goes to each partition. Half of
/// the rest leave, the others are answered when the node stops.
pub(super) async fn parked(bed: &Bed<'_>) -> anyhow::Result<Line> {
    usage::raise_open_files(COUNT as u64 + OTHER_FILES)?;
    let scratch = bed.scratch()?;
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    make_partitions(bed, &node).await?;
    let mut line = Line::default();
    line.add("connections", COUNT);
    let [none, idle, parked] = ["empty", "idle", "parked"];
    let empty = quiet(&node, none, &mut line).await?;
    let mut clients = Client::connect_many(node.port, COUNT, (POP_NOW, 204)).await?;
    let connected = quiet(&node, idle, &mut line).await?;
    for client in &mut clients {
        client.ask(POP).await?;
    }
    until_parked(&node, COUNT).await?;
    let waiting = quiet(&node, parked, &mut line).await?;
    let each = |bytes: f64| bytes / COUNT as f64;
    line.number("anon_bytes_per_connection", each(connected - empty).round());
    line.number("anon_bytes_per_parked", each(waiting - connected).round());
    let waiters = wake(bed, &node, clients, &mut line).await?;
    release(node, waiters, &mut line).await?;
    Ok(line)
}

/// Makes the partitions, and leaves them empty.
async fn make_partitions(bed: &Bed<'_>, node: &Node) -> anyhow::Result<()> {
    node.configure(QUEUE).await?;
    fill(node, QUEUE, &bed.pad, &[1; LANES]).await?;
    let drain = Drain {
        queue: QUEUE.to_owned(),
        connections: 1,
        lanes: LANES as u32,
        ask: Ask::fixed(100, 64),
        work: Work::None,
        limit: drain_limit(0),
    };
    let drained = drain.run(node.port, Goal::of(LANES as u64)).await?;
    ensure!(drained.messages == LANES as u64, "{} messages came back", drained.messages);
    Ok(())
}

/// Rests, and reads the processor time of quiet seconds and the anonymous memory at their end.
async fn quiet(node: &Node, name: &str, line: &mut Line) -> anyhow::Result<f64> {
    tokio::time::sleep(REST).await;
    let before = usage::usage(node.pid()).cpu_s;
    tokio::time::sleep(QUIET).await;
    let cpu_s = usage::usage(node.pid()).cpu_s - before;
    line.number(&format!("{name}_cpu_ms_in_5_s"), cpu_s * 1e3);
    let memory = usage::memory(node.pid());
    line.number(&format!("{name}_anon_mib"), memory.anon_bytes as f64 / f64::from(1 << 20));
    line.number(&format!("{name}_rss_mib"), memory.rss_bytes as f64 / f64::from(1 << 20));
    Ok(memory.anon_bytes as f64)
}

async fn until_parked(node: &Node, count: usize) -> anyhow::Result<()> {
    let until = Instant::now() + LIMIT;
    loop {
        let parked = node.metrics().await?.value("queen_parked_long_polls") as usize;
        if parked == count {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{parked} pops are parked, not {count}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A pop's answer: its status, when it came, and the acknowledgment of what it held.
struct Woken {
    status: u16,
    at: Instant,
    items: Vec<Item>,
    ack: Vec<u8>,
}

/// All pops that were not answered yet.
struct Waiters {
    answers: JoinSet<anyhow::Result<Woken>>,
    handles: Vec<AbortHandle>,
}

async fn wait_for_answer(mut client: Client) -> anyhow::Result<Woken> {
    let answer = client.answer().await?;
    let (status, at) = (answer.status, Instant::now());
    let mut woken = Woken { status, at, items: Vec::new(), ack: Vec::new() };
    if status == 200 {
        let popped = serde_json::from_slice::<Popped<'_>>(answer.body)?;
        let data = popped.messages.iter().map(|message| message.data);
        woken.items.extend(data.map(|data| Item { lane: data.lane, seq: data.seq }));
        ack_body(&mut woken.ack, &popped.messages, None);
    }
    Ok(woken)
}

/// One message after the other, to each partition; each must reach one pop.
async fn wake(
    bed: &Bed<'_>,
    node: &Node,
    clients: Vec<Client>,
    line: &mut Line,
) -> anyhow::Result<Waiters> {
    let mut waiters = Waiters { answers: JoinSet::new(), handles: Vec::new() };
    for client in clients {
        waiters.handles.push(waiters.answers.spawn(wait_for_answer(client)));
    }
    let mut client = Client::connect(node.port).await?;
    let place = (QUEUE, Lane::Partition);
    let prefix = format!("{:x}-wake", now_us());
    let mut pusher = Pusher::new(place, &bed.pad, prefix, Form::Json)?;
    let mut body = Vec::new();
    let mut latency = Vec::new();
    for lane in 0..LANES as u32 {
        let item = Item { lane, seq: 1 };
        pusher.body(&mut body, &[item])?;
        let pushed = Instant::now();
        let answer = client.post("/api/v1/push", &body).await?;
        ensure!(answer.status == 201, "push: {} {}", answer.status, answer.excerpt());
        let next = tokio::time::timeout(LIMIT, waiters.answers.join_next()).await;
        let woken = next.context("no pop was woken")?.context("no pop is left")???;
        ensure!(woken.status == 200, "a parked pop was answered {}", woken.status);
        latency.push(micros(woken.at - pushed));
        ensure!(woken.items == [item], "{:?} in place of {item:?}", woken.items);
        let answer = client.post("/api/v1/ack/batch", &woken.ack).await?;
        ensure!(answer.status == 200, "ack: {} {}", answer.status, answer.excerpt());
    }
    until_parked(node, COUNT - LANES).await?;
    line.number("first_wake_ms", f64::from(latency[0]) / 1e3);
    line.latency("wake", latency);
    Ok(waiters)
}

/// Half of the clients leave; the others are answered by the stop.
async fn release(node: Node, waiters: Waiters, line: &mut Line) -> anyhow::Result<()> {
    let Waiters { mut answers, handles } = waiters;
    let left = COUNT - LANES;
    let open: Vec<AbortHandle> = handles.into_iter().filter(|one| !one.is_finished()).collect();
    ensure!(open.len() == left, "{} pops wait, not {left}", open.len());
    open.iter().take(left / 2).for_each(AbortHandle::abort);
    until_parked(&node, left - left / 2).await?;
    let stopping = tokio::task::spawn_blocking(move || node.stop());
    let mut answered = 0;
    while let Some(done) = answers.join_next().await {
        match done {
            Ok(woken) => {
                let status = woken?.status;
                ensure!(status == 204, "the stop answered a pop {status}");
                answered += 1;
            }
            Err(aborted) => ensure!(aborted.is_cancelled(), "a waiting client failed"),
        }
    }
    stopping.await??;
    ensure!(answered == left - left / 2, "{answered} pops were answered by the stop");
    line.add("left", left / 2);
    line.add("answered_by_stop", answered);
    Ok(())
}
