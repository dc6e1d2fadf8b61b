//! What a directory holds: its state, and for each partition a tally of the stored records that are live.

use std::collections::BTreeMap;
use std::sync::Arc;

use queen_broker::StartError;
use queen_broker::recover::Opened;
use queen_doctor::Target;
use queen_io::{Disk, ScratchDisk};
use queen_qlog::MergedRecord;
use queen_record::hash::{checksum, queue_id};
use queen_record::ids::{LogId, Offset, PartitionId};
use queen_record::layout::Layout;
use queen_record::qhsh::QHSH_HEAD_LEN;
use queen_record::qidx::QIDX_RECORD_LEN;
use queen_record::record::HASH_LEN;
use queen_state::Keyspace;

use crate::error::RelayoutError;
use crate::progress::Progress;

/// A directory as a start would have it.
pub(crate) struct Content {
    pub(crate) opened: Opened,
}

/// What a start does with a stored record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is needed.
    Live,
    /// Its space may be given back.
    Dead,
}

/// The live records of one partition, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Of the stored bytes of all of them: equal only in the same order.
    sum: u64,
    /// The last run of offsets without a hole.
    first: Offset,
    next: Offset,
}

/// By partition: about 80 bytes for each that has messages.
pub(crate) type Tallies = BTreeMap<PartitionId, Tally>;

impl Content {
    /// Runs the start of a node on the directory, in memory.
    pub(crate) fn open(disk: &Arc<dyn Disk>, target: &Target) -> Result<Self, StartError> {
        let scratch: Arc<dyn Disk> = Arc::new(ScratchDisk::new(disk.clone(), &target.dir));
        queen_doctor::start(&scratch, target).map(|opened| Self { opened })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.opened.qlog.layout()
    }

    pub(crate) fn digest(&self) -> [u64; Keyspace::ALL.len()] {
        self.opened.state.digest()
    }

    /// The log of a partition under a layout; `None` when the partition is gone.
    pub(crate) fn log_under(&self, layout: Layout, partition: PartitionId) -> Option<LogId> {
        let state = &self.opened.state;
        let queue = state.queue_by_number(state.partition(partition)?.queue)?;
        Some(layout.log_of(queue_id(queue.tenant, &queue.name), Some(partition)))
    }

    /// The fate of a partition's record in `log` that ends at `end`, by the rule of reclaim.
    pub(crate) fn fate(&self, log: LogId, partition: PartitionId, end: Offset) -> Fate {
        let from = self.opened.state.reclaimable(partition);
        let is_live = from.is_some_and(|from| end > from)
            && self.log_under(self.layout(), partition) == Some(log);
        if is_live { Fate::Live } else { Fate::Dead }
    }

    /// Bytes that the live records take in other logs, with their indexes. Reads only indexes.
    pub(crate) fn live_bytes(&self) -> Result<u64, RelayoutError> {
        let mut bytes = 0;
        self.opened.qlog.each_place(&mut |log, place| {
            if self.fate(log, place.partition, place.end) == Fate::Live {
                let index = (QIDX_RECORD_LEN + QHSH_HEAD_LEN) as u64;
                bytes += u64::from(place.len) + index + HASH_LEN as u64 * u64::from(place.count);
            }
        })?;
        Ok(bytes)
    }

    /// Reads and verifies every record, and hands over the live ones, in the order of their entries.
    pub(crate) fn tally(
        &self,
        progress: &Progress,
        live: &mut dyn FnMut(&MergedRecord<'_>) -> Result<(), RelayoutError>,
    ) -> Result<(Tallies, u64), RelayoutError> {
        let mut tallies = Tallies::new();
        let mut dead = 0;
        let mut merged = self.opened.qlog.merged()?;
        while let Some(record) = merged.next_record()? {
            let head = &record.head;
            let end = head.end().unwrap_or(Offset(u64::MAX));
            match self.fate(record.log, head.partition, end) {
                Fate::Dead => dead += record.bytes.len() as u64,
                Fate::Live => {
                    let fresh = Tally::new(head.base);
                    tallies.entry(head.partition).or_insert(fresh).add(&record, end);
                    live(&record)?;
                }
            }
            progress.set_done(merged.bytes_read());
        }
        Ok((tallies, dead))
    }

    /// The first partition whose readers would miss something: its log, and what it lacks.
    pub(crate) fn lacks(&self, tallies: &Tallies) -> Option<(LogId, String)> {
        let state = &self.opened.state;
        for (id, row) in state.partitions() {
            let Some(log) = self.log_under(self.layout(), id) else { continue };
            let (start, next) = (row.log_start(), row.next_offset());
            let tally = tallies.get(&id);
            let is_whole = match tally {
                None => start >= next,
                Some(tally) => tally.next == next && (tally.first <= start || start >= next),
            };
            if !is_whole {
                let name = state.partition_name(row);
                let has = tally.map_or_else(
                    || "none of them is there".to_owned(),
                    |tally| format!("those from {} to {} are there", tally.first, tally.next),
                );
                let what = format!(
                    "partition {name:?} ({id}) should have the messages from offset {start} to {next}, and {has}"
                );
                return Some((log, what));
            }
        }
        None
    }

    /// In what another directory differs from this one: `None` when both hold the same.
    pub(crate) fn difference(
        &self,
        tallies: &Tallies,
        other: &Self,
        progress: &Progress,
    ) -> Result<Option<String>, RelayoutError> {
        let (applied, there) = (self.opened.state.applied(), other.opened.state.applied());
        if applied != there {
            return Ok(Some(format!("it ends with entry {there}, not {applied}")));
        }
        if other.opened.cut.bytes > 0 {
            return Ok(Some("a start would cut something from it".to_owned()));
        }
        let digests = self.digest().into_iter().zip(other.digest());
        let table = Keyspace::ALL.into_iter().zip(digests).find(|(_, (here, there))| here != there);
        if let Some((keyspace, _)) = table {
            return Ok(Some(format!("its rows of {} are others", keyspace.name())));
        }
        let (found, dead) = other.tally(progress, &mut |_| Ok(()))?;
        if dead > 0 {
            return Ok(Some(format!("it has {dead} bytes of records that are not live")));
        }
        let ids = tallies.keys().chain(found.keys());
        let differs = ids.into_iter().find(|id| tallies.get(id) != found.get(id));
        Ok(differs.map(|id| {
            let said = |tallies: &Tallies| {
                let tally = tallies.get(id);
                tally.map_or_else(
                    || "none".to_owned(),
                    |tally| format!("{} with checksum {:016x}", tally.records, tally.sum),
                )
            };
            format!("its records of partition {id} are {}, not {}", said(&found), said(tallies))
        }))
    }
}

impl Tally {
    fn new(base: Offset) -> Self {
        Self { records: 0, messages: 0, bytes: 0, sum: 0, first: base, next: base }
    }

    fn add(&mut self, record: &MergedRecord<'_>, end: Offset) {
        let head = &record.head;
        if head.base != self.next {
            self.first = head.base;
        }
        self.next = end;
        self.records += 1;
        self.messages += u64::from(head.count);
        self.bytes += record.bytes.len() as u64;
        // The checksum that was verified stands for all bytes but the length.
        let mut chain = [0; 20];
        let fields = self.sum.to_le_bytes().into_iter().chain(head.checksum.to_le_bytes());
        for (slot, byte) in chain.iter_mut().zip(fields.chain(head.len.to_le_bytes())) {
            *slot = byte;
        }
        self.sum = checksum(&chain);
    }
}
