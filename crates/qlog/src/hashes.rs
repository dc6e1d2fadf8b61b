//! Finding transactionId hashes: for one possible duplicate, and all of them to fill the filters at a start.
//!
//! Sealed files answer from their `.qhsh`, the others from verified records.

use std::ops::Range;

use queen_record::hash::checksum;
use queen_record::header::HEADER_LEN;
use queen_record::ids::{LogId, Micros, Offset, PartitionId, TxHash};
use queen_record::qhsh::QhshRecord;
use queen_record::record::{HASH_LEN, Record};

use crate::error::{Fault, ReadError};
use crate::file::{FileIndex, LogFile};
use crate::log::Log;
use crate::names::Ext;
use crate::read::{LOOK_UP, SeqRange, Wait, damage, seq_range, verify};
use crate::scan::{CHUNK_MERGE, FileScan, Step};
use crate::shared::{Qlog, Shared};
use crate::side::{SideIndex, WINDOW};

/// A message whose transactionId has the hash that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundHash {
    /// The message.
    pub offset: Offset,
    /// Its record's time of creation.
    pub created: Micros,
}

/// Takes the hashes of one message record: its log, the entries it may belong to, its partition, one hash per message,
/// and its time of creation.
pub type HashSink<'a> = dyn FnMut(LogId, SeqRange, PartitionId, &[TxHash], Micros) + 'a;

