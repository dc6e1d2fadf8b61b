//! What retention must know about cursors: those that are planned and not applied are here only.

use std::collections::BTreeSet;
use std::sync::Arc;

use queen_record::ids::{Micros, Offset, PartitionId};
use queen_state::{Partition, Queue, State};

use super::part::Part;
use super::{Engine, EngineGroup, QUEUE_MODE};
use crate::overlay::{Overlay, Subscription};
use crate::retention::Holds;

impl Engine {
    /// Adds what every group of a partition has yet to do.
    pub(crate) fn add_holds(
        &self,
        state: &State,
        overlay: &Overlay,
        (queue, id): (&Queue, PartitionId),
        holds: &mut Holds,
    ) {
        let Some(row) = state.partition(id) else { return };
        let planned = self.groups_of(queue).map(|group| self.state_of(group).name.clone());
        let applied = queue.groups().map(|group| group.name.clone());
        let names: BTreeSet<Arc<str>> = planned.chain(applied).collect();
        for name in names {
            let group = self.index.get(&(queue.tenant, queue.name.clone(), name.clone())).copied();
            if let Some(part) = group.and_then(|group| self.parts.get(&(id, group))) {
                match part.seed_time {
                    Some(time) => holds.from(time),
                    None => holds.at(part.wanted()),
                }
                continue;
            }
            let gone = group.is_some_and(|group| {
                self.fresh.contains_key(&group) || self.forgotten.contains_key(&(id, group))
            });
            let stored = queue.group(&name).and_then(|group| state.cursor(id, group.number));
            if let Some(cursor) = stored.filter(|_| !gone) {
                holds.at(cursor.wanted());
                continue;
            }
            if &*name == QUEUE_MODE {
                continue;
            }
            match overlay.subscription(state, queue.tenant, &queue.name, &name) {
                Some(Subscription::All) => holds.at(row.log_start()),
                Some(Subscription::From(time)) => holds.from(time),
                None => {}
            }
        }
    }

    /// The first message that somebody holds under a live lease.
    pub(crate) fn lowest_leased(
        &self,
        (queue, id): (&Queue, PartitionId),
        now: Micros,
    ) -> Option<Offset> {
        let parts = self.groups_of(queue).filter_map(|group| self.parts.get(&(id, group)));
        parts.filter(|part| part.live_lease(now).is_some()).map(|part| part.lease_low).min()
    }

    /// Whether a group that has its place in this partition only may come back to it.
    pub(crate) fn may_be_asked_for(
        &self,
        state: &State,
        overlay: &Overlay,
        (queue, id): (&Queue, PartitionId),
        now: Micros,
    ) -> bool {
        let is_only_here = |name: &str| {
            name != QUEUE_MODE
                && overlay.subscription(state, queue.tenant, &queue.name, name).is_none()
        };
        let mut placed = queue.groups().filter(|group| state.cursor(id, group.number).is_some());
        placed.any(|group| is_only_here(&group.name)) && self.polls.may_be_asked_for(id, now)
    }

    /// Whether a group holds, or has changed, something of a partition that is not applied.
    pub(crate) fn is_touched(&self, queue: &Queue, id: PartitionId) -> bool {
        self.groups_of(queue).any(|group| {
            self.parts.contains_key(&(id, group)) || self.forgotten.contains_key(&(id, group))
        })
    }

    fn groups_of(&self, queue: &Queue) -> impl Iterator<Item = EngineGroup> + '_ {
        let groups = self.by_queue.get(&(queue.tenant, queue.name.clone()));
        groups.into_iter().flatten().copied()
    }

    /// Nothing is left of what a group has yet to do: its cursor goes to the end, or the partition would be looked at for
    /// ever.
    pub(super) fn pass_to_end(&mut self, key: (PartitionId, EngineGroup), row: &Partition) {
        let Some(part) = self.parts.get_mut(&key) else { return };
        pass_removed(part, row.next_offset());
        part.seed_time = None;
        self.mark_dirty(key);
    }
}

/// Messages below `start` are gone: the part goes on there. They count neither as consumed nor as tried.
pub(super) fn pass_removed(part: &mut Part, start: Offset) {
    let floor = i64::try_from(start.0).unwrap_or(i64::MAX) - 1;
    if part.committed < floor {
        part.committed = floor;
        (part.retries, part.attempt_offset, part.attempts) = (0, None, 0);
    }
}
