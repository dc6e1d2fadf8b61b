//! Reading messages and times by partition and offset.
//!
//! A record's checksum is verified on each read, and so is a block of a side file. No lock is held while reading.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use queen_record::hash::checksum;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};
use queen_record::qidx::{QIDX_RECORD_LEN, QidxRecord};
use queen_record::record::{Record, decode};

use crate::error::{Fault, ReadError};
use crate::file::{FileIndex, LogFile};
use crate::log::Log;
use crate::names::{Ext, file_path};
use crate::scan::read_exact_at;
use crate::shared::{Qlog, Shared};
use crate::side::SideIndex;
use crate::stats::add;

/// Records closer together than this are read by one call: a second call costs more than the bytes between.
const GAP_MAX: u64 = 16 * 1024;
/// Index records looked up at once.
pub(crate) const LOOK_UP: usize = 128;

/// How much to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// No record is added once this many messages at or after the start are there.
    pub messages: u32,
    /// No record is added that would pass this many record bytes; the first one always is.
    pub bytes: u64,
}

/// Entries from `from` to `to`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqRange {
    /// Lowest.
    pub from: EntryIndex,
    /// Highest.
    pub to: EntryIndex,
}

/// One message record, verified. The bytes are slices of one read buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Offset of the first message.
    pub base: Offset,
    /// Messages.
    pub count: u32,
    /// Time of creation.
    pub created: Micros,
    /// Entry that wrote it.
    pub index: EntryIndex,
    /// Whether `payload` is a zstd frame.
    pub compressed: bool,
    /// 16 bytes per message.
    pub hashes: Bytes,
    /// The frames.
    pub payload: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Yes,
    No,
}

/// `None` when the answer is not in memory and the caller does not want to wait.
pub(crate) type Maybe<T> = Result<Option<T>, ReadError>;

macro_rules! ready {
    ($maybe:expr) => {
        match $maybe? {
            Some(value) => value,
            None => return Ok(None),
        }
    };
}

impl Qlog {
    /// Consecutive records of a partition from the one that holds `from`, or the first one after it.
    ///
    /// Shape: ascending, without a gap; empty when nothing at or after `from` is there.
    ///
    /// # Errors
    /// [`ReadError::Damage`]: the bytes are not what was written; nothing of them is returned.
    pub fn read(
        &self,
        log: LogId,
        partition: PartitionId,
        from: Offset,
        limit: ReadLimit,
    ) -> Result<Vec<StoredRecord>, ReadError> {
        let found = self.shared.read(log, partition, from, limit, Wait::Yes)?;
        Ok(found.unwrap_or_default())
    }

    /// As `read`, but only from memory; `None` when it would have to wait for the device.
    ///
    /// # Errors
    /// As `read`.
    pub fn try_read(
        &self,
        log: LogId,
        partition: PartitionId,
        from: Offset,
        limit: ReadLimit,
    ) -> Result<Option<Vec<StoredRecord>>, ReadError> {
        self.shared.read(log, partition, from, limit, Wait::No)
    }

    /// The first record of a partition made at or after `time`: its first offset and its time. Reads no record.
    ///
    /// # Errors
    /// As `read`.
    pub fn first_at_or_after(
        &self,
        log: LogId,
        partition: PartitionId,
        time: Micros,
    ) -> Result<Option<(Offset, Micros)>, ReadError> {
        let found = self.shared.with_files(log, Wait::Yes, |files| {
            for file in files {
                let found = match &file.index {
                    FileIndex::Ram(index) => index.read().first_at_or_after(partition, time),
                    FileIndex::Side(side) => {
                        self.shared.first_in_side(file, side, partition, time)?
                    }
                };
                if found.is_some() {
                    return Ok(Some(found));
                }
            }
            Ok(Some(None))
        })?;
        Ok(found.flatten())
    }
}

