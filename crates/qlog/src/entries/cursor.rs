//! A reader's place in one log: the first record of the next entry part at or behind the entry that is wanted.
//!
//! A place is a file and a byte, and outlives rolls and seals. A file that is replaced, removed or cut under it is noticed
//! behind each read: what was read then does not count, and the place is looked for anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use queen_record::header::HEADER_LEN;
use queen_record::ids::EntryIndex;

use crate::error::ReadError;
use crate::file::LogFile;
use crate::log::{Log, Tail};
use crate::parts::PartHead;
use crate::read::damage;
use crate::scan::CHUNK_WHOLE;
use crate::shared::Shared;

use super::narrow::narrow;
use super::window::Window;
use super::{Failure, StoredMessage};

/// What a reader goes by during one call.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) shared: &'a Shared,
    /// The count of truncations that the call began with.
    pub(crate) truncations: u64,
    /// Bytes read at once.
    pub(crate) ahead: usize,
    /// Bytes of a log that are kept for later.
    pub(crate) keep: usize,
}

/// What comes next in a log.
pub(crate) enum Head {
    /// Not looked for yet.
    Unknown,
    /// A part of this entry; its first record is at the cursor's place.
    Entry(EntryIndex),
    /// Nothing: the place is the log's end.
    End,
    /// Something that cannot be read.
    Broken(ReadError),
}

pub(crate) struct Cursor {
    pub(crate) log: Arc<Log>,
    pub(crate) head: Head,
    /// No record from here on is of a lower entry.
    lowest: EntryIndex,
    number: u64,
    /// Tells the file from one that takes its place: there `at` means nothing. `None` while the log has no file.
    epoch: Option<u64>,
    at: u64,
    /// Whether the place is the start of a file in which `from` may lie anywhere.
    is_rough: bool,
    window: Window,
}

/// A log's part of an entry.
pub(crate) struct Taken {
    pub(crate) part: PartHead,
    pub(crate) messages: Vec<StoredMessage>,
    pub(crate) file: Arc<LogFile>,
    /// Where the part itself starts.
    pub(crate) at: u64,
    /// Where it ends.
    end: u64,
}

/// What lies at a place.
enum Lies {
    /// Records, up to this byte of the file.
    Records(u64),
    /// The end of the file; the next one has this number.
    Next(u64),
    /// The log's end.
    End,
    /// No file of the log.
    Nowhere,
}

impl Tail {
    /// What lies at a place of a file that has at most `len_max` bytes.
    fn lies(&self, (number, at): (u64, u64), len_max: u64) -> Lies {
        let place = self.sealed.partition_point(|file| file.number < number);
        let found = self.sealed.get(place).filter(|file| file.number == number);
        let end = match found {
            Some(file) => file.len.min(len_max),
            None if number == self.number && number > 0 => self.end,
            None if number == 0 => at,
            None => return Lies::Nowhere,
        };
        let behind = place + usize::from(found.is_some());
        let active = (self.number > number).then_some(self.number);
        match self.sealed.get(behind).map(|file| file.number).or(active) {
            _ if at < end => Lies::Records(end),
            _ if at > end => Lies::Nowhere,
            Some(next) => Lies::Next(next),
            None => Lies::End,
        }
    }
}

