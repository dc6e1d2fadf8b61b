//! Verifying the side files that are there: both are read once, side by side.

use std::io;

use queen_io::DiskFile;
use queen_record::qhsh::{self, QHSH_HEAD_LEN, QhshHead};
use queen_record::qidx::{self, QIDX_RECORD_LEN, QidxRecord};
use queen_record::record::HASH_LEN;
use queen_record::side::{SIDE_HEADER_LEN, SideError, SideHeader};

use super::window::{PIECE, Window};
use super::{Blocks, Ranges, SideIndex};

/// Why side files were not loaded.
pub(crate) enum LoadError {
    /// The operating system refused.
    Io(io::Error),
    /// They must be made again.
    Side(SideError),
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<SideError> for LoadError {
    fn from(error: SideError) -> Self {
        Self::Side(error)
    }
}

impl SideIndex {
    /// Verifies both files for log file `number` of `log_len` bytes.
    pub(crate) fn load(
        number: u64,
        log_len: u64,
        index: &dyn DiskFile,
        hashes: &dyn DiskFile,
    ) -> Result<Self, LoadError> {
        let mut index = Body::open(index, qidx::decode_header, Blocks::of_index)?;
        let mut hashes = Body::open(hashes, qhsh::decode_header, Blocks::of_hashes)?;
        for header in [&index.header, &hashes.header] {
            header.belongs_to(number, log_len)?;
        }
        let mut ranges = Ranges::nothing();
        let mut last = None;
        while !index.done() {
            let record = index.index_record()?;
            if last.is_some_and(|last| last >= record.key()) {
                return Err(SideError::Order.into());
            }
            last = Some(record.key());
            ranges.add(&record);
            if hashes.hash_record()?.key() != record.key() {
                return Err(SideError::Stale.into());
            }
        }
        if !hashes.done() {
            return Err(SideError::Stale.into());
        }
        Ok(ranges.index(index.verified()?, hashes.verified()?))
    }
}

/// One side file on its way through the buffer.
struct Body<'a> {
    header: SideHeader,
    window: Window<'a>,
    blocks: Blocks,
}

impl<'a> Body<'a> {
    fn open(
        file: &'a dyn DiskFile,
        header: impl Fn(&[u8]) -> Result<SideHeader, SideError>,
        blocks: impl Fn(u64) -> Blocks,
    ) -> Result<Self, LoadError> {
        let end = file.len()?;
        let mut window = Window::new(file, end);
        let first = window.get(0, SIDE_HEADER_LEN as u64, end)?.ok_or(SideError::Short)?;
        let header = header(first)?;
        Ok(Self { header, window, blocks: blocks(end) })
    }

    fn done(&self) -> bool {
        self.blocks.at >= self.window.end
    }

    fn next(&mut self, len: u64) -> Result<&[u8], LoadError> {
        let end = self.window.end;
        Ok(self.window.get(self.blocks.at, len, end)?.ok_or(SideError::Short)?)
    }

    fn index_record(&mut self) -> Result<QidxRecord, LoadError> {
        let len = QIDX_RECORD_LEN as u64;
        let record = QidxRecord::decode(self.next(len)?).ok_or(SideError::Short)?;
        self.blocks.begin(record.key());
        self.pass(len)?;
        self.blocks.end();
        Ok(record)
    }

    fn hash_record(&mut self) -> Result<QhshHead, LoadError> {
        let len = QHSH_HEAD_LEN as u64;
        let head = QhshHead::decode(self.next(len)?).ok_or(SideError::Short)?;
        self.blocks.begin(head.key());
        self.pass(len)?;
        let mut left = HASH_LEN as u64 * u64::from(head.count);
        while left > 0 {
            let piece = left.min(PIECE);
            self.pass(piece)?;
            left -= piece;
        }
        self.blocks.end();
        Ok(head)
    }

    /// Takes the next `len` bytes into the checksums.
    fn pass(&mut self, len: u64) -> Result<(), LoadError> {
        let end = self.window.end;
        let bytes = self.window.get(self.blocks.at, len, end)?.ok_or(SideError::Short)?;
        self.blocks.add(bytes);
        Ok(())
    }

    fn verified(self) -> Result<Blocks, SideError> {
        if self.blocks.records != self.header.records {
            Err(SideError::Short)
        } else if self.blocks.total.value() != self.header.body_checksum {
            Err(SideError::Checksum)
        } else {
            Ok(self.blocks)
        }
    }
}
