//! The messages of claims: as many as are asked for, may be delivered, and have room in one answer.

use queen_planner::consume::{Claim, ClaimFrom, Delivered};
use queen_qlog::{ReadError, ReadLimit, StoredRecord};
use queen_record::compress::content_size;
use queen_record::frame::Frames;
use queen_record::ids::{LogId, Micros, Offset, PartitionId, TxHash};

use super::{LookupError, Reader, frames_of, missing};
use crate::api::escaped_len;
use crate::cipher;

/// Bytes of a record in the answer at most, as far as its length tells, for which it is not looked into.
const UNSEEN_MAX: u64 = 1 << 20;
/// Bytes that one byte of a text has in a JSON string at most.
const ESCAPE_BYTES: u64 = 6;

/// What a message counts against the room of its pop: what it takes up in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Its stored bytes, decompressed: the records are handed on.
    Stored,
    /// Its payload, its texts as JSON has them, and this much beside them.
    Json {
        /// Bytes of its other fields and of the names that stand with each message.
        fields: u64,
    },
}

impl Weight {
    /// How many of `most` messages of a record, from the one at `skip` on, fit into `room`, and what they count; the first
    /// fits in any case if `must`. `None` when the record does not decode.
    ///
    /// Shape: a record that fits whatever its texts are is not decompressed for this.
    fn fit(
        self,
        record: &StoredRecord,
        skip: u64,
        most: u64,
        room: u64,
        must: bool,
    ) -> Option<(u64, u64)> {
        let plain = plain_len(record);
        let fields = match self {
            Self::Stored => {
                let each = (plain / u64::from(record.count.max(1))).max(1);
                let count = (room / each).max(u64::from(must)).min(most);
                return Some((count, count.saturating_mul(each)));
            }
            Self::Json { fields } => fields,
        };
        let all = plain.saturating_mul(ESCAPE_BYTES).saturating_add(most.saturating_mul(fields));
        if all <= room.min(UNSEEN_MAX) {
            return Some((most, all));
        }
        let frames = frames_of(record)?;
        let (mut count, mut bytes) = (0, 0_u64);
        let wanted = usize::try_from(skip).unwrap_or(usize::MAX);
        for frame in Frames::new(&frames).skip(wanted) {
            if count == most {
                break;
            }
            let frame = frame.ok()?;
            let texts =
                escaped_len(frame.transaction_id) + frame.producer_sub.map_or(0, escaped_len);
            let each = fields + texts + (frame.data.len() as u64);
            if bytes.saturating_add(each) > room && !(must && count == 0) {
                break;
            }
            count += 1;
            bytes = bytes.saturating_add(each);
        }
        Some((count, bytes))
    }
}

/// One claim of a pop, to be read.
#[derive(Debug)]
pub struct ClaimLookup {
    /// Which of the pop's claims.
    pub at: usize,
    /// What to read.
    pub claim: Claim,
    /// Whether its messages may be sealed.
    pub sealed: bool,
    /// What its messages count.
    pub weight: Weight,
}

/// What became of reading a claim; `None` when the claims before it took all the room.
pub type ClaimAnswer = Option<Result<ClaimRead, LookupError>>;

/// The messages of a claim, read and verified.
#[derive(Debug)]
pub struct ClaimRead {
    /// What may be delivered.
    pub delivered: Delivered,
    /// The records that hold it.
    pub records: Vec<StoredRecord>,
    /// What it counts against the room of its pop.
    pub bytes: u64,
}

/// The bytes that the claims of one pop may still take up in its answer. Each claim gets an even share of what is left, and a
/// message larger than its share while there is any room at all, so that no message is too large to be delivered.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRoom {
    bytes: u64,
    claims: u64,
}

impl ClaimRoom {
    /// Room for this many claims.
    pub fn new(bytes: u64, claims: usize) -> Self {
        Self { bytes, claims: claims as u64 }
    }