impl Cursor {
    /// A cursor at the log's first part of an entry at or behind `from`, or somewhere before it.
    ///
    /// The marks of the tail know the places of all parts above the last written point, and so whether there is one. Below
    /// it a file is skipped when the next one begins at or before `from`; in the active one there are points, and in a
    /// sealed one its index helps.
    pub(crate) fn locate(log: Arc<Log>, from: EntryIndex) -> Self {
        let files = log.files();
        let start = files.partition_point(|file| file.first_seq <= from).saturating_sub(1);
        let start = files.get(start).map_or(0, |file| file.number);
        let mut place = (start, HEADER_LEN as u64);
        let mut head = Head::Unknown;
        {
            let tail = log.tail.lock();
            let behind = tail.marks.partition_point(|mark| mark.index < from);
            if tail.last < from {
                place = (tail.number, tail.end);
            } else if start == tail.number {
                place.1 = tail.points.before(from);
            }
            if let Some(before) = behind.checked_sub(1).and_then(|at| tail.marks.get(at)) {
                let mark = tail.moved_on(*before);
                place = place.max((mark.number, mark.end));
                if let Some(next) = tail.marks.get(behind) {
                    head = Head::Entry(next.index);
                }
            }
        }
        let (number, at) = place;
        let is_rough = at == HEADER_LEN as u64 && matches!(head, Head::Unknown);
        let epoch = listed(&files, number).map(|file| file.epoch);
        let (lowest, window) = (EntryIndex(0), Window::default());
        Self { log, head, lowest, number, epoch, at, is_rough, window }
    }

    /// Looks at the part that stands next, unless it is known, so that it is one at or behind `from`.
    pub(crate) fn peek(&mut self, look: &Look<'_>, from: EntryIndex) -> Result<(), Failure> {
        match self.head {
            Head::Entry(index) if index >= from => return Ok(()),
            Head::Entry(_) => {
                // What lies between need not be read.
                let ahead = Self::locate(self.log.clone(), from);
                if (ahead.number, ahead.at) > (self.number, self.at) {
                    *self = ahead;
                    return self.peek(look, from);
                }
            }
            Head::Unknown | Head::End | Head::Broken(_) => {}
        }
        self.head = match self.walk(look, from) {
            Ok(head) => head,
            Err(Failure::Absent(error) | Failure::Error(error)) => Head::Broken(error),
            Err(Failure::Changed) => return Err(Failure::Changed),
        };
        self.window.trim(self.at, look.keep);
        Ok(())
    }

    fn walk(&mut self, look: &Look<'_>, from: EntryIndex) -> Result<Head, Failure> {
        let mut passed = 0;
        loop {
            let (file, end) = match self.lies(look, self.at)? {
                (Some(file), Lies::Records(end)) => (file, end),
                (_, Lies::Next(number)) => {
                    self.move_to(number);
                    continue;
                }
                (_, Lies::End) => return Ok(Head::End),
                _ => return Err(self.lost(look)),
            };
            if std::mem::take(&mut self.is_rough) {
                let found = narrow(look, &file, (self.at, end), from);
                match self.settled(look, &file, found) {
                    Ok(place) => self.at = place,
                    Err(Failure::Changed) => return Err(Failure::Changed),
                    // What is wrong is said when it is met, if it is.
                    Err(Failure::Absent(_) | Failure::Error(_)) => {}
                }
            }
            let (at, lowest) = (self.at, self.lowest);
            // The more was passed over, the larger are the reads.
            let ahead = passed.clamp(look.ahead, CHUNK_WHOLE);
            let record = self.window.record(look.shared, &file, (at, end), ahead);
            let found = record.map(|record| (record.head.seq, record.total_len()));
            let (seq, len) = self.settled(look, &file, found)?;
            if seq < lowest {
                let reason = format!("a record of entry {seq} lies behind entry {lowest}");
                return Err(Failure::Error(damage(&file.path, at, reason)));
            }
            self.lowest = seq;
            if seq >= from {
                return Ok(Head::Entry(seq));
            }
            self.at += len as u64;
            passed += len;
        }
    }

