//! Wall and monotonic time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Source of time. Units: microseconds everywhere.
pub trait Clock: Send + Sync + 'static {
    /// Wall clock, since the Unix epoch. May jump either way.
    fn wall_us(&self) -> i64;
    /// Monotonic clock from an arbitrary start. Never goes back.
    fn monotonic_us(&self) -> i64;
}

/// The operating system's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_us(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    fn monotonic_us(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

/// A clock that stands still until a test moves it; both readings move together.
pub struct ManualClock {
    now_us: AtomicI64,
}

impl ManualClock {
    /// A clock standing at `now_us`.
    pub fn new(now_us: i64) -> Self {
        Self { now_us: AtomicI64::new(now_us) }
    }

    /// Moves the clock forward by `delta_us`.
    pub fn advance_us(&self, delta_us: i64) {
        self.now_us.fetch_add(delta_us, Ordering::SeqCst);
    }

    /// Puts the clock at `now_us`.
    pub fn set_us(&self, now_us: i64) {
        self.now_us.store(now_us, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_us(&self) -> i64 {
        self.now_us.load(Ordering::SeqCst)
    }

    fn monotonic_us(&self) -> i64 {
        self.now_us.load(Ordering::SeqCst)
    }
}
