//! The bytes of one log file around a reader's place: read in pieces, verified record by record.

use std::io::ErrorKind;

use queen_io::OpenMode;
use queen_record::record::{HEAD_LEN, Head, Record, decode};

use crate::error::Fault;
use crate::file::LogFile;
use crate::read::damage;
use crate::scan::read_exact_at;
use crate::shared::Shared;

use super::Failure;

/// Bytes of one file from `at` on. The file is open only while they are read: a reader of a thousand logs keeps none.
#[derive(Default)]
pub(crate) struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The verified record at byte `at` of a file whose records end at `end`, which is behind `at`. What is read goes
    /// on for `ahead` bytes if the file does.
    pub(crate) fn record(
        &mut self,
        shared: &Shared,
        file: &LogFile,
        (at, end): (u64, u64),
        ahead: usize,
    ) -> Result<Record<'_>, Failure> {
        let wrong = |reason: String| Failure::Error(damage(&file.path, at, reason));
        let room = end.saturating_sub(at);
        let head = self.fill(shared, file, (at, end), room.min(HEAD_LEN as u64), ahead)?;
        let total = Head::decode(head).map_err(|error| wrong(error.to_string()))?.total_len();
        if total as u64 > room {
            return Err(wrong("the record does not end where the file does".to_owned()));
        }
        let bytes = self.fill(shared, file, (at, end), total as u64, ahead)?;
        decode(bytes).map_err(|error| wrong(error.to_string()))
    }

    /// Gives memory back: what lies behind byte `at` stays, but no more than `keep` bytes.
    pub(crate) fn trim(&mut self, at: u64, keep: usize) {
        if self.bytes.capacity() <= keep {
            return;
        }
        let skip = self.skip(at).unwrap_or(self.bytes.len());
        let rest = self.bytes.get(skip..).unwrap_or_default();
        self.bytes = rest.get(..rest.len().min(keep)).unwrap_or_default().to_vec();
        self.at = at;
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many bytes of the window lie before byte `at`; `None` when `at` is outside.
    fn skip(&self, at: u64) -> Option<usize> {
        let skip = usize::try_from(at.checked_sub(self.at)?).ok()?;
        (skip <= self.bytes.len()).then_some(skip)
    }

    /// The `want` bytes at `at`; the caller has seen that they lie before `end`.
    fn fill(
        &mut self,
        shared: &Shared,
        file: &LogFile,
        (at, end): (u64, u64),
        want: u64,
        ahead: usize,
    ) -> Result<&[u8], Failure> {
        let too_long = || Failure::Error(damage(&file.path, at, "too long to read"));
        let want = usize::try_from(want).map_err(|_| too_long())?;
        let room = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let held = self.skip(at).map(|skip| (skip, self.bytes.len() - skip));
        if let Some((skip, _)) = held.filter(|(_, len)| *len >= want) {
            return Ok(self.bytes.get(skip..skip + want).unwrap_or_default());
        }
        let (skip, had) = held.unwrap_or((self.bytes.len(), 0));
        self.bytes.drain(..skip);
        self.at = at;
        let ahead = want.max(ahead.min(room));
        let mut done = self.extend(shared, file, had, ahead);
        if done.is_err() && ahead > want {
            // What is wrong may lie behind what is wanted.
            done = self.extend(shared, file, had, want);
        }
        if let Err(failure) = done {
            self.clear();
            return Err(failure);
        }
        Ok(self.bytes.get(..want).unwrap_or_default())
    }

    /// Makes the window `len` bytes long; it holds the first `had` of them.
    fn extend(
        &mut self,
        shared: &Shared,
        file: &LogFile,
        had: usize,
        len: usize,
    ) -> Result<(), Failure> {
        self.bytes.resize(len, 0);
        match self.bytes.get_mut(had..) {
            Some(slot) => read(shared, file, slot, self.at + had as u64),
            None => Ok(()),
        }
    }
}

/// Reads bytes of a file as it stands under its name now.
fn read(shared: &Shared, file: &LogFile, slot: &mut [u8], at: u64) -> Result<(), Failure> {
    let failed = |operation| {
        let path = file.path.clone();
        move |source| Failure::Error(Fault::io(&path, operation)(source).into())
    };
    let opened = shared.disk.open(&file.path, OpenMode::Read).map_err(failed("open"))?;
    match read_exact_at(&*opened, slot, at) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            let reason = "the file ends before its records do";
            Err(Failure::Error(damage(&file.path, at, reason)))
        }
        Err(error) => Err(failed("read")(error)),
    }
}
