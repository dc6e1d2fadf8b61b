//! The scrub: reads sealed files again, record by record, so that damage is found before a consumer needs what it hit.
//!
//! One file after the other, by log and number. A file that is replaced or removed while it is read is read to its end all
//! the same: the open handle keeps what it was.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use queen_io::{DiskFile, OpenMode};
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::ids::LogId;

use crate::file::LogFile;
use crate::scan::{CHUNK_MERGE, FileScan, Step, read_exact_at};
use crate::shared::Qlog;

/// What a step of the scrub did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrubbed {
    /// So many bytes were read, and all of them are what was written.
    Sound(u64),
    /// A file is not what was written; the rest of it is left out of this round.
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the damage is.
        offset: u64,
        /// What it is.
        reason: String,
    },
    /// Every file that was sealed when its turn came has been read; the next step begins anew.
    Round,
}

/// A scrub of all logs, to be stepped.
pub struct Scrub {
    qlog: Qlog,
    /// The file that was read last.
    last: Option<(LogId, u64)>,
    open: Option<Open>,
}

struct Open {
    of: Arc<LogFile>,
    /// The count of truncations when it was opened.
    truncations: u64,
    file: Arc<dyn DiskFile>,
    len: u64,
    scan: FileScan,
}

impl Scrub {
    /// A scrub that begins with the first file.
    #[must_use]
    pub fn new(qlog: Qlog) -> Self {
        Self { qlog, last: None, open: None }
    }

    /// Reads about `bytes` of one file, at least one record. Waits for the disk.
    pub fn step(&mut self, bytes: u64) -> Scrubbed {
        if self.open.is_none() {
            let Some(next) = self.next_file() else {
                self.last = None;
                return Scrubbed::Round;
            };
            self.last = Some((next.log, next.number));
            let truncations = self.qlog.shared.truncations.load(Ordering::SeqCst);
            match self.open(&next, truncations) {
                Ok(open) => self.open = Some(open),
                Err((offset, reason)) if self.is_as_opened(&next, truncations) => {
                    return Scrubbed::Damaged { file: next.path.clone(), offset, reason };
                }
                Err(_) => return Scrubbed::Sound(0),
            }
        }
        let Some(open) = &mut self.open else { return Scrubbed::Sound(0) };
        let from = open.scan.at();
        let found = loop {
            let at = open.scan.at();
            if at - from >= bytes {
                return Scrubbed::Sound(at - from);
            }
            match open.scan.step() {
                Ok(Step::Record(..)) => {}
                Ok(Step::End) if at == open.len => break None,
                Ok(Step::End) => break Some((at, "zeros where records were".to_owned())),
                Ok(Step::Bad(error)) => break Some((at, error.to_string())),
                Err(error) => break Some((at, format!("cannot be read: {error}"))),
            }
        };
        let Some(Open { of, truncations, file, len, scan }) = self.open.take() else {
            return Scrubbed::Sound(0);
        };
        // What was read only to be looked at must not push out what consumers read.
        file.forget_range(0, len);
        match found {
            Some((offset, reason)) if self.is_as_opened(&of, truncations) => {
                Scrubbed::Damaged { file: of.path.clone(), offset, reason }
            }
            _ => Scrubbed::Sound(scan.at() - from),
        }
    }

    /// The sealed file behind the last one.
    fn next_file(&self) -> Option<Arc<LogFile>> {
        let logs = self.qlog.shared.logs.read();
        let first_log = self.last.map_or(LogId(0), |(log, _)| log);
        logs.range(first_log..).find_map(|(id, log)| {
            let files = log.files();
            let (_, sealed) = files.split_last()?;
            let is_behind = |file: &&Arc<LogFile>| self.last.is_none_or(|l| (*id, file.number) > l);
            sealed.iter().find(is_behind).cloned()
        })
    }

    /// Opens a file and checks its length and header.
    fn open(&self, file: &Arc<LogFile>, truncations: u64) -> Result<Open, (u64, String)> {
        let handle = self.qlog.shared.disk.open(&file.path, OpenMode::Read);
        let handle = handle.map_err(|error| (0, format!("cannot be opened: {error}")))?;
        let unreadable = |error: std::io::Error| (0, format!("cannot be read: {error}"));
        let len = handle.len().map_err(unreadable)?;
        if let Some(sealed) = self.sealed_len(file).filter(|sealed| len < *sealed) {
            return Err((len, format!("the file ends here, {sealed} bytes were sealed")));
        }
        let mut head = [0; HEADER_LEN];
        read_exact_at(&*handle, &mut head, 0).map_err(unreadable)?;
        match FileHeader::decode(&head) {
            Ok(header) if header.number == file.number && header.first_seq == file.first_seq => {}
            Ok(_) => return Err((0, "the header is not the one of this file".to_owned())),
            Err(error) => return Err((0, error.to_string())),
        }
        let scan = FileScan::new(handle.clone(), HEADER_LEN as u64, len, CHUNK_MERGE);
        Ok(Open { of: file.clone(), truncations, file: handle, len, scan })
    }

    /// How long the file was when it was sealed, or written anew, as the log knows.
    fn sealed_len(&self, file: &LogFile) -> Option<u64> {
        let log = self.qlog.shared.log(file.log)?;
        let tail = log.tail.lock();
        let sealed = tail.sealed.iter().find(|sealed| sealed.number == file.number)?;
        // The view of a rewritten file changes before its length in the tail does.
        Some(sealed.len.min(file.rewritten.unwrap_or(u64::MAX)))
    }

    /// Whether what was read of a file is of the one that its log has now. One that was replaced, retired or cut meanwhile
    /// may look damaged, and is read in the next round if it is still there.
    fn is_as_opened(&self, file: &Arc<LogFile>, truncations: u64) -> bool {
        let shared = &self.qlog.shared;
        let Some(log) = shared.log(file.log) else { return false };
        // Whoever changes names has changed the view too when this is free.
        let _no_swap = log.swap.lock();
        let is_listed = log.files().iter().any(|listed| Arc::ptr_eq(listed, file));
        let is_sealed = log.tail.lock().sealed.iter().any(|sealed| sealed.number == file.number);
        is_listed && is_sealed && shared.truncations.load(Ordering::SeqCst) == truncations
    }
}
