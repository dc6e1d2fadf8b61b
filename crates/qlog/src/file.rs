//! One file of a log as readers see it.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::RwLock;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};
use queen_record::qidx::QidxRecord;

use crate::handles::Key;
use crate::names::Ext;
use crate::side::SideIndex;

/// Place of one message record in the active file: 24 bytes beside a key of 16.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) at: u64,
    pub(crate) created: Micros,
    pub(crate) count: u32,
    pub(crate) len: u32,
}

const _: () = assert!(size_of::<Slot>() == 24);

/// Index of a file that has no side files yet.
#[derive(Default)]
pub(crate) struct RamIndex {
    slots: BTreeMap<(PartitionId, Offset), Slot>,
}

impl RamIndex {
    pub(crate) fn insert(&mut self, record: &QidxRecord) {
        let slot =
            Slot { at: record.at, created: record.created, count: record.count, len: record.len };
        self.slots.insert(record.key(), slot);
    }

    /// Records of `partition` that end after `from`, ascending, at most `max`; and whether any record of the
    /// partition starts at or below `from`.
    pub(crate) fn records(
        &self,
        partition: PartitionId,
        from: Offset,
        max: usize,
    ) -> (Vec<QidxRecord>, bool) {
        let floor = self
            .slots
            .range((partition, Offset(0))..=(partition, from))
            .next_back()
            .map(|(key, slot)| to_record(*key, slot));
        let above = from.0.checked_add(1).map(|next| {
            self.slots.range((partition, Offset(next))..=(partition, Offset(u64::MAX)))
        });
        let found = floor
            .filter(|record| record.end > from)
            .into_iter()
            .chain(above.into_iter().flatten().map(|(key, slot)| to_record(*key, slot)))
            .take(max)
            .collect();
        (found, floor.is_some())
    }

    /// Puts the first `max` records behind `key`, or of all, into `out`, ascending.
    pub(crate) fn after(
        &self,
        key: Option<(PartitionId, Offset)>,
        max: usize,
        out: &mut Vec<QidxRecord>,
    ) {
        out.clear();
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.slots.range((from, Bound::Unbounded));
        out.extend(behind.take(max).map(|(key, slot)| to_record(*key, slot)));
    }

    /// Records of `partition` that overlap `offsets`, newest first, at most `max`.
    pub(crate) fn back(
        &self,
        partition: PartitionId,
        offsets: &Range<Offset>,
        max: usize,
    ) -> Vec<QidxRecord> {
        let below = self.slots.range((partition, Offset(0))..(partition, offsets.end)).rev();
        below
            .map(|(key, slot)| to_record(*key, slot))
            .take_while(|record| record.end > offsets.start)
            .take(max)
            .collect()
    }

    /// The first record of `partition` made at or after `time`. Times ascend with offsets, so they are bisected: the
    /// writer waits for this lock.
    pub(crate) fn first_at_or_after(
        &self,
        partition: PartitionId,
        time: Micros,
    ) -> Option<(Offset, Micros)> {
        let within = |from: u64, to: u64| {
            self.slots.range((partition, Offset(from))..=(partition, Offset(to)))
        };
        let found = |((_, base), slot): (&(PartitionId, Offset), &Slot)| (*base, slot.created);
        let first = within(0, u64::MAX).next().map(found)?;
        let mut high = within(0, u64::MAX).next_back().map(found)?;
        if first.1 >= time || high.1 < time {
            return (first.1 >= time).then_some(first);
        }
        // The record at `low` is older than `time`, the one at `high` is not.
        let mut low = first.0.0;
        loop {
            let middle = low.midpoint(high.0.0);
            let below = within(low, middle).next_back().map(found)?;
            if below.0.0 > low {
                if below.1 >= time {
                    high = below;
                } else {
                    low = below.0.0;
                }
                continue;
            }
            // Nothing starts between `low` and the middle: what follows `low` lies above it.
            let above = within(middle + 1, high.0.0).next().map(found)?;
            if above.1 >= time {
                return Some(above);
            }
            low = above.0.0;
        }
    }
}

