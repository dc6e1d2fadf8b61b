//! Consumer groups: the list, one group's cursors, the cursors that lag, and positions.

use std::collections::BinaryHeap;
use std::sync::Arc;

use queen_model::Refusal;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};
use queen_state::{Group, GroupNumber};

use super::figures::left;
use super::oldest::{ask, known_time, seconds_since};
use super::sampled;
use super::walk::{self, At, Target};
use crate::api::{
    CallError, GroupOnQueue, GroupPartition, GroupSummary, LaggingCursor, Position,
    SubscriptionView, escaped_len,
};
use crate::core::Shared;

/// Times that one read asks the logs.
const LOOKUPS_MAX: usize = 2048;
/// Rows of the lagging list at most.
const LAGGING_MAX: usize = 1000;
/// Bytes of a group's cursors in an answer as JSON at most, and one cursor beyond them.
const GROUP_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a cursor in an answer at most, the name of its partition aside.
const GROUP_PARTITION_JSON_MAX: u64 = 256;
/// Positions in one answer at most.
const POSITIONS_MAX: usize = 65_536;
/// Bytes of the positions in one answer as JSON at most.
const POSITIONS_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a position in an answer at most, its texts aside.
const POSITION_JSON_MAX: u64 = 80;

/// Every group on every queue where it has a cursor, by group and queue.
pub(crate) fn groups(shared: &Arc<Shared>, tenant: Tenant) -> Result<Vec<GroupSummary>, CallError> {
    let figured = sampled::all(shared, tenant)?;
    let now = shared.clock.now();
    let mut rows = Vec::new();
    for queue in &figured {
        let state = shared.state.read();
        let Some(row) = queue.target.queue(&state) else { continue };
        for group in row.groups().filter(|group| group.cursor_count > 0) {
            // A walk that is some time ago may not have met it.
            let met = &queue.figures.groups;
            let found = met.binary_search_by_key(&group.number, |figures| figures.number);
            let figures = found.ok().and_then(|at| met.get(at));
            let oldest = figures.and_then(|figures| figures.oldest);
            rows.push(GroupSummary {
                group: group.name.clone(),
                queue: queue.target.name.clone(),
                cursors: group.cursor_count,
                with_lag: figures.map_or(0, |figures| figures.with_lag),
                lag: figures.map_or(0, |figures| figures.lag),
                lag_seconds: oldest.map_or(0, |oldest| seconds_since(oldest, now)),
                consumed: figures.map_or(0, |figures| figures.consumed),
                subscription: subscription(group),
            });
        }
    }
    rows.sort_by(|a, b| (&a.group, &a.queue).cmp(&(&b.group, &b.queue)));
    Ok(rows)
}

fn subscription(group: &Group) -> Option<SubscriptionView> {
    let stored = group.subscription.as_ref()?;
    Some(SubscriptionView {
        mode: stored.mode,
        at: stored.subscribe_at,
        registered: stored.registered,
        conflation: stored.conflation,
    })
}

/// The group's number on a queue and whether it conflates there, if it has a cursor.
fn on_queue(shared: &Shared, target: &Target, group: &str) -> Option<(GroupNumber, bool)> {
    let state = shared.state.read();
    let group = target.queue(&state)?.group(group).filter(|group| group.cursor_count > 0)?;
    Some((group.number, subscription(group).is_some_and(|stored| stored.conflation)))
}

/// Something of which the time is wanted: the longest backlogs are looked up first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Unknown {
    lag: u64,
    id: PartitionId,
    wanted: Offset,
    /// Where the answer goes.
    row: usize,
}

