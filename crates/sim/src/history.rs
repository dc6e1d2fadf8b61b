//! What a run did, as its client and its disk saw it: the model that every image is judged by.

use std::collections::BTreeMap;

use queen_model::QueueOptions;
use queen_record::ids::{Offset, PartitionId, Tenant, Uuid};
use queen_state::{Cursor, Keyspace, State};

/// Digests of one state.
pub type Digest = [u64; Keyspace::ALL.len()];

/// A message that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The entry as of which the client knew.
    pub index: u64,
    /// Its id.
    pub id: Uuid,
    /// Its transactionId.
    pub transaction_id: String,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// The messages of a partition by offset.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its queue.
    pub queue: String,
    /// Its name.
    pub name: String,
    /// The last entry as of which it must be there.
    pub until: Option<u64>,
    /// Its messages.
    pub messages: Vec<Stored>,
}

impl Part {
    /// How many messages it has as of an entry.
    pub fn count_at(&self, index: u64) -> usize {
        self.messages.partition_point(|message| message.index <= index)
    }
}

/// Something that an answer said.
#[derive(Clone, Debug)]
pub enum What {
    /// A queue has these options.
    Options(String, Box<QueueOptions>),
    /// There is no such queue.
    NoQueue(String),
    /// A group's cursor is at least here.
    Committed(Place, i64),
    /// A group's lease on a partition.
    Leased(Place, Uuid),
    /// A dead letter: its offset and transactionId.
    Dead(Place, i64, String),
    /// A group has no cursor in a partition.
    NoCursor(Place),
    /// The log of a queue's partition starts here or later.
    Starts(String, PartitionId, u64),
}

/// Queues with retention: their hashes leave early, so that a repeat may be stored again.
pub const AGING: [&str; 2] = ["aging", "settled"];

/// A group's place in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Queue name.
    pub queue: String,
    /// Group name.
    pub group: String,
    /// The partition.
    pub partition: PartitionId,
}

impl Place {
    fn cursor<'s>(&self, state: &'s State) -> Option<&'s Cursor> {
        let queue = state.queue(Tenant::DEFAULT, &self.queue)?;
        state.partition(self.partition)?;
        state.cursor(self.partition, queue.group(&self.group)?.number)
    }
}

impl What {
    /// Whether it belongs to this queue.
    pub fn is_of_queue(&self, name: &str) -> bool {
        match self {
            Self::Options(queue, _) | Self::NoQueue(queue) | Self::Starts(queue, ..) => {
                queue == name
            }
            Self::Committed(place, _)
            | Self::Leased(place, _)
            | Self::Dead(place, ..)
            | Self::NoCursor(place) => place.queue == name,
        }
    }

    /// The group's place that it is about.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Options(..) | Self::NoQueue(_) | Self::Starts(..) => None,
            Self::Committed(place, _)
            | Self::Leased(place, _)
            | Self::Dead(place, ..)
            | Self::NoCursor(place) => Some(place),
        }
    }

    /// Whether it holds in a state.
    pub fn holds(&self, state: &State) -> bool {
        match self {
            Self::Options(queue, options) => {
                state.queue(Tenant::DEFAULT, queue).is_some_and(|queue| queue.options == **options)
            }
            Self::NoQueue(queue) => state.queue(Tenant::DEFAULT, queue).is_none(),
            Self::Committed(place, at) => {
                place.cursor(state).is_some_and(|cursor| cursor.committed >= *at)
            }
            Self::Leased(place, lease) => place
                .cursor(state)
                .and_then(Cursor::lease)
                .is_some_and(|found| found.worker == *lease),
            Self::Dead(place, offset, transaction_id) => {
                let queue = state.queue(Tenant::DEFAULT, &place.queue);
                let found = queue.and_then(|queue| {
                    queue.dead_letters().find(|row| {
                        row.letter.partition == place.partition
                            && row.letter.offset == *offset
                            && row.letter.group == place.group
                    })
                });
                found.is_some_and(|row| row.letter.transaction_id == *transaction_id)
            }
            Self::NoCursor(place) => place.cursor(state).is_none(),
            Self::Starts(_, id, start) => {
                state.partition(*id).is_some_and(|row| row.log_start().0 >= *start)
            }
        }
    }
}

