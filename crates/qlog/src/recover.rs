//! Recovery: merges the logs above the durable index, hands over every complete entry, cuts the rest.
//!
//! A group is synced log by log with no order between them, so a crash can leave some parts of an entry and not
//! others. An entry counts only when all its parts are there. The run of complete entries ends at the first gap; what
//! lies behind was never acknowledged and is cut from every log.
//!
//! The cut may be interrupted anywhere: it only removes parts at and behind the gap, so the next recovery finds the
//! same gap. Within a log the newest file goes first, each removal durable before the next, so the file numbers
//! never have a hole. Memory: one pending entry per log.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use queen_io::OpenMode;
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};

use crate::cut::{Again, LogCutting};
use crate::error::{Fault, OpenError};
use crate::log::{Log, Mark};
use crate::names::{Ext, file_path};
use crate::parts::{Disagreement, PartHead, join};
use crate::scan::{CHUNK_MANY, CHUNK_MERGE, FileScan, Step};
use crate::shared::Shared;

/// With more logs than this, none keeps a file open and a buffer filled between two of its parts.
const KEEP_OPEN_MAX: usize = 256;

/// A log as opening left it.
pub(crate) struct Opened {
    pub(crate) log: Arc<Log>,
    /// File and byte behind the last record at or below the durable index; `None` without files.
    pub(crate) from: Option<(u64, u64)>,
    /// Whether the durable point said so.
    pub(crate) recorded: bool,
    /// Bytes behind the last verified record that are not zero.
    pub(crate) torn_bytes: u64,
    /// Length of the active file.
    pub(crate) physical_len: u64,
}

/// A complete entry above the durable index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredEntry {
    /// Its index.
    pub index: EntryIndex,
    /// Raft term; 0 on the local replicator.
    pub term: u64,
    /// The entry's time.
    pub now: Micros,
    /// Its bytes, without payloads.
    pub bytes: Vec<u8>,
    /// The message records it has, by log, in effect order within one.
    pub messages: Vec<MessageHead>,
}

/// One message record of a recovered entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// The log that holds it.
    pub log: LogId,
    /// Partition.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Messages.
    pub count: u32,
    /// Time of creation.
    pub created: Micros,
}

/// What recovery delivered and cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Highest entry that is in the logs now.
    pub last: EntryIndex,
    /// Entries delivered.
    pub delivered: u64,
    /// Entries of which something was cut.
    pub entries: u64,
    /// Bytes cut; zeros written ahead do not count.
    pub bytes: u64,
    /// Logs of which something was cut.
    pub logs: Vec<LogCut>,
}

/// What was cut from one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCut {
    /// The log.
    pub log: LogId,
    /// File that is active now.
    pub number: u64,
    /// Where it ends now.
    pub end: u64,
    /// Bytes cut, over all files.
    pub bytes: u64,
}

/// The second half of opening; nothing may be appended before it has run.
#[must_use = "the logs accept nothing before recovery has run"]
pub struct Recovery {
    shared: Arc<Shared>,
    durable: EntryIndex,
    readers: Vec<PartReader>,
}

impl Recovery {
    pub(crate) fn new(shared: Arc<Shared>, durable: EntryIndex, opened: Vec<Opened>) -> Self {
        let keep_open = opened.len() <= KEEP_OPEN_MAX.min(shared.options.fd_cache.max(1));
        let readers =
            opened.into_iter().map(|log| PartReader::new(log, durable, keep_open)).collect();
        Self { shared, durable, readers }
    }

    /// Delivers every complete entry above the durable index, in order, then cuts the rest from every log and makes
    /// all of it durable.
    ///
    /// # Errors
    /// [`OpenError`]: refuse to start. `Rejected` carries what `f` said, and nothing was cut. After an I/O error the
    /// next start ends the same way as this one would have.
    pub fn for_each(
        mut self,
        f: &mut dyn FnMut(RecoveredEntry) -> Result<(), String>,
    ) -> Result<Cut, OpenError> {
        let mut heads = BinaryHeap::new();
        for (place, reader) in self.readers.iter_mut().enumerate() {
            if let Some(index) = reader.advance(&self.shared)? {
                heads.push(Reverse((index, place)));
            }
        }
        let mut next = self.durable.next();
        let mut cut = Cut::default();
        loop {
            let mut places = Vec::new();
            while let Some(Reverse((_, place))) =
                heads.peek().copied().filter(|Reverse((index, _))| *index == next)
            {
                heads.pop();
                places.push(place);
            }
            let Some(entry) = self.complete(next, &places)? else { break };
            let term = entry.term;
            f(entry).map_err(|reason| OpenError::Rejected { index: next, reason })?;
            self.shared.terms.lock().add(next, term);
            cut.delivered += 1;
            for place in places {
                let Some(reader) = self.readers.get_mut(place) else { continue };
                reader.delivered();
                if let Some(index) = reader.advance(&self.shared)? {
                    heads.push(Reverse((index, place)));
                }
            }
            next = next.next();
        }
        self.cut(next, &mut cut)?;
        Ok(cut)
    }