/// Entries that records of the file at `place` may belong to.
pub(crate) fn seq_range(files: &[Arc<LogFile>], place: usize) -> SeqRange {
    let from = files.get(place).map_or(EntryIndex(0), |file| file.first_seq);
    let to = files.get(place + 1).map_or(u64::MAX, |next| next.first_seq.0.saturating_sub(1));
    SeqRange { from, to: EntryIndex(to) }
}

impl Shared {
    /// What `f` finds in the files of a log; nothing without the log.
    ///
    /// Reclaim takes files away, and puts others in their place, while they are read. A reader that goes on with a file it
    /// has open reads what it began with; one that must open it may meet no file or another one, and both end in an
    /// error here. So an error counts only when the files are still those that were read.
    pub(crate) fn with_files<T: Default>(
        &self,
        log: LogId,
        wait: Wait,
        f: impl Fn(&[Arc<LogFile>]) -> Maybe<T>,
    ) -> Maybe<T> {
        loop {
            let Some(found) = self.log(log) else { return Ok(Some(T::default())) };
            let files = found.files();
            let error = match f(&files) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            // Whoever changes names has changed the view too when this is free.
            match wait {
                Wait::Yes => drop(found.swap.lock()),
                Wait::No if found.swap.try_lock().is_none() => return Ok(None),
                Wait::No => {}
            }
            let now = self.log(log);
            let is_same = |now: &Arc<Log>| Arc::ptr_eq(&now.files(), &files);
            if now.as_ref().is_some_and(is_same) {
                return Err(error);
            }
            if wait == Wait::No {
                return Ok(None);
            }
        }
    }

    fn read(
        &self,
        log: LogId,
        partition: PartitionId,
        from: Offset,
        limit: ReadLimit,
        wait: Wait,
    ) -> Maybe<Vec<StoredRecord>> {
        self.with_files(log, wait, |files| self.read_files(files, partition, from, limit, wait))
    }

    fn read_files(
        &self,
        files: &[Arc<LogFile>],
        partition: PartitionId,
        from: Offset,
        limit: ReadLimit,
        wait: Wait,
    ) -> Maybe<Vec<StoredRecord>> {
        let start = ready!(self.start_file(files, partition, from, wait));
        let mut records = Vec::new();
        let mut next = from;
        let mut left = limit;
        let mut expected = None;
        for file in files.get(start..).unwrap_or_default() {
            let mut wanted = Vec::new();
            let mut full = false;
            while !full {
                // One more than is wanted: the last one may only tell that the limit is reached.
                let look_up = LOOK_UP.min(left.messages as usize + 1);
                let (found, _) = ready!(self.records(file, partition, next, look_up, wait));
                let Some(last) = found.last() else { break };
                next = last.end;
                for record in found {
                    if expected.is_some_and(|base| record.base != base) {
                        let what = "offsets before this record are missing";
                        return Err(damage(&file.path, record.at, what));
                    }
                    let first = wanted.is_empty() && records.is_empty();
                    full = !first && (left.messages == 0 || u64::from(record.len) > left.bytes);
                    if full {
                        break;
                    }
                    let counted = record.end.0 - record.base.0.max(from.0).min(record.end.0);
                    let counted = u32::try_from(counted).unwrap_or(u32::MAX);
                    left.messages = left.messages.saturating_sub(counted);
                    left.bytes = left.bytes.saturating_sub(u64::from(record.len));
                    expected = Some(record.end);
                    wanted.push(record);
                }
                full |= left.messages == 0 && !wanted.is_empty();
            }
            ready!(self.read_records(file, &wanted, wait, &mut records));
            if full {
                break;
            }
        }
        Ok(Some(records))
    }

    /// The file with which reading starts: the newest one with a record at or below `from`, else the oldest one with
    /// a later record.
    pub(crate) fn start_file(
        &self,
        files: &[Arc<LogFile>],
        partition: PartitionId,
        from: Offset,
        wait: Wait,
    ) -> Maybe<usize> {
        let mut start = files.len();
        for (place, file) in files.iter().enumerate().rev() {
            let (found, floor) = ready!(self.records(file, partition, from, 1, wait));
            if !found.is_empty() {
                start = place;
            }
            if floor {
                break;
            }
        }
        Ok(Some(start))
    }

