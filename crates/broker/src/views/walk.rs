//! Walks over a queue's partitions that let the writer in between.

use std::ops::ControlFlow;
use std::sync::Arc;

use queen_record::hash::queue_id;
use queen_record::ids::{PartitionId, QueueId, Tenant};
use queen_state::{Partition, Queue, QueueNumber, State};

use crate::core::Shared;

/// Rows looked at under one hold of the state's lock, cursors included: a fraction of a millisecond.
const ROWS_PER_HOLD: usize = 2048;
/// Partitions looked at under one hold however many groups there are.
const PARTITIONS_PER_HOLD_MIN: usize = 64;

/// A queue to walk. One of the same name that was made meanwhile is another one.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) tenant: Tenant,
    pub(crate) name: Arc<str>,
    number: QueueNumber,
}

impl Target {
    pub(crate) fn of(queue: &Queue) -> Self {
        Self { tenant: queue.tenant, name: queue.name.clone(), number: queue.number }
    }

    /// The queue of this name, as it is now.
    pub(crate) fn find(shared: &Shared, tenant: Tenant, name: &str) -> Option<Self> {
        shared.state.read().queue(tenant, name).map(Self::of)
    }

    /// The queue, unless it was deleted.
    pub(crate) fn queue<'s>(&self, state: &'s State) -> Option<&'s Queue> {
        state.queue(self.tenant, &self.name).filter(|queue| queue.number == self.number)
    }

    /// Routes to its logs.
    pub(crate) fn route(&self) -> QueueId {
        queue_id(self.tenant, &self.name)
    }
}

/// One partition under the lock.
#[derive(Clone, Copy)]
pub(crate) struct At<'s> {
    pub(crate) state: &'s State,
    pub(crate) queue: &'s Queue,
    pub(crate) id: PartitionId,
    pub(crate) row: &'s Partition,
}

impl<'s> At<'s> {
    pub(crate) fn name(&self) -> &'s str {
        self.state.partition_name(self.row)
    }
}

/// Where a walk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    /// At the end, or the queue is gone.
    Ended,
    /// The hold is over; the walk goes on at this partition.
    Paused(PartitionId),
    /// The visitor wants no more; this partition comes next.
    Stopped(PartitionId),
}

/// Visits partitions from `from` on under one hold of the lock, at most `max`.
pub(crate) fn hold(
    shared: &Shared,
    target: &Target,
    from: PartitionId,
    max: usize,
    visit: &mut impl FnMut(At<'_>) -> ControlFlow<()>,
) -> Walked {
    let state = shared.state.read();
    let Some(queue) = target.queue(&state) else { return Walked::Ended };
    let rows = 1 + queue.groups().count();
    let most = (ROWS_PER_HOLD / rows).max(PARTITIONS_PER_HOLD_MIN).min(max);
    let mut ids = queue.partitions_from(from);
    let mut stopped = false;
    for id in ids.by_ref().take(most) {
        let Some(row) = state.partition(id) else { continue };
        stopped = visit(At { state: &state, queue, id, row }).is_break();
        if stopped {
            break;
        }
    }
    ids.next().map_or(Walked::Ended, if stopped { Walked::Stopped } else { Walked::Paused })
}

/// Visits all partitions in the order they were made, hold by hold.
pub(crate) fn all(shared: &Shared, target: &Target, mut visit: impl FnMut(At<'_>)) {
    let mut from = PartitionId(0);
    let mut visit = |at: At<'_>| {
        visit(at);
        ControlFlow::Continue(())
    };
    while let Walked::Paused(next) = hold(shared, target, from, usize::MAX, &mut visit) {
        from = next;
    }
}

/// A tenant's queues as they are now.
pub(crate) fn queues(shared: &Shared, tenant: Tenant) -> Vec<Target> {
    shared.state.read().queues(tenant).map(Target::of).collect()
}
