//! A node: opened over a data directory, served by its threads, stopped in order.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use metrics::Recorder;
use parking_lot::{Mutex, RwLock};
use queen_io::{Clock, Disk};
use queen_qlog::{OpenError, Qlog};
use queen_raft::{
    ClusterError, ClusterOptions, ClusterParts, LocalReplicator, ReplayError, Replicator,
};
use queen_reclaim::{Reclaimer, StateView};
use queen_record::ids::{EntryIndex, PartitionId, QueueId};
use queen_state::Queue;
use queen_store::{Checkpoint, StoreError};
use rand::Rng;
use tokio::sync::watch;

use crate::backup::{Backups, Snapshots, Stager};
use crate::checkpoint::StoreScrubPace;
use crate::cipher::{EncryptionKey, FingerprintError, Vault, VaultCounters, fingerprint};
use crate::cluster::StateOwners;
use crate::core::{Core, End, LeaderClock, Seen, Shared};
use crate::cycle::{Cycle, CycleLimits, Input, hash_window_s};
use crate::inbox::Inbox;
use crate::lookup::{Lookup, Reader};
use crate::machine::Machine;
use crate::metrics::BrokerMetrics;
use crate::prepare::{ClockIds, MintIds};
use crate::recover::Kind;
use crate::retention::{self, Scanner, ScannerOptions};
use crate::scrub::{self, ScrubPace};
use crate::service::{Broker, BrokerOptions};
use crate::space::{self, Ballast, DiskGate, SpaceLimits};
use crate::views::Sampled;
use crate::{checkpoint, reclaim, recover};

/// Where a node's bytes and time come from.
pub struct NodeParts {
    /// The disk of the queue logs.
    pub disk: Arc<dyn Disk>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The opened store.
    pub store: Box<dyn Checkpoint>,
    /// Message ids; `None` takes them from the clock.
    pub ids: Option<Arc<dyn MintIds>>,
}

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The data directory.
    pub dir: PathBuf,
    /// Seals payloads of queues that ask for it; the one that the directory was used with, if any was.
    pub encryption_key: Option<EncryptionKey>,
    /// The queue logs.
    pub qlog: queen_qlog::Options,
    /// The cycle.
    pub cycle: CycleLimits,
    /// How retention looks for what is too old; `None` removes nothing.
    pub retention: Option<RetentionOptions>,
    /// The front door.
    pub broker: BrokerOptions,
    /// Commands that may wait for the next cycle; one more is refused.
    pub commands_max: usize,
    /// Longest time between two checkpoints while something changes.
    pub durable_every: Duration,
    /// Bytes written to the logs after which a checkpoint is due.
    pub durable_every_bytes: u64,
    /// Threads that answer questions to the logs.
    pub lookup_threads: usize,
    /// How fast and how often sealed logs are read again.
    pub scrub: ScrubPace,
    /// How fast and how often the store is verified again, and memory against it.
    pub store_scrub: StoreScrubPace,
    /// When a filling disk stops writes that grow storage.
    pub space: SpaceLimits,
    /// When log files give their space back.
    pub reclaim: queen_reclaim::Options,
    /// The cluster that it is a member of; `None` for a node alone.
    pub cluster: Option<ClusterOptions>,
}

/// How retention looks for what is too old. The cycle's limits say when a partition is disused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionOptions {
    /// Least time between the starts of two walks.
    pub interval: Duration,
    /// Partitions walked a second at most.
    pub partitions_per_s: u64,
    /// Appends that one step moves a partition by at most.
    pub appends_max: usize,
}

impl RetentionOptions {
    /// The walk, over queues that the cycle judges by `limits`.
    pub fn scanner(&self, limits: &CycleLimits) -> Scanner {
        Scanner::new(ScannerOptions {
            interval_us: i64::try_from(self.interval.as_micros()).unwrap_or(i64::MAX),
            partitions_per_s: self.partitions_per_s,
            appends_max: self.appends_max,
            terms: limits.retention_terms(),
        })
    }
}

