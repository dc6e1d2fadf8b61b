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

#[cfg(test)]
mod tests {
    use queen_model::{Append, AppendPayload, CursorSet, Effect, Entry, Lease, PartitionCreate};
    use queen_record::ids::{Offset, Tenant, TxHash, Uuid};

    use super::*;
    use crate::partition::Marks;

    const ID: PartitionId = PartitionId(1);

    fn cursor(group: &str, committed: i64, lease: Option<u64>) -> Effect {
        let lease = lease.map(|batch_end| Lease {
            worker: Uuid([1; 16]),
            batch_end: Offset(batch_end),
            expires: Micros(100),
            acquired: Micros(1),
            conflated: false,
        });
        Effect::CursorSet(CursorSet {
            id: ID,
            group: group.to_owned(),
            committed,
            lease,
            retries: 0,
            attempt_offset: None,
            attempts: 0,
            consumed: 1,
            created: Micros(1),
            metadata: String::new(),
            released: None,
        })
    }

    /// A partition with offsets 0 to 9 and these cursors; messages below `log_start` are removed.
    fn check(cursors: Vec<Effect>, log_start: u64, expected: (u64, u64, u64)) {
        let (tenant, queue) = (Tenant::DEFAULT, "q".to_owned());
        let options = queen_model::QueueOptions::configured();
        let mut effects = vec![
            Effect::QueueUpsert {
                tenant,
                queue: queue.clone(),
                id: Uuid([2; 16]),
                options,
                created: Micros(1),
            },
            Effect::PartitionCreate(PartitionCreate {
                id: ID,
                uuid: Uuid([3; 16]),
                tenant,
                queue,
                partition: "p".to_owned(),
                created: Micros(1),
            }),
            Effect::Append(Append {
                id: ID,
                bucket: 0,
                base: Offset(0),
                created: Micros(1),
                hashes: vec![TxHash([4; 16]); 10],
                payload: AppendPayload::Elsewhere { retained: 9 },
            }),
        ];
        effects.extend(cursors);
        let mut state = State::new();
        let entry = Entry {
            now: Micros(1),
            pid_base: ID,
            kv_version_base: 1,
            commands: Vec::new(),
            effects,
        };
        state.apply(state.applied().next(), 1, &entry).unwrap();
        if log_start > 0 {
            let marks = Marks { log_start, ..Marks::default() };
            state.partitions.get_mut(ID).unwrap().marks = Some(Box::new(marks));
        }
        let (queue, row) = (state.queue(tenant, "q").unwrap(), state.partition(ID).unwrap());
        let counts = state.counts(queue, ID, row, Micros(50));
        assert_eq!((counts.total, counts.pending, counts.processing), expected);
        let consumed = queue.groups().count() as u64;
        assert_eq!(counts.consumed, consumed, "one for each cursor");
        let later = state.counts(queue, ID, row, Micros(101));
        assert_eq!((later.pending, later.processing), (expected.1, 0), "the lease has ended");
    }

    #[test]
    fn the_slowest_named_group_counts_or_else_queue_mode() {
        check(Vec::new(), 0, (10, 10, 0));
        check(vec![cursor(QUEUE_MODE, 3, None)], 0, (10, 6, 0));
        check(vec![cursor(QUEUE_MODE, 3, None), cursor("g", 8, None)], 0, (10, 1, 0));
        check(vec![cursor("h", 2, Some(4)), cursor("g", 8, None)], 0, (10, 7, 2));
        check(vec![cursor("h", 9, None)], 0, (10, 0, 0));
    }

    #[test]
    fn what_retention_removed_is_neither_there_nor_pending() {
        check(Vec::new(), 4, (6, 6, 0));
        check(vec![cursor("g", 1, None)], 4, (6, 6, 0));
        check(vec![cursor("g", 6, Some(8))], 4, (6, 3, 2));
        check(vec![cursor("g", -1, Some(9))], 8, (2, 2, 2));
        check(vec![cursor("g", 3, None)], 10, (0, 0, 0));
    }
}
