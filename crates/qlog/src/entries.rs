//! Reading entries back by index: for whoever was away and asks for what others have.
//!
//! ```text
//! log 0     5--------9---      a cursor per log: the entry that comes next there
//! log 7       6  7-------12    the lowest of them is next; it is whole when all its parts are there
//! log 12    5-----7------12
//! ```
//!
//! - N1: every byte that is returned was verified, belongs to the entry it is returned for, and was there when the call
//!   began or later: what was truncated meanwhile is never mixed with what took its place.
//! - N2: a reader that goes on where it ended reads every byte of the logs about once.
//! - N3: memory is bounded: a few bytes of each log, and the largest entry.
//!
//! Truncation is seen by a count that changes before anything goes and behind the last of it. Reclaim takes only entries at
//! or below the floor, which nobody should ask for: they end in [`ReadError::NotThere`].

mod cursor;
mod narrow;
mod window;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};

use crate::entries::cursor::{Cursor, Head, Look, Taken};
use crate::error::ReadError;
use crate::parts::{Disagreement, PartHead, join};
use crate::read::damage;
use crate::shared::{Qlog, Shared};
use crate::stats::add;

/// Bytes that a reader keeps of all logs together.
const KEEP: usize = 16 << 20;
/// Bytes of one log that are read at once.
const AHEAD_MIN: usize = 4 << 10;
const AHEAD_MAX: usize = 64 << 10;

/// An entry as the logs hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its index.
    pub index: EntryIndex,
    /// Raft term; 0 on the local replicator.
    pub term: u64,
    /// The entry's time.
    pub now: Micros,
    /// Its bytes, without payloads.
    pub bytes: Vec<u8>,
    /// Its messages, by log, in effect order within one.
    pub messages: Vec<StoredMessage>,
}

/// The messages of one append of an entry. Their hashes stand in the entry's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// The log that holds them.
    pub log: LogId,
    /// The partition.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Messages.
    pub count: u32,
    /// Time of creation.
    pub created: Micros,
    /// Whether `payload` is a zstd frame.
    pub compressed: bool,
    /// The frames, as they are stored.
    pub payload: Bytes,
}

impl StoredEntry {
    /// Bytes of the entry and of its payloads.
    pub fn len_bytes(&self) -> usize {
        let payloads = self.messages.iter().map(|message| message.payload.len());
        payloads.fold(self.bytes.len(), usize::saturating_add)
    }
}

/// Where a reader of entries stands in each log: [`Qlog::entries`] goes on from here.
#[derive(Default)]
pub struct EntryReader {
    /// The logs that it has read; those of another directory are read from the start.
    of: Weak<Shared>,
    /// The count of truncations that the cursors go by.
    truncations: u64,
    /// No later truncation reaches an entry at or below this one.
    safe: EntryIndex,
    /// No cursor stands before a part of a lower entry that it has not passed.
    next: EntryIndex,
    cursors: BTreeMap<LogId, Cursor>,
    /// The entry before `next`, which did not fit the last answer.
    ready: Option<StoredEntry>,
}

/// Why something was not read.
pub(crate) enum Failure {
    /// Names or entries changed meanwhile: look again.
    Changed,
    /// Part of an entry is not there, which is this error unless reclaim took it.
    Absent(ReadError),
    Error(ReadError),
}

type Heads = BinaryHeap<Reverse<(EntryIndex, LogId)>>;

