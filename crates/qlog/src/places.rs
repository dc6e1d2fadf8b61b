//! Where messages lie and when they were made, by the indexes alone: no record is read.

use std::ops::Range;

use queen_record::ids::{LogId, Micros, Offset, PartitionId};
use queen_record::qidx::QidxRecord;

use crate::error::ReadError;
use crate::file::{FileIndex, LogFile};
use crate::read::Wait;
use crate::shared::{Qlog, Shared};
use crate::side::SideIndex;

/// One message record of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the first message.
    pub base: Offset,
    /// Offset after the last message.
    pub end: Offset,
    /// Time of creation, one for all its messages.
    pub created: Micros,
    /// Bytes of the record.
    pub bytes: u32,
}

impl Place {
    pub(crate) fn of(record: &QidxRecord) -> Self {
        let QidxRecord { base, end, created, len, .. } = *record;
        Self { base, end, created, bytes: len }
    }
}

impl Qlog {
    /// The record that holds `offset`, or else the first one after it.
    ///
    /// # Errors
    /// As [`Qlog::read`].
    pub fn place_of(
        &self,
        log: LogId,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Option<Place>, ReadError> {
        let place = self.shared.with_files(log, Wait::Yes, |files| {
            let start = self.shared.start_file(files, partition, offset, Wait::Yes)?;
            for file in start.and_then(|start| files.get(start..)).unwrap_or_default() {
                let found = self.shared.records(file, partition, offset, 1, Wait::Yes)?;
                if let Some(record) = found.as_ref().and_then(|(records, _)| records.first()) {
                    return Ok(Some(Some(Place::of(record))));
                }
            }
            Ok(Some(None))
        })?;
        Ok(place.flatten())
    }

    /// Records that hold messages of `offsets`, newest first, at most `max`.
    ///
    /// # Errors
    /// As [`Qlog::read`].
    pub fn places_back(
        &self,
        log: LogId,
        partition: PartitionId,
        offsets: &Range<Offset>,
        max: usize,
    ) -> Result<Vec<Place>, ReadError> {
        let found = self.shared.with_files(log, Wait::Yes, |files| {
            let mut places: Vec<Place> = Vec::new();
            for file in files.iter().rev() {
                let reached = places.last().is_some_and(|place| place.base <= offsets.start);
                if reached || places.len() >= max {
                    break;
                }
                let left = max - places.len();
                let found = match &file.index {
                    FileIndex::Ram(index) => index.read().back(partition, offsets, left),
                    FileIndex::Side(side) => {
                        self.shared.back(file, side, partition, offsets, left)?
                    }
                };
                places.extend(found.iter().map(Place::of));
            }
            Ok(Some(places))
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Record files that these logs have, those made ahead not counted.
    pub fn file_count(&self, logs: impl IntoIterator<Item = LogId>) -> u64 {
        logs.into_iter()
            .filter_map(|log| self.shared.log(log))
            .map(|log| log.files().len() as u64)
            .sum()
    }
}

impl Shared {
    fn back(
        &self,
        file: &LogFile,
        side: &SideIndex,
        partition: PartitionId,
        offsets: &Range<Offset>,
        max: usize,
    ) -> Result<Vec<QidxRecord>, ReadError> {
        let mut found = Vec::new();
        let outside = partition < side.partitions.0 || partition > side.partitions.1;
        let Some(last) = offsets.end.0.checked_sub(1) else { return Ok(found) };
        if outside {
            return Ok(found);
        }
        let mut block = side.index_block_of((partition, Offset(last)));
        loop {
            let records = self.index_block(file, side, block, Wait::Yes)?.unwrap_or_default();
            for record in records.iter().rev().filter(|record| record.base < offsets.end) {
                if record.partition != partition {
                    continue;
                }
                if record.end <= offsets.start || found.len() >= max {
                    return Ok(found);
                }
                found.push(*record);
            }
            // A block that starts before the partition holds its first record.
            let more = side.index_key(block).is_some_and(|key| key.0 >= partition);
            match block.checked_sub(1) {
                Some(before) if more => block = before,
                _ => return Ok(found),
            }
        }
    }
}