impl Qlog {
    /// Messages of a partition with this hash, ascending.
    ///
    /// Shape: `offsets` is exact. `within` passes files by; in the active file it is exact, of a sealed file all records
    /// count once the ranges touch.
    ///
    /// # Errors
    /// As `read`.
    pub fn find_hash(
        &self,
        log: LogId,
        partition: PartitionId,
        hash: TxHash,
        within: SeqRange,
        offsets: Range<Offset>,
    ) -> Result<Vec<FoundHash>, ReadError> {
        let found = self.shared.with_files(log, Wait::Yes, |files| {
            let mut found = Vec::new();
            for (place, file) in files.iter().enumerate() {
                let seqs = seq_range(files, place);
                if seqs.to < within.from || seqs.from > within.to {
                    continue;
                }
                let found = &mut found;
                match &file.index {
                    FileIndex::Side(side) => {
                        self.shared.hashes_in_side(file, side, partition, hash, &offsets, found)?;
                    }
                    FileIndex::Ram(_) => {
                        self.shared
                            .hashes_in_ram(file, partition, hash, within, &offsets, found)?;
                    }
                }
            }
            Ok(Some(found))
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Hands over the hashes of every message record made at or after `since`, to fill the duplicate filters.
    ///
    /// Shape: by log, file by file; within a file by partition and offset when it is sealed, else in the order
    /// written. The range says which entries the record may belong to. Nothing may be reclaimed meanwhile.
    ///
    /// # Errors
    /// As `read`.
    pub fn hashes_since(&self, since: Micros, f: &mut HashSink<'_>) -> Result<(), ReadError> {
        let mut hashes = Vec::new();
        for log in self.shared.all_logs() {
            let files = log.files();
            for (place, file) in files.iter().enumerate() {
                match &file.index {
                    FileIndex::Side(side) if side.created.1 < since => {}
                    FileIndex::Side(side) => {
                        let range = seq_range(&files, place);
                        self.shared.side_hashes(file, side, &mut |record| {
                            if record.head.created >= since {
                                hashes.clear();
                                hashes.extend(record.tx_hashes());
                                let head = record.head;
                                f(log.id, range, head.partition, &hashes, head.created);
                            }
                        })?;
                    }
                    FileIndex::Ram(_) => self.shared.scan_hashes(&log, file, &mut |record| {
                        if record.head.created >= since {
                            hashes.clear();
                            hashes.extend(record.tx_hashes());
                            let head = record.head;
                            let range = SeqRange { from: head.seq, to: head.seq };
                            f(log.id, range, head.partition, &hashes, head.created);
                        }
                    })?,
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    fn hashes_in_side(
        &self,
        file: &LogFile,
        side: &SideIndex,
        partition: PartitionId,
        hash: TxHash,
        offsets: &Range<Offset>,
        found: &mut Vec<FoundHash>,
    ) -> Result<(), ReadError> {
        if partition < side.partitions.0 || partition > side.partitions.1 {
            return Ok(());
        }
        let mut block = side.hash_block_of((partition, offsets.start));
        while side.hash_key(block).is_some_and(|key| key < (partition, offsets.end)) {
            let Some(range) = side.hash_range(block) else { break };
            let bytes = self.side_block(file, Ext::Hashes, range, Wait::Yes)?.unwrap_or_default();
            let mut rest = bytes.as_slice();
            while let Some(record) = QhshRecord::decode(rest) {
                rest = rest.get(record.total_len()..).unwrap_or_default();
                if record.head.partition == partition {
                    let head = record.head;
                    collect(record.hashes, head.base, head.created, hash, offsets, found);
                }
            }
            block += 1;
        }
        Ok(())
    }

    fn hashes_in_ram(
        &self,
        file: &LogFile,
        partition: PartitionId,
        hash: TxHash,
        within: SeqRange,
        offsets: &Range<Offset>,
        found: &mut Vec<FoundHash>,
    ) -> Result<(), ReadError> {
        let mut next = offsets.start;
        while next < offsets.end {
            let (records, _) =
                self.records(file, partition, next, LOOK_UP, Wait::Yes)?.unwrap_or_default();
            let Some(last) = records.last() else { break };
            next = last.end;
            for wanted in records.iter().take_while(|record| record.base < offsets.end) {
                let len = u64::from(wanted.len);
                let bytes =
                    self.pread(file, Ext::Log, wanted.at, len, Wait::Yes)?.unwrap_or_default();
                let record = verify(file, wanted, &bytes)?;
                if (within.from..=within.to).contains(&record.head.seq) {
                    let head = record.head;
                    collect(record.hashes, head.base, head.created, hash, offsets, found);
                }
            }
        }
        Ok(())
    }

    /// Every record of a sealed file's hashes, several blocks per read, each verified.
    fn side_hashes(
        &self,
        file: &LogFile,
        side: &SideIndex,
        f: &mut dyn FnMut(&QhshRecord<'_>),
    ) -> Result<(), ReadError> {
        let path = file.path.with_extension("qhsh");
        let mut block = 0;
        while let Some((from, mut until, _)) = side.hash_range(block) {
            let mut ranges = vec![];
            while let Some(range) = side.hash_range(block) {
                if !ranges.is_empty() && range.1 - from > WINDOW as u64 {
                    break;
                }
                until = range.1;
                ranges.push(range);
                block += 1;
            }
            let bytes =
                self.pread(file, Ext::Hashes, from, until.saturating_sub(from), Wait::Yes)?;
            let mut rest = bytes.as_deref().unwrap_or_default();
            for (from, until, sum) in ranges {
                let len = usize::try_from(until.saturating_sub(from)).unwrap_or(usize::MAX);
                let (mut block, behind) = rest.split_at_checked(len).unwrap_or_default();
                if checksum(block) != sum {
                    return Err(damage(&path, from, "the block is not what it was at the start"));
                }
                while let Some(record) = QhshRecord::decode(block) {
                    block = block.get(record.total_len()..).unwrap_or_default();
                    f(&record);
                }
                rest = behind;
            }
        }
        Ok(())
    }

    /// Every message record of a file without side files.
    fn scan_hashes(
        &self,
        log: &Log,
        file: &LogFile,
        f: &mut dyn FnMut(&Record<'_>),
    ) -> Result<(), ReadError> {
        let end = {
            let tail = log.tail.lock();
            let sealed = tail.sealed.iter().find(|sealed| sealed.number == file.number);
            sealed.map_or(tail.end, |sealed| sealed.len)
        };
        let handle = self.open_read(file, Ext::Log)?;
        let mut scan = FileScan::new(handle, HEADER_LEN as u64, end, CHUNK_MERGE);
        loop {
            let at = scan.at();
            match scan.step().map_err(Fault::io(&file.path, "read"))? {
                Step::Record(_, record) if record.head.kind.is_message() => f(&record),
                Step::Record(..) => {}
                Step::End => return Ok(()),
                Step::Bad(error) => return Err(damage(&file.path, at, error.to_string())),
            }
        }
    }
}

fn collect(
    hashes: &[u8],
    base: Offset,
    created: Micros,
    hash: TxHash,
    offsets: &Range<Offset>,
    found: &mut Vec<FoundHash>,
) {
    let (hashes, _) = hashes.as_chunks::<HASH_LEN>();
    for (offset, stored) in (base.0..).zip(hashes) {
        if *stored == hash.0 && offsets.contains(&Offset(offset)) {
            found.push(FoundHash { offset: Offset(offset), created });
        }
    }
}
