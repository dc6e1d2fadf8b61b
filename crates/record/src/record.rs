//! One record: the checksummed unit of a log file.
//!
//! | offset | bytes | field | in an entry record or stub |
//! | --- | --- | --- | --- |
//! | 0 | 4 | len: bytes after this field | |
//! | 4 | 8 | XXH3-64, seed 0, of byte 12 to the end | |
//! | 12 | 8 | seq | entry index |
//! | 20 | 8 | partition id | copies: logs that hold a part; 0 reads as 1 |
//! | 28 | 8 | offset of the first message | term |
//! | 36 | 4 | count of messages | 0 |
//! | 40 | 8 | created at, microseconds | the entry's time |
//! | 48 | 1 | kind; bit 7: payload is compressed (message records only) | |
//! | 49 | | kind 1: u128, n u16, n x u64 | |
//! | 49 | 16 x count | hashes | |
//! | | rest | payload | entry bytes; of a stub their digest u64 and length u32 |
//!
//! Source: seed `002_68f7b2f3dec52511.txt`, the dump, and its table of fields.

use crate::hash::checksum;
use crate::ids::{EntryIndex, Micros, Offset, PartitionId, TxHash};
use crate::le::Reader;

/// Bytes of the fixed part.
pub const HEAD_LEN: usize = 49;
/// Bytes before the checksummed part: len and checksum.
pub const CHECKED_FROM: usize = 12;
/// Bytes of the len field.
pub const LEN_FIELD: usize = 4;
/// Smallest value of len: a record without hashes and payload.
pub const LEN_MIN: u32 = 45;
/// Largest value of len, 256 MiB. A larger one is damage and is refused before anything is allocated.
pub const LEN_MAX: u32 = 256 * 1024 * 1024;
/// Bytes of one hash.
pub const HASH_LEN: usize = 16;
/// Bytes of a whole stub record.
pub const STUB_LEN: usize = HEAD_LEN + 12;

const COMPRESSED: u8 = 0x80;

const _: () = assert!(STUB_LEN == 61);
const _: () = assert!(LEN_MIN as usize + LEN_FIELD == HEAD_LEN);

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Messages of one push for one partition.
    Message,
    /// The same inside a transaction over queues: read and written back, never made.
    Transaction,
    /// The whole entry.
    Entry,
    /// A reference to the whole entry in another log.
    Stub,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Message => 0,
            Self::Transaction => 1,
            Self::Entry => 2,
            Self::Stub => 3,
        }
    }

    /// Kind and compressed flag of the kind byte; `None` for any value no writer makes.
    fn parse(byte: u8) -> Option<(Self, bool)> {
        let compressed = byte & COMPRESSED != 0;
        match byte & !COMPRESSED {
            0 => Some((Self::Message, compressed)),
            1 => Some((Self::Transaction, compressed)),
            2 if !compressed => Some((Self::Entry, false)),
            3 if !compressed => Some((Self::Stub, false)),
            _ => None,
        }
    }

    /// Whether the record holds messages.
    #[must_use]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Message | Self::Transaction)
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end before the record does.
    #[error("the record is cut short")]
    Short,
    /// Len is outside of 45 bytes to 256 MiB.
    #[error("length {0} is out of range")]
    Length(u32),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// An unknown kind byte.
    #[error("unknown kind {0:#04x}")]
    Kind(u8),
    /// The hashes, or what else the kind demands, do not fit the length.
    #[error("the fields do not fit the length")]
    Shape,
}

/// A record that would pass [`LEN_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record body of {0} bytes is above the limit of {LEN_MAX}")]
pub struct RecordTooLarge(pub u64);

/// The fixed part, with the slots under their message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes after the len field.
    pub len: u32,
    /// Stored checksum.
    pub checksum: u64,
    /// Entry that wrote the record.
    pub seq: EntryIndex,
    /// Partition, or copies of an entry part.
    pub partition: PartitionId,
    /// Offset of the first message, or the term of an entry part.
    pub base: Offset,
    /// Messages.
    pub count: u32,
    /// Time of creation.
    pub created: Micros,
    /// What the record is.
    pub kind: Kind,
    /// Whether the payload is a zstd frame.
    pub compressed: bool,
}

