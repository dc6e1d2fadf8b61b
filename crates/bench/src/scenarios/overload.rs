//! Three times as much as the broker can take.

use std::future::Future;
use std::time::Duration;

use crate::check::Check;
use crate::drain::{Ask, Drain, Drained, Goal, Work};
use crate::flood::Flood;
use crate::load::{End, Load, Shape};
use crate::measure::{Line, Window};
use crate::node::{Node, Program};
use crate::scenarios::{Bed, REST, drain_limit, report, warm_up};
use crate::usage::{self, Memory};

const BATCH: u32 = 100;
/// Connections and lanes of the peak.
const PEAK_CONNECTIONS: u32 = 8;
const PEAK_TIME: Duration = Duration::from_secs(5);
const FLOOD_TIME: Duration = Duration::from_secs(6);
const FLOOD_TIME_FULL: Duration = Duration::from_mins(1);
/// What is offered, over the peak.
const FACTOR: f64 = 3.0;
/// Writes that may wait: some 27 requests, three times as many as the peak has under way. One round of the core takes them
/// all, and an acknowledgment waits for two rounds.
const ADMIT_MB: u32 = 1;
/// How long a write waits for room before it is refused. Short, so that refused requests come back and are refused again
/// within the run; the default of 15 s would make them wait instead.
const ADMIT_HOLD_MS: u32 = 250;
/// Connections beyond what the hold alone would ask for: a request takes longer than its hold.
const SLACK: f64 = 1.25;
const CONNECTIONS: std::ops::RangeInclusive<u32> = 64..=4000;
/// Descriptors beside the connections.
const OTHER_FILES: u64 = 600;
/// The consumers beside: two, each with a pop of 10 and its acknowledgment every 20 ms.
const CONSUMERS: u32 = 2;
const CONSUMER_PACE: Duration = Duration::from_millis(20);

/// The peak of `push-100` for 5 s, then three times that from as many connections as it takes, then the peak again.
///
/// Shape: `peak_`, `flood_` and `after_` hold the three loads, each with the same pair of consumers beside it;
/// `goodput_share` is what was confirmed within the time, and `offered_share` what was asked, over the better of the
/// peaks; `recovered_share` is the second peak over the first. Everything confirmed is drained and checked.
pub(super) async fn overload(bed: &Bed<'_>) -> anyhow::Result<Line> {
    usage::raise_open_files(u64::from(*CONNECTIONS.end()) + OTHER_FILES)?;
    // The caller's own settings come later and win.
    let mut settings = vec![
        ("QUEEN_RAFT_ADMIT_MAX_MB".to_owned(), ADMIT_MB.to_string()),
        ("QUEEN_RAFT_ADMIT_HOLD_MS".to_owned(), ADMIT_HOLD_MS.to_string()),
    ];
    settings.extend(bed.options.settings.iter().cloned());
    let program = Program::Broker { binary: &bed.options.binary, settings: &settings };
    let scratch = bed.scratch()?;
    let node = Node::start(&program, scratch.path()).await?;
    let mut line = Line::default();
    line.add("admit_mb", ADMIT_MB);
    line.add("admit_hold_ms", ADMIT_HOLD_MS);
    let before = peak(bed, &node, "before").await?;
    let [before_msg_s, before_req_s] = ["push_msg_s", "push_req_s"].map(|name| before.value(name));
    line.adopt("peak_", before);
    let offered = before_req_s * FACTOR;
    // A refused request holds its connection for the hold, and half of them for the second after it.
    let hold_s = f64::from(ADMIT_HOLD_MS) / 1e3;
    let each_s = 0.5 / hold_s + 0.5 / (hold_s + 1.0);
    let connections = SLACK * offered / each_s;
    let flood = Flood {
        queue: "flood".to_owned(),
        connections: (connections.ceil() as u32).clamp(*CONNECTIONS.start(), *CONNECTIONS.end()),
        batch: BATCH,
        rate: offered,
        time: if bed.options.is_full { FLOOD_TIME_FULL } else { FLOOD_TIME },
        pad: bed.pad.clone(),
    };
    let flooded = flooded(&node, flood).await?;
    let after = peak(bed, &node, "after").await?;
    let after_msg_s = after.value("push_msg_s");
    let peak_msg_s = before_msg_s.max(after_msg_s);
    line.number("goodput_share", flooded.value("good_msg_s") / peak_msg_s);
    line.number("offered_share", flooded.value("requests_s") * f64::from(BATCH) / peak_msg_s);
    line.number("recovered_share", after_msg_s / before_msg_s);
    line.adopt("flood_", flooded);
    line.adopt("after_", after);
    node.stop()?;
    Ok(line)
}

