//! The queue list and a queue's detail.

use std::sync::Arc;

use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Tenant};
use queen_state::Queue;

use super::walk::{self, At, Target};
use super::{figures, oldest, sampled};
use crate::api::{CallError, Counts, PartitionSummary, QueueDetail, QueueSummary, escaped_len};
use crate::core::Shared;

/// Bytes of a queue's partitions in an answer as JSON at most.
const BYTES_MAX: u64 = 16 << 20;
/// Bytes of a partition in an answer at most, its name aside.
const PARTITION_JSON_MAX: u64 = 800;

/// All queues of a tenant, newest first.
pub(crate) fn queues(
    shared: &Arc<Shared>,
    tenant: Tenant,
    counts: bool,
) -> Result<Vec<QueueSummary>, CallError> {
    let mut rows: Vec<QueueSummary> = {
        let state = shared.state.read();
        state.queues(tenant).map(summary).collect()
    };
    if counts {
        let figured = sampled::all(shared, tenant)?;
        for row in &mut rows {
            let found = figured.binary_search_by(|queue| (*queue.target.name).cmp(&*row.name));
            let figured = found.ok().and_then(|at| figured.get(at));
            row.counts = Some(figured.map(|queue| queue.figures.counts).unwrap_or_default());
            row.log_files = log_files(shared, tenant, &row.name);
        }
    }
    rows.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.name.cmp(&b.name)));
    Ok(rows)
}

fn summary(queue: &Queue) -> QueueSummary {
    QueueSummary {
        id: queue.id,
        name: queue.name.to_string(),
        partitions: queue.partition_count(),
        options: queue.options.clone(),
        created: queue.created,
        counts: None,
        retained_bytes: queue.retained_bytes,
        log_files: 0,
    }
}

/// Files of the logs that hold this queue alone; a queue that never had a message may have none.
fn log_files(shared: &Shared, tenant: Tenant, name: &str) -> u64 {
    let qlog = shared.reader.qlog();
    qlog.file_count(qlog.layout().logs_of(queue_id(tenant, name)))
}

/// One queue with its partitions, sorted by name.
pub(crate) fn queue(
    shared: &Shared,
    tenant: Tenant,
    name: &str,
    partitions_max: usize,
) -> Result<Option<QueueDetail>, CallError> {
    let Some(target) = Target::find(shared, tenant, name) else { return Ok(None) };
    let now = shared.clock.now();
    let mut partitions: Vec<PartitionSummary> = Vec::new();
    let mut left = BYTES_MAX;
    let mut gathering = figures::Gathering::new(now);
    walk::all(shared, &target, |at| {
        gathering.visit(at);
        let bytes = PARTITION_JSON_MAX + escaped_len(at.name());
        if partitions.len() < partitions_max && bytes <= left {
            left -= bytes;
            partitions.push(partition_summary(at, now));
        }
    });
    let Some(mut row) = target.queue(&shared.state.read()).map(summary) else { return Ok(None) };
    partitions.sort_by(|a, b| a.name.cmp(&b.name));
    row.counts = Some(gathering.finish(shared, &target, &mut 0)?.counts);
    row.log_files = log_files(shared, tenant, name);
    let truncated = row.partitions > partitions.len() as u64;
    Ok(Some(QueueDetail { summary: row, partitions, truncated }))
}

fn partition_summary(at: At<'_>, now: Micros) -> PartitionSummary {
    let At { state, queue, id, row } = at;
    let counted = state.counts(queue, id, row, now);
    let dead_letter = queue.dead_letters_at(id, i64::MIN..=i64::MAX).count() as u64;
    let counts = Counts {
        total: counted.total,
        pending: counted.pending,
        processing: counted.processing,
        completed: counted.total.saturating_sub(counted.pending + dead_letter),
        dead_letter,
    };
    let oldest = (counts.total > 0).then(|| oldest::known_time(row, row.log_start())).flatten();
    PartitionSummary {
        uuid: row.uuid,
        id,
        name: at.name().to_owned(),
        created: row.created,
        counts,
        total_consumed: counted.consumed,
        newest: (row.last_offset >= 0).then_some(row.last_created),
        oldest,
        retained_bytes: row.retained_bytes,
    }
}