impl Qlog {
    /// Entries from `from` to before `to`, in order, as many as fit `bytes_max`; also those that are not synced.
    ///
    /// Shape: empty only when the range is; the first entry comes whatever it measures, and fewer than fit when the logs end
    /// or something is wrong with the next one. `bytes_max` counts [`StoredEntry::len_bytes`]. From any thread, beside
    /// anything. A call that goes on where `reader` ended reads on; any other looks for its place.
    ///
    /// # Errors
    /// Of the entry `from`. [`ReadError::NotThere`]: above what was appended, or at or below what reclaim may take: see
    /// [`Qlog::set_floor`]. [`ReadError::Damage`]: the bytes are not what was written. [`ReadError::Io`]: the operating
    /// system refused.
    ///
    /// # Panics
    /// Before recovery has ended.
    /// Source: `storage.md`, entries that are no longer in memory.
    pub fn entries(
        &self,
        reader: &mut EntryReader,
        from: EntryIndex,
        to: EntryIndex,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, ReadError> {
        let shared = &self.shared;
        assert!(shared.recovered.load(Ordering::SeqCst), "entries read before recovery has ended");
        if from >= to {
            return Ok(Vec::new());
        }
        loop {
            let truncations = reader.begin(shared);
            let found = reader.read(shared, truncations, from..to, bytes_max);
            let is_valid = shared.truncations.load(Ordering::SeqCst) == truncations;
            match found {
                Ok(found) if is_valid => return Ok(found),
                Err(Failure::Absent(error) | Failure::Error(error)) if is_valid => {
                    return Err(error);
                }
                // What failed in the middle of a change may stay as it is.
                Err(Failure::Changed) => shared.check_poison()?,
                Ok(_) | Err(Failure::Absent(_) | Failure::Error(_)) => {}
            }
        }
    }
}

impl EntryReader {
    /// Forgets what truncations since the last call may have taken; the count of them.
    fn begin(&mut self, shared: &Arc<Shared>) -> u64 {
        if !std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(shared)) {
            *self = Self { of: Arc::downgrade(shared), ..Self::default() };
        }
        // The count first: what is appended or written behind it is of the time that it stands for.
        let truncations = shared.truncations.load(Ordering::SeqCst);
        if truncations != self.truncations {
            let safe = self.safe;
            self.cursors.retain(|_, cursor| {
                cursor.forget_read();
                matches!(cursor.head, Head::Entry(index) if index <= safe)
            });
            self.ready = self.ready.take().filter(|entry| entry.index <= safe);
            self.truncations = truncations;
        }
        self.safe = shared.written_index();
        truncations
    }

