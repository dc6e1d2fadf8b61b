//! Questions to the logs: asked by the cycle, answered from disk on another thread, never while planning.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use queen_planner::consume::{AckQuestion, Claim, ClaimFrom, DeadMessage, Delivered};
use queen_planner::overlay::Original;
use queen_planner::push::{HashQuestion, PushFacts};
use queen_qlog::{Qlog, ReadError, ReadLimit, SeqRange, StoredRecord};
use queen_record::compress::PayloadDecompressor;
use queen_record::frame::{FrameRef, Frames};
use queen_record::ids::{LogId, Micros, Offset, PartitionId, QueueId, TxHash};
use queen_state::{Partition, State};

use crate::cipher::{self, CipherError, Vault};

/// Why the logs cannot answer. Never served as an empty answer.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The logs refuse.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The state knows of a message that the log does not have, or whose frame does not decode.
    #[error("partition {partition} has no readable message at offset {offset} in its log")]
    Missing {
        /// The partition.
        partition: PartitionId,
        /// The offset.
        offset: Offset,
    },
    /// A message is there and cannot be shown.
    #[error("the message at offset {offset} of partition {partition} cannot be shown: {error}")]
    Sealed {
        /// The partition.
        partition: PartitionId,
        /// The offset.
        offset: Offset,
        /// Why not.
        error: CipherError,
    },
}

/// A partition, and what of it was there when a question was asked: below, records may be reclaimed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The partition.
    pub partition: PartitionId,
    /// Its `txns_start`.
    pub from: Offset,
}

impl Known {
    /// As the state has it now.
    pub fn of(state: &State, partition: PartitionId) -> Self {
        let from = state.partition(partition).map_or(Offset(0), Partition::txns_start);
        Self { partition, from }
    }

    /// Whether records that the question was about may have been reclaimed since: that they were not found, or could
    /// not be read, says nothing then.
    pub fn is_overtaken(&self, state: &State) -> bool {
        state.partition(self.partition).is_none_or(|row| row.txns_start() > self.from)
    }

    /// An answer, or an empty one when what failed may be gone: then the question comes up again.
    pub(crate) fn unless_overtaken<T: Default>(
        &self,
        state: &State,
        answer: Result<T, LookupError>,
    ) -> Result<T, LookupError> {
        match answer {
            Err(_) if self.is_overtaken(state) => Ok(T::default()),
            answer => answer,
        }
    }
}

/// A question.
#[derive(Debug)]
pub enum Lookup {
    /// Which stored messages a push may repeat.
    Originals {
        /// The push, and which of its parts.
        push: (u64, usize),
        /// The partition.
        of: Known,
        /// Routes to its log.
        route: QueueId,
        /// The hashes.
        questions: Vec<HashQuestion>,
    },
    /// The messages of a claim.
    Claim {
        /// The pop, and which of its claims.
        pop: (u64, usize),
        /// What to read.
        claim: Claim,
        /// Bytes at most; the first message always.
        bytes_max: u64,
        /// Whether its messages may be sealed.
        sealed: bool,
    },
    /// What an ack names.
    Ack {
        /// The ack, and which of its calls.
        ack: (u64, usize),
        /// The partition.
        of: Known,
        /// What to find.
        question: AckQuestion,
    },
}

/// An answer.
#[derive(Debug)]
pub enum Found {
    /// To `Lookup::Originals`.
    Originals {
        /// As asked.
        push: (u64, usize),
        /// As asked.
        of: Known,
        /// What was found under each hash.
        facts: Result<PushFacts, LookupError>,
    },
    /// To `Lookup::Claim`.
    Claim {
        /// As asked.
        pop: (u64, usize),
        /// What was read.
        read: Result<ClaimRead, LookupError>,
    },
    /// To `Lookup::Ack`, offsets.
    Offsets {
        /// As asked.
        ack: (u64, usize),
        /// As asked.
        of: Known,
        /// Offsets of each hash, ascending.
        offsets: Result<Vec<(TxHash, Vec<Offset>)>, LookupError>,
    },
    /// To `Lookup::Ack`, messages.
    Messages {
        /// As asked.
        ack: (u64, usize),
        /// As asked.
        of: Known,
        /// The messages.
        messages: Result<Vec<(Offset, DeadMessage)>, LookupError>,
    },
}

/// The messages of a claim, read and verified.
#[derive(Debug)]
pub struct ClaimRead {
    /// What may be delivered.
    pub delivered: Delivered,
    /// The records that hold it.
    pub records: Vec<StoredRecord>,
}

