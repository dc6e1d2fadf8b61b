//! Request bodies and what is read from answers.
//!
//! A payload is a JSON object of 256 bytes: `l` lane, `s` its number within the lane, `t` the time it was made in
//! microseconds, `p` a pad. The pad is a window into one megabyte of random letters whose place varies, so that neither
//! one message nor a batch compresses much: what the log saves here, it saves on any data.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

/// Length of a payload.
pub(crate) const PAYLOAD_BYTES: usize = 256;
const PAD_BYTES: usize = 1 << 20;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Wall time in microseconds.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The random letters that pads are cut from.
pub(crate) struct Pad(Vec<u8>);

impl Pad {
    pub(crate) fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let letters = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            LETTERS[(state >> 58) as usize]
        });
        Self(letters.take(PAD_BYTES).collect())
    }

    /// Appends the payload of one message.
    pub(crate) fn payload(&self, out: &mut Vec<u8>, item: Item) {
        let start = out.len();
        let (lane, seq, now) = (item.lane, item.seq, now_us());
        write!(out, "{{\"l\":{lane},\"s\":{seq},\"t\":{now},\"p\":\"").unwrap();
        let length = PAYLOAD_BYTES - 2 - (out.len() - start);
        let spread = (u64::from(lane) << 20 | seq & 0xf_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (spread >> 33) as usize % (PAD_BYTES - PAYLOAD_BYTES);
        out.extend_from_slice(&self.0[place..place + length]);
        out.extend_from_slice(b"\"}");
    }
}

/// A message to push.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) lane: u32,
    pub(crate) seq: u64,
}

/// What a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A partition of the one queue.
    Partition,
    /// A queue with one partition.
    Queue,
}

/// Builds push bodies; transaction ids are unique to the process and connection.
pub(crate) struct Pusher<'a> {
    pub(crate) queue: &'a str,
    pub(crate) lane: Lane,
    pub(crate) pad: &'a Pad,
    /// Starts every transaction id.
    pub(crate) prefix: String,
    pub(crate) count: u64,
}

impl Pusher<'_> {
    /// The body that pushes these items.
    pub(crate) fn body(&mut self, out: &mut Vec<u8>, items: impl Iterator<Item = Item>) {
        out.clear();
        out.extend_from_slice(b"{\"items\":[");
        for item in items {
            if !out.ends_with(b"[") {
                out.push(b',');
            }
            let (queue, lane, prefix, count) = (self.queue, item.lane, &self.prefix, self.count);
            match self.lane {
                Lane::Partition => write!(out, "{{\"queue\":\"{queue}\",\"partition\":\"p{lane}\""),
                Lane::Queue => write!(out, "{{\"queue\":\"{queue}-{lane}\",\"partition\":null"),
            }
            .unwrap();
            write!(out, ",\"transactionId\":\"{prefix}-{count:x}\",\"payload\":").unwrap();
            self.count += 1;
            self.pad.payload(out, item);
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
    }
}

/// How often `needle` is in `text`.
pub(crate) fn count(text: &[u8], needle: &[u8]) -> usize {
    let Some((first, rest)) = needle.split_first() else { return 0 };
    let follows = |at: usize| text.get(at + 1..).is_some_and(|tail| tail.starts_with(rest));
    text.iter().enumerate().filter(|(at, byte)| *byte == first && follows(*at)).count()
}

/// A pop's answer.
#[derive(Deserialize)]
pub(crate) struct Popped<'a> {
    #[serde(borrow)]
    pub(crate) messages: Vec<Message<'a>>,
}

/// A delivered message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message<'a> {
    transaction_id: &'a str,
    partition_id: &'a str,
    lease_id: &'a str,
    pub(crate) data: Data,
}

/// The part of a payload that is checked.
#[derive(Deserialize)]
pub(crate) struct Data {
    #[serde(rename = "l")]
    pub(crate) lane: u32,
    #[serde(rename = "s")]
    pub(crate) seq: u64,
    #[serde(rename = "t")]
    pub(crate) made_us: u64,
}

/// The body that acknowledges these messages in one call.
pub(crate) fn ack_body(out: &mut Vec<u8>, messages: &[Message<'_>]) {
    out.clear();
    out.extend_from_slice(b"{\"acknowledgments\":[");
    for message in messages {
        if !out.ends_with(b"[") {
            out.push(b',');
        }
        let Message { transaction_id, partition_id, lease_id, .. } = message;
        write!(
            out,
            "{{\"transactionId\":\"{transaction_id}\",\"partitionId\":\"{partition_id}\",\
             \"leaseId\":\"{lease_id}\",\"status\":\"completed\"}}"
        )
        .unwrap();
    }
    out.extend_from_slice(b"]}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_length_and_parses() {
        let pad = Pad::new();
        for (lane, seq) in [(0, 0), (999_999, 1), (63, u64::from(u32::MAX))] {
            let mut out = Vec::new();
            pad.payload(&mut out, Item { lane, seq });
            assert_eq!(out.len(), PAYLOAD_BYTES);
            let data: Data = serde_json::from_slice(&out).unwrap();
            assert_eq!((data.lane, data.seq), (lane, seq));
        }
    }

    #[test]
    fn a_push_body_is_json() {
        let pad = Pad::new();
        let prefix = "a".to_owned();
        let mut pusher = Pusher { queue: "q", lane: Lane::Partition, pad: &pad, prefix, count: 0 };
        let mut out = Vec::new();
        pusher.body(&mut out, (0..3).map(|seq| Item { lane: 1, seq }));
        let body: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(body["items"][2]["transactionId"], "a-2");
        assert_eq!(body["items"][2]["payload"]["s"], 2);
    }

    #[test]
    fn occurrences_are_counted() {
        assert_eq!(count(b"abaabab", b"ab"), 3);
        assert_eq!(count(b"a", b"ab"), 0);
    }
}
