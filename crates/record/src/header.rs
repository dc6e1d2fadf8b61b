//! The 32 bytes a log file starts with.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `QNQLOG1\0`; the digit is the format version |
//! | 8 | 8 | file number, as in the name |
//! | 16 | 8 | first seq: the entry the file was made for; all ones while the file waits for its roll |
//! | 24 | 8 | 0 |

use crate::ids::EntryIndex;
use crate::le::Reader;

/// Bytes of the header; the first record starts here.
pub const HEADER_LEN: usize = 32;
/// Where the first seq lies; a roll writes these eight bytes only.
pub const FIRST_SEQ_AT: u64 = 16;
/// First seq of a file that was made ahead of its roll and holds nothing.
pub const FIRST_SEQ_UNUSED: EntryIndex = EntryIndex(u64::MAX);

const MAGIC: &[u8; 8] = b"QNQLOG1\0";

/// What a file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The number in the file's name.
    pub number: u64,
    /// Seq of the record the file was made for.
    pub first_seq: EntryIndex,
}

/// Why 32 bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer than 32 bytes.
    #[error("the header is cut short")]
    Short,
    /// Another magic: not a log file, or of another format version.
    #[error("the magic is not QNQLOG1")]
    Magic,
    /// The reserved bytes are not zero.
    #[error("the reserved bytes are not zero")]
    Reserved,
}

impl FileHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        let parts = [*MAGIC, self.number.to_le_bytes(), self.first_seq.0.to_le_bytes()];
        for (slot, part) in out.chunks_exact_mut(8).zip(parts) {
            slot.copy_from_slice(&part);
        }
        out
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`HeaderError`]: the file is foreign, damaged, or was never finished.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut reader = Reader::new(bytes);
        let (Some(magic), Some(number), Some(first_seq), Some(reserved)) =
            (reader.array::<8>(), reader.u64(), reader.u64(), reader.u64())
        else {
            return Err(HeaderError::Short);
        };
        if magic != *MAGIC {
            return Err(HeaderError::Magic);
        }
        if reserved != 0 {
            return Err(HeaderError::Reserved);
        }
        Ok(Self { number, first_seq: EntryIndex(first_seq) })
    }
}
