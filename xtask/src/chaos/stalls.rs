//! When nothing moved for long, and what explains it: a pure function over histories and faults.

use std::fmt;

use super::oracle::History;

/// A pause that is longer is a stall: a lost leader costs four seconds at most, and a request that was sent to a silent
/// node is given up after five.
const STALL_US: u64 = 6_000_000;
/// How long a fault that is over may still be felt: an election, and a request that was sent before.
const FELT_US: u64 = 5_000_000;

/// Something that was done to the nodes, in microseconds since the load began.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) from: u64,
    pub(super) until: u64,
}

/// A time without progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) what: &'static str,
    pub(super) from: u64,
    pub(super) until: u64,
    /// The faults that overlap it, without repeats; nothing when it is not explained.
    pub(super) by: Vec<&'static str>,
}

impl fmt::Display for Stall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = (self.until - self.from) / 1_000;
        write!(out, "no {} for {seconds} ms from {} ms on", self.what, self.from / 1_000)?;
        if self.by.is_empty() {
            write!(out, ", unexplained")
        } else {
            write!(out, ": {}", self.by.join(", "))
        }
    }
}

/// The stalls of pushes and of deliveries up to a time.
pub(super) fn find(history: &History, faults: &[Fault], until: u64) -> Vec<Stall> {
    let stored = history.pushes.iter().filter_map(|push| push.stored.as_ref());
    let pushes = stored.map(|stored| stored.ended).collect();
    let deliveries = history.claims.iter().map(|claim| claim.ended).collect();
    let mut stalls = gaps("push is acknowledged", pushes, faults, until);
    stalls.extend(gaps("message is delivered", deliveries, faults, until));
    stalls
}

fn gaps(what: &'static str, mut times: Vec<u64>, faults: &[Fault], until: u64) -> Vec<Stall> {
    times.retain(|time| *time < until);
    times.extend([0, until]);
    times.sort_unstable();
    let pairs = times.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?)));
    let long = pairs.filter(|(from, until)| until - from > STALL_US);
    long.map(|(from, until)| {
        let felt = |fault: &&Fault| fault.from <= until && from <= fault.until + FELT_US;
        let mut by: Vec<_> = faults.iter().filter(felt).map(|fault| fault.name).collect();
        by.sort_unstable();
        by.dedup();
        Stall { what, from, until, by }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(times: &[u64], faults: &[(&'static str, u64, u64)], expected: &[(u64, u64, &[&str])]) {
        let second = 1_000_000;
        let faults: Vec<Fault> = faults
            .iter()
            .map(|(name, from, until)| Fault { name, from: from * second, until: until * second })
            .collect();
        let times = times.iter().map(|time| time * second).collect();
        let found = gaps("x", times, &faults, 60 * second);
        let found: Vec<_> = found
            .iter()
            .map(|stall| (stall.from / second, stall.until / second, &*stall.by))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_stall_names_what_overlaps_it() {
        let steady: Vec<u64> = (0..60).collect();
        check(&steady, &[("kill", 10, 12)], &[]);
        let gap =
            |from, until| steady.iter().copied().filter(move |at| *at <= from || *at >= until);
        let times: Vec<u64> = gap(20, 30).collect();
        check(&times, &[("kill", 10, 12)], &[(20, 30, &[])]);
        check(&times, &[("kill", 10, 16), ("cut", 29, 40)], &[(20, 30, &["cut", "kill"])]);
        check(&times, &[("cut", 21, 22), ("cut", 24, 25)], &[(20, 30, &["cut"])]);
    }

    #[test]
    fn the_ends_count_too() {
        check(&[7, 52], &[], &[(0, 7, &[]), (7, 52, &[]), (52, 60, &[])]);
        check(&[], &[], &[(0, 60, &[])]);
    }
}