/// A group's cursors, queue by queue.
pub(crate) fn group(
    shared: &Shared,
    tenant: Tenant,
    group: &str,
    cursors_max: usize,
) -> Result<Vec<GroupOnQueue>, CallError> {
    let now = shared.clock.now();
    let (mut queues, mut lookups, mut room) = (Vec::new(), LOOKUPS_MAX, cursors_max);
    let mut bytes = 0;
    for target in walk::queues(shared, tenant) {
        let Some((number, conflation)) = on_queue(shared, &target, group) else { continue };
        let mut partitions = Vec::new();
        let mut unknown = BinaryHeap::new();
        walk::all(shared, &target, |at| {
            if partitions.len() < room && bytes < GROUP_BYTES_MAX {
                bytes += GROUP_PARTITION_JSON_MAX + escaped_len(at.name());
                let row = partitions.len();
                partitions.extend(group_partition(at, number, now, row, &mut unknown));
            }
        });
        while let Some(Unknown { id, wanted, row, .. }) = unknown.pop()
            && let Some(left) = lookups.checked_sub(1)
        {
            lookups = left;
            let found = ask(shared, target.route(), id, wanted)?;
            if let Some((found, row)) = found.zip(partitions.get_mut(row)) {
                row.lag_seconds = seconds_since(found, now);
            }
        }
        room -= partitions.len();
        if !partitions.is_empty() {
            queues.push(GroupOnQueue { queue: target.name.clone(), conflation, partitions });
        }
    }
    Ok(queues)
}

fn group_partition(
    at: At<'_>,
    group: GroupNumber,
    now: Micros,
    row: usize,
    unknown: &mut BinaryHeap<Unknown>,
) -> Option<GroupPartition> {
    let cursor = at.state.cursor(at.id, group)?;
    let (lag, wanted) = left(at.row, cursor.committed);
    let known = known_time(at.row, wanted);
    if lag > 0 && known.is_none() {
        unknown.push(Unknown { lag, id: at.id, wanted, row });
    }
    let oldest = (lag > 0).then(|| known.unwrap_or(at.row.last_created));
    Some(GroupPartition {
        partition: at.name().to_owned(),
        lease: cursor.live_lease(now).map(|lease| lease.worker),
        consumed: cursor.consumed,
        lag,
        lag_seconds: oldest.map_or(0, |oldest| seconds_since(oldest, now)),
    })
}

/// A cursor that may lag; ordered by the time that its oldest message is not younger than.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    at_most: Micros,
    queue: usize,
    id: PartitionId,
    group: Arc<str>,
    wanted: Offset,
    is_known: bool,
    lag: u64,
    lease: Option<Uuid>,
    name: String,
    uuid: Uuid,
}

/// Cursors whose oldest unconsumed message is older than `seconds_min`, oldest first.
///
/// Of more cursors than can be looked up, those are looked at whose partitions were not written for longest.
pub(crate) fn lagging(
    shared: &Shared,
    tenant: Tenant,
    seconds_min: i64,
) -> Result<Vec<LaggingCursor>, CallError> {
    let now = shared.clock.now();
    let before = now.plus_seconds(seconds_min.saturating_neg());
    let targets = walk::queues(shared, tenant);
    let mut candidates: BinaryHeap<Candidate> = BinaryHeap::new();
    for (queue, target) in targets.iter().enumerate() {
        walk::all(shared, target, |at| {
            // Nothing in it is older than its first message.
            let first = known_time(at.row, at.row.log_start());
            if first.is_some_and(|first| first < before) {
                add_candidates(at, queue, now, &mut candidates);
            }
        });
    }
    let mut rows = Vec::new();
    for candidate in candidates.into_sorted_vec() {
        let Some(target) = targets.get(candidate.queue) else { continue };
        let oldest = if candidate.is_known {
            candidate.at_most
        } else {
            let found = ask(shared, target.route(), candidate.id, candidate.wanted)?;
            found.unwrap_or(candidate.at_most)
        };
        if oldest < before {
            rows.push(LaggingCursor {
                group: candidate.group,
                queue: target.name.clone(),
                partition: candidate.name,
                partition_uuid: candidate.uuid,
                lease: candidate.lease,
                lag: candidate.lag,
                oldest,
                lag_seconds: seconds_since(oldest, now),
            });
        }
    }
    rows.sort_by(|a, b| {
        (a.oldest, &a.group, &a.queue, &a.partition).cmp(&(
            b.oldest,
            &b.group,
            &b.queue,
            &b.partition,
        ))
    });
    rows.truncate(LAGGING_MAX);
    Ok(rows)
}

