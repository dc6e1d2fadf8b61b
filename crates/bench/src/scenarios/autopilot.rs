//! Sizes of pops chosen by the broker against fixed ones.

use std::time::Duration;

use crate::drain::{Ask, Drain, Goal, Sizes, Work};
use crate::load::fill;
use crate::measure::{Line, Window};
use crate::node::Node;
use crate::scenarios::{Bed, drain_limit};

const CONSUMERS: u32 = 8;
const LANES: usize = 24;
const QUEUE: &str = "uneven";
/// How long a consumer that works handles a message.
const HANDLING: Duration = Duration::from_micros(50);

/// 24 partitions whose backlogs fall from one to the next, drained by 8 consumers: with the broker's defaults (200
/// messages of one partition), with 100 of up to 64, and with the broker's choice; each by a group of its own.
///
/// Shape: first by consumers that do nothing else, then, as `work_...`, by consumers that handle each message for 50 us
/// before they acknowledge. Ratios are times with the broker's choice over times without: below 1 it is faster.
pub(super) async fn autopilot(bed: &Bed<'_>, messages: u64) -> anyhow::Result<Line> {
    let scratch = bed.scratch()?;
    let node = Node::start(&bed.broker(), scratch.path()).await?;
    node.configure(QUEUE).await?;
    let counts = uneven(messages);
    fill(&node, QUEUE, &bed.pad, &counts).await?;
    let mut line = Line::default();
    line.add("messages", counts.iter().sum::<u64>());
    line.add("partitions", LANES);
    line.add("largest_partition", counts[0]);
    line.add("consumers", CONSUMERS);
    for (prefix, work) in [("", Work::None), ("work_", Work::PerMessage(HANDLING))] {
        let mut part = Line::default();
        for (name, sizes) in [
            ("defaults", Sizes::Defaults),
            ("fixed", Sizes::Fixed { batch: 100, partitions: 64 }),
            ("autopilot", Sizes::Autopilot),
        ] {
            let ask = Ask { group: Some(format!("{prefix}{name}")), sizes, ..Ask::fixed(1, 1) };
            part.adopt(&format!("{name}_"), drained(&node, ask, work, &counts).await?);
        }
        let [defaults, fixed, autopilot] =
            ["defaults_s", "fixed_s", "autopilot_s"].map(|name| part.value(name));
        part.number("autopilot_over_defaults", autopilot / defaults);
        part.number("autopilot_over_fixed", autopilot / fixed);
        line.adopt(prefix, part);
    }
    node.stop()?;
    Ok(line)
}

/// Partition n holds the first one's backlog over the root of n: no partition alone is more than a consumer's part.
fn uneven(messages: u64) -> [u64; LANES] {
    let share = |at: usize| 1.0 / ((at + 1) as f64).sqrt();
    let shares: f64 = (0..LANES).map(share).sum();
    std::array::from_fn(|at| (messages as f64 * share(at) / shares).round() as u64)
}

async fn drained(node: &Node, ask: Ask, work: Work, counts: &[u64]) -> anyhow::Result<Line> {
    let messages = counts.iter().sum();
    let is_chosen = matches!(ask.sizes, Sizes::Autopilot);
    let drain = Drain {
        queue: QUEUE.to_owned(),
        connections: CONSUMERS,
        lanes: LANES as u32,
        ask,
        work,
        limit: drain_limit(messages),
    };
    let window = Window::open(node).await?;
    let drained = drain.run(node.port, Goal::of(messages)).await?;
    let mut all = Line::default();
    window.close(node, drained.messages, 2 * drained.pops, &mut all).await?;
    let mut line = Line::default();
    line.number("s", drained.seconds);
    line.add("pops", drained.pops);
    line.number("server_cpu_us_per_msg", all.value("server_cpu_us_per_msg"));
    line.verdict(drained.check.verdict(counts));
    if is_chosen {
        let pops = drained.pops.max(1) as f64;
        line.number("partitions_mean", f64::from(drained.chosen.partitions) / pops);
        line.number("batch_mean", f64::from(drained.chosen.batch) / pops);
    }
    Ok(line)
}
