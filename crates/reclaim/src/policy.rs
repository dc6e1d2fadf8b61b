//! What is dead, and what is done about it. Pure: no clock, disk or thread.

use queen_record::ids::{LogId, Micros, Offset, PartitionId};
use queen_record::qidx::QidxRecord;

/// Settings of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Percent of a file's message bytes that must be dead before it is rewritten; `None` is the first dead message in
    /// a queue's own log and half in a shared one.
    pub dead_pct_min: Option<u32>,
    /// Age of an active file's oldest record from which it may be sealed early, µs.
    pub seal_age_us: i64,
    /// A file that was looked at whole and kept is not looked at whole again for this long, unless its sample changed, µs.
    pub look_again_us: i64,
    /// Size at which files are sealed anyway.
    pub segment_bytes: u64,
}

impl Options {
    /// The settings a node has when its operator chose none.
    pub fn new(segment_bytes: u64) -> Self {
        Self {
            dead_pct_min: None,
            seal_age_us: 600_000_000,
            look_again_us: 60_000_000,
            segment_bytes,
        }
    }

    /// The share of dead bytes from which a file is rewritten, percent; 0 is the first dead message.
    pub fn dead_pct(&self, is_shared: bool) -> u32 {
        self.dead_pct_min.unwrap_or(if is_shared { SHARED_DEAD_PCT } else { 0 })
    }
}

/// In a shared log a rewrite also copies the other queues' messages.
const SHARED_DEAD_PCT: u32 = 50;
/// Records of a sample.
pub const SAMPLE: usize = 32;

/// What became of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It, or its queue, was deleted.
    Gone,
    /// It is there.
    Lives {
        /// The log that it writes to.
        log: LogId,
        /// Below, the bytes may be reclaimed.
        from: Offset,
    },
}

impl Fate {
    /// Whether a record in `log` whose messages end before `end` holds nothing that may be asked for.
    pub fn is_dead(self, log: LogId, end: Offset) -> bool {
        match self {
            Self::Gone => true,
            Self::Lives { log: other, from } => other != log || end <= from,
        }
    }

    /// Whether a record that starts at `base` is dead at least in part: what a sample can tell.
    fn is_dying(self, log: LogId, base: Offset) -> bool {
        match self {
            Self::Gone => true,
            Self::Lives { log: other, from } => other != log || base < from,
        }
    }
}

/// Sampled records that are dead at least in part.
pub fn dying(
    sample: &[(PartitionId, Offset)],
    log: LogId,
    mut fate: impl FnMut(PartitionId) -> Fate,
) -> usize {
    sample.iter().filter(|(partition, base)| fate(*partition).is_dying(log, *base)).count()
}

/// Whether a sample is reason to look at the whole file: half of what is asked for, since a sample may be off.
pub fn is_worth_a_look(dying: usize, sampled: usize, dead_pct: u32) -> bool {
    dying > 0 && 200 * dying as u64 >= sampled as u64 * u64::from(dead_pct)
}

/// Bytes of a file's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Of all.
    pub bytes: u64,
    /// Of the dead ones.
    pub dead_bytes: u64,
}

impl Tally {
    /// Adds a record.
    pub fn add(&mut self, record: &QidxRecord, is_dead: bool) {
        self.bytes += u64::from(record.len);
        if is_dead {
            self.dead_bytes += u64::from(record.len);
        }
    }

    /// What is done with the file.
    pub fn verdict(&self, dead_pct: u32) -> Verdict {
        if self.dead_bytes == self.bytes {
            return Verdict::Unlink;
        }
        let wanted = u128::from(self.bytes) * u128::from(dead_pct);
        let enough = self.dead_bytes > 0 && u128::from(self.dead_bytes) * 100 >= wanted;
        if enough { Verdict::Rewrite } else { Verdict::Keep }
    }
}

/// What is done with a sealed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Keep,
    /// Its live messages go to a new file.
    Rewrite,
    /// It goes. Entry records keep no file.
    Unlink,
}

