//! Writing a group: one buffer and one pwrite per touched log, then one fdatasync per log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;
use queen_io::{DiskFile, OpenMode};
use queen_record::hash::checksum;
use queen_record::header::{FIRST_SEQ_AT, FileHeader, HEADER_LEN};
use queen_record::ids::{EntryIndex, LogId, Micros, Offset};
use queen_record::qidx::QidxRecord;
use queen_record::record::{
    EntryBody, EntryPart, MessageRecord, RecordTooLarge, encode_entry_part,
};

use crate::error::Fault;
use crate::file::{FileIndex, LogFile, RamIndex};
use crate::log::{Log, Mark, SealedLen, Tail};
use crate::names::{Ext, file_path, log_dir};
use crate::points::Points;
use crate::shared::{EntryWrite, Qlog, Shared};
use crate::stats::add;

/// Zeros are written ahead only while a sync carries fewer bytes than this on average: above it the journal's
/// 24 KiB per growing sync are the smaller part.
const PREALLOC_MEAN_MAX: u64 = 32 * 1024;
/// A run is this many average syncs long.
const PREALLOC_SYNCS: u64 = 64;
/// Smallest run.
const PREALLOC_MIN: u64 = 64 * 1024;

/// One log's share of a group; positions are relative to the buffer's start.
#[derive(Default)]
struct Share {
    bytes: Vec<u8>,
    records: Vec<QidxRecord>,
    marks: Vec<(EntryIndex, u64)>,
}