/// An answer's statement and when it counts.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The entry as of which it was answered.
    pub index: u64,
    /// The last entry as of which it must hold; the script ended it after that.
    pub until: Option<u64>,
    /// The statement.
    pub what: What,
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Disk calls before an entry was written, and its index.
    pub sent: Vec<(u64, u64)>,
    /// Disk calls when answers were released, and the entry that was applied then.
    pub answered: Vec<(u64, u64)>,
    /// Disk calls when a checkpoint was reported, and the entry it covers.
    pub durable: Vec<(u64, u64)>,
    /// The state's digest after each entry.
    pub digests: BTreeMap<u64, Digest>,
    /// Partitions that were pushed to.
    pub parts: BTreeMap<PartitionId, Part>,
    /// What else was answered.
    pub facts: Vec<Fact>,
}

fn latest(list: &[(u64, u64)], is_over: impl Fn(u64) -> bool) -> u64 {
    let end = list.partition_point(|(call, _)| is_over(*call));
    list.get(end.wrapping_sub(1)).map_or(0, |(_, index)| *index)
}

impl History {
    /// Of an empty directory.
    pub fn new() -> Self {
        let mut history = Self::default();
        history.digests.insert(0, State::new().digest());
        history
    }

    /// Notes the state after an entry.
    pub fn note_applied(&mut self, state: &State) {
        self.digests.insert(state.applied().0, state.digest());
    }

    /// The entry that an answer released by `call` stands for.
    pub fn acknowledged(&self, call: u64) -> u64 {
        latest(&self.answered, |at| at <= call)
    }

    /// The highest entry of which a byte can be on disk after `call`.
    pub fn written(&self, call: u64) -> u64 {
        // What a recovered directory began with is there before its first call.
        latest(&self.sent, |at| at < call.max(1))
    }

    /// The entry of the last checkpoint reported by `call`.
    pub fn checkpointed(&self, call: u64) -> u64 {
        latest(&self.durable, |at| at <= call)
    }

    /// Ends every fact that matches: it need not hold after `index`.
    pub fn end(&mut self, index: u64, matches: impl Fn(&What) -> bool) {
        for fact in &mut self.facts {
            if fact.until.is_none() && matches(&fact.what) {
                fact.until = Some(index);
            }
        }
    }

    /// Ends everything about a queue.
    pub fn end_queue(&mut self, index: u64, queue: &str) {
        self.end(index, |what| what.is_of_queue(queue));
        for part in self.parts.values_mut() {
            if part.queue == queue && part.until.is_none() {
                part.until = Some(index);
            }
        }
    }

    /// Ends everything about a partition.
    pub fn end_partition(&mut self, index: u64, id: PartitionId) {
        self.end(index, |what| match what {
            What::Starts(_, of, _) => *of == id,
            other => other.place().is_some_and(|place| place.partition == id),
        });
        if let Some(part) = self.parts.get_mut(&id)
            && part.until.is_none()
        {
            part.until = Some(index);
        }
    }

    /// Adds a fact.
    pub fn add(&mut self, index: u64, what: What) {
        self.facts.push(Fact { index, until: None, what });
    }

    /// The facts that must hold as of an entry.
    pub fn facts_at(&self, index: u64) -> impl Iterator<Item = &What> {
        let due = move |fact: &&Fact| {
            fact.index <= index && fact.until.is_none_or(|until| index <= until)
        };
        self.facts.iter().filter(due).map(|fact| &fact.what)
    }

    /// What is known of a directory that was recovered up to `index`, as the start of a new history.
    #[must_use]
    pub fn resumed(&self, index: u64, durable: u64) -> Self {
        let mut next = Self {
            sent: vec![(0, index)],
            answered: vec![(0, index)],
            durable: vec![(0, durable)],
            ..Self::default()
        };
        next.digests.extend(self.digests.get(&index).map(|digest| (index, *digest)));
        for (id, part) in &self.parts {
            let mut part = part.clone();
            part.messages.truncate(part.count_at(index));
            // What was to be removed may be there yet: it takes more than one entry.
            part.until = part.until.filter(|until| *until < index);
            if !part.messages.is_empty() {
                next.parts.insert(*id, part);
            }
        }
        next.facts = self
            .facts_at(index)
            .map(|what| Fact { index, until: None, what: what.clone() })
            .collect();
        next
    }

    /// Stored messages that a push may repeat, as of an entry: partition and offset.
    pub fn repeatable(&self, index: u64) -> Vec<(PartitionId, Offset)> {
        let live =
            self.parts.iter().filter(|(_, part)| part.until.is_none_or(|until| index <= until));
        let live = live.filter(|(_, part)| !AGING.contains(&&*part.queue));
        live.flat_map(|(id, part)| {
            (0..part.count_at(index) as u64).map(|offset| (*id, Offset(offset)))
        })
        .collect()
    }
}
