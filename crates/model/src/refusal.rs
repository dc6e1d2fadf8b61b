//! Answers that change nothing: the caller asked for something that is not done.

/// Why a command was not carried out. A refused command has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The names of a row would not fit a store key.
    #[error("names are too long: {bytes} bytes, at most {max} for queue plus partition or group")]
    NameTooLong {
        /// Bytes of the names that are limited together.
        bytes: usize,
        /// The most that fits.
        max: usize,
    },
    /// One command's effects are larger than an entry may be.
    #[error("the command is too large: {bytes} bytes, at most {max} (QUEEN_RAFT_ENTRY_MAX_BYTES)")]
    TooLarge {
        /// Bytes of the planned command.
        bytes: usize,
        /// The most that one command may have.
        max: usize,
    },
    /// A field is missing or invalid.
    #[error("{0}")]
    BadRequest(String),
}

impl Refusal {
    /// The stable code string of the error body.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NameTooLong { .. } => "name_too_long",
            Self::TooLarge { .. } => "too_large",
            Self::BadRequest(_) => "bad_request",
        }
    }
}

/// Bytes that tenant, queue and the longer of partition and group may have together: a store key of 511 bytes
/// less separators and the fixed parts.
pub const NAMES_BYTES_MAX: usize = 447;
/// Bytes of a transactionId at most: its length field in a frame is 16 bits.
pub const TRANSACTION_ID_BYTES_MAX: usize = 65_535;
