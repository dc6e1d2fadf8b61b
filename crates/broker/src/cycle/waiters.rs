//! Parked pops: who waits for which group, oldest first. A parked pop costs its own bytes and nothing else.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use queen_planner::consume::{Engine, EngineGroup};
use queen_record::ids::PartitionId;

use super::Table;

/// Where a pop waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// For any partition of the group's queue.
    Group(EngineGroup),
    /// For one partition, by name: it need not exist yet.
    Partition(EngineGroup, Arc<str>),
}

/// All parked pops. Tokens ascend with arrival.
#[derive(Default)]
pub(super) struct Waiters {
    places: Table<Place, BTreeSet<u64>>,
    count: usize,
    /// What became ready and was not offered to a waiter yet.
    woken: VecDeque<(EngineGroup, PartitionId)>,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn park(&mut self, place: Place, token: u64) {
        if self.places.entry(place).or_default().insert(token) {
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, place: &Place, token: u64) {
        if let Some(tokens) = self.places.get_mut(place) {
            if tokens.remove(&token) {
                self.count -= 1;
            }
            if tokens.is_empty() {
                self.places.remove(place);
            }
        }
    }

    /// The pop that has waited longest at a place.
    pub(super) fn first(&self, place: &Place) -> Option<u64> {
        self.places.get(place)?.first().copied()
    }

    /// Takes over what the engine says became ready.
    pub(super) fn wake(&mut self, engine: &mut Engine) {
        self.woken.extend(engine.take_woken());
        if self.count == 0 {
            self.woken.clear();
        }
    }

    pub(super) fn next_woken(&mut self) -> Option<(EngineGroup, PartitionId)> {
        self.woken.pop_front()
    }

    /// Whether something became ready while somebody waits.
    pub(super) fn any_woken(&self, engine: &Engine) -> bool {
        self.count > 0 && (!self.woken.is_empty() || engine.has_woken())
    }
}