async fn peak(bed: &Bed<'_>, node: &Node, queue: &str) -> anyhow::Result<Line> {
    let load = bed.load(queue, PEAK_CONNECTIONS, Shape::OneLane(BATCH));
    let load = Load { end: End::After(PEAK_TIME), ..load };
    node.configure(&load.queue).await?;
    warm_up(&load, node).await?;
    let window = Window::open(node).await?;
    let (pushed, beside, memory) = beside(node, &load.queue, load.lanes, load.run(node)).await?;
    let mut line = Line::default();
    let (messages, requests) = (pushed.messages, pushed.requests);
    let confirmed = pushed.confirmed.clone();
    report(&mut line, pushed);
    report_beside(&mut line, &beside, memory);
    window.close(node, messages, requests + 2 * beside.pops, &mut line).await?;
    verify(node, &load.queue, &confirmed, beside, &mut line).await?;
    Ok(line)
}

async fn flooded(node: &Node, flood: Flood) -> anyhow::Result<Line> {
    node.configure(&flood.queue).await?;
    let mut line = Line::default();
    let before = usage::memory_now(node.pid());
    line.number("rss_start_mib", mib(before.rss_bytes));
    line.number("anon_start_mib", mib(before.anon_bytes));
    let window = Window::open(node).await?;
    let run = flood.run(node.port);
    let (done, beside, memory) = beside(node, &flood.queue, flood.connections, run).await?;
    let seconds = flood.time.as_secs_f64();
    let per_second = |count: u64| (count as f64 / seconds).round();
    let messages: u64 = done.confirmed.iter().sum();
    line.add("connections", flood.connections);
    line.add("requests", done.requests);
    line.number("requests_s", per_second(done.requests));
    line.number("good_msg_s", per_second(done.good * u64::from(flood.batch)));
    line.add("refused", done.refused);
    line.add("retry_after_max_s", done.retry_after_max_s);
    line.add("unknown", done.unknown);
    line.latency("push", done.latency);
    report_beside(&mut line, &beside, memory);
    window.close(node, messages, done.requests + 2 * beside.pops, &mut line).await?;
    verify(node, &flood.queue, &done.confirmed, beside, &mut line).await?;
    tokio::time::sleep(REST).await;
    let after = usage::memory_now(node.pid());
    line.number("rss_end_mib", mib(after.rss_bytes));
    line.number("anon_end_mib", mib(after.anon_bytes));
    Ok(line)
}

/// Runs a load with the pair of consumers beside it; the most memory that was seen meanwhile.
async fn beside<T>(
    node: &Node,
    queue: &str,
    lanes: u32,
    load: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(T, Drained, Memory)> {
    let drain = Drain {
        queue: queue.to_owned(),
        connections: CONSUMERS,
        lanes,
        ask: Ask::fixed(10, 1),
        work: Work::Paced(CONSUMER_PACE),
        limit: FLOOD_TIME_FULL * 2,
    };
    let goal = Goal::open();
    let loading = async {
        let loaded = load.await;
        goal.end();
        loaded
    };
    let pid = node.pid();
    let mut most = Memory::default();
    let watching = async {
        loop {
            let now = usage::memory_now(pid);
            most.rss_bytes = most.rss_bytes.max(now.rss_bytes);
            most.anon_bytes = most.anon_bytes.max(now.anon_bytes);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let both = async { tokio::join!(loading, drain.run(node.port, goal.clone())) };
    let (loaded, drained) = tokio::select! {
        both = both => both,
        () = watching => unreachable!("it watches until the loads are over"),
    };
    Ok((loaded?, drained?, most))
}

fn report_beside(line: &mut Line, beside: &Drained, most: Memory) {
    line.add("pops", beside.pops);
    line.latency("pop", beside.pop.clone());
    line.latency("ack", beside.ack.clone());
    line.number("rss_max_mib", mib(most.rss_bytes));
    line.number("anon_max_mib", mib(most.anon_bytes));
}

/// Drains what the pair left, and checks all of it.
async fn verify(
    node: &Node,
    queue: &str,
    confirmed: &[u64],
    beside: Drained,
    line: &mut Line,
) -> anyhow::Result<()> {
    let left = confirmed.iter().sum::<u64>().saturating_sub(beside.messages);
    let drain = Drain {
        queue: queue.to_owned(),
        connections: PEAK_CONNECTIONS,
        lanes: confirmed.len() as u32,
        ask: Ask { is_framed: true, ..Ask::fixed(1000, 64) },
        work: Work::None,
        limit: drain_limit(left),
    };
    let check: Check = beside.check;
    let drained = drain.resume(node.port, Goal::of(left), check).await?;
    line.verdict(drained.check.verdict(confirmed));
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
