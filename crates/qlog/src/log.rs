//! One log: the view readers take, and the writer's position.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId};

use crate::durable::{FileTail, LogTail};
use crate::file::LogFile;

/// Files ascending by number; the last one is active. Swapped as a whole.
pub(crate) type Files = Arc<Vec<Arc<LogFile>>>;

/// Where the log stood once an entry's part was written.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) index: EntryIndex,
    pub(crate) number: u64,
    pub(crate) end: u64,
}

/// A file whose length no longer changes.
#[derive(Clone, Copy)]
pub(crate) struct SealedLen {
    pub(crate) number: u64,
    pub(crate) len: u64,
    /// Whether its pages were given back to the page cache.
    pub(crate) dropped: bool,
    /// Whether it still waits for its side files.
    pub(crate) bare: bool,
}

/// The writer's side of a log. Locked for moments only, never across I/O.
pub(crate) struct Tail {
    /// Number of the active file; 0 while the log has none.
    pub(crate) number: u64,
    /// End of the last record in it.
    pub(crate) end: u64,
    /// End of the zeros written ahead, at least `end`.
    pub(crate) allocated: u64,
    /// Whether the disk had no room for zeros ahead.
    pub(crate) zeros_off: bool,
    /// Highest entry with a part here.
    pub(crate) last: EntryIndex,
    /// One per entry above the last durable point, and the one at or below it.
    pub(crate) marks: VecDeque<Mark>,
    pub(crate) sealed: Vec<SealedLen>,
    /// Moving average of bytes per sync.
    pub(crate) mean_bytes: u64,
    /// Syncs since the open.
    pub(crate) syncs: u64,
    /// Bytes since the last sync.
    pub(crate) unsynced_bytes: u64,
    /// Bytes of the active file given back to the page cache.
    pub(crate) dropped: u64,
}

impl Tail {
    pub(crate) fn empty() -> Self {
        Self {
            number: 0,
            end: HEADER_LEN as u64,
            allocated: HEADER_LEN as u64,
            zeros_off: false,
            last: EntryIndex(0),
            marks: VecDeque::new(),
            sealed: Vec::new(),
            mean_bytes: 0,
            syncs: 0,
            unsynced_bytes: 0,
            dropped: 0,
        }
    }

    /// The log's recorded tail as of `index`, and forgets marks no later point can ask for.
    pub(crate) fn as_of(&mut self, log: LogId, index: EntryIndex) -> Option<LogTail> {
        while self.marks.get(1).is_some_and(|mark| mark.index <= index) {
            self.marks.pop_front();
        }
        let mark = *self.marks.front().filter(|mark| mark.index <= index)?;
        let mut files: Vec<FileTail> = self
            .sealed
            .iter()
            .filter(|file| file.number < mark.number)
            .map(|file| FileTail { number: file.number, len: file.len })
            .collect();
        files.push(FileTail { number: mark.number, len: mark.end });
        Some(LogTail { log, tail_index: mark.index, files })
    }

    /// Bytes in all files.
    pub(crate) fn bytes(&self) -> u64 {
        let active = if self.number == 0 { 0 } else { self.end };
        self.sealed.iter().map(|file| file.len).sum::<u64>() + active
    }
}

/// The next file, made ahead of its roll.
#[derive(Default)]
pub(crate) struct NextFile {
    /// Its number, once it is made.
    pub(crate) number: Option<u64>,
    /// Rounds of background work to wait before it is tried again, after the disk was full.
    pub(crate) wait: u32,
}

/// One log directory.
pub(crate) struct Log {
    pub(crate) id: LogId,
    pub(crate) dir: PathBuf,
    files: RwLock<Files>,
    pub(crate) tail: Mutex<Tail>,
    /// Held while the next file is being made: a roll that comes too early waits for it instead of making
    /// the same file again. No reader takes it.
    pub(crate) next: Mutex<NextFile>,
}

impl Log {
    pub(crate) fn new(id: LogId, dir: PathBuf, files: Vec<Arc<LogFile>>, tail: Tail) -> Arc<Self> {
        Arc::new(Self {
            id,
            dir,
            files: RwLock::new(Arc::new(files)),
            tail: Mutex::new(tail),
            next: Mutex::default(),
        })
    }

    /// The files as they are now.
    pub(crate) fn files(&self) -> Files {
        self.files.read().clone()
    }

    pub(crate) fn active(&self) -> Option<Arc<LogFile>> {
        self.files.read().last().cloned()
    }

    /// Adds the new active file.
    pub(crate) fn push(&self, file: Arc<LogFile>) {
        let mut files = self.files.write();
        let mut list = files.as_ref().clone();
        list.push(file);
        *files = Arc::new(list);
    }

    /// Puts a file in the place of the one with its number.
    pub(crate) fn replace(&self, file: &Arc<LogFile>) {
        let mut files = self.files.write();
        let mut list = files.as_ref().clone();
        for slot in &mut list {
            if slot.number == file.number {
                *slot = file.clone();
            }
        }
        *files = Arc::new(list);
    }

    pub(crate) fn set_files(&self, list: Vec<Arc<LogFile>>) {
        *self.files.write() = Arc::new(list);
    }
}