    /// The share of the next claim; `None` when there is no room.
    pub fn share(&self) -> Option<u64> {
        (self.bytes > 0).then(|| (self.bytes / self.claims.max(1)).max(1))
    }

    /// Goes on to the claim after the next.
    pub fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.claims = self.claims.saturating_sub(1);
    }
}

impl Reader {
    /// Reads and opens one claim of several.
    pub(super) fn claim(&self, asked: &ClaimLookup, room: &mut ClaimRoom) -> ClaimAnswer {
        let claim = &asked.claim;
        let read = self.read_claim(claim, room.share()?, asked.weight);
        room.take(read.as_ref().map_or(0, |read| read.bytes));
        let open = |read| cipher::claim::open(&self.vault, claim.partition, read);
        Some(if asked.sealed { read.and_then(open) } else { read })
    }

    /// Reads a claim, waiting for the disk if need be.
    ///
    /// # Errors
    /// Damage or I/O: nothing may be delivered.
    fn read_claim(
        &self,
        claim: &Claim,
        bytes_max: u64,
        weight: Weight,
    ) -> Result<ClaimRead, LookupError> {
        let log = self.log(claim.route, claim.partition);
        let from = match claim.from {
            ClaimFrom::Newest { .. } => return self.read_newest(log, claim, weight),
            ClaimFrom::Offset(offset) => Some(offset),
            ClaimFrom::Time(time) => {
                let found = self.qlog.first_at_or_after(log, claim.partition, time)?;
                found.map(|(offset, _)| offset.max(claim.start))
            }
        };
        let Some(from) = from else {
            // The state knows of a message at or after the time, and the log does not.
            return Err(missing(claim.partition, Offset(0)));
        };
        let limit = ReadLimit { messages: claim.messages_max, bytes: bytes_max };
        let records = self.read_sound(log, claim.partition, from, limit)?;
        select(claim, from, records, (bytes_max, weight))
    }

    /// Reads records up to the first one that is damaged, which is the error when it is the first of all.
    fn read_sound(
        &self,
        log: LogId,
        partition: PartitionId,
        from: Offset,
        limit: ReadLimit,
    ) -> Result<Vec<StoredRecord>, ReadError> {
        let whole = self.qlog.read(log, partition, from, limit);
        let Err(damage @ ReadError::Damage { .. }) = whole else { return whole };
        let mut sound: Vec<StoredRecord> = Vec::new();
        let mut next = from;
        while (sound.len() as u64) < u64::from(limit.messages) {
            let one = ReadLimit { messages: 1, bytes: 1 };
            let Ok(records) = self.qlog.read(log, partition, next, one) else { break };
            let Some(last) = records.last() else { break };
            next = Offset(last.base.0.saturating_add(u64::from(last.count)));
            sound.extend(records);
        }
        if sound.is_empty() {
            return Err(damage);
        }
        tracing::error!("{damage}; what stands before it is delivered");
        Ok(sound)
    }

    /// Reads the newest message of a claim that may be delivered.
    fn read_newest(
        &self,
        log: LogId,
        claim: &Claim,
        weight: Weight,
    ) -> Result<ClaimRead, LookupError> {
        let ClaimFrom::Newest { wanted, last, since } = claim.from else {
            return Err(missing(claim.partition, Offset(0)));
        };
        let too_young = match claim.deliver_until {
            Some(until) => {
                self.qlog.first_at_or_after(log, claim.partition, Micros(until.0 + 1))?
            }
            None => None,
        };
        let newest = match too_young {
            Some((offset, _)) => offset.0.checked_sub(1).map(Offset),
            None => Some(last),
        };
        let nothing = || ClaimRead {
            delivered: Delivered {
                first: wanted,
                hashes: Vec::new(),
                too_young: too_young.map(|(_, created)| created),
            },
            records: Vec::new(),
            bytes: 0,
        };
        let Some(newest) = newest.filter(|newest| *newest >= wanted) else { return Ok(nothing()) };
        let limit = ReadLimit { messages: 1, bytes: 1 };
        let records = self.qlog.read(log, claim.partition, newest, limit)?;
        let is_before = |since: Micros| records.iter().any(|record| record.created < since);
        if since.is_some_and(is_before) {
            return Ok(nothing());
        }
        select(claim, newest, records, (u64::MAX, weight))
    }

