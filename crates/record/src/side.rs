//! What the two side files of a sealed log file have in common: a 48-byte header with two checksums.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic |
//! | 8 | 8 | file number |
//! | 16 | 4 | records |
//! | 20 | 4 | `.qidx`: 48, the bytes per record; `.qhsh`: 0 |
//! | 24 | 8 | length of the sealed log file |
//! | 32 | 8 | XXH3-64 of all records |
//! | 40 | 8 | XXH3-64 of bytes 0 to 40 |
//!
//! Side files are derived: one that does not match is thrown away and made again from the log file.

use crate::hash::checksum;
use crate::le::Reader;

/// Bytes of the header.
pub const SIDE_HEADER_LEN: usize = 48;

/// Why a side file cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    /// Too short, or its length does not fit its record count.
    #[error("cut short")]
    Short,
    /// Another magic or record length.
    #[error("not this kind of file")]
    Magic,
    /// The header's or the records' checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// It belongs to another file, or to the file at another length.
    #[error("made for another file or length")]
    Stale,
    /// Records are not in ascending order.
    #[error("records are out of order")]
    Order,
}

/// The header of a side file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideHeader {
    /// Number of the log file.
    pub number: u64,
    /// Message records in the log file.
    pub records: u32,
    /// Length of the log file in bytes.
    pub log_len: u64,
    /// XXH3-64 of everything after the header.
    pub body_checksum: u64,
}

impl SideHeader {
    pub(crate) fn encode(&self, magic: [u8; 8], record_len: u32) -> [u8; SIDE_HEADER_LEN] {
        let mut out = Vec::with_capacity(SIDE_HEADER_LEN);
        out.extend_from_slice(&magic);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&record_len.to_le_bytes());
        out.extend_from_slice(&self.log_len.to_le_bytes());
        out.extend_from_slice(&self.body_checksum.to_le_bytes());
        let sum = checksum(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.try_into().unwrap_or([0; SIDE_HEADER_LEN])
    }

    pub(crate) fn decode(bytes: &[u8], magic: [u8; 8], record_len: u32) -> Result<Self, SideError> {
        let (checked, rest) = bytes.split_at_checked(40).ok_or(SideError::Short)?;
        let stored = Reader::new(rest).u64().ok_or(SideError::Short)?;
        let mut reader = Reader::new(checked);
        if reader.array::<8>() != Some(magic) {
            return Err(SideError::Magic);
        }
        if checksum(checked) != stored {
            return Err(SideError::Checksum);
        }
        let number = reader.u64().ok_or(SideError::Short)?;
        let records = reader.u32().ok_or(SideError::Short)?;
        if reader.u32() != Some(record_len) {
            return Err(SideError::Magic);
        }
        let log_len = reader.u64().ok_or(SideError::Short)?;
        let body_checksum = reader.u64().ok_or(SideError::Short)?;
        Ok(Self { number, records, log_len, body_checksum })
    }

    /// Whether the side file belongs to log file `number` at length `log_len`.
    ///
    /// # Errors
    /// [`SideError::Stale`] when it does not.
    pub fn belongs_to(&self, number: u64, log_len: u64) -> Result<(), SideError> {
        let same = self.number == number && self.log_len == log_len;
        if same { Ok(()) } else { Err(SideError::Stale) }
    }
}
