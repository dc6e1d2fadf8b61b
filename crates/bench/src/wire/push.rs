//! Push bodies: JSON, and the two binary forms.
//!
//! ```text
//! QPB1 | flags u8 | groups u32 | (queue | partition | messages u32 | content)*
//! flags 4: content = (transactionId | length u32 | payload)*
//! flags 8: content = length u32 | one zstd frame over (length u32 | flags u8 | id 16 | transactionId | payload)*
//! ```
//!
//! Numbers are little-endian, texts have a length of two bytes. Items of one lane that follow each other are one group.

use std::io::Write;

use zstd::bulk::Compressor;

use super::{Item, Lane, PAYLOAD_BYTES, Pad, now_us};

const MAGIC: &[u8] = b"QPB1";
const WITH_IDS: u8 = 4;
const FRAMED: u8 = 8;
/// The client's compression: the level at which the broker would have compressed.
const LEVEL: i32 = 1;

/// The form of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    /// Messages one after the other, each with its transaction id.
    Plain,
    /// Messages in the broker's own frames, compressed by the client.
    Framed,
}

impl Form {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Plain | Self::Framed => "application/x-queen-push",
        }
    }
}

/// Builds push bodies; transaction ids are unique to the process and connection.
pub(crate) struct Pusher<'a> {
    queue: &'a str,
    lane: Lane,
    pad: &'a Pad,
    /// Starts every transaction id.
    prefix: String,
    count: u64,
    form: Form,
    packer: Compressor<'static>,
    frames: Vec<u8>,
}

