//! Whole clusters on one thread: the product's own code of every layer but HTTP, over simulated disks, clocks and network.
//!
//! ```text
//! clients ----> nodes: machine, cycle, planner, state | replicator, library | writer, queue logs | checkpoint, reclaim
//!    |            |                                      |                       |
//!    |            |  trace: every line of it             network: delays, cuts   disks: lose what is not synced
//!    v            v
//!  judge: what clients were answered, what nodes applied          nemesis: faults, drawn from the seed
//! ```
//!
//! One seed is one trace, byte for byte: one thread, tokio's time stands still while anything can run and then moves to the
//! next timer, every choice is drawn from the seed, nothing iterates over a map without an order.
//!
//! A run has two parts. In the first, faults come as the seed draws them while clients work. Then everything is healed:
//! the cluster must serve, groups are drained, and what every node holds is judged.

mod client;
mod clock;
mod judge;
mod nemesis;
mod net;
mod node;
mod power;
mod snapshots;
mod trace;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use queen_qlog::ReadLimit;
use queen_record::hash::queue_id;
use queen_record::ids::{Offset, Tenant};
use tokio::time::{Instant, sleep};

use crate::oracle::messages_of;
use crate::rng::Rng;
use client::{Client, Work};
use judge::{Content, Judge};
use nemesis::{Nemesis, admit};
use net::{Delays, Net};
use node::{LiveNode, Sizes, Watchers};
use trace::Trace;
use world::World;

/// Where messages come in, and where the pipeline puts what it makes of them.
const ORDERS: &str = "orders";
const MADE: &str = "made";
/// Who consumes them.
const WORKERS: &str = "workers";
const PIPE: &str = "pipe";
/// How long a healed cluster has until it serves.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// How long nodes have until all have applied the same.
const LEVEL_WITHIN: Duration = Duration::from_secs(30);

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Simulated time with faults.
    pub seconds: u64,
    /// Nodes.
    pub nodes: u64,
    /// The faults.
    pub faults: Faults,
    /// Sites of syncs (as [`queen_io::SimDisk::sync_sites`] names them) that do nothing: what that does must be seen.
    pub dropped: Vec<String>,
    /// Whether the trace is kept.
    pub keeps_trace: bool,
}

/// Which faults there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Faults {
    /// None.
    None,
    /// Of the classes that the seed draws.
    Drawn,
    /// Of the classes whose names hold this.
    Only(String),
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// A hash over the trace, and its lines.
    pub digest: (u64, u64),
    /// The trace, if it was kept.
    pub trace: Option<String>,
    /// What happened how often.
    pub counts: BTreeMap<&'static str, u64>,
    /// Messages that were pushed, and those of them that were acknowledged.
    pub pushes: (usize, usize),
    /// What did not hold.
    pub violations: Vec<String>,
}

impl Report {
    /// Whether so little was answered that the run shows nothing.
    pub fn is_idle(&self) -> bool {
        self.count("answered") * 10 < self.count("operations")
    }

    /// How often something happened.
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }
}

/// What has to happen in a number of runs, so that they show something.
pub fn happenings() -> impl Iterator<Item = &'static str> {
    let others = ["snapshot loaded", "stopped by itself", "duplicates", "digests compared"];
    nemesis::classes().chain(others)
}

/// Runs a cluster.
///
/// # Panics
/// When the runtime cannot be made.
pub fn run(plan: &Plan) -> Report {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    runtime.block_on(simulate(plan))
}

async fn simulate(plan: &Plan) -> Report {
    let mut rng = Rng::new(plan.seed);
    let trace = Trace::new(plan.keeps_trace);
    let judge = Judge::new(trace.clone());
    let delays = Delays {
        usual_ms: 1 + rng.below(4),
        odd_one_in: 20 + rng.below(200),
        odd_ms: 5 + rng.below(100),
    };
    let net = Net::new(rng.draw(), delays, trace.clone());
    let watchers = Watchers { trace: trace.clone(), judge: judge.clone(), net };
    let sizes = sizes(&mut rng);
    trace.note(format_args!("{sizes:?} {delays:?}"));
    let world = World::new(watchers, sizes, plan.nodes, rng.draw(), &plan.dropped);
    for node in world.nodes() {
        world.begin(node);
    }
    let clients = begin_clients(&world, &mut rng);
    let until = Instant::now() + Duration::from_secs(plan.seconds);
    match Nemesis::new(world.clone(), rng.draw(), &plan.faults) {
        Some(nemesis) => nemesis.run(until).await,
        None => tokio::time::sleep_until(until).await,
    }
    world.end_clients();
    finish(&world, clients, &mut rng).await;
    Report {
        seed: plan.seed,
        digest: trace.digest(),
        trace: trace.text(),
        counts: judge.counts(),
        pushes: judge.pushes(),
        violations: judge.violations(),
    }
}

