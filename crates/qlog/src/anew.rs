//! Logs written anew from stored message records, in a directory of their own, under any layout.
//!
//! ```text
//! create (LANES, SHARDS, RECLAIMED)  ->  put, in the order of entries  ->  finish: synced, and the point that names it all
//! ```
//!
//! Records keep their bytes and with them their seqs, so ranges of entries mean what they meant. Entry records are left
//! out: everything here lies below the point, where no recovery reads them. So without a store these logs cannot be
//! applied again, and `RECLAIMED` says so from the start.
//!
//! Nothing of it counts before a store has the point; whoever writes it starts over after a crash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Disk, DiskFile, OpenMode};
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::ids::{EntryIndex, LogId};
use queen_record::layout::Layout;

use crate::background::sealed_seqs;
use crate::durable::{DurablePoint, FileTail, LogTail};
use crate::error::Fault;
use crate::inventory;
use crate::names::{Ext, file_path, log_dir};
use crate::reclaim::RECLAIMED;
use crate::side::{BuildError, Flaw, SealedFile, SidePlace};

/// Bytes that wait to be written, over all logs.
const WAITING_MAX: usize = 32 << 20;

/// Logs in the making.
pub struct AnewLogs {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    layout: Layout,
    segment_bytes: u64,
    logs: BTreeMap<LogId, AnewLog>,
    waiting: usize,
}

/// One of them; the newest file is the one being written.
struct AnewLog {
    dir: PathBuf,
    files: Vec<FileTail>,
    first: EntryIndex,
    last: EntryIndex,
    /// Bytes of the newest file that are not written yet, and where they go.
    buf: Vec<u8>,
    buf_at: u64,
}

/// What the logs hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anew {
    /// The point that a store has to record with its rows.
    pub point: DurablePoint,
    /// Record files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl AnewLogs {
    /// Makes the `qlog` directory, which must not be there; its parent must.
    ///
    /// # Errors
    /// [`Fault`]: what is there then is to be removed.
    pub fn create(
        disk: Arc<dyn Disk>,
        dir: &Path,
        layout: Layout,
        segment_bytes: u64,
    ) -> Result<Self, Fault> {
        disk.create_dir(dir).map_err(Fault::io(dir, "create"))?;
        crate::layout::write_new(&*disk, dir, layout)?;
        inventory::write_over(&*disk, dir)?;
        let path = dir.join(RECLAIMED);
        disk.open(&path, OpenMode::Truncate).map_err(Fault::io(&path, "create"))?;
        disk.sync_dir(dir).map_err(Fault::io(dir, "sync"))?;
        let (dir, logs) = (dir.to_path_buf(), BTreeMap::new());
        Ok(Self { disk, dir, layout, segment_bytes, logs, waiting: 0 })
    }

    /// Adds a verified message record to a log.
    ///
    /// # Errors
    /// [`Fault`]: what is there is to be removed. [`Fault::Damage`]: what was written does not read back.
    ///
    /// # Panics
    /// When `seq` is below that of an earlier record of the log (Q1).
    pub fn put(&mut self, log: LogId, seq: EntryIndex, record: &[u8]) -> Result<(), Fault> {
        let slot = self.logs.entry(log);
        let dir = &self.dir;
        let anew = slot.or_insert_with(|| AnewLog::new(log_dir(dir, log)));
        assert!(seq >= anew.last, "entry {seq} after entry {}", anew.last);
        // A file ends with the last record of an entry: the next one's header says that it holds higher ones.
        let is_full = anew.end() >= self.segment_bytes && seq > anew.last;
        if is_full {
            self.waiting -= anew.buf.len();
            anew.seal(&self.disk, seq)?;
        }
        if is_full || anew.files.is_empty() {
            anew.begin(&*self.disk, seq)?;
            self.waiting += HEADER_LEN;
        }
        anew.last = seq;
        anew.buf.extend_from_slice(record);
        self.waiting += record.len();
        if self.waiting >= WAITING_MAX {
            for anew in self.logs.values_mut() {
                anew.flush(&*self.disk)?;
            }
            self.waiting = 0;
        }
        Ok(())
    }

    /// Makes everything durable but the name of the directory itself, and says what a store has to record: all of it
    /// as of entry `index`, which is not below that of any record.
    ///
    /// # Errors
    /// As [`AnewLogs::put`].
    pub fn finish(self, index: EntryIndex) -> Result<Anew, Fault> {
        let disk = &*self.disk;
        let layout = Some((self.layout.lanes(), self.layout.shards().number()));
        let mut anew =
            Anew { point: DurablePoint { index, layout, logs: Vec::new() }, ..Anew::default() };
        for (id, mut log) in self.logs {
            assert!(log.last <= index, "entry {} above entry {index}", log.last);
            log.flush(disk)?;
            let (_, path) = log.newest();
            let file = disk.open(&path, OpenMode::Write).map_err(Fault::io(&path, "open"))?;
            sync(&*file, &path)?;
            forget(&*file, log.buf_at);
            disk.sync_dir(&log.dir).map_err(Fault::io(&log.dir, "sync"))?;
            if let Some(newest) = log.files.last_mut() {
                newest.len = log.buf_at;
            }
            anew.files += log.files.len() as u64;
            anew.bytes += log.files.iter().map(|file| file.len).sum::<u64>();
            let AnewLog { files, last, .. } = log;
            let tail = LogTail { log: id, tail_index: last, files, ..LogTail::default() };
            anew.point.logs.push(tail);
        }
        disk.sync_dir(&self.dir).map_err(Fault::io(&self.dir, "sync"))?;
        Ok(anew)
    }
}