impl Head {
    /// Reads the fixed part; neither the checksum nor the rest of the record is looked at.
    ///
    /// # Errors
    /// [`RecordError`] but never `Checksum`.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader::new(bytes);
        let len = reader.u32().ok_or(RecordError::Short)?;
        if !(LEN_MIN..=LEN_MAX).contains(&len) {
            return Err(RecordError::Length(len));
        }
        Self::decode_after_len(len, &mut reader)
    }

    fn decode_after_len(len: u32, reader: &mut Reader<'_>) -> Result<Self, RecordError> {
        let short = RecordError::Short;
        let checksum = reader.u64().ok_or(short)?;
        let seq = EntryIndex(reader.u64().ok_or(short)?);
        let partition = PartitionId(reader.u64().ok_or(short)?);
        let base = Offset(reader.u64().ok_or(short)?);
        let count = reader.u32().ok_or(short)?;
        let created = Micros(reader.i64().ok_or(short)?);
        let kind_byte = reader.u8().ok_or(short)?;
        let (kind, compressed) = Kind::parse(kind_byte).ok_or(RecordError::Kind(kind_byte))?;
        Ok(Self { len, checksum, seq, partition, base, count, created, kind, compressed })
    }

    /// Bytes of the whole record, the len field included.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.len as usize + LEN_FIELD
    }

    /// Offset after the last message; `None` when it does not fit a u64.
    #[must_use]
    pub fn end(&self) -> Option<Offset> {
        self.base.0.checked_add(u64::from(self.count)).map(Offset)
    }
}

/// A verified record, borrowed from the bytes it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The fixed part.
    pub head: Head,
    /// Kind 1 only: id and participants as they are; else empty.
    pub transaction: &'a [u8],
    /// 16 bytes per message.
    pub hashes: &'a [u8],
    /// Frames (compressed or not), entry bytes, or the body of a stub.
    pub payload: &'a [u8],
}

/// An entry record or a stub, with the slots under their own names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPart<'a> {
    /// Index of the entry.
    pub index: EntryIndex,
    /// How many logs hold a part, at least 1.
    pub copies: u64,
    /// Raft term; 0 on the local replicator.
    pub term: u64,
    /// The entry's time.
    pub now: Micros,
    /// The entry's bytes, or what names them.
    pub body: EntryBody<'a>,
}

/// Whole or referenced entry bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryBody<'a> {
    /// The bytes.
    Whole(&'a [u8]),
    /// XXH3-64 of the bytes, and their length.
    Stub {
        /// XXH3-64, seed 0, of the whole entry bytes.
        digest: u64,
        /// Their length in bytes.
        len: u32,
    },
}

/// Reads and verifies the record at the start of `bytes`; what follows it is ignored.
///
/// # Errors
/// [`RecordError`]: torn or damaged; which of the two only the place in the file can tell.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, RecordError> {
    let len = Reader::new(bytes).u32().ok_or(RecordError::Short)?;
    if !(LEN_MIN..=LEN_MAX).contains(&len) {
        return Err(RecordError::Length(len));
    }
    let whole = bytes.get(..len as usize + LEN_FIELD).ok_or(RecordError::Short)?;
    let mut reader = Reader::new(whole);
    reader.u32().ok_or(RecordError::Short)?;
    let stored = Reader::new(reader.rest()).u64().ok_or(RecordError::Short)?;
    if checksum(whole.get(CHECKED_FROM..).ok_or(RecordError::Short)?) != stored {
        return Err(RecordError::Checksum);
    }
    let head = Head::decode_after_len(len, &mut reader)?;
    let transaction = match head.kind {
        Kind::Transaction => take_transaction(&mut reader).ok_or(RecordError::Shape)?,
        _ => &[],
    };
    let hashes_len = head.count as usize * HASH_LEN;
    let hashes = reader.take(hashes_len).ok_or(RecordError::Shape)?;
    let payload = reader.rest();
    let shape_ok = match head.kind {
        Kind::Message | Kind::Transaction => head.end().is_some(),
        Kind::Entry => head.count == 0,
        Kind::Stub => head.count == 0 && whole.len() == STUB_LEN,
    };
    if shape_ok {
        Ok(Record { head, transaction, hashes, payload })
    } else {
        Err(RecordError::Shape)
    }
}