/// An active file that is old enough to be sealed early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldFile {
    /// Its bytes.
    pub len: u64,
    /// Whether it holds messages.
    pub has_messages: bool,
    /// Whether one of those that were looked at is dead.
    pub has_dead: bool,
}

impl OldFile {
    /// Whether it is sealed. Age alone would make a tiny file per slow queue every ten minutes.
    pub fn is_sealed_early(&self, options: &Options) -> bool {
        self.has_dead || !self.has_messages || self.len >= options.segment_bytes / 8
    }
}

/// Whether a file whose first record was written at `oldest` may be sealed early.
pub fn is_old(oldest: Option<Micros>, now: Micros, options: &Options) -> bool {
    // Entries of the consensus library carry no time.
    oldest.is_some_and(|time| time.0 > 0 && now.0.saturating_sub(time.0) >= options.seal_age_us)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: LogId = LogId(7);

    fn record(end: u64, len: u32) -> QidxRecord {
        QidxRecord {
            partition: PartitionId(1),
            base: Offset(end - 1),
            end: Offset(end),
            created: Micros(1),
            at: 32,
            count: 1,
            len,
        }
    }

    #[test]
    fn dead_is_gone_elsewhere_or_below_the_mark() {
        let here = |from| Fate::Lives { log: LOG, from: Offset(from) };
        assert!(Fate::Gone.is_dead(LOG, Offset(0)));
        assert!(Fate::Lives { log: LogId(8), from: Offset(0) }.is_dead(LOG, Offset(9)));
        assert!(here(9).is_dead(LOG, Offset(9)), "the end is exclusive");
        assert!(!here(8).is_dead(LOG, Offset(9)));
    }

    #[test]
    fn thresholds() {
        let check = |dead: u32, live: u32, pct, expected| {
            let mut tally = Tally::default();
            tally.add(&record(1, dead), true);
            tally.add(&record(2, live), false);
            assert_eq!(tally.verdict(pct), expected, "{dead} of {}", dead + live);
        };
        check(0, 100, 0, Verdict::Keep);
        check(1, 1_000_000, 0, Verdict::Rewrite);
        check(49, 51, 50, Verdict::Keep);
        check(50, 50, 50, Verdict::Rewrite);
        check(100, 0, 50, Verdict::Unlink);
        check(1, 0, 100, Verdict::Unlink);
        assert_eq!(Tally::default().verdict(50), Verdict::Unlink, "nothing but entry records");
        let options = Options::new(800);
        assert_eq!((options.dead_pct(false), options.dead_pct(true)), (0, 50));
        let chosen = Options { dead_pct_min: Some(20), ..options };
        assert_eq!((chosen.dead_pct(false), chosen.dead_pct(true)), (20, 20));
    }

    #[test]
    fn early_seals() {
        let options = Options::new(800);
        let old = |len, has_messages, has_dead| {
            OldFile { len, has_messages, has_dead }.is_sealed_early(&options)
        };
        assert!(old(99, true, true) && old(40, false, false) && old(100, true, false));
        assert!(!old(99, true, false));
        let age = |oldest, now| is_old(oldest, Micros(now), &options);
        assert!(age(Some(Micros(5)), 600_000_005) && !age(Some(Micros(6)), 600_000_005));
        assert!(!age(None, i64::MAX) && !age(Some(Micros(0)), i64::MAX));
    }

    proptest! {
        /// What the whole file would have rewritten is looked at when the sample is the file.
        #[test]
        fn a_full_sample_never_hides_a_rewrite(
            dead in 0usize..40, live in 0usize..40, pct in 0u32..=100,
        ) {
            let mut tally = Tally::default();
            for at in 0..dead + live {
                tally.add(&record(1 + at as u64, 10), at < dead);
            }
            if dead > 0 && tally.verdict(pct) != Verdict::Keep {
                prop_assert!(is_worth_a_look(dead, dead + live, pct));
            }
        }
    }
}
