//! The checkpoint thread: writes what changed to the store, off the answer path.
//!
//! One durable point: take the logs' synced ends and the cut of the state together, write the cut in one transaction,
//! and only then call its entry durable. A point is written without new entries when reclaim wants its plans recorded.
//! Every applied entry is synced already, so the store is never ahead of the logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use queen_qlog::DurablePoint;
use queen_state::StoredRow;
use queen_store::{Change, Checkpoint, StoreError};

use crate::backup::Stager;
use crate::core::Shared;

mod pace;
mod scrub;

pub(crate) use pace::Goals;
use pace::{Pace, ReplayLoad};
use scrub::StoreScrub;
pub use scrub::StoreScrubPace;
pub(crate) use scrub::whole as scrub_whole;

/// Rows encoded under one hold of the state's lock: about a tenth of a millisecond.
const ROWS_PER_HOLD: usize = 256;

/// Writes durable points when they are due until the sender of `asked` is gone, then a last one. Between them the store
/// goes on with what it put off.
pub(crate) fn run(
    shared: &Arc<Shared>,
    mut store: Box<dyn Checkpoint>,
    asked: &Receiver<()>,
    goals: Goals,
    scrub: StoreScrubPace,
    stager: &Stager,
) {
    let started = Instant::now();
    let (mut pace, mut scrub) = (Pace::new(goals), StoreScrub::new(scrub));
    loop {
        let now = started.elapsed();
        let (is_last, backup) = crossbeam_channel::select! {
            recv(asked) -> told => {
                if told.is_ok() {
                    pace.ask();
                }
                (told.is_err(), None)
            },
            recv(stager.requests) -> request => (false, request.ok()),
            default(pace.wait(now).min(scrub.wait(now))) => (false, None),
        };
        if shared.failed.lock().is_some() {
            return;
        }
        let load = replay_load(shared);
        let done = if let Some(request) = backup {
            // A point of its own: the request is older than it, and no other comes before it is staged.
            let begun = started.elapsed();
            let written = write_point(shared, &mut *store);
            pace.point_written(begun, started.elapsed(), &load);
            written.map(|(point, term)| {
                stager.serve(shared, (&point, term), &mut *store, request);
            })
        } else if is_last || pace.is_due(started.elapsed(), &load) {
            let begun = started.elapsed();
            let written = durable_point(shared, &mut *store);
            pace.point_written(begun, started.elapsed(), &load);
            written
        } else if pace.may_merge(started.elapsed()) {
            let begun = started.elapsed();
            let merged = store.merge();
            let ended = started.elapsed();
            merged.map(|merged| {
                if merged.rows > 0 {
                    shared
                        .metrics
                        .store_merge_seconds
                        .record(ended.saturating_sub(begun).as_secs_f64());
                }
                pace.merged(begun, ended, merged.more);
            })
        } else {
            scrub.tick(started.elapsed(), shared, &mut *store)
        };
        if let Err(error) = done {
            tracing::error!("the checkpoint failed: {error}");
            let reason = format!("the checkpoint failed: {error}");
            // What was loaded from a damaged file, or damaged since, must not be served any longer.
            let is_damage = matches!(error, StoreError::Damage { .. });
            if is_damage {
                shared.fail_of_damage(&reason);
            } else {
                shared.fail(&reason);
            }
            return;
        }
        if is_last {
            return;
        }
    }
}

/// What a start after a crash would have to do again, counted from the start of the node.
fn replay_load(shared: &Shared) -> ReplayLoad {
    ReplayLoad {
        log_bytes: shared.reader.qlog().stats().appended_bytes,
        apply: Duration::from_micros(shared.apply_us.load(Ordering::Relaxed)),
        dirty_rows: shared.state.read().dirty_rows(),
    }
}

/// Writes one durable point, unless nothing was applied since the last and nothing is planned.
///
/// # Errors
/// The store's; the node must stop.
pub(crate) fn durable_point(shared: &Shared, store: &mut dyn Checkpoint) -> Result<(), StoreError> {
    let is_written = shared.state.read().applied().0 == shared.durable.load(Ordering::Acquire);
    if is_written && !shared.reader.qlog().wants_point() {
        return Ok(());
    }
    write_point(shared, store).map(drop)
}

/// Writes a durable point of everything applied; also the term of its entry.
fn write_point(
    shared: &Shared,
    store: &mut dyn Checkpoint,
) -> Result<(DurablePoint, u64), StoreError> {
    let started = Instant::now();
    let qlog = shared.reader.qlog();
    let (index, term, point, meta) = {
        let mut state = shared.state.write();
        let (index, term) = (state.applied(), state.term());
        let point = qlog.durable_point(index);
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        (index, term, point, state.begin_cut(&bytes))
    };
    let mut rows = Rows { shared, batch: meta.into_iter(), done: false };
    let written = store.write(&mut rows)?;
    shared.state.write().finish_cut();
    qlog.point_written(&point);
    shared.durable.store(index.0, Ordering::Release);
    if let Some(cluster) = shared.cluster.get() {
        cluster.checkpointed(index, term);
    }
    let metrics = &shared.metrics;
    #[expect(clippy::cast_precision_loss, reason = "histogram samples")]
    {
        metrics.checkpoint_rows.record(written.rows as f64);
        metrics.store_commit_seconds.record(written.commit_us as f64 / 1e6);
    }
    {
        let state = shared.state.read();
        let [partitions, dirty] = &metrics.ram_rows;
        #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
        {
            partitions.set(state.partition_count() as f64);
            dirty.set(state.dirty_rows() as f64);
        }
    }
    metrics.checkpoint_bytes.increment(written.bytes);
    metrics.durable_point_seconds.record(started.elapsed().as_secs_f64());
    tracing::debug!(index = index.0, rows = written.rows, bytes = written.bytes, "checkpoint");
    Ok((point, term))
}

/// The rows of a cut, encoded a few at a time.
struct Rows<'a> {
    shared: &'a Shared,
    batch: std::vec::IntoIter<StoredRow>,
    done: bool,
}

impl Iterator for Rows<'_> {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(row) = self.batch.next() {
                return Some(Change { keyspace: row.keyspace, key: row.key, value: row.value });
            }
            if self.done {
                return None;
            }
            let batch = self.shared.state.write().next_of_cut(ROWS_PER_HOLD);
            self.done = batch.is_empty();
            self.batch = batch.into_iter();
        }
    }
}
