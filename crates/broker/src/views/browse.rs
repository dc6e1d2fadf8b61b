//! A page of messages, newest first, over many partitions.
//!
//! What a page holds is decided by the state and the logs' indexes: which offsets of a partition are wanted follows from
//! its cursors, and the times come with the index. Partitions are merged by their newest wanted message, and one is
//! opened only when nothing that is certain is newer. Payloads are read for the rows that are shown.

mod status;
mod stream;

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use queen_model::Refusal;
use queen_record::ids::{Micros, Offset, PartitionId};

use super::stored::{self, Shown, detach};
use super::walk::{self, At, Target};
use crate::api::{
    CallError, ConsumeMode, MESSAGES_DEPTH_MAX, MessagePage, MessageQuery, MessageRow, QUEUE_MODE,
    escaped_len,
};
use crate::core::Shared;
use status::Consumed;
use stream::{Budget, Filter, Stream};

/// Partitions that one merge holds at most: those with the newest messages.
const STREAMS_MAX: usize = 20_000;
/// Bytes of one page as JSON at most, and one row beyond them.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of a row in an answer at most, its payload and its texts aside.
const ROW_JSON_MAX: u64 = 1024;
/// Record bytes read for one page; it ends early beyond.
const READ_MAX: usize = 128 * 1024 * 1024;
const MINUTE_US: i64 = 60_000_000;

/// A page of messages.
///
/// # Errors
/// A refusal when the page is too deep, or its filter leaves too many partitions to look into; damage.
pub(crate) fn messages(shared: &Shared, query: &MessageQuery) -> Result<MessagePage, CallError> {
    let depth = query.offset.saturating_add(query.limit);
    if depth > MESSAGES_DEPTH_MAX {
        let text = format!(
            "offset and limit reach beyond {MESSAGES_DEPTH_MAX} messages: narrow the time range"
        );
        return Err(Refusal::BadRequest(text).into());
    }
    let now = shared.clock.now();
    // Times of messages run on when the clock is put back.
    let newest = now.max(shared.state.read().max_created());
    let from = query.from.unwrap_or(now.plus_seconds(-3600));
    let next_minute = newest.0.div_euclid(MINUTE_US).saturating_add(1).saturating_mul(MINUTE_US);
    let to = query.to.unwrap_or(Micros(next_minute));
    let filter = Filter { from, to, status: query.status, now };
    let (targets, mode) = targets(shared, query);
    let (streams, dropped) = streams(shared, &targets, query, &filter);
    let places = merge(shared, &targets, streams, dropped, &filter, (query.offset, depth))?;
    let rows = rows(shared, &targets, &places, query)?;
    Ok(MessagePage { rows, mode })
}

/// The queues to look into, and how they are consumed.
fn targets(shared: &Shared, query: &MessageQuery) -> (Vec<Target>, ConsumeMode) {
    let state = shared.state.read();
    let is =
        |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|wanted| wanted == text);
    let named = query.queue.as_deref().map(|name| state.queue(query.tenant, name));
    let all = named.is_none().then(|| state.queues(query.tenant));
    let mut mode = ConsumeMode::default();
    let mut groups = std::collections::BTreeSet::new();
    let mut targets = Vec::new();
    for queue in named.flatten().into_iter().chain(all.into_iter().flatten()) {
        if !is(&query.namespace, &queue.options.namespace) || !is(&query.task, &queue.options.task)
        {
            continue;
        }
        for group in queue.groups() {
            if &*group.name == QUEUE_MODE {
                mode.queue_mode |= group.cursor_count > 0;
            } else {
                groups.insert(group.name.clone());
            }
        }
        targets.push(Target::of(queue));
    }
    mode.groups = groups.len();
    (targets, mode)
}

/// A stream for each partition that may hold wanted messages, and the newest of those left out.
fn streams(
    shared: &Shared,
    targets: &[Target],
    query: &MessageQuery,
    filter: &Filter,
) -> (BinaryHeap<Stream>, Option<(Micros, PartitionId)>) {
    // The oldest on top, to be left out first.
    let mut kept: BinaryHeap<std::cmp::Reverse<Stream>> = BinaryHeap::new();
    let mut dropped = None;
    for (queue, target) in targets.iter().enumerate() {
        let mut visit = |at: At<'_>| {
            kept.extend(Stream::of(at, queue, filter).map(std::cmp::Reverse));
            if kept.len() > STREAMS_MAX
                && let Some(std::cmp::Reverse(oldest)) = kept.pop()
            {
                dropped = dropped.max(Some(oldest.place()));
            }
        };
        match &query.partition {
            None => walk::all(shared, target, visit),
            Some(name) => {
                let state = shared.state.read();
                let found = target.queue(&state).and_then(|queue| {
                    let id = state.partition_named(queue, name)?;
                    Some(At { state: &state, queue, id, row: state.partition(id)? })
                });
                if let Some(at) = found {
                    visit(at);
                }
            }
        }
    }
    (kept.into_iter().map(|std::cmp::Reverse(stream)| stream).collect(), dropped)
}

/// Where one wanted message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    queue: usize,
    id: PartitionId,
    offset: u64,
}