fn add_candidates(at: At<'_>, queue: usize, now: Micros, candidates: &mut BinaryHeap<Candidate>) {
    for group in at.queue.groups() {
        let Some(cursor) = at.state.cursor(at.id, group.number) else { continue };
        let (lag, wanted) = left(at.row, cursor.committed);
        if lag == 0 {
            continue;
        }
        let known = known_time(at.row, wanted);
        candidates.push(Candidate {
            at_most: known.unwrap_or(at.row.last_created),
            queue,
            id: at.id,
            group: group.name.clone(),
            wanted,
            is_known: known.is_some(),
            lag,
            lease: cursor.live_lease(now).map(|lease| lease.worker),
            name: at.name().to_owned(),
            uuid: at.row.uuid,
        });
        if candidates.len() > LOOKUPS_MAX {
            candidates.pop();
        }
    }
}

/// Where a group reads next in these partitions, one answer per question in order.
///
/// # Errors
/// A refusal when that is more than an answer holds.
pub(crate) fn positions_in(
    shared: &Shared,
    tenant: Tenant,
    group: &str,
    partitions: Vec<(String, String)>,
) -> Result<Vec<Position>, CallError> {
    const QUESTIONS_PER_HOLD: usize = 512;
    let mut positions = Vec::with_capacity(partitions.len());
    let mut bytes = 0;
    let mut questions = partitions.into_iter().peekable();
    while questions.peek().is_some() {
        let state = shared.state.read();
        for (queue, partition) in questions.by_ref().take(QUESTIONS_PER_HOLD) {
            let cursor = state.queue(tenant, &queue).and_then(|row| {
                let id = state.partition_named(row, &partition)?;
                state.cursor(id, row.group(group)?.number)
            });
            let next = cursor.map(|cursor| (cursor.wanted().0, cursor.metadata().to_owned()));
            let position = Position { queue, partition, next };
            bytes += json_len(&position);
            if bytes > POSITIONS_BYTES_MAX {
                let asked = positions.len();
                let text = format!(
                    "entries: the answer would be larger than {POSITIONS_BYTES_MAX} bytes: ask for fewer than {asked} entries at a time"
                );
                return Err(Refusal::BadRequest(text).into());
            }
            positions.push(position);
        }
    }
    Ok(positions)
}

/// Bytes of a position in an answer at most.
fn json_len(position: &Position) -> u64 {
    let note = position.next.as_ref().map_or(0, |(_, note)| escaped_len(note));
    POSITION_JSON_MAX + escaped_len(&position.queue) + escaped_len(&position.partition) + note
}

/// Every position of a group.
///
/// # Errors
/// A refusal when it has more than an answer holds.
pub(crate) fn positions(
    shared: &Shared,
    tenant: Tenant,
    group: &str,
) -> Result<Vec<Position>, CallError> {
    let (mut positions, mut bytes) = (Vec::new(), 0);
    for target in walk::queues(shared, tenant) {
        let Some((number, _)) = on_queue(shared, &target, group) else { continue };
        walk::all(shared, &target, |at| {
            let cursor = at.state.cursor(at.id, number);
            if let Some(cursor) =
                cursor.filter(|_| bytes <= POSITIONS_BYTES_MAX && positions.len() <= POSITIONS_MAX)
            {
                let position = Position {
                    queue: target.name.to_string(),
                    partition: at.name().to_owned(),
                    next: Some((cursor.wanted().0, cursor.metadata().to_owned())),
                };
                bytes += json_len(&position);
                positions.push(position);
            }
        });
        if positions.len() > POSITIONS_MAX || bytes > POSITIONS_BYTES_MAX {
            let text = format!(
                "group {group} has more than {POSITIONS_MAX} positions or {POSITIONS_BYTES_MAX} bytes of them: name the wanted ones in entries"
            );
            return Err(Refusal::BadRequest(text).into());
        }
    }
    Ok(positions)
}
