//! The working copy of one cursor row.

use std::sync::Arc;

use queen_model::{CursorSet, Lease, Released};
use queen_record::ids::{Micros, Offset, PartitionId, QueueId, TxHash};
use queen_state::{Partition, State};

use super::{Engine, EngineGroup, QUEUE_MODE, Start};
use crate::overlay::Subscription;

/// A group's place in one partition, as of everything planned.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) route: QueueId,
    pub(super) committed: i64,
    /// Where a part without stored row starts, when only the log can tell.
    pub(super) seed_time: Option<Micros>,
    pub(super) lease: Option<Lease>,
    /// First offset of the leased batch.
    pub(super) lease_low: Offset,
    /// Hashes of the leased batch from `lease_low` on; absent after a restart.
    pub(super) keys: Option<Arc<[TxHash]>>,
    pub(super) retries: u32,
    pub(super) attempt_offset: Option<Offset>,
    pub(super) attempts: u32,
    pub(super) consumed: u64,
    pub(super) created: Micros,
    pub(super) metadata: String,
    pub(super) released: Option<Released>,
    /// A claim is being read: the token of its pop.
    pub(super) reserved: Option<u64>,
    pub(super) dirty: bool,
    pub(super) rows_in_flight: u32,
}

impl Part {
    /// Whether somebody holds the partition for the group.
    pub(super) fn is_taken(&self) -> bool {
        self.lease.is_some() || self.reserved.is_some()
    }

    /// The lease, unless it is over.
    pub(super) fn live_lease(&self, now: Micros) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.expires >= now)
    }

    /// Whether the state's row says the same.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_taken() && !self.dirty && self.rows_in_flight == 0
    }

    pub(super) fn row(&self, id: PartitionId, group: &str) -> CursorSet {
        CursorSet {
            id,
            group: group.to_owned(),
            committed: self.committed,
            lease: self.lease,
            retries: self.retries,
            attempt_offset: self.attempt_offset,
            attempts: self.attempts,
            consumed: self.consumed,
            created: self.created,
            metadata: self.metadata.clone(),
            released: self.released,
        }
    }

    /// First offset that the group has not done.
    pub(super) fn wanted(&self) -> Offset {
        Offset(u64::try_from(self.committed + 1).unwrap_or(0))
    }
}

/// The committed offset of a group that begins before the oldest retained message.
fn before_start(row: &Partition) -> i64 {
    i64::try_from(row.log_start().0).unwrap_or(i64::MAX) - 1
}

/// Where a group without cursor starts: an offset, or a time that the log must resolve.
pub(super) fn seed(row: &Partition, start: Start) -> (i64, Option<Micros>) {
    match start {
        Start::Stored | Start::All => (before_start(row), None),
        Start::End => (row.last_offset, None),
        // Every message of a partition made at or after the instant is at or after it.
        Start::From(time) if row.created >= time => (before_start(row), None),
        Start::From(time) if row.last_created < time => (row.last_offset, None),
        Start::From(time) => (before_start(row), Some(time)),
    }
}

/// Whether a group without cursor could have something to read here.
pub(super) fn may_have_messages(
    row: &Partition,
    group: &str,
    subscription: Option<Subscription>,
) -> bool {
    let start = match subscription {
        _ if group == QUEUE_MODE => Start::All,
        Some(Subscription::From(time)) => Start::From(time),
        Some(Subscription::All) | None => Start::All,
    };
    seed(row, start).0 < row.last_offset
}

impl Engine {
    /// The part of a partition and group, made from the stored row or from where the group starts.
    pub(super) fn load_part(
        &mut self,
        state: &State,
        id: PartitionId,
        group: EngineGroup,
        start: Start,
    ) -> Option<&mut Part> {
        let key = (id, group);
        if !self.parts.contains_key(&key) {
            let row = state.partition(id)?;
            let queue = state.queue_by_number(row.queue)?;
            let name = self.state_of(group).name.clone();
            let stored = queue.group(&name).and_then(|group| state.cursor(id, group.number));
            let gone = self.fresh.contains_key(&group) || self.forgotten.contains_key(&key);
            let stored = stored.filter(|_| !gone);
            let route = queen_record::hash::queue_id(queue.tenant, &queue.name);
            let part = match stored {
                Some(cursor) => from_row(&cursor.to_effect(id, &name), route),
                None => fresh(row, start, route),
            };
            if let Some(lease) = part.lease {
                self.note_lease(lease.worker, key);
                self.due.insert((super::over(lease.expires), key));
            }
            self.parts.insert(key, part);
            self.state_of_mut(group).parts += 1;
        }
        self.parts.get_mut(&key)
    }
}

fn from_row(row: &CursorSet, route: QueueId) -> Part {
    Part {
        route,
        committed: row.committed,
        seed_time: None,
        lease: row.lease,
        lease_low: Offset(u64::try_from(row.committed + 1).unwrap_or(0)),
        keys: None,
        retries: row.retries,
        attempt_offset: row.attempt_offset,
        attempts: row.attempts,
        consumed: row.consumed,
        created: row.created,
        metadata: row.metadata.clone(),
        released: row.released,
        reserved: None,
        dirty: false,
        rows_in_flight: 0,
    }
}

fn fresh(row: &Partition, start: Start, route: QueueId) -> Part {
    let (committed, seed_time) = seed(row, start);
    Part { seed_time, ..Part::at(route, committed) }
}

impl Part {
    /// A part without history that stands at an offset.
    pub(super) fn at(route: QueueId, committed: i64) -> Self {
        Self {
            route,
            committed,
            seed_time: None,
            lease: None,
            lease_low: Offset(0),
            keys: None,
            retries: 0,
            attempt_offset: None,
            attempts: 0,
            consumed: 0,
            created: Micros(0),
            metadata: String::new(),
            released: None,
            reserved: None,
            dirty: false,
            rows_in_flight: 0,
        }
    }
}
