//! The core thread: plans, writes, syncs, applies and answers, one group after the other.
//!
//! The stages run inline on one thread. Handing each to a thread of its own was refused: on a small machine a thread
//! that wakes costs more than the stage, and requests gather just as well while this thread waits for the disk.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::{Mutex, RwLock};
use queen_io::Clock;
use queen_raft::Cluster;
use queen_record::ids::Micros;
use queen_state::State;
use tokio::sync::watch;

use crate::api::CallError;
use crate::arrivals::Arrivals;
use crate::backup::Backups;
use crate::cycle::Input;
use crate::inbox::Inbox;
use crate::lookup::{Lookup, Reader};
use crate::machine::Machine;
use crate::metrics::BrokerMetrics;
use crate::space::DiskGate;
use crate::views::Sampled;

/// Why the process must end at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Damage was met in the store or in memory: nothing that the node holds is to be believed.
    Damage(String),
    /// A snapshot of the leader is staged: the next start loads it.
    Restart(String),
}

/// What every part of a node shares.
pub(crate) struct Shared {
    pub(crate) state: Arc<RwLock<State>>,
    pub(crate) inbox: Inbox,
    pub(crate) reader: Reader,
    pub(crate) clock: LeaderClock,
    pub(crate) metrics: BrokerMetrics,
    pub(crate) applied: AtomicU64,
    pub(crate) durable: AtomicU64,
    /// The cluster that the node is a member of; none for a node alone.
    pub(crate) cluster: OnceLock<Cluster>,
    /// Whether the core plans.
    pub(crate) leads: AtomicBool,
    /// Time that applying entries took, since the start.
    pub(crate) apply_us: AtomicU64,
    /// Proposals of retention that wait to be judged.
    pub(crate) proposals_waiting: AtomicUsize,
    /// Why the node stopped, once it has.
    pub(crate) failed: Mutex<Option<String>>,
    /// Why the process must end, once it must.
    pub(crate) end: watch::Sender<Option<End>>,
    /// Damage that a read met: the node serves the rest, and says so in its health.
    pub(crate) damaged: Mutex<Option<String>>,
    /// Reads by offset that wait.
    pub(crate) arrivals: Arc<Arrivals>,
    /// Whether writes that grow storage are taken.
    pub(crate) disk_gate: DiskGate,
    /// Who wants a backup.
    pub(crate) backups: Backups,
    /// Figures of queues that are too large to be walked by a read.
    pub(crate) sampled: Sampled,
}

impl Shared {
    /// Whether this node plans: it is alone, or leads its cluster.
    pub(crate) fn is_leading(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// Notes damage that a read met, and turns it into the caller's error: never a silently empty answer.
    pub(crate) fn damaged_read(&self, error: &str) -> CallError {
        self.metrics.checksum_failures.increment(1);
        // Whoever asks for it again meets it again; one line is enough for that.
        let before = self.damaged.lock().replace(error.to_owned());
        if before.as_deref() != Some(error) {
            tracing::error!("damaged data met while serving: {error}");
        }
        CallError::Internal(error.to_owned())
    }

    /// Stops the node for good: nothing more is written or answered. Its cluster goes on without it, under another leader.
    pub(crate) fn fail(&self, reason: &str) {
        self.close(reason);
        if let Some(cluster) = self.cluster.get() {
            cluster.abandon();
        }
    }

    fn close(&self, reason: &str) {
        self.failed.lock().get_or_insert_with(|| reason.to_owned());
        self.inbox.close(reason);
        self.arrivals.stop();
    }

    /// Stops the node for good, and asks for the end of the process: what it holds in memory is not to be believed.
    pub(crate) fn fail_of_damage(&self, reason: &str) {
        self.fail(reason);
        self.end.send_replace(Some(End::Damage(reason.to_owned())));
    }

    /// Stops the node for good, and asks for another start of the process: it loads what was staged.
    pub(crate) fn restart(&self, reason: &str) {
        self.close(reason);
        self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert_with(|| End::Restart(reason.to_owned()));
            is_first
        });
    }
}

/// The time that leases and entries go by: the wall clock at the start, carried on by monotonic time, so that a jump of
/// the wall clock ends no lease early and holds none.
pub(crate) struct LeaderClock {
    clock: Arc<dyn Clock>,
    ahead_us: i64,
}

impl LeaderClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let ahead_us = clock.wall_us() - clock.monotonic_us();
        Self { clock, ahead_us }
    }

    pub(crate) fn now(&self) -> Micros {
        Micros(self.clock.monotonic_us() + self.ahead_us)
    }
}

/// What is under way when the node stops has this long to end; then its callers get no answer.
const FINISH_MAX: Duration = Duration::from_secs(20);

/// The core.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) machine: Machine,
    pub(crate) lookups: Sender<Lookup>,
    pub(crate) entropy: Box<dyn FnMut() -> u64 + Send>,
    pub(crate) checkpoint_due: Sender<()>,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) seen: Seen,
}

/// Counters as they were at the last report.
#[derive(Default)]
pub(crate) struct Seen {
    syncs: u64,
    appended: u64,
    checkpoint_at: u64,
}

