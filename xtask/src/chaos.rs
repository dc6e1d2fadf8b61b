//! `cargo xtask chaos`: a real node under load, killed or cut from its power at random moments.
//!
//! The load's histories are kept and judged at the end ([`oracle`]); the nemesis is the loop below. A kill shows
//! wrong bookkeeping, a power cut shows what was answered before it was on the disk ([`image`]).

mod image;
mod load;
mod nemesis;
mod oracle;
mod stalls;
mod three;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;

use crate::args::Args;
use crate::node::{self, Node, NodeOptions};
use crate::rng::Rng;
use crate::shell::{self, Scratch};
use crate::test::Tally;

use image::Disk;
use load::{Load, Shared};

/// How long the load may take to settle once nobody disturbs it.
const SETTLE_LIMIT: Duration = Duration::from_mins(2);
/// Again within this long after a restart began, while the node recovers.
const AGAIN_WITHIN_MS: u64 = 300;
/// Violations that are printed.
const SHOWN_MAX: usize = 20;

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct ChaosOptions {
    pub(crate) has_kills: bool,
    pub(crate) has_power_cuts: bool,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// One, or three that are one broker.
    pub(crate) nodes: u32,
    /// With three nodes: only faults of these names.
    pub(crate) only: Vec<String>,
}

impl Default for ChaosOptions {
    fn default() -> Self {
        Self {
            has_kills: true,
            has_power_cuts: true,
            seconds: 60,
            seed: Rng::fresh_seed(),
            nodes: 1,
            only: Vec::new(),
        }
    }
}

/// The command.
pub(crate) fn chaos(mut args: Args) -> anyhow::Result<()> {
    let mut options = ChaosOptions::default();
    let (has_kills, has_power_cuts) = (args.flag("--kill"), args.flag("--power"));
    options.seconds = args.value("--seconds")?.unwrap_or(options.seconds);
    options.seed = args.value("--seed")?.unwrap_or(options.seed);
    options.nodes = args.value("--nodes")?.unwrap_or(options.nodes);
    let only: Option<String> = args.value("--only")?;
    options.only = only.iter().flat_map(|names| names.split(',').map(str::to_owned)).collect();
    let other: Option<std::path::PathBuf> = args.value("--binary")?;
    args.end()?;
    ensure!(matches!(options.nodes, 1 | 3), "--nodes is 1 or 3");
    if options.nodes == 1 {
        (options.has_kills, options.has_power_cuts) = (has_kills, has_power_cuts);
        ensure!(has_kills || has_power_cuts, "say --kill, --power or both");
        ensure!(options.only.is_empty(), "--only goes with --nodes 3");
    } else {
        ensure!(!has_kills, "three nodes are always killed");
        options.has_power_cuts = has_power_cuts;
    }
    let binary = other.map_or_else(node::build, Ok)?;
    let tally = run(&binary, &options)?;
    ensure!(tally.failed == 0, "chaos found something wrong");
    Ok(())
}

/// What the nemesis did.
#[derive(Default)]
struct Count {
    kills: u64,
    power_cuts: u64,
    crashes: u64,
}