impl AnewLog {
    fn new(dir: PathBuf) -> Self {
        let (first, last) = (EntryIndex(0), EntryIndex(0));
        Self { dir, files: Vec::new(), first, last, buf: Vec::new(), buf_at: 0 }
    }

    /// The number and path of the file being written.
    fn newest(&self) -> (u64, PathBuf) {
        let number = self.files.last().map_or(0, |file| file.number);
        (number, file_path(&self.dir, number, Ext::Log))
    }

    fn end(&self) -> u64 {
        self.buf_at + self.buf.len() as u64
    }

    /// Begins the next file, whose first record has this seq.
    fn begin(&mut self, disk: &dyn Disk, first: EntryIndex) -> Result<(), Fault> {
        if self.files.is_empty() {
            disk.create_dir(&self.dir).map_err(Fault::io(&self.dir, "create"))?;
        }
        let number = self.files.len() as u64 + 1;
        self.files.push(FileTail { number, len: 0 });
        let (_, path) = self.newest();
        disk.open(&path, OpenMode::CreateNew).map_err(Fault::io(&path, "create"))?;
        self.first = first;
        self.buf_at = 0;
        self.buf.extend_from_slice(&FileHeader { number, first_seq: first }.encode());
        Ok(())
    }

    fn flush(&mut self, disk: &dyn Disk) -> Result<(), Fault> {
        if self.buf.is_empty() {
            return Ok(());
        }
        let (_, path) = self.newest();
        let file = disk.open(&path, OpenMode::Write).map_err(Fault::io(&path, "open"))?;
        file.write_all_at(&self.buf, self.buf_at).map_err(Fault::io(&path, "write"))?;
        self.buf_at = self.end();
        // What one log took once it does not keep.
        self.buf = Vec::new();
        Ok(())
    }

    /// Ends the file being written before one that begins with `next_first`: synced, read back, with its side files.
    fn seal(&mut self, disk: &Arc<dyn Disk>, next_first: EntryIndex) -> Result<(), Fault> {
        self.flush(&**disk)?;
        let (number, path) = self.newest();
        let len = self.buf_at;
        if let Some(newest) = self.files.last_mut() {
            newest.len = len;
        }
        let file = disk.open(&path, OpenMode::Write).map_err(Fault::io(&path, "open"))?;
        sync(&*file, &path)?;
        forget(&*file, len);
        let file = disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
        let (disk, dir, seqs) = (&**disk, &*self.dir, sealed_seqs(self.first, next_first));
        let place = SidePlace::Own;
        let job = SealedFile { disk, dir, path: &path, file, number, len, seqs, place };
        job.build(None).map_err(|error| match error {
            BuildError::Fault(fault) => fault,
            BuildError::Flaw(Flaw { at, reason }) => {
                Fault::Damage { file: path.clone(), offset: at, reason }
            }
        })?;
        for ext in [Ext::Index, Ext::Hashes] {
            let path = file_path(dir, number, ext);
            let file = disk.open(&path, OpenMode::Write).map_err(Fault::io(&path, "open"))?;
            sync(&*file, &path)?;
        }
        Ok(())
    }
}

fn sync(file: &dyn DiskFile, path: &Path) -> Result<(), Fault> {
    let _site = queen_io::site("anew");
    file.sync_data().map_err(Fault::io(path, "sync"))
}

/// What reads it next is to read what the disk has.
fn forget(file: &dyn DiskFile, len: u64) {
    file.forget_range(0, len);
}
