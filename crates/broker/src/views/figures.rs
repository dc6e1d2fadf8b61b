//! What one walk over a queue's partitions sums up: its counts and how far behind each group is.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use queen_record::ids::{Micros, Offset, PartitionId};
use queen_state::{GroupNumber, Partition};

use super::oldest::Oldest;
use super::walk::{self, At, Target, Walked};
use crate::api::{CallError, Counts};
use crate::core::Shared;

/// Sums over one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueFigures {
    /// `pending` includes what is leased.
    pub(crate) counts: Counts,
    /// The oldest message that the slowest group has not consumed.
    pub(crate) oldest: Option<Micros>,
    /// Groups with a cursor, by number.
    pub(crate) groups: Vec<GroupFigures>,
    /// When this was summed up.
    pub(crate) taken: Micros,
}

/// Sums over one group's cursors on one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupFigures {
    pub(crate) number: GroupNumber,
    pub(crate) with_lag: u64,
    pub(crate) lag: u64,
    pub(crate) consumed: u64,
    /// The oldest message that it has not consumed.
    pub(crate) oldest: Option<Micros>,
}

#[derive(Default)]
struct GroupSum {
    with_lag: u64,
    lag: u64,
    consumed: u64,
    oldest: Oldest,
}

/// A walk under way.
#[derive(Default)]
pub(crate) struct Gathering {
    now: Micros,
    visited: u64,
    counts: Counts,
    oldest: Oldest,
    groups: BTreeMap<GroupNumber, GroupSum>,
}

/// Messages of a partition that a cursor has not passed, and the first of them.
pub(crate) fn left(row: &Partition, committed: i64) -> (u64, Offset) {
    let done = u64::try_from(committed.saturating_add(1)).unwrap_or(0);
    let wanted = Offset(done).max(row.log_start());
    (row.next_offset().0.saturating_sub(wanted.0), wanted)
}

impl Gathering {
    pub(crate) fn new(now: Micros) -> Self {
        Self { now, ..Self::default() }
    }

    /// Partitions added so far.
    pub(crate) fn visited(&self) -> u64 {
        self.visited
    }

    /// Adds one partition.
    pub(crate) fn visit(&mut self, at: At<'_>) {
        let At { state, queue, id, row } = at;
        let counts = state.counts(queue, id, row, self.now);
        self.visited += 1;
        self.counts.total += counts.total;
        self.counts.pending += counts.pending;
        self.counts.processing += counts.processing;
        if counts.pending > 0 {
            self.oldest.add(id, Offset(row.next_offset().0 - counts.pending), row);
        }
        for group in queue.groups() {
            let Some(cursor) = state.cursor(id, group.number) else { continue };
            let sum = self.groups.entry(group.number).or_default();
            let (lag, wanted) = left(row, cursor.committed);
            sum.consumed += cursor.consumed;
            sum.lag += lag;
            if lag > 0 {
                sum.with_lag += 1;
                sum.oldest.add(id, wanted, row);
            }
        }
    }

    /// Scales sums up when only some of the partitions were visited.
    pub(crate) fn scale(&mut self, partitions: u64) {
        let visited = u128::from(self.visited.max(1));
        let scaled = |sum: &mut u64| {
            let all = u128::from(*sum) * u128::from(partitions) / visited;
            *sum = u64::try_from(all).unwrap_or(u64::MAX);
        };
        let Counts { total, pending, processing, .. } = &mut self.counts;
        [total, pending, processing].into_iter().for_each(scaled);
        for sum in self.groups.values_mut() {
            let GroupSum { with_lag, lag, consumed, .. } = sum;
            [with_lag, lag, consumed].into_iter().for_each(scaled);
        }
    }

    /// Ends the walk; asks the logs for the oldest messages, at most `lookups` times in all.
    pub(crate) fn finish(
        self,
        shared: &Shared,
        target: &Target,
        lookups: &mut usize,
    ) -> Result<QueueFigures, CallError> {
        let letters = |state: &queen_state::State| {
            target.queue(state).map_or(0, queen_state::Queue::dead_letter_count)
        };
        let mut counts = self.counts;
        counts.dead_letter = letters(&shared.state.read());
        counts.completed = counts.total.saturating_sub(counts.pending + counts.dead_letter);
        let route = target.route();
        let oldest = self.oldest.find(shared, route, lookups)?;
        let mut groups = Vec::with_capacity(self.groups.len());
        for (number, sum) in self.groups {
            let GroupSum { with_lag, lag, consumed, oldest } = sum;
            let oldest = oldest.find(shared, route, lookups)?;
            groups.push(GroupFigures { number, with_lag, lag, consumed, oldest });
        }
        Ok(QueueFigures { counts, oldest, groups, taken: self.now })
    }
}