/// Runs it; counts one for the violations and one for the crashes.
pub(crate) fn run(binary: &Path, options: &ChaosOptions) -> anyhow::Result<Tally> {
    if options.nodes > 1 {
        return three::run(binary, options);
    }
    println!("chaos: seed {}, {} s", options.seed, options.seconds);
    let mut scratch = Scratch::new("chaos")?;
    let mut disk = Disk::new(scratch.path(), options.has_power_cuts)?;
    let mut node_options = NodeOptions::below(scratch.path(), binary)?;
    node_options.directory = disk.directory();
    let mut rng = Rng::new(options.seed);
    tune(&mut node_options, &mut rng);
    let node = Node::start(&node_options)?;
    let shared = Arc::new(Shared::new(vec![node_options.address]));
    load::configure(&shared)?;
    let load = Load::start(&shared, options.seed);

    let mut count = Count::default();
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let disturbed =
        disturb(node, &mut node_options, &mut disk, &mut rng, options, until, &mut count);
    shared.is_calm.store(true, Ordering::SeqCst);
    let mut node = match disturbed {
        Ok(node) => node,
        Err(reason) => {
            shared.is_over.store(true, Ordering::SeqCst);
            drop(load.join());
            scratch.keep();
            println!("{reason:#}\nthe data is kept in {}", scratch.path().display());
            println!(
                "crashes 1, kills {}, power cuts {}, seed {}",
                count.kills, count.power_cuts, options.seed
            );
            return Ok(Tally::one(false));
        }
    };
    let settled = settle(&mut node, &shared);
    shared.is_over.store(true, Ordering::SeqCst);
    let histories = load.join()?;
    settled?;
    // At rest: an orderly stop, then a last kill, and only then the whole log is read.
    node.stop().context("the stop at rest")?;
    node = Node::start(&node_options)?;
    node.kill();
    count.kills += 1;
    node = Node::start(&node_options)?;
    let log = load::read_all(&shared, "audit")?;
    node.stop()?;

    let verdict = oracle::judge(&histories, &log);
    for violation in verdict.violations.iter().take(SHOWN_MAX) {
        println!("VIOLATION {violation}");
    }
    println!(
        "kills {}, power cuts {}, acknowledged pushes {}, given up {}, duplicates {}, deliveries {}, crashes {}, \
         violations {}, seed {}",
        count.kills,
        count.power_cuts,
        verdict.acknowledged,
        verdict.given_up,
        verdict.duplicates,
        verdict.deliveries,
        count.crashes,
        verdict.violations.len(),
        options.seed
    );
    if !verdict.violations.is_empty() {
        scratch.keep();
        println!("the data is kept in {}", scratch.path().display());
    }
    ensure!(
        verdict.acknowledged as u64 >= 10 * options.seconds,
        "not judged: only {} pushes were acknowledged",
        verdict.acknowledged
    );
    let mut tally = Tally::one(verdict.violations.is_empty());
    tally.add(Tally::one(count.crashes == 0));
    Ok(tally)
}

/// Settings that make the interesting moments frequent; other ones after every restart.
fn tune(options: &mut NodeOptions, rng: &mut Rng) {
    let mut set = |name: &str, values: &[&str]| {
        let at = usize::try_from(rng.next() % values.len() as u64).unwrap_or_default();
        (name.to_owned(), values.get(at).copied().unwrap_or_default().to_owned())
    };
    options.settings = vec![
        set("QUEEN_RAFT_SEGMENT_BYTES", &["65536", "262144", "1048576"]),
        set("QUEEN_RAFT_DURABLE_EVERY_MS", &["20", "100", "500", "1000"]),
        set("QUEEN_RAFT_QLOG_PREALLOC_MIN_SYNCS", &["1", "64"]),
        set("QUEEN_RAFT_QLOG_PREALLOC_KB", &["0", "64", "1024"]),
        set("QUEEN_QLOG_PRECREATE", &["true", "false"]),
    ];
}

/// Kills and cuts until the time is over; the node that serves at the end, or how one failed to.
fn disturb(
    mut node: Node,
    node_options: &mut NodeOptions,
    disk: &mut Disk,
    rng: &mut Rng,
    options: &ChaosOptions,
    until: Instant,
    count: &mut Count,
) -> anyhow::Result<Node> {
    let mut is_recovering = false;
    loop {
        let wait =
            if is_recovering { rng.within(0, AGAIN_WITHIN_MS) } else { rng.within(200, 2200) };
        shell::pause(Duration::from_millis(wait));
        // One that ended by itself is a crash, and so is one that cannot start again.
        node.check_running().context("crash")?;
        let is_power = options.has_power_cuts && (!options.has_kills || rng.chance(40));
        if is_power {
            cut_power(node, disk).context("power cut")?;
            count.power_cuts += 1;
        } else {
            node.kill();
            count.kills += 1;
        }
        let is_late = Instant::now() >= until;
        tune(node_options, rng);
        node = Node::launch(node_options)?;
        is_recovering = !is_late && rng.chance(20);
        if !is_recovering {
            node.wait_serving().context("crash")?;
        }
        if is_late {
            return Ok(node);
        }
    }
}

/// What was not synced lives only in the page cache above the image: stop the node, copy the image, kill.
fn cut_power(mut node: Node, disk: &mut Disk) -> anyhow::Result<()> {
    node.signal(Signal::STOP)?;
    image::wait_stopped(node.id());
    disk.copy()?;
    node.kill();
    disk.swap()
}

/// Lets the pushers finish and the consumers drain.
fn settle(node: &mut Node, shared: &Arc<Shared>) -> anyhow::Result<()> {
    let until = Instant::now() + SETTLE_LIMIT;
    loop {
        node.check_running().context("crash while settling")?;
        if shared.is_settled() {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("the load does not settle: {}", shared.state());
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}
