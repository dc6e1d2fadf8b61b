//! Pushes while space is given back all the time.

use std::time::Duration;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::files;
use crate::http::Client;
use crate::load::{End, Load, Shape};
use crate::measure::{Line, Window};
use crate::node::{Node, Program};
use crate::scenarios::{Bed, drain_limit, report};

const CONNECTIONS: u32 = 8;
const BATCH: u32 = 100;
/// Requests a second of the queue that keeps its messages; each file has some of them, so that it is rewritten.
const KEPT_PER_S: f64 = 20.0;
const KEPT_LANES: u32 = 4;
/// Small files, seen often; both queues share one log.
const SETTINGS: [(&str, &str); 5] = [
    ("QUEEN_QLOG_SHARDS", "1"),
    ("QUEEN_RAFT_SEGMENT_BYTES", "4194304"),
    ("QUEEN_RAFT_TXN_WINDOW_MIN_S", "1"),
    ("RETENTION_INTERVAL", "500"),
    ("QUEEN_QLOG_COMPACT_MIN_DEAD_PCT", "50"),
];
const MIB: f64 = 1024.0 * 1024.0;

/// The same load with a retention of two seconds, and without one.
pub(super) async fn reclaim(bed: &Bed<'_>) -> anyhow::Result<Line> {
    let mut line = Line::default();
    line.adopt("with_", run(bed, true).await?);
    line.adopt("without_", run(bed, false).await?);
    Ok(line)
}

async fn run(bed: &Bed<'_>, removes: bool) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let own = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let settings: Vec<_> = own.into_iter().chain(bed.options.settings.iter().cloned()).collect();
    let broker = Program::Broker { binary: &bed.options.binary, settings: &settings };
    let node = Node::start(&broker, scratch.path()).await?;
    let options = if removes {
        r#"{"retentionEnabled":true,"retentionSeconds":2,"dedupWindowSeconds":1}"#
    } else {
        r#"{"dedupWindowSeconds":1}"#
    };
    configure(&node, "passing", options).await?;
    configure(&node, "kept", r#"{"dedupWindowSeconds":1}"#).await?;
    let time = bed.options.time.max(Duration::from_secs(4)) * 3;
    let load = bed.load("passing", CONNECTIONS, Shape::OneLane(BATCH));
    let load = Load { end: End::After(time), ..load };
    let kept = bed.load("kept", 1, Shape::OneLane(1));
    let kept = Load { lanes: KEPT_LANES, end: End::Paced(KEPT_PER_S, time), ..kept };
    let window = Window::open(&node).await?;
    let (passing, stayed) = tokio::join!(load.run(&node), kept.run(&node));
    let (passing, stayed) = (passing?, stayed?);
    let mut line = Line::default();
    let (messages, requests) = (passing.messages + stayed.messages, passing.requests);
    report(&mut line, passing);
    window.close(&node, messages, requests, &mut line).await?;
    let disk = files::bytes(&scratch.path().join("data").join("qlog"))? as f64;
    let metrics = node.metrics().await?;
    let removed = metrics.value("queen_retention_messages_total");
    let live = (messages as f64 - removed) * line.value("log_bytes_per_msg");
    line.number("disk_mib", disk / MIB);
    line.number("live_mib", live / MIB);
    line.number("disk_over_live", disk / live.max(1.0));
    for kind in ["files", "rewrites", "seals"] {
        let name = format!("queen_raft_reclaimed_total{{kind=\"{kind}\"}}");
        line.number(&format!("reclaimed_{kind}"), metrics.value(&name));
    }
    let drain = Drain {
        queue: "kept".to_owned(),
        connections: 1,
        lanes: KEPT_LANES,
        ask: Ask::fixed(BATCH, 10),
        work: Work::None,
        limit: drain_limit(stayed.messages),
    };
    // What was copied by rewrites must be there still, once and in order.
    let drained = drain.run(node.port, Goal::of(stayed.confirmed.iter().sum())).await?;
    line.verdict(drained.check.verdict(&stayed.confirmed));
    node.stop()?;
    Ok(line)
}

async fn configure(node: &Node, queue: &str, options: &str) -> anyhow::Result<()> {
    let mut client = Client::connect(node.port).await?;
    let body = format!("{{\"queue\":\"{queue}\",\"options\":{options}}}");
    let answer = client.post("/api/v1/configure", body.as_bytes()).await?;
    anyhow::ensure!(answer.status == 200, "configure: {} {}", answer.status, answer.excerpt());
    Ok(())
}
