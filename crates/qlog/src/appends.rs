//! The appends of a partition, oldest first, and what they count as retained: what retention goes by.
//!
//! Boundaries and times come from the indexes alone. What an append counts is its size before compression, which only
//! its record knows: of that the head and the first bytes of the payload are read, never all of it.

use std::ops::Range;
use std::sync::Arc;

use queen_record::compress::{STATED_SIZE_IN, stated_size};
use queen_record::ids::{LogId, Micros, Offset, PartitionId};
use queen_record::qidx::QidxRecord;
use queen_record::record::{HASH_LEN, HEAD_LEN, Head, Kind};

use crate::error::ReadError;
use crate::file::LogFile;
use crate::names::Ext;
use crate::places::Place;
use crate::read::{LOOK_UP, Wait, damage, verify};
use crate::shared::{Qlog, Shared};

/// Heads with fewer bytes than this between them are read by one call.
const GAP_MAX: u64 = 4 * 1024;
/// One call reads no more than this for several heads.
const RUN_MAX: u64 = 64 * 1024;
/// What an append counts beside its frames, as the replicated entry has it.
const RETAINED_HEAD: u64 = 40;

/// Takes some appends of one file, and says whether more are wanted.
type TakeAppends<'a> = dyn FnMut(&LogFile, &[QidxRecord]) -> Result<bool, ReadError> + 'a;

impl Qlog {
    /// Appends that end after `from`, oldest first: all made before `until`, at most `max`, and the one after them.
    ///
    /// Shape: at most `max + 1`. The last one is at or after `until`, or one too many, unless nothing follows.
    ///
    /// # Errors
    /// As [`Qlog::read`].
    pub fn appends(
        &self,
        log: LogId,
        partition: PartitionId,
        from: Offset,
        until: Micros,
        max: usize,
    ) -> Result<Vec<Place>, ReadError> {
        let found = self.shared.with_files(log, Wait::Yes, |files| {
            let mut appends = Vec::new();
            self.shared.each_append(files, partition, from, &mut |_, records| {
                for record in records {
                    appends.push(Place::of(record));
                    if record.created >= until || appends.len() > max {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
            Ok(Some(appends))
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Bytes that the appends which start in `offsets` count as retained.
    ///
    /// # Errors
    /// As [`Qlog::read`]; also when a record's head is not what its index names.
    pub fn retained_bytes(
        &self,
        log: LogId,
        partition: PartitionId,
        offsets: Range<Offset>,
    ) -> Result<u64, ReadError> {
        let found = self.shared.with_files(log, Wait::Yes, |files| {
            let mut sum = 0;
            self.shared.each_append(files, partition, offsets.start, &mut |file, records| {
                let inside = records.iter().take_while(|record| record.base < offsets.end).count();
                let wanted = records.get(..inside).unwrap_or_default();
                sum += self.shared.retained_of(file, wanted)?;
                Ok(inside == records.len())
            })?;
            Ok(Some(sum))
        })?;
        Ok(found.unwrap_or_default())
    }
}

impl Shared {
    /// Hands over the appends that end after `from`, a few at a time, until `take` says no. The oldest file is looked at
    /// first: what retention asks for lies there.
    fn each_append(
        &self,
        files: &[Arc<LogFile>],
        partition: PartitionId,
        from: Offset,
        take: &mut TakeAppends<'_>,
    ) -> Result<(), ReadError> {
        let mut next = from;
        for file in files {
            loop {
                let found = self.records(file, partition, next, LOOK_UP, Wait::Yes)?;
                let (records, _) = found.unwrap_or_default();
                let Some(last) = records.last() else { break };
                next = last.end;
                if !take(file, &records)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn retained_of(&self, file: &LogFile, records: &[QidxRecord]) -> Result<u64, ReadError> {
        let mut sum = 0;
        let mut at = 0;
        while let Some(first) = records.get(at) {
            let mut end = first.at + head_len(first);
            let mut until = at + 1;
            while let Some(next) = records.get(until)
                && next.at >= end
                && next.at - end <= GAP_MAX
                && next.at + head_len(next) - first.at <= RUN_MAX
            {
                end = next.at + head_len(next);
                until += 1;
            }
            let bytes = self.pread(file, Ext::Log, first.at, end - first.at, Wait::Yes)?;
            let bytes = bytes.unwrap_or_default();
            for record in records.get(at..until).unwrap_or_default() {
                let from = usize::try_from(record.at - first.at).unwrap_or(usize::MAX);
                let start = bytes.get(from..).unwrap_or_default();
                sum += self.retained(file, record, start)?;
            }
            at = until;
        }
        Ok(sum)
    }

    /// What one append counts; `start` begins with its head.
    fn retained(
        &self,
        file: &LogFile,
        wanted: &QidxRecord,
        start: &[u8],
    ) -> Result<u64, ReadError> {
        let wrong = |what: String| damage(&file.path, wanted.at, what);
        let head = Head::decode(start).map_err(|error| wrong(error.to_string()))?;
        let same = (head.partition, head.base, head.count, head.total_len())
            == (wanted.partition, wanted.base, wanted.count, wanted.len as usize);
        if !same || !head.kind.is_message() {
            return Err(wrong("not the record its index names".to_owned()));
        }
        let size_of = |payload: &[u8], len: u64| {
            if head.compressed {
                stated_size(payload).map_err(|error| wrong(error.to_string()))
            } else {
                Ok(len)
            }
        };
        let hashes = HASH_LEN as u64 * u64::from(head.count);
        let raw = if head.kind == Kind::Transaction {
            // Its participants stand before the hashes: rare enough to be read whole.
            let len = u64::from(wanted.len);
            let whole = self.pread(file, Ext::Log, wanted.at, len, Wait::Yes)?.unwrap_or_default();
            let record = verify(file, wanted, &whole)?;
            size_of(record.payload, record.payload.len() as u64)?
        } else {
            let at = HEAD_LEN as u64 + hashes;
            let len = u64::from(wanted.len).checked_sub(at);
            let len = len.ok_or_else(|| wrong("the hashes do not fit the record".to_owned()))?;
            let payload = start.get(usize::try_from(at).unwrap_or(usize::MAX)..);
            size_of(payload.unwrap_or_default(), len)?
        };
        Ok(RETAINED_HEAD + hashes + raw)
    }
}

/// Bytes of a record up to the stated size of its payload.
fn head_len(record: &QidxRecord) -> u64 {
    let hashes = HASH_LEN as u64 * u64::from(record.count);
    (HEAD_LEN as u64 + hashes + STATED_SIZE_IN as u64).min(record.len.into())
}
