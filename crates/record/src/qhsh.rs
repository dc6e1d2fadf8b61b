//! `.qhsh`: the transactionId hashes of a sealed file, sorted by partition and base offset.
//!
//! A [`SideHeader`] with magic `QQHSH1\0\0` and record length 0, then per message record: partition u64, base u64,
//! created i64, count u32, 0 u32, and 16 bytes per message. It lets a restart fill the duplicate filters, and a
//! possible duplicate be looked up, without reading payloads.

use crate::hash::checksum;
use crate::ids::{Micros, Offset, PartitionId, TxHash};
use crate::le::Reader;
use crate::record::HASH_LEN;
use crate::side::{SIDE_HEADER_LEN, SideError, SideHeader};

/// Bytes of a record before its hashes.
pub const QHSH_HEAD_LEN: usize = 32;

const MAGIC: [u8; 8] = *b"QQHSH1\0\0";

/// The fixed part of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QhshHead {
    /// Partition of the messages.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Time of creation.
    pub created: Micros,
    /// Messages, and hashes that follow.
    pub count: u32,
}

impl QhshHead {
    /// What the file is sorted by.
    #[must_use]
    pub fn key(&self) -> (PartitionId, Offset) {
        (self.partition, self.base)
    }

    /// Bytes of the record with its hashes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        QHSH_HEAD_LEN as u64 + HASH_LEN as u64 * u64::from(self.count)
    }

    /// The fixed part's bytes; the hashes follow.
    #[must_use]
    pub fn encode(&self) -> [u8; QHSH_HEAD_LEN] {
        let mut out = [0; QHSH_HEAD_LEN];
        let fields = self
            .partition
            .0
            .to_le_bytes()
            .into_iter()
            .chain(self.base.0.to_le_bytes())
            .chain(self.created.0.to_le_bytes())
            .chain(self.count.to_le_bytes());
        for (slot, byte) in out.iter_mut().zip(fields) {
            *slot = byte;
        }
        out
    }

    /// Reads the fixed part at the start of `bytes`; `None` when fewer than 32 are left or the
    /// reserved bytes are not zero.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let head = Self {
            partition: PartitionId(reader.u64()?),
            base: Offset(reader.u64()?),
            created: Micros(reader.i64()?),
            count: reader.u32()?,
        };
        (reader.u32()? == 0).then_some(head)
    }
}

/// One record, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QhshRecord<'a> {
    /// The fixed part.
    pub head: QhshHead,
    /// 16 bytes per message.
    pub hashes: &'a [u8],
}

impl<'a> QhshRecord<'a> {
    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head.encode());
        out.extend_from_slice(self.hashes);
    }

    /// Reads the record at the start of `bytes`; `None` when it is cut short.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let head = QhshHead::decode(bytes)?;
        let total = usize::try_from(head.total_len()).ok()?;
        let hashes = bytes.get(QHSH_HEAD_LEN..total)?;
        Some(Self { head, hashes })
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn total_len(&self) -> usize {
        QHSH_HEAD_LEN + self.hashes.len()
    }

    /// The hash of each message.
    pub fn tx_hashes(&self) -> impl ExactSizeIterator<Item = TxHash> + use<'a> {
        self.hashes.as_chunks::<HASH_LEN>().0.iter().map(|hash| TxHash(*hash))
    }
}

/// The whole file for log file `number` of `log_len` bytes. `records` are sorted by key.
#[must_use]
pub fn encode<'a>(
    number: u64,
    log_len: u64,
    records: impl IntoIterator<Item = QhshRecord<'a>>,
) -> Vec<u8> {
    let mut out = vec![0; SIDE_HEADER_LEN];
    let mut count = 0u32;
    for record in records {
        record.encode(&mut out);
        count = count.saturating_add(1);
    }
    let body_checksum = checksum(out.get(SIDE_HEADER_LEN..).unwrap_or_default());
    let header = SideHeader { number, records: count, log_len, body_checksum };
    out.splice(..SIDE_HEADER_LEN, encode_header(&header));
    out
}

/// The header's bytes, for a file that is written piece by piece.
#[must_use]
pub fn encode_header(header: &SideHeader) -> [u8; SIDE_HEADER_LEN] {
    header.encode(MAGIC, 0)
}

/// Reads the header.
///
/// # Errors
/// [`SideError`]: not a `.qhsh`, or damaged.
pub fn decode_header(bytes: &[u8]) -> Result<SideHeader, SideError> {
    SideHeader::decode(bytes, MAGIC, 0)
}

/// Reads and verifies a whole file, whatever log file it belongs to.
///
/// # Errors
/// [`SideError`]: make the file again from the log file.
pub fn decode(bytes: &[u8]) -> Result<(SideHeader, Vec<QhshRecord<'_>>), SideError> {
    let header = decode_header(bytes)?;
    let mut body = bytes.get(SIDE_HEADER_LEN..).ok_or(SideError::Short)?;
    if checksum(body) != header.body_checksum {
        return Err(SideError::Checksum);
    }
    let mut records: Vec<QhshRecord<'_>> = Vec::new();
    while !body.is_empty() {
        let record = QhshRecord::decode(body).ok_or(SideError::Short)?;
        if records.last().is_some_and(|last| last.head.key() >= record.head.key()) {
            return Err(SideError::Order);
        }
        body = body.get(record.total_len()..).unwrap_or_default();
        records.push(record);
    }
    if records.len() as u64 == u64::from(header.records) {
        Ok((header, records))
    } else {
        Err(SideError::Short)
    }
}
