//! What messages of a partition are doing, told from its cursors.

use queen_record::ids::Micros;

use super::super::walk::At;
use crate::api::{MessageStatus, QUEUE_MODE};

/// The cursors of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Consumed {
    /// Last offset done of each named group.
    pub(super) named: Vec<i64>,
    /// The same of queue mode.
    pub(super) unnamed: Option<i64>,
    /// When queue mode's live lease ends.
    pub(super) unnamed_lease: Option<Micros>,
    /// When the last live lease ends.
    pub(super) lease_expires: Option<Micros>,
}

impl Consumed {
    pub(super) fn of(at: At<'_>, now: Micros) -> Self {
        let mut consumed = Self::default();
        for group in at.queue.groups() {
            let Some(cursor) = at.state.cursor(at.id, group.number) else { continue };
            let lease = cursor.live_lease(now).map(|lease| lease.expires);
            consumed.lease_expires = consumed.lease_expires.max(lease);
            if &*group.name == QUEUE_MODE {
                (consumed.unnamed, consumed.unnamed_lease) = (Some(cursor.committed), lease);
            } else {
                consumed.named.push(cursor.committed);
            }
        }
        consumed
    }

    /// The last offset that is completed, -1 for none: of every named group, or of queue mode when there is none.
    pub(super) fn floor(&self) -> i64 {
        self.named.iter().min().copied().or(self.unnamed).unwrap_or(-1)
    }

    pub(super) fn status(&self, position: i64, is_dead: bool) -> MessageStatus {
        if is_dead {
            MessageStatus::DeadLetter
        } else if position <= self.floor() {
            MessageStatus::Completed
        } else if self.lease_expires.is_some() {
            MessageStatus::Processing
        } else {
            MessageStatus::Pending
        }
    }

    /// The same for queue mode alone.
    pub(super) fn queue_status(&self, position: i64, is_dead: bool) -> Option<MessageStatus> {
        let unnamed = self.unnamed?;
        Some(if is_dead {
            MessageStatus::DeadLetter
        } else if position <= unnamed {
            MessageStatus::Completed
        } else if self.unnamed_lease.is_some() {
            MessageStatus::Processing
        } else {
            MessageStatus::Pending
        })
    }

    /// The offsets of a partition, first and last, that have this status but for dead letters; all for those.
    pub(super) fn offsets(
        &self,
        status: Option<MessageStatus>,
        first: i64,
        last: i64,
    ) -> (i64, i64) {
        let leased = self.lease_expires.is_some();
        let nothing = (first, first - 1);
        match status {
            None | Some(MessageStatus::DeadLetter) => (first, last),
            Some(MessageStatus::Completed) => (first, last.min(self.floor())),
            Some(MessageStatus::Processing) if !leased => nothing,
            Some(MessageStatus::Pending) if leased => nothing,
            Some(MessageStatus::Processing | MessageStatus::Pending) => {
                (first.max(self.floor().saturating_add(1)), last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn offsets_are_those_with_the_status(
            named in proptest::collection::vec(-1i64..9, 0..3),
            unnamed in proptest::option::of(-1i64..9),
            leased: bool,
            (first, count) in (0i64..5, 0i64..6),
        ) {
            let lease_expires = leased.then_some(Micros(1));
            let consumed = Consumed { named, unnamed, unnamed_lease: None, lease_expires };
            let last = first + count - 1;
            let all = [MessageStatus::Completed, MessageStatus::Processing, MessageStatus::Pending];
            for status in all {
                let (from, to) = consumed.offsets(Some(status), first, last);
                for position in first..=last {
                    let is = consumed.status(position, false) == status;
                    prop_assert_eq!((from..=to).contains(&position), is, "{} {:?}", position, status);
                }
            }
        }
    }
}
