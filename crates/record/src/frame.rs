//! Frames: the messages inside a message record's payload.
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | body length: bytes after this field, at least 19 |
//! | 1 | flags: 1 trace id present, 2 producer subject present, 4 data is encrypted |
//! | 16 | message id |
//! | 16 | trace id, with flag 1 |
//! | 2 + n | transactionId, UTF-8 |
//! | 2 + m | producer subject, UTF-8, with flag 2 |
//! | rest | data: the JSON value as the client sent it, or the encrypted envelope |
//!
//! Frames follow each other with nothing between them; message k of a record is frame k.

use crate::ids::Uuid;
use crate::le::Reader;

/// A trace id is present.
pub const FLAG_TRACE: u8 = 1;
/// A producer subject is present.
pub const FLAG_PRODUCER: u8 = 2;
/// Data is an encrypted envelope.
pub const FLAG_ENCRYPTED: u8 = 4;
/// Bytes from the start of a frame to its flags.
pub const FLAGS_AT: usize = 4;
/// Bytes from the start of a frame to its message id.
pub const ID_AT: usize = 5;
/// Smallest body length.
pub const BODY_MIN: u32 = 19;

/// One message, borrowed from its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef<'a> {
    /// The flags byte as stored; encoding derives it from the fields below and ignores this one.
    pub flags: u8,
    /// Message id.
    pub id: Uuid,
    /// Trace id.
    pub trace: Option<Uuid>,
    /// The client's transactionId, or the text of the message id.
    pub transaction_id: &'a str,
    /// Subject of the producer's token.
    pub producer_sub: Option<&'a str>,
    /// JSON bytes or encrypted envelope.
    pub data: &'a [u8],
    /// Whether `data` is encrypted.
    pub encrypted: bool,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length points past the end, or the body is smaller than its fixed fields.
    #[error("a frame is cut short")]
    Short,
    /// A flag that no writer sets.
    #[error("unknown frame flags {0:#04x}")]
    Flags(u8),
    /// A text is not UTF-8.
    #[error("a text in a frame is not UTF-8")]
    Text,
}

/// A text above 65,535 bytes, or a body above 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame's field is too long")]
pub struct FrameTooLarge;

impl FrameRef<'_> {
    fn stored_flags(&self) -> u8 {
        let mut flags = 0;
        if self.trace.is_some() {
            flags |= FLAG_TRACE;
        }
        if self.producer_sub.is_some() {
            flags |= FLAG_PRODUCER;
        }
        if self.encrypted {
            flags |= FLAG_ENCRYPTED;
        }
        flags
    }

    /// Appends the frame; returns where in `out` its message id lies.
    ///
    /// # Errors
    /// [`FrameTooLarge`], and `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<usize, FrameTooLarge> {
        let transaction_len = text_len(self.transaction_id)?;
        let producer_len = self.producer_sub.map(text_len).transpose()?;
        let body = u64::from(BODY_MIN)
            + if self.trace.is_some() { 16 } else { 0 }
            + u64::from(transaction_len)
            + producer_len.map_or(0, |len| 2 + u64::from(len))
            + self.data.len() as u64;
        let body_len = u32::try_from(body).map_err(|_| FrameTooLarge)?;
        let start = out.len();
        out.reserve(body_len as usize + 4);
        out.extend_from_slice(&body_len.to_le_bytes());
        out.push(self.stored_flags());
        out.extend_from_slice(&self.id.0);
        if let Some(trace) = self.trace {
            out.extend_from_slice(&trace.0);
        }
        out.extend_from_slice(&transaction_len.to_le_bytes());
        out.extend_from_slice(self.transaction_id.as_bytes());
        if let (Some(producer), Some(len)) = (self.producer_sub, producer_len) {
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(producer.as_bytes());
        }
        out.extend_from_slice(self.data);
        Ok(start + ID_AT)
    }
}

fn text_len(text: &str) -> Result<u16, FrameTooLarge> {
    u16::try_from(text.len()).map_err(|_| FrameTooLarge)
}