    /// Reads the part that stands at the cursor, which stays where it is until the part is [`passed`](Self::pass).
    pub(crate) fn take(&mut self, look: &Look<'_>, index: EntryIndex) -> Result<Taken, Failure> {
        // A mark at the end of a file stands for the start of the next one.
        while let (_, Lies::Next(number)) = self.lies(look, self.at)? {
            self.move_to(number);
        }
        let mut messages = Vec::new();
        let mut at = self.at;
        loop {
            let (file, end) = match self.lies(look, at)? {
                (Some(file), Lies::Records(end)) => (file, end),
                // A part lies in one file with its messages.
                (Some(file), Lies::Next(_) | Lies::End) => return Err(no_part(&file, at, index)),
                _ => return Err(self.lost(look)),
            };
            let log = self.log.id;
            let record = self.window.record(look.shared, &file, (at, end), look.ahead);
            let read = record.map(|record| {
                let head = record.head;
                let part = record.entry_part().map(|part| PartHead::new(&part));
                let message = part.is_none().then(|| StoredMessage {
                    log,
                    partition: head.partition,
                    base: head.base,
                    count: head.count,
                    created: head.created,
                    compressed: head.compressed,
                    payload: Bytes::copy_from_slice(record.payload),
                });
                (head.seq, record.total_len() as u64, part, message)
            });
            let (seq, len, part, message) = self.settled(look, &file, read)?;
            if seq != index {
                return Err(no_part(&file, at, index));
            }
            messages.extend(message);
            if let Some(part) = part {
                return Ok(Taken { part, messages, file, at, end: at + len });
            }
            at += len;
        }
    }

    /// Forgets bytes that were read and not yet used.
    pub(crate) fn forget_read(&mut self) {
        self.window.clear();
    }

    /// Goes on behind a part that was taken.
    pub(crate) fn pass(&mut self, taken: &Taken) {
        self.at = taken.end;
        self.lowest = taken.part.index.next();
        self.head = Head::Unknown;
    }

    /// Goes on at the start of another file.
    fn move_to(&mut self, number: u64) {
        (self.number, self.at) = (number, HEADER_LEN as u64);
        self.epoch = listed(&self.log.files(), number).map(|file| file.epoch);
        self.window.clear();
    }

    /// The cursor's file, and what lies at a byte of it.
    fn lies(&self, look: &Look<'_>, at: u64) -> Result<(Option<Arc<LogFile>>, Lies), Failure> {
        let file = listed(&self.log.files(), self.number).cloned();
        if file.as_ref().map(|file| file.epoch) != self.epoch {
            return Err(self.lost(look));
        }
        let len_max = file.as_ref().and_then(|file| file.rewritten).unwrap_or(u64::MAX);
        let lies = self.log.tail.lock().lies((self.number, at), len_max);
        Ok((file, lies))
    }

    /// What was read of `file`, unless the file is another one by now.
    fn settled<T>(
        &self,
        look: &Look<'_>,
        file: &LogFile,
        read: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if read.is_err() {
            // Whoever changes names has changed the view too when these are free.
            self.wait(look);
        }
        let is_same = |now: &Arc<LogFile>| now.epoch == file.epoch && !is_gone(now);
        let files = self.log.files();
        let stands = listed(&files, file.number).is_some_and(is_same) && !self.log.is_gone();
        if stands && !look.is_outdated() { read } else { Err(Failure::Changed) }
    }

    fn lost(&self, look: &Look<'_>) -> Failure {
        self.wait(look);
        Failure::Changed
    }

    fn wait(&self, look: &Look<'_>) {
        drop(self.log.swap.lock());
        look.wait();
    }
}

impl Look<'_> {
    /// Whether entries were truncated since the call began.
    pub(crate) fn is_outdated(&self) -> bool {
        self.shared.truncations.load(Ordering::SeqCst) != self.truncations
    }

    /// Waits for the truncation that is going on.
    pub(crate) fn wait(&self) {
        drop(self.shared.truncating.lock());
    }
}

fn listed(files: &[Arc<LogFile>], number: u64) -> Option<&Arc<LogFile>> {
    let place = files.binary_search_by_key(&number, |file| file.number).ok()?;
    files.get(place)
}

fn is_gone(file: &LogFile) -> bool {
    file.gone.load(Ordering::SeqCst)
}

fn no_part(file: &LogFile, at: u64, index: EntryIndex) -> Failure {
    let reason = format!("the records of entry {index} end here without its part");
    Failure::Absent(damage(&file.path, at, reason))
}
