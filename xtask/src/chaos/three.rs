//! `cargo xtask chaos --nodes 3`: three real nodes that are one broker, and everything that can happen to them.
//!
//! Each runs in a network of its own where we may make one, else on one address of loopback, where networks cannot be cut.
//! The load and the rules are those of one node; its clients go to another member when one does not answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;

use super::image::Disk;
use super::load::{self, Load, Shared};
use super::nemesis::{Kind, Nemesis};
use super::oracle::{self, Delivered, Verdict};
use super::stalls;
use super::{ChaosOptions, SETTLE_LIMIT, SHOWN_MAX};
use crate::cluster::{Cluster, MEMBERS};
use crate::network::Network;
use crate::rng::Rng;
use crate::shell::{self, Scratch};
use crate::test::Tally;

/// After this time a leader does not take a member for one that answers.
const SILENT: Duration = Duration::from_millis(1_500);
/// How often the lead is given up until a certain member has it.
const TURNS_MAX: usize = 30;
/// Which files a node's logs have is its own business.
const OWN_ROW: &str = "meta row=logs ";
/// Begins the last line of a dump.
const ROWS_END: &str = "\nrows: meta ";
const DUMP_LIMIT: Duration = Duration::from_mins(2);

/// Runs it; counts one for violations, one for crashes, and one for stalls that nothing explains.
pub(super) fn run(binary: &Path, options: &ChaosOptions) -> anyhow::Result<Tally> {
    println!("chaos: three nodes, seed {}, {} s", options.seed, options.seconds);
    let network = Network::new(MEMBERS);
    let network = network.inspect_err(|reason| {
        println!("no networks of our own, none is cut: {reason:#}");
    });
    let network = network.ok();
    match &network {
        Some(inside) => inside.hub().run(|| run_in(binary, options, network.as_ref()))?,
        None => run_in(binary, options, None),
    }
}

fn run_in(
    binary: &Path,
    options: &ChaosOptions,
    network: Option<&Network>,
) -> anyhow::Result<Tally> {
    let mut scratch = Scratch::new("chaos")?;
    let mut rng = Rng::new(options.seed);
    let mut cluster = Cluster::new(scratch.path(), binary, network)?;
    tune(&mut cluster, &mut rng);
    let kinds = kinds(options, network)?;
    let needs_power =
        kinds.iter().any(|kind| matches!(kind, Kind::Power | Kind::PowerAll | Kind::Behind));
    let mut disks = Vec::new();
    for at in 0..MEMBERS {
        let home = scratch.path().join(format!("node{}", at + 1));
        let disk = Disk::new(&home, options.has_power_cuts && needs_power)?;
        cluster.move_data(at, disk.directory());
        disks.push(disk);
    }
    cluster.launch_all()?;
    cluster.wait_equal()?;
    let shared = Arc::new(Shared::new(cluster.addresses()));
    load::configure(&shared)?;
    let load = Load::start(&shared, options.seed);
    let mut nemesis = Nemesis {
        cluster: &mut cluster,
        network,
        disks,
        shared: &shared,
        rng: rng.clone(),
        faults: Vec::new(),
        snapshots: 0,
    };
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let disturbed = disturb(&mut nemesis, &kinds, until);
    let calm_at = shared.now();
    shared.is_calm.store(true, Ordering::SeqCst);
    let settled = disturbed.and_then(|()| settle(&mut nemesis, &shared));
    shared.is_over.store(true, Ordering::SeqCst);
    let histories = load.join()?;
    let Nemesis { faults, snapshots, disks, .. } = nemesis;
    let judged = settled.and_then(|()| {
        let log = read_everywhere(&mut cluster, &shared)?;
        let verdict = oracle::judge(&histories, &log.first);
        compare_rows(cluster, binary)?;
        Ok((verdict, log.differences))
    });
    let counts = faults.iter().fold(BTreeMap::<_, u64>::new(), |mut counts, fault| {
        *counts.entry(fault.name).or_default() += 1;
        counts
    });
    let counts: Vec<String> =
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("faults: {}, snapshots loaded {snapshots}", counts.join(", "));
    let (mut verdict, differences) = match judged {
        Ok(judged) => judged,
        Err(reason) => {
            scratch.keep();
            println!("{reason:#}\nthe data is kept in {}", scratch.path().display());
            println!("crashes 1, seed {}", options.seed);
            return Ok(Tally::one(false));
        }
    };
    verdict.violations.extend(differences);
    let stalls = stalls::find(&histories, &faults, calm_at);
    for stall in &stalls {
        println!("stall: {stall}");
    }
    let unexplained = stalls.iter().filter(|stall| stall.by.is_empty()).count();
    report(&verdict, stalls.len(), unexplained, options);
    if !verdict.violations.is_empty() {
        scratch.keep();
        println!("the data is kept in {}", scratch.path().display());
    }
    drop(disks);
    ensure!(
        verdict.acknowledged as u64 >= 5 * options.seconds,
        "not judged: only {} pushes were acknowledged",
        verdict.acknowledged
    );
    let mut tally = Tally::one(verdict.violations.is_empty());
    tally.add(Tally::one(unexplained == 0));
    Ok(tally)
}

