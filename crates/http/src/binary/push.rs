//! The binary push.
//!
//! ```text
//! body  = "QPB1" | flags u8 | [raw length u32, flag 1] | content
//! flags = 1 content is one zstd frame, 2 answer with counts, 4 messages carry their transactionId, 8 framed groups
//! content without flag 8 = groups u32 | (queue | partition | messages u32 | ([transactionId, flag 4] | payload)*)*
//! ```

use bytes::Bytes;
use queen_broker::api::{FramedGroup, PushItem};
use queen_record::le::Reader;

use super::{GroupReader, bad, check_json, take_blob, take_place, take_text, take_u32};
use crate::error::ApiError;

const MAGIC: &[u8] = b"QPB1";
const PACKED: u8 = 1;
const COUNTS: u8 = 2;
const WITH_IDS: u8 = 4;
const FRAMED: u8 = 8;

/// A binary push, its content decompressed and still unread.
#[derive(Debug)]
pub(crate) struct BinaryPush {
    flags: u8,
    content: Bytes,
}

/// What a binary push holds.
#[derive(Debug)]
pub(crate) enum Binary<'a> {
    Items(Vec<PushItem<'a>>),
    Framed(Vec<FramedGroup>),
}

impl BinaryPush {
    /// Whether a body is a binary push.
    pub(crate) fn is(body: &[u8]) -> bool {
        body.starts_with(MAGIC)
    }

    /// Reads the head and decompresses the content.
    pub(crate) fn open(body: &Bytes, limits: &mut GroupReader<'_>) -> Result<Self, ApiError> {
        let mut reader = Reader::new(body.get(MAGIC.len()..).unwrap_or_default());
        let flags = reader.u8().ok_or_else(|| bad("it ends before its flags"))?;
        if flags & !(PACKED | COUNTS | WITH_IDS | FRAMED) != 0 {
            return Err(bad("it has unknown flags"));
        }
        if flags & (WITH_IDS | FRAMED) == WITH_IDS | FRAMED {
            return Err(bad("framed messages carry their transactionIds themselves"));
        }
        if flags & PACKED == 0 {
            return Ok(Self { flags, content: body.slice_ref(reader.rest()) });
        }
        let len = take_u32(&mut reader, "the raw length")?;
        let content = limits.unpack(reader.rest(), len as usize)?;
        Ok(Self { flags, content })
    }

    /// Whether the answer is to be counts instead of one element per message.
    pub(crate) fn wants_counts(&self) -> bool {
        self.flags & COUNTS != 0
    }

    /// Bytes of the messages, as far as they are unpacked.
    pub(crate) fn content_len(&self) -> usize {
        self.content.len()
    }

    /// The messages.
    pub(crate) fn read(&self, limits: &mut GroupReader<'_>) -> Result<Binary<'_>, ApiError> {
        let mut reader = Reader::new(&self.content);
        if self.flags & FRAMED != 0 {
            return limits.groups(&self.content, &mut reader).map(Binary::Framed);
        }
        let count = take_u32(&mut reader, "the number of groups")?;
        let mut items = Vec::new();
        for _ in 0..count {
            let (queue, partition) = take_place(&mut reader)?;
            let messages = take_u32(&mut reader, "a number of messages")?;
            limits.count(messages)?;
            for _ in 0..messages {
                let id = match self.flags & WITH_IDS {
                    0 => None,
                    _ => Some(take_text(&mut reader, "a transactionId")?),
                };
                let payload = take_blob(&mut reader, "a payload")?;
                check_json(payload)?;
                items.push(PushItem {
                    queue,
                    partition,
                    transaction_id: id.filter(|id| !id.is_empty()),
                    payload,
                    producer_sub: None,
                    trace_id: None,
                });
            }
        }
        if !reader.rest().is_empty() {
            return Err(bad("bytes follow the last message"));
        }
        Ok(Binary::Items(items))
    }
}
