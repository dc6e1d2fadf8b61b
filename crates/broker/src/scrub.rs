//! The scrub of the sealed logs, at a bounded rate, again and again.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use queen_qlog::{Scrub, Scrubbed};

use crate::core::Shared;

/// How fast and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubPace {
    /// Bytes read in a second; 0 reads nothing.
    pub bytes_per_second: u64,
    /// From the start of a round to the start of the next, unless the round takes longer.
    pub every: Duration,
}

impl Default for ScrubPace {
    fn default() -> Self {
        Self { bytes_per_second: 4 << 20, every: Duration::from_hours(24) }
    }
}

/// Time between two steps of a round.
const STEP: Duration = Duration::from_millis(100);
/// How often the age of the last round is shown.
const SHOW: Duration = Duration::from_secs(1);

/// Scrubs until the sender of `stopped` is gone.
pub(crate) fn run(shared: &Shared, pace: ScrubPace, stopped: &Receiver<()>) {
    let mut scrub = Scrub::new(shared.reader.qlog().clone());
    let step_bytes = (pace.bytes_per_second / 10).max(1);
    // Until a round has ended, its age is that of the node.
    let mut ended = Instant::now();
    let mut begun = ended;
    let mut due = begun + STEP;
    loop {
        let wait = due.saturating_duration_since(Instant::now()).min(SHOW);
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
        let now = Instant::now();
        shared.metrics.scrub_age.set(now.duration_since(ended).as_secs_f64());
        if now < due {
            continue;
        }
        due = now + STEP;
        match scrub.step(step_bytes) {
            Scrubbed::Sound(bytes) => shared.metrics.scrub_bytes.increment(bytes),
            Scrubbed::Damaged { file, offset, reason } => {
                let what = format!("{}, byte {offset}: {reason}", file.display());
                drop(shared.damaged_read(&what));
            }
            Scrubbed::Round => {
                ended = now;
                due = due.max(begun + pace.every);
                begun = due;
            }
        }
    }
}
