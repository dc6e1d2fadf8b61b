//! Copying the live messages of a sealed file to a file that waits to take its place.
//!
//! Records are copied as they are, checksums and seqs included; entry records and stubs are left out: they lie below the
//! last written point, so no recovery reads them, and not above the floor, so nobody else does. No lock is held while copying.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queen_io::{DiskFile, OpenMode};
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId};
use queen_record::qidx::QidxRecord;

use crate::error::{Fault, ReadError};
use crate::file::{FileIndex, LogFile};
use crate::log::{Fate, Log};
use crate::names::{Ext, rewrite_path};
use crate::read::{damage, seq_range};
use crate::reclaim::Replacement;
use crate::scan::{CHUNK_WHOLE, FileScan, Step, read_exact_at};
use crate::shared::{Qlog, Shared};
use crate::side::{BuildError, Flaw, SealedFile, SideIndex, SidePlace, index_record};

/// What came of a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// A file of this length waits for its place.
    Planned(u64),
    /// It would not be shorter, or would hold nothing.
    Pointless,
    /// The disk is full.
    NoRoom,
}

/// A failure while copying.
enum Failure {
    Full,
    Error(ReadError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        if fault.is_full() { Self::Full } else { Self::Error(fault.into()) }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::Error(error)
    }
}

impl Qlog {
    /// Writes the messages of a cold file that `keep` chooses to a file beside it and plans that it takes its place.
    ///
    /// # Errors
    /// [`ReadError::Damage`]: the file's bytes are not what was written; it stays as it is. [`ReadError::Io`]: the node
    /// must stop.
    pub fn rewrite(
        &self,
        log: LogId,
        number: u64,
        keep: &mut dyn FnMut(&QidxRecord) -> bool,
    ) -> Result<Rewrite, ReadError> {
        let shared = &self.shared;
        shared.check_poison()?;
        let Some(log) = shared.log(log) else { return Ok(Rewrite::Pointless) };
        let done = shared.rewrite(&log, number, keep);
        let left = match &done {
            Ok(Rewrite::Planned(_)) => Ok(()),
            _ => shared.remove_waiting(&log, number),
        };
        let outcome = match (done, left) {
            (Ok(outcome), Ok(())) => Ok(outcome),
            (Err(Failure::Full), Ok(())) => Ok(Rewrite::NoRoom),
            (Err(Failure::Error(error)), _) => Err(error),
            (_, Err(fault)) => Err(fault.into()),
        };
        outcome.map_err(|error| match error {
            ReadError::Io(fault) => ReadError::Io(shared.poisoned(fault)),
            other => other,
        })
    }
}

impl Shared {
    fn rewrite(
        &self,
        log: &Log,
        number: u64,
        keep: &mut dyn FnMut(&QidxRecord) -> bool,
    ) -> Result<Rewrite, Failure> {
        let files = log.files();
        let place = files.iter().position(|file| file.number == number);
        let Some((place, file)) = place.and_then(|at| Some((at, files.get(at)?))) else {
            return Ok(Rewrite::Pointless);
        };
        let is_side = matches!(file.index, FileIndex::Side(_));
        let Some(len) = self.cold_len(log, number).filter(|_| is_side) else {
            return Ok(Rewrite::Pointless);
        };
        let path = rewrite_path(&log.dir, number, Ext::Log);
        let out = self.disk.open(&path, OpenMode::Truncate).map_err(Fault::io(&path, "create"))?;
        let new_len = self.copy_kept(file, len, &*out, keep)?;
        if new_len >= len || new_len <= HEADER_LEN as u64 {
            return Ok(Rewrite::Pointless);
        }
        {
            let _site = queen_io::site("rewrite");
            self.sync_file(&*out, &path)?;
        }
        let seqs = seq_range(&files, place);
        let index = self.waiting_sides(log, number, (out, new_len), (seqs.from, seqs.to))?;
        log.replacements.lock().insert(number, Replacement { index, len: new_len });
        let mut tail = log.tail.lock();
        if let Some(sealed) = tail.sealed.iter_mut().find(|sealed| sealed.number == number) {
            sealed.fate = Fate::Rewriting(new_len);
        }
        self.unrecorded.store(true, Ordering::SeqCst);
        Ok(Rewrite::Planned(new_len))
    }

