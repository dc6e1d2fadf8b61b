//! Opens the messages of a claim before it is granted: what cannot be shown must not be leased, and least of all
//! committed.

use std::ops::Range;

use bytes::Bytes;
use queen_record::frame::{FrameRef, Frames};
use queen_record::ids::{Offset, PartitionId};

use super::{CipherError, Vault};
use crate::lookup::{ClaimRead, LookupError, frames_of};

/// The claim with every message that it delivers in plain text, and its records decompressed.
///
/// A message that does not open ends the claim before it: what stands in front is delivered, and the next claim begins
/// with that message and fails.
///
/// # Errors
/// The first message does not open, or a record does not decode.
pub(crate) fn open(
    vault: &Vault,
    partition: PartitionId,
    mut read: ClaimRead,
) -> Result<ClaimRead, LookupError> {
    let first = read.delivered.first;
    let wanted = first..Offset(first.0 + read.delivered.hashes.len() as u64);
    let mut opened = Vec::with_capacity(read.records.len());
    for mut record in read.records {
        let undecodable = || LookupError::Missing { partition, offset: record.base };
        let frames = frames_of(&record).ok_or_else(undecodable)?;
        let (payload, failed) =
            open_frames(vault, &frames, record.base, &wanted).ok_or_else(undecodable)?;
        record.payload = payload;
        record.compressed = false;
        opened.push(record);
        if let Some((offset, error)) = failed {
            if offset == first {
                return Err(LookupError::Sealed { partition, offset, error });
            }
            let before = usize::try_from(offset.0 - first.0).unwrap_or(usize::MAX);
            read.delivered.hashes.truncate(before);
            break;
        }
    }
    read.records = opened;
    Ok(read)
}

/// A record's frames with those in `wanted` opened, up to the first that does not open; `None` when they do not decode.
fn open_frames(
    vault: &Vault,
    frames: &Bytes,
    base: Offset,
    wanted: &Range<Offset>,
) -> Option<(Bytes, Option<(Offset, CipherError)>)> {
    let mut walk = Frames::new(frames);
    // Made at the first envelope: most records of a node with a key hold none.
    let mut opened: Option<Vec<u8>> = None;
    let mut at = 0;
    for offset in (base.0..).map(Offset) {
        let Some(frame) = walk.next() else { break };
        let frame = frame.ok()?;
        if frame.encrypted && wanted.contains(&offset) {
            let data = match vault.opened(frame.data, true) {
                Ok(data) => data,
                Err(error) => {
                    let before = opened.map_or_else(|| frames.slice(..at), Bytes::from);
                    return Some((before, Some((offset, error))));
                }
            };
            let frame = FrameRef { data: &data, encrypted: false, ..frame };
            let opened = opened.get_or_insert_with(|| frames.slice(..at).to_vec());
            frame.encode(opened).ok()?;
        } else if let Some(opened) = &mut opened {
            opened.extend_from_slice(frames.get(at..walk.at())?);
        }
        at = walk.at();
    }
    Some((opened.map_or_else(|| frames.clone(), Bytes::from), None))
}