fn report(verdict: &Verdict, stalls: usize, unexplained: usize, options: &ChaosOptions) {
    for violation in verdict.violations.iter().take(SHOWN_MAX) {
        println!("VIOLATION {violation}");
    }
    println!(
        "acknowledged pushes {}, given up {}, duplicates {}, deliveries {}, crashes 0, stalls {stalls}, of them \
         unexplained {unexplained}, violations {}, seed {}",
        verdict.acknowledged,
        verdict.given_up,
        verdict.duplicates,
        verdict.deliveries,
        verdict.violations.len(),
        options.seed
    );
}

/// What can be done here, of what was asked for.
fn kinds(options: &ChaosOptions, network: Option<&Network>) -> anyhow::Result<Vec<Kind>> {
    let can_deafen = network.is_some_and(Network::can_deafen);
    let has_strace =
        Command::new("strace").arg("-V").output().is_ok_and(|done| done.status.success());
    let can = |kind: &Kind| match kind {
        Kind::Cut | Kind::CutOneWay => network.is_some(),
        Kind::Deaf => can_deafen,
        Kind::SlowDisk => has_strace,
        Kind::Power | Kind::PowerAll => options.has_power_cuts,
        _ => true,
    };
    let wanted = |kind: &Kind| {
        options.only.is_empty() || options.only.iter().any(|name| name == kind.name())
    };
    if let Some(unknown) =
        options.only.iter().find(|name| Kind::ALL.iter().all(|kind| kind.name() != *name))
    {
        let names = Kind::ALL.map(Kind::name).join(", ");
        bail!("there is no fault {unknown:?}; there are {names}");
    }
    let (kinds, not): (Vec<Kind>, Vec<Kind>) = Kind::ALL.into_iter().filter(wanted).partition(can);
    if !not.is_empty() {
        let names: Vec<&str> = not.into_iter().map(Kind::name).collect();
        println!("not done here: {}", names.join(", "));
    }
    ensure!(!kinds.is_empty(), "nothing of that can be done here");
    Ok(kinds)
}

/// Settings that make the interesting moments frequent.
fn tune(cluster: &mut Cluster, rng: &mut Rng) {
    let mut set = |name: &str, values: &[&str]| {
        let at = usize::try_from(rng.next() % values.len() as u64).unwrap_or_default();
        cluster.set(name, values.get(at).copied().unwrap_or_default());
    };
    set("QUEEN_RAFT_SEGMENT_BYTES", &["65536", "262144", "1048576"]);
    set("QUEEN_RAFT_DURABLE_EVERY_MS", &["20", "100", "500", "1000"]);
    set("QUEEN_RAFT_QLOG_PREALLOC_KB", &["0", "64", "1024"]);
    set("QUEEN_QLOG_PRECREATE", &["true", "false"]);
    set("QUEEN_RAFT_LOG_KEEP", &["8", "256", "4096"]);
    set("QUEEN_RAFT_PURGE_HOLD_S", &["1", "600"]);
    set("QUEEN_RAFT_LOG_CACHE_MB", &["1", "512"]);
}

