//! From recovered logs to a running member.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

use super::alone::{Alone, Ends};
use super::files::{Files, FilesError};
use super::identity::{Binder, Identity};
use super::link::{Network, Tcp};
use super::machine::{Core, Event, Machine};
use super::member::{Cluster, Handles};
use super::network::{CallFailed, Caller, Peer, Peers, kind};
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

/// How long an empty node waits for the answer of a listed member to one question.
const ASK_MAX: Duration = Duration::from_millis(750);
/// Between two rounds of questions.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// When it says first whom it waits for, and how often then.
const SAY_FIRST: Duration = Duration::from_secs(2);
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Once all are known to be empty, the others need as long to learn it.
const FOUND_PAUSE: Duration = Duration::from_millis(100);

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
    /// Go on without the others, whose disks are lost.
    pub force_recover: bool,
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
    /// Draws a number that nobody else draws: a directory's name, and that of a start.
    pub draw: Arc<dyn Fn() -> u128 + Send + Sync>,
    /// The time, milliseconds.
    pub now_ms: i64,
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
    /// The directory cannot be forced to go on alone.
    #[error("QUEEN_RAFT_FORCE_RECOVER: {0}")]
    NotForced(String),
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
    durable: Option<LogId>,
    failed: Arc<dyn Fn(String) + Send + Sync>,
    files: Files,
    /// What an operator has asked for.
    alone: Option<Alone>,
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
            draw,
            now_ms,
            snapshots,
        } = parts;
        let files = Files::open(disk.clone(), &options.dir)?;
        check_owner(options, &files, durable.0)?;
        let id_of = |(index, term): (EntryIndex, u64)| raft_index(index).map(|at| log_id(term, at));
        let (last, durable) = (id_of(last), id_of(durable));
        let alone = if options.force_recover {
            Alone::prepare(options, &files, &qlog, Ends { last, durable }, now_ms)?
        } else {
            None
        };
        let (store, writer) = Store::open(StoreParts {
            files: files.clone(),
            qlog: qlog.clone(),
            node: options.node,
            last: last.max(durable),
            durable,
            owners,
            made,
            cache_bytes_max: options.cache_bytes_max,
            draw,
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
        let machine = Machine::new(core.clone(), shared.clone(), files.clone(), durable);
        let identity = Arc::new(Identity::open(options.node, files.clone(), shared.clone())?);
        let caller = Caller::new(options.node, &options.token, identity, network)
            .sending(Sending { source: snapshots, store: shared.clone() });
        let intake = Arc::new(Intake {
            disk,
            dir: options.dir.clone(),
            store: shared,
            orders: store.orders(),
            turn: tokio::sync::Mutex::default(),
            restart,
        });
        let opened = Self {
            options,
            store,
            machine,
            caller,
            intake,
            core,
            received,
            durable,
            failed,
            files,
            alone,
        };
        Ok((opened, writer))
    }

    /// Runs the library, and makes the member a part of its cluster.
    async fn join(self) -> Result<(Cluster, ClusterReplicator), ClusterError> {
        let Self {
            options,
            mut store,
            machine,
            caller,
            intake,
            core,
            received,
            durable,
            failed,
            files,
            alone,
        } = self;
        if let Some(alone) = alone {
            alone.carry_out(&mut store, &files).await.map_err(ClusterError::Log)?;
        }
        let shared = store.shared().clone();
        let identity = caller.identity.clone();
        let config = Arc::new(config(options));
        let raft = Raft::new(options.node, config, Peers(caller.clone()), store, machine)
            .await
            .map_err(|error| ClusterError::Log(error.to_string()))?;
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let naming = Arc::new(tokio::sync::Mutex::new(()));
        let binder = Binder {
            node: options.node,
            raft: raft.clone(),
            identity: identity.clone(),
            naming: naming.clone(),
            turn: turn.clone(),
            led: None,
        };
        let running = Running {
            options,
            raft: raft.clone(),
            caller,
            store: shared.clone(),
            failed,
            intake,
            binder,
        };
        let stopped = shared.stopped.subscribe();
        running.begin(&core, stopped).await?;
        let replicator = ClusterReplicator::new(
            options.node,
            (raft.clone(), Handle::current()),
            (core.clone(), received),
            shared.clone(),
            durable.map_or(0, |id| id.leader_id.term),
            turn.clone(),
        );
        let handles = Handles { raft, identity, naming, turn };
        Ok((Cluster::new(options, handles, core, shared), replicator))
    }
}

