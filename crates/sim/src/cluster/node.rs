//! One life of a node: the product's own code from recovery to answers, as tasks of one thread.
//!
//! ```text
//! clients -> inputs -> core task: the product's machine, one round after the other
//!                      tasks of the cluster: library, network, log writer, purge
//!                      checkpoint task, background task (next files, side files), reclaim task
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use queen_broker::StateOwners;
use queen_broker::cipher::Vault;
use queen_broker::cycle::{Cycle, CycleLimits, Input, hash_window_s};
use queen_broker::lookup::Reader;
use queen_broker::machine::{Machine, Round};
use queen_broker::prepare::MintIds;
use queen_broker::recover::{self, Kind};
use queen_io::{Clock, Disk};
use queen_qlog::Qlog;
use queen_raft::{
    Cluster, ClusterOptions, ClusterParts, ClusterReplicator, Member, Tasks, load_staged,
};
use queen_reclaim::{Reclaimer, StateView};
use queen_record::ids::{EntryIndex, Micros, Uuid};
use queen_record::layout::Shards;
use queen_state::State;
use queen_store::DiskStore;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::clock::{NodeClock, PlanClock};
use super::judge::Judge;
use super::net::{Life, Net, address_of};
use super::power::{Power, PoweredDisk};
use super::snapshots::Copies;
use super::trace::Trace;
use crate::node::{Cutting, DATA};
use crate::rng::Rng;

/// What the nodes of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Bytes after which a log file is sealed.
    pub segment_bytes: u64,
    /// Shared logs; `None` for one per queue.
    pub shards: Option<u32>,
    /// Time between two checkpoints.
    pub checkpoint: Duration,
    /// Age at which a file is sealed early, µs.
    pub seal_age_us: i64,
    /// Entries kept behind the purge point.
    pub log_keep: u64,
    /// How long a silent member is waited for.
    pub purge_hold: Duration,
    /// Bytes of entries kept in memory.
    pub cache_bytes: usize,
    /// Silence before an election.
    pub election: Duration,
    /// Usual time of an order to the log's writer, ms.
    pub disk_ms: u64,
}

/// What a life of a node is begun with.
pub(crate) struct Birth {
    /// Its number.
    pub node: u64,
    /// How many lives it had.
    pub life: u64,
    /// The voters of a new cluster.
    pub peers: Vec<u64>,
    /// Whether it waits to be added.
    pub join: bool,
    /// Its disk.
    pub disk: PoweredDisk,
    /// The disk's power.
    pub power: Arc<Power>,
    /// Its clocks.
    pub clock: Arc<NodeClock>,
    /// Where its chance begins.
    pub seed: u64,
    /// Sizes.
    pub sizes: Sizes,
    /// How much longer its disk takes, ms.
    pub slow_ms: Arc<AtomicU64>,
}

/// What all nodes report to.
#[derive(Clone)]
pub(crate) struct Watchers {
    /// What happens.
    pub trace: Trace,
    /// What must hold.
    pub judge: Judge,
    /// How they reach each other.
    pub net: Net,
}

/// A node that runs.
pub(crate) struct LiveNode {
    /// Its number.
    pub node: u64,
    /// Its tasks.
    pub tasks: Tasks,
    /// Its power.
    pub power: Arc<Power>,
    /// Its place in the cluster.
    pub cluster: Arc<Cluster>,
    /// Its state.
    pub state: Arc<RwLock<State>>,
    /// Its logs.
    pub qlog: Qlog,
    /// Its message ids.
    pub ids: NodeIds,
    /// Why it stopped, once it has.
    pub stopped: Arc<Stopped>,
    inbox: Arc<Inbox>,
    leads: Arc<AtomicBool>,
}

/// Why a node stopped by itself.
#[derive(Default)]
pub(crate) struct Stopped {
    reason: Mutex<Option<String>>,
    /// Whether it wants to be started again, to load a snapshot.
    pub for_restart: AtomicBool,
    /// Told once.
    pub told: Notify,
}

impl Stopped {
    /// Notes the first reason.
    pub(crate) fn tell(&self, reason: String) {
        self.reason.lock().get_or_insert(reason);
        self.told.notify_one();
    }

    /// The reason.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }
}

#[derive(Default)]
struct Inbox {
    inputs: Mutex<Vec<Input>>,
    arrived: Notify,
}

