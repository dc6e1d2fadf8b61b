//! Whether consumers got every message of every lane once and in order.

use std::collections::BTreeSet;

/// What was wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) missing: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
}

impl Verdict {
    pub(crate) fn is_clean(self) -> bool {
        self == Self::default()
    }
}

/// Follows the numbers of each lane, which start at 0 and have no gap.
pub(crate) struct Check {
    lanes: Vec<Seen>,
    duplicates: u64,
    out_of_order: u64,
}

#[derive(Clone, Default)]
struct Seen {
    /// All below were received.
    next: u64,
    /// Received above a gap.
    ahead: BTreeSet<u64>,
}

impl Check {
    pub(crate) fn new(lanes: u32) -> Self {
        let lanes = vec![Seen::default(); lanes as usize];
        Self { lanes, duplicates: 0, out_of_order: 0 }
    }

    /// A message was received.
    pub(crate) fn receive(&mut self, lane: u32, seq: u64) {
        let Some(seen) = self.lanes.get_mut(lane as usize) else {
            self.out_of_order += 1;
            return;
        };
        if seq < seen.next || seen.ahead.contains(&seq) {
            self.duplicates += 1;
            return;
        }
        if seen.ahead.last().is_some_and(|last| seq < *last) {
            self.out_of_order += 1;
        }
        if seq > seen.next {
            seen.ahead.insert(seq);
            return;
        }
        seen.next += 1;
        while seen.ahead.remove(&seen.next) {
            seen.next += 1;
        }
    }

    /// The result, given how many messages of each lane were confirmed. More may have been stored: a push without an
    /// answer has an unknown outcome.
    pub(crate) fn verdict(&self, confirmed: &[u64]) -> Verdict {
        let mut missing = 0;
        for (seen, confirmed) in self.lanes.iter().zip(confirmed) {
            let ahead = seen.ahead.range(..*confirmed).count() as u64;
            missing += confirmed.saturating_sub(seen.next).saturating_sub(ahead);
            // A hole below what was received is a loss as well, confirmed or not.
            if let Some(last) = seen.ahead.last().filter(|last| **last >= *confirmed) {
                missing += u64::from(*last > seen.next.max(*confirmed));
            }
        }
        Verdict { missing, duplicates: self.duplicates, out_of_order: self.out_of_order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(received: &[u64], confirmed: u64) -> [u64; 3] {
        let mut check = Check::new(1);
        for seq in received {
            check.receive(0, *seq);
        }
        let verdict = check.verdict(&[confirmed]);
        [verdict.missing, verdict.duplicates, verdict.out_of_order]
    }

    #[test]
    fn each_fault_is_counted() {
        assert_eq!(check(&[0, 1, 2], 3), [0, 0, 0]);
        assert_eq!(check(&[0, 1, 2, 3], 3), [0, 0, 0]);
        assert_eq!(check(&[0, 2], 3), [1, 0, 0]);
        assert_eq!(check(&[0, 1, 1, 2], 3), [0, 1, 0]);
        assert_eq!(check(&[0, 2, 1], 3), [0, 0, 1]);
        assert_eq!(check(&[0, 2, 2, 1], 3), [0, 1, 1]);
        assert_eq!(check(&[], 2), [2, 0, 0]);
        assert_eq!(check(&[0, 5], 1), [1, 0, 0]);
    }
}
