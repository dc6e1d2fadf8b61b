//! One log: the view readers take, and the writer's position.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId, Micros};

use crate::durable::{FileTail, LogTail, Rewriting};
use crate::file::LogFile;
use crate::handles::Key;
use crate::names::Ext;
use crate::points::Points;
use crate::reclaim::Replacement;

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
    /// What reclaim wants to do with it.
    pub(crate) fate: Fate,
    /// Whether a written point says so: only then it may be done.
    pub(crate) recorded: bool,
}

impl SealedLen {
    pub(crate) fn new(number: u64, len: u64, bare: bool) -> Self {
        Self { number, len, dropped: false, bare, fate: Fate::Stays, recorded: false }
    }
}

/// What is planned for a sealed file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing.
    Stays,
    /// It goes.
    Doomed,
    /// A file of this length takes its place.
    Rewriting(u64),
}

/// What is planned for a whole log. An append ends it.
#[derive(Clone, Copy)]
pub(crate) struct Retiring {
    /// The log's last entry when it was planned.
    pub(crate) last: EntryIndex,
    /// Whether a written point says so.
    pub(crate) recorded: bool,
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
    /// Places in the active file.
    pub(crate) points: Points,
    pub(crate) sealed: Vec<SealedLen>,
    /// Moving average of bytes per sync.
    pub(crate) mean_bytes: u64,
    /// Syncs since the open.
    pub(crate) syncs: u64,
    /// Bytes since the last sync.
    pub(crate) unsynced_bytes: u64,
    /// Bytes of the active file given back to the page cache.
    pub(crate) dropped: u64,
    /// Whether the active file's header is durable as it is now.
    pub(crate) start_durable: bool,
    /// Time of the first record in the active file.
    pub(crate) oldest: Option<Micros>,
    /// Files that left the view and may still be on disk, ascending.
    pub(crate) leaving: Vec<u64>,
    pub(crate) retiring: Option<Retiring>,
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
            points: Points::default(),
            sealed: Vec::new(),
            mean_bytes: 0,
            syncs: 0,
            unsynced_bytes: 0,
            dropped: 0,
            start_durable: false,
            oldest: None,
            leaving: Vec::new(),
            retiring: None,
        }
    }

    /// The log's recorded tail as of `index`, and forgets marks no later point can ask for.
    pub(crate) fn as_of(&mut self, log: LogId, index: EntryIndex) -> Option<LogTail> {
        while self.marks.get(1).is_some_and(|mark| mark.index <= index) {
            self.marks.pop_front();
        }
        let mark = *self.marks.front().filter(|mark| mark.index <= index)?;
        let mark = self.moved_on(mark);
        if let Some(front) = self.marks.front_mut() {
            *front = mark;
        }
        let mut tail = LogTail { log, tail_index: mark.index, ..LogTail::default() };
        tail.doomed.clone_from(&self.leaving);
        for file in self.sealed.iter().filter(|file| file.number < mark.number) {
            match file.fate {
                Fate::Doomed => {
                    tail.doomed.push(file.number);
                    continue;
                }
                Fate::Rewriting(len) => {
                    tail.rewriting.push(Rewriting { number: file.number, len });
                }
                Fate::Stays => {}
            }
            tail.files.push(FileTail { number: file.number, len: file.len });
        }
        tail.doomed.sort_unstable();
        tail.files.push(FileTail { number: mark.number, len: mark.end });
        tail.retired = self.retiring.is_some_and(|retiring| retiring.last == mark.index);
        Some(tail)
    }

    /// Files below this number hold nothing above `index`; 0 when that is not known of any.
    pub(crate) fn floor(&self, index: EntryIndex) -> u64 {
        let front = self.marks.front().filter(|mark| mark.index <= index);
        front.map_or(0, |mark| self.moved_on(*mark).number)
    }

    /// A mark at the end of a sealed file as the start of the next one, so that no mark holds a file back.
    pub(crate) fn moved_on(&self, mark: Mark) -> Mark {
        let Ok(at) = self.sealed.binary_search_by_key(&mark.number, |file| file.number) else {
            return mark;
        };
        let ended = self.sealed.get(at).is_some_and(|file| file.len == mark.end);
        let next = match self.sealed.get(at + 1) {
            Some(next) => Some(next.number),
            // A start that is not durable must not be promised.
            None => (self.number > mark.number && self.start_durable).then_some(self.number),
        };
        match next {
            Some(number) if ended => Mark { number, end: HEADER_LEN as u64, ..mark },
            _ => mark,
        }
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
    /// Held while a group is written, the active file is sealed early, or the directory is given its dead name.
    pub(crate) writer: Mutex<()>,
    /// Held while the next file is being made: a roll that comes too early waits for it instead of making
    /// the same file again. No reader takes it. Taken after `writer`.
    pub(crate) next: Mutex<NextFile>,
    /// Held while side files of a sealed file are made. Taken after `writer`.
    pub(crate) sealing: Mutex<()>,
    /// Held while names of files that readers know go or change. A reader takes it only when it met an error, to
    /// tell a file that went from one that is damaged. Taken after `next`.
    pub(crate) swap: Mutex<()>,
    /// What takes the place of files that are being rewritten, by number.
    pub(crate) replacements: Mutex<BTreeMap<u64, Replacement>>,
    /// Tells its open handles from those of a log that had its directory before.
    pub(crate) epoch: u64,
    /// Whether its directory is gone: whoever still holds it looks for the log anew.
    gone: AtomicBool,
}

impl Log {
    pub(crate) fn new(
        id: LogId,
        dir: PathBuf,
        files: Vec<Arc<LogFile>>,
        tail: Tail,
        epoch: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            dir,
            files: RwLock::new(Arc::new(files)),
            tail: Mutex::new(tail),
            writer: Mutex::default(),
            next: Mutex::default(),
            sealing: Mutex::default(),
            swap: Mutex::default(),
            replacements: Mutex::default(),
            epoch,
            gone: AtomicBool::new(false),
        })
    }

    /// The name of the handle of a file that is or will be written to.
    pub(crate) fn key(&self, number: u64) -> Key {
        (self.id, number, Ext::Log, self.epoch)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
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

    /// Takes files out of the view and returns them.
    pub(crate) fn remove(&self, numbers: &[u64]) -> Vec<Arc<LogFile>> {
        let mut files = self.files.write();
        let (gone, left) =
            files.iter().cloned().partition(|file: &Arc<LogFile>| numbers.contains(&file.number));
        *files = Arc::new(left);
        gone
    }

    pub(crate) fn set_files(&self, list: Vec<Arc<LogFile>>) {
        *self.files.write() = Arc::new(list);
    }
}