/// Strikes until the time is over: every kind once in an order of its own, then again in another.
fn disturb(nemesis: &mut Nemesis<'_>, kinds: &[Kind], until: Instant) -> anyhow::Result<()> {
    let mut order: Vec<Kind> = Vec::new();
    while Instant::now() < until {
        if order.is_empty() {
            order = kinds.to_vec();
            for last in (1..order.len()).rev() {
                let other =
                    usize::try_from(nemesis.rng.next() % (last as u64 + 1)).unwrap_or_default();
                order.swap(last, other);
            }
        }
        nemesis.rest(200, 2_000)?;
        if let Some(kind) = order.pop() {
            nemesis.strike(kind)?;
        }
    }
    nemesis.heal()
}

/// Lets the pushers finish and the consumers drain.
fn settle(nemesis: &mut Nemesis<'_>, shared: &Shared) -> anyhow::Result<()> {
    let until = Instant::now() + SETTLE_LIMIT;
    while !shared.is_settled() {
        nemesis.rest(50, 50).context("crash while settling")?;
        if Instant::now() > until {
            bail!("the load does not settle: {}\n{}", shared.state(), nemesis.cluster.log_tails());
        }
    }
    Ok(())
}

/// The log as members hold it.
struct Logs {
    first: Vec<(u64, Delivered)>,
    differences: Vec<String>,
}

/// Reads the whole log of every member: a member that leads reads its own files.
fn read_everywhere(cluster: &mut Cluster, shared: &Shared) -> anyhow::Result<Logs> {
    let mut logs: Vec<Option<Vec<(u64, Delivered)>>> = vec![None; MEMBERS];
    for _ in 0..TURNS_MAX {
        cluster.wait_equal()?;
        let leader = cluster.leader()?;
        if let Some(place) = logs.get_mut(leader).filter(|log| log.is_none()) {
            let mut log = load::read_all(shared, &format!("audit-{leader}"))?;
            log.sort_by_key(|(partition, message)| (*partition, message.offset));
            *place = Some(log);
        }
        let Some(wanted) = logs.iter().position(Option::is_none) else { break };
        // Who does not answer is not handed the lead.
        let other = (0..MEMBERS).find(|at| *at != leader && *at != wanted).context("no third")?;
        cluster.signal(other, Signal::STOP)?;
        shell::pause(SILENT);
        cluster.stop(leader)?;
        cluster.signal(other, Signal::CONT)?;
        cluster.launch(leader)?;
    }
    let mut logs = logs.into_iter().enumerate();
    let (_, first) = logs.next().context("no members")?;
    let first = first.context("node 1 never led")?;
    let mut differences = Vec::new();
    for (at, log) in logs {
        let log = log.with_context(|| format!("node {} never led", at + 1))?;
        let same = first.iter().zip(&log).take_while(|(one, other)| one == other).count();
        if same < first.len().max(log.len()) {
            let (one, other) = (first.get(same), log.get(same));
            differences.push(format!("nodes 1 and {} differ: {one:?}, {other:?}", at + 1));
        }
    }
    Ok(Logs { first, differences })
}

/// Stops all members and compares what their checkpoints hold, row by row, after `queen doctor` read every byte.
fn compare_rows(mut cluster: Cluster, binary: &Path) -> anyhow::Result<()> {
    cluster.wait_equal()?;
    cluster.stop_members()?;
    let mut first: Option<String> = None;
    for at in 0..MEMBERS {
        let directory = cluster.options(at)?.directory.clone();
        shell::must(Command::new(binary).arg("doctor").arg(&directory), DUMP_LIMIT)?;
        let mut dump = Command::new(binary);
        dump.args(["store", "dump"]).arg(&directory);
        let mut rows = shell::must(&mut dump, DUMP_LIMIT)?;
        ensure!(rows.contains(ROWS_END), "node {}: the dump has no end", at + 1);
        rows = rows.lines().filter(|row| !row.starts_with(OWN_ROW)).collect::<Vec<_>>().join("\n");
        match &first {
            None => first = Some(rows),
            Some(first) => {
                let other = first.lines().zip(rows.lines()).find(|(one, other)| one != other);
                ensure!(*first == rows, "the rows of nodes 1 and {} differ: {other:?}", at + 1);
            }
        }
    }
    Ok(())
}
