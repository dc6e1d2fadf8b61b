//! Whether the parts that the logs hold of one entry make it whole.

use queen_record::hash::checksum;
use queen_record::ids::{EntryIndex, LogId, Micros};
use queen_record::record::{EntryBody, EntryPart};

/// An entry's part in one log, without its messages.
pub(crate) struct PartHead {
    pub(crate) index: EntryIndex,
    /// How many logs hold a part.
    pub(crate) copies: u64,
    pub(crate) term: u64,
    pub(crate) now: Micros,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Whole(Vec<u8>),
    Stub { digest: u64, len: u32 },
}

/// Parts of one entry that contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disagreement {
    pub(crate) what: &'static str,
    /// The log whose part differs from the others.
    pub(crate) log: LogId,
}

impl PartHead {
    pub(crate) fn new(part: &EntryPart<'_>) -> Self {
        let body = match part.body {
            EntryBody::Whole(bytes) => Body::Whole(bytes.to_vec()),
            EntryBody::Stub { digest, len } => Body::Stub { digest, len },
        };
        Self { index: part.index, copies: part.copies, term: part.term, now: part.now, body }
    }
}

/// One of the parts and the entry's bytes; `None` when a part is missing, or the whole record is.
pub(crate) fn join<'a>(
    parts: &[(LogId, &'a PartHead)],
) -> Result<Option<(&'a PartHead, &'a [u8])>, Disagreement> {
    let Some((_, first)) = parts.first().copied() else { return Ok(None) };
    let whole = parts.iter().find_map(|(_, part)| match &part.body {
        Body::Whole(bytes) => Some(&**bytes),
        Body::Stub { .. } => None,
    });
    let name = whole.map(|bytes| (checksum(bytes), bytes.len() as u64));
    for (log, part) in parts {
        let what = if part.copies != first.copies {
            Some("copies")
        } else if part.term != first.term {
            Some("term")
        } else if part.now != first.now {
            Some("time")
        } else {
            match (&part.body, whole) {
                (Body::Whole(bytes), Some(other)) if bytes != other => Some("bytes"),
                (Body::Stub { digest, len }, Some(_))
                    if name != Some((*digest, u64::from(*len))) =>
                {
                    Some("digest")
                }
                _ => None,
            }
        };
        if let Some(what) = what {
            return Err(Disagreement { what, log: *log });
        }
    }
    let count = parts.len() as u64;
    if count > first.copies {
        let log = parts.last().map(|(log, _)| *log).unwrap_or_default();
        return Err(Disagreement { what: "the number of parts", log });
    }
    Ok(whole.filter(|_| count == first.copies).map(|bytes| (first, bytes)))
}
