//! Who asks for a partition without leaving a trace in the state: a group that is not registered and finds nothing.
//!
//! Such a group has its place in the partition only. If the partition went, and was made again by the next push, the group
//! would start anew and miss that message. So asking counts as use for a day.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use queen_record::ids::{Micros, PartitionId};

/// How long asking counts at least.
const DAY_S: i64 = 86_400;

type Partitions = HashSet<PartitionId, FixedState>;

/// Partitions that were asked for on this day and the one before.
#[derive(Default)]
pub(super) struct Polls {
    /// When the first day began; `None` before the first plan.
    since: Option<Micros>,
    /// When this day began.
    day: Micros,
    today: Partitions,
    yesterday: Partitions,
}

impl Polls {
    /// It is this late.
    pub(super) fn turn(&mut self, now: Micros) {
        if self.since.is_none() {
            self.since = Some(now);
            self.day = now;
        }
        if now >= self.day.plus_seconds(DAY_S) {
            self.yesterday = std::mem::take(&mut self.today);
            self.day = now;
        }
    }

    /// A partition was asked for.
    pub(super) fn note(&mut self, partition: PartitionId) {
        self.today.insert(partition);
    }

    /// Whether the partition was asked for within a day, as far as this node knows: on its first day it knows nothing.
    pub(super) fn may_be_asked_for(&self, partition: PartitionId, now: Micros) -> bool {
        let watched = self.since.is_some_and(|since| now >= since.plus_seconds(DAY_S));
        !watched || self.today.contains(&partition) || self.yesterday.contains(&partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> Micros {
        Micros(1_000_000).plus_seconds(hours * 3600)
    }

    #[test]
    fn asking_counts_for_a_day_at_least_and_two_at_most() {
        let mut polls = Polls::default();
        let (asked, never) = (PartitionId(1), PartitionId(2));
        assert!(polls.may_be_asked_for(never, at(0)), "nothing is known before the first plan");
        polls.turn(at(0));
        assert!(polls.may_be_asked_for(never, at(23)), "nor on the first day");
        polls.turn(at(25));
        polls.note(asked);
        assert!(!polls.may_be_asked_for(never, at(25)));
        for hours in [30, 49, 50] {
            polls.turn(at(hours));
            assert!(polls.may_be_asked_for(asked, at(hours)), "{hours}");
        }
        for hours in [73, 74, 97, 98] {
            polls.turn(at(hours));
        }
        assert!(!polls.may_be_asked_for(asked, at(98)));
    }
}
