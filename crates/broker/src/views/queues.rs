//! The queue list and a queue's detail.

use queen_record::hash::queue_id;
use queen_record::ids::{Micros, PartitionId, Tenant};
use queen_state::{Partition, Queue, State};

use super::PARTITIONS_PER_HOLD;
use crate::api::{Counts, PartitionSummary, QueueDetail, QueueSummary};
use crate::core::Shared;

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
