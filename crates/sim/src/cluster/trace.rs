//! What happened, line by line: the same seed gives the same lines.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The trace of a run. Clones are handles of one.
#[derive(Clone)]
pub(crate) struct Trace {
    begin: Instant,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    digest: u64,
    lines: u64,
    line: String,
    kept: Option<String>,
}

impl Trace {
    /// An empty one, that begins now. Without `keep` only a digest of the lines is kept.
    pub(crate) fn new(keep: bool) -> Self {
        let kept = keep.then(String::new);
        let inner = Inner { digest: 0, lines: 0, line: String::new(), kept };
        Self { begin: Instant::now(), inner: Arc::new(Mutex::new(inner)) }
    }

    /// Simulated time since the run began, µs.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Adds a line.
    pub(crate) fn note(&self, what: std::fmt::Arguments<'_>) {
        let now = self.now_us();
        let inner = &mut *self.inner.lock();
        inner.line.clear();
        // Writing to a string cannot fail.
        writeln!(inner.line, "{now:>10} {what}").unwrap_or_default();
        inner.digest = xxh3_64_with_seed(inner.line.as_bytes(), inner.digest);
        inner.lines += 1;
        if let Some(kept) = &mut inner.kept {
            kept.push_str(&inner.line);
        }
    }

    /// A hash over all lines, and their number.
    pub(crate) fn digest(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.digest, inner.lines)
    }

    /// The lines, if they were to be kept.
    pub(crate) fn text(&self) -> Option<String> {
        self.inner.lock().kept.clone()
    }
}
