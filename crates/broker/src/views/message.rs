//! One message with its groups.

use queen_qlog::{ReadLimit, StoredRecord};
use queen_record::frame::Frames;
use queen_record::hash::{queue_id, tx_hash};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant};
use queen_state::{Group, State};

use super::opened::opened;
use crate::api::{CallError, MessageDetail, MessageGroup, MessageStatus, PartitionRef, QUEUE_MODE};
use crate::core::Shared;
use crate::lookup::frames_of;
use crate::service::message_of;

/// One message by its partition and transactionId.
pub(crate) fn message(
    shared: &Shared,
    tenant: Tenant,
    partition: PartitionRef,
    transaction_id: &str,
) -> Result<Option<MessageDetail>, CallError> {
    let (id, route) = {
        let state = shared.state.read();
        let id = match partition {
            PartitionRef::Number(id) => Some(id),
            PartitionRef::Uuid(uuid) => state.partition_by_uuid(uuid),
        };
        let found = id.and_then(|id| Some((id, state.partition(id)?)));
        let found = found.and_then(|(id, row)| {
            let queue = state.queue_by_number(row.queue).filter(|queue| queue.tenant == tenant)?;
            Some((id, queue_id(tenant, &queue.name)))
        });
        let Some(found) = found else { return Ok(None) };
        found
    };
    let failed = |error: String| shared.damaged_read(&error);
    let qlog = shared.reader.qlog();
    let log = qlog.log_of(route, Some(id));
    let everywhere = Offset(0)..Offset(u64::MAX);
    let offsets = shared
        .reader
        .find(log, id, tx_hash(transaction_id), everywhere)
        .map_err(|error| failed(error.to_string()))?;
    let Some(offset) = offsets.last().copied() else { return Ok(None) };
    let limit = ReadLimit { messages: 1, bytes: 1 };
    let records = qlog.read(log, id, offset, limit).map_err(|error| failed(error.to_string()))?;
    let Some(record) = records.first() else { return Ok(None) };
    let Some(mut detail) = detail(shared, id, offset, record)? else { return Ok(None) };
    // As sealed so far: the state's lock is not held while it is opened.
    let stored = (&detail.message.data, detail.encrypted);
    let place = (&*detail.queue, &*detail.partition, offset.0);
    detail.message.data = opened(shared, stored, place)?;
    Ok(Some(detail))
}

fn detail(
    shared: &Shared,
    id: PartitionId,
    offset: Offset,
    record: &StoredRecord,
) -> Result<Option<MessageDetail>, CallError> {
    let undecodable = || CallError::Internal(format!("offset {offset} of partition {id}"));
    let frames = frames_of(record).ok_or_else(undecodable)?;
    let at = usize::try_from(offset.0.saturating_sub(record.base.0)).unwrap_or(usize::MAX);
    let frame = Frames::new(&frames).nth(at).and_then(Result::ok).ok_or_else(undecodable)?;
    let message = message_of(offset, &frames, &frame, record.created);
    let now = shared.clock.now();
    let state = shared.state.read();
    let Some(row) = state.partition(id) else { return Ok(None) };
    let Some(queue) = state.queue_by_number(row.queue) else { return Ok(None) };
    if offset >= row.next_offset() || offset < row.log_start() {
        return Ok(None);
    }
    let position = i64::try_from(offset.0).unwrap_or(i64::MAX);
    let groups: Vec<MessageGroup> =
        queue.groups().filter_map(|group| group_view(&state, group, id, position, now)).collect();
    let letter = queue
        .dead_letters()
        .find(|row| row.letter.partition == id && row.letter.offset == position);
    Ok(Some(MessageDetail {
        message,
        encrypted: frame.encrypted,
        partition_uuid: row.uuid,
        partition: state.partition_name(row).to_owned(),
        queue: queue.name.to_string(),
        options: queue.options.clone(),
        status: status(&groups, letter.is_some()),
        error: letter.map(|row| row.letter.error.clone()),
        retries: letter.map_or(0, |row| row.letter.retries),
        groups,
    }))
}

fn group_view(
    state: &State,
    group: &Group,
    id: PartitionId,
    position: i64,
    now: Micros,
) -> Option<MessageGroup> {
    let cursor = state.cursor(id, group.number)?;
    Some(MessageGroup {
        name: group.name.to_string(),
        committed: cursor.committed,
        consumed: position <= cursor.committed,
        lease_expires: cursor.live_lease(now).map(|lease| lease.expires),
    })
}

fn status(groups: &[MessageGroup], dead: bool) -> MessageStatus {
    let named: Vec<&MessageGroup> =
        groups.iter().filter(|group| group.name != QUEUE_MODE).collect();
    let completed = if named.is_empty() {
        groups.iter().any(|group| group.consumed)
    } else {
        named.iter().all(|group| group.consumed)
    };
    if dead {
        MessageStatus::DeadLetter
    } else if completed {
        MessageStatus::Completed
    } else if groups.iter().any(|group| group.lease_expires.is_some()) {
        MessageStatus::Processing
    } else {
        MessageStatus::Pending
    }
}
