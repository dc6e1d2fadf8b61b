//! The duplicate filter: says "never seen" for certain, or where in the log to look.
//!
//! One filter serves all partitions. It is a chain of generations, each a table of 32-bit slots in buckets of
//! sixteen: a 20-bit fingerprint and the number of a *band*, a run of entries in whose records the hash stands. A hit
//! names the band, so the log is asked about a few thousand records at most. A hash costs 4 bytes in a table filled
//! to at most three quarters and sized by what came before: 5 to 11 bytes, nothing per partition and nothing per
//! push. Generations leave whole once their newest hash has left every window.
//!
//! A false hit needs an equal fingerprint in one of sixteen slots: 1 in 65,536 a generation, and costs one look at the
//! log. There is no false miss: a full bucket spills into the next one, and a search ends only at a free slot.

use queen_record::ids::{EntryIndex, Micros, PartitionId, TxHash};

/// Entries between two indexes, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// First entry.
    pub from: EntryIndex,
    /// Last entry.
    pub to: EntryIndex,
}

const BUCKET: usize = 16;
const BAND_BITS: u32 = 12;
const BANDS_MAX: usize = 1 << BAND_BITS;
const BAND_MASK: u32 = (1 << BAND_BITS) - 1;
/// 128 KiB: a quiet node's whole filter, and few small tables to look into on a busy one.
const SLOTS_MIN: usize = 1 << 15;
const SLOTS_MAX: usize = 1 << 24;

struct Generation {
    slots: Vec<u32>,
    held: usize,
    bands: Vec<Band>,
    in_band: usize,
    newest: Micros,
    opened: Micros,
}

impl Generation {
    fn new(slots: usize, opened: Micros) -> Self {
        Self {
            slots: vec![0; slots],
            held: 0,
            bands: Vec::new(),
            in_band: 0,
            newest: opened,
            opened,
        }
    }

    fn is_full(&self) -> bool {
        self.held >= self.slots.len() / 4 * 3
    }

    /// Hashes that share a band: a table's bands must be enough for all of it.
    fn band_len(&self) -> usize {
        self.slots.len().div_ceil(BANDS_MAX).max(8)
    }

    fn buckets(&self) -> usize {
        self.slots.len() / BUCKET
    }

    fn insert(&mut self, key: u64, index: Band, created: Micros) {
        let extends = self.bands.last().is_some_and(|band| band.from <= index.from);
        if !extends || self.in_band >= self.band_len() {
            // The last band number stays open when a table fed out of order used them up.
            if self.bands.len() < BANDS_MAX {
                self.bands.push(index);
                self.in_band = 0;
            }
        }
        self.in_band += 1;
        if let Some(band) = self.bands.last_mut() {
            band.from = band.from.min(index.from);
            band.to = band.to.max(index.to);
        }
        self.newest = self.newest.max(created);
        let band = u32::try_from(self.bands.len() - 1).unwrap_or(0);
        let slot = fingerprint(key) << BAND_BITS | band;
        let mut bucket = self.home(key);
        loop {
            let range = bucket * BUCKET..(bucket + 1) * BUCKET;
            if let Some(free) = self
                .slots
                .get_mut(range)
                .and_then(|slots| slots.iter_mut().find(|slot| **slot == 0))
            {
                *free = slot;
                self.held += 1;
                return;
            }
            bucket = (bucket + 1) % self.buckets();
        }
    }

    fn probe(&self, key: u64, found: &mut Vec<Band>) {
        let wanted = fingerprint(key);
        let (buckets, _) = self.slots.as_chunks::<BUCKET>();
        let mut at = self.home(key);
        while let Some(slots) = buckets.get(at) {
            // Two passes without a branch: the compiler makes each one or two vector instructions of the whole line.
            let has_free = slots.iter().map(|slot| u32::from(*slot == 0)).sum::<u32>() > 0;
            let hits = slots.iter().map(|slot| u32::from(slot >> BAND_BITS == wanted)).sum::<u32>();
            if hits > 0 {
                let hits = slots.iter().filter(|slot| **slot >> BAND_BITS == wanted);
                found.extend(hits.filter_map(|slot| self.bands.get((slot & BAND_MASK) as usize)));
            }
            if has_free {
                return;
            }
            at = (at + 1) % buckets.len();
        }
    }

    fn home(&self, key: u64) -> usize {
        usize::try_from(key & (self.buckets() as u64 - 1)).unwrap_or(0)
    }
}

/// The upper bits of a key, never 0: a free slot is 0.
fn fingerprint(key: u64) -> u32 {
    u32::try_from(key >> 44).unwrap_or(0).max(1)
}

/// Which hashes may have been stored lately, over all partitions.
#[derive(Default)]
pub struct DuplicateFilter {
    generations: Vec<Generation>,
}

