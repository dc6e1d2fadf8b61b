//! One message with its groups.

use queen_record::hash::{queue_id, tx_hash};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};
use queen_state::{Group, State};

use super::stored::{self, Shown};
use crate::api::{CallError, MessageDetail, MessageGroup, MessageStatus, PartitionRef, QUEUE_MODE};
use crate::core::Shared;

/// Partitions compared under one hold of the state's lock.
const PARTITIONS_PER_HOLD: usize = 8192;

/// One message by its partition and transactionId.
pub(crate) fn message(
    shared: &Shared,
    tenant: Tenant,
    partition: PartitionRef,
    transaction_id: &str,
) -> Result<Option<MessageDetail>, CallError> {
    let PartitionRef::Number(id) = numbered(shared, partition) else { return Ok(None) };
    let route = {
        let state = shared.state.read();
        let row = state.partition(id);
        let queue = row.and_then(|row| state.queue_by_number(row.queue));
        let queue = queue.filter(|queue| queue.tenant == tenant);
        queue.map(|queue| queue_id(tenant, &queue.name))
    };
    let Some(route) = route else { return Ok(None) };
    let log = shared.reader.qlog().log_of(route, Some(id));
    let everywhere = Offset(0)..Offset(u64::MAX);
    let offsets = shared.reader.find(log, id, tx_hash(transaction_id), everywhere);
    let offsets = offsets.map_err(|error| shared.damaged_read(&error.to_string()))?;
    let Some(offset) = offsets.last().copied() else { return Ok(None) };
    let Some(shown) = stored::message_at(shared, log, id, offset)? else { return Ok(None) };
    Ok(detail(shared, id, shown))
}

/// A partition by its number; one by a UUID that no partition has stays what it is.
pub(crate) fn numbered(shared: &Shared, partition: PartitionRef) -> PartitionRef {
    match partition {
        PartitionRef::Uuid(uuid) => {
            partition_of(shared, uuid).map_or(partition, PartitionRef::Number)
        }
        PartitionRef::Number(_) => partition,
    }
}

/// The partition of this UUID. People ask so for a message or two, which is not worth an index.
fn partition_of(shared: &Shared, uuid: Uuid) -> Option<PartitionId> {
    let mut from = PartitionId(0);
    loop {
        let state = shared.state.read();
        let mut last = None;
        for (id, row) in state.partitions_from(from).take(PARTITIONS_PER_HOLD) {
            if row.uuid == uuid {
                return Some(id);
            }
            last = Some(id);
        }
        from = PartitionId(last?.0 + 1);
    }
}

fn detail(shared: &Shared, id: PartitionId, shown: Shown) -> Option<MessageDetail> {
    let now = shared.clock.now();
    let state = shared.state.read();
    let row = state.partition(id)?;
    let queue = state.queue_by_number(row.queue)?;
    let offset = shown.message.offset;
    if offset >= row.next_offset() || offset < row.log_start() {
        return None;
    }
    let position = i64::try_from(offset.0).unwrap_or(i64::MAX);
    let groups: Vec<MessageGroup> =
        queue.groups().filter_map(|group| group_view(&state, group, id, position, now)).collect();
    let letter = queue.dead_letters_at(id, position..=position).next();
    Some(MessageDetail {
        message: shown.message,
        encrypted: shown.encrypted,
        partition_uuid: row.uuid,
        partition: state.partition_name(row).to_owned(),
        queue: queue.name.to_string(),
        options: queue.options.clone(),
        status: status(&groups, letter.is_some()),
        error: letter.map(|row| row.letter.error.clone()),
        retries: letter.map_or(0, |row| row.letter.retries),
        groups,
    })
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
