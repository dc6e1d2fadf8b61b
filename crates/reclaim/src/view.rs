//! What a node's state says of partitions and logs, asked for a few at a time so that nobody waits for the lock long.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::RwLock;
use queen_record::hash::queue_id;
use queen_record::ids::{LogId, Offset, PartitionId};
use queen_record::layout::Layout;
use queen_state::{QueueNumber, State};

use crate::policy::Fate;
use crate::reclaimer::Partitions;

/// Partitions looked up, or queues walked, under one hold of the lock.
const PER_HOLD: usize = 256;

/// The state of a node and the layout of its logs.
pub struct StateView {
    state: Arc<RwLock<State>>,
    layout: Layout,
}

impl StateView {
    /// A view on this state.
    pub fn new(state: Arc<RwLock<State>>, layout: Layout) -> Self {
        Self { state, layout }
    }

    fn fate(&self, state: &State, id: PartitionId) -> Fate {
        let Some(row) = state.partition(id) else { return Fate::Gone };
        let Some(queue) = state.queue_by_number(row.queue) else { return Fate::Gone };
        let log = self.layout.log_of(queue_id(queue.tenant, &queue.name), Some(id));
        let from = Offset(row.marks.as_ref().map_or(0, |marks| marks.txns_start));
        Fate::Lives { log, from }
    }
}

impl Partitions for StateView {
    fn fates(&self, ids: &[PartitionId]) -> Vec<Fate> {
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(PER_HOLD) {
            let state = self.state.read();
            found.extend(ids.iter().map(|id| self.fate(&state, *id)));
        }
        found
    }

    fn in_use(&self, logs: &BTreeSet<LogId>) -> BTreeSet<LogId> {
        let mut used = BTreeSet::new();
        let highest = self.state.read().all_queues().map(|queue| queue.number.0).max();
        let last = highest.map_or(0, NonZeroU32::get);
        let mut next = 1;
        while next <= last {
            let state = self.state.read();
            for number in (next..=last).take(PER_HOLD).filter_map(NonZeroU32::new) {
                next = number.get() + 1;
                let number = QueueNumber(number);
                let Some(queue) = state.queue_by_number(number) else { continue };
                let same = |live: &queen_state::Queue| live.number == number;
                if state.queue(queue.tenant, &queue.name).is_some_and(same) {
                    let id = queue_id(queue.tenant, &queue.name);
                    used.extend(self.layout.logs_of(id).filter(|log| logs.contains(log)));
                }
            }
        }
        used
    }
}