impl<'a> Pusher<'a> {
    pub(crate) fn new(
        (queue, lane): (&'a str, Lane),
        pad: &'a Pad,
        prefix: String,
        form: Form,
    ) -> anyhow::Result<Self> {
        let mut packer = Compressor::new(LEVEL)?;
        packer.include_contentsize(true)?;
        let (count, frames) = (0, Vec::new());
        Ok(Self { queue, lane, pad, prefix, count, form, packer, frames })
    }

    /// The body that pushes these items.
    pub(crate) fn body(&mut self, out: &mut Vec<u8>, items: &[Item]) -> anyhow::Result<()> {
        out.clear();
        if self.form != Form::Json {
            return self.binary(out, items);
        }
        out.extend_from_slice(b"{\"items\":");
        self.items(out, self.queue, items);
        out.push(b'}');
        Ok(())
    }

    /// Appends a JSON array of items for some queue.
    pub(crate) fn items(&mut self, out: &mut Vec<u8>, queue: &str, items: &[Item]) {
        out.push(b'[');
        for item in items {
            if !out.ends_with(b"[") {
                out.push(b',');
            }
            let lane = item.lane;
            match self.lane {
                Lane::Partition => write!(out, "{{\"queue\":\"{queue}\",\"partition\":\"p{lane}\""),
                Lane::Queue => write!(out, "{{\"queue\":\"{queue}-{lane}\",\"partition\":null"),
            }
            .unwrap();
            let (prefix, count) = (&self.prefix, self.count);
            write!(out, ",\"transactionId\":\"{prefix}-{count:x}\",\"payload\":").unwrap();
            self.count += 1;
            self.pad.payload(out, *item);
            out.push(b'}');
        }
        out.push(b']');
    }

    fn binary(&mut self, out: &mut Vec<u8>, items: &[Item]) -> anyhow::Result<()> {
        let groups = || items.chunk_by(|one, next| one.lane == next.lane);
        out.extend_from_slice(MAGIC);
        out.push(if self.form == Form::Framed { FRAMED } else { WITH_IDS });
        put_u32(out, groups().count());
        for group in groups() {
            let lane = group[0].lane;
            match self.lane {
                Lane::Partition => {
                    put_text(out, self.queue);
                    put_text(out, &format!("p{lane}"));
                }
                Lane::Queue => {
                    put_text(out, &format!("{}-{lane}", self.queue));
                    put_text(out, "");
                }
            }
            put_u32(out, group.len());
            if self.form == Form::Framed { self.pack(out, group)? } else { self.plain(out, group) }
        }
        Ok(())
    }

    fn plain(&mut self, out: &mut Vec<u8>, group: &[Item]) {
        for item in group {
            put_text(out, &format!("{}-{:x}", self.prefix, self.count));
            self.count += 1;
            put_u32(out, PAYLOAD_BYTES);
            self.pad.payload(out, *item);
        }
    }

    fn pack(&mut self, out: &mut Vec<u8>, group: &[Item]) -> anyhow::Result<()> {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        for item in group {
            let start = frames.len();
            put_u32(&mut frames, 0);
            frames.push(0);
            frames.extend_from_slice(&message_id(self.count, item.lane));
            put_text(&mut frames, &format!("{}-{:x}", self.prefix, self.count));
            self.count += 1;
            self.pad.payload(&mut frames, *item);
            let length = u32::try_from(frames.len() - start - 4)?;
            frames[start..start + 4].copy_from_slice(&length.to_le_bytes());
        }
        let packed = self.packer.compress(&frames)?;
        put_u32(out, packed.len());
        out.extend_from_slice(&packed);
        self.frames = frames;
        Ok(())
    }
}

/// A `UUIDv7` of now: milliseconds, then the place in the producer's sequence and its lane in place of random bits.
fn message_id(count: u64, lane: u32) -> [u8; 16] {
    let millis = u128::from(now_us() / 1000) << 80;
    let sequence = u128::from(count & 0x3fff_ffff) << 32;
    let mut id = millis | sequence | u128::from(lane);
    id |= 0x7 << 76 | 0b10 << 62;
    let mut bytes = id.to_le_bytes();
    bytes.reverse();
    bytes
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(form: Form, items: &[Item]) -> Vec<u8> {
        let pad = Pad::new();
        let place = ("q", Lane::Partition);
        let mut pusher = Pusher::new(place, &pad, "a".to_owned(), form).unwrap();
        let mut out = Vec::new();
        pusher.body(&mut out, items).unwrap();
        out
    }

    const ITEMS: [Item; 3] =
        [Item { lane: 1, seq: 0 }, Item { lane: 1, seq: 1 }, Item { lane: 2, seq: 0 }];

    #[test]
    fn a_push_body_is_json() {
        let body: serde_json::Value = serde_json::from_slice(&body(Form::Json, &ITEMS)).unwrap();
        assert_eq!(body["items"][1]["transactionId"], "a-1");
        assert_eq!(body["items"][1]["payload"]["s"], 1);
        assert_eq!(body["items"][2]["partition"], "p2");
    }

    #[test]
    fn a_plain_body_has_a_group_for_each_run_of_a_lane() {
        let body = body(Form::Plain, &ITEMS);
        let head =
            b"QPB1\x04\x02\0\0\0\x01\0q\x02\0p1\x02\0\0\0\x03\0a-0\x00\x01\0\0{\"l\":1,\"s\":0,";
        assert!(body.starts_with(head), "{:?}", String::from_utf8_lossy(&body[..60]));
        let group = 5 + 4 + 4;
        assert_eq!(body.len(), 9 + 2 * (group - 2) + 3 * (5 + 4 + PAYLOAD_BYTES));
    }

    #[test]
    fn a_framed_body_unpacks_to_frames() {
        let body = body(Form::Framed, &ITEMS[2..]);
        assert!(body.starts_with(b"QPB1\x08\x01\0\0\0\x01\0q\x02\0p2\x01\0\0\0"));
        let packed = &body[24..];
        assert_eq!(body[20..24], u32::try_from(packed.len()).unwrap().to_le_bytes());
        let frames = zstd::bulk::decompress(packed, 1 << 16).unwrap();
        let length = 1 + 16 + 2 + 3 + PAYLOAD_BYTES;
        assert_eq!(frames.len(), 4 + length);
        assert_eq!(frames[..5], [22, 1, 0, 0, 0]);
        assert_eq!((frames[11] >> 4, frames[13] >> 6), (7, 2));
        assert!(frames[21..].starts_with(b"\x03\0a-0{\"l\":2,"));
    }
}
