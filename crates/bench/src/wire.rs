//! Request bodies and what is read from answers.
//!
//! A payload is a JSON object of 256 bytes: `l` lane, `s` its number within the lane, `t` the time it was made in
//! microseconds, `p` a pad. The pad is a window into one megabyte of random letters whose place varies, so that neither
//! one message nor a batch compresses much: what the log saves here, it saves on any data.

mod framed;
mod pop;
mod push;

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use self::framed::{Framed, MAGIC as FRAMED_MAGIC};
pub(crate) use self::pop::{Autopilot, Data, Message, Popped, ack_body, acks};
pub(crate) use self::push::{Form, Pusher};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// How often `needle` is in `text`.
pub(crate) fn count(text: &[u8], needle: &[u8]) -> usize {
    let Some((first, rest)) = needle.split_first() else { return 0 };
    let follows = |at: usize| text.get(at + 1..).is_some_and(|tail| tail.starts_with(rest));
    text.iter().enumerate().filter(|(at, byte)| *byte == first && follows(*at)).count()
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
    fn occurrences_are_counted() {
        assert_eq!(count(b"abaabab", b"ab"), 3);
        assert_eq!(count(b"a", b"ab"), 0);
    }
}
