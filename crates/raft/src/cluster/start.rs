//! From recovered logs to a running member.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use openraft::async_runtime::WatchReceiver;
use openraft::{Config, SnapshotPolicy};
use queen_io::Disk;
use queen_qlog::Qlog;
use queen_record::ids::{EntryIndex, PartitionId, QueueId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::files::{Files, FilesError};
use super::link::{Network, Tcp};
use super::machine::{Core, Event, Machine};
use super::member::Cluster;
use super::network::{Caller, Peer, Peers, kind};
use super::purge::Purge;
use super::replicator::ClusterReplicator;
use super::routes::Owners;
use super::runtime::spawn;
use super::server::Server;
use super::snapshot::SnapshotSource;
use super::snapshot::receive::Intake;
use super::snapshot::send::Sending;
use super::store::{Shared, Store, StoreParts};
use super::types::{LogId, Member, Raft, Vote, log_id, raft_index};
use super::writer::{Pace, Writer};

/// How long an empty node asks the listed members whether they hold a cluster already.
const ASK_MAX: Duration = Duration::from_secs(3);

/// A member's settings.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The data directory.
    pub dir: PathBuf,
    /// This node's number.
    pub node: u64,
    /// The voters of a new cluster; empty for one voter without a network.
    pub peers: BTreeMap<u64, Member>,
    /// Where other members reach this one; `None` without a network.
    pub listen: Option<SocketAddr>,
    /// What every call between members carries.
    pub token: String,
    /// Never found a cluster: wait to be added.
    pub join: bool,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Least silence after which a member elects; twice that is the most.
    pub election: Duration,
    /// Entries kept in memory for members that lag, bytes.
    pub cache_bytes_max: usize,
    /// Entries that a learner may be behind when it becomes a voter.
    pub promote_lag_max: u64,
    /// Entries below the purge point's reach that are kept for members that fall behind a little.
    pub log_keep: u64,
    /// How long a member that does not answer keeps the others from purging what it lacks.
    pub purge_hold: Duration,
}

/// What a member is made of.
pub struct ClusterParts {
    /// The disk of `raft/`.
    pub disk: Arc<dyn Disk>,
    /// The logs, recovered.
    pub qlog: Qlog,
    /// The last entry in the logs, and its term.
    pub last: (EntryIndex, u64),
    /// What the store covers, and that entry's term.
    pub durable: (EntryIndex, u64),
    /// Whose a partition is.
    pub owners: Box<dyn Owners>,
    /// Partitions that entries above `durable` make, as [`crate::examine`] found them.
    pub made: Vec<(PartitionId, QueueId, EntryIndex)>,
    /// Wakes the core thread.
    pub wake: Arc<dyn Fn() + Send + Sync>,
    /// Told once when the node must stop.
    pub failed: Arc<dyn Fn(String) + Send + Sync>,
    /// Told once when the process must end, to load a snapshot at its next start.
    pub restart: Arc<dyn Fn(String) + Send + Sync>,
    /// Gives copies of this node to members that lack too much.
    pub snapshots: Arc<dyn SnapshotSource>,
}

/// Why a member does not start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file of `raft/`.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The directory is another node's.
    #[error(
        "the directory was used by node {found}, this is node {node}: QUEEN_RAFT_NODE_ID is wrong, or the directory"
    )]
    OtherNode {
        /// Whose it is.
        found: u64,
        /// Who asks.
        node: u64,
    },
    /// The store holds entries that were applied without a cluster.
    #[error(
        "{} is missing, but the store has applied entry {applied}: this directory was written by the local replicator, not by a cluster",
        path.display()
    )]
    Local {
        /// The missing file.
        path: PathBuf,
        /// What the store has applied.
        applied: EntryIndex,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on {address} for other members (QUEEN_RAFT_LISTEN): {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// A thread or a timer of the runtime.
    #[error("the runtime of the cluster does not start: {0}")]
    Runtime(std::io::Error),
    /// The library refuses what it finds.
    #[error("the consensus log does not open: {0}")]
    Log(String),
}

/// Starts a member. Committed entries arrive as steps of the replicator at once, so the core must be running soon.
///
/// # Errors
/// [`ClusterError`]: refuse to start.
pub fn start(
    options: &ClusterOptions,
    parts: ClusterParts,
) -> Result<(Cluster, ClusterReplicator), ClusterError> {
    let (opened, writer) = Opened::open(options, parts, Arc::new(Tcp))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("queen-raft")
        .enable_all()
        .build()
        .map_err(ClusterError::Runtime)?;
    let writer = std::thread::Builder::new()
        .name("queen-raft-writer".to_owned())
        .spawn(move || writer.run())
        .map_err(ClusterError::Runtime)?;
    let (cluster, replicator) = runtime.block_on(opened.join())?;
    cluster.own(runtime, writer);
    Ok((cluster, replicator))
}

/// Starts a member as tasks of the current runtime, in the group of the calling task: nothing of it blocks. Each order to
/// the writer takes the time that `pace` says.
///
/// # Errors
/// [`ClusterError`]: refuse to start.
pub async fn start_here(
    options: &ClusterOptions,
    parts: ClusterParts,
    network: Arc<dyn Network>,
    pace: Arc<dyn Fn() -> Duration + Send + Sync>,
) -> Result<(Cluster, ClusterReplicator), ClusterError> {
    let (opened, writer) = Opened::open(options, parts, network)?;
    let pace: Pace = pace;
    spawn(writer.run_here(pace));
    opened.join().await
}

/// A member's log and files, before its library runs.
struct Opened<'a> {
    options: &'a ClusterOptions,
    store: Store,
    machine: Machine,
    caller: Caller,
    intake: Arc<Intake>,
    core: Core,
    received: Receiver<Event>,
    last: Option<LogId>,
    durable: Option<LogId>,
    failed: Arc<dyn Fn(String) + Send + Sync>,
}