/// The places from `skip` to `end` in the order of the merge.
fn merge(
    shared: &Shared,
    targets: &[Target],
    mut streams: BinaryHeap<Stream>,
    dropped: Option<(Micros, PartitionId)>,
    filter: &Filter,
    (skip, end): (usize, usize),
) -> Result<Vec<Place>, CallError> {
    let too_many = || {
        let text = "too many partitions would have to be looked into: name a queue or a partition, or narrow the time range";
        CallError::from(Refusal::BadRequest(text.to_owned()))
    };
    let mut budget = Budget::default();
    let (mut places, mut seen) = (Vec::new(), 0);
    while seen < end
        && let Some(mut stream) = streams.pop()
    {
        let Some(target) = targets.get(stream.queue()) else { continue };
        if dropped.is_some_and(|dropped| dropped > stream.place()) || budget.is_spent() {
            return Err(too_many());
        }
        match stream.take() {
            Some(offset) => {
                if seen >= skip {
                    places.push(Place { queue: stream.queue(), id: stream.id(), offset });
                }
                seen += 1;
            }
            None => stream.fill(shared, target, filter, &mut budget)?,
        }
        if !stream.is_done() {
            streams.push(stream);
        }
    }
    Ok(places)
}

/// The rows of these places; fewer when their payloads are large.
fn rows(
    shared: &Shared,
    targets: &[Target],
    places: &[Place],
    query: &MessageQuery,
) -> Result<Vec<MessageRow>, CallError> {
    let mut wanted: BTreeMap<PartitionId, Vec<u64>> = BTreeMap::new();
    for place in places {
        wanted.entry(place.id).or_default().push(place.offset);
    }
    for offsets in wanted.values_mut() {
        offsets.sort_unstable();
    }
    let mut read: BTreeMap<(PartitionId, u64), Shown> = BTreeMap::new();
    let (mut bytes, mut read_bytes) = (0_u64, 0);
    let mut rows = Vec::new();
    for place in places {
        let Some(target) = targets.get(place.queue) else { continue };
        let key = (place.id, place.offset);
        if !read.contains_key(&key) {
            let offsets = wanted.get(&place.id).map(Vec::as_slice).unwrap_or_default();
            read_bytes += read_record(shared, target, place, offsets, &mut read)?;
        }
        // It was removed since it was found.
        let Some(shown) = read.remove(&key) else { continue };
        if let Some(row) = row(shared, target, place.id, shown, query) {
            bytes += json_len(&row);
            rows.push(row);
        }
        if bytes >= BYTES_MAX || read_bytes >= READ_MAX {
            break;
        }
    }
    Ok(rows)
}

/// Bytes of a row in an answer at most.
fn json_len(row: &MessageRow) -> u64 {
    let message = &row.message;
    let names = escaped_len(&*row.queue) + escaped_len(&row.partition);
    let labels = escaped_len(&row.labels.0) + escaped_len(&row.labels.1);
    let producer = message.producer_sub.as_ref().map_or(0, escaped_len);
    let texts = escaped_len(&message.transaction_id) + producer;
    // The names are shown twice, and so is the payload.
    ROW_JSON_MAX + 2 * (names + message.data.len() as u64) + labels + texts
}

/// Reads the record of a place and keeps the wanted messages in it; returns how much was read.
fn read_record(
    shared: &Shared,
    target: &Target,
    place: &Place,
    offsets: &[u64],
    read: &mut BTreeMap<(PartitionId, u64), Shown>,
) -> Result<usize, CallError> {
    let log = shared.reader.qlog().log_of(target.route(), Some(place.id));
    let record = stored::record_at(shared, log, place.id, Offset(place.offset))?;
    let Some(record) = record.filter(|record| record.base.0 <= place.offset) else {
        return stored::check_missing(shared, place.id, place.offset).map(|()| 0);
    };
    let end = record.base.0.saturating_add(u64::from(record.count));
    stored::messages_of(shared, place.id, &record, record.base.0..end, |mut shown| {
        let offset = shown.message.offset.0;
        if offsets.binary_search(&offset).is_ok() {
            detach(&mut shown.message);
            read.insert((place.id, offset), shown);
        }
        true
    })
}

fn row(
    shared: &Shared,
    target: &Target,
    id: PartitionId,
    shown: Shown,
    query: &MessageQuery,
) -> Option<MessageRow> {
    let now = shared.clock.now();
    let state = shared.state.read();
    let at = At { state: &state, queue: target.queue(&state)?, id, row: state.partition(id)? };
    let consumed = Consumed::of(at, now);
    let position = i64::try_from(shown.message.offset.0).unwrap_or(i64::MAX);
    let is_dead = at.queue.dead_letters_at(id, position..=position).next().is_some();
    let status = consumed.status(position, is_dead);
    // What it does may have changed since it was found.
    if query.status.is_some_and(|wanted| wanted != status) {
        return None;
    }
    let options = &at.queue.options;
    Some(MessageRow {
        message: shown.message,
        encrypted: shown.encrypted,
        hash: shown.hash,
        entry: shown.entry,
        frame: shown.frame,
        queue: Arc::clone(&target.name),
        labels: (options.namespace.clone(), options.task.clone()),
        priority: options.priority,
        partition: at.name().to_owned(),
        partition_uuid: at.row.uuid,
        status,
        queue_status: consumed.queue_status(position, is_dead),
        consumed_by: consumed.named.iter().filter(|committed| **committed >= position).count(),
        groups: consumed.named.len(),
        lease_expires: consumed
            .lease_expires
            .filter(|_| status == crate::api::MessageStatus::Processing),
    })
}
