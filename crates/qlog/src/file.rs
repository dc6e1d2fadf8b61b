//! One file of a log as readers see it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};
use queen_record::qidx::QidxRecord;

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

    /// The first record of `partition` made at or after `time`.
    pub(crate) fn first_at_or_after(
        &self,
        partition: PartitionId,
        time: Micros,
    ) -> Option<(Offset, Micros)> {
        self.slots
            .range((partition, Offset(0))..=(partition, Offset(u64::MAX)))
            .find(|(_, slot)| slot.created >= time)
            .map(|((_, base), slot)| (*base, slot.created))
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
}

impl LogFile {
    pub(crate) fn new(
        log: LogId,
        number: u64,
        first_seq: EntryIndex,
        path: PathBuf,
        index: FileIndex,
    ) -> Arc<Self> {
        Arc::new(Self { log, number, first_seq, path, index })
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
