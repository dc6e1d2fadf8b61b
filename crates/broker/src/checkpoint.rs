//! The checkpoint thread: writes what changed to the store, off the answer path.
//!
//! One durable point: take the logs' synced ends and the cut of the state together, write the cut in one transaction,
//! and only then call its entry durable. A point is written without new entries when reclaim wants its plans recorded. Every applied entry is synced already, so the store is never ahead of the
//! logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use queen_qlog::DurablePoint;
use queen_state::StoredRow;
use queen_store::{Change, Checkpoint, StoreError};

use crate::backup::Stager;
use crate::core::Shared;

/// Rows encoded under one hold of the state's lock: about a tenth of a millisecond.
const ROWS_PER_HOLD: usize = 256;

/// Writes durable points until the sender of `due` is gone, then a last one.
pub(crate) fn run(
    shared: &Arc<Shared>,
    mut store: Box<dyn Checkpoint>,
    due: &Receiver<()>,
    every: Duration,
    stager: &Stager,
) {
    loop {
        let (more, request) = crossbeam_channel::select! {
            recv(due) -> told => (told.is_ok(), None),
            recv(stager.requests) -> request => (true, request.ok()),
            default(every) => (true, None),
        };
        if shared.failed.lock().is_some() {
            return;
        }
        let written = match request {
            None => durable_point(shared, &mut *store),
            // A point of its own: the request is older than it, and no other comes before it is staged.
            Some(request) => write_point(shared, &mut *store)
                .map(|point| stager.serve(shared, &point, &mut *store, request)),
        };
        if let Err(error) = written {
            tracing::error!("the checkpoint failed: {error}");
            shared.fail(&format!("the checkpoint failed: {error}"));
            return;
        }
        if !more {
            return;
        }
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

/// Writes a durable point of everything applied.
fn write_point(shared: &Shared, store: &mut dyn Checkpoint) -> Result<DurablePoint, StoreError> {
    let started = Instant::now();
    let qlog = shared.reader.qlog();
    let (index, point, meta) = {
        let mut state = shared.state.write();
        let index = state.applied();
        let point = qlog.durable_point(index);
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        (index, point, state.begin_cut(&bytes))
    };
    let mut rows = Rows { shared, batch: meta.into_iter(), done: false };
    let written = store.write(&mut rows)?;
    shared.state.write().finish_cut();
    qlog.point_written(&point);
    shared.durable.store(index.0, Ordering::Release);
    let metrics = &shared.metrics;
    #[expect(clippy::cast_precision_loss, reason = "histogram samples")]
    {
        metrics.checkpoint_rows.record(written.rows as f64);
        metrics.store_commit_seconds.record(written.commit_us as f64 / 1e6);
    }
    metrics.durable_point_seconds.record(started.elapsed().as_secs_f64());
    tracing::debug!(index = index.0, rows = written.rows, bytes = written.bytes, "checkpoint");
    Ok(point)
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
