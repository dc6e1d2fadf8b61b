//! The scrub of the store: the file, then memory against the file, at a bounded rate.
//!
//! It runs on the checkpoint thread, between two points and two merges, so the file stands still while a part of it is read.
//! Rows in memory have no checksum: one that did not change since the last point is encoded again and must be what the file
//! holds, which was verified just before. A row that changed is verified when it is written.

use std::time::Duration;

use queen_state::{RowPlace, StoredRow, stored_again};
use queen_store::{Checkpoint, ScrubPlace, StoreError};

use crate::core::Shared;

/// Time between two steps of a round.
const STEP: Duration = Duration::from_millis(500);
/// Rows looked at under one hold of the state's lock.
const ROWS_PER_HOLD: usize = 256;

/// How fast and how often the store is scrubbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreScrubPace {
    /// Rows verified in a second; 0 scrubs nothing.
    pub rows_per_second: u64,
    /// From the end of a round, or the start of the node, to the start of the next.
    pub every: Duration,
    /// Scrub all of it before the node serves.
    pub at_start: bool,
}

impl Default for StoreScrubPace {
    fn default() -> Self {
        Self { rows_per_second: 2000, every: Duration::from_hours(6), at_start: false }
    }
}

enum Part {
    File(ScrubPlace),
    Memory(RowPlace),
}

/// A scrub under way. Times are since the start of the thread.
pub(super) struct StoreScrub {
    pace: StoreScrubPace,
    part: Part,
    next: Duration,
    /// When a round ended; the start of the node until one has.
    ended: Duration,
}

impl StoreScrub {
    pub(super) fn new(pace: StoreScrubPace) -> Self {
        let part = Part::File(ScrubPlace::default());
        Self { pace, part, next: pace.every, ended: Duration::ZERO }
    }

    pub(super) fn wait(&self, now: Duration) -> Duration {
        if self.pace.rows_per_second == 0 { Duration::MAX } else { self.next.saturating_sub(now) }
    }

    /// Goes on with a round when it is time to.
    ///
    /// # Errors
    /// Damage; the process must end.
    pub(super) fn tick(
        &mut self,
        now: Duration,
        shared: &Shared,
        store: &mut dyn Checkpoint,
    ) -> Result<(), StoreError> {
        shared.metrics.store_scrub_age.set(now.saturating_sub(self.ended).as_secs_f64());
        if !self.wait(now).is_zero() {
            return Ok(());
        }
        let rows = (self.pace.rows_per_second / 2).max(1);
        let is_over = step(&mut self.part, rows, shared, store)?;
        self.next = now + if is_over { self.pace.every } else { STEP };
        if is_over {
            self.ended = now;
        }
        Ok(())
    }
}

/// A whole round at once.
///
/// # Errors
/// Damage.
pub(crate) fn whole(shared: &Shared, store: &mut dyn Checkpoint) -> Result<(), StoreError> {
    let mut part = Part::File(ScrubPlace::default());
    while !step(&mut part, 100_000, shared, store)? {}
    Ok(())
}

/// A row of an older version was stored by an older build; it is compared as this build would store it.
fn is_same(row: &StoredRow, stored: Option<&[u8]>) -> bool {
    let Some(stored) = stored else { return row.value.is_none() };
    let is_again = || {
        let again = stored_again(row.keyspace, &row.key, stored);
        again.is_ok_and(|again| row.value.as_ref() == Some(&again))
    };
    row.value.as_deref() == Some(stored) || is_again()
}

/// Verifies some rows; whether the round is over.
fn step(
    part: &mut Part,
    rows: u64,
    shared: &Shared,
    store: &mut dyn Checkpoint,
) -> Result<bool, StoreError> {
    let verified = &shared.metrics.store_scrub_rows;
    match part {
        Part::File(place) => {
            let read = store.scrub(place, rows)?;
            verified.increment(read);
            if read < rows {
                *part = Part::Memory(RowPlace::default());
            }
            Ok(false)
        }
        Part::Memory(place) => {
            let mut looked = 0;
            while looked < rows {
                let found = shared.state.read().unchanged_rows(place, ROWS_PER_HOLD);
                let Some(found) = found else {
                    *part = Part::File(ScrubPlace::default());
                    return Ok(true);
                };
                verified.increment(store.compare(&found, &is_same)?);
                looked += ROWS_PER_HOLD as u64;
            }
            Ok(false)
        }
    }
}