    /// The entry made of the pending parts at `places`, or `None` when it is incomplete.
    fn complete(
        &mut self,
        index: EntryIndex,
        places: &[usize],
    ) -> Result<Option<RecoveredEntry>, OpenError> {
        let mut parts: Vec<(LogId, &Part)> = Vec::with_capacity(places.len());
        for place in places {
            if let Some(reader) = self.readers.get(*place)
                && let Some(part) = &reader.pending
            {
                parts.push((reader.log.id, part));
            }
        }
        parts.sort_by_key(|(log, _)| *log);
        let heads: Vec<(LogId, &PartHead)> =
            parts.iter().map(|(log, part)| (*log, &part.head)).collect();
        let joined = join(&heads)
            .map_err(|Disagreement { what, log }| OpenError::PartsDisagree { index, what, log })?;
        Ok(joined.map(|(head, bytes)| RecoveredEntry {
            index,
            term: head.term,
            now: head.now,
            bytes: bytes.to_vec(),
            messages: parts.iter().flat_map(|(_, part)| part.messages.iter().copied()).collect(),
        }))
    }

    fn cut(self, next: EntryIndex, cut: &mut Cut) -> Result<(), OpenError> {
        let mut indexes = BTreeSet::new();
        for mut reader in self.readers {
            let Some(to) = reader.end_of_complete() else { continue };
            reader.collect_indexes(&self.shared, &mut indexes)?;
            let bytes = reader.cut(&self.shared, to, next)?;
            if bytes > 0 {
                cut.bytes += bytes;
                cut.logs.push(LogCut { log: reader.log.id, number: to.0, end: to.1, bytes });
            }
        }
        // A log's own directory may be as new as its first file.
        self.shared.sync_dir(&self.shared.options.dir)?;
        cut.entries = indexes.len() as u64;
        cut.last = EntryIndex(next.0 - 1);
        self.shared.appended.store(cut.last.0, Ordering::SeqCst);
        self.shared.recovered.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// An entry's part in one log, with its messages there.
struct Part {
    head: PartHead,
    messages: Vec<MessageHead>,
    /// Where its first record starts.
    start: (u64, u64),
    /// Where its last record ends.
    end: (u64, u64),
}

/// Reads the parts of one log, in order.
struct PartReader {
    log: Arc<Log>,
    /// Number and end of the records of each file.
    files: Vec<(u64, u64)>,
    place: usize,
    scan: Option<FileScan>,
    from: Option<(u64, u64)>,
    /// Where the walk goes on.
    resume: Option<(u64, u64)>,
    /// Whether file and buffer are kept between two parts.
    keep_open: bool,
    durable: EntryIndex,
    /// Highest entry above the durable index that was read.
    above: EntryIndex,
    /// Whether the walk starts at a recorded place, behind which nothing is durable.
    recorded: bool,
    pending: Option<Part>,
    /// Where the messages start that have no part behind them: the end of a torn group.
    dangling: Option<(u64, u64)>,
    torn_bytes: u64,
    physical_len: u64,
}

impl PartReader {
    fn new(opened: Opened, above: EntryIndex, keep_open: bool) -> Self {
        let files = {
            let tail = opened.log.tail.lock();
            let sealed = tail.sealed.iter().map(|file| (file.number, file.len));
            let active = (tail.number > 0).then_some((tail.number, tail.end));
            sealed.chain(active).collect::<Vec<_>>()
        };
        let number = opened.from.map_or(0, |(number, _)| number);
        let place = files.iter().position(|file| file.0 == number).unwrap_or(files.len());
        Self {
            log: opened.log,
            files,
            place,
            scan: None,
            from: opened.from,
            resume: opened.from,
            keep_open,
            durable: above,
            above,
            recorded: opened.recorded,
            pending: None,
            dangling: None,
            torn_bytes: opened.torn_bytes,
            physical_len: opened.physical_len,
        }
    }

    /// Reads up to the next part; its index, or `None` at the end of the log.
    fn advance(&mut self, shared: &Shared) -> Result<Option<EntryIndex>, OpenError> {
        let mut messages: Vec<MessageHead> = Vec::new();
        let mut open: Option<(EntryIndex, (u64, u64))> = None;
        while let Some((number, end)) = self.files.get(self.place).copied() {
            let path = file_path(&self.log.dir, number, Ext::Log);
            let mut scan = self.take_scan(shared, &path, number, end)?;
            let here = scan.at();
            let order =
                |reason: String| OpenError::OutOfOrder { file: path.clone(), offset: here, reason };
            let step = scan.step().map_err(Fault::io(&path, "read"))?;
            let (at, record) = match step {
                Step::Record(at, record) => (at, record),
                Step::Bad(error) => {
                    let reason = error.to_string();
                    return Err(OpenError::SealedDamage { file: path, offset: here, reason });
                }
                Step::End => {
                    let last = self.place + 1 == self.files.len();
                    if let Some((index, start)) = open.filter(|_| !last) {
                        return Err(order(format!("entry {index} at {start:?} has no part")));
                    }
                    self.place += 1;
                    continue;
                }
            };
            let head = record.head;
            let record_end = (number, at + record.total_len() as u64);
            if let Some((index, _)) = open.filter(|(index, _)| *index != head.seq) {
                return Err(order(format!("entry {index} has no part before entry {}", head.seq)));
            }
            let start = open.map_or((number, at), |(_, start)| start);
            let part = record.entry_part().map(|part| PartHead::new(&part));
            let Some(part) = part else {
                messages.push(MessageHead {
                    log: self.log.id,
                    partition: head.partition,
                    base: head.base,
                    count: head.count,
                    created: head.created,
                });
                open = Some((head.seq, start));
                self.scan = Some(scan);
                continue;
            };
            let index = part.index;
            let messages = std::mem::take(&mut messages);
            let part = Part { head: part, messages, start, end: record_end };
            open = None;
            self.put_scan(scan);
            if index <= self.durable && self.above == self.durable && !self.recorded {
                let mark = Mark { index, number: part.end.0, end: part.end.1 };
                self.log.tail.lock().marks.push_back(mark);
                continue;
            }
            if index <= self.above {
                return Err(order(format!("entry {index} follows entry {}", self.above)));
            }
            self.above = index;
            self.pending = Some(part);
            return Ok(Some(index));
        }
        self.dangling = open.map(|(_, start)| start);
        Ok(None)
    }

    /// The walk over file `number`: the one that was kept, or a new one where the last ended.
    fn take_scan(
        &mut self,
        shared: &Shared,
        path: &Path,
        number: u64,
        end: u64,
    ) -> Result<FileScan, Fault> {
        if let Some(scan) = self.scan.take() {
            return Ok(scan);
        }
        let at = self.resume.filter(|from| from.0 == number).map_or(HEADER_LEN as u64, |f| f.1);
        let file = shared.disk.open(path, OpenMode::Read).map_err(Fault::io(path, "open"))?;
        Ok(FileScan::new(file, at, end, if self.keep_open { CHUNK_MERGE } else { CHUNK_MANY }))
    }

    /// Keeps the walk for the next part, or only its place when too many logs are walked at once.
    fn put_scan(&mut self, scan: FileScan) {
        let number = self.files.get(self.place).map_or(0, |file| file.0);
        self.resume = Some((number, scan.at()));
        self.scan = self.keep_open.then_some(scan);
    }

    /// The pending part is part of a complete entry.
    fn delivered(&mut self) {
        if let Some(part) = self.pending.take() {
            let mark = Mark { index: part.head.index, number: part.end.0, end: part.end.1 };
            self.log.tail.lock().marks.push_back(mark);
        }
    }

    /// Where the log's complete entries end.
    fn end_of_complete(&self) -> Option<(u64, u64)> {
        let pending = self.pending.as_ref().map(|part| part.start);
        pending.or(self.dangling).or_else(|| self.files.last().copied())
    }

    /// Cuts the log to a file and a byte in it, and makes what is left durable; returns the bytes cut.
    fn cut(&self, shared: &Shared, to: (u64, u64), next: EntryIndex) -> Result<u64, Fault> {
        let recorded = self.from.filter(|_| self.recorded);
        let cut = LogCutting {
            log: &self.log,
            files: &self.files,
            physical_len: self.physical_len,
            to,
            next,
            // Above the last durable point: the process before may have ended because a sync failed.
            again: Again {
                header: recorded.is_none_or(|(newest, _)| newest < to.0),
                from: self.from.filter(|from| *from < to),
            },
        };
        Ok(self.torn_bytes + cut.run(shared)?)
    }

    /// Walks what will be cut and notes whose it was. Its order does not matter any more.
    fn collect_indexes(
        &mut self,
        shared: &Shared,
        indexes: &mut BTreeSet<EntryIndex>,
    ) -> Result<(), OpenError> {
        while let Some(part) = self.pending.take() {
            indexes.insert(part.head.index);
            match self.advance(shared) {
                Ok(_) => {}
                Err(OpenError::Io(fault)) => return Err(fault.into()),
                Err(_) => break,
            }
        }
        Ok(())
    }
}
