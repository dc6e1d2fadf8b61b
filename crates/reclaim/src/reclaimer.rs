//! One pass: what is recorded is carried out, then files are looked at from where the last pass stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use queen_io::Clock;
use queen_qlog::{ColdFile, Fault, Qlog, ReadError, Reclaimed, Rewrite};
use queen_record::ids::{EntryIndex, LogId, Micros, PartitionId};
use queen_record::layout::{SYSTEM_LOG, Shards};
use queen_record::qidx::QidxRecord;

use crate::policy::{Fate, Options, SAMPLE, Tally, Verdict, dying, is_worth_a_look};
use crate::seal::Sealer;

/// Files that a pass looks at.
const PASS_FILES: u64 = 256;
/// Partitions that a pass looks up, each once.
const PASS_LOOK_UPS: usize = 262_144;
/// How long a pass looks at files.
const PASS_US: i64 = 200_000;
/// While work is left, files and time grow by this factor from pass to pass, up to the ceiling.
const GROWTH: u32 = 4;
const GROWTH_MAX: u32 = 64;
/// Logs listed at once.
const LOGS: usize = 256;
/// What a rewrite costs at least, as bytes copied: a file made, its sync, its rename.
const REWRITE_COST_BYTES: u64 = 256 * 1024;
/// Records of an active file looked at once.
const BATCH: usize = 256;

/// What is known of partitions and queues.
pub trait Partitions: Send {
    /// What became of each, in order.
    fn fates(&self, ids: &[PartitionId]) -> Vec<Fate>;

    /// Those of `logs` that a live queue writes to.
    fn in_use(&self, logs: &BTreeSet<LogId>) -> BTreeSet<LogId>;
}

/// What a pass did.
#[derive(Debug, Default)]
pub struct Pass {
    /// What was carried out.
    pub reclaimed: Reclaimed,
    /// Files looked at.
    pub looked: u64,
    /// Files and logs planned to go, and files planned to be rewritten.
    pub planned: u64,
    /// Files sealed early.
    pub sealed: u64,
    /// Whether a ceiling ended it before everything was looked at.
    pub is_work_left: bool,
    /// Damage that a look met; the file stays as it is.
    pub damage: Option<String>,
}

/// When a file was last looked at whole, and what its sample said.
#[derive(Clone, Copy)]
struct Look {
    at: Micros,
    dying: usize,
    /// How long that stands.
    stands_us: i64,
}

/// Looks at a node's log files, a few at a time.
pub struct Reclaimer {
    pub(crate) qlog: Qlog,
    partitions: Box<dyn Partitions>,
    clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    is_shared: bool,
    /// Where the next pass starts.
    place: (LogId, u64),
    scale: u32,
    /// Fates that this pass has looked up.
    known: BTreeMap<PartitionId, Fate>,
    looks: BTreeMap<(LogId, u64), Look>,
    damaged: BTreeSet<(LogId, u64)>,
    /// Logs without a live message that a queue writes to, and their last entry when that was seen.
    used: BTreeMap<LogId, EntryIndex>,
    pub(crate) sealer: Sealer,
}

/// The ceilings of one pass.
struct Budget {
    files: u64,
    until_us: i64,
    /// Bytes that rewrites may still copy; the last one may pass it.
    copy_bytes: u64,
}

