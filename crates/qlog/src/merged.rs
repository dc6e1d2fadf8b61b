//! The message records of all logs as one sequence, in the order of their entries: for whoever writes them anew.
//!
//! Every record of every file is read and verified, entry records too; those are not handed over. Memory: a piece of each
//! log and one record, about 64 MiB over all logs, until there are more than 65,536 of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use queen_io::{Disk, DiskFile, OpenMode};
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId};
use queen_record::qidx::QidxRecord;
use queen_record::record::Head;

use crate::error::{Fault, ReadError};
use crate::file::FileIndex;
use crate::log::Log;
use crate::names::{Ext, file_path};
use crate::read::{Wait, damage};
use crate::scan::{CHUNK_WHOLE, FileScan, Step};
use crate::shared::Qlog;

/// Bytes of all pieces together.
const PIECES: usize = 64 << 20;
/// The smallest piece.
const PIECE_MIN: usize = 1 << 10;
/// With more logs than this, a file is opened for each piece.
const KEEP_OPEN_MAX: usize = 128;
/// Places taken from an index in memory at once.
const PLACES: usize = 256;

/// A message record as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct MergedRecord<'a> {
    /// The log that holds it.
    pub log: LogId,
    /// Its fixed part.
    pub head: Head,
    /// All its bytes, verified.
    pub bytes: &'a [u8],
}

/// A walk over the message records of all logs.
///
/// Shape: seqs never go down. Records of one log come in their order; of one entry, those of a lower log come first.
/// Nothing may be appended or reclaimed meanwhile.
pub struct Merged {
    sources: Vec<Source>,
    heads: BinaryHeap<Reverse<(EntryIndex, LogId, usize)>>,
    /// The source whose record was handed over last.
    given: Option<usize>,
    read: u64,
}

impl Qlog {
    /// Starts a walk over all logs as they are now.
    ///
    /// # Errors
    /// As [`Merged::next_record`].
    pub fn merged(&self) -> Result<Merged, ReadError> {
        let logs = self.shared.all_logs();
        let piece = (PIECES / logs.len().max(1)).clamp(PIECE_MIN, CHUNK_WHOLE);
        let keep_open = logs.len() <= KEEP_OPEN_MAX;
        let source = |log: &Arc<Log>| Source::new(log, self.shared.disk.clone(), piece, keep_open);
        let sources: Vec<Source> = logs.iter().map(source).collect();
        let mut merged = Merged { sources, heads: BinaryHeap::new(), given: None, read: 0 };
        for place in 0..merged.sources.len() {
            merged.advance(place)?;
        }
        Ok(merged)
    }

    /// Hands over the place of every message record, from the indexes alone: log by log, file by file, by partition
    /// and offset in one.
    ///
    /// # Errors
    /// As [`Qlog::read`].
    pub fn each_place(&self, f: &mut dyn FnMut(LogId, &QidxRecord)) -> Result<(), ReadError> {
        let mut batch = Vec::with_capacity(PLACES);
        for log in self.shared.all_logs() {
            for file in log.files().iter() {
                match &file.index {
                    FileIndex::Side(side) => {
                        for block in 0..side.index_block_count() {
                            let found = self.shared.index_block(file, side, block, Wait::Yes)?;
                            for place in &found.unwrap_or_default() {
                                f(log.id, place);
                            }
                        }
                    }
                    FileIndex::Ram(index) => loop {
                        let last = batch.last().map(QidxRecord::key);
                        index.read().after(last, PLACES, &mut batch);
                        for place in &batch {
                            f(log.id, place);
                        }
                        if batch.is_empty() {
                            break;
                        }
                    },
                }
            }
        }
        Ok(())
    }
}

impl Merged {
    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// [`ReadError::Damage`]: a record of a file, whether it has messages or not, is not what was written.
    pub fn next_record(&mut self) -> Result<Option<MergedRecord<'_>>, ReadError> {
        if let Some(place) = self.given.take() {
            self.advance(place)?;
        }
        let Some(Reverse((_, log, place))) = self.heads.pop() else { return Ok(None) };
        self.given = Some(place);
        let current = self.sources.get(place).and_then(Source::current);
        Ok(current.map(|(head, bytes)| MergedRecord { log, head, bytes }))
    }

    /// Bytes of all records passed so far, those without messages too.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    fn advance(&mut self, place: usize) -> Result<(), ReadError> {
        let Some(source) = self.sources.get_mut(place) else { return Ok(()) };
        let next = source.advance(&mut self.read)?;
        self.heads.extend(next.map(|seq| Reverse((seq, source.log, place))));
        Ok(())
    }
}

/// One log.
struct Source {
    log: LogId,
    disk: Arc<dyn Disk>,
    /// Path and end of the records of each file that is not done, the next one last.
    files: Vec<(PathBuf, u64)>,
    piece: usize,
    keep_open: bool,
    scan: Option<(PathBuf, u64, FileScan)>,
    last: EntryIndex,
    /// Where the record that is handed over next starts.
    current: Option<(u64, Head)>,
}

impl Source {
    fn new(log: &Log, disk: Arc<dyn Disk>, piece: usize, keep_open: bool) -> Self {
        let tail = log.tail.lock();
        let sealed = tail.sealed.iter().map(|file| (file.number, file.len));
        let active = (tail.number > 0).then_some((tail.number, tail.end));
        let path = |(number, end)| (file_path(&log.dir, number, Ext::Log), end);
        let mut files: Vec<(PathBuf, u64)> = sealed.chain(active).map(path).collect();
        files.reverse();
        let (log, last) = (log.id, EntryIndex(0));
        Self { log, disk, files, piece, keep_open, scan: None, last, current: None }
    }

    fn current(&self) -> Option<(Head, &[u8])> {
        let ((at, head), (_, _, scan)) = (self.current?, self.scan.as_ref()?);
        Some((head, scan.bytes(at, head.total_len())))
    }

    /// Goes to the next message record; its seq, or `None` at the end of the log.
    fn advance(&mut self, read: &mut u64) -> Result<Option<EntryIndex>, ReadError> {
        self.current = None;
        loop {
            let Some((path, end, scan)) = &mut self.scan else {
                let Some((path, end)) = self.files.pop() else { return Ok(None) };
                let file: Arc<dyn DiskFile> = if self.keep_open {
                    self.disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?
                } else {
                    Arc::new(Reopened { disk: self.disk.clone(), path: path.clone() })
                };
                let scan = FileScan::new(file, HEADER_LEN as u64, end, self.piece);
                self.scan = Some((path, end, scan));
                continue;
            };
            let here = scan.at();
            match scan.step().map_err(Fault::io(path, "read"))? {
                Step::Record(at, record) => {
                    let head = record.head;
                    if head.seq < self.last {
                        let reason = format!("entry {} after entry {}", head.seq, self.last);
                        return Err(damage(path, at, reason));
                    }
                    self.last = head.seq;
                    *read += head.total_len() as u64;
                    if head.kind.is_message() {
                        self.current = Some((at, head));
                        return Ok(Some(head.seq));
                    }
                }
                Step::End if here == *end => self.scan = None,
                Step::End => return Err(damage(path, here, "zeros inside")),
                Step::Bad(error) => return Err(damage(path, here, error.to_string())),
            }
        }
    }
}

/// A file that is open only while it is read.
struct Reopened {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl Reopened {
    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.path, OpenMode::Read)
    }
}

impl DiskFile for Reopened {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file()?.read_at(buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.file()?.read_at_nowait(buf, offset)
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file()?.len()
    }

    /// What is read goes on being read.
    fn forget_range(&self, _: u64, _: u64) {}
}
