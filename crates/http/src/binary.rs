//! The binary forms of push, transaction and pop: little-endian integers, texts with a 16-bit length, no padding.
//!
//! A body is known by its first four bytes. Every length is checked against what is left before it is believed, and
//! what a compressed part says it becomes is reserved in the budget of all bodies before it is decompressed.

mod groups;
mod pop;
mod push;
mod transaction;

use queen_record::le::Reader;

use crate::error::ApiError;
use crate::read::Raw;

pub(crate) use groups::GroupReader;
pub(crate) use pop::framed_answer;
pub(crate) use push::{Binary, BinaryPush};
pub(crate) use transaction::BinaryTransaction;

/// Bytes of a body per message at least: fewer would let a small body become a large heap.
const BYTES_PER_MESSAGE_MIN: usize = 64;

/// Messages that a body of this limit may hold.
pub(crate) fn messages_max(body_bytes_max: usize) -> usize {
    (body_bytes_max / BYTES_PER_MESSAGE_MIN).max(1)
}

/// A body that breaks off, or says what cannot be.
fn bad(what: &str) -> ApiError {
    ApiError::bad_body(format!("the binary body is malformed: {what}"))
}

/// A number of this width.
fn take_u32(reader: &mut Reader<'_>, what: &str) -> Result<u32, ApiError> {
    reader.u32().ok_or_else(|| bad(&format!("it ends inside {what}")))
}

/// A text with its length.
fn take_text<'a>(reader: &mut Reader<'a>, what: &str) -> Result<&'a str, ApiError> {
    let ends = || bad(&format!("it ends inside {what}"));
    let len = reader.u16().ok_or_else(ends)?;
    let bytes = reader.take(usize::from(len)).ok_or_else(ends)?;
    std::str::from_utf8(bytes).map_err(|_| bad(&format!("{what} is not UTF-8")))
}

/// Bytes with their length.
fn take_blob<'a>(reader: &mut Reader<'a>, what: &str) -> Result<&'a [u8], ApiError> {
    let ends = || bad(&format!("it ends inside {what}"));
    let len = reader.u32().ok_or_else(ends)?;
    reader.take(len as usize).ok_or_else(ends)
}

/// Queue and partition of a group.
fn take_place<'a>(reader: &mut Reader<'a>) -> Result<(&'a str, &'a str), ApiError> {
    let queue = take_text(reader, "a queue name")?;
    if queue.is_empty() {
        return Err(bad("a group has no queue"));
    }
    let partition = take_text(reader, "a partition name")?;
    Ok((queue, if partition.is_empty() { crate::routes::PARTITION_DEFAULT } else { partition }))
}

/// Refuses what is not one JSON document, or is nested too deep.
fn check_json(bytes: &[u8]) -> Result<(), ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|_| bad("a payload is not UTF-8"))?;
    serde_json::from_str::<Raw<'_>>(text)
        .map(|_| ())
        .map_err(|error| bad(&format!("a payload is not JSON: {error}")))
}
