//! What the state alone says about a partition: whether anything of it may be due.

use queen_planner::overlay::Overlay;
use queen_planner::retention::{Cutoffs, Holds, RetentionTerms, holds, is_disused};
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, QueueId};
use queen_state::{Partition, Queue, State};

/// A partition that may have something to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Its log must be asked.
    Look(Look),
    /// Nobody uses it any more.
    Disused(PartitionId),
}

/// A question to the log of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub(super) id: PartitionId,
    pub(super) route: QueueId,
    pub(super) log_start: Offset,
    pub(super) txns_start: Offset,
    pub(super) next: Offset,
    pub(super) cutoffs: Cutoffs,
    /// What the groups have yet to do; only where completed messages may go.
    pub(super) holds: Option<Holds>,
    /// Whether messages may be due.
    pub(super) messages: bool,
    /// Whether hashes of messages that are gone may be due.
    pub(super) rows: bool,
}

/// Judges one partition by its row. `row_made` is when the append at its `txns_start` was made, if that is known.
pub(super) fn visit(
    state: &State,
    (queue, id, row): (&Queue, PartitionId, &Partition),
    (cutoffs, terms, now): (&Cutoffs, &RetentionTerms, Micros),
    row_made: Option<Micros>,
) -> Option<Visit> {
    let (log_start, txns_start, next) = (row.log_start(), row.txns_start(), row.next_offset());
    let oldest = oldest_at_least(row);
    let may_go =
        |cutoff: Option<Micros>| log_start < next && cutoff.is_some_and(|cutoff| oldest < cutoff);
    let holds = may_go(cutoffs.completed)
        .then(|| holds(state, &Overlay::default(), None, (queue, id)))
        .filter(|holds| holds.release(Offset(log_start.0 + 1), oldest));
    let messages = may_go(cutoffs.any) || holds.is_some();
    let rows = txns_start < log_start && row_made.is_none_or(|made| made < cutoffs.rows);
    if messages || rows {
        let route = queue_id(queue.tenant, &queue.name);
        let cutoffs = *cutoffs;
        return Some(Visit::Look(Look {
            id,
            route,
            log_start,
            txns_start,
            next,
            cutoffs,
            holds,
            messages,
            rows,
        }));
    }
    let cutoff = terms.cleanup_before(now)?;
    is_disused(state, (queue, id), row, cutoff).then_some(Visit::Disused(id))
}

/// No retained message of the partition is older.
fn oldest_at_least(row: &Partition) -> Micros {
    row.marks.as_deref().and_then(|marks| marks.oldest).unwrap_or(row.created)
}