    /// Reads a claim if it is in memory; `None` when it is not, and the disk must be asked.
    pub fn try_claim(
        &self,
        claim: &Claim,
        weight: Weight,
        room: &mut ClaimRoom,
    ) -> Option<ClaimAnswer> {
        let Some(share) = room.share() else { return Some(None) };
        let read = self.try_read_claim(claim, (share, weight)).transpose()?;
        room.take(read.as_ref().map_or(0, |read| read.bytes));
        Some(Some(read))
    }

    /// Reads a claim if it is in memory.
    ///
    /// # Errors
    /// As [`Reader::read_claim`].
    fn try_read_claim(
        &self,
        claim: &Claim,
        (bytes_max, weight): (u64, Weight),
    ) -> Result<Option<ClaimRead>, LookupError> {
        let from = match claim.from {
            ClaimFrom::Offset(from) => from,
            ClaimFrom::Newest { last, .. } if claim.deliver_until.is_none() => last,
            ClaimFrom::Time(_) | ClaimFrom::Newest { .. } => return Ok(None),
        };
        let log = self.log(claim.route, claim.partition);
        let limit = ReadLimit { messages: claim.messages_max, bytes: bytes_max };
        match self.qlog.try_read(log, claim.partition, from, limit) {
            Ok(Some(records)) => select(claim, from, records, (bytes_max, weight)).map(Some),
            // Damage is looked at where there is time for it.
            Ok(None) | Err(ReadError::Damage { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The deliverable messages among what was read.
fn select(
    claim: &Claim,
    from: Offset,
    records: Vec<StoredRecord>,
    (bytes_max, weight): (u64, Weight),
) -> Result<ClaimRead, LookupError> {
    let mut delivered = Delivered { first: from, hashes: Vec::new(), too_young: None };
    let mut kept = Vec::with_capacity(records.len());
    let mut next = from;
    let mut bytes = 0;
    for record in records {
        if claim.deliver_until.is_some_and(|until| record.created > until) {
            delivered.too_young = Some(record.created);
            break;
        }
        let before = delivered.hashes.len();
        let left = (claim.messages_max as usize).saturating_sub(before) as u64;
        if record.base > next || left == 0 {
            break;
        }
        // Also: a record may decompress to far more than was read.
        let skip = next.0 - record.base.0;
        let most = left.min(u64::from(record.count).saturating_sub(skip));
        let room = bytes_max.saturating_sub(bytes);
        let fitting = weight.fit(&record, skip, most, room, before == 0);
        let (fitting, cost) = fitting.ok_or_else(|| missing(claim.partition, next))?;
        if fitting == 0 {
            break;
        }
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (skip, left) = (index(skip), index(fitting));
        let hashes = record.hashes.chunks_exact(16).skip(skip).take(left).map(|chunk| {
            let mut hash = [0; 16];
            hash.copy_from_slice(chunk);
            TxHash(hash)
        });
        delivered.hashes.extend(hashes);
        let taken = (delivered.hashes.len() - before) as u64;
        bytes = bytes.saturating_add(cost);
        next = Offset(next.0 + taken);
        kept.push(record);
    }
    if delivered.hashes.is_empty() && delivered.too_young.is_none() {
        return Err(missing(claim.partition, from));
    }
    Ok(ClaimRead { delivered, records: kept, bytes })
}

/// Bytes of a record's frames once decompressed; what states no size is refused when it is decompressed.
fn plain_len(record: &StoredRecord) -> u64 {
    let stored = record.payload.len() as u64;
    if record.compressed { content_size(&record.payload).unwrap_or(stored) } else { stored }
}