/// Walks the frames of a payload; ends after the last frame or after the first error.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    payload: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> Frames<'a> {
    /// The frames of `payload`, which is not compressed.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0, failed: false }
    }

    /// Where the next frame starts.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    fn decode_next(&mut self, rest: &'a [u8]) -> Result<FrameRef<'a>, FrameError> {
        let mut outer = Reader::new(rest);
        let body_len = outer.u32().ok_or(FrameError::Short)?;
        if body_len < BODY_MIN {
            return Err(FrameError::Short);
        }
        let body = outer.take(body_len as usize).ok_or(FrameError::Short)?;
        let frame = decode_body(body)?;
        self.at += body.len() + 4;
        Ok(frame)
    }
}

fn decode_body(body: &[u8]) -> Result<FrameRef<'_>, FrameError> {
    let short = FrameError::Short;
    let mut reader = Reader::new(body);
    let flags = reader.u8().ok_or(short)?;
    if flags & !(FLAG_TRACE | FLAG_PRODUCER | FLAG_ENCRYPTED) != 0 {
        return Err(FrameError::Flags(flags));
    }
    let id = Uuid(reader.array().ok_or(short)?);
    let trace = match flags & FLAG_TRACE {
        0 => None,
        _ => Some(Uuid(reader.array().ok_or(short)?)),
    };
    let transaction_id = take_text(&mut reader)?;
    let producer_sub = match flags & FLAG_PRODUCER {
        0 => None,
        _ => Some(take_text(&mut reader)?),
    };
    let encrypted = flags & FLAG_ENCRYPTED != 0;
    Ok(FrameRef { flags, id, trace, transaction_id, producer_sub, data: reader.rest(), encrypted })
}

fn take_text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, FrameError> {
    let len = usize::from(reader.u16().ok_or(FrameError::Short)?);
    let bytes = reader.take(len).ok_or(FrameError::Short)?;
    std::str::from_utf8(bytes).map_err(|_| FrameError::Text)
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<FrameRef<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.payload.get(self.at..).unwrap_or_default();
        if self.failed || rest.is_empty() {
            return None;
        }
        let frame = self.decode_next(rest);
        self.failed = frame.is_err();
        Some(frame)
    }
}

/// Writes `id` into the frame that starts at `frame_at`; `false` when the payload is too short for it.
#[must_use]
pub fn patch_id(payload: &mut [u8], frame_at: usize, id: Uuid) -> bool {
    let slot = frame_at
        .checked_add(ID_AT)
        .and_then(|from| payload.get_mut(from..))
        .and_then(|rest| rest.first_chunk_mut::<16>());
    slot.map(|slot| *slot = id.0).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'a>() -> FrameRef<'a> {
        FrameRef {
            flags: FLAG_TRACE | FLAG_PRODUCER | FLAG_ENCRYPTED,
            id: Uuid([1; 16]),
            trace: Some(Uuid([2; 16])),
            transaction_id: "order-1",
            producer_sub: Some(""),
            data: b"{}",
            encrypted: true,
        }
    }

    #[test]
    fn an_id_is_patched_in_place() {
        let mut out = b"before".to_vec();
        let id_at = sample().encode(&mut out).unwrap();
        assert_eq!(id_at, 6 + ID_AT);
        assert!(patch_id(&mut out, 6, Uuid([9; 16])));
        let frame = Frames::new(&out[6..]).next().unwrap().unwrap();
        assert_eq!(frame, FrameRef { id: Uuid([9; 16]), ..sample() });
        let len = out.len();
        assert!(!patch_id(&mut out, len - ID_AT, Uuid([9; 16])));
        assert!(!patch_id(&mut out, usize::MAX, Uuid([9; 16])));
    }

    #[test]
    fn a_walk_ends_at_the_first_error() {
        let mut out = Vec::new();
        sample().encode(&mut out).unwrap();
        let good = out.len();
        out.extend_from_slice(&[19, 0, 0, 0, 8]);
        let mut frames = Frames::new(&out);
        assert!(frames.next().unwrap().is_ok());
        assert_eq!(frames.at(), good);
        assert_eq!(frames.next(), Some(Err(FrameError::Short)));
        assert_eq!(frames.next(), None);
    }

    #[test]
    fn a_long_text_is_refused_before_it_is_written() {
        let long = "x".repeat(65_536);
        let mut out = Vec::new();
        let frame = FrameRef { transaction_id: &long, ..sample() };
        assert_eq!(frame.encode(&mut out), Err(FrameTooLarge));
        assert!(out.is_empty());
    }
}