    fn read(
        &mut self,
        shared: &Shared,
        truncations: u64,
        range: Range<EntryIndex>,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, Failure> {
        let last = EntryIndex(shared.appended.load(Ordering::SeqCst));
        let mut index = range.start;
        if index > last {
            return Err(not_there(shared, index));
        }
        let look = self.prepare(shared, truncations, index)?;
        let mut heads: Heads = self.cursors.iter().filter_map(|(log, at)| at.next(*log)).collect();
        let mut found: Vec<StoredEntry> = Vec::new();
        let mut left = bytes_max;
        while index < range.end && index <= last {
            let entry = match self.ready.take() {
                Some(entry) => Ok(entry),
                None => self.entry(&look, index, &mut heads),
            };
            let entry = match entry {
                Ok(entry) => entry,
                Err(failure) if found.is_empty() => return Err(failure),
                // The next call meets it again.
                Err(_) => break,
            };
            let len = entry.len_bytes();
            if !found.is_empty() && len > left {
                self.ready = Some(entry);
                break;
            }
            left = left.saturating_sub(len);
            found.push(entry);
            index = index.next();
        }
        Ok(found)
    }

    /// Puts a cursor before the next part at or behind `from` in every log.
    fn prepare<'a>(
        &mut self,
        shared: &'a Shared,
        truncations: u64,
        from: EntryIndex,
    ) -> Result<Look<'a>, Failure> {
        let logs = shared.all_logs();
        let share = KEEP / logs.len().max(1);
        let ahead = share.clamp(AHEAD_MIN, AHEAD_MAX);
        let keep = if share < AHEAD_MIN { 0 } else { ahead };
        let look = Look { shared, truncations, ahead, keep };
        self.ready = self.ready.take().filter(|entry| entry.index == from);
        let from = if self.ready.is_some() { from.next() } else { from };
        if from < self.next {
            self.cursors.clear();
        }
        self.next = from;
        for log in &logs {
            let known = self.cursors.get_mut(&log.id).filter(|at| Arc::ptr_eq(&at.log, log));
            let looked = if let Some(cursor) = known {
                cursor.peek(&look, from)
            } else {
                let mut cursor = Cursor::locate(log.clone(), from);
                let looked = cursor.peek(&look, from);
                self.cursors.insert(log.id, cursor);
                looked
            };
            if let Err(failure) = looked {
                self.cursors.remove(&log.id);
                return Err(failure);
            }
        }
        if self.cursors.len() > logs.len() {
            self.cursors.retain(|id, _| logs.binary_search_by_key(id, |log| log.id).is_ok());
        }
        Ok(look)
    }

    /// The entry `index`, which no cursor has passed; all have when it is returned.
    fn entry(
        &mut self,
        look: &Look<'_>,
        index: EntryIndex,
        heads: &mut Heads,
    ) -> Result<StoredEntry, Failure> {
        let mut parts: Vec<(LogId, Taken)> = Vec::new();
        while let Some(Reverse((_, log))) = heads.peek().filter(|Reverse(head)| head.0 == index) {
            let log = *log;
            let Some(cursor) = self.cursors.get_mut(&log) else { break };
            match cursor.take(look, index) {
                Ok(taken) => parts.push((log, taken)),
                Err(failure) => {
                    // What is known of the place may be out of date.
                    self.cursors.remove(&log);
                    return Err(checked(look, index, failure));
                }
            }
            heads.pop();
        }
        let named: Vec<(LogId, &PartHead)> =
            parts.iter().map(|(log, taken)| (*log, &taken.part)).collect();
        let (term, now, bytes) = match join(&named) {
            Ok(Some((part, bytes))) => (part.term, part.now, bytes.to_vec()),
            Ok(None) => return Err(self.missing(look, index)),
            Err(disagreement) => {
                let error = contradiction(look.shared, index, &parts, &disagreement);
                return Err(checked(look, index, Failure::Error(error)));
            }
        };
        let mut messages = Vec::new();
        self.next = index.next();
        for (log, taken) in parts {
            if let Some(cursor) = self.cursors.get_mut(&log) {
                cursor.pass(&taken);
                match cursor.peek(look, self.next) {
                    Ok(()) => heads.extend(cursor.next(log)),
                    // The next call looks for its place.
                    Err(_) => drop(self.cursors.remove(&log)),
                }
            }
            add(&look.shared.counters.records_read, taken.messages.len() as u64 + 1);
            messages.extend(taken.messages);
        }
        Ok(StoredEntry { index, term, now, bytes, messages })
    }

    /// Why parts of an entry that was appended are not there.
    fn missing(&mut self, look: &Look<'_>, index: EntryIndex) -> Failure {
        let broken = |cursor: &&mut Cursor| matches!(cursor.head, Head::Broken(_));
        let broken = self.cursors.values_mut().find(broken);
        if let Some(cursor) = broken
            && let Head::Broken(error) = std::mem::replace(&mut cursor.head, Head::Unknown)
        {
            return checked(look, index, Failure::Error(error));
        }
        let reason = format!("no log has the missing part of entry {index}");
        checked(look, index, Failure::Absent(damage(&look.shared.options.dir, 0, reason)))
    }
}

impl Cursor {
    fn next(&self, log: LogId) -> Option<Reverse<(EntryIndex, LogId)>> {
        match self.head {
            Head::Entry(index) => Some(Reverse((index, log))),
            Head::Unknown | Head::End | Head::Broken(_) => None,
        }
    }
}

/// What it means that an entry cannot be read: truncation may be taking it, or reclaim may have taken part of it.
fn checked(look: &Look<'_>, index: EntryIndex, failure: Failure) -> Failure {
    look.wait();
    match failure {
        _ if look.is_outdated() => Failure::Changed,
        Failure::Absent(_) if index <= look.shared.reclaimable() => not_there(look.shared, index),
        other => other,
    }
}

fn not_there(shared: &Shared, index: EntryIndex) -> Failure {
    let last = EntryIndex(shared.appended.load(Ordering::SeqCst));
    let lowest = shared.reclaimable().min(last).next();
    Failure::Error(ReadError::NotThere { index, lowest, last })
}

fn contradiction(
    shared: &Shared,
    index: EntryIndex,
    parts: &[(LogId, Taken)],
    Disagreement { what, log }: &Disagreement,
) -> ReadError {
    let part = parts.iter().find(|(id, _)| id == log).map(|(_, taken)| taken);
    let (file, at) = part.map_or((&shared.options.dir, 0), |part| (&part.file.path, part.at));
    damage(file, at, format!("the parts of entry {index} disagree on {what} (log {log})"))
}