    /// The length of a cold file of which nothing is planned.
    fn cold_len(&self, log: &Log, number: u64) -> Option<u64> {
        let files = log.files();
        let tail = log.tail.lock();
        let floor = self.cold_below(&files, &tail);
        let mut sealed = tail.sealed.iter();
        let found = sealed.find(|sealed| sealed.number == number)?;
        (number < floor && found.fate == Fate::Stays && !found.bare).then_some(found.len)
    }

    /// Copies header and kept records; returns the length of what was written.
    fn copy_kept(
        &self,
        file: &LogFile,
        len: u64,
        out: &dyn DiskFile,
        keep: &mut dyn FnMut(&QidxRecord) -> bool,
    ) -> Result<u64, Failure> {
        let input = self.open_read(file, Ext::Log)?;
        let mut copy = Copy { file, input: input.clone(), out, run: (0, HEADER_LEN as u64), at: 0 };
        let mut scan = FileScan::new(input, HEADER_LEN as u64, len, CHUNK_WHOLE);
        loop {
            let here = scan.at();
            let kept = match scan.step().map_err(Fault::io(&file.path, "read"))? {
                Step::Record(at, record) => {
                    let end = at + record.total_len() as u64;
                    index_record(at, &record).filter(|entry| keep(entry)).map(|_| (at, end))
                }
                Step::End if here == len => break,
                Step::End => return Err(damage(&file.path, here, "zeros inside").into()),
                Step::Bad(error) => {
                    return Err(damage(&file.path, here, error.to_string()).into());
                }
            };
            if let Some((at, end)) = kept {
                if copy.run.1 != at {
                    copy.flush()?;
                    copy.run.0 = at;
                }
                copy.run.1 = end;
            }
        }
        copy.flush()?;
        Ok(copy.at)
    }

    /// Verifies the copy and writes its side files, which wait beside it.
    fn waiting_sides(
        &self,
        log: &Log,
        number: u64,
        (file, len): (Arc<dyn DiskFile>, u64),
        seqs: (EntryIndex, EntryIndex),
    ) -> Result<SideIndex, Failure> {
        let path = rewrite_path(&log.dir, number, Ext::Log);
        let place = SidePlace::Waiting;
        let dir = &log.dir;
        let job =
            SealedFile { disk: &*self.disk, dir, path: &path, file, number, len, seqs, place };
        job.build(None).map_err(|error| match error {
            BuildError::Fault(fault) => fault.into(),
            // The record was verified when it was copied: the copy is wrong.
            BuildError::Flaw(Flaw { at, reason }) => {
                Failure::Error(Fault::Damage { file: path.clone(), offset: at, reason }.into())
            }
        })
    }

    /// Removes what was written of a file that will not take a place.
    fn remove_waiting(&self, log: &Log, number: u64) -> Result<(), Fault> {
        for ext in [Ext::Log, Ext::Index, Ext::Hashes] {
            let path = rewrite_path(&log.dir, number, ext);
            if self.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
                self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            }
        }
        Ok(())
    }
}

/// Bytes on their way from one file to another, run by run.
struct Copy<'a> {
    file: &'a LogFile,
    input: Arc<dyn DiskFile>,
    out: &'a dyn DiskFile,
    /// Bytes that lie together and are still to be copied.
    run: (u64, u64),
    /// Where they go.
    at: u64,
}

impl Copy<'_> {
    fn flush(&mut self) -> Result<(), Fault> {
        let (mut from, end) = self.run;
        let mut buf = Vec::new();
        while from < end {
            let size = usize::try_from(end - from).unwrap_or(usize::MAX).min(CHUNK_WHOLE);
            buf.resize(size, 0);
            let path = &self.file.path;
            read_exact_at(&*self.input, &mut buf, from).map_err(Fault::io(path, "read"))?;
            self.out.write_all_at(&buf, self.at).map_err(Fault::io(path, "rewrite"))?;
            self.at += size as u64;
            from += size as u64;
        }
        self.run = (end, end);
        Ok(())
    }
}
