//! When a durable point is due, and when the store may merge.
//!
//! A point bounds what a start has to do again. It is due when that would take a second or the changed rows are many, and at
//! the latest when the settings say. But points cost the disk something that the logs share, so the time between two is at
//! least four times what the last one took. Where that and the settings disagree:
//!
//! - the ceiling of log bytes holds always: it is what bounds the replay, and the room that reclaim waits for;
//! - the ceiling of time gives way: on a disk on which a point takes half a second, one is written every two seconds.
//!
//! Merges put nothing at risk and have no hurry: they take a quarter of the time at most. When writes outrun them
//! all the same, the store catches up by itself.

use std::time::Duration;

/// A replay of this length makes a point due.
const REPLAY_GOAL: Duration = Duration::from_secs(1);
/// Bytes of logs that a start reads, verifies and decodes in a second: a low estimate for one core of a small machine.
/// What applying them takes is measured.
const REPLAY_BYTES_PER_S: u64 = 100 << 20;
/// So many changed rows make a point due: about 64 MiB of stored rows.
const DIRTY_ROWS_GOAL: u64 = 500_000;
/// Time between two points, in times of the last one.
const REST_TIMES: u32 = 4;
/// Time between two transactions of a merge, in times of the last one, and at least.
const MERGE_REST_TIMES: u32 = 3;
const MERGE_REST_MIN: Duration = Duration::from_millis(10);
/// How often the goals are looked at while no ceiling is near.
const LOOK: Duration = Duration::from_secs(1);

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Goals {
    /// Longest time between two points.
    pub(crate) every: Duration,
}

/// What a start would do again; every number counts from the start of the node, but for the rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplayLoad {
    /// Bytes written to the logs.
    pub(crate) log_bytes: u64,
    /// Time that applying took.
    pub(crate) apply: Duration,
    /// Rows changed since the last cut.
    pub(crate) dirty_rows: u64,
}

/// Times are since the start of the thread.
#[derive(Debug)]
pub(super) struct Pace {
    goals: Goals,
    /// The ceiling of log bytes is reached.
    is_asked: bool,
    /// When the last point began and ended.
    last: (Duration, Duration),
    at_last: ReplayLoad,
    /// When the store may merge; `None` while it has nothing to merge.
    merge_at: Option<Duration>,
}

impl Pace {
    pub(super) fn new(goals: Goals) -> Self {
        let last = (Duration::ZERO, Duration::ZERO);
        let at_last = ReplayLoad::default();
        // A merge may have been left over by the process before.
        Self { goals, is_asked: false, last, at_last, merge_at: Some(Duration::ZERO) }
    }

    /// The ceiling of log bytes is reached.
    pub(super) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// How long there is nothing to look at.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        let look = self.latest().min(now + LOOK).max(self.earliest());
        let next = self.merge_at.map_or(look, |merge_at| merge_at.min(look));
        next.saturating_sub(now)
    }

    pub(super) fn is_due(&self, now: Duration, load: &ReplayLoad) -> bool {
        self.is_asked || now >= self.earliest() && (now >= self.latest() || self.is_much(load))
    }

    pub(super) fn may_merge(&self, now: Duration) -> bool {
        self.merge_at.is_some_and(|merge_at| merge_at <= now)
    }

    /// `load` is that of its begin: what came meanwhile is new.
    pub(super) fn point_written(&mut self, begun: Duration, ended: Duration, load: &ReplayLoad) {
        self.last = (begun, ended);
        self.at_last = *load;
        self.is_asked = false;
        self.merge_at.get_or_insert(ended + MERGE_REST_MIN);
    }

    pub(super) fn merged(&mut self, begun: Duration, ended: Duration, more: bool) {
        let rest = MERGE_REST_MIN.max(ended.saturating_sub(begun) * MERGE_REST_TIMES);
        self.merge_at = more.then_some(ended + rest);
    }

    /// No point before.
    fn earliest(&self) -> Duration {
        let (begun, ended) = self.last;
        ended + ended.saturating_sub(begun) * REST_TIMES
    }

    /// A point then, unless it is too early.
    fn latest(&self) -> Duration {
        self.last.0 + self.goals.every
    }

    fn is_much(&self, load: &ReplayLoad) -> bool {
        let bytes = load.log_bytes.saturating_sub(self.at_last.log_bytes);
        let reading = Duration::from_millis(bytes / (REPLAY_BYTES_PER_S / 1000));
        let applying = load.apply.saturating_sub(self.at_last.apply);
        reading + applying >= REPLAY_GOAL || load.dirty_rows >= DIRTY_ROWS_GOAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: ReplayLoad = ReplayLoad { log_bytes: 0, apply: Duration::ZERO, dirty_rows: 0 };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn pace(every_ms: u64, point: (u64, u64)) -> Pace {
        let mut pace = Pace::new(Goals { every: ms(every_ms) });
        pace.merged(ms(0), ms(0), false);
        pace.point_written(ms(point.0), ms(point.1), &IDLE);
        pace.merged(ms(point.1), ms(point.1), false);
        pace
    }

    #[test]
    fn a_quick_point_keeps_to_the_setting() {
        let pace = pace(1000, (5000, 5010));
        assert_eq!(pace.wait(ms(5010)), ms(990));
        assert!(!pace.is_due(ms(5999), &IDLE));
        assert!(pace.is_due(ms(6000), &IDLE));
    }

    #[test]
    fn a_slow_point_is_followed_by_four_times_its_time() {
        let mut pace = pace(1000, (5000, 5600));
        assert_eq!(pace.wait(ms(5600)), ms(2400));
        assert!(!pace.is_due(ms(7999), &IDLE));
        assert!(!pace.is_due(ms(7999), &ReplayLoad { dirty_rows: 1 << 40, ..IDLE }));
        assert!(pace.is_due(ms(8000), &IDLE));
        pace.ask();
        assert!(pace.is_due(ms(5601), &IDLE), "the ceiling of bytes holds");
    }

    #[test]
    fn a_long_replay_or_many_rows_make_a_point_due_before_the_setting() {
        let pace = pace(60_000, (5000, 5010));
        assert_eq!(pace.wait(ms(5500)), ms(1000));
        let now = ms(7000);
        for (load, is_due) in [
            (IDLE, false),
            (ReplayLoad { log_bytes: 60 << 20, apply: ms(300), dirty_rows: 1 }, false),
            (ReplayLoad { log_bytes: 80 << 20, apply: ms(300), dirty_rows: 1 }, true),
            (ReplayLoad { apply: ms(1000), ..IDLE }, true),
            (ReplayLoad { dirty_rows: 499_999, ..IDLE }, false),
            (ReplayLoad { dirty_rows: 500_000, ..IDLE }, true),
        ] {
            assert_eq!(pace.is_due(now, &load), is_due, "{load:?}");
        }
    }

    #[test]
    fn merges_leave_most_of_the_time_to_others() {
        let mut pace = pace(1000, (5000, 5010));
        assert!(!pace.may_merge(ms(5900)));
        pace.point_written(ms(6000), ms(6020), &IDLE);
        assert_eq!(pace.wait(ms(6020)), ms(10));
        assert!(pace.may_merge(ms(6030)));
        pace.merged(ms(6030), ms(6050), true);
        assert_eq!(pace.wait(ms(6050)), ms(60));
        pace.merged(ms(6110), ms(6111), true);
        assert_eq!(pace.wait(ms(6111)), ms(10));
        pace.merged(ms(6121), ms(6122), false);
        assert_eq!(pace.wait(ms(6122)), ms(878));
    }
}