/// Visits every partition of a queue.
pub(crate) fn exact(
    shared: &Shared,
    target: &Target,
    lookups: &mut usize,
) -> Result<QueueFigures, CallError> {
    let mut gathering = Gathering::new(shared.clock.now());
    walk::all(shared, target, |at| gathering.visit(at));
    gathering.finish(shared, target, lookups)
}

/// Visits `visits` partitions spread over the whole queue and scales what they sum up to.
pub(crate) fn estimate(
    shared: &Shared,
    target: &Target,
    visits: u64,
    lookups: &mut usize,
) -> Result<QueueFigures, CallError> {
    const VISITS_PER_HOLD: u64 = 256;
    let mut gathering = Gathering::new(shared.clock.now());
    let mut partitions = 0;
    let mut first = 0;
    while first < visits {
        let state = shared.state.read();
        let Some(queue) = target.queue(&state) else { break };
        partitions = queue.partition_count();
        let last = (first + VISITS_PER_HOLD).min(visits);
        for turn in first..last {
            let rank = u128::from(turn) * u128::from(partitions) / u128::from(visits);
            let id = queue.partition_at(u64::try_from(rank).unwrap_or(u64::MAX));
            if let Some((id, row)) = id.and_then(|id| Some((id, state.partition(id)?))) {
                gathering.visit(At { state: &state, queue, id, row });
            }
        }
        first = last;
    }
    gathering.scale(partitions);
    gathering.finish(shared, target, lookups)
}

/// Visits some more partitions; `None` once all were visited.
pub(crate) fn visit_some(
    shared: &Shared,
    target: &Target,
    from: PartitionId,
    gathering: &mut Gathering,
) -> Option<PartitionId> {
    let mut visit = |at: At<'_>| {
        gathering.visit(at);
        ControlFlow::Continue(())
    };
    match walk::hold(shared, target, from, usize::MAX, &mut visit) {
        Walked::Paused(next) | Walked::Stopped(next) => Some(next),
        Walked::Ended => None,
    }
}

#[cfg(test)]
mod tests {
    use queen_record::ids::Tenant;
    use queen_state::{Keyspace, State};

    use super::super::oldest::known_time;
    use super::*;

    /// A checkpoint's rows of a queue with one partition of which retention removed the beginning, or nothing.
    fn state(last_offset: i64, log_start: Option<u8>) -> State {
        let signed = |value: i64| u8::try_from(value << 1 ^ value >> 63).unwrap();
        let mut queue = vec![1];
        queue.extend(Tenant::DEFAULT.0.0);
        queue.extend([1, b'q']);
        queue.extend([2; 16]);
        queue.extend([signed(7), 1, 0]);
        queen_model::encode_options(&queen_model::QueueOptions::configured(), &mut queue);
        let mut row = vec![1, 1];
        row.extend([3; 16]);
        row.extend([1, b'p', signed(last_offset), signed(20), signed(50), signed(0)]);
        match log_start {
            None => row.push(0),
            Some(start) => row.extend([1, start, start, start, signed(30)]),
        }
        row.push(0);
        let mut state = State::new();
        state.load_row(Keyspace::Queues, &[0, 0, 0, 1], &queue).unwrap();
        state.load_row(Keyspace::Partitions, &[0, 0, 0, 0, 0, 0, 0, 1], &row).unwrap();
        state
    }

    #[test]
    fn a_cursor_below_the_retained_messages_has_all_of_them_left() {
        let state = state(9, Some(4));
        let row = state.partition(PartitionId(1)).unwrap();
        for (committed, expected) in [
            (-1, (6, 4)),
            (2, (6, 4)),
            (3, (6, 4)),
            (4, (5, 5)),
            (8, (1, 9)),
            (9, (0, 10)),
            (20, (0, 21)),
        ] {
            let (count, wanted) = left(row, committed);
            assert_eq!((count, wanted.0), expected, "{committed}");
        }
        let times = [(3, None), (4, Some(30)), (5, None), (9, Some(50)), (10, None)];
        for (offset, expected) in times {
            assert_eq!(known_time(row, Offset(offset)), expected.map(Micros), "{offset}");
        }
    }

    #[test]
    fn the_first_message_has_the_time_of_its_partition() {
        let whole = state(9, None);
        let row = whole.partition(PartitionId(1)).unwrap();
        assert_eq!(left(row, -1), (10, Offset(0)));
        assert_eq!(known_time(row, Offset(0)), Some(Micros(20)));
        assert_eq!(known_time(row, Offset(1)), None);
        let empty = state(-1, None);
        let row = empty.partition(PartitionId(1)).unwrap();
        assert_eq!(left(row, -1), (0, Offset(0)));
    }
}