impl<'a> Opened<'a> {
    /// Also the writer, which has to run before the library does.
    fn open(
        options: &'a ClusterOptions,
        parts: ClusterParts,
        network: Arc<dyn Network>,
    ) -> Result<(Self, Writer), ClusterError> {
        let ClusterParts {
            disk,
            qlog,
            last,
            durable,
            owners,
            made,
            wake,
            failed,
            restart,
            snapshots,
        } = parts;
        let files = Files::open(disk.clone(), &options.dir)?;
        check_owner(options, &files, durable.0)?;
        let id_of = |(index, term): (EntryIndex, u64)| raft_index(index).map(|at| log_id(term, at));
        let (last, durable) = (id_of(last), id_of(durable));
        let (store, writer) = Store::open(StoreParts {
            files: files.clone(),
            qlog: qlog.clone(),
            node: options.node,
            last: last.max(durable),
            durable,
            owners,
            made,
            cache_bytes_max: options.cache_bytes_max,
            failed: Box::new({
                let failed = failed.clone();
                move |reason| failed(reason)
            }),
        })?;
        let shared = store.shared().clone();
        let purged = shared.state.lock().purged;
        qlog.set_floor(purged.map_or(EntryIndex(0), |id| super::types::entry_index(id.index)));
        let (events, received) = unbounded();
        let core = Core { events, wake };
        let machine = Machine::new(core.clone(), shared.clone(), files, durable);
        let caller = Caller::new(options.node, &options.token, network)
            .sending(Sending { source: snapshots, store: shared.clone() });
        let intake = Arc::new(Intake {
            disk,
            dir: options.dir.clone(),
            store: shared,
            orders: store.orders(),
            turn: tokio::sync::Mutex::default(),
            restart,
        });
        let opened =
            Self { options, store, machine, caller, intake, core, received, last, durable, failed };
        Ok((opened, writer))
    }

    /// Runs the library, and makes the member a part of its cluster.
    async fn join(self) -> Result<(Cluster, ClusterReplicator), ClusterError> {
        let Self { options, store, machine, caller, intake, core, received, last, durable, failed } =
            self;
        let shared = store.shared().clone();
        let config = Arc::new(config(options));
        let raft = Raft::new(options.node, config, Peers(caller.clone()), store, machine)
            .await
            .map_err(|error| ClusterError::Log(error.to_string()))?;
        let running = Running {
            options,
            raft: raft.clone(),
            caller,
            store: shared.clone(),
            last,
            failed,
            intake,
        };
        let stopped = shared.stopped.subscribe();
        running.begin(&core, stopped).await?;
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let replicator = ClusterReplicator {
            raft: raft.clone(),
            runtime: Handle::current(),
            core: core.clone(),
            events: received,
            store: shared.clone(),
            role: None,
            seen_term: durable.map_or(0, |id| id.leader_id.term),
            leading: None,
            pending: None,
            proposals: 0,
            stop_by: None,
            turn: turn.clone(),
            held: None,
        };
        Ok((Cluster::new(options, raft, core, shared, turn), replicator))
    }
}

/// Refuses a directory of another node, or of no cluster.
fn check_owner(
    options: &ClusterOptions,
    files: &Files,
    applied: EntryIndex,
) -> Result<(), ClusterError> {
    match files.state()? {
        Some(state) if state.node != options.node => {
            Err(ClusterError::OtherNode { found: state.node, node: options.node })
        }
        None if applied > EntryIndex(0) => {
            let path = options.dir.join(super::DIR).join(super::STATE);
            Err(ClusterError::Local { path, applied })
        }
        _ => Ok(()),
    }
}

