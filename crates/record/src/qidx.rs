//! `.qidx`: where each message record of a sealed file lies, sorted by partition and base offset.
//!
//! A [`SideHeader`] with magic `QQIDX1\0\0` and record length 48, then per record: partition u64, base u64,
//! end u64 (exclusive), created i64, byte offset u64, count u32, length u32 (the whole record).

use crate::hash::checksum;
use crate::ids::{Micros, Offset, PartitionId};
use crate::le::Reader;
use crate::side::{SIDE_HEADER_LEN, SideError, SideHeader};

/// Bytes of one record.
pub const QIDX_RECORD_LEN: usize = 48;

const MAGIC: [u8; 8] = *b"QQIDX1\0\0";
const RECORD_LEN_FIELD: u32 = 48;

/// Place and range of one message record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QidxRecord {
    /// Partition of the messages.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Offset after the last message.
    pub end: Offset,
    /// Time of creation.
    pub created: Micros,
    /// Byte position in the log file.
    pub at: u64,
    /// Messages.
    pub count: u32,
    /// Bytes of the whole record.
    pub len: u32,
}

impl QidxRecord {
    /// What the file is sorted by.
    #[must_use]
    pub fn key(&self) -> (PartitionId, Offset) {
        (self.partition, self.base)
    }

    /// Appends the record's 48 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        out.extend_from_slice(&self.base.0.to_le_bytes());
        out.extend_from_slice(&self.end.0.to_le_bytes());
        out.extend_from_slice(&self.created.0.to_le_bytes());
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
    }

    /// Reads the record at the start of `bytes`; `None` when fewer than 48 are left.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self {
            partition: PartitionId(reader.u64()?),
            base: Offset(reader.u64()?),
            end: Offset(reader.u64()?),
            created: Micros(reader.i64()?),
            at: reader.u64()?,
            count: reader.u32()?,
            len: reader.u32()?,
        })
    }
}

/// The whole file for log file `number` of `log_len` bytes. `records` are sorted by key.
#[must_use]
pub fn encode(number: u64, log_len: u64, records: &[QidxRecord]) -> Vec<u8> {
    let mut out = vec![0; SIDE_HEADER_LEN];
    out.reserve(records.len() * QIDX_RECORD_LEN);
    for record in records {
        record.encode(&mut out);
    }
    let body_checksum = checksum(out.get(SIDE_HEADER_LEN..).unwrap_or_default());
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    let header = SideHeader { number, records: count, log_len, body_checksum };
    out.splice(..SIDE_HEADER_LEN, encode_header(&header));
    out
}

/// The header's bytes, for a file that is written piece by piece.
#[must_use]
pub fn encode_header(header: &SideHeader) -> [u8; SIDE_HEADER_LEN] {
    header.encode(MAGIC, RECORD_LEN_FIELD)
}

/// Reads the header.
///
/// # Errors
/// [`SideError`]: not a `.qidx`, or damaged.
pub fn decode_header(bytes: &[u8]) -> Result<SideHeader, SideError> {
    SideHeader::decode(bytes, MAGIC, RECORD_LEN_FIELD)
}

/// Reads and verifies a whole file, whatever log file it belongs to.
///
/// # Errors
/// [`SideError`]: make the file again from the log file.
pub fn decode(bytes: &[u8]) -> Result<(SideHeader, Vec<QidxRecord>), SideError> {
    let header = decode_header(bytes)?;
    let body = bytes.get(SIDE_HEADER_LEN..).ok_or(SideError::Short)?;
    if body.len() as u64 != u64::from(header.records) * QIDX_RECORD_LEN as u64 {
        return Err(SideError::Short);
    }
    if checksum(body) != header.body_checksum {
        return Err(SideError::Checksum);
    }
    let records: Vec<_> = body
        .as_chunks::<QIDX_RECORD_LEN>()
        .0
        .iter()
        .filter_map(|r| QidxRecord::decode(r))
        .collect();
    if records.is_sorted_by(|a, b| a.key() < b.key()) {
        Ok((header, records))
    } else {
        Err(SideError::Order)
    }
}
