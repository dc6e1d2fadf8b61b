//! Reads for people: listings and details of the applied state. They hold the state's lock in slices.

use std::borrow::Cow;
use std::fmt::Display;

use bytes::Bytes;
use queen_model::DlqInsert;
use queen_qlog::{ReadLimit, StoredRecord};
use queen_record::frame::Frames;
use queen_record::hash::{queue_id, tx_hash};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant};
use queen_state::{DeadLetterRow, Group, Partition, Queue, State};

use crate::api::{
    CallError, Counts, DeadLetter, DeadLetterPage, DeadLetterQuery, MessageDetail, MessageGroup,
    MessageStatus, PartitionRef, PartitionSummary, QUEUE_MODE, QueueDetail, QueueSummary,
};
use crate::core::Shared;
use crate::lookup::frames_of;
use crate::service::message_of;

/// Partitions visited under one hold of the state's lock: a fraction of a millisecond.
const PARTITIONS_PER_HOLD: usize = 2048;

/// All queues of a tenant, newest first.
pub(crate) fn queues(shared: &Shared, tenant: Tenant, counts: bool) -> Vec<QueueSummary> {
    let mut rows: Vec<QueueSummary> =
        shared.state.read().queues(tenant).map(|queue| summary(queue, None)).collect();
    if counts {
        for row in &mut rows {
            row.counts = Some(queue_counts(shared, tenant, &row.name));
        }
    }
    rows.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn summary(queue: &Queue, counts: Option<Counts>) -> QueueSummary {
    QueueSummary {
        id: queue.id,
        name: queue.name.to_string(),
        partitions: queue.partition_count(),
        options: queue.options.clone(),
        created: queue.created,
        counts,
        retained_bytes: queue.retained_bytes,
    }
}

fn add(sum: &mut Counts, part: Counts) {
    sum.total += part.total;
    sum.pending += part.pending;
    sum.processing += part.processing;
}

fn queue_counts(shared: &Shared, tenant: Tenant, name: &str) -> Counts {
    let now = shared.clock.now();
    let mut sum = Counts::default();
    let mut from = PartitionId(0);
    loop {
        let state = shared.state.read();
        let Some(queue) = state.queue(tenant, name) else { return sum };
        let slice: Vec<PartitionId> =
            queue.partitions_from(from).take(PARTITIONS_PER_HOLD).collect();
        for id in &slice {
            if let Some(row) = state.partition(*id) {
                add(&mut sum, partition_counts(&state, queue, *id, row, now, 0));
            }
        }
        sum.dead_letter = queue.dead_letters().count() as u64;
        match slice.last() {
            Some(last) => from = PartitionId(last.0 + 1),
            None => break,
        }
    }
    sum.completed = sum.total.saturating_sub(sum.pending + sum.dead_letter);
    sum
}

fn partition_counts(
    state: &State,
    queue: &Queue,
    id: PartitionId,
    row: &Partition,
    now: Micros,
    dead_letter: u64,
) -> Counts {
    let counts = state.counts(queue, id, row, now);
    Counts {
        total: counts.total,
        pending: counts.pending,
        processing: counts.processing,
        completed: counts.total.saturating_sub(counts.pending + dead_letter),
        dead_letter,
    }
}

/// One queue with its partitions, sorted by name.
pub(crate) fn queue(
    shared: &Shared,
    tenant: Tenant,
    name: &str,
    partitions_max: usize,
) -> Option<QueueDetail> {
    let now = shared.clock.now();
    let mut partitions: Vec<PartitionSummary> = Vec::new();
    let mut from = PartitionId(0);
    let (mut row, dead) = {
        let state = shared.state.read();
        let queue = state.queue(tenant, name)?;
        let dead: Vec<PartitionId> = queue.dead_letters().map(|row| row.letter.partition).collect();
        (summary(queue, None), dead)
    };
    let truncated = row.partitions > partitions_max as u64;
    while partitions.len() < partitions_max {
        let state = shared.state.read();
        let queue = state.queue(tenant, name)?;
        let slice: Vec<PartitionId> =
            queue.partitions_from(from).take(PARTITIONS_PER_HOLD).collect();
        let Some(last) = slice.last() else { break };
        from = PartitionId(last.0 + 1);
        for id in slice {
            let letters = dead.iter().filter(|of| **of == id).count() as u64;
            partitions.extend(partition_summary(&state, queue, id, now, letters));
        }
    }
    partitions.truncate(partitions_max);
    partitions.sort_by(|a, b| a.name.cmp(&b.name));
    fill_oldest(shared, tenant, name, &mut partitions);
    row.counts = Some(queue_counts(shared, tenant, name));
    Some(QueueDetail { summary: row, partitions, truncated })
}

fn partition_summary(
    state: &State,
    queue: &Queue,
    id: PartitionId,
    now: Micros,
    dead_letter: u64,
) -> Option<PartitionSummary> {
    let row = state.partition(id)?;
    let counts = state.counts(queue, id, row, now);
    Some(PartitionSummary {
        uuid: row.uuid,
        id,
        name: state.partition_name(row).to_owned(),
        created: row.created,
        counts: partition_counts(state, queue, id, row, now, dead_letter),
        total_consumed: counts.consumed,
        newest: (row.last_offset >= 0).then_some(row.last_created),
        oldest: None,
        retained_bytes: row.retained_bytes,
    })
}

/// The oldest message's time is not in RAM: asked of the log's index, for as many partitions as a page shows.
fn fill_oldest(shared: &Shared, tenant: Tenant, name: &str, partitions: &mut [PartitionSummary]) {
    const ASKED_MAX: usize = 1000;
    let qlog = shared.reader.qlog();
    let route = queue_id(tenant, name);
    for row in partitions.iter_mut().filter(|row| row.counts.total > 0).take(ASKED_MAX) {
        let log = qlog.log_of(route, Some(row.id));
        match qlog.first_at_or_after(log, row.id, Micros(i64::MIN)) {
            Ok(found) => row.oldest = found.map(|(_, created)| created),
            Err(error) => tracing::error!("the oldest message of partition {}: {error}", row.id),
        }
    }
}

/// A page of dead letters, newest failure first.
///
/// # Errors
/// A payload of the page does not open.
pub(crate) fn dead_letters(
    shared: &Shared,
    query: &DeadLetterQuery,
) -> Result<DeadLetterPage, CallError> {
    let (mut page, encrypted) = stored_dead_letters(shared, query);
    for (letter, encrypted) in page.rows.iter_mut().zip(encrypted) {
        let place = (&*letter.queue, &*letter.partition, letter.offset);
        letter.payload = opened(shared, (&letter.payload, encrypted), place)?;
    }
    Ok(page)
}

/// A dead letter's payload as it was pushed.
///
/// # Errors
/// It does not open.
pub(crate) fn letter_payload(
    shared: &Shared,
    letter: &DlqInsert,
    partition: &str,
) -> Result<Bytes, CallError> {
    let place = (&*letter.queue, partition, letter.offset);
    opened(shared, (&letter.payload, letter.encrypted), place)
}

/// The page with payloads as stored, and which of them are sealed.
fn stored_dead_letters(shared: &Shared, query: &DeadLetterQuery) -> (DeadLetterPage, Vec<bool>) {
    let state = shared.state.read();
    let mut rows: Vec<(&Queue, &DeadLetterRow)> = state
        .queues(query.tenant)
        .filter(|queue| query.queue.as_ref().is_none_or(|name| **name == *queue.name))
        .flat_map(|queue| queue.dead_letters().map(move |row| (queue, row)))
        .filter(|(_, row)| matches_query(&state, query, row))
        .collect();
    rows.sort_by(|(_, a), (_, b)| {
        (b.letter.failed, b.letter.id).cmp(&(a.letter.failed, a.letter.id))
    });
    let total = rows.len();
    let page = rows.into_iter().skip(query.offset).take(query.limit);
    let stored = |row: &DeadLetterRow| (dead_letter(&state, row), row.letter.encrypted);
    let (rows, encrypted) = page.map(|(_, row)| stored(row)).unzip();
    (DeadLetterPage { rows, total }, encrypted)
}

fn matches_query(state: &State, query: &DeadLetterQuery, row: &DeadLetterRow) -> bool {
    let letter = &row.letter;
    let partition =
        || state.partition(letter.partition).map_or("", |row| state.partition_name(row));
    query.group.as_ref().is_none_or(|group| *group == letter.group)
        && query.from.is_none_or(|from| letter.failed >= from)
        && query.to.is_none_or(|to| letter.failed < to)
        && query.partition.as_ref().is_none_or(|name| name == partition())
}

fn dead_letter(state: &State, row: &DeadLetterRow) -> DeadLetter {
    let letter = &row.letter;
    let partition = state.partition(letter.partition).map_or("", |row| state.partition_name(row));
    DeadLetter {
        id: letter.id,
        queue: letter.queue.clone(),
        partition: partition.to_owned(),
        partition_id: letter.partition,
        group: letter.group.clone(),
        offset: letter.offset,
        message_id: letter.message_id,
        transaction_id: letter.transaction_id.clone(),
        payload: letter.payload.clone(),
        error: letter.error.clone(),
        retries: letter.retries,
        failed: letter.failed,
        created: letter.message_id.map(created_of),
    }
}

/// A `UUIDv7` begins with its time.
fn created_of(id: queen_record::ids::Uuid) -> Micros {
    let millis = queen_planner::push::tick_of(id) >> 12;
    Micros(i64::try_from(millis).unwrap_or(0).saturating_mul(1000))
}

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

/// A stored payload as it was pushed.
///
/// # Errors
/// It does not open; the error names its place.
fn opened(
    shared: &Shared,
    (data, encrypted): (&Bytes, bool),
    (queue, partition, offset): (&str, &str, impl Display),
) -> Result<Bytes, CallError> {
    match shared.reader.vault().opened(data, encrypted) {
        Ok(Cow::Borrowed(_)) => Ok(data.clone()),
        Ok(Cow::Owned(payload)) => Ok(payload.into()),
        Err(error) => {
            let place = format!("queue {queue}, partition {partition}, offset {offset}");
            Err(shared.damaged_read(&format!("a message cannot be shown: {place}: {error}")))
        }
    }
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
