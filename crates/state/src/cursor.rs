//! A group's place in one partition.

use std::num::NonZeroU32;

use queen_model::{CursorSet, Lease, NIL, Released};
use queen_record::ids::{Micros, Offset, PartitionId};

/// Number of a group inside its queue: from 1, never reused; a deleted and re-made group gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(pub NonZeroU32);

/// What an idle cursor does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    pub(crate) lease: Option<Lease>,
    pub(crate) retries: u32,
    pub(crate) attempt_offset: Option<Offset>,
    pub(crate) attempts: u32,
    pub(crate) metadata: String,
}

/// One cursor row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Whose.
    pub group: GroupNumber,
    /// Last offset done, -1 for none.
    pub committed: i64,
    /// Messages consumed so far.
    pub consumed: u64,
    /// When the row was made.
    pub created: Micros,
    /// Its worker is nil while no lease was settled: an `Option` would cost eight bytes a partition.
    pub(crate) released: Released,
    pub(crate) busy: Option<Box<Busy>>,
}

const NOT_RELEASED: Released = Released { worker: NIL, low: Offset(0), high: Offset(0) };

impl Cursor {
    /// The row that an effect describes.
    #[must_use]
    pub fn from_effect(group: GroupNumber, set: &CursorSet) -> Self {
        let busy = Busy {
            lease: set.lease,
            retries: set.retries,
            attempt_offset: set.attempt_offset,
            attempts: set.attempts,
            metadata: set.metadata.clone(),
        };
        Self {
            group,
            committed: set.committed,
            consumed: set.consumed,
            created: set.created,
            released: set.released.unwrap_or(NOT_RELEASED),
            busy: (busy != Busy::default()).then(|| Box::new(busy)),
        }
    }

    /// The effect that would make this row.
    #[must_use]
    pub fn to_effect(&self, id: PartitionId, group: &str) -> CursorSet {
        let busy = self.busy.as_deref().cloned().unwrap_or_default();
        CursorSet {
            id,
            group: group.to_owned(),
            committed: self.committed,
            lease: busy.lease,
            retries: busy.retries,
            attempt_offset: busy.attempt_offset,
            attempts: busy.attempts,
            consumed: self.consumed,
            created: self.created,
            metadata: busy.metadata,
            released: self.released(),
        }
    }

    /// The lease that was given out and not settled; it may have expired.
    pub fn lease(&self) -> Option<&Lease> {
        self.busy.as_ref()?.lease.as_ref()
    }

    /// The lease, if it is live at `now`.
    pub fn live_lease(&self, now: Micros) -> Option<&Lease> {
        self.lease().filter(|lease| lease.expires >= now)
    }

    /// What a commit of positions left beside the cursor.
    pub fn metadata(&self) -> &str {
        self.busy.as_ref().map_or("", |busy| &busy.metadata)
    }

    /// The last lease that an ack settled to its batch end.
    pub fn released(&self) -> Option<Released> {
        (self.released.worker != NIL).then_some(self.released)
    }
}
