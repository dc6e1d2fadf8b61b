//! Looks for what is too old: walks all partitions, asks the logs about those that may have something, and proposes.
//!
//! ```text
//!  state, a few rows at a time  -->  visits  --look-->  proposals  -->  the cycle judges each again
//! ```
//!
//! [`Scanner`] is the walk: no thread, no lock, no clock. `run` is the thread around it, and a simulator is another.
//!
//! N1. Nothing is decided here: a proposal says what stands in the log, and the cycle says whether it goes.
//! N2. A visit that finds nothing due by the state alone reads nothing.
//! N3. The walk is paced, and proposals wait in bounded number: a node that is behind is not pressed.

mod scanner;
mod visit;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use queen_record::ids::Micros;

use crate::core::Shared;
use crate::cycle::Input;

pub use scanner::{Scanner, ScannerOptions};
pub use visit::Visit;

/// Proposals that may wait to be judged.
const PROPOSALS_MAX: usize = 8192;
/// Partitions walked before what was found is proposed.
const SLICE: usize = 2048;
/// Partitions walked under one hold of the state's lock: about a tenth of a millisecond.
const ROWS_PER_HOLD: usize = 256;
/// How long the walk rests while as many proposals wait as may.
const FULL_REST: Duration = Duration::from_millis(100);
/// The longest sleep: the clock may be moved from outside.
const REST_MAX: Duration = Duration::from_millis(100);

/// Scans until the sender of `stopped` is gone or the node takes nothing more.
pub(crate) fn run(shared: &Shared, mut scanner: Scanner, stopped: &Receiver<()>) {
    loop {
        // Followers hear of it from the leader.
        let leads = shared.is_leading();
        let full = shared.proposals_waiting.load(Ordering::Acquire) + SLICE > PROPOSALS_MAX;
        let rests = full || !leads;
        let rest = if rests { FULL_REST } else { until(scanner.next_due(), shared.clock.now()) };
        match stopped.recv_timeout(rest) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        if !rests && scan_slice(shared, &mut scanner).is_err() {
            return;
        }
    }
}

fn until(due: Micros, now: Micros) -> Duration {
    let left = Duration::from_micros(u64::try_from(due.0.saturating_sub(now.0)).unwrap_or(0));
    left.min(REST_MAX)
}

/// The node takes nothing more.
struct Closed;

fn scan_slice(shared: &Shared, scanner: &mut Scanner) -> Result<(), Closed> {
    let now = shared.clock.now();
    let mut walked = 0;
    while walked < SLICE && scanner.next_due() <= now {
        let visits = scanner.walk(&shared.state.read(), now, ROWS_PER_HOLD);
        walked += ROWS_PER_HOLD;
        if let Some(took_us) = scanner.take_round_us() {
            let took = Duration::from_micros(u64::try_from(took_us).unwrap_or(0));
            shared.metrics.retention_round.record(took.as_secs_f64());
        }
        let mut proposals = Vec::new();
        for visit in visits {
            match scanner.look(shared.reader.qlog(), &visit, now) {
                Ok(proposal) => proposals.extend(proposal),
                // Said in the node's health; the partition is looked at again in the next round.
                Err(error) => drop(shared.damaged_read(&error.to_string())),
            }
        }
        if proposals.is_empty() {
            continue;
        }
        let count = proposals.len();
        shared.proposals_waiting.fetch_add(count, Ordering::AcqRel);
        shared.inbox.send_now(Input::Retention(proposals)).map_err(|_| Closed)?;
    }
    Ok(())
}
