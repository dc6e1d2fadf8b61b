//! What reclaim has to know of a log's files: the places of their messages, and how old the active one is.

use std::ops::ControlFlow;
use std::sync::Arc;

use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};
use queen_record::qidx::QidxRecord;

use crate::error::{Fault, ReadError};
use crate::file::{FileIndex, LogFile};
use crate::names::{Ext, file_path};
use crate::read::Wait;
use crate::shared::{Qlog, Shared};

/// A log's active file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveFile {
    /// Its number.
    pub number: u64,
    /// Its bytes, header included.
    pub len: u64,
    /// Time of its first record; `None` while it has none.
    pub oldest: Option<Micros>,
    /// The log's last entry.
    pub last: EntryIndex,
    /// Whether the log has other files.
    pub has_sealed: bool,
}

impl Qlog {
    /// The active file of a log; `None` without one.
    pub fn active_file(&self, log: LogId) -> Option<ActiveFile> {
        let log = self.shared.log(log)?;
        let tail = log.tail.lock();
        (tail.number > 0).then(|| ActiveFile {
            number: tail.number,
            len: tail.end,
            oldest: tail.oldest,
            last: tail.last,
            has_sealed: !tail.sealed.is_empty() || !tail.leaving.is_empty(),
        })
    }

    /// The first `max` message records of the active file behind `key`, or of all, by partition and offset.
    pub fn active_records(
        &self,
        log: LogId,
        key: Option<(PartitionId, Offset)>,
        max: usize,
    ) -> Vec<QidxRecord> {
        let mut found = Vec::new();
        let active = self.shared.log(log).and_then(|log| log.active());
        if let Some(active) = active
            && let FileIndex::Ram(index) = &active.index
        {
            index.read().after(key, max, &mut found);
        }
        found
    }

    /// Whether the last written point covers all that the log holds, and nothing of it is above the floor.
    pub fn is_covered(&self, log: LogId) -> bool {
        let log = self.shared.log(log);
        log.is_some_and(|log| log.tail.lock().last <= self.shared.reclaimable())
    }

    /// Partition and first offset of message records of a sealed file, spread evenly, at most `count`; and whether its
    /// index is so small that reading it whole costs no more. Reads nothing.
    pub fn sample(
        &self,
        log: LogId,
        number: u64,
        count: usize,
    ) -> (Vec<(PartitionId, Offset)>, bool) {
        let Some(file) = self.shared.sealed_file(log, number) else { return (Vec::new(), true) };
        let FileIndex::Side(side) = &file.index else { return (Vec::new(), true) };
        let blocks = side.index_block_count();
        let step = blocks.div_ceil(count.max(1)).max(1);
        let keys = (0..blocks).step_by(step).filter_map(|block| side.index_key(block));
        (keys.collect(), blocks <= count)
    }

    /// Hands over every message record of a sealed file by partition and offset, a block at a time, until told to stop.
    ///
    /// # Errors
    /// As [`Qlog::read`].
    pub fn walk_index(
        &self,
        log: LogId,
        number: u64,
        f: &mut dyn FnMut(&[QidxRecord]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let Some(file) = self.shared.sealed_file(log, number) else { return Ok(()) };
        let FileIndex::Side(side) = &file.index else { return Ok(()) };
        for block in 0..side.index_block_count() {
            let records =
                self.shared.index_block(&file, side, block, Wait::Yes)?.unwrap_or_default();
            if f(&records).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Seals the active file `number` of a log that nothing is being written to, so that reclaim may look at it.
    ///
    /// `false` when it is empty, no longer active, not yet synced, or the disk is full.
    ///
    /// # Errors
    /// [`Fault`]: the node must stop.
    pub fn seal_early(&self, log: LogId, number: u64) -> Result<bool, Fault> {
        let shared = &self.shared;
        shared.check_poison()?;
        shared.seal_early(log, number).map_err(|fault| shared.poisoned(fault))
    }
}

impl Shared {
    fn sealed_file(&self, log: LogId, number: u64) -> Option<Arc<LogFile>> {
        let files = self.log(log)?.files();
        files.iter().find(|file| file.number == number).cloned()
    }

    fn seal_early(&self, log: LogId, number: u64) -> Result<bool, Fault> {
        let Some(log) = self.log(log) else { return Ok(false) };
        // What is about to go as a whole is not sealed.
        let is_retiring = || log.tail.lock().retiring.is_some();
        // The next file is made before the writer is kept out.
        if is_retiring() || !self.next_file_for(&log, number)? {
            return Ok(false);
        }
        let _writer = log.writer.lock();
        let last = {
            let tail = log.tail.lock();
            let is_unsynced = self.dirty.lock().contains_key(&log.id);
            let empty = tail.end <= HEADER_LEN as u64;
            let is_retiring = tail.retiring.is_some();
            if log.is_gone() || tail.number != number || empty || is_unsynced || is_retiring {
                return Ok(false);
            }
            tail.last
        };
        self.roll(&log, last.next())?;
        // A point that leaves the sealed file behind says that this one is there.
        let handle = self.write_handle(&log, number + 1)?;
        let path = file_path(&log.dir, number + 1, Ext::Log);
        {
            let _site = queen_io::site("seal");
            self.sync_file(&*handle, &path)?;
        }
        log.tail.lock().start_durable = true;
        Ok(true)
    }
}
