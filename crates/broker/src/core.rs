//! The core thread: plans, writes, syncs, applies and answers, one group after the other.
//!
//! The stages run inline on one thread. Handing each to a thread of its own was refused: on a small machine a thread
//! that wakes costs more than the stage, and requests gather just as well while this thread waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::{Mutex, RwLock};
use queen_io::Clock;
use queen_planner::draft::{Route, Stamp};
use queen_raft::{Proposal, Replicator};
use queen_record::ids::{LogId, Micros};
use queen_record::layout::SYSTEM_LOG;
use queen_state::State;

use crate::cycle::{Cycle, Input};
use crate::inbox::Inbox;
use crate::lookup::{Lookup, Reader};
use crate::metrics::BrokerMetrics;

/// What every part of a node shares.
pub(crate) struct Shared {
    pub(crate) state: RwLock<State>,
    pub(crate) inbox: Inbox,
    pub(crate) reader: Reader,
    pub(crate) clock: LeaderClock,
    pub(crate) metrics: BrokerMetrics,
    pub(crate) applied: AtomicU64,
    pub(crate) durable: AtomicU64,
    /// Why the node stopped, once it has.
    pub(crate) failed: Mutex<Option<String>>,
    /// Damage that a read met: the node serves the rest, and says so in its health.
    pub(crate) damaged: Mutex<Option<String>>,
}

impl Shared {
    /// Stops the node for good: nothing more is written or answered.
    pub(crate) fn fail(&self, reason: &str) {
        self.failed.lock().get_or_insert_with(|| reason.to_owned());
        self.inbox.close(reason);
        self.inbox.wake();
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

/// The core.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cycle: Cycle,
    pub(crate) replicator: Box<dyn Replicator>,
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
            let due = self.cycle.next_due();
            let now = self.shared.clock.now();
            let idle = inputs.is_empty()
                && due.is_none_or(|due| due > now)
                && !self.cycle.has_work(&self.shared.state.read());
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
                    tracing::error!("raft log writer poisoned: {reason}");
                    self.shared.fail(&reason);
                    return;
                }
            }
        }
    }

    /// Serves what is under way, takes nothing new, and returns once all of it is answered.
    fn finish(&mut self, inputs: &mut Vec<Input>) {
        inputs.push(Input::Stop);
        while !inputs.is_empty() || self.cycle.is_busy() {
            self.shared.inbox.take(inputs);
            if inputs.is_empty() && !self.cycle.has_answers() {
                self.shared.inbox.sleep(Some(Duration::from_millis(10)));
            }
            if let Err(reason) = self.turn(inputs) {
                self.shared.fail(&reason);
                return;
            }
        }
        self.shared.inbox.close("the node is stopping");
    }

    /// One round: plan what arrived, make it durable, apply it, answer. Returns how many answers left.
    fn turn(&mut self, inputs: &mut Vec<Input>) -> Result<usize, String> {
        let metrics = &self.shared.metrics;
        #[expect(clippy::cast_precision_loss, reason = "a histogram sample")]
        metrics.drain_commands.record(inputs.len() as f64);
        let started = Instant::now();
        let planned = {
            let state = self.shared.state.read();
            let now = self.shared.clock.now();
            let now = now.max(Micros(state.last_now().0 + 1));
            let now = now.max(Micros(state.max_created().0 + 1));
            let stamp = Stamp { now, entropy: &mut *self.entropy };
            self.cycle.plan(&state, &self.shared.reader, stamp, inputs.drain(..))
        };
        metrics.plan_seconds.record(started.elapsed().as_secs_f64());
        for lookup in planned.lookups {
            // The workers live as long as this thread: they end when it drops the sender.
            self.lookups.send(lookup).map_err(|_| "the lookup workers are gone".to_owned())?;
        }
        if let Some(damage) = self.cycle.take_damage() {
            tracing::error!("damaged data met while serving: {damage}");
            self.shared.metrics.checksum_failures.increment(1);
            *self.shared.damaged.lock() = Some(damage);
        }
        if let Some((entry, routes)) = planned.entry {
            let logs = routes.iter().map(|route| self.log_of(*route)).collect();
            self.replicate(Proposal { entry, logs })?;
        }
        let answered = self.cycle.release();
        self.report();
        Ok(answered)
    }

    fn replicate(&mut self, proposal: Proposal) -> Result<(), String> {
        let metrics = &self.shared.metrics;
        let started = Instant::now();
        self.replicator.propose(proposal).map_err(|fault| fault.to_string())?;
        let written = Instant::now();
        metrics.write_seconds.record((written - started).as_secs_f64());
        let committed = self.replicator.commit().map_err(|fault| fault.to_string())?;
        metrics.fsync_seconds.record(written.elapsed().as_secs_f64());
        for committed in committed {
            let started = Instant::now();
            let mut state = self.shared.state.write();
            if let Err(error) = state.apply(committed.index, committed.term, &committed.entry) {
                tracing::error!("APPLY FAILED DETERMINISTIC: {error}");
                return Err(format!("APPLY FAILED: {error}"));
            }
            let state = parking_lot::RwLockWriteGuard::downgrade(state);
            self.cycle.applied(&state, committed.index, &committed.entry);
            self.shared.applied.store(committed.index.0, Ordering::Release);
            metrics.apply_seconds.record(started.elapsed().as_secs_f64());
            metrics.proposals.increment(1);
        }
        Ok(())
    }

    fn log_of(&self, route: Route) -> LogId {
        let qlog = self.shared.reader.qlog();
        match route {
            Route::Partition(queue, partition) => qlog.log_of(queue, Some(partition)),
            Route::Queue(queue) => qlog.log_of(queue, None),
            Route::System => SYSTEM_LOG,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
    fn report(&mut self) {
        let metrics = &self.shared.metrics;
        let stats = self.shared.reader.qlog().stats();
        metrics.syncs.increment(stats.syncs - self.seen.syncs);
        metrics.appended_bytes.increment(stats.appended_bytes - self.seen.appended);
        (self.seen.syncs, self.seen.appended) = (stats.syncs, stats.appended_bytes);
        let [log, committed, applied, durable] = &metrics.index;
        let at = self.shared.applied.load(Ordering::Relaxed) as f64;
        log.set(at);
        committed.set(at);
        applied.set(at);
        durable.set(self.shared.durable.load(Ordering::Relaxed) as f64);
        metrics.in_flight.set(0.0);
        metrics.queue_depth.set(self.shared.inbox.depth() as f64);
        metrics.parked.set(self.cycle.parked() as f64);
        metrics.group_logs.set(stats.logs_touched as f64 / stats.groups.max(1) as f64);
        if stats.appended_bytes - self.seen.checkpoint_at >= self.checkpoint_bytes {
            self.seen.checkpoint_at = stats.appended_bytes;
            // A full channel means that one is due already.
            let _told = self.checkpoint_due.try_send(());
        }
    }
}