/// Where the cycle's messages are.
#[derive(Clone)]
pub struct Reader {
    qlog: Qlog,
    vault: Arc<Vault>,
}

impl Reader {
    /// A reader of these logs that opens their payloads with this vault.
    pub fn new(qlog: Qlog, vault: Arc<Vault>) -> Self {
        Self { qlog, vault }
    }

    /// What payloads are sealed and opened with.
    pub fn vault(&self) -> &Vault {
        &self.vault
    }

    /// The logs.
    pub fn qlog(&self) -> &Qlog {
        &self.qlog
    }

    fn log(&self, route: QueueId, partition: PartitionId) -> LogId {
        self.qlog.log_of(route, Some(partition))
    }

    /// Answers a question; may wait for the disk.
    pub fn answer(&self, lookup: Lookup) -> Found {
        match lookup {
            Lookup::Originals { push, of, route, questions } => {
                let facts = self.originals(self.log(route, of.partition), of, &questions);
                Found::Originals { push, of, facts }
            }
            Lookup::Claim { pop, claim, bytes_max, sealed } => {
                let read = self.read_claim(&claim, bytes_max);
                let open = |read| cipher::claim::open(&self.vault, claim.partition, read);
                Found::Claim { pop, read: if sealed { read.and_then(open) } else { read } }
            }
            Lookup::Ack { ack, of, question: AckQuestion::Offsets { route, hashes, from, to } } => {
                let log = self.log(route, of.partition);
                let range = from..Offset(to.0.saturating_add(1));
                let offsets = self.offsets(log, of.partition, hashes, range);
                Found::Offsets { ack, of, offsets }
            }
            Lookup::Ack { ack, of, question: AckQuestion::Messages { route, offsets } } => {
                let log = self.log(route, of.partition);
                let message = |offset| Ok((offset, self.dead_message(log, of.partition, offset)?));
                let messages = offsets.into_iter().map(message).collect();
                Found::Messages { ack, of, messages }
            }
        }
    }

    fn originals(
        &self,
        log: LogId,
        Known { partition, from }: Known,
        questions: &[HashQuestion],
    ) -> Result<PushFacts, LookupError> {
        let mut facts = PushFacts::default();
        for question in questions {
            let mut found: Vec<Original> = Vec::new();
            for band in &question.bands {
                let within = SeqRange { from: band.from, to: band.to };
                let known = from..Offset(u64::MAX);
                let hits = self.qlog.find_hash(log, partition, question.hash, within, known)?;
                for hit in hits {
                    if found.iter().all(|known| known.offset != hit.offset) {
                        let id = self.message(log, partition, hit.offset, |frame| frame.id)?;
                        found.push(Original { offset: hit.offset, created: hit.created, id });
                    }
                }
            }
            found.sort_unstable_by_key(|original| original.offset);
            facts.put(question.hash, found);
        }
        Ok(facts)
    }

    fn offsets(
        &self,
        log: LogId,
        partition: PartitionId,
        hashes: Vec<TxHash>,
        range: Range<Offset>,
    ) -> Result<Vec<(TxHash, Vec<Offset>)>, LookupError> {
        let find = |hash: TxHash| {
            let found = self.find(log, partition, hash, range.clone())?;
            Ok((hash, found))
        };
        hashes.into_iter().map(find).collect()
    }

    /// Offsets of the messages with this hash in a range, ascending.
    ///
    /// # Errors
    /// Damage or I/O.
    pub fn find(
        &self,
        log: LogId,
        partition: PartitionId,
        hash: TxHash,
        range: Range<Offset>,
    ) -> Result<Vec<Offset>, LookupError> {
        use queen_record::ids::EntryIndex;
        let within = SeqRange { from: EntryIndex(0), to: EntryIndex(u64::MAX) };
        let found = self.qlog.find_hash(log, partition, hash, within, range)?;
        Ok(found.into_iter().map(|found| found.offset).collect())
    }