fn to_record((partition, base): (PartitionId, Offset), slot: &Slot) -> QidxRecord {
    QidxRecord {
        partition,
        base,
        end: Offset(base.0.saturating_add(u64::from(slot.count))),
        created: slot.created,
        at: slot.at,
        count: slot.count,
        len: slot.len,
    }
}

/// Where a file's index is.
pub(crate) enum FileIndex {
    /// The active file, and a sealed one until its side files are written.
    Ram(RwLock<RamIndex>),
    /// Side files on disk.
    Side(SideIndex),
}

/// A file with records. Replaced as a whole when its side files appear.
pub(crate) struct LogFile {
    pub(crate) log: LogId,
    pub(crate) number: u64,
    /// Seq the file was made for: no record of it is lower, none of the file before is as high.
    pub(crate) first_seq: EntryIndex,
    pub(crate) path: PathBuf,
    pub(crate) index: FileIndex,
    /// Tells its open handles from those of a file that had its name before.
    pub(crate) epoch: u64,
    /// Set before its name goes, or becomes another file's.
    pub(crate) gone: AtomicBool,
    /// Its bytes if it took another file's place: for a moment the tail has those of the other one.
    pub(crate) rewritten: Option<u64>,
}

impl LogFile {
    pub(crate) fn new(
        log: LogId,
        number: u64,
        first_seq: EntryIndex,
        path: PathBuf,
        index: FileIndex,
        epoch: u64,
    ) -> Arc<Self> {
        let gone = AtomicBool::new(false);
        Arc::new(Self { log, number, first_seq, path, index, epoch, gone, rewritten: None })
    }

    /// The file that takes the place of this one.
    pub(crate) fn replaced(&self, index: FileIndex, epoch: u64, len: u64) -> Arc<Self> {
        Arc::new(Self {
            path: self.path.clone(),
            index,
            epoch,
            gone: AtomicBool::new(false),
            rewritten: Some(len),
            ..*self
        })
    }

    /// The name of one of its handles.
    pub(crate) fn key(&self, ext: Ext) -> Key {
        (self.log, self.number, ext, self.epoch)
    }

    pub(crate) fn insert(&self, records: &[QidxRecord]) {
        if let FileIndex::Ram(index) = &self.index {
            let mut index = index.write();
            for record in records {
                index.insert(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn look_ups_find_what_a_walk_finds(
            steps in proptest::collection::vec((1u32..9, 1i64..5), 0..60),
            time in -2i64..200,
            (from, len, max) in (0u64..200, 0u64..60, 0usize..9),
        ) {
            let mut index = RamIndex::default();
            let (mut base, mut created, mut all) = (0, 0, Vec::new());
            for (count, later) in steps {
                created += later;
                let record = QidxRecord {
                    partition: PartitionId(2),
                    base: Offset(base),
                    end: Offset(base + u64::from(count)),
                    created: Micros(created),
                    at: 64,
                    count,
                    len: 9,
                };
                base = record.end.0;
                // Neighbours must not be found.
                for partition in [1, 3] {
                    let partition = PartitionId(partition);
                    index.insert(&QidxRecord { partition, created: Micros(1), ..record });
                }
                index.insert(&record);
                all.push(record);
            }
            let walked = all.iter().find(|record| record.created.0 >= time);
            let found = index.first_at_or_after(PartitionId(2), Micros(time));
            prop_assert_eq!(found, walked.map(|record| (record.base, record.created)));
            let offsets = Offset(from)..Offset(from + len);
            let walked: Vec<QidxRecord> = all
                .iter()
                .rev()
                .filter(|record| record.base < offsets.end && record.end > offsets.start)
                .take(max)
                .copied()
                .collect();
            prop_assert_eq!(index.back(PartitionId(2), &offsets, max), walked);
        }
    }
}
