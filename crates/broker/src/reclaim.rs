//! The reclaim thread: steps the passes, reports what they did. What a pass plans waits for the next checkpoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use queen_reclaim::{Pass, Reclaimer};

use crate::core::Shared;

/// Time between two passes: what one plans, the checkpoint in between records.
const EVERY: Duration = Duration::from_secs(1);

/// Runs passes until the sender of `stopped` is gone or the node fails.
pub(crate) fn run(shared: &Arc<Shared>, mut reclaimer: Reclaimer, stopped: &Receiver<()>) {
    while matches!(stopped.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout)) {
        if shared.failed.lock().is_some() {
            return;
        }
        let started = Instant::now();
        match reclaimer.pass(shared.clock.now()) {
            Ok(pass) => report(shared, &pass, started.elapsed()),
            Err(fault) => {
                tracing::error!("reclaim failed: {fault}");
                shared.fail(&format!("reclaim failed: {fault}"));
                return;
            }
        }
    }
}

fn report(shared: &Shared, pass: &Pass, took: Duration) {
    let metrics = &shared.metrics;
    let done = &pass.reclaimed;
    metrics.reclaim_pass_seconds.record(took.as_secs_f64());
    metrics.reclaimed_bytes.increment(done.bytes);
    metrics.rewritten_bytes.increment(pass.rewritten_bytes);
    let counts = [done.files, done.rewrites, done.logs, pass.sealed];
    for (counter, count) in metrics.reclaimed.iter().zip(counts) {
        counter.increment(count);
    }
    if done.bytes > 0 {
        tracing::info!(
            bytes = done.bytes,
            files = done.files,
            rewrites = done.rewrites,
            logs = done.logs,
            "space reclaimed"
        );
    }
    if let Some(fault) = &done.failed {
        tracing::error!("a log file could not be removed and is tried again: {fault}");
    }
    if let Some(damage) = &pass.damage {
        // Health says so; the file stays.
        drop(shared.damaged_read(damage));
    }
}