impl Inbox {
    fn put(&self, input: Input) {
        self.inputs.lock().push(input);
        self.arrived.notify_one();
    }
}

/// Message ids that ascend on a node and are no other's.
pub(crate) struct NodeIds {
    node: u64,
    next: AtomicU64,
}

impl MintIds for NodeIds {
    fn mint(&self, count: usize) -> Vec<Uuid> {
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        let tail = self.node << 56;
        let id =
            |tick: u64| Uuid::v7(tick >> 12, u16::try_from(tick & 0xfff).unwrap_or(0), tail | tick);
        (first..first + count as u64).map(id).collect()
    }
}

impl LiveNode {
    /// Hands it a command.
    pub(crate) fn send(&self, input: Input) {
        self.inbox.put(input);
    }

    /// Whether it plans.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// The last applied entry.
    pub(crate) fn applied(&self) -> EntryIndex {
        self.state.read().applied()
    }

    /// Whether it serves.
    pub(crate) fn is_well(&self) -> bool {
        self.stopped.reason().is_none() && !self.power.is_off()
    }
}

/// Where a node is reached.
pub(crate) fn member_of(node: u64) -> Member {
    Member::at(address_of(node).to_string(), format!("node {node}"))
}

fn options(birth: &Birth) -> ClusterOptions {
    ClusterOptions {
        dir: DATA.into(),
        node: birth.node,
        peers: birth.peers.iter().map(|node| (*node, member_of(*node))).collect(),
        listen: Some(address_of(birth.node)),
        token: "the token".to_owned(),
        join: birth.join,
        force_recover: false,
        heartbeat: birth.sizes.election / 10,
        election: birth.sizes.election,
        cache_bytes_max: birth.sizes.cache_bytes,
        promote_lag_max: 100,
        log_keep: birth.sizes.log_keep,
        purge_hold: birth.sizes.purge_hold,
    }
}

fn qlog_options(sizes: &Sizes) -> queen_qlog::Options {
    queen_qlog::Options {
        segment_bytes: sizes.segment_bytes,
        lanes: 1,
        shards: sizes.shards.map_or(Shards::None, Shards::Count),
        prealloc_kb: 0,
        fsync_threads: 0,
        ..queen_qlog::Options::new(Path::new(DATA).join("qlog"))
    }
}

/// Numbers that no other node draws.
fn draw(seed: u64) -> Arc<dyn Fn() -> u128 + Send + Sync> {
    let rng = Mutex::new(Rng::new(seed ^ 0xD15C));
    Arc::new(move || {
        let mut rng = rng.lock();
        u128::from(rng.draw()) << 64 | u128::from(rng.draw())
    })
}

/// How long each order to a node's writer takes.
fn pace(birth: &Birth) -> Arc<dyn Fn() -> Duration + Send + Sync> {
    let (slow_ms, usual_ms) = (birth.slow_ms.clone(), birth.sizes.disk_ms);
    let rng = Mutex::new(Rng::new(birth.seed ^ 0x5EED));
    Arc::new(move || {
        let ms = rng.lock().below(usual_ms + 1) + slow_ms.load(Ordering::SeqCst);
        Duration::from_millis(ms)
    })
}

