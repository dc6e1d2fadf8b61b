//! Places inside the active file, far apart, so that whoever looks for an entry need not read all before it.

use queen_record::header::HEADER_LEN;
use queen_record::ids::EntryIndex;

/// Bytes between two places: 4 KiB of memory for a file of 64 MiB.
const APART: u64 = 256 * 1024;

/// Entries and the bytes behind their parts, ascending.
#[derive(Default)]
pub(crate) struct Points(Vec<(EntryIndex, u64)>);

impl Points {
    /// The part of an entry above all others ends here.
    pub(crate) fn add(&mut self, index: EntryIndex, end: u64) {
        let last = self.0.last().map_or(HEADER_LEN as u64, |point| point.1);
        if end.saturating_sub(last) >= APART {
            self.0.push((index, end));
        }
    }

    /// A place before the part of `index`, if it has one, behind which no lower part is far.
    pub(crate) fn before(&self, index: EntryIndex) -> u64 {
        let behind = self.0.partition_point(|point| point.0 < index);
        let point = behind.checked_sub(1).and_then(|place| self.0.get(place));
        point.map_or(HEADER_LEN as u64, |point| point.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_far_apart_and_before_what_is_looked_for() {
        let mut points = Points::default();
        for index in 1..=1000 {
            points.add(EntryIndex(index), HEADER_LEN as u64 + index * 1000);
        }
        assert_eq!(points.0.len(), 1_000_000 / 263_000);
        for index in 1..=1001 {
            let place = points.before(EntryIndex(index));
            let start = HEADER_LEN as u64 + (index - 1) * 1000;
            assert!(place <= start && start - place < APART + 1000, "{index}: {place}");
        }
    }
}