    /// Up to `max` records of the partition that end after `from`; and whether one starts at or below it.
    pub(crate) fn records(
        &self,
        file: &LogFile,
        partition: PartitionId,
        from: Offset,
        max: usize,
        wait: Wait,
    ) -> Maybe<(Vec<QidxRecord>, bool)> {
        let side = match &file.index {
            FileIndex::Ram(index) => {
                return Ok(Some(index.read().records(partition, from, max)));
            }
            FileIndex::Side(side) => side,
        };
        let mut found = Vec::new();
        if partition < side.partitions.0 || partition > side.partitions.1 {
            return Ok(Some((found, false)));
        }
        let mut floor = false;
        let mut block = side.index_block_of((partition, from));
        while side.index_key(block).is_some_and(|key| key.0 <= partition) {
            for record in ready!(self.index_block(file, side, block, wait)) {
                if record.partition == partition {
                    floor |= record.base <= from;
                    if record.end > from && found.len() < max {
                        found.push(record);
                    }
                }
            }
            if !found.is_empty() {
                break;
            }
            block += 1;
        }
        Ok(Some((found, floor)))
    }

    pub(crate) fn index_block(
        &self,
        file: &LogFile,
        side: &SideIndex,
        block: usize,
        wait: Wait,
    ) -> Maybe<Vec<QidxRecord>> {
        let Some(range) = side.index_range(block) else { return Ok(Some(Vec::new())) };
        let bytes = ready!(self.side_block(file, Ext::Index, range, wait));
        let (records, _) = bytes.as_chunks::<QIDX_RECORD_LEN>();
        Ok(Some(records.iter().filter_map(|raw| QidxRecord::decode(raw)).collect()))
    }

    /// A block of a side file, verified against the checksum taken at open.
    pub(crate) fn side_block(
        &self,
        file: &LogFile,
        ext: Ext,
        (from, until, sum): (u64, u64, u64),
        wait: Wait,
    ) -> Maybe<Vec<u8>> {
        let bytes = ready!(self.pread(file, ext, from, until.saturating_sub(from), wait));
        if checksum(&bytes) == sum {
            Ok(Some(bytes))
        } else {
            let path = file.path.with_extension(if ext == Ext::Index { "qidx" } else { "qhsh" });
            Err(damage(&path, from, "the block is not what it was at the start"))
        }
    }

