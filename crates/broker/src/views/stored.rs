//! Stored messages as the reads show them: read, verified, decoded.

use std::fmt::Display;
use std::ops::Range;

use bytes::Bytes;
use queen_qlog::{ReadLimit, StoredRecord};
use queen_record::frame::Frames;
use queen_record::ids::{EntryIndex, LogId, Offset, PartitionId, TxHash};

use super::opened::{opened, place};
use crate::api::{CallError, Message};
use crate::core::Shared;
use crate::lookup::frames_of;
use crate::service::message_of;

/// One message and where it was found.
pub(crate) struct Shown {
    pub(crate) message: Message,
    /// Whether its payload is stored encrypted.
    pub(crate) encrypted: bool,
    pub(crate) hash: TxHash,
    pub(crate) entry: EntryIndex,
    /// Its place in the record.
    pub(crate) frame: u64,
}

/// Data that cannot be served: an error to the caller, a flag in the node's health.
pub(crate) fn damaged(shared: &Shared, what: impl Display) -> CallError {
    shared.damaged_read(&what.to_string())
}

/// Fails when the log does not have a message that the state still knows of; one that was removed since is no damage.
pub(crate) fn check_missing(
    shared: &Shared,
    id: PartitionId,
    offset: u64,
) -> Result<(), CallError> {
    if is_retained(shared, id, offset) {
        let what = format!("partition {id} has no message at offset {offset} in its log");
        return Err(damaged(shared, what));
    }
    Ok(())
}

/// Whether the message at an offset is one that the partition still keeps.
pub(crate) fn is_retained(shared: &Shared, id: PartitionId, offset: u64) -> bool {
    let state = shared.state.read();
    let row = state.partition(id);
    row.is_some_and(|row| (row.log_start().0..row.next_offset().0).contains(&offset))
}

/// The message at one offset; `None` when the log has nothing from there on.
pub(crate) fn message_at(
    shared: &Shared,
    log: LogId,
    id: PartitionId,
    offset: Offset,
) -> Result<Option<Shown>, CallError> {
    let Some(record) = record_at(shared, log, id, offset)? else { return Ok(None) };
    let mut found = None;
    messages_of(shared, id, &record, offset.0..offset.0.saturating_add(1), |shown| {
        found = Some(shown);
        true
    })?;
    Ok(found)
}

/// The record that holds an offset, or the first one after it.
pub(crate) fn record_at(
    shared: &Shared,
    log: LogId,
    id: PartitionId,
    offset: Offset,
) -> Result<Option<StoredRecord>, CallError> {
    let limit = ReadLimit { messages: 1, bytes: 1 };
    let read = shared.reader.qlog().read(log, id, offset, limit);
    Ok(read.map_err(|error| damaged(shared, error))?.into_iter().next())
}

/// Hands the messages of a record that lie in `offsets` to `take`, until it says no; returns the bytes of the buffer that
/// they are slices of.
pub(crate) fn messages_of(
    shared: &Shared,
    id: PartitionId,
    record: &StoredRecord,
    offsets: Range<u64>,
    mut take: impl FnMut(Shown) -> bool,
) -> Result<usize, CallError> {
    let broken = |offset: u64| {
        damaged(shared, format_args!("the message at offset {offset} of partition {id} is broken"))
    };
    let frames = frames_of(record).ok_or_else(|| broken(record.base.0))?;
    let (hashes, _) = record.hashes.as_chunks::<16>();
    let mut walk = Frames::new(&frames);
    for (frame, hash) in (0..).zip(hashes) {
        let offset = record.base.0 + frame;
        if offset >= offsets.end {
            break;
        }
        let found = walk.next().and_then(Result::ok).ok_or_else(|| broken(offset))?;
        if offset < offsets.start {
            continue;
        }
        let mut message = message_of(Offset(offset), &frames, &found, record.created);
        if found.encrypted {
            message.data = opened(shared, (&message.data, true), || place_of(shared, id, offset))?;
        }
        let shown = Shown {
            message,
            encrypted: found.encrypted,
            hash: TxHash(*hash),
            entry: record.index,
            frame,
        };
        if !take(shown) {
            break;
        }
    }
    Ok(frames.len())
}

fn place_of(shared: &Shared, id: PartitionId, offset: u64) -> String {
    let state = shared.state.read();
    let row = state.partition(id);
    let queue = row.and_then(|row| state.queue_by_number(row.queue));
    let queue = queue.map_or("", |queue| &queue.name);
    let partition = row.map_or("", |row| state.partition_name(row));
    place(queue, partition, i64::try_from(offset).unwrap_or(i64::MAX))
}

/// Copies a message out of the buffer that it is a slice of, so that a small one does not hold a large record.
pub(crate) fn detach(message: &mut Message) {
    let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    message.transaction_id = copy(&message.transaction_id);
    message.producer_sub = message.producer_sub.as_ref().map(copy);
    message.data = copy(&message.data);
}
