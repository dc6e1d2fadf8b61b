//! Side files of a sealed log file: made by a scan, verified whole at open, then known by their blocks.
//!
//! RAM keeps one key and one checksum per block of about 4 KiB; a look-up reads the block and checks it, so
//! an index that rots after the open is noticed as well.

use std::io;
use std::sync::Arc;

use queen_io::DiskFile;
use queen_record::hash::checksum;
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId};
use queen_record::qhsh::{self, QhshHead, QhshRecord};
use queen_record::qidx::{self, QIDX_RECORD_LEN, QidxRecord};
use queen_record::side::{SIDE_HEADER_LEN, SideError};

use crate::scan::{CHUNK_WHOLE, FileScan, Step};

/// Index records per block: 85 x 48 bytes fill one page but for 16 bytes.
const BLOCK_RECORDS: usize = 85;
/// A block of hashes ends with the record that reaches this many bytes.
const HASH_BLOCK_BYTES: usize = 4096;

type Key = (PartitionId, Offset);

#[derive(Clone, Copy)]
struct Block {
    key: Key,
    at: u64,
    checksum: u64,
}

/// The blocks of both side files, and the ranges that let a reader pass the file by.
pub(crate) struct SideIndex {
    pub(crate) partitions: (PartitionId, PartitionId),
    pub(crate) created: (Micros, Micros),
    index: Vec<Block>,
    index_end: u64,
    hashes: Vec<Block>,
    hashes_end: u64,
}

impl SideIndex {
    /// Verifies both files for log file `number` of `log_len` bytes.
    pub(crate) fn new(
        number: u64,
        log_len: u64,
        index: &[u8],
        hashes: &[u8],
    ) -> Result<Self, SideError> {
        let (header, records) = qidx::decode(index)?;
        header.belongs_to(number, log_len)?;
        let (hash_header, hash_records) = qhsh::decode(hashes)?;
        hash_header.belongs_to(number, log_len)?;
        let same = records.len() == hash_records.len()
            && records.iter().zip(&hash_records).all(|(a, b)| a.key() == b.head.key());
        if !same {
            return Err(SideError::Stale);
        }
        let nothing = (PartitionId(u64::MAX), PartitionId(0));
        let mut partitions = nothing;
        let mut created = (Micros(i64::MAX), Micros(i64::MIN));
        for record in &records {
            partitions = (partitions.0.min(record.partition), partitions.1.max(record.partition));
            created = (created.0.min(record.created), created.1.max(record.created));
        }
        Ok(Self {
            partitions,
            created,
            index: index_blocks(index, &records),
            index_end: index.len() as u64,
            hashes: hash_blocks(hashes, &hash_records),
            hashes_end: hashes.len() as u64,
        })
    }

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

fn index_blocks(file: &[u8], records: &[QidxRecord]) -> Vec<Block> {
    let body = file.get(SIDE_HEADER_LEN..).unwrap_or_default();
    let bytes = body.chunks(BLOCK_RECORDS * QIDX_RECORD_LEN);
    let mut at = SIDE_HEADER_LEN as u64;
    let mut blocks = Vec::with_capacity(records.len() / BLOCK_RECORDS + 1);
    for (records, bytes) in records.chunks(BLOCK_RECORDS).zip(bytes) {
        if let Some(first) = records.first() {
            blocks.push(Block { key: first.key(), at, checksum: checksum(bytes) });
        }
        at += bytes.len() as u64;
    }
    blocks
}

fn hash_blocks(file: &[u8], records: &[QhshRecord<'_>]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut start = SIDE_HEADER_LEN;
    let mut end = start;
    let mut key = None;
    for (place, record) in records.iter().enumerate() {
        let first = *key.get_or_insert(record.head.key());
        end += record.total_len();
        if end - start >= HASH_BLOCK_BYTES || place + 1 == records.len() {
            let bytes = file.get(start..end).unwrap_or_default();
            blocks.push(Block { key: first, at: start as u64, checksum: checksum(bytes) });
            start = end;
            key = None;
        }
    }
    blocks
}

/// Both side files of a log file, in memory.
pub(crate) struct SideFiles {
    pub(crate) index: Vec<u8>,
    pub(crate) hashes: Vec<u8>,
}

/// What a scan of a sealed file found to be wrong.
pub(crate) struct Flaw {
    pub(crate) at: u64,
    pub(crate) reason: String,
}

/// Reads all `log_len` bytes of a sealed file, verifies each record, and makes its side files.
///
/// Every record's seq must lie in `seqs`, both ends included, and none may be lower than the one before it.
pub(crate) fn build(
    file: &Arc<dyn DiskFile>,
    number: u64,
    log_len: u64,
    seqs: (EntryIndex, EntryIndex),
) -> io::Result<Result<SideFiles, Flaw>> {
    let mut scan = FileScan::new(file.clone(), HEADER_LEN as u64, log_len, CHUNK_WHOLE);
    let mut found: Vec<(QidxRecord, usize)> = Vec::new();
    let mut pool: Vec<u8> = Vec::new();
    let mut last = seqs.0;
    loop {
        let here = scan.at();
        let (at, record) = match scan.step()? {
            Step::Record(at, record) => (at, record),
            Step::End if here == log_len => break,
            Step::End => return Ok(Err(flaw(here, "zeros inside a sealed file"))),
            Step::Bad(error) => return Ok(Err(flaw(here, error.to_string()))),
        };
        let seq = record.head.seq;
        if seq < last || seq > seqs.1 {
            return Ok(Err(flaw(at, format!("seq {seq} does not belong here"))));
        }
        last = seq;
        if let Some(entry) = index_record(at, &record) {
            found.push((entry, pool.len()));
            pool.extend_from_slice(record.hashes);
        }
    }
    found.sort_by_key(|(record, _)| record.key());
    if let Some(at) = found.windows(2).find_map(|pair| match pair {
        [(a, _), (b, _)] if a.key() == b.key() => Some(b.at),
        _ => None,
    }) {
        return Ok(Err(flaw(at, "a second record of the same offset")));
    }
    let hashes = qhsh::encode(
        number,
        log_len,
        found.iter().map(|(record, from)| QhshRecord {
            head: QhshHead {
                partition: record.partition,
                base: record.base,
                created: record.created,
                count: record.count,
            },
            hashes: pool.get(*from..from + 16 * record.count as usize).unwrap_or_default(),
        }),
    );
    let records: Vec<QidxRecord> = found.into_iter().map(|(record, _)| record).collect();
    Ok(Ok(SideFiles { index: qidx::encode(number, log_len, &records), hashes }))
}

fn flaw(at: u64, reason: impl Into<String>) -> Flaw {
    Flaw { at, reason: reason.into() }
}

/// The index record of a message record that starts at `at`; `None` for other kinds.
pub(crate) fn index_record(
    at: u64,
    record: &queen_record::record::Record<'_>,
) -> Option<QidxRecord> {
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