    /// Reads `records` of one file, those close together by one call, and verifies each.
    fn read_records(
        &self,
        file: &LogFile,
        records: &[QidxRecord],
        wait: Wait,
        out: &mut Vec<StoredRecord>,
    ) -> Maybe<()> {
        let close = |a: &QidxRecord, b: &QidxRecord| {
            let end = a.at + u64::from(a.len);
            b.at >= end && b.at - end <= GAP_MAX
        };
        for run in records.chunk_by(close) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let len = last.at + u64::from(last.len) - first.at;
            let bytes = Bytes::from(ready!(self.pread(file, Ext::Log, first.at, len, wait)));
            for wanted in run {
                let from = usize::try_from(wanted.at - first.at).unwrap_or(usize::MAX);
                let whole = bytes.slice(from..from + wanted.len as usize);
                let record = verify(file, wanted, &whole)?;
                let hashes_len = record.hashes.len();
                let payload_at = whole.len() - record.payload.len();
                let head = record.head;
                out.push(StoredRecord {
                    base: head.base,
                    count: head.count,
                    created: head.created,
                    index: head.seq,
                    compressed: head.compressed,
                    hashes: whole.slice(payload_at - hashes_len..payload_at),
                    payload: whole.slice(payload_at..),
                });
            }
            add(&self.counters.records_read, run.len() as u64);
        }
        Ok(Some(()))
    }

    fn first_in_side(
        &self,
        file: &LogFile,
        side: &SideIndex,
        partition: PartitionId,
        time: Micros,
    ) -> Result<Option<(Offset, Micros)>, ReadError> {
        let outside = partition < side.partitions.0 || partition > side.partitions.1;
        if outside || side.created.1 < time {
            return Ok(None);
        }
        // Blocks that may hold the partition; times ascend within it, so they can be bisected.
        let mut low = side.index_block_of((partition, Offset(0)));
        let mut high = side.index_block_of((partition, Offset(u64::MAX)));
        let last_block = high.min(side.index_block_count().saturating_sub(1));
        let ours = |block: usize| -> Result<Vec<QidxRecord>, ReadError> {
            let all = self.index_block(file, side, block, Wait::Yes)?.unwrap_or_default();
            Ok(all.into_iter().filter(|record| record.partition == partition).collect())
        };
        while low < high {
            let middle = low.midpoint(high);
            if ours(middle)?.last().is_some_and(|record| record.created >= time) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        for block in low..=last_block {
            if let Some(record) = ours(block)?.iter().find(|record| record.created >= time) {
                return Ok(Some((record.base, record.created)));
            }
        }
        Ok(None)
    }

    pub(crate) fn open_read(
        &self,
        file: &LogFile,
        ext: Ext,
    ) -> Result<Arc<dyn queen_io::DiskFile>, ReadError> {
        let path = side_path(file, ext);
        let opened = self.handles.open(&*self.disk, file.key(ext), &path);
        if file.gone.load(Ordering::SeqCst) {
            // Nobody else closes it: an open file holds its space.
            self.handles.forget(file.key(ext));
        }
        opened.map_err(|error| Fault::io(&path, "open")(error).into())
    }

    /// `len` bytes at `at`; a file that ends earlier is damaged.
    pub(crate) fn pread(
        &self,
        file: &LogFile,
        ext: Ext,
        at: u64,
        len: u64,
        wait: Wait,
    ) -> Maybe<Vec<u8>> {
        let path = side_path(file, ext);
        let size = usize::try_from(len).map_err(|_| damage(&path, at, "too long to read"))?;
        if wait == Wait::No {
            let cached = self.handles.cached(file.key(ext));
            let Some(handle) = cached else { return Ok(None) };
            let mut bytes = vec![0; size];
            return match handle.read_at_nowait(&mut bytes, at) {
                Ok(Some(count)) if count == size => Ok(Some(bytes)),
                Ok(_) => Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
                Err(error) => Err(Fault::io(&path, "read")(error).into()),
            };
        }
        let handle = self.open_read(file, ext)?;
        let mut bytes = vec![0; size];
        match read_exact_at(&*handle, &mut bytes, at) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(damage(&path, at, "the file ends before the record does"))
            }
            Err(error) => Err(Fault::io(&path, "read")(error).into()),
        }
    }
}

fn side_path(file: &LogFile, ext: Ext) -> PathBuf {
    match (ext, file.path.parent()) {
        (Ext::Log, _) | (_, None) => file.path.clone(),
        (_, Some(dir)) => file_path(dir, file.number, ext),
    }
}

pub(crate) fn damage(path: &Path, offset: u64, reason: impl Into<String>) -> ReadError {
    ReadError::Damage { file: path.to_path_buf(), offset, reason: reason.into() }
}

/// The record at the start of `bytes`, which must be the one the index names.
pub(crate) fn verify<'a>(
    file: &LogFile,
    wanted: &QidxRecord,
    bytes: &'a [u8],
) -> Result<Record<'a>, ReadError> {
    let record = decode(bytes).map_err(|error| damage(&file.path, wanted.at, error.to_string()))?;
    let head = record.head;
    let same = head.kind.is_message()
        && (head.partition, head.base, head.count) == (wanted.partition, wanted.base, wanted.count)
        && record.total_len() == bytes.len();
    if same {
        Ok(record)
    } else {
        Err(damage(&file.path, wanted.at, "not the record its index names"))
    }
}