/// Why a node does not start. The text is the operator's line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store refuses.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The queue logs refuse.
    #[error("{0}")]
    Logs(#[from] OpenError),
    /// The replay refuses.
    #[error("{0}")]
    Replay(#[from] ReplayError),
    /// The directory belongs to somebody else, or cannot be used.
    #[error("{0}")]
    Directory(String),
    /// The encryption key is not the directory's.
    #[error("{0}")]
    Key(#[from] FingerprintError),
    /// A member's own files refuse.
    #[error("{0}")]
    Files(#[from] queen_raft::FilesError),
    /// The cluster refuses.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    /// A read of the logs failed while the node warmed up.
    #[error("{0}")]
    Read(#[from] queen_qlog::ReadError),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    api: Arc<Broker>,
    core: Option<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
    /// Dropped at the stop: every thread that waits for it ends.
    stop_background: Option<Sender<()>>,
}

impl Node {
    /// Opens a node and starts its threads. Blocks until it can serve.
    ///
    /// # Errors
    /// Any refusal: nothing of the directory was changed but what recovery may change.
    #[expect(clippy::too_many_lines, reason = "one step after the other")]
    pub fn open(
        options: &NodeOptions,
        parts: NodeParts,
        recorder: &dyn Recorder,
    ) -> Result<Self, StartError> {
        let NodeParts { disk, clock, mut store, ids } = parts;
        Ballast::of(&options.dir).give_up_if_full(&*disk);
        let key = options.encryption_key.as_ref();
        let found = fingerprint::check(&*disk, &options.dir, key)?;
        let kind = if options.cluster.is_some() { Kind::Member } else { Kind::Local };
        let opened = recover::open(&disk, &options.dir, &options.qlog, &mut *store, kind)?;
        if let Some(key) = key {
            fingerprint::keep(&*disk, &options.dir, key, found)?;
        }
        let metrics = BrokerMetrics::new(recorder);
        let vault = Arc::new(Vault::new(key, VaultCounters::of(&metrics)));
        let wants_key = |queue: &&Queue| queue.options.encryption_enabled;
        if let Some(queue) = opened.state.all_queues().find(wants_key) {
            vault.warn_of_plain_text(&queue.name);
        }
        let (last, term) = (opened.state.applied(), opened.state.term());
        let window_s = hash_window_s(&opened.state, options.cycle.hash_window_min_s);
        let (backups, requests) = Backups::new();
        let stager = Stager { disk: disk.clone(), dir: options.dir.clone(), requests };
        let disk_gate = DiskGate::new(options.space, metrics.storage_full.clone());
        let shared = Arc::new(Shared {
            state: Arc::new(RwLock::new(opened.state)),
            inbox: Inbox::new(options.commands_max),
            reader: Reader::new(opened.qlog.clone(), vault),
            clock: LeaderClock::new(clock.clone()),
            metrics,
            applied: AtomicU64::new(last.0),
            cluster: OnceLock::new(),
            leads: AtomicBool::new(options.cluster.is_none()),
            durable: AtomicU64::new(opened.durable.0),
            apply_us: AtomicU64::new(0),
            proposals_waiting: AtomicUsize::new(0),
            failed: Mutex::new(None),
            end: watch::Sender::new(None),
            damaged: Mutex::new(None),
            arrivals: Arc::default(),
            sampled: Sampled::default(),
            backups,
            disk_gate,
        });
        if options.store_scrub.at_start {
            checkpoint::scrub_whole(&shared, &mut *store)?;
        }
        let since = shared.clock.now().plus_seconds(-window_s);
        let filter = recover::warm_filter(&opened.qlog, since)?;
        let cycle = Cycle::new(&shared.state.read(), filter, options.cycle);
        let (lookups, questions) = unbounded();
        let (checkpoint_due, due) = bounded(1);
        let (stop_background, background_stopped) = bounded::<()>(0);
        let replicator: Box<dyn Replicator> = match &options.cluster {
            None => Box::new(LocalReplicator::new(opened.qlog.clone(), last)),
            Some(cluster) => {
                let ends = Ends {
                    last: (opened.cut.last, opened.last_term),
                    durable: (opened.durable, term),
                    made: opened.made,
                };
                let now_ms = clock.wall_us() / 1000;
                Box::new(join(&shared, cluster, (disk.clone(), now_ms), ends)?)
            }
        };
        let core = Core {
            shared: shared.clone(),
            machine: Machine::new(shared.state.clone(), shared.reader.clone(), cycle, replicator)
                .with_arrivals(shared.arrivals.clone())
                .with_damage_told({
                    let shared = shared.clone();
                    move |damage| drop(shared.damaged_read(damage))
                }),
            lookups,
            entropy: Box::new(|| rand::rng().next_u64()),
            checkpoint_due,
            checkpoint_bytes: options.durable_every_bytes,
            seen: Seen::default(),
        };
        let mut others = Vec::new();
        let goals = checkpoint::Goals { every: options.durable_every };
        let store_scrub = options.store_scrub;
        others.push(spawn("checkpoint", {
            let shared = shared.clone();
            move || checkpoint::run(&shared, store, &due, goals, store_scrub, &stager)
        })?);
        others.push(spawn("qlog-background", {
            let (shared, stopped) = (shared.clone(), background_stopped.clone());
            move || background(&shared, &stopped)
        })?);
        if options.scrub.bytes_per_second > 0 {
            let (shared, pace) = (shared.clone(), options.scrub);
            let stopped = background_stopped.clone();
            others.push(spawn("scrub", move || scrub::run(&shared, pace, &stopped))?);
        }
        others.push(spawn("disk-space", {
            let (shared, dir) = (shared.clone(), options.dir.clone());
            let stopped = background_stopped.clone();
            move || space::run(&shared, &*disk, &dir, &stopped)
        })?);
        let reclaimer = reclaimer(&shared, &opened.qlog, clock.clone(), options.reclaim);
        others.push(spawn("reclaim", {
            let (shared, stopped) = (shared.clone(), background_stopped.clone());
            move || reclaim::run(&shared, reclaimer, &stopped)
        })?);
        if let Some(retention) = options.retention {
            let (shared, scanner) = (shared.clone(), retention.scanner(&options.cycle));
            let run = move || retention::run(&shared, scanner, &background_stopped);
            others.push(spawn("retention", run)?);
        }
        for _ in 0..options.lookup_threads.max(1) {
            let (shared, questions) = (shared.clone(), questions.clone());
            others.push(spawn("lookup", move || answer_lookups(&shared, &questions))?);
        }
        let core = Some(spawn("core", move || core.run())?);
        let ids = ids.unwrap_or_else(|| Arc::new(ClockIds::new(clock)));
        let api = Arc::new(Broker::new(shared.clone(), ids, options.broker));
        Ok(Self { shared, api, core, others, stop_background: Some(stop_background) })
    }

    /// What the edges call.
    pub fn api(&self) -> Arc<Broker> {
        self.api.clone()
    }

    /// To be called by every serving thread when it runs out of ready work: hands the core what gathered.
    pub fn idle_hook(&self) -> Arc<dyn Fn() + Send + Sync> {
        let shared = self.shared.clone();
        Arc::new(move || shared.inbox.idle())
    }

    /// Why the node stopped serving, once it has.
    pub fn failed(&self) -> Option<String> {
        self.shared.failed.lock().clone()
    }

    /// Completes with the reason when the process must end at once. Never before, and not when the node stops.
    pub fn must_end(&self) -> impl Future<Output = End> + Send + use<> {
        let mut end = self.shared.end.subscribe();
        async move {
            let reason = match end.wait_for(Option::is_some).await {
                Ok(reason) => reason.clone(),
                Err(_) => None,
            };
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Hands leadership over, then answers parked pops and waiting reads with what there is, now and from now on; everything
    /// else goes on.
    pub fn begin_stop(&self) {
        if let Some(cluster) = self.shared.cluster.get() {
            cluster.hand_over();
        }
        self.shared.arrivals.stop();
        // A node that failed has nobody parked any more.
        drop(self.shared.inbox.send_now(Input::Stop));
    }

    /// Answers what is under way, writes a last checkpoint and ends the threads. Blocks.
    ///
    /// # Errors
    /// Why the node had failed before, or failed doing so.
    pub fn stop(mut self) -> Result<(), String> {
        self.refuse();
        self.join()
    }

    /// Takes nothing new.
    fn refuse(&self) {
        self.shared.inbox.refuse("the node is stopping");
        if let Some(cluster) = self.shared.cluster.get() {
            cluster.begin_stop();
        }
        self.shared.arrivals.stop();
    }

    fn join(&mut self) -> Result<(), String> {
        let mut panicked = false;
        if let Some(core) = self.core.take() {
            // The core drops the senders that the checkpoint and the lookups wait on.
            panicked |= core.join().is_err();
        }
        if let Some(cluster) = self.shared.cluster.get() {
            cluster.stop();
        }
        drop(self.stop_background.take());
        for thread in self.others.drain(..) {
            panicked |= thread.join().is_err();
        }
        match self.failed() {
            Some(reason) => Err(reason),
            None if panicked => Err("a thread of the node panicked".to_owned()),
            None => Ok(()),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.core.is_some() {
            self.refuse();
            drop(self.join());
        }
    }
}

/// Where logs and store end.
struct Ends {
    last: (EntryIndex, u64),
    durable: (EntryIndex, u64),
    /// Partitions made in between.
    made: Vec<(PartitionId, QueueId, EntryIndex)>,
}

/// Makes the node a member of its cluster.
fn join(
    shared: &Arc<Shared>,
    options: &ClusterOptions,
    (disk, now_ms): (Arc<dyn Disk>, i64),
    ends: Ends,
) -> Result<impl Replicator + use<>, ClusterError> {
    let Ends { last, durable, made } = ends;
    // The cluster's handle is a part of what it wakes and stops: neither keeps the other.
    let (waker, failing) = (Arc::downgrade(shared), Arc::downgrade(shared));
    let restarting = Arc::downgrade(shared);
    let parts = ClusterParts {
        disk,
        qlog: shared.reader.qlog().clone(),
        last,
        durable,
        made,
        owners: Box::new(StateOwners(shared.state.clone())),
        wake: Arc::new(move || {
            if let Some(shared) = waker.upgrade() {
                // A node that takes nothing more has ended, or will look by itself.
                drop(shared.inbox.send_now(Input::Progress));
            }
        }),
        failed: Arc::new(move |reason| {
            if let Some(shared) = failing.upgrade() {
                tracing::error!("raft log writer poisoned: {reason}");
                shared.fail(&reason);
            }
        }),
        restart: Arc::new(move |reason| {
            if let Some(shared) = restarting.upgrade() {
                tracing::info!("{reason}");
                shared.restart(&reason);
            }
        }),
        draw: Arc::new(rand::random),
        now_ms,
        snapshots: Arc::new(Snapshots(Arc::downgrade(shared))),
    };
    let (cluster, replicator) = queen_raft::start(options, parts)?;
    let _is_first = shared.cluster.set(cluster);
    Ok(replicator)
}

fn reclaimer(
    shared: &Shared,
    qlog: &Qlog,
    clock: Arc<dyn Clock>,
    options: queen_reclaim::Options,
) -> Reclaimer {
    let view = StateView::new(shared.state.clone(), qlog.layout());
    Reclaimer::new(qlog.clone(), Box::new(view), clock, options)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("queen-{name}")).spawn(run)
}

fn answer_lookups(shared: &Shared, questions: &Receiver<Lookup>) {
    while let Ok(question) = questions.recv() {
        let found = shared.reader.answer(question);
        if shared.inbox.send_now(Input::Found(found)).is_err() {
            return;
        }
    }
}

/// Makes next files ahead and writes side files; a node that appends nothing makes nothing.
fn background(shared: &Shared, stopped: &Receiver<()>) {
    const EVERY: Duration = Duration::from_millis(20);
    let mut rolls = 0;
    loop {
        match shared.reader.qlog().background() {
            Ok(true) => match stopped.try_recv() {
                Err(crossbeam_channel::TryRecvError::Empty) => continue,
                _ => return,
            },
            Ok(false) => {
                // A sealed file's index leaves memory: a hundred thousand small pieces.
                let now = shared.reader.qlog().stats().rolls;
                if std::mem::replace(&mut rolls, now) != now {
                    queen_store::trim_memory();
                }
            }
            Err(fault) => {
                tracing::error!("raft log writer poisoned: {fault}");
                shared.fail(&fault.to_string());
                return;
            }
        }
        match stopped.recv_timeout(EVERY) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}
