//! What the planner refuses so that apply never has to.

use queen_model::{NAMES_BYTES_MAX, Refusal, TRANSACTION_ID_BYTES_MAX};
use queen_record::ids::UUID_TEXT_LEN;

/// Limits of planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one command's effects at most.
    pub command_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { command_bytes_max: 96 * 1024 * 1024 }
    }
}

/// Refuses names whose rows would not fit a store key.
///
/// # Errors
/// `Refusal::NameTooLong`.
pub fn check_names(queue: &str, other: &str) -> Result<(), Refusal> {
    let bytes = UUID_TEXT_LEN + queue.len() + other.len();
    if bytes <= NAMES_BYTES_MAX {
        return Ok(());
    }
    let max = NAMES_BYTES_MAX - UUID_TEXT_LEN;
    Err(Refusal::NameTooLong { bytes: bytes - UUID_TEXT_LEN, max })
}

/// Refuses a transactionId that no frame can hold.
///
/// # Errors
/// `Refusal::BadRequest`.
pub fn check_transaction_id(id: &str) -> Result<(), Refusal> {
    if id.len() <= TRANSACTION_ID_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::BadRequest(format!(
        "a transactionId of {} bytes is too long, at most {TRANSACTION_ID_BYTES_MAX}",
        id.len()
    )))
}

/// Bytes of the note that a group keeps beside its place at most: it stays in memory for good.
pub const NOTE_BYTES_MAX: usize = 4096;

/// Refuses a note that is too long.
///
/// # Errors
/// `Refusal::BadRequest`.
pub fn check_note(note: Option<&str>) -> Result<(), Refusal> {
    let bytes = note.map_or(0, str::len);
    if bytes <= NOTE_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::BadRequest(format!(
        "metadata of {bytes} bytes is too long, at most {NOTE_BYTES_MAX}"
    )))
}

/// Bytes of a dead letter's reason at most: it stays in memory until the letter is gone.
pub const REASON_BYTES_MAX: usize = 8192;

/// What a cut reason ends with.
const MORE: &str = "…";

/// A reason, cut where it is too long: a long one must not keep a message from being settled.
#[must_use]
pub fn cut_reason(reason: &str) -> String {
    if reason.len() <= REASON_BYTES_MAX {
        return reason.to_owned();
    }
    let mut kept = reason[..reason.floor_char_boundary(REASON_BYTES_MAX - MORE.len())].to_owned();
    kept.push_str(MORE);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let longest = "x".repeat(REASON_BYTES_MAX);
        assert_eq!(cut_reason(&longest), longest);
        let longer = "ü".repeat(REASON_BYTES_MAX);
        let cut = cut_reason(&longer);
        assert!(cut.len() <= REASON_BYTES_MAX && cut.len() > REASON_BYTES_MAX - 3);
        assert!(cut.ends_with("ü…"));
    }
}
