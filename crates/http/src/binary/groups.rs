//! Groups of messages that the client framed and compressed: checked, and taken over as they are.
//!
//! ```text
//! group = queue | partition | messages u32 | length u32 | one zstd frame with its content size
//! inside: messages = (length u32 | flags u8 (=0) | id 16 | transactionId | payload)*
//! ```

use std::cell::RefCell;

use bytes::Bytes;
use queen_broker::api::FramedGroup;
use queen_record::compress::{PayloadDecompressor, content_size};
use queen_record::frame::Frames;
use queen_record::le::Reader;

use super::{bad, check_json, take_blob, take_place, take_u32};
use crate::body::{BodyBudget, Room};
use crate::error::ApiError;

thread_local! {
    /// A decompression context is large and can be used again.
    static DECOMPRESSOR: RefCell<Option<PayloadDecompressor>> = const { RefCell::new(None) };
}

/// Reads groups off the end of a body.
pub(crate) struct GroupReader<'b> {
    /// Decompressed bytes that the whole body may still become.
    bytes_left: usize,
    messages_left: usize,
    /// Bytes that were decompressed, and their room.
    unpacked: usize,
    room: Room<'b>,
    budget: &'b BodyBudget,
}

impl<'b> GroupReader<'b> {
    /// A reader for a body of this limit.
    pub(crate) fn new(body_bytes_max: usize, budget: &'b BodyBudget) -> Self {
        let messages_left = super::messages_max(body_bytes_max);
        Self { bytes_left: body_bytes_max, messages_left, unpacked: 0, room: None, budget }
    }

    /// Counts messages against the limit.
    pub(crate) fn count(&mut self, messages: u32) -> Result<(), ApiError> {
        let left = self.messages_left.checked_sub(messages as usize);
        self.messages_left = left.ok_or_else(|| bad("it holds more messages than a body may"))?;
        Ok(())
    }

    /// Decompresses one zstd frame of exactly `len` bytes.
    pub(crate) fn unpack(&mut self, packed: &[u8], len: usize) -> Result<Bytes, ApiError> {
        let left = self.bytes_left.checked_sub(len);
        self.bytes_left =
            left.ok_or_else(|| bad("it decompresses to more than a body may have"))?;
        self.unpacked += len;
        self.budget.grow(&mut self.room, self.unpacked)?;
        let unpacked = DECOMPRESSOR.with_borrow_mut(|held| {
            if held.is_none() {
                *held = PayloadDecompressor::new().ok();
            }
            held.as_mut().map(|held| held.decompress_exact(packed, len))
        });
        match unpacked {
            Some(Ok(bytes)) => Ok(Bytes::from(bytes)),
            Some(Err(error)) => Err(bad(&error.to_string())),
            None => Err(ApiError::overloaded("no memory to decompress the body")),
        }
    }

    /// All groups; nothing may follow the last. `body` is what `reader` reads.
    pub(crate) fn groups(
        &mut self,
        body: &Bytes,
        reader: &mut Reader<'_>,
    ) -> Result<Vec<FramedGroup>, ApiError> {
        let count = take_u32(reader, "the number of groups")?;
        let mut groups = Vec::new();
        for _ in 0..count {
            let (queue, partition) = take_place(reader)?;
            let messages = take_u32(reader, "a number of messages")?;
            if messages == 0 {
                // Its names and its place in the list would cost more than its bytes.
                return Err(bad("a group holds no messages"));
            }
            self.count(messages)?;
            let packed = body.slice_ref(take_blob(reader, "a group")?);
            let stated = content_size(&packed).map_err(|error| bad(&error.to_string()))?;
            let len = usize::try_from(stated).map_err(|_| bad("a group is too large"))?;
            let frames = self.unpack(&packed, len)?;
            check_frames(&frames, messages)?;
            let (queue, partition) = (queue.to_owned(), partition.to_owned());
            groups.push(FramedGroup { queue, partition, frames, packed });
        }
        if !reader.rest().is_empty() {
            return Err(bad("bytes follow the last group"));
        }
        Ok(groups)
    }
}

/// Checks the messages of a group: as many as stated, each whole, plain, named and JSON.
fn check_frames(frames: &[u8], count: u32) -> Result<(), ApiError> {
    let mut found = 0_u32;
    for frame in Frames::new(frames) {
        let frame = frame.map_err(|error| bad(&error.to_string()))?;
        if frame.flags != 0 {
            return Err(bad("a message has flags that are the broker's"));
        }
        if frame.transaction_id.is_empty() {
            return Err(bad("a message has no transactionId"));
        }
        check_json(frame.data)?;
        found = found.saturating_add(1);
    }
    if found == count { Ok(()) } else { Err(bad("a group holds another number of messages")) }
}