fn take_transaction<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let mut look = *reader;
    look.take(16)?;
    let participants = usize::from(look.u16()?);
    reader.take(18 + 8 * participants)
}

impl<'a> Record<'a> {
    /// Bytes of the whole record.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.head.total_len()
    }

    /// The hash of each message.
    pub fn tx_hashes(&self) -> impl ExactSizeIterator<Item = TxHash> + use<'a> {
        self.hashes.as_chunks::<HASH_LEN>().0.iter().map(|hash| TxHash(*hash))
    }

    /// The record as an entry part; `None` for a message record.
    #[must_use]
    pub fn entry_part(&self) -> Option<EntryPart<'a>> {
        let body = match self.head.kind {
            Kind::Message | Kind::Transaction => return None,
            Kind::Entry => EntryBody::Whole(self.payload),
            Kind::Stub => {
                let mut reader = Reader::new(self.payload);
                EntryBody::Stub { digest: reader.u64()?, len: reader.u32()? }
            }
        };
        Some(EntryPart {
            index: self.head.seq,
            copies: self.head.partition.0.max(1),
            term: self.head.base.0,
            now: self.head.created,
            body,
        })
    }

    /// Appends the record's bytes; they equal those it was read from.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = self.head.kind.number() | if self.head.compressed { COMPRESSED } else { 0 };
        let start = put_head(out, &self.head, kind);
        out.extend_from_slice(self.transaction);
        out.extend_from_slice(self.hashes);
        out.extend_from_slice(self.payload);
        finish(out, start);
    }
}

/// A message record to write.
#[derive(Clone, Copy, Debug)]
pub struct MessageRecord<'a> {
    /// Entry that writes it.
    pub seq: EntryIndex,
    /// Partition of the messages.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Time of creation.
    pub created: Micros,
    /// Whether `payload` is a zstd frame.
    pub compressed: bool,
    /// One per message.
    pub hashes: &'a [TxHash],
    /// The frames.
    pub payload: &'a [u8],
}

impl MessageRecord<'_> {
    /// Appends the record; returns the bytes it took.
    ///
    /// # Errors
    /// [`RecordTooLarge`], and `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<u32, RecordTooLarge> {
        let len = body_len(self.hashes.len(), self.payload.len())?;
        let count = u32::try_from(self.hashes.len()).map_err(|_| RecordTooLarge(u64::MAX))?;
        let head = Head {
            len,
            checksum: 0,
            seq: self.seq,
            partition: self.partition,
            base: self.base,
            count,
            created: self.created,
            kind: Kind::Message,
            compressed: self.compressed,
        };
        let kind = if self.compressed { COMPRESSED } else { 0 };
        let start = put_head(out, &head, kind);
        for hash in self.hashes {
            out.extend_from_slice(&hash.0);
        }
        out.extend_from_slice(self.payload);
        finish(out, start);
        Ok(len + 4)
    }
}