impl DuplicateFilter {
    /// Notes a stored hash; `band` is the entry that stored it, or the run of entries it stands in.
    pub fn insert(&mut self, partition: PartitionId, hash: TxHash, band: Band, created: Micros) {
        if self.generations.last().is_none_or(Generation::is_full) {
            let last = self.generations.last().map_or(0, |last| last.slots.len());
            let slots = (last * 2).clamp(SLOTS_MIN, SLOTS_MAX);
            self.generations.push(Generation::new(slots, created));
        }
        if let Some(generation) = self.generations.last_mut() {
            generation.insert(key(partition, hash), band, created);
        }
    }

    /// Appends every band in which the hash may stand to `found`; none means it was never stored.
    pub fn probe(&self, partition: PartitionId, hash: TxHash, found: &mut Vec<Band>) {
        let key = key(partition, hash);
        for generation in &self.generations {
            generation.probe(key, found);
        }
    }

    /// Drops generations whose newest hash is older than `keep_since`, and closes one that has been open since before
    /// `close_before`, so that a quiet node's filter shrinks too.
    pub fn expire(&mut self, keep_since: Micros, close_before: Micros) {
        self.generations.retain(|generation| generation.newest >= keep_since);
        if let Some(last) = self.generations.last()
            && last.opened < close_before
        {
            // As large as what came in meanwhile: a quiet time makes the next one small again.
            let slots = (last.held * 2).next_power_of_two().clamp(SLOTS_MIN, SLOTS_MAX);
            self.generations.push(Generation::new(slots, last.newest));
        }
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.generations.iter().map(|g| g.slots.len() * 4 + g.bands.len() * size_of::<Band>()).sum()
    }
}

/// Mixes the partition into a hash that is already uniform.
fn key(partition: PartitionId, hash: TxHash) -> u64 {
    let low = u64::from_le_bytes(hash.0.first_chunk().copied().unwrap_or_default());
    (low ^ partition.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use queen_record::hash::tx_hash;

    use super::*;

    fn at(index: u64) -> Band {
        Band { from: EntryIndex(index), to: EntryIndex(index) }
    }

    fn probe(filter: &DuplicateFilter, partition: u64, hash: TxHash) -> Vec<Band> {
        let mut found = Vec::new();
        filter.probe(PartitionId(partition), hash, &mut found);
        found
    }

    #[test]
    fn every_hash_is_found_in_its_band_and_few_others_are() {
        let mut filter = DuplicateFilter::default();
        let count = 60_000u64;
        for n in 0..count {
            let time = Micros(i64::try_from(n).unwrap());
            filter.insert(PartitionId(n % 7), tx_hash(&format!("t{n}")), at(n), time);
        }
        for n in 0..count {
            let bands = probe(&filter, n % 7, tx_hash(&format!("t{n}")));
            assert!(bands.iter().any(|b| b.from.0 <= n && n <= b.to.0), "hash {n} in {bands:?}");
            assert!(bands.iter().all(|b| b.to.0 - b.from.0 < 64), "bands stay narrow: {bands:?}");
        }
        let false_hits = (0..count)
            .filter(|n| !probe(&filter, n % 7, tx_hash(&format!("other{n}"))).is_empty())
            .count();
        assert!(false_hits < 60, "{false_hits} false hits in {count}");
        let other_partition =
            (0..count).filter(|n| !probe(&filter, 9, tx_hash(&format!("t{n}"))).is_empty()).count();
        assert!(other_partition < 60, "{other_partition} hits in a foreign partition");
        let per_hash = filter.bytes() / usize::try_from(count).unwrap();
        assert!(per_hash <= 16, "{per_hash} bytes a hash");
    }

    #[test]
    fn old_generations_leave() {
        let mut filter = DuplicateFilter::default();
        for n in 0..60_000u64 {
            let time = Micros(i64::try_from(n).unwrap());
            filter.insert(PartitionId(1), tx_hash(&format!("t{n}")), at(n), time);
        }
        let before = filter.bytes();
        filter.expire(Micros(59_999), Micros(0));
        assert!(filter.bytes() < before);
        assert!(!probe(&filter, 1, tx_hash("t59999")).is_empty());
        filter.expire(Micros(59_999), Micros(60_000));
        filter.expire(Micros(70_000), Micros(0));
        assert!(probe(&filter, 1, tx_hash("t59999")).is_empty());
    }

    #[test]
    fn a_table_fed_out_of_order_keeps_its_hashes() {
        let mut filter = DuplicateFilter::default();
        for n in (0..30_000u64).rev() {
            filter.insert(PartitionId(1), tx_hash(&format!("t{n}")), at(n), Micros(5));
        }
        for n in 0..30_000u64 {
            let bands = probe(&filter, 1, tx_hash(&format!("t{n}")));
            assert!(bands.iter().any(|b| b.from.0 <= n && n <= b.to.0));
        }
    }
}
