//! Moving a group's cursor by hand: seeks, and the positions of a transaction.

use queen_model::Effect;
use queen_record::ids::{Micros, Offset, PartitionId, QueueId};
use queen_state::State;

use super::part::Part;
use super::{Engine, EngineGroup, Start};
use crate::draft::{Draft, Route};

/// Where a cursor is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This offset is read next.
    Next(Offset),
    /// Behind the newest message.
    End,
}

impl Engine {
    /// Puts a group's cursor somewhere; a live lease there ends. The partition may be made by this same plan.
    ///
    /// Shape: a place below the oldest retained message is that message. `note` replaces the cursor's own when given.
    pub fn move_cursor(
        &mut self,
        state: &State,
        (partition, group): (PartitionId, EngineGroup),
        route: QueueId,
        (place, note): (Place, Option<String>),
        now: Micros,
    ) {
        let key = (partition, group);
        let row = state.partition(partition);
        let (start, last) = row.map_or((0, -1), |row| (row.log_start().0, row.last_offset));
        let committed = match place {
            Place::Next(offset) => i64::try_from(offset.0.max(start)).unwrap_or(i64::MAX) - 1,
            Place::End => last,
        };
        if self.load_part(state, partition, group, Start::All).is_none() {
            self.parts.insert(key, Part::at(route, -1));
            self.state_of_mut(group).parts += 1;
        }
        self.end_lease(key);
        self.release_hold(key);
        if let Some(part) = self.parts.get_mut(&key) {
            part.committed = committed;
            (part.seed_time, part.reserved) = (None, None);
            (part.retries, part.attempt_offset, part.attempts) = (0, None, 0);
            part.metadata = note.unwrap_or_else(|| std::mem::take(&mut part.metadata));
            if part.created == Micros(0) {
                part.created = now;
            }
        }
        self.mark_dirty(key);
        self.offer_rest(state, key);
    }

    /// Forgets a group's cursor: its next contact is a first one.
    pub fn forget_cursor(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (partition, group): (PartitionId, EngineGroup),
        plan: u64,
    ) {
        let key = (partition, group);
        let Some(row) = state.partition(partition) else { return };
        let Some(queue) = state.queue_by_number(row.queue) else { return };
        let name = self.state_of(group).name.clone();
        self.end_lease(key);
        self.release_hold(key);
        let planned = self.parts.remove(&key).inspect(|_| self.state_of_mut(group).parts -= 1);
        let stored =
            queue.group(&name).is_some_and(|known| state.cursor(partition, known.number).is_some())
                && !self.fresh.contains_key(&group)
                && !self.forgotten.contains_key(&key);
        let in_flight = planned.is_some_and(|part| part.rows_in_flight > 0);
        self.disown_rows(|of| *of == key);
        if stored || in_flight {
            let route = Route::Partition(
                queen_record::hash::queue_id(queue.tenant, &queue.name),
                partition,
            );
            let effect = Effect::CursorDelete { id: partition, group: name.to_string() };
            draft.add(effect, route, 60 + name.len());
            self.forgotten.insert(key, plan);
        }
        self.offer_rest(state, key);
    }
}
