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