/// Appends an entry record or a stub; returns the bytes it took.
///
/// # Errors
/// [`RecordTooLarge`], and `out` is unchanged.
pub fn encode_entry_part(part: &EntryPart<'_>, out: &mut Vec<u8>) -> Result<u32, RecordTooLarge> {
    let (kind, payload_len) = match part.body {
        EntryBody::Whole(bytes) => (Kind::Entry, bytes.len()),
        EntryBody::Stub { .. } => (Kind::Stub, STUB_LEN - HEAD_LEN),
    };
    let len = body_len(0, payload_len)?;
    let head = Head {
        len,
        checksum: 0,
        seq: part.index,
        partition: PartitionId(part.copies),
        base: Offset(part.term),
        count: 0,
        created: part.now,
        kind,
        compressed: false,
    };
    let start = put_head(out, &head, kind.number());
    match part.body {
        EntryBody::Whole(bytes) => out.extend_from_slice(bytes),
        EntryBody::Stub { digest, len } => {
            out.extend_from_slice(&digest.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
    }
    finish(out, start);
    Ok(len + 4)
}

/// Len of a record of `hashes` hashes and `payload` bytes.
fn body_len(hashes: usize, payload: usize) -> Result<u32, RecordTooLarge> {
    let len = u64::from(LEN_MIN) + HASH_LEN as u64 * hashes as u64 + payload as u64;
    u32::try_from(len).ok().filter(|len| *len <= LEN_MAX).ok_or(RecordTooLarge(len))
}

/// Appends the fixed part with an empty checksum; returns where the record starts.
fn put_head(out: &mut Vec<u8>, head: &Head, kind: u8) -> usize {
    let start = out.len();
    out.reserve(head.total_len());
    out.extend_from_slice(&head.len.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&head.seq.0.to_le_bytes());
    out.extend_from_slice(&head.partition.0.to_le_bytes());
    out.extend_from_slice(&head.base.0.to_le_bytes());
    out.extend_from_slice(&head.count.to_le_bytes());
    out.extend_from_slice(&head.created.0.to_le_bytes());
    out.push(kind);
    start
}

/// Fills in the checksum of the record that starts at `start` and ends with `out`.
fn finish(out: &mut [u8], start: usize) {
    let record = out.get_mut(start..).unwrap_or_default();
    let sum = checksum(record.get(CHECKED_FROM..).unwrap_or_default());
    if let Some(slot) = record.get_mut(LEN_FIELD..CHECKED_FROM) {
        slot.copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(compressed: bool) -> Vec<u8> {
        let mut out = Vec::new();
        MessageRecord {
            seq: EntryIndex(5),
            partition: PartitionId(9),
            base: Offset(100),
            created: Micros(-7),
            compressed,
            hashes: &[TxHash([1; 16]), TxHash([2; 16])],
            payload: b"payload",
        }
        .encode(&mut out)
        .unwrap();
        out
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let good = sample(true);
        assert!(decode(&good).is_ok());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad).is_err(), "bit {bit}");
        }
        for end in 0..good.len() {
            assert!(decode(&good[..end]).is_err());
        }
    }

    #[test]
    fn a_transaction_record_round_trips() {
        let mut transaction = vec![7u8; 16];
        transaction.extend_from_slice(&2u16.to_le_bytes());
        transaction.extend_from_slice(&[3; 16]);
        let plain = sample(false);
        let base = decode(&plain).unwrap();
        let head = Head { kind: Kind::Transaction, len: base.head.len + 34, ..base.head };
        let record = Record { head, transaction: &transaction, ..base };
        let mut out = Vec::new();
        record.encode(&mut out);
        let back = decode(&out).unwrap();
        assert_eq!(back.transaction, transaction);
        assert_eq!((back.hashes, back.payload), (base.hashes, base.payload));
        let mut again = Vec::new();
        back.encode(&mut again);
        assert_eq!(again, out);
    }

    #[test]
    fn lengths_are_checked_before_use() {
        for len in [0, LEN_MIN - 1, LEN_MAX + 1, u32::MAX] {
            let mut bytes = sample(false);
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            assert_eq!(decode(&bytes), Err(RecordError::Length(len)));
        }
        let mut crowded = sample(false);
        crowded[36..40].copy_from_slice(&u32::MAX.to_le_bytes());
        finish(&mut crowded, 0);
        assert_eq!(decode(&crowded), Err(RecordError::Shape));
        for kind in [4u8, 0x82, 0x83, 0x7f] {
            let mut odd = sample(false);
            odd[48] = kind;
            finish(&mut odd, 0);
            assert_eq!(decode(&odd), Err(RecordError::Kind(kind)));
        }
    }
}