/// Refuses a directory of another node, or of no cluster.
fn check_owner(
    options: &ClusterOptions,
    files: &Files,
    applied: EntryIndex,
) -> Result<(), ClusterError> {
    match files.state()? {
        Some(state) if state.node != options.node && !options.force_recover => {
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
    failed: Arc<dyn Fn(String) + Send + Sync>,
    intake: Arc<Intake>,
    binder: Binder,
}

impl Running<'_> {
    /// Listens, founds the cluster when there is none, and reports roles to the core.
    async fn begin(self, core: &Core, stopped: watch::Receiver<bool>) -> Result<(), ClusterError> {
        if let Some(address) = self.options.listen {
            let listening = self.caller.network.listen(address).await;
            let listener = listening.map_err(|error| ClusterError::Listen { address, error })?;
            let server = Server {
                node: self.options.node,
                token: self.caller.token.clone(),
                raft: self.raft.clone(),
                store: self.store.clone(),
                identity: self.caller.identity.clone(),
                intake: self.intake.clone(),
            };
            spawn(server.serve(listener, stopped.clone()));
        }
        let purge = Purge::new(self.options, &self.raft, &self.store, &self.caller.floor);
        spawn(purge.run(stopped.clone()));
        let failed = Failed { told: self.failed.clone(), store: self.store.clone() };
        spawn(roles(self.raft.clone(), core.clone(), failed, stopped.clone()));
        spawn(self.binder.run(stopped.clone()));
        if self.store.end() == 0 {
            let founder = Founder {
                node: self.options.node,
                peers: self.options.peers.clone(),
                raft: self.raft,
                caller: self.caller,
                store: self.store,
            };
            if self.options.join {
                tracing::info!("{JOINS}");
            } else {
                spawn(founder.run(stopped));
            }
        }
        Ok(())
    }
}

/// What a node says that founds nothing.
const JOINS: &str = "this fresh node joins an existing cluster: it waits to be added";

/// An empty node that is to found a cluster with those that are listed, or to learn that there is one.
struct Founder {
    node: u64,
    peers: BTreeMap<u64, Member>,
    raft: Raft,
    caller: Caller,
    store: Arc<Shared>,
}

impl Founder {
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.found() => {}
        }
    }

    /// Founds the cluster once every listed member has said that it holds nothing of one: a disk that was lost must not
    /// found another one with whoever happens to be reachable.
    async fn found(&self) {
        if !self.all_are_empty().await {
            if self.store.end() == 0 {
                tracing::info!("{JOINS}");
            }
            return;
        }
        if self.peers.len() > 1 {
            tokio::time::sleep(FOUND_PAUSE).await;
        }
        let mut members = self.peers.clone();
        members.entry(self.node).or_default();
        if let Err(error) = self.raft.initialize(members).await {
            // Another one was faster, and has spoken to this one already.
            tracing::info!("no cluster is founded here: {error}");
        }
    }

    /// Asks all listed members until each has answered, or one knows of a cluster.
    async fn all_are_empty(&self) -> bool {
        let others = self.peers.iter().filter(|(id, _)| **id != self.node);
        let mut waiting: Vec<(u64, Peer)> = others
            .map(|(id, member)| (*id, Peer::new(self.caller.clone(), *id, member.raft.clone())))
            .collect();
        let mut say = Instant::now() + SAY_FIRST;
        while !waiting.is_empty() {
            let mut silent = Vec::new();
            for (id, mut peer) in waiting {
                match peer.call::<Option<Vote>>(kind::FOUNDED, |_| (), ASK_MAX).await {
                    Ok(Some(_)) => return false,
                    // Who holds nothing and knows nobody, and who has another token and will not vote for this one.
                    Ok(None) | Err(CallFailed::Unnamed { .. } | CallFailed::Refused { .. }) => {}
                    Err(_) => silent.push((id, peer)),
                }
            }
            if self.store.end() > 0 {
                return false;
            }
            waiting = silent;
            if waiting.is_empty() {
                break;
            }
            if Instant::now() >= say {
                say = Instant::now() + SAY_EVERY;
                let names: Vec<u64> = waiting.iter().map(|(id, _)| *id).collect();
                tracing::warn!(
                    "a cluster is founded when every node of QUEEN_RAFT_PEERS has answered once; still silent: {names:?}"
                );
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        true
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
            if !*stopped.borrow() {
                failed.tell("the consensus library has ended".to_owned());
            }
            return;
        }
    }
}