fn config(options: &ClusterOptions) -> Config {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let election = millis(options.election);
    let is_alone = options.peers.len() < 2 && !options.join;
    Config {
        cluster_name: "queen".to_owned(),
        heartbeat_interval: millis(options.heartbeat),
        election_timeout_min: election,
        election_timeout_max: 2 * election,
        install_snapshot_timeout: 3_600_000,
        max_payload_entries: 64,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        // A restarted leader that leads again without an election would propose other entries under the same ids.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(!is_alone),
        quorum_loss_probe_interval: (!is_alone).then_some(4 * election),
        ..Config::default()
    }
}

/// A member whose library runs and that is not yet part of anything.
struct Running<'a> {
    options: &'a ClusterOptions,
    raft: Raft,
    caller: Caller,
    store: Arc<Shared>,
    last: Option<LogId>,
    failed: Arc<dyn Fn(String) + Send + Sync>,
    intake: Arc<Intake>,
}

impl Running<'_> {
    /// Listens, founds the cluster when there is none, and reports roles to the core.
    async fn begin(&self, core: &Core, stopped: watch::Receiver<bool>) -> Result<(), ClusterError> {
        let is_new = self.last.is_none();
        let is_founded = Arc::new(AtomicBool::new(!is_new));
        if let Some(address) = self.options.listen {
            let listening = self.caller.network.listen(address).await;
            let listener = listening.map_err(|error| ClusterError::Listen { address, error })?;
            let server = Server {
                node: self.options.node,
                token: self.caller.token.clone(),
                raft: self.raft.clone(),
                store: self.store.clone(),
                is_founded: is_founded.clone(),
                intake: self.intake.clone(),
            };
            spawn(server.serve(listener, stopped.clone()));
        }
        let purge = Purge::new(self.options, &self.raft, &self.store, &self.caller.floor);
        spawn(purge.run(stopped.clone()));
        let failed = Failed { told: self.failed.clone(), store: self.store.clone() };
        spawn(roles(self.raft.clone(), core.clone(), failed, stopped));
        if is_new {
            self.found(&is_founded).await;
        }
        Ok(())
    }

    /// Founds the cluster with the listed members, unless one of them knows of it already.
    async fn found(&self, is_founded: &AtomicBool) {
        let options = self.options;
        if options.join || self.is_known(is_founded).await {
            tracing::info!("this fresh node joins an existing cluster: it waits to be added");
            return;
        }
        let mut members = options.peers.clone();
        members.entry(options.node).or_default();
        match self.raft.initialize(members).await {
            Ok(()) => is_founded.store(true, Ordering::Release),
            // Another one was faster, and has spoken to this one already.
            Err(error) => tracing::info!("no cluster is founded here: {error}"),
        }
    }

    /// Whether a listed member holds anything of a cluster. All are asked; one that cannot be reached says nothing.
    async fn is_known(&self, is_founded: &AtomicBool) -> bool {
        let others = self.options.peers.iter().filter(|(id, _)| **id != self.options.node);
        let mut waiting: Vec<Peer> = others
            .map(|(id, member)| Peer::new(self.caller.clone(), *id, member.raft.clone()))
            .collect();
        let until = Instant::now() + ASK_MAX;
        while !waiting.is_empty() && Instant::now() < until {
            let mut silent = Vec::new();
            for mut peer in waiting {
                match peer.call::<Option<Vote>>(kind::FOUNDED, |_| (), ASK_MAX / 4).await {
                    Ok(Some(_)) => return true,
                    Ok(None) => {}
                    Err(_) => silent.push(peer),
                }
            }
            if is_founded.load(Ordering::Acquire) {
                return true;
            }
            waiting = silent;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }
}

/// Who learns that the library has ended by itself.
struct Failed {
    told: Arc<dyn Fn(String) + Send + Sync>,
    store: Arc<Shared>,
}

impl Failed {
    fn tell(&self, reason: String) {
        // With a snapshot that waits, the log takes nothing more, and the process ends for that.
        if !self.store.is_staged.load(Ordering::Acquire) {
            (self.told)(reason);
        }
    }
}

/// Tells the core whenever this member begins or ends to lead, and the node when the library has ended.
async fn roles(raft: Raft, core: Core, failed: Failed, stopped: watch::Receiver<bool>) {
    let mut metrics = raft.metrics();
    let mut told = None;
    loop {
        let role = {
            let metrics = metrics.borrow_watched();
            if let Err(fatal) = &metrics.running_state {
                if !*stopped.borrow() {
                    failed.tell(format!("the consensus library has stopped: {fatal}"));
                }
                return;
            }
            metrics.state.is_leader().then_some(metrics.current_term)
        };
        if role != told {
            told = role;
            core.tell(Event::Role(role));
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}