/// Starts a node, from within a task of its group.
///
/// # Errors
/// Why it refuses.
pub(crate) async fn start(
    birth: Birth,
    tasks: Tasks,
    life: Life,
    watchers: Watchers,
) -> Result<LiveNode, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let node = birth.node;
    let disk: Arc<dyn Disk> = Arc::new(birth.disk.clone());
    let dir = Path::new(DATA);
    let loaded = load_staged(&disk, dir, node).map_err(|error| told(&error))?;
    if let Some(index) = loaded {
        watchers.trace.note(format_args!("node {node} loads a snapshot of entry {index}"));
        watchers.judge.count("snapshot loaded");
    }
    let mut store =
        DiskStore::open(disk.clone(), &dir.join("store")).map_err(|error| told(&error))?;
    let qlog_options = qlog_options(&birth.sizes);
    let opened = recover::open(&disk, dir, &qlog_options, &mut store, Kind::Member)
        .map_err(|error| told(&error))?;
    let clock = PlanClock::new(birth.clock.clone());
    let limits = CycleLimits::default();
    let window_s = hash_window_s(&opened.state, limits.hash_window_min_s);
    let since = clock.now().plus_seconds(-window_s);
    let filter = recover::warm_filter(&opened.qlog, since).map_err(|error| told(&error))?;
    let cycle = Cycle::new(&opened.state, filter, limits);
    let (applied, term) = (opened.state.applied(), opened.state.term());
    watchers.trace.note(format_args!(
        "node {node} opens: checkpoint {}, logs to {} of term {}",
        opened.durable, opened.cut.last, opened.last_term
    ));
    let state = Arc::new(RwLock::new(opened.state));
    let (inbox, stopped) = (Arc::<Inbox>::default(), Arc::<Stopped>::default());
    let copies = Arc::new(Copies::default());
    let parts = ClusterParts {
        disk: disk.clone(),
        qlog: opened.qlog.clone(),
        last: (opened.cut.last, opened.last_term),
        durable: (opened.durable, term),
        owners: Box::new(StateOwners(state.clone())),
        made: opened.made,
        wake: {
            let inbox = inbox.clone();
            Arc::new(move || inbox.put(Input::Progress))
        },
        failed: {
            let stopped = stopped.clone();
            Arc::new(move |reason| stopped.tell(reason))
        },
        restart: {
            let stopped = stopped.clone();
            Arc::new(move |reason| {
                stopped.for_restart.store(true, Ordering::SeqCst);
                stopped.tell(reason);
            })
        },
        draw: draw(birth.seed),
        now_ms: clock.now().0 / 1000,
        snapshots: copies.clone(),
    };
    let network = Arc::new(watchers.net.of(node, life.clone()));
    let pace = pace(&birth);
    let (cluster, replicator) = queen_raft::start_here(&options(&birth), parts, network, pace)
        .await
        .map_err(|error| told(&error))?;
    let leads = Arc::new(AtomicBool::new(false));
    let reader = Reader::new(opened.qlog.clone(), Arc::new(Vault::without_key()));
    let core = Core {
        node,
        machine: Machine::new(
            state.clone(),
            reader,
            cycle,
            Box::<ClusterReplicator>::new(replicator),
        ),
        inbox: inbox.clone(),
        clock,
        rng: Rng::new(birth.seed),
        leads: leads.clone(),
        watchers: watchers.clone(),
        applied,
    };
    let tick = u64::try_from(birth.clock.monotonic_us()).unwrap_or(0) + (birth.life << 40);
    let live = LiveNode {
        node,
        tasks,
        power: birth.power,
        cluster: Arc::new(cluster),
        state,
        qlog: opened.qlog,
        ids: NodeIds { node, next: AtomicU64::new(tick) },
        stopped,
        inbox,
        leads,
    };
    let background = Background { birth_clock: birth.clock, sizes: birth.sizes, disk, watchers };
    live.begin(core, background, store, copies);
    Ok(live)
}

/// What the tasks besides the core need.
struct Background {
    birth_clock: Arc<NodeClock>,
    sizes: Sizes,
    disk: Arc<dyn Disk>,
    watchers: Watchers,
}

