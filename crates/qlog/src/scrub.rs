//! The scrub: reads sealed files again, record by record, so that damage is found before a consumer needs what it hit.
//!
//! One file after the other, by log and number. A file that is replaced or removed while it is read is read to its end all
//! the same: the open handle keeps what it was.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

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
    path: PathBuf,
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
            match self.open(&next) {
                Ok(open) => self.open = open,
                Err((offset, reason)) => {
                    return Scrubbed::Damaged { file: next.path.clone(), offset, reason };
                }
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
        let Some(Open { path, file, len, scan }) = self.open.take() else {
            return Scrubbed::Sound(0);
        };
        // What was read only to be looked at must not push out what consumers read.
        file.forget_range(0, len);
        match found {
            None => Scrubbed::Sound(scan.at() - from),
            Some((offset, reason)) => Scrubbed::Damaged { file: path, offset, reason },
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

    /// Opens a file and checks its header; `None` when it is no longer one of its log.
    fn open(&self, file: &LogFile) -> Result<Option<Open>, (u64, String)> {
        let opened = self.qlog.shared.disk.open(&file.path, OpenMode::Read);
        let handle = match opened {
            Ok(handle) => handle,
            Err(error) if error.kind() == ErrorKind::NotFound && !self.is_listed(file) => {
                return Ok(None);
            }
            Err(error) => return Err((0, format!("cannot be opened: {error}"))),
        };
        let unreadable = |error: std::io::Error| (0, format!("cannot be read: {error}"));
        let len = handle.len().map_err(unreadable)?;
        if let Some(sealed) = self.sealed_len(file).filter(|sealed| len < *sealed) {
            // While a file is given the place of another its length and its bytes may be of two.
            let whole = self.is_listed(file) && self.sealed_len(file) == Some(sealed);
            if !whole {
                return Ok(None);
            }
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
        Ok(Some(Open { path: file.path.clone(), file: handle, len, scan }))
    }

    /// How long the file was when it was sealed, as the log knows.
    fn sealed_len(&self, file: &LogFile) -> Option<u64> {
        let log = self.qlog.shared.log(file.log)?;
        let _no_swap = log.swap.lock();
        let tail = log.tail.lock();
        tail.sealed.iter().find(|sealed| sealed.number == file.number).map(|sealed| sealed.len)
    }

    fn is_listed(&self, file: &LogFile) -> bool {
        let logs = self.qlog.shared.logs.read();
        let files = logs.get(&file.log).map(|log| log.files());
        files.is_some_and(|files| files.iter().any(|listed| listed.number == file.number))
    }
}
