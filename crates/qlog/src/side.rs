//! Side files of a sealed log file: made by a scan, verified whole at open, then known by their blocks.
//!
//! RAM keeps one key and one checksum per block of about 4 KiB; a look-up reads the block and checks it, so
//! an index that rots after the open is noticed as well. Making and verifying go through buffers of 64 KiB.

mod build;
mod load;
#[cfg(test)]
mod tests;
mod window;

use queen_record::hash::Checksum;
use queen_record::ids::{Micros, Offset, PartitionId};
use queen_record::qidx::{QIDX_RECORD_LEN, QidxRecord};
use queen_record::record::Record;
use queen_record::side::SIDE_HEADER_LEN;

pub(crate) use build::{BuildError, Flaw, SealedFile, SidePlace};
pub(crate) use load::LoadError;
pub(crate) use window::WINDOW;

/// Index records per block: 85 x 48 bytes fill one page but for 16 bytes.
const BLOCK_RECORDS: usize = 85;
/// A block of hashes ends with the record that reaches this many bytes.
const HASH_BLOCK_BYTES: usize = 4096;

type Key = (PartitionId, Offset);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Block {
    key: Key,
    at: u64,
    checksum: u64,
}

/// The blocks of both side files, and the ranges that let a reader pass the file by.
#[derive(PartialEq, Eq)]
pub(crate) struct SideIndex {
    pub(crate) partitions: (PartitionId, PartitionId),
    pub(crate) created: (Micros, Micros),
    index: Vec<Block>,
    index_end: u64,
    hashes: Vec<Block>,
    hashes_end: u64,
}

impl SideIndex {
    pub(crate) fn index_block_count(&self) -> usize {
        self.index.len()
    }

    /// First key of an index block.
    pub(crate) fn index_key(&self, block: usize) -> Option<Key> {
        self.index.get(block).map(|block| block.key)
    }

    /// The index block in which `key` lies, or would lie.
    pub(crate) fn index_block_of(&self, key: Key) -> usize {
        self.index.partition_point(|block| block.key <= key).saturating_sub(1)
    }

    /// The hash block in which `key` lies, or would lie.
    pub(crate) fn hash_block_of(&self, key: Key) -> usize {
        self.hashes.partition_point(|block| block.key <= key).saturating_sub(1)
    }

    pub(crate) fn hash_key(&self, block: usize) -> Option<Key> {
        self.hashes.get(block).map(|block| block.key)
    }

    /// Byte range and checksum of an index block.
    pub(crate) fn index_range(&self, block: usize) -> Option<(u64, u64, u64)> {
        range(&self.index, block, self.index_end)
    }

    /// Byte range and checksum of a hash block.
    pub(crate) fn hash_range(&self, block: usize) -> Option<(u64, u64, u64)> {
        range(&self.hashes, block, self.hashes_end)
    }
}

fn range(blocks: &[Block], block: usize, end: u64) -> Option<(u64, u64, u64)> {
    let found = blocks.get(block)?;
    let until = blocks.get(block + 1).map_or(end, |next| next.at);
    Some((found.at, until, found.checksum))
}

/// Running checksums of a side file's body: of all of it, and block by block.
struct Blocks {
    /// A block ends with the record that reaches this many bytes.
    block_bytes: u64,
    at: u64,
    total: Checksum,
    open: Option<(Key, u64, Checksum)>,
    list: Vec<Block>,
    records: u32,
}

impl Blocks {
    fn of_index(body: u64) -> Self {
        Self::new((BLOCK_RECORDS * QIDX_RECORD_LEN) as u64, body)
    }

    fn of_hashes(body: u64) -> Self {
        Self::new(HASH_BLOCK_BYTES as u64, body)
    }

    /// For a body of about `body` bytes, which the caller has seen on disk.
    fn new(block_bytes: u64, body: u64) -> Self {
        let room = usize::try_from(body / block_bytes + 1).unwrap_or(0);
        Self {
            block_bytes,
            at: SIDE_HEADER_LEN as u64,
            total: Checksum::new(),
            open: None,
            list: Vec::with_capacity(room),
            records: 0,
        }
    }

    /// The next record begins.
    fn begin(&mut self, key: Key) {
        self.open.get_or_insert_with(|| (key, self.at, Checksum::new()));
        self.records = self.records.saturating_add(1);
    }

    /// More bytes of the record.
    fn add(&mut self, bytes: &[u8]) {
        self.at += bytes.len() as u64;
        self.total.update(bytes);
        if let Some((_, _, checksum)) = &mut self.open {
            checksum.update(bytes);
        }
    }

    /// The record has ended.
    fn end(&mut self) {
        if self.open.as_ref().is_some_and(|(_, at, _)| self.at - at >= self.block_bytes) {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some((key, at, checksum)) = self.open.take() {
            self.list.push(Block { key, at, checksum: checksum.value() });
        }
    }

    /// The blocks, and where the last one ends.
    fn finish(mut self) -> (Vec<Block>, u64) {
        self.close();
        self.list.shrink_to_fit();
        (self.list, self.at)
    }
}

/// Lowest and highest partition and time of some records.
struct Ranges {
    partitions: (PartitionId, PartitionId),
    created: (Micros, Micros),
}

impl Ranges {
    fn nothing() -> Self {
        Self {
            partitions: (PartitionId(u64::MAX), PartitionId(0)),
            created: (Micros(i64::MAX), Micros(i64::MIN)),
        }
    }

    fn add(&mut self, record: &QidxRecord) {
        let (partition, created) = (record.partition, record.created);
        self.partitions = (self.partitions.0.min(partition), self.partitions.1.max(partition));
        self.created = (self.created.0.min(created), self.created.1.max(created));
    }

    fn index(self, index: Blocks, hashes: Blocks) -> SideIndex {
        let (index, index_end) = index.finish();
        let (hashes, hashes_end) = hashes.finish();
        let Self { partitions, created } = self;
        SideIndex { partitions, created, index, index_end, hashes, hashes_end }
    }
}

/// The index record of a message record that starts at `at`; `None` for other kinds.
pub(crate) fn index_record(at: u64, record: &Record<'_>) -> Option<QidxRecord> {
    let head = &record.head;
    if !head.kind.is_message() {
        return None;
    }
    Some(QidxRecord {
        partition: head.partition,
        base: head.base,
        end: head.end()?,
        created: head.created,
        at,
        count: head.count,
        len: u32::try_from(record.total_len()).ok()?,
    })
}
