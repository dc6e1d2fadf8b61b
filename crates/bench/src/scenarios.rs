//! The scenarios: a server on a fresh directory, a load, a line.

mod autopilot;
mod binary;
mod checkpoint;
mod cold;
mod consume;
mod failover;
mod fanout;
mod lanes;
mod overload;
mod parked;
mod push;
mod reclaim;
mod restart;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;

use crate::load::{End, Load, Pushed, Shape};
use crate::measure::Line;
use crate::node::{Node, Program, Scratch};
use crate::options::Options;
use crate::site::{Site, Through};
use crate::wire::{Form, Lane, Pad};

/// How long a server warms up before it is measured.
const WARM_UP: Duration = Duration::from_millis(400);
/// How long a server rests before its memory is read.
const REST: Duration = Duration::from_millis(1500);

/// Runs a scenario.
///
/// # Errors
/// The server does not start or refuses a request.
pub(crate) async fn run(scenario: &str, options: &Options) -> anyhow::Result<Vec<Line>> {
    let mut bed = Bed { options, pad: Arc::new(Pad::new()), through: None };
    if scenario == "failover" {
        return Ok(vec![failover::failover(&bed).await?]);
    }
    let mut lines = on(&bed, scenario).await?;
    if options.has_three {
        for through in [Through::Leader, Through::Follower] {
            bed.through = Some(through);
            lines.extend(on(&bed, scenario).await?);
        }
    }
    Ok(lines)
}

async fn on(bed: &Bed<'_>, scenario: &str) -> anyhow::Result<Vec<Line>> {
    let options = bed.options;
    let line = match scenario {
        "push-1" => push::push(bed, 64, Shape::OneLane(1)).await?,
        "push-100" => push::push(bed, 8, Shape::OneLane(100)).await?,
        "push-pop-ack" => {
            let by_1 = consume::push_pop_ack(bed, 64, 1).await?;
            let by_100 = consume::push_pop_ack(bed, 8, 100).await?;
            return Ok(vec![by_1, by_100]);
        }
        "paced" => consume::paced(bed).await?,
        "lanes" if options.is_full => {
            let small = lanes::lanes(bed, 100_000).await?;
            return Ok(vec![small, lanes::lanes(bed, 1_000_000).await?]);
        }
        "lanes" => lanes::lanes(bed, 100_000).await?,
        "lanes-wide" => push::wide(bed, Lane::Partition).await?,
        "queues-100" => push::wide(bed, Lane::Queue).await?,
        "dedup" => push::dedup(bed, bed.sized(300_000, 1_000_000)).await?,
        "restart" => restart::restart(bed).await?,
        "push-binary" => binary::push(bed).await?,
        "pop-framed" => binary::pop(bed, bed.sized(200_000, 1_000_000)).await?,
        "txn-3q" => transactions::three_queues(bed, bed.sized(40_000, 200_000)).await?,
        "fanout-5g" => fanout::five_groups(bed).await?,
        "parked-10k" => parked::parked(bed).await?,
        "overload" => overload::overload(bed).await?,
        "autopilot" => autopilot::autopilot(bed, bed.sized(100_000, 500_000)).await?,
        "checkpoint-1m" => checkpoint::checkpoint(bed, bed.partitions(1_000_000)).await?,
        "restart-1m" => cold::restart(bed, bed.partitions(1_000_000)).await?,
        "cold-read" => cold::read(bed, bed.sized(500_000, 4_000_000)).await?,
        "reclaim-load" => reclaim::reclaim(bed).await?,
        other => bail!("no scenario {other}"),
    };
    Ok(vec![line])
}

/// What scenarios share.
struct Bed<'a> {
    options: &'a Options,
    pad: Arc<Pad>,
    /// The member of three that the load talks to; none for a node alone.
    through: Option<Through>,
}

impl Bed<'_> {
    fn scratch(&self) -> anyhow::Result<Scratch> {
        Scratch::new(&self.options.dir)
    }

    fn broker(&self) -> Program<'_> {
        Program::Broker { binary: &self.options.binary, settings: &self.options.settings }
    }

    /// Starts the broker, or the three that are one.
    async fn start(&self, scratch: &Scratch) -> anyhow::Result<Site> {
        self.start_program(&self.broker(), scratch).await
    }

    /// The same of another program, which is always alone.
    async fn start_program(
        &self,
        program: &Program<'_>,
        scratch: &Scratch,
    ) -> anyhow::Result<Site> {
        match (program, self.through) {
            (Program::Broker { binary, settings }, Some(through)) => {
                Site::three(binary, settings, scratch.path(), through).await
            }
            _ => Site::alone(program, scratch.path()).await,
        }
    }

    /// The small size, or the full one when that was asked for.
    fn sized<T>(&self, small: T, full: T) -> T {
        if self.options.is_full { full } else { small }
    }

    /// This many partitions, or as the caller asked.
    fn partitions(&self, count: u32) -> u32 {
        self.options.partitions.unwrap_or(count)
    }

    /// A load of single partitions of one queue that ends after the options' time.
    fn load(&self, queue: &str, connections: u32, shape: Shape) -> Load {
        Load {
            queue: queue.to_owned(),
            lane: Lane::Partition,
            connections,
            lanes: 64,
            shape,
            form: Form::Json,
            end: End::After(self.options.time),
            first_seq: 0,
            may_fail: false,
            pad: self.pad.clone(),
        }
    }
}

/// Runs a load shortly on a queue of its own.
async fn warm_up(load: &Load, node: &Node) -> anyhow::Result<()> {
    let queue = format!("{}-warm", load.queue);
    node.configure(&queue).await?;
    Load { queue, end: End::After(WARM_UP), ..load.clone() }.run(node).await?;
    Ok(())
}

/// The longest that consumers may take for so many messages, on a busy machine too.
fn drain_limit(messages: u64) -> Duration {
    Duration::from_secs(60 + messages / 2500)
}

/// Adds what producers did.
fn report(line: &mut Line, pushed: Pushed) {
    line.add("pushed", pushed.messages);
    line.number("push_msg_s", (pushed.messages as f64 / pushed.seconds).round());
    line.number("push_req_s", (pushed.requests as f64 / pushed.seconds).round());
    line.latency("push", pushed.latency);
}
