//! Sealing active files early, so that old messages of a slow log can be reclaimed.

use queen_qlog::{ActiveFile, Fault};
use queen_record::ids::{LogId, Micros, Offset, PartitionId};
use queen_record::layout::SYSTEM_LOG;

use crate::policy::{OldFile, is_old};
use crate::reclaimer::{Pass, Reclaimer};

/// Time between two looks.
const EVERY_US: i64 = 5_000_000;
/// Logs that a look takes.
const LOGS: usize = 64;
/// Partitions of a file that a look takes; the next one goes on behind them.
const PARTITIONS: usize = 32;

/// Where the looks go on.
#[derive(Default)]
pub(crate) struct Sealer {
    next_look: Option<Micros>,
    next_log: LogId,
    /// The partition behind which the next look goes on, in files that have more than a look takes.
    behind: std::collections::BTreeMap<LogId, PartitionId>,
}

impl Reclaimer {
    /// Looks at some active files and seals those that are due.
    pub(crate) fn seal_old(&mut self, now: Micros, pass: &mut Pass) -> Result<(), Fault> {
        if self.sealer.next_look.is_some_and(|due| now < due) {
            return Ok(());
        }
        self.sealer.next_look = Some(Micros(now.0.saturating_add(EVERY_US)));
        let logs = self.qlog.logs_from(self.sealer.next_log, LOGS);
        let last = logs.last().copied().filter(|_| logs.len() == LOGS);
        self.sealer.next_log = last.map_or(LogId(0), |last| LogId(last.0.saturating_add(1)));
        for log in logs {
            let Some(active) = self.qlog.active_file(log) else { continue };
            if is_old(active.oldest, now, &self.options)
                && (log == SYSTEM_LOG || self.is_due(log, active))
                && self.qlog.seal_early(log, active.number)?
            {
                self.sealer.behind.remove(&log);
                pass.sealed += 1;
            }
        }
        Ok(())
    }

    fn is_due(&mut self, log: LogId, active: ActiveFile) -> bool {
        let first = self.qlog.active_records(log, None, 1);
        let mut old = OldFile { len: active.len, has_messages: !first.is_empty(), has_dead: false };
        if !old.is_sealed_early(&self.options) {
            old.has_dead = self.has_dead(log);
        }
        old.is_sealed_early(&self.options)
    }

    /// Whether the oldest message of one of the next partitions is dead.
    fn has_dead(&mut self, log: LogId) -> bool {
        let behind = |partition: PartitionId| (partition, Offset(u64::MAX));
        let mut last = self.sealer.behind.get(&log).copied();
        let mut oldest = Vec::new();
        while oldest.len() < PARTITIONS {
            let Some(record) = self.qlog.active_records(log, last.map(behind), 1).first().copied()
            else {
                break;
            };
            last = Some(record.partition);
            oldest.push(record);
        }
        match last.filter(|_| oldest.len() == PARTITIONS) {
            Some(last) => self.sealer.behind.insert(log, last),
            // The next look starts over.
            None => self.sealer.behind.remove(&log),
        };
        self.look_up(oldest.iter().map(|record| record.partition));
        oldest.iter().any(|record| self.fate(record.partition).is_dead(log, record.end))
    }
}