impl Qlog {
    /// Writes a group of entries and returns the logs it touched, ascending.
    ///
    /// Shape: entries ascend and are above all written before. The records can be read at once; they are durable after
    /// `sync` of the returned logs. A group's records for one log lie in one file.
    ///
    /// # Errors
    /// [`Fault::TooLarge`]: nothing was written. Any other: the logs accept nothing from now on.
    ///
    /// # Panics
    /// When the entries break the shape of [`EntryWrite`], or before recovery has ended.
    pub fn append(&self, group: &[EntryWrite<'_>]) -> Result<Vec<LogId>, Fault> {
        let shared = &self.shared;
        assert!(shared.recovered.load(Ordering::SeqCst), "append before recovery has ended");
        shared.check_poison()?;
        let last = EntryIndex(shared.appended.load(Ordering::SeqCst));
        let shares = encode_group(group, last)?;
        let mut touched = Vec::with_capacity(shares.len());
        let now = group.first().map_or(Micros(0), |entry| entry.now);
        for (id, share) in shares {
            shared.write_share(id, share, now).map_err(|fault| shared.poisoned(fault))?;
            touched.push(id);
        }
        if let Some(entry) = group.last() {
            let mut terms = shared.terms.lock();
            for entry in group {
                terms.add(entry.index, entry.term);
            }
            shared.appended.store(entry.index.0, Ordering::SeqCst);
        }
        add(&shared.counters.groups, 1);
        add(&shared.counters.logs_touched, touched.len() as u64);
        Ok(touched)
    }

    /// Makes everything written to `logs` durable: one fdatasync per log, the first one on this thread, and none for
    /// a log without unsynced records.
    ///
    /// # Errors
    /// [`Fault`]: what is durable is unknown; the logs accept nothing from now on and the node must stop.
    pub fn sync(&self, logs: &[LogId]) -> Result<(), Fault> {
        self.shared.check_poison()?;
        self.shared.sync_logs(logs).map_err(|fault| self.shared.poisoned(fault))
    }
}

/// Every log's share of the group.
fn encode_group(
    group: &[EntryWrite<'_>],
    mut last: EntryIndex,
) -> Result<BTreeMap<LogId, Share>, RecordTooLarge> {
    let mut shares: BTreeMap<LogId, Share> = BTreeMap::new();
    for entry in group {
        assert!(entry.index > last, "entry {} after {last}", entry.index);
        assert!(!entry.logs.is_empty(), "entry {} touches no log", entry.index);
        assert!(
            entry.logs.is_sorted_by(|a, b| a < b),
            "logs of entry {} do not ascend",
            entry.index
        );
        last = entry.index;
        for message in entry.messages {
            assert!(
                entry.logs.binary_search(&message.log).is_ok(),
                "entry {} does not list log {}",
                entry.index,
                message.log
            );
            assert!(!message.hashes.is_empty(), "entry {} has an empty append", entry.index);
            let share = shares.entry(message.log).or_default();
            let at = share.bytes.len() as u64;
            let len = MessageRecord {
                seq: entry.index,
                partition: message.partition,
                base: message.base,
                created: message.created,
                compressed: message.compressed,
                hashes: message.hashes,
                payload: message.payload,
            }
            .encode(&mut share.bytes)?;
            let count = u32::try_from(message.hashes.len()).unwrap_or(u32::MAX);
            let end = message.base.0.checked_add(u64::from(count));
            share.records.push(QidxRecord {
                partition: message.partition,
                base: message.base,
                end: Offset(end.unwrap_or(u64::MAX)),
                created: message.created,
                at,
                count,
                len,
            });
        }
        encode_parts(entry, &mut shares)?;
    }
    Ok(shares)
}

/// The whole record into the lowest log, stubs into the others.
fn encode_parts(
    entry: &EntryWrite<'_>,
    shares: &mut BTreeMap<LogId, Share>,
) -> Result<(), RecordTooLarge> {
    let len = u32::try_from(entry.bytes.len()).map_err(|_| RecordTooLarge(u64::MAX))?;
    let mut body = EntryBody::Whole(entry.bytes);
    for id in entry.logs {
        let share = shares.entry(*id).or_default();
        let copies = entry.logs.len() as u64;
        let part = EntryPart { index: entry.index, copies, term: entry.term, now: entry.now, body };
        encode_entry_part(&part, &mut share.bytes)?;
        share.marks.push((entry.index, share.bytes.len() as u64));
        if matches!(body, EntryBody::Whole(_)) && entry.logs.len() > 1 {
            body = EntryBody::Stub { digest: checksum(entry.bytes), len };
        }
    }
    Ok(())
}

impl Shared {
    fn write_share(&self, id: LogId, share: Share, now: Micros) -> Result<(), Fault> {
        let Some(first) = share.marks.first().map(|mark| mark.0) else { return Ok(()) };
        self.bound_unsynced(id)?;
        loop {
            let log = self.log_for_append(id)?;
            let _writer = log.writer.lock();
            // Its directory may have gone since it was found: then the log starts anew.
            if !log.is_gone() {
                return self.write_to(&log, share, first, now);
            }
        }
    }

    fn write_to(
        &self,
        log: &Arc<Log>,
        mut share: Share,
        first: EntryIndex,
        now: Micros,
    ) -> Result<(), Fault> {
        let id = log.id;
        let (number, start) = self.position(log, first)?;
        let handle = self.write_handle(log, number)?;
        let path = file_path(&log.dir, number, Ext::Log);
        self.handles.pin(log.key(number), &handle);
        self.dirty.lock().entry(id).or_insert(first);
        handle.write_all_at(&share.bytes, start).map_err(Fault::io(&path, "write"))?;
        let written = share.bytes.len() as u64;
        let run = {
            let mut tail = log.tail.lock();
            tail.end = start + written;
            tail.allocated = tail.allocated.max(tail.end);
            tail.unsynced_bytes += written;
            tail.oldest.get_or_insert(now);
            tail.retiring = None;
            for (index, end) in &share.marks {
                tail.last = *index;
                tail.marks.push_back(Mark { index: *index, number, end: start + end });
                tail.points.add(*index, start + end);
            }
            self.zeros_ahead(&tail)
        };
        if let Some((at, len)) = run {
            self.write_zeros(log, &*handle, &path, (at, len))?;
        }
        for record in &mut share.records {
            record.at += start;
        }
        if let Some(active) = log.active() {
            active.insert(&share.records);
        }
        add(&self.counters.appended_bytes, written);
        Ok(())
    }

    /// Writes zeros ahead of the log's end. They are no record: a full disk only ends the log's zeros.
    fn write_zeros(
        &self,
        log: &Log,
        handle: &dyn DiskFile,
        path: &Path,
        (at, len): (u64, u64),
    ) -> Result<(), Fault> {
        let zeros = vec![0; usize::try_from(len).unwrap_or(0)];
        let written = handle.write_all_at(&zeros, at).map_err(Fault::io(path, "write zeros ahead"));
        let mut tail = log.tail.lock();
        // Also when some of them may be missing: the roll cuts what lies behind the end.
        tail.allocated = at + len;
        match written {
            Ok(()) => add(&self.counters.prealloc_bytes, len),
            Err(fault) if fault.is_full() => {
                tail.zeros_off = true;
                tracing::warn!(%fault, "no more zeros are written ahead in this log");
            }
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    /// Syncs what is unsynced once as many logs are as may be open, so that their handles may be closed for `next`.
    fn bound_unsynced(&self, next: LogId) -> Result<(), Fault> {
        let unsynced: Vec<LogId> = {
            let dirty = self.dirty.lock();
            if dirty.len() < self.handles.limit() || dirty.contains_key(&next) {
                return Ok(());
            }
            dirty.keys().copied().collect()
        };
        self.sync_logs(&unsynced)
    }

    /// The file and byte the next group goes to, after a roll if the active file is full.
    fn position(&self, log: &Arc<Log>, first: EntryIndex) -> Result<(u64, u64), Fault> {
        let (number, end) = {
            let tail = log.tail.lock();
            (tail.number, tail.end)
        };
        if number == 0 {
            self.create_first_file(log, first)?;
        } else if end > HEADER_LEN as u64 && end >= self.options.segment_bytes {
            self.roll(log, first)?;
        }
        let tail = log.tail.lock();
        Ok((tail.number, tail.end))
    }

    /// The log, made with its directory when it does not exist.
    fn log_for_append(&self, id: LogId) -> Result<Arc<Log>, Fault> {
        if let Some(log) = self.log(id) {
            return Ok(log);
        }
        let dir = log_dir(&self.options.dir, id);
        self.disk.create_dir(&dir).map_err(Fault::io(&dir, "create"))?;
        let log = Log::new(id, dir, Vec::new(), Tail::empty(), self.next_epoch());
        self.logs.write().insert(id, log.clone());
        Ok(log)
    }

    /// File 1 of a log without files. Everything is durable before a record is written (Q3).
    fn create_first_file(&self, log: &Arc<Log>, first: EntryIndex) -> Result<(), Fault> {
        self.create_file(log, 1, first)?;
        self.sync_dir(&self.options.dir)?;
        make_current(log, 1, first, (true, None));
        Ok(())
    }

    /// Makes a file with its header, durable with its name.
    pub(crate) fn create_file(
        &self,
        log: &Log,
        number: u64,
        first: EntryIndex,
    ) -> Result<(), Fault> {
        let path = file_path(&log.dir, number, Ext::Log);
        let file = self.disk.open(&path, OpenMode::Truncate).map_err(Fault::io(&path, "create"))?;
        let header = FileHeader { number, first_seq: first }.encode();
        file.write_all_at(&header, 0).map_err(Fault::io(&path, "write header"))?;
        self.sync_file(&*file, &path)?;
        self.sync_dir(&log.dir)?;
        self.handles.insert(log.key(number), file, true);
        Ok(())
    }

    /// Seals the active file and makes the next one current. The old file is durable, without its zeros, before the
    /// new one's header names a seq (Q2).
    pub(crate) fn roll(&self, log: &Arc<Log>, first: EntryIndex) -> Result<(), Fault> {
        let (number, end, allocated) = {
            let tail = log.tail.lock();
            (tail.number, tail.end, tail.allocated)
        };
        let handle = self.write_handle(log, number)?;
        let path = file_path(&log.dir, number, Ext::Log);
        if allocated > end {
            handle.set_len(end).map_err(Fault::io(&path, "cut zeros of"))?;
        }
        {
            let _site = queen_io::site("roll");
            self.sync_file(&*handle, &path)?;
        }
        self.dirty.lock().remove(&log.id);
        self.handles.unpin(log.key(number));
        // Held until the new file is current, so that nobody makes it a second time meanwhile.
        let mut made = log.next.lock();
        let ahead = made.number.take() == Some(number + 1);
        if ahead {
            let path = file_path(&log.dir, number + 1, Ext::Log);
            self.write_handle(log, number + 1)?
                .write_all_at(&first.0.to_le_bytes(), FIRST_SEQ_AT)
                .map_err(Fault::io(&path, "write header"))?;
        } else {
            self.create_file(log, number + 1, first)?;
        }
        make_current(log, number + 1, first, (!ahead, Some(SealedLen::new(number, end, true))));
        drop(made);
        add(&self.counters.rolls, 1);
        Ok(())
    }

    /// A file of the log, open for writing.
    pub(crate) fn write_handle(&self, log: &Log, number: u64) -> Result<Arc<dyn DiskFile>, Fault> {
        let path = file_path(&log.dir, number, Ext::Log);
        self.handles
            .open_write(&*self.disk, log.key(number), &path)
            .map_err(Fault::io(&path, "open"))
    }

    /// Where to write zeros ahead of the end, and how many.
    fn zeros_ahead(&self, tail: &Tail) -> Option<(u64, u64)> {
        let largest = u64::from(self.options.prealloc_kb) * 1024;
        let wanted = largest > 0
            && !tail.zeros_off
            && tail.syncs >= u64::from(self.options.prealloc_min_syncs)
            && tail.mean_bytes < PREALLOC_MEAN_MAX;
        if !wanted {
            return None;
        }
        let run = (tail.mean_bytes * PREALLOC_SYNCS).clamp(PREALLOC_MIN.min(largest), largest);
        if tail.allocated - tail.end >= run / 4 {
            return None;
        }
        let until = (tail.end + run).min(self.options.segment_bytes);
        (until > tail.allocated).then(|| (tail.allocated, until - tail.allocated))
    }

    fn sync_logs(&self, logs: &[LogId]) -> Result<(), Fault> {
        let mut jobs = Vec::with_capacity(logs.len());
        let mut files = Vec::with_capacity(logs.len());
        for id in logs {
            let Some(log) = self.log(*id) else { continue };
            if !self.dirty.lock().contains_key(id) {
                continue;
            }
            let (last, number) = {
                let tail = log.tail.lock();
                (tail.last, tail.number)
            };
            // Pinned since the first unsynced write.
            files.push(self.write_handle(&log, number)?);
            jobs.push((log, last, number));
        }
        let _site = queen_io::site("group");
        let results = self.pool.sync(&files);
        add(&self.counters.syncs, results.len() as u64);
        for ((log, last, number), result) in jobs.into_iter().zip(results) {
            result.map_err(Fault::io(&log.dir, "sync"))?;
            self.mark_synced(&log, last, number);
        }
        Ok(())
    }

    /// Everything up to `last` is durable in this log; what came later is not known to be.
    fn mark_synced(&self, log: &Log, last: EntryIndex, number: u64) {
        let mut tail = log.tail.lock();
        tail.mean_bytes = (3 * tail.mean_bytes + tail.unsynced_bytes) / 4;
        tail.syncs += 1;
        tail.unsynced_bytes = 0;
        tail.start_durable |= tail.number == number;
        let mut dirty = self.dirty.lock();
        if tail.last == last {
            dirty.remove(&log.id);
            self.handles.unpin(log.key(number));
        } else {
            dirty.insert(log.id, last.next());
        }
    }
}

/// Adds a file that was just made, as the active one behind the one that is sealed with it; `durable` says whether its
/// header is.
fn make_current(
    log: &Log,
    number: u64,
    first: EntryIndex,
    (durable, sealed): (bool, Option<SealedLen>),
) {
    let path = file_path(&log.dir, number, Ext::Log);
    let index = FileIndex::Ram(RwLock::new(RamIndex::default()));
    let file = LogFile::new(log.id, number, first, path, index, log.epoch);
    // In one hold: a durable point that is made in between would take the sealed file for the active one, and say that it
    // holds nothing.
    let mut tail = log.tail.lock();
    log.push(file);
    if let Some(sealed) = sealed {
        tail.sealed.push(sealed);
        tail.unsynced_bytes = 0;
    }
    tail.number = number;
    tail.end = HEADER_LEN as u64;
    tail.allocated = HEADER_LEN as u64;
    tail.dropped = 0;
    tail.points = Points::default();
    tail.start_durable = durable;
    tail.oldest = None;
}
