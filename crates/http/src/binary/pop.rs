//! The framed pop answer: stored records as they are, with what a reader needs around them.
//!
//! ```text
//! answer = "QPF1" | 1 u8 | own keys, JSON with u32 length | queue | lease id | group | claims u32 | claim*
//! claim  = partition u64 | name | first u64 | last u64 | attempt u32 | records u32 | record*
//! record = first offset u64 | created us i64 | messages u32 | codec u8 | length u32 | frames
//! ```
//!
//! The frames are handed on as slices of what was read from the log: nothing is copied.

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use queen_broker::api::{FramedClaim, PopAnswer};

use crate::error::{self, Answer};
use crate::json::Json;
use crate::routes::wide;

const MAGIC: &[u8] = b"QPF1";
const VERSION: u8 = 1;
const CONTENT_TYPE: &str = "application/x-queen-pop";

/// A framed answer; `own` are the keys that a JSON answer would have beside its messages.
pub(crate) fn framed_answer(
    queue: &str,
    group: &str,
    answer: &PopAnswer,
    claims: &[FramedClaim],
    own: Json,
) -> Answer {
    let mut out = Chunks::default();
    out.head.extend_from_slice(MAGIC);
    out.head.extend_from_slice(&[VERSION]);
    let own = own.bytes();
    out.u32(own.len());
    out.head.extend_from_slice(&own);
    out.text(queue);
    out.text(&answer.lease.map(|lease| lease.to_string()).unwrap_or_default());
    out.text(group);
    out.u32(claims.len());
    for claim in claims {
        out.u64(claim.partition_id.0);
        out.text(&claim.partition);
        out.u64(claim.first.0);
        out.u64(claim.last.0);
        out.u32(claim.attempt as usize);
        out.u32(claim.records.len());
        for record in &claim.records {
            out.u64(record.base.0);
            out.head.extend_from_slice(&record.created.0.to_le_bytes());
            out.u32(record.count as usize);
            out.head.extend_from_slice(&[u8::from(record.compressed)]);
            out.u32(record.payload.len());
            out.slice(record.payload.clone());
        }
    }
    error::chunked(StatusCode::OK, CONTENT_TYPE, out.finish())
}

/// Small fields gathered in a buffer, between slices that are handed on.
#[derive(Default)]
struct Chunks {
    head: BytesMut,
    done: Vec<Bytes>,
}

impl Chunks {
    fn u32(&mut self, value: usize) {
        let value = u32::try_from(wide(value)).unwrap_or(u32::MAX);
        self.head.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.head.extend_from_slice(&value.to_le_bytes());
    }

    /// Names are at most 447 bytes, so their length fits.
    fn text(&mut self, text: &str) {
        let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.head.extend_from_slice(&len.to_le_bytes());
        self.head.extend_from_slice(text.as_bytes());
    }

    fn slice(&mut self, bytes: Bytes) {
        self.done.push(self.head.split().freeze());
        self.done.push(bytes);
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.done.push(self.head.freeze());
        self.done
    }
}
