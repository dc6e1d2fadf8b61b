//! The oldest message that somebody has not consumed, without asking the log about every partition.
//!
//! A partition's newest message is in the state, so a wanted message is never younger than that; and the state knows
//! the time of the newest and of the oldest message exactly. For the rest the log's index is asked, for a few
//! partitions only: those that were not written for longest, and those with the longest backlog. An answer is thus
//! never older than what it stands for, and a lag made of it never too long.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use queen_record::ids::{Micros, Offset, PartitionId, QueueId};
use queen_state::Partition;

use super::stored::damaged;
use crate::api::CallError;
use crate::core::Shared;

/// Partitions of each kind that the log is asked about.
const ASKED_EACH: usize = 8;

type Wanted = (PartitionId, Offset);

/// What is known so far.
#[derive(Default)]
pub(crate) struct Oldest {
    at_most: Option<Micros>,
    stale: BinaryHeap<(Micros, Wanted)>,
    behind: BinaryHeap<Reverse<(u64, Wanted)>>,
}

impl Oldest {
    /// Adds a partition of which `wanted` and everything after it is not consumed.
    pub(crate) fn add(&mut self, id: PartitionId, wanted: Offset, row: &Partition) {
        let wanted = wanted.max(row.log_start());
        if wanted >= row.next_offset() {
            return;
        }
        let known = known_time(row, wanted);
        let at_most = known.unwrap_or(row.last_created);
        self.at_most = Some(self.at_most.map_or(at_most, |oldest| oldest.min(at_most)));
        if known.is_some() {
            return;
        }
        self.stale.push((row.last_created, (id, wanted)));
        if self.stale.len() > ASKED_EACH {
            self.stale.pop();
        }
        self.behind.push(Reverse((row.next_offset().0 - wanted.0, (id, wanted))));
        if self.behind.len() > ASKED_EACH {
            self.behind.pop();
        }
    }

    /// The oldest time; asks the log at most `lookups` times and takes off what it used.
    pub(crate) fn find(
        self,
        shared: &Shared,
        route: QueueId,
        lookups: &mut usize,
    ) -> Result<Option<Micros>, CallError> {
        let mut oldest = self.at_most;
        let stale = self.stale.into_iter().map(|(_, wanted)| wanted);
        let behind = self.behind.into_iter().map(|Reverse((_, wanted))| wanted);
        let asked: BTreeSet<Wanted> = stale.chain(behind).collect();
        for (id, wanted) in asked {
            let Some(left) = lookups.checked_sub(1) else { break };
            *lookups = left;
            if let Some(found) = ask(shared, route, id, wanted)? {
                oldest = Some(oldest.map_or(found, |oldest| oldest.min(found)));
            }
        }
        Ok(oldest)
    }
}

/// The time of a retained message, if the state has it.
pub(crate) fn known_time(row: &Partition, offset: Offset) -> Option<Micros> {
    let is = |at: u64| offset.0 == at;
    if is(row.next_offset().0.wrapping_sub(1)) {
        return Some(row.last_created);
    }
    match &row.marks {
        Some(marks) if marks.log_start > 0 => marks.oldest.filter(|_| is(marks.log_start)),
        // A partition is made by its first message.
        _ => is(0).then_some(row.created),
    }
}

/// The time of a message as the log's index has it.
pub(crate) fn ask(
    shared: &Shared,
    route: QueueId,
    id: PartitionId,
    offset: Offset,
) -> Result<Option<Micros>, CallError> {
    let qlog = shared.reader.qlog();
    let place = qlog.place_of(qlog.log_of(route, Some(id)), id, offset);
    Ok(place.map_err(|error| damaged(shared, error))?.map(|place| place.created))
}

/// Whole seconds from `then` to `now`.
pub(crate) fn seconds_since(then: Micros, now: Micros) -> u64 {
    u64::try_from((now.0.saturating_sub(then.0)) / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_whole_seconds_and_not_negative() {
        assert_eq!(seconds_since(Micros(1_000_000), Micros(3_999_999)), 2);
        assert_eq!(seconds_since(Micros(5), Micros(0)), 0);
        assert_eq!(
            seconds_since(Micros(i64::MIN), Micros(i64::MAX)),
            u64::try_from(i64::MAX / 1_000_000).unwrap()
        );
    }
}
