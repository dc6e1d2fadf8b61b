//! The clocks of a node, over the simulated time.

use std::sync::atomic::{AtomicI64, Ordering};

use queen_io::Clock;
use queen_record::ids::Micros;
use tokio::time::Instant;

use crate::node::EPOCH;

/// Both clocks of one node: its wall clock may be set.
pub(crate) struct NodeClock {
    begin: Instant,
    skew_us: AtomicI64,
}

impl NodeClock {
    /// Clocks of a run that began then.
    pub(crate) fn new(begin: Instant, skew_us: i64) -> Self {
        Self { begin, skew_us: AtomicI64::new(skew_us) }
    }

    /// Sets the wall clock that much ahead of the time, or behind it.
    pub(crate) fn set_ahead_us(&self, by: i64) {
        self.skew_us.store(by, Ordering::SeqCst);
    }
}

impl Clock for NodeClock {
    fn wall_us(&self) -> i64 {
        EPOCH + self.monotonic_us() + self.skew_us.load(Ordering::SeqCst)
    }

    fn monotonic_us(&self) -> i64 {
        i64::try_from(self.begin.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

/// The time that a node plans by: the wall clock at its start, carried on by monotonic time.
pub(crate) struct PlanClock {
    clock: std::sync::Arc<NodeClock>,
    ahead_us: i64,
}

impl PlanClock {
    pub(crate) fn new(clock: std::sync::Arc<NodeClock>) -> Self {
        let ahead_us = clock.wall_us() - clock.monotonic_us();
        Self { clock, ahead_us }
    }

    pub(crate) fn now(&self) -> Micros {
        Micros(self.clock.monotonic_us() + self.ahead_us)
    }
}
