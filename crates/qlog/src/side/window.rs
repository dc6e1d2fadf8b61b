//! Positioned reads of one file through one buffer of fixed size.

use std::io;

use queen_io::DiskFile;

use crate::scan::read_exact_at;

/// Bytes of the buffer.
pub(crate) const WINDOW: usize = 1 << 16;
/// Bytes of a long run of hashes that are asked for at once.
pub(super) const PIECE: u64 = 1 << 12;

/// The bytes of a file around the last place that was read.
pub(super) struct Window<'a> {
    file: &'a dyn DiskFile,
    /// Length of the file.
    pub(super) end: u64,
    buf: Vec<u8>,
    at: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a dyn DiskFile, end: u64) -> Self {
        Self { file, end, buf: vec![0; WINDOW], at: 0, filled: 0 }
    }

    /// The `len` bytes at `at`, at most [`WINDOW`]; `None` behind the file's end. A read fetches up to byte
    /// `until` as well, as far as the buffer goes.
    pub(super) fn get(&mut self, at: u64, len: u64, until: u64) -> io::Result<Option<&[u8]>> {
        let Some(stop) = at.checked_add(len).filter(|stop| *stop <= self.end) else {
            return Ok(None);
        };
        if at < self.at || stop > self.at + self.filled as u64 {
            let until = until.clamp(stop, self.end);
            let want = usize::try_from(until - at).unwrap_or(usize::MAX).min(WINDOW);
            self.filled = 0;
            if let Some(slot) = self.buf.get_mut(..want) {
                read_exact_at(self.file, slot, at)?;
            }
            self.at = at;
            self.filled = want;
        }
        let skip = usize::try_from(at - self.at).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(self.buf.get(skip..).and_then(|rest| rest.get(..len)))
    }
}
