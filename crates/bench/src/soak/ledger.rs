//! What was pushed to a queue and what came of it, message by message.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::check::Verdict;

/// Follows the lanes of one queue, whose messages are numbered from 0 without a gap.
///
/// A message that never came is *expired* when the queue's retention may have removed it by the time at which that was
/// noticed, and *missing* otherwise.
pub(super) struct Ledger {
    lanes: Vec<Lane>,
    retention_us: Option<u64>,
    received: u64,
    expired: u64,
    verdict: Verdict,
}

#[derive(Clone, Default)]
struct Lane {
    /// When each message was made; those at the end may not be confirmed yet.
    made_us: Vec<u64>,
    confirmed: usize,
    /// The number after the last that was received or is known to be gone.
    next: usize,
    /// Numbers below `next` that did not come.
    gone: Vec<u64>,
}

/// A ledger that producers and consumers write.
#[derive(Clone)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    pub(super) fn new(lanes: u32, retention: Option<Duration>) -> Self {
        Self(Arc::new(Mutex::new(Ledger::new(lanes, retention))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap()
    }
}

impl Ledger {
    fn new(lanes: u32, retention: Option<Duration>) -> Self {
        let retention_us = retention.map(|time| time.as_micros() as u64);
        let lanes = vec![Lane::default(); lanes as usize];
        Self { lanes, retention_us, received: 0, expired: 0, verdict: Verdict::default() }
    }

    /// A message is about to be sent; its number.
    pub(super) fn make(&mut self, lane: u32, now_us: u64) -> u64 {
        let made = &mut self.lanes[lane as usize].made_us;
        made.push(now_us);
        made.len() as u64 - 1
    }

    /// A message was confirmed, and so were those before it.
    pub(super) fn confirm(&mut self, lane: u32, seq: u64) {
        self.lanes[lane as usize].confirmed = seq as usize + 1;
    }

    /// A message was received.
    pub(super) fn receive(&mut self, lane: u32, seq: u64, now_us: u64) {
        self.received += 1;
        let Some(known) = self.lanes.get_mut(lane as usize) else {
            self.verdict.out_of_order += 1;
            return;
        };
        let number = seq as usize;
        if number >= known.made_us.len() || known.gone.contains(&seq) {
            // Nobody made it, or one behind it came before.
            self.verdict.out_of_order += 1;
        } else if number < known.next {
            self.verdict.duplicates += 1;
        } else {
            self.skip(lane, number, now_us);
            self.lanes[lane as usize].next = number + 1;
        }
    }

    /// Nothing more will come: what is confirmed and did not come is expired or missing.
    pub(super) fn close(&mut self, now_us: u64) {
        for lane in 0..self.lanes.len() {
            self.skip(lane as u32, self.lanes[lane].confirmed, now_us);
        }
    }

    /// Whether everything that is confirmed has come or may have expired.
    pub(super) fn is_settled(&self, now_us: u64) -> bool {
        let is_settled = |lane: &Lane| {
            let open = lane.made_us.get(lane.next..lane.confirmed).unwrap_or_default();
            open.iter().all(|made| self.is_expired(*made, now_us))
        };
        self.lanes.iter().all(is_settled)
    }

    /// Per lane how many messages were confirmed.
    pub(super) fn confirmed(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.confirmed as u64).collect()
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What a lane holds below `end` and did not deliver is gone.
    fn skip(&mut self, lane: u32, end: usize, now_us: u64) {
        let known = &self.lanes[lane as usize];
        for number in known.next..end {
            let is_expired = self.is_expired(self.lanes[lane as usize].made_us[number], now_us);
            self.expired += u64::from(is_expired);
            self.verdict.missing += u64::from(!is_expired);
            if !is_expired {
                self.lanes[lane as usize].gone.push(number as u64);
            }
        }
        let next = &mut self.lanes[lane as usize].next;
        *next = end.max(*next);
    }

    /// The node took it no earlier than it was made, and judges its age by the same clock.
    fn is_expired(&self, made_us: u64, now_us: u64) -> bool {
        self.retention_us.is_some_and(|retention| made_us + retention <= now_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four messages of one lane made at 0, 10, 20, 30 us, all confirmed; some received at 35 us, closed then.
    fn check(retention_us: Option<u64>, received: &[u64], expected: (u64, [u64; 3])) {
        let mut ledger = Ledger::new(1, retention_us.map(Duration::from_micros));
        for at in 0..4 {
            let seq = ledger.make(0, at * 10);
            ledger.confirm(0, seq);
        }
        assert!(!ledger.is_settled(9));
        for seq in received {
            ledger.receive(0, *seq, 35);
        }
        ledger.close(35);
        assert!(ledger.is_settled(35));
        let Verdict { missing, duplicates, out_of_order } = ledger.verdict();
        let found = (ledger.expired(), [missing, duplicates, out_of_order]);
        assert_eq!(found, expected, "{received:?} of a retention of {retention_us:?}");
    }

    #[test]
    fn each_fault_is_counted_and_an_expired_message_is_none() {
        check(None, &[0, 1, 2, 3], (0, [0, 0, 0]));
        check(None, &[0, 1, 3], (0, [1, 0, 0]));
        check(None, &[0, 1, 2], (0, [1, 0, 0]));
        check(None, &[0, 1, 1, 2, 3], (0, [0, 1, 0]));
        check(None, &[0, 2, 1, 3], (0, [1, 0, 1]));
        check(None, &[0, 1, 2, 3, 4], (0, [0, 0, 1]));
        check(Some(20), &[2, 3], (2, [0, 0, 0]));
        check(Some(20), &[3], (2, [1, 0, 0]));
        check(Some(20), &[], (2, [2, 0, 0]));
        check(Some(5), &[], (4, [0, 0, 0]));
    }
}
