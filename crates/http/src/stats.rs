//! Counts of what this process served since it started.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Requests and messages by verb; relaxed counters, each only rises.
#[derive(Debug)]
pub struct HttpStats {
    /// When this was made.
    started: Instant,
    /// Push requests received.
    pub push_requests: AtomicU64,
    /// Items of pushes that the broker answered.
    pub push_messages: AtomicU64,
    /// Pop requests received.
    pub pop_requests: AtomicU64,
    /// Messages in pop answers.
    pub pop_messages: AtomicU64,
    /// Ack requests received.
    pub ack_requests: AtomicU64,
    /// Acknowledgments that the broker answered.
    pub ack_messages: AtomicU64,
    /// Transactions received; their messages count as pushed and acknowledged ones.
    pub transaction_requests: AtomicU64,
}

impl HttpStats {
    /// All zero, started now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            push_requests: AtomicU64::new(0),
            push_messages: AtomicU64::new(0),
            pop_requests: AtomicU64::new(0),
            pop_messages: AtomicU64::new(0),
            ack_requests: AtomicU64::new(0),
            ack_messages: AtomicU64::new(0),
            transaction_requests: AtomicU64::new(0),
        }
    }

    /// Time since [`HttpStats::new`].
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Push, pop, ack and transaction requests together.
    pub fn requests(&self) -> u64 {
        let transactions = &self.transaction_requests;
        sum(&[&self.push_requests, &self.pop_requests, &self.ack_requests, transactions])
    }

    /// Pushed, popped and acknowledged messages together.
    pub fn messages(&self) -> u64 {
        sum(&[&self.push_messages, &self.pop_messages, &self.ack_messages])
    }
}

impl Default for HttpStats {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn sum(counters: &[&AtomicU64]) -> u64 {
    counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
}
