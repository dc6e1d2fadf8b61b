//! The leader goes: how long no write is confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::drain::{Ask, Drain, Goal, Work};
use crate::http::Client;
use crate::load::{End, Load, Shape, micros};
use crate::measure::Line;
use crate::node::Node;
use crate::scenarios::{Bed, WARM_UP};
use crate::site::{Site, Through};
use crate::wire::{self, Form, Item, Lane, Pusher};

/// Clusters that lose their leader in each way.
const ROUNDS: u32 = 5;
const CONNECTIONS: u32 = 8;
const LIMIT: Duration = Duration::from_mins(1);
/// Watched for this long after the leader has ended and a push was confirmed.
const AFTER: Duration = Duration::from_millis(500);

/// Under a load through a follower the leader ends, by SIGKILL and by SIGTERM, each in clusters of its own.
///
/// Shape: `kill_` and `term_p50_ms` and `_max_ms` are the longest time from the signal, or a confirmed push after it, to
/// the next confirmed push, of a client that sends one after the other through the follower. What other clients had
/// confirmed before is drained and compared.
pub(super) async fn failover(bed: &Bed<'_>) -> anyhow::Result<Line> {
    let mut line = Line::default();
    line.add("rounds", ROUNDS);
    for is_kill in [true, false] {
        let name = if is_kill { "kill" } else { "term" };
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            took.push(round(bed, is_kill, &mut line).await?);
        }
        took.sort_unstable();
        line.number(&format!("{name}_p50_ms"), f64::from(took[took.len() / 2]) / 1e3);
        line.number(&format!("{name}_max_ms"), f64::from(took[took.len() - 1]) / 1e3);
    }
    Ok(line)
}

async fn round(bed: &Bed<'_>, is_kill: bool, line: &mut Line) -> anyhow::Result<u32> {
    let scratch = bed.scratch()?;
    let (options, through) = (bed.options, Through::Follower);
    let mut site = Site::three(&options.binary, &options.settings, scratch.path(), through).await?;
    site.configure("work").await?;
    let load = bed.load("work", CONNECTIONS, Shape::OneLane(1));
    // A request that the leader took with it ends its producer.
    let load = Load { may_fail: true, end: End::After(WARM_UP * 3), ..load };
    let leader = site.take_leader()?;
    let pushing = load.run(&site);
    let ending = async {
        tokio::time::sleep(WARM_UP).await;
        let (sent, is_ended) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let told = is_ended.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let ended = end(leader, is_kill);
            told.store(true, Ordering::SeqCst);
            ended
        });
        let gap = longest_gap(bed, site.port, sent, &is_ended).await;
        (gap, ended)
    };
    let (pushed, (gap, ended)) = tokio::join!(pushing, ending);
    ended.await??;
    let (pushed, gap) = (pushed?, gap?);
    ensure!(pushed.messages > 0, "nothing was pushed before the leader went");
    let drain = Drain {
        queue: load.queue.clone(),
        connections: CONNECTIONS,
        lanes: load.lanes,
        ask: Ask::fixed(100, 10),
        work: Work::None,
        limit: LIMIT,
    };
    let drained = drain.run(site.port, Goal::of(pushed.confirmed.iter().sum())).await?;
    line.verdict(drained.check.verdict(&pushed.confirmed));
    ensure!(!line.is_wrong, "what was confirmed is missing, doubled or out of order");
    site.stop()?;
    Ok(gap)
}

fn end(mut leader: Node, is_kill: bool) -> anyhow::Result<()> {
    if is_kill {
        leader.kill();
        return Ok(());
    }
    leader.stop()
}

/// Sends one push after the other, also for a while after the leader has ended; the longest wait for a confirmed one.
async fn longest_gap(
    bed: &Bed<'_>,
    port: u16,
    sent: Instant,
    is_ended: &AtomicBool,
) -> anyhow::Result<u32> {
    let prefix = format!("{:x}-gap", wire::now_us());
    let mut pusher = Pusher::new(("gap", Lane::Partition), &bed.pad, prefix, Form::Json)?;
    let (mut body, mut seq) = (Vec::new(), 0);
    let (mut last, mut longest, mut until) = (sent, Duration::ZERO, None);
    let mut client = None;
    while until.is_none_or(|until| Instant::now() < until) {
        ensure!(last.elapsed() < LIMIT, "no push is confirmed after the leader went");
        pusher.body(&mut body, &[Item { lane: 0, seq }])?;
        let is_after = is_ended.load(Ordering::SeqCst);
        if push(&mut client, port, &body).await {
            let now = Instant::now();
            longest = longest.max(now - last);
            (last, seq) = (now, seq + 1);
            if is_after && until.is_none() {
                until = Some(now + AFTER);
            }
        } else {
            client = None;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(micros(longest))
}

/// Whether a push is confirmed.
async fn push(client: &mut Option<Client>, port: u16, body: &[u8]) -> bool {
    if client.is_none() {
        *client = Client::connect(port).await.ok();
    }
    let Some(client) = client else { return false };
    client.post("/api/v1/push", body).await.is_ok_and(|answer| answer.status == 201)
}
