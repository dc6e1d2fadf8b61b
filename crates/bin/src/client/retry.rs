//! Asking again: a node that is overloaded, not ready or just gone may take the same call a little later.
//!
//! Only calls that do no harm when they are carried out twice come here: pushes carry their ids, acks their lease.

use std::time::{Duration, Instant};

use super::node::CallError;
use super::note;

/// How long one call is tried.
const PATIENCE: Duration = Duration::from_mins(2);
/// Between two tries when the node names no time.
const PAUSE: Duration = Duration::from_secs(1);
/// What a node may name at most.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Against a node that names no time at all.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Makes a call until it succeeds, cannot succeed, or patience ends; says once that it waits.
pub(super) fn patiently<T>(call: impl FnMut() -> Result<T, CallError>) -> Result<T, CallError> {
    patiently_with(call, pause)
}

fn patiently_with<T>(
    mut call: impl FnMut() -> Result<T, CallError>,
    mut pause: impl FnMut(Duration),
) -> Result<T, CallError> {
    let started = Instant::now();
    let mut has_said = false;
    loop {
        let error = match call() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if !error.is_passing || started.elapsed() >= PATIENCE {
            return Err(error);
        }
        if !has_said {
            note(&format!("{}; trying for {} seconds", error.text, PATIENCE.as_secs()));
            has_said = true;
        }
        pause(error.retry_after.unwrap_or(PAUSE).clamp(PAUSE_MIN, PAUSE_MAX));
    }
}

/// Lets time pass. What is waited for happens on another machine and tells nobody.
pub(super) fn pause(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        // Nobody unparks this thread, but it may wake early.
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(is_passing: bool) -> CallError {
        let retry_after = Some(Duration::ZERO);
        CallError { text: String::new(), status: None, code: None, is_passing, retry_after }
    }

    #[test]
    fn what_passes_is_asked_again_and_nothing_else() {
        let mut calls = 0;
        let mut pauses = Vec::new();
        let done = patiently_with(
            || {
                calls += 1;
                if calls < 3 { Err(error(true)) } else { Ok(calls) }
            },
            |time| pauses.push(time),
        );
        assert_eq!(done.unwrap(), 3);
        assert_eq!(pauses, [PAUSE_MIN; 2]);
        let mut calls = 0;
        let refused = patiently::<()>(|| {
            calls += 1;
            Err(error(false))
        });
        assert!(refused.is_err());
        assert_eq!(calls, 1);
    }
}
