//! What the targets of request bodies share: a limit on memory, messages to compare, and bodies made of them.
//!
//! A reader may allocate so many times its input, what the input may decompress to with the messages in that, and
//! [`SLACK`]; one more byte ends the target. What the compression library takes for itself is not counted.

use std::alloc::System;
use std::collections::BTreeMap;

use cap::Cap;
use queen_broker::api::{AckItem, AckStatus, FramedGroup, PushItem};
use queen_http::fuzzing::Refused;
use queen_record::frame::Frames;
use queen_record::ids::Uuid;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes that a reader may allocate for each of its input: a message or an acknowledgment takes up to 176, over the 26
/// that spell the shortest, and a list that grows has room for twice as many.
pub const PER_BYTE: usize = 24;
/// Errors, small buffers.
pub const SLACK: usize = 16 * 1024;
/// Bytes that a body may become.
pub const UNPACKED_MAX: usize = 64 * 1024;
/// The same with the messages in it: at most one in 64 bytes, 104 each, in a list that grows.
pub const UNPACKED: usize = 5 * UNPACKED_MAX;
/// Levels of nesting that a payload may have.
const DEPTH_MAX: usize = 124;

/// Runs a reader within its memory.
pub fn bounded<T>(bytes: usize, read: impl FnOnce() -> T) -> T {
    let limit = ALLOCATOR.allocated() + SLACK + bytes;
    ALLOCATOR.set_limit(limit).expect("it is above what is allocated");
    let value = read();
    ALLOCATOR.set_limit(usize::MAX).expect("it is above what is allocated");
    value
}

/// A body is refused with 400 and nothing else.
pub fn accepted<T>(read: Result<T, Refused>) -> Option<T> {
    read.map_err(|refused| assert_eq!(refused, Refused(400))).ok()
}

/// A message of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub queue: String,
    pub partition: String,
    pub transaction_id: Option<String>,
    pub payload: Vec<u8>,
    pub trace_id: Option<Uuid>,
}

impl Message {
    /// Keeps messages that a reader lends, each with a payload that is JSON.
    pub fn all(items: &[PushItem<'_>]) -> Vec<Self> {
        let message = |item: &PushItem<'_>| {
            assert!(is_json(item.payload), "a payload that is no JSON");
            assert!(item.producer_sub.is_none(), "a subject that the body chose");
            Self {
                queue: item.queue.to_owned(),
                partition: item.partition.to_owned(),
                transaction_id: item.transaction_id.map(str::to_owned),
                payload: item.payload.to_owned(),
                trace_id: item.trace_id,
            }
        };
        items.iter().map(message).collect()
    }

    /// The same as JSON takes it: blanks around a payload are no part of it.
    pub fn trimmed(mut self) -> Self {
        self.payload = self.payload.trim_ascii().to_owned();
        self
    }

    /// As an item of a push, or as an operation of a transaction.
    pub fn json(&self) -> Value {
        let payload = String::from_utf8(self.payload.clone()).expect("JSON is text");
        let payload = RawValue::from_string(payload.trim_ascii().to_owned()).expect("it is JSON");
        let trace = self.trace_id.map(|id| id.to_string());
        // The payload is put in its place as a text: a tree would change its numbers.
        json!({
            "type": "push", "queue": self.queue, "partition": self.partition,
            "transactionId": self.transaction_id, "traceId": trace, "payload": payload.get(),
        })
    }
}

/// The text of a JSON value in which payloads stand as texts: puts them in as they are.
pub fn with_payloads(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| match (name.as_str(), value) {
                ("payload", Value::String(raw)) => format!("{}:{raw}", json!(name)),
                _ => format!("{}:{}", json!(name), with_payloads(value)),
            };
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(with_payloads).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// An acknowledgment as JSON.
pub fn ack_json(item: &AckItem) -> Value {
    let status = match item.status {
        AckStatus::Completed => "completed",
        AckStatus::Failed => "failed",
        AckStatus::Retry => "retry",
        AckStatus::DeadLetter => "dlq",
    };
    json!({
        "type": "ack", "transactionId": item.transaction_id,
        "partitionId": item.partition_id.map(|id| id.to_string()),
        "leaseId": item.lease, "status": status, "error": item.error,
    })
}

/// A JSON object, read by another reader: the last of equal names counts.
pub type Fields = BTreeMap<String, Box<RawValue>>;

/// A text among an object's fields; none for null.
pub fn text(fields: &Fields, name: &str) -> Option<String> {
    fields.get(name).and_then(|raw| serde_json::from_str(raw.get()).expect("a text or null"))
}

/// Whether bytes are one JSON document of a depth that is taken.
pub fn is_json(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let (mut now, mut most) = (0_usize, 0);
    let mut bytes = text.bytes();
    let mut is_string = false;
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if is_string => drop(bytes.next()),
            b'"' => is_string = !is_string,
            b'[' | b'{' if !is_string => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' if !is_string => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most <= DEPTH_MAX && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// One zstd frame with its content size.
pub fn packed(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).expect("memory")
}

/// Appends groups of framed messages as a body has them.
pub fn put_groups(groups: &[FramedGroup], out: &mut Vec<u8>) {
    put_u32(groups.len(), out);
    for group in groups {
        put_text(&group.queue, out);
        put_text(&group.partition, out);
        put_u32(Frames::new(&group.frames).count(), out);
        put_u32(group.packed.len(), out);
        out.extend_from_slice(&group.packed);
    }
}

/// Checks that a group is what its compressed form holds, and that its messages are what a body may have.
pub fn check_group(group: &FramedGroup) {
    let unpacked = zstd::bulk::decompress(&group.packed, UNPACKED_MAX).expect("it was unpacked");
    assert_eq!(unpacked, group.frames);
    for frame in Frames::new(&group.frames) {
        let frame = frame.expect("it was read");
        assert_eq!(frame.flags, 0);
        assert!(!frame.transaction_id.is_empty());
        assert!(is_json(frame.data));
    }
}

/// A number as binary bodies have it.
pub fn put_u32(number: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(number).expect("small").to_le_bytes());
}

/// A text as binary bodies have it.
pub fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&u16::try_from(text.len()).expect("short").to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