impl Core {
    /// Runs until the node stops or fails.
    pub(crate) fn run(mut self) {
        self.shared.inbox.receive_here();
        let mut inputs = Vec::new();
        loop {
            self.shared.inbox.take(&mut inputs);
            let due = self.machine.next_due();
            let now = self.shared.clock.now();
            let idle =
                inputs.is_empty() && due.is_none_or(|due| due > now) && !self.machine.has_work();
            if self.shared.failed.lock().is_some() {
                return;
            }
            if self.shared.inbox.is_refusing() {
                self.finish(&mut inputs);
                return;
            }
            if idle {
                let wait = due.map(|due| {
                    Duration::from_micros(u64::try_from(due.0 - now.0).unwrap_or(0).max(1))
                });
                self.shared.inbox.sleep(wait);
                continue;
            }
            let started = Instant::now();
            match self.turn(&mut inputs) {
                Ok(answered) => {
                    if answered > 1 {
                        self.shared.inbox.gather(started.elapsed());
                    }
                }
                Err(reason) => {
                    if reason.starts_with("APPLY FAILED") {
                        tracing::error!("{reason}");
                    } else {
                        tracing::error!("raft log writer poisoned: {reason}");
                    }
                    self.shared.fail(&reason);
                    return;
                }
            }
        }
    }

    /// Serves what is under way, takes nothing new, and returns once all of it is answered.
    fn finish(&mut self, inputs: &mut Vec<Input>) {
        inputs.push(Input::Stop);
        let until = Instant::now() + FINISH_MAX;
        while Instant::now() < until && (!inputs.is_empty() || self.machine.cycle().is_busy()) {
            self.shared.inbox.take(inputs);
            if inputs.is_empty() && !self.machine.cycle().has_answers() {
                self.shared.inbox.sleep(Some(Duration::from_millis(10)));
            }
            if let Err(reason) = self.turn(inputs) {
                self.shared.fail(&reason);
                return;
            }
        }
        self.shared.inbox.close("the node is stopping");
    }

    /// One round; returns how many answers left.
    fn turn(&mut self, inputs: &mut Vec<Input>) -> Result<usize, String> {
        let metrics = &self.shared.metrics;
        #[expect(clippy::cast_precision_loss, reason = "a histogram sample")]
        metrics.drain_commands.record(inputs.len() as f64);
        let now = self.shared.clock.now();
        let round = self.machine.round(now, &mut *self.entropy, inputs)?;
        metrics.plan_seconds.record(round.took.plan.as_secs_f64());
        if round.applied > 0 {
            metrics.write_seconds.record(round.took.write.as_secs_f64());
            metrics.fsync_seconds.record(round.took.sync.as_secs_f64());
            metrics.apply_seconds.record(round.took.apply.as_secs_f64());
            let apply_us = u64::try_from(round.took.apply.as_micros()).unwrap_or(u64::MAX);
            self.shared.apply_us.fetch_add(apply_us, Ordering::Relaxed);
            metrics.proposals.increment(round.applied);
            self.shared.applied.fetch_add(round.applied, Ordering::AcqRel);
        }
        if round.role_changed {
            self.role_changed();
        }
        for lookup in round.lookups {
            // The workers live as long as this thread: they end when it drops the sender.
            self.lookups.send(lookup).map_err(|_| "the lookup workers are gone".to_owned())?;
        }
        if round.retention.judged > 0 {
            let waiting = &self.shared.proposals_waiting;
            waiting.fetch_sub(
                round.retention.judged.min(waiting.load(Ordering::Acquire)),
                Ordering::AcqRel,
            );
            self.shared.metrics.retained(&round.retention);
        }
        self.report();
        Ok(round.answered)
    }

    fn role_changed(&self) {
        let leads = self.machine.is_leading();
        self.shared.leads.store(leads, Ordering::Release);
        // What waited to be judged went with the plan.
        self.shared.proposals_waiting.store(0, Ordering::Release);
        tracing::info!(leads, applied = self.shared.applied.load(Ordering::Relaxed), "role");
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
    fn report(&mut self) {
        let metrics = &self.shared.metrics;
        let stats = self.shared.reader.qlog().stats();
        metrics.syncs.increment(stats.syncs - self.seen.syncs);
        metrics.appended_bytes.increment(stats.appended_bytes - self.seen.appended);
        (self.seen.syncs, self.seen.appended) = (stats.syncs, stats.appended_bytes);
        metrics.groups.absolute(stats.groups);
        let [log, committed, applied, durable] = &metrics.index;
        let at = self.shared.applied.load(Ordering::Relaxed) as f64;
        log.set(at);
        committed.set(at);
        applied.set(at);
        durable.set(self.shared.durable.load(Ordering::Relaxed) as f64);
        metrics.in_flight.set(0.0);
        metrics.queue_depth.set(self.shared.inbox.depth() as f64);
        let engine = self.machine.cycle().engine_stats();
        let [groups, parts] = &metrics.engine;
        groups.set(engine.groups as f64);
        parts.set(engine.parts as f64);
        metrics.filter_bytes.set(self.machine.cycle().filter_bytes() as f64);
        let [files, bytes] = &metrics.log_storage;
        files.set(stats.files as f64);
        bytes.set(stats.bytes as f64);
        let parked = self.machine.cycle().parked() + self.shared.arrivals.waiting();
        metrics.parked.set(parked as f64);
        metrics.group_logs.set(stats.logs_touched as f64 / stats.groups.max(1) as f64);
        if stats.appended_bytes - self.seen.checkpoint_at >= self.checkpoint_bytes {
            self.seen.checkpoint_at = stats.appended_bytes;
            // A full channel means that one is due already.
            let _told = self.checkpoint_due.try_send(());
        }
    }
}
