//! What the logs know: every applied message, answering the planner's questions as a node's logs would.

use std::collections::BTreeMap;

use bytes::Bytes;
use queen_model::{Append, AppendPayload};
use queen_planner::consume::{AckFacts, AckQuestion, Claim, ClaimFrom, DeadMessage, Delivered};
use queen_planner::overlay::Original;
use queen_planner::push::{HashQuestion, PushFacts};
use queen_record::frame::Frames;
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId, TxHash, Uuid};

struct Message {
    entry: EntryIndex,
    created: Micros,
    hash: TxHash,
    id: Uuid,
    transaction_id: String,
    data: Bytes,
}

/// One append.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) end: Offset,
    pub(crate) created: Micros,
    pub(crate) retained: u64,
}

/// Messages by partition; the index is the offset.
#[derive(Default)]
pub(crate) struct Log {
    partitions: BTreeMap<PartitionId, Vec<Message>>,
    appends: BTreeMap<PartitionId, Vec<Made>>,
    /// Offsets below which records were reclaimed.
    reclaimed: BTreeMap<PartitionId, Offset>,
}

impl Log {
    /// Takes the messages of an applied append.
    pub(crate) fn append(&mut self, entry: EntryIndex, append: &Append) {
        let AppendPayload::Stored { bytes, compressed: false, raw_len } = &append.payload else {
            panic!("the stories push plain frames")
        };
        assert_eq!(bytes.len(), *raw_len as usize);
        let messages = self.partitions.entry(append.id).or_default();
        assert_eq!(messages.len() as u64, append.base.0, "offsets have no gaps");
        let (created, retained) = (append.created, u64::from(append.retained()));
        let end = Offset(append.base.0 + u64::from(append.count()));
        self.appends.entry(append.id).or_default().push(Made { end, created, retained });
        let frames: Vec<_> = Frames::new(bytes).map(Result::unwrap).collect();
        assert_eq!(frames.len(), append.hashes.len());
        for (frame, hash) in frames.iter().zip(&append.hashes) {
            assert_eq!(queen_record::hash::tx_hash(frame.transaction_id), *hash);
            messages.push(Message {
                entry,
                created: append.created,
                hash: *hash,
                id: frame.id,
                transaction_id: frame.transaction_id.to_owned(),
                data: Bytes::copy_from_slice(frame.data),
            });
        }
    }

    fn messages(&self, partition: PartitionId) -> impl Iterator<Item = (Offset, &Message)> {
        let messages = self.partitions.get(&partition).into_iter().flatten();
        let start = self.reclaimed.get(&partition).copied().unwrap_or(Offset(0));
        (0..).map(Offset).zip(messages).filter(move |(offset, _)| *offset >= start)
    }

    /// Forgets the records below an offset.
    pub(crate) fn reclaim(&mut self, partition: PartitionId, below: Offset) {
        self.reclaimed.insert(partition, below);
    }

    /// All appends of a partition, oldest first.
    pub(crate) fn appends(&self, partition: PartitionId) -> &[Made] {
        self.appends.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// Every stored hash, for a filter that is filled after a start.
    pub(crate) fn hashes(
        &self,
    ) -> impl Iterator<Item = (PartitionId, TxHash, EntryIndex, Micros)> + '_ {
        self.partitions.iter().flat_map(|(partition, messages)| {
            messages.iter().map(|held| (*partition, held.hash, held.entry, held.created))
        })
    }

    /// The originals of a push: for each question the messages in its bands.
    pub(crate) fn originals(
        &self,
        partition: PartitionId,
        questions: &[HashQuestion],
    ) -> (PushFacts, Vec<(TxHash, Vec<Original>)>) {
        let mut facts = PushFacts::default();
        let mut told = Vec::new();
        for question in questions {
            let asked = |message: &Message| {
                let bands = &question.bands;
                bands.iter().any(|band| (band.from..=band.to).contains(&message.entry))
            };
            let found = self
                .messages(partition)
                .filter(|(_, message)| message.hash == question.hash && asked(message));
            let found: Vec<Original> = found
                .map(|(offset, Message { created, id, .. })| Original {
                    offset,
                    created: *created,
                    id: *id,
                })
                .collect();
            facts.put(question.hash, found.clone());
            told.push((question.hash, found));
        }
        (facts, told)
    }

    /// What an ack asks for.
    pub(crate) fn settle(
        &self,
        partition: PartitionId,
        question: &AckQuestion,
        facts: &mut AckFacts,
    ) {
        match question {
            AckQuestion::Offsets { hashes, from, to, .. } => {
                for hash in hashes {
                    let found = self.messages(partition).filter(|(offset, message)| {
                        message.hash == *hash && (from..=to).contains(&offset)
                    });
                    facts.offsets.insert(*hash, found.map(|(offset, _)| offset).collect());
                }
            }
            AckQuestion::Messages { offsets, .. } => {
                for offset in offsets {
                    let (_, found) = self.messages(partition).find(|(at, _)| at == offset).unwrap();
                    let message = DeadMessage {
                        id: found.id,
                        transaction_id: found.transaction_id.clone(),
                        payload: found.data.clone(),
                        encrypted: false,
                    };
                    facts.messages.insert(*offset, message);
                }
            }
        }
    }

    /// The first message at or after a time.
    pub(crate) fn first_at(&self, partition: PartitionId, time: Micros) -> Option<Offset> {
        let mut messages = self.messages(partition);
        messages.find(|(_, message)| message.created >= time).map(|(offset, _)| offset)
    }

    /// The messages of a claim.
    pub(crate) fn read(&self, claim: &Claim) -> Delivered {
        let too_young =
            |message: &Message| claim.deliver_until.is_some_and(|until| message.created > until);
        let first = match claim.from {
            ClaimFrom::Offset(offset) => offset,
            ClaimFrom::Time(time) => self.first_at(claim.partition, time).unwrap().max(claim.start),
            ClaimFrom::Newest { wanted, last, since } => {
                let young = self.messages(claim.partition).find(|(_, message)| too_young(message));
                let until = young.as_ref().map_or(last.0 + 1, |(offset, _)| offset.0);
                let newest = self.messages(claim.partition).filter(|(offset, message)| {
                    (wanted.0..until).contains(&offset.0)
                        && since.is_none_or(|since| message.created >= since)
                });
                let newest = newest.last();
                return Delivered {
                    first: newest.as_ref().map_or(wanted, |(offset, _)| *offset),
                    hashes: newest.iter().map(|(_, message)| message.hash).collect(),
                    too_young: young.map(|(_, message)| message.created),
                };
            }
        };
        let mut delivered = Delivered { first, hashes: Vec::new(), too_young: None };
        assert!(first >= claim.start, "what is removed is not read");
        let wanted = self.messages(claim.partition).filter(|(offset, _)| *offset >= first);
        for (_, message) in wanted.take(claim.messages_max as usize) {
            if too_young(message) {
                delivered.too_young = Some(message.created);
                break;
            }
            delivered.hashes.push(message.hash);
        }
        delivered
    }
}
