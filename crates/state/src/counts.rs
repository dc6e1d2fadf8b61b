//! Message counts of one partition, as listings show them.

use queen_record::ids::{Micros, PartitionId};

use crate::partition::Partition;
use crate::queue::Queue;
use crate::tables::State;

/// Counts of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionCounts {
    /// Retained messages.
    pub total: u64,
    /// Not consumed by the slowest named group; by queue mode when no named group has a cursor here.
    pub pending: u64,
    /// Under a live lease, at most `pending`.
    pub processing: u64,
    /// Messages consumed by all groups.
    pub consumed: u64,
}

/// The group of a consumer that names none.
const QUEUE_MODE: &str = "__QUEUE_MODE__";

impl State {
    /// Counts of one partition at `now`.
    ///
    /// Source: the operator's page on what the numbers mean.
    pub fn counts(
        &self,
        queue: &Queue,
        id: PartitionId,
        row: &Partition,
        now: Micros,
    ) -> PartitionCounts {
        let (mut named, mut unnamed): (Option<i64>, Option<i64>) = (None, None);
        let (mut leased, mut consumed) = (0i64, 0);
        for group in queue.groups() {
            let Some(cursor) = self.cursor(id, group.number) else { continue };
            consumed += cursor.consumed;
            if let Some(lease) = cursor.live_lease(now) {
                let end = i64::try_from(lease.batch_end.0).unwrap_or(i64::MAX);
                leased += (end - cursor.committed).max(0);
            }
            if &*group.name == QUEUE_MODE {
                unnamed = Some(cursor.committed);
            } else {
                named = Some(named.map_or(cursor.committed, |least| least.min(cursor.committed)));
            }
        }
        let start = i64::try_from(row.log_start().0).unwrap_or(i64::MAX);
        let floor = named.or(unnamed).unwrap_or(-1).max(start - 1);
        let pending = u64::try_from(row.last_offset - floor).unwrap_or(0);
        let processing = u64::try_from(leased).unwrap_or(0).min(pending);
        PartitionCounts { total: row.retained_count(), pending, processing, consumed }
    }
}