    fn dead_message(
        &self,
        log: LogId,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<DeadMessage, LookupError> {
        self.message(log, partition, offset, |frame| DeadMessage {
            id: frame.id,
            transaction_id: frame.transaction_id.to_owned(),
            payload: Bytes::copy_from_slice(frame.data),
            encrypted: frame.encrypted,
        })
    }

    /// One message, handed to `take`.
    ///
    /// # Errors
    /// Damage, also when the message is not where the log says it is.
    pub fn message<T>(
        &self,
        log: LogId,
        partition: PartitionId,
        offset: Offset,
        take: impl FnOnce(&FrameRef<'_>) -> T,
    ) -> Result<T, LookupError> {
        let limit = ReadLimit { messages: 1, bytes: 1 };
        let records = self.qlog.read(log, partition, offset, limit)?;
        let found = records.first().and_then(|record| {
            let at = usize::try_from(offset.0.checked_sub(record.base.0)?).ok()?;
            let frames = frames_of(record)?;
            let frame = Frames::new(&frames).nth(at)?.ok()?;
            Some(take(&frame))
        });
        found.ok_or_else(|| missing(partition, offset))
    }

    /// Reads a claim, waiting for the disk if need be.
    ///
    /// # Errors
    /// Damage or I/O: nothing may be delivered.
    pub fn read_claim(&self, claim: &Claim, bytes_max: u64) -> Result<ClaimRead, LookupError> {
        let log = self.log(claim.route, claim.partition);
        let from = match claim.from {
            ClaimFrom::Newest { .. } => return self.read_newest(log, claim),
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
        let records = self.qlog.read(log, claim.partition, from, limit)?;
        select(claim, from, records)
    }

    /// Reads the newest message of a claim that may be delivered.
    fn read_newest(&self, log: LogId, claim: &Claim) -> Result<ClaimRead, LookupError> {
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
        };
        let Some(newest) = newest.filter(|newest| *newest >= wanted) else { return Ok(nothing()) };
        let limit = ReadLimit { messages: 1, bytes: 1 };
        let records = self.qlog.read(log, claim.partition, newest, limit)?;
        let is_before = |since: Micros| records.iter().any(|record| record.created < since);
        if since.is_some_and(is_before) {
            return Ok(nothing());
        }
        select(claim, newest, records)
    }

    /// Reads a claim if it is in memory.
    ///
    /// # Errors
    /// As [`Reader::read_claim`].
    pub fn try_read_claim(
        &self,
        claim: &Claim,
        bytes_max: u64,
    ) -> Result<Option<ClaimRead>, LookupError> {
        let from = match claim.from {
            ClaimFrom::Offset(from) => from,
            ClaimFrom::Newest { last, .. } if claim.deliver_until.is_none() => last,
            ClaimFrom::Time(_) | ClaimFrom::Newest { .. } => return Ok(None),
        };
        let log = self.log(claim.route, claim.partition);
        let limit = ReadLimit { messages: claim.messages_max, bytes: bytes_max };
        match self.qlog.try_read(log, claim.partition, from, limit)? {
            Some(records) => select(claim, from, records).map(Some),
            None => Ok(None),
        }
    }
}

/// The deliverable messages among what was read.
fn select(
    claim: &Claim,
    from: Offset,
    records: Vec<StoredRecord>,
) -> Result<ClaimRead, LookupError> {
    let mut delivered = Delivered { first: from, hashes: Vec::new(), too_young: None };
    let mut kept = Vec::with_capacity(records.len());
    let mut next = from;
    for record in records {
        if claim.deliver_until.is_some_and(|until| record.created > until) {
            delivered.too_young = Some(record.created);
            break;
        }
        let left = (claim.messages_max as usize).saturating_sub(delivered.hashes.len());
        if record.base > next || left == 0 {
            break;
        }
        let skip = usize::try_from(next.0 - record.base.0).unwrap_or(usize::MAX);
        let hashes = record.hashes.chunks_exact(16).skip(skip).take(left).map(|chunk| {
            let mut hash = [0; 16];
            hash.copy_from_slice(chunk);
            TxHash(hash)
        });
        let before = delivered.hashes.len();
        delivered.hashes.extend(hashes);
        next = Offset(next.0 + (delivered.hashes.len() - before) as u64);
        kept.push(record);
    }
    if delivered.hashes.is_empty() && delivered.too_young.is_none() {
        return Err(missing(claim.partition, from));
    }
    Ok(ClaimRead { delivered, records: kept })
}

fn missing(partition: PartitionId, offset: Offset) -> LookupError {
    LookupError::Missing { partition, offset }
}

/// A record's frames, decompressed; `None` when they do not decompress although the checksum held.
pub fn frames_of(record: &StoredRecord) -> Option<Bytes> {
    if !record.compressed {
        return Some(record.payload.clone());
    }
    let mut decompressor = PayloadDecompressor::new().ok()?;
    decompressor.decompress(&record.payload).ok().map(Bytes::from)
}