impl LiveNode {
    fn begin(&self, core: Core, background: Background, store: DiskStore, copies: Arc<Copies>) {
        let ended = self.stopped.clone();
        self.tasks.spawn(async move {
            let reason = core.run().await;
            ended.tell(reason);
        });
        let Background { birth_clock, sizes, disk, watchers } = background;
        let (state, qlog, ended) = (self.state.clone(), self.qlog.clone(), self.stopped.clone());
        let cluster = self.cluster.clone();
        let (node, every, clock) = (self.node, sizes.checkpoint, birth_clock.clone());
        self.tasks.spawn(async move {
            let mut store = store;
            let mut last = None;
            loop {
                let asked = tokio::time::timeout(every, copies.asked()).await.is_ok();
                let index = state.read().applied();
                if !asked && last == Some(index) && !qlog.wants_point() {
                    continue;
                }
                let mut cutting = Cutting::begin(&mut state.write(), &qlog);
                let term = state.read().term();
                cutting.pull(&mut state.write(), 2);
                // Entries may be applied while it is written.
                sleep(Duration::from_millis(1)).await;
                let written = cutting.write(&mut state.write(), &mut store, &qlog);
                match written {
                    Ok(point) => {
                        last = Some(index);
                        cluster.checkpointed(index, term);
                        watchers.trace.note(format_args!("node {node} checkpoint {index}"));
                        if asked {
                            copies.serve(
                                &*disk,
                                (&qlog, &point, term),
                                &mut store,
                                clock.wall_us(),
                            );
                        }
                    }
                    Err(error) => return ended.tell(format!("the checkpoint failed: {error}")),
                }
            }
        });
        let (qlog, ended) = (self.qlog.clone(), self.stopped.clone());
        self.tasks.spawn(async move {
            loop {
                match qlog.background() {
                    Ok(true) => tokio::task::yield_now().await,
                    Ok(false) => sleep(Duration::from_millis(20)).await,
                    Err(fault) => return ended.tell(fault.to_string()),
                }
            }
        });
        let options = queen_reclaim::Options {
            dead_pct_min: Some(5),
            seal_age_us: sizes.seal_age_us,
            look_again_us: 0,
            segment_bytes: sizes.segment_bytes,
        };
        let view = StateView::new(self.state.clone(), self.qlog.layout());
        let mut reclaimer =
            Reclaimer::new(self.qlog.clone(), Box::new(view), birth_clock.clone(), options);
        let ended = self.stopped.clone();
        self.tasks.spawn(async move {
            loop {
                sleep(Duration::from_millis(250)).await;
                match reclaimer.pass(Micros(birth_clock.wall_us())) {
                    Ok(pass) => {
                        if let Some(damage) = pass.damage {
                            return ended.tell(format!("damage met while reclaiming: {damage}"));
                        }
                    }
                    Err(fault) => return ended.tell(fault.to_string()),
                }
            }
        });
    }
}

/// The core of a node, as a task.
struct Core {
    node: u64,
    machine: Machine,
    inbox: Arc<Inbox>,
    clock: PlanClock,
    rng: Rng,
    leads: Arc<AtomicBool>,
    watchers: Watchers,
    applied: EntryIndex,
}

impl Core {
    /// Runs until the node must stop; why.
    async fn run(mut self) -> String {
        let mut inputs = Vec::new();
        loop {
            inputs.append(&mut *self.inbox.inputs.lock());
            let (due, now) = (self.machine.next_due(), self.clock.now());
            let is_due = due.is_some_and(|due| due <= now);
            if inputs.is_empty() && !is_due && !self.machine.has_work() {
                let left = due.map(|due| u64::try_from(due.0 - now.0).unwrap_or(0));
                let arrived = self.inbox.arrived.notified();
                match left {
                    // Whether it was the time or a command is looked at above.
                    Some(left) => {
                        drop(tokio::time::timeout(Duration::from_micros(left), arrived).await);
                    }
                    None => arrived.await,
                }
                continue;
            }
            match self.round(&mut inputs).await {
                Ok(round) => self.take(round),
                Err(reason) => return reason,
            }
            if !inputs.is_empty() {
                // The membership changes: nothing is planned meanwhile.
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn round(&mut self, inputs: &mut Vec<Input>) -> Result<Round, String> {
        let (now, rng) = (self.clock.now(), &mut self.rng);
        let mut begun = self.machine.try_begin(now, &mut || rng.draw(), inputs)?;
        loop {
            match self.machine.try_end(begun)? {
                Ok(round) => return Ok(round),
                Err(open) => begun = open,
            }
            self.note_applied();
            self.inbox.arrived.notified().await;
        }
    }

    fn take(&mut self, round: Round) {
        self.note_applied();
        if round.role_changed {
            let leads = self.machine.is_leading();
            self.leads.store(leads, Ordering::SeqCst);
            let word = if leads { "leads" } else { "follows" };
            self.watchers.trace.note(format_args!("node {} {word} at {}", self.node, self.applied));
            if leads {
                self.watchers.judge.count("lead taken");
            }
        }
        if let Some(damage) = round.damage {
            self.watchers.judge.violated(format!("node {}: damage met: {damage}", self.node));
        }
        for lookup in round.lookups {
            let found = self.machine.reader().answer(lookup);
            self.inbox.put(Input::Found(found));
        }
    }

    fn note_applied(&mut self) {
        let state = self.machine.state().read();
        let applied = state.applied();
        if applied != self.applied {
            self.watchers.judge.applied(self.node, self.applied, applied, || state.digest());
            self.applied = applied;
        }
    }
}
