//! Questions to the logs: asked by the cycle, answered from disk on another thread, never while planning.

mod claims;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use queen_planner::consume::{AckQuestion, DeadMessage};
use queen_planner::overlay::Original;
use queen_planner::push::{HashQuestion, PushFacts};
use queen_qlog::{Qlog, ReadError, ReadLimit, SeqRange, StoredRecord};
use queen_record::compress::PayloadDecompressor;
use queen_record::frame::{FrameRef, Frames};
use queen_record::ids::{LogId, Offset, PartitionId, QueueId, TxHash};
use queen_state::{Partition, State};

use crate::cipher::{CipherError, Vault};
pub use claims::{ClaimAnswer, ClaimLookup, ClaimRead, ClaimRoom, Weight};

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
    /// The messages of a pop's claims, read one after the other.
    Claims {
        /// The pop.
        pop: u64,
        /// What to read.
        claims: Vec<ClaimLookup>,
        /// Room for all of them.
        room: ClaimRoom,
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
    /// To `Lookup::Claims`.
    Claims {
        /// As asked.
        pop: u64,
        /// What was read, under the place of its claim.
        reads: Vec<(usize, ClaimAnswer)>,
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
            Lookup::Claims { pop, claims, mut room } => {
                let read = |asked: ClaimLookup| (asked.at, self.claim(&asked, &mut room));
                Found::Claims { pop, reads: claims.into_iter().map(read).collect() }
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
