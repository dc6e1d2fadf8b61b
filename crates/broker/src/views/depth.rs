//! How much is left: of one queue in full, and the partitions with the most over all queues.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};

use super::figures::left;
use super::oldest::{ask, known_time, seconds_since};
use super::sampled::EXACT_PARTITIONS;
use super::walk::{self, At, Target, Walked};
use crate::api::{
    Backlog, BusyPartition, BusyPartitions, CallError, QUEUE_MODE, QueueDepth, escaped_len,
};
use crate::core::Shared;

/// Bytes of a queue's partitions in an answer as JSON at most.
const BYTES_MAX: u64 = 16 << 20;
/// Bytes of a partition in an answer at most, its name aside.
const PARTITION_JSON_MAX: u64 = 128;

/// The backlog of every partition of a queue.
pub(crate) fn depth(
    shared: &Shared,
    tenant: Tenant,
    queue: &str,
    group: Option<&str>,
    partitions_max: usize,
) -> Option<QueueDepth> {
    let target = Target::find(shared, tenant, queue)?;
    let now = shared.clock.now();
    let mut depth = QueueDepth {
        total: Backlog::default(),
        partitions_pending: 0,
        partitions_ready: 0,
        conflation: conflates(shared, &target, group),
        partitions: Vec::new(),
        truncated: false,
    };
    let mut left = BYTES_MAX;
    walk::all(shared, &target, |at| {
        let backlog = match group {
            Some(group) => of_group(at, group, now),
            None => of_slowest(at, now),
        };
        depth.total.pending += backlog.pending;
        depth.total.processing += backlog.processing;
        depth.partitions_pending += u64::from(backlog.pending > 0);
        depth.partitions_ready += u64::from(backlog.ready() > 0);
        let bytes = PARTITION_JSON_MAX + escaped_len(at.name());
        if depth.partitions.len() < partitions_max && bytes <= left {
            left -= bytes;
            depth.partitions.push((at.name().to_owned(), backlog));
        } else {
            depth.truncated = true;
        }
    });
    depth.partitions.sort_by(|(a, _), (b, _)| a.cmp(b));
    Some(depth)
}

fn conflates(shared: &Shared, target: &Target, group: Option<&str>) -> bool {
    let state = shared.state.read();
    let group = target.queue(&state).zip(group).and_then(|(queue, group)| queue.group(group));
    group.and_then(|group| group.subscription.as_ref()).is_some_and(|of| of.conflation)
}

/// A group without a cursor has the whole retained partition before it.
fn of_group(at: At<'_>, group: &str, now: Micros) -> Backlog {
    let group = at.queue.group(group);
    let cursor = group.and_then(|group| at.state.cursor(at.id, group.number));
    let committed = cursor.map_or(-1, |cursor| cursor.committed);
    let lease = cursor.and_then(|cursor| cursor.live_lease(now));
    let leased = lease.map_or(0, |lease| leased(lease.batch_end, committed));
    let (pending, _) = left(at.row, committed);
    Backlog { pending, processing: leased.min(pending) }
}

fn leased(batch_end: Offset, committed: i64) -> u64 {
    let end = i64::try_from(batch_end.0).unwrap_or(i64::MAX);
    u64::try_from(end.saturating_sub(committed)).unwrap_or(0)
}

/// The named group that is furthest behind; queue mode when the queue has no named group.
fn of_slowest(at: At<'_>, now: Micros) -> Backlog {
    let (mut named, mut unnamed): (Option<i64>, i64) = (None, -1);
    let mut processing = 0;
    for group in at.queue.groups() {
        let cursor = at.state.cursor(at.id, group.number);
        let committed = cursor.map_or(-1, |cursor| cursor.committed);
        if let Some(lease) = cursor.and_then(|cursor| cursor.live_lease(now)) {
            processing += leased(lease.batch_end, committed);
        }
        if &*group.name == QUEUE_MODE {
            unnamed = committed;
        } else {
            named = Some(named.map_or(committed, |least| least.min(committed)));
        }
    }
    let (pending, _) = left(at.row, named.unwrap_or(unnamed));
    Backlog { pending, processing: processing.min(pending) }
}

/// One of the busiest so far: ordered by what is ready, then by what is leased, then the ones made later first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Busy {
    ready: u64,
    processing: u64,
    /// Position of its queue.
    queue: Reverse<usize>,
    id: Reverse<PartitionId>,
    /// The oldest message that is not consumed, and its time if the state has it.
    oldest: Option<(Offset, Option<Micros>)>,
    last_created: Micros,
    name: String,
    uuid: Uuid,
}

/// The partitions with the most pending messages among the first [`EXACT_PARTITIONS`].
pub(crate) fn busy(
    shared: &Shared,
    tenant: Tenant,
    queue: Option<&str>,
    limit: usize,
) -> Result<BusyPartitions, CallError> {
    let targets: Vec<Target> = match queue {
        Some(queue) => Target::find(shared, tenant, queue).into_iter().collect(),
        None => walk::queues(shared, tenant),
    };
    let now = shared.clock.now();
    let mut answer = BusyPartitions::default();
    let mut top: BTreeSet<Busy> = BTreeSet::new();
    for (at, target) in targets.iter().enumerate() {
        let mut from = PartitionId(0);
        loop {
            let room = EXACT_PARTITIONS.saturating_sub(answer.walked);
            let most = usize::try_from(room).unwrap_or(usize::MAX);
            let mut visit = |partition: At<'_>| {
                answer.walked += 1;
                top.insert(busy_of(partition, at, now));
                if top.len() > limit {
                    top.pop_first();
                }
                ControlFlow::Continue(())
            };
            match walk::hold(shared, target, from, most, &mut visit) {
                Walked::Ended => break,
                _ if room == 0 => {
                    answer.truncated = true;
                    break;
                }
                Walked::Paused(next) | Walked::Stopped(next) => from = next,
            }
        }
    }
    for busy in top.into_iter().rev() {
        let Some(target) = targets.get(busy.queue.0) else { continue };
        answer.rows.push(shown(shared, target, busy, now)?);
    }
    Ok(answer)
}

fn busy_of(at: At<'_>, queue: usize, now: Micros) -> Busy {
    let counts = at.state.counts(at.queue, at.id, at.row, now);
    let oldest = (counts.pending > 0).then(|| {
        let wanted = Offset(at.row.next_offset().0 - counts.pending);
        (wanted, known_time(at.row, wanted))
    });
    Busy {
        ready: counts.pending - counts.processing,
        processing: counts.processing,
        queue: Reverse(queue),
        id: Reverse(at.id),
        oldest,
        last_created: at.row.last_created,
        name: at.name().to_owned(),
        uuid: at.row.uuid,
    }
}

fn shown(
    shared: &Shared,
    target: &Target,
    busy: Busy,
    now: Micros,
) -> Result<BusyPartition, CallError> {
    let oldest = match busy.oldest {
        None => None,
        Some((_, Some(known))) => Some(known),
        Some((wanted, None)) => {
            // It was removed since: then it is at least not older than this.
            let found = ask(shared, target.route(), busy.id.0, wanted)?;
            Some(found.unwrap_or(busy.last_created))
        }
    };
    Ok(BusyPartition {
        queue: Arc::clone(&target.name),
        partition: busy.name,
        uuid: busy.uuid,
        backlog: Backlog { pending: busy.ready + busy.processing, processing: busy.processing },
        lag_seconds: oldest.map(|oldest| seconds_since(oldest, now)),
    })
}