/// Sizes that make rare things common.
fn sizes(rng: &mut Rng) -> Sizes {
    let election = 300 + rng.below(700);
    Sizes {
        segment_bytes: 2048 << rng.below(4),
        shards: (rng.below(2) == 0).then(|| 1 + u32::try_from(rng.below(3)).unwrap_or(0)),
        checkpoint: Duration::from_millis(50 + rng.below(1000)),
        seal_age_us: 2_000_000,
        log_keep: 4 + rng.below(60),
        purge_hold: Duration::from_millis(1000 + rng.below(3000)),
        cache_bytes: 1024 << rng.below(12),
        election: Duration::from_millis(election),
        disk_ms: 1 + rng.below(6),
    }
}

fn begin_clients(world: &World, rng: &mut Rng) -> Vec<tokio::task::JoinHandle<()>> {
    let work = Work { lanes: 1 + rng.below(16), pause_ms: 20 + rng.below(150) };
    let mut clients = Vec::new();
    let mut number = 0;
    let mut next = |rng: &mut Rng| {
        number += 1;
        Client {
            world: world.clone(),
            number,
            rng: Rng::new(rng.draw()),
            work: work.clone(),
            made: 0,
        }
    };
    for _ in 0..3 {
        clients.push(tokio::spawn(next(rng).push(ORDERS)));
    }
    for _ in 0..2 {
        clients.push(tokio::spawn(next(rng).consume(ORDERS, WORKERS)));
    }
    clients.push(tokio::spawn(next(rng).pipeline(ORDERS, MADE, PIPE)));
    clients
}

/// Heals everything, and judges what is left.
async fn finish(world: &World, clients: Vec<tokio::task::JoinHandle<()>>, rng: &mut Rng) {
    let judge = &world.watchers.judge;
    world.watchers.trace.note(format_args!("everything is healed"));
    for client in clients {
        if let Err(error) = client.await {
            judge.violated(format!("a client panicked: {error}"));
        }
    }
    if !within(SERVES_WITHIN, || world.leader().is_some()).await {
        judge.violated(format!("J11 nobody leads {SERVES_WITHIN:?} after everything was healed"));
        return;
    }
    for node in world.nodes() {
        if !admit(world, node, Instant::now() + SERVES_WITHIN).await {
            judge.violated(format!("J11 node {node} cannot be made a voter"));
        }
    }
    let work = Work { lanes: 1, pause_ms: 1 };
    let mut client =
        Client { world: world.clone(), number: 1000, rng: Rng::new(rng.draw()), work, made: 0 };
    if !client.drain(ORDERS, WORKERS).await || !client.drain_pipeline(ORDERS, MADE, PIPE).await {
        judge.violated("J11 a group is never done".to_owned());
    }
    if !within(LEVEL_WITHIN, || is_level(world)).await {
        let applied: Vec<String> = live(world)
            .iter()
            .map(|node| format!("node {}: {}", node.node, node.applied()))
            .collect();
        judge.violated(format!("J11 nodes have not applied the same: {}", applied.join(", ")));
        return;
    }
    for (at, node) in live(world).iter().enumerate() {
        let (applied, digest) = {
            let state = node.state.read();
            (state.applied(), state.digest())
        };
        judge.compare(node.node, applied, digest);
        match content(node) {
            Ok(content) => {
                judge.judge(&content);
                if at == 0 {
                    judge.judge_group(&content, WORKERS, ORDERS);
                    judge.judge_group(&content, PIPE, ORDERS);
                    judge.judge_pipeline(&content, ORDERS, MADE);
                }
            }
            Err(error) => judge.violated(format!("node {}: {error}", node.node)),
        }
    }
}

fn live(world: &World) -> Vec<std::sync::Arc<LiveNode>> {
    world.nodes().into_iter().filter_map(|node| world.node(node)).collect()
}

/// Whether all nodes run and have applied the same.
fn is_level(world: &World) -> bool {
    let nodes = live(world);
    let first = nodes.first().map(|node| node.applied());
    nodes.len() == world.nodes().len() && nodes.iter().all(|node| Some(node.applied()) == first)
}

async fn within(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !holds() {
        if Instant::now() > until {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Everything that a node's logs hold.
fn content(node: &LiveNode) -> Result<Content, String> {
    let state = node.state.read();
    let (mut lanes, mut done) = (BTreeMap::new(), BTreeMap::new());
    for (id, row) in state.partitions() {
        let Some(queue) = state.queue_by_number(row.queue) else { continue };
        let name = state.partition_name(row).to_owned();
        let log = node.qlog.log_of(queue_id(Tenant::DEFAULT, &queue.name), Some(id));
        let all = ReadLimit { messages: u32::MAX, bytes: u64::MAX };
        let records = node.qlog.read(log, id, Offset(0), all).map_err(|error| error.to_string())?;
        let messages = messages_of(&records)?
            .into_iter()
            .map(|(offset, found)| (offset, found.transaction_id, found.payload))
            .collect();
        lanes.insert((id, (queue.name.to_string(), name)), messages);
        for group in [WORKERS, PIPE] {
            let cursor = queue.group(group).and_then(|group| state.cursor(id, group.number));
            let count = cursor.map_or(0, |cursor| cursor.committed + 1);
            done.insert((group.to_owned(), id), u64::try_from(count).unwrap_or(0));
        }
    }
    Ok(Content { node: node.node, lanes, done })
}
