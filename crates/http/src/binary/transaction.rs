//! The binary transaction: a JSON head without pushes, and framed groups.
//!
//! ```text
//! body  = "QTB1" | flags u8 | head length u32 | head, JSON | groups u32 | groups
//! flags = 2 count what was pushed and acknowledged instead of answering each
//! ```

use bytes::Bytes;
use queen_broker::api::FramedGroup;
use queen_record::le::Reader;

use super::{GroupReader, bad, take_blob};
use crate::error::ApiError;

const MAGIC: &[u8] = b"QTB1";
const COUNTS: u8 = 2;

/// A binary transaction.
#[derive(Debug)]
pub(crate) struct BinaryTransaction {
    /// The JSON part; may be empty.
    pub(crate) head: Bytes,
    pub(crate) groups: Vec<FramedGroup>,
    pub(crate) wants_counts: bool,
}

impl BinaryTransaction {
    /// Whether a body is a binary transaction.
    pub(crate) fn is(body: &[u8]) -> bool {
        body.starts_with(MAGIC)
    }

    pub(crate) fn read(body: &Bytes, limits: &mut GroupReader<'_>) -> Result<Self, ApiError> {
        let mut reader = Reader::new(body.get(MAGIC.len()..).unwrap_or_default());
        let flags = reader.u8().ok_or_else(|| bad("it ends before its flags"))?;
        if flags & !COUNTS != 0 {
            return Err(bad("it has unknown flags"));
        }
        let head = body.slice_ref(take_blob(&mut reader, "the head")?);
        let groups = limits.groups(body, &mut reader)?;
        Ok(Self { head, groups, wants_counts: flags & COUNTS != 0 })
    }
}