impl Reclaimer {
    /// A reclaimer that starts with the first log.
    pub fn new(
        qlog: Qlog,
        partitions: Box<dyn Partitions>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Self {
        let is_shared = qlog.layout().shards() != Shards::None;
        Self {
            qlog,
            partitions,
            clock,
            options,
            is_shared,
            place: (LogId(0), 0),
            scale: 1,
            known: BTreeMap::new(),
            looks: BTreeMap::new(),
            damaged: BTreeSet::new(),
            used: BTreeMap::new(),
            sealer: Sealer::default(),
        }
    }

    /// One pass at `now`, the time that entries go by.
    ///
    /// # Errors
    /// [`Fault`]: the node must stop.
    pub fn pass(&mut self, now: Micros) -> Result<Pass, Fault> {
        let mut pass = Pass { reclaimed: self.qlog.carry_out()?, ..Pass::default() };
        self.known.clear();
        let mut budget = Budget {
            files: PASS_FILES * u64::from(self.scale),
            until_us: self.clock.monotonic_us() + PASS_US * i64::from(self.scale),
            copy_bytes: self.options.segment_bytes.max(1),
        };
        self.look_at_logs(now, &mut budget, &mut pass)?;
        self.scale = if pass.is_work_left { (self.scale * GROWTH).min(GROWTH_MAX) } else { 1 };
        self.seal_old(now, &mut pass)?;
        Ok(pass)
    }

    fn look_at_logs(
        &mut self,
        now: Micros,
        budget: &mut Budget,
        pass: &mut Pass,
    ) -> Result<(), Fault> {
        let mut idle = BTreeMap::new();
        loop {
            let logs = self.qlog.logs_from(self.place.0, LOGS);
            let Some(last) = logs.last().copied() else { break };
            for log in logs {
                let from = if log == self.place.0 { self.place.1 } else { 0 };
                if self.is_spent(budget, pass) {
                    self.place = (log, from);
                    self.retire(&idle, pass);
                    return Ok(());
                }
                let cold = self.qlog.cold_files(log);
                for file in cold.iter().filter(|file| file.number >= from) {
                    if self.is_spent(budget, pass) {
                        self.place = (log, file.number);
                        self.retire(&idle, pass);
                        return Ok(());
                    }
                    pass.looked += 1;
                    self.look(log, *file, now, budget, pass)?;
                }
                if cold.is_empty() {
                    idle.extend(self.last_of_dead_log(log));
                }
            }
            let Some(next) = last.0.checked_add(1) else { break };
            self.place = (LogId(next), 0);
        }
        self.place = (LogId(0), 0);
        self.retire(&idle, pass);
        Ok(())
    }

    fn is_spent(&self, budget: &Budget, pass: &mut Pass) -> bool {
        let spent = pass.looked >= budget.files
            || self.known.len() >= PASS_LOOK_UPS
            || self.clock.monotonic_us() > budget.until_us;
        pass.is_work_left |= spent;
        spent
    }

    fn look(
        &mut self,
        log: LogId,
        file: ColdFile,
        now: Micros,
        budget: &mut Budget,
        pass: &mut Pass,
    ) -> Result<(), Fault> {
        let name = (log, file.number);
        if self.damaged.contains(&name) {
            return Ok(());
        }
        match self.judge(log, file, now, budget, pass) {
            Ok(()) => Ok(()),
            Err(ReadError::Io(fault)) => Err(fault),
            Err(damage) => {
                self.damaged.insert(name);
                pass.damage.get_or_insert(damage.to_string());
                Ok(())
            }
        }
    }

    fn judge(
        &mut self,
        log: LogId,
        file: ColdFile,
        now: Micros,
        budget: &mut Budget,
        pass: &mut Pass,
    ) -> Result<(), ReadError> {
        let name = (log, file.number);
        let dead_pct = self.options.dead_pct(self.is_shared && log != SYSTEM_LOG);
        let (sample, is_small) = self.qlog.sample(log, file.number, SAMPLE);
        self.look_up(sample.iter().map(|(partition, _)| *partition));
        let dying = dying(&sample, log, |partition| self.fate(partition));
        let stands = self.looks.get(&name).is_some_and(|look| {
            look.dying == dying && now.0.saturating_sub(look.at.0) < look.stands_us
        });
        // The sample of a small file says little: it may be all dead by now, and looking costs little too.
        let is_free = is_small && dying == sample.len();
        let is_due = !stands && (is_small || is_worth_a_look(dying, sample.len(), dead_pct));
        if !is_due && !is_free {
            return Ok(());
        }
        let mut stands_us = self.options.look_again_us;
        let tally = self.tally(log, file.number)?;
        match tally.verdict(dead_pct) {
            Verdict::Keep | Verdict::Rewrite if stands => return Ok(()),
            Verdict::Unlink => {
                pass.planned += self.qlog.plan_unlink(log, &[file.number]);
                self.looks.remove(&name);
                return Ok(());
            }
            Verdict::Rewrite if budget.copy_bytes == 0 => {
                pass.is_work_left = true;
                return Ok(());
            }
            Verdict::Rewrite => {
                // What has little left is cheap: a log of small files would otherwise fill faster than it is emptied.
                let copied = (tally.bytes - tally.dead_bytes).max(REWRITE_COST_BYTES);
                budget.copy_bytes = budget.copy_bytes.saturating_sub(copied);
                let known = &self.known;
                let mut keep = |record: &QidxRecord| {
                    let fate = known.get(&record.partition).copied();
                    fate.is_none_or(|fate| !fate.is_dead(log, record.end))
                };
                match self.qlog.rewrite(log, file.number, &mut keep)? {
                    Rewrite::Planned(_) => {
                        pass.planned += 1;
                        // Marks creep: the same file is not copied again for each message that dies.
                        stands_us = stands_us.max(self.options.seal_age_us);
                    }
                    Rewrite::Pointless => {}
                    Rewrite::NoRoom => {
                        tracing::warn!(
                            log = log.0,
                            file = file.number,
                            "the disk is too full to rewrite a log file"
                        );
                    }
                }
            }
            Verdict::Keep => {}
        }
        self.looks.insert(name, Look { at: now, dying, stands_us });
        Ok(())
    }

    /// The message bytes of a file, the dead ones told apart.
    fn tally(&mut self, log: LogId, number: u64) -> Result<Tally, ReadError> {
        let mut tally = Tally::default();
        let qlog = self.qlog.clone();
        qlog.walk_index(log, number, &mut |records| {
            self.look_up(records.iter().map(|record| record.partition));
            for record in records {
                let is_dead = self.fate(record.partition).is_dead(log, record.end);
                tally.add(record, is_dead);
            }
            ControlFlow::Continue(())
        })?;
        Ok(tally)
    }

    /// Learns the fates of partitions that this pass does not know yet.
    pub(crate) fn look_up(&mut self, ids: impl Iterator<Item = PartitionId>) {
        let mut unknown: Vec<PartitionId> = ids.filter(|id| !self.known.contains_key(id)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let fates = self.partitions.fates(&unknown);
        self.known.extend(unknown.into_iter().zip(fates));
    }

    /// The fate of a partition that was looked up.
    pub(crate) fn fate(&self, partition: PartitionId) -> Fate {
        let known = self.known.get(&partition).copied();
        // Nothing is dead that was not asked for.
        known.unwrap_or(Fate::Lives { log: LogId(u64::MAX), from: queen_record::ids::Offset(0) })
    }

    /// The last entry of a log of one queue's own that has a single file without a live message.
    fn last_of_dead_log(&mut self, log: LogId) -> Option<(LogId, EntryIndex)> {
        if self.is_shared || log == SYSTEM_LOG {
            return None;
        }
        let active = self.qlog.active_file(log)?;
        let is_known = self.used.get(&log) == Some(&active.last);
        if active.has_sealed || is_known || !self.qlog.is_covered(log) {
            return None;
        }
        let mut key = None;
        loop {
            let records = self.qlog.active_records(log, key, BATCH);
            let Some(last) = records.last() else { return Some((log, active.last)) };
            key = Some(last.key());
            self.look_up(records.iter().map(|record| record.partition));
            let is_dead =
                |record: &QidxRecord| self.fate(record.partition).is_dead(log, record.end);
            if !records.iter().all(is_dead) {
                return None;
            }
        }
    }

    /// Plans the removal of logs without a live message that no queue writes to.
    fn retire(&mut self, idle: &BTreeMap<LogId, EntryIndex>, pass: &mut Pass) {
        if idle.is_empty() {
            return;
        }
        let used = self.partitions.in_use(&idle.keys().copied().collect());
        for (log, last) in idle {
            if used.contains(log) {
                self.used.insert(*log, *last);
            } else {
                self.used.remove(log);
                pass.planned += u64::from(self.qlog.plan_retire(*log, *last));
            }
        }
    }
}
