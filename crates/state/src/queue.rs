//! Queue rows: options, partition names, groups, dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use queen_model::{DlqInsert, GroupUpsert, QueueOptions};
use queen_record::ids::{Micros, PartitionId, Tenant, Uuid};
use roaring::RoaringTreemap;
use std::hash::BuildHasher;

use crate::cursor::GroupNumber;
use crate::partition::{PartitionTable, QueueNumber};

/// One dead letter and the group it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// The group's number.
    pub group: GroupNumber,
    /// What was filed.
    pub letter: DlqInsert,
}

/// One consumer group on one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number in the queue.
    pub number: GroupNumber,
    /// Its name.
    pub name: Arc<str>,
    /// Its subscription; a group that was only used pinned, or queue mode, has none.
    pub subscription: Option<GroupUpsert>,
    /// Cursor rows it has.
    pub cursor_count: u64,
    /// Set once it was deleted: the partition from which its rows are still to be removed.
    pub(crate) sweep_from: Option<u64>,
}

/// One queue.
pub struct Queue {
    /// Its number.
    pub number: QueueNumber,
    /// Whose.
    pub tenant: Tenant,
    /// Its name.
    pub name: Arc<str>,
    /// Its id, kept over reconfiguration.
    pub id: Uuid,
    /// Its options.
    pub options: QueueOptions,
    /// When it was made.
    pub created: Micros,
    /// Bytes of the retained appends over its partitions.
    pub retained_bytes: i64,
    /// Set once it was deleted: its rows are still to be removed.
    pub(crate) deleted: bool,
    pub(crate) next_group: u32,
    pub(crate) names: Names,
    pub(crate) members: RoaringTreemap,
    pub(crate) groups: BTreeMap<GroupNumber, Group>,
    pub(crate) group_names: BTreeMap<Arc<str>, GroupNumber>,
    pub(crate) dead: BTreeMap<(Micros, Uuid), DeadLetterRow>,
    /// Keys of `dead` by partition and offset.
    dead_at: BTreeSet<(PartitionId, i64, Micros, Uuid)>,
}

/// Names of a queue's partitions: the text in one arena, found through a table of partition numbers.
#[derive(Default)]
pub(crate) struct Names {
    arena: Vec<u8>,
    table: HashTable<u64>,
}

/// Seed of the name tables: a constant, since no table is iterated and the state must not depend on it.
const NAME_HASH: FixedState = FixedState::with_seed(0x7175_6575_656e);

impl Names {
    /// Stores a name and returns where it lies.
    pub(crate) fn store(&mut self, name: &str) -> (u32, u16) {
        let at = u32::try_from(self.arena.len())
            .unwrap_or_else(|_| panic!("the partition names of one queue passed 4 GiB"));
        let len = u16::try_from(name.len())
            .unwrap_or_else(|_| panic!("a name of {} bytes passed the planner", name.len()));
        self.arena.extend_from_slice(name.as_bytes());
        (at, len)
    }

    pub(crate) fn text(&self, at: u32, len: u16) -> &str {
        let at = at as usize;
        let bytes = self.arena.get(at..at + usize::from(len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    pub(crate) fn find(&self, name: &str, table: &PartitionTable) -> Option<PartitionId> {
        let hash = NAME_HASH.hash_one(name);
        let same = |id: &u64| {
            let row = table.get(PartitionId(*id));
            row.is_some_and(|row| self.text(row.name_at, row.name_len) == name)
        };
        self.table.find(hash, same).copied().map(PartitionId)
    }

    pub(crate) fn index(&mut self, id: PartitionId, name: &str, table: &PartitionTable) {
        let Self { arena, table: ids } = self;
        let hash = |id: &u64| {
            let row = table.get(PartitionId(*id));
            let (at, len) = row.map_or((0, 0), |row| (row.name_at as usize, row.name_len as usize));
            let bytes = arena.get(at..at + len).unwrap_or_default();
            NAME_HASH.hash_one(std::str::from_utf8(bytes).unwrap_or_default())
        };
        ids.insert_unique(NAME_HASH.hash_one(name), id.0, hash);
    }

    pub(crate) fn forget(&mut self, id: PartitionId, name: &str) {
        if let Ok(entry) = self.table.find_entry(NAME_HASH.hash_one(name), |held| *held == id.0) {
            entry.remove();
        }
    }
}

impl Queue {
    pub(crate) fn new(number: QueueNumber, tenant: Tenant, name: &str, id: Uuid) -> Self {
        Self {
            number,
            tenant,
            name: name.into(),
            id,
            options: QueueOptions::configured(),
            created: Micros(0),
            retained_bytes: 0,
            deleted: false,
            next_group: 1,
            names: Names::default(),
            members: RoaringTreemap::new(),
            groups: BTreeMap::new(),
            group_names: BTreeMap::new(),
            dead: BTreeMap::new(),
            dead_at: BTreeSet::new(),
        }
    }

    /// Partitions it has.
    pub fn partition_count(&self) -> u64 {
        self.members.len()
    }

    /// Its partitions in the order they were made, from `from` on.
    pub fn partitions_from(&self, from: PartitionId) -> impl Iterator<Item = PartitionId> + '_ {
        let mut members = self.members.iter();
        members.advance_to(from.0);
        members.map(PartitionId)
    }

    /// The partition that was made after `rank` others that are still there.
    pub fn partition_at(&self, rank: u64) -> Option<PartitionId> {
        self.members.select(rank).map(PartitionId)
    }

    /// Its partitions in the order they were made.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.members.iter().map(PartitionId)
    }

    /// The live group of this name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(self.group_names.get(name)?)
    }

    /// The group of this number, deleted ones included.
    pub fn group_by_number(&self, number: GroupNumber) -> Option<&Group> {
        self.groups.get(&number)
    }

    /// Its live groups by name.
    pub fn groups(&self) -> impl Iterator<Item = &Group> + '_ {
        self.group_names.values().filter_map(|number| self.groups.get(number))
    }

    /// Its dead letters, oldest failure first. They outlive their group: a letter is a message that nobody may lose.
    pub fn dead_letters(&self) -> impl DoubleEndedIterator<Item = &DeadLetterRow> + '_ {
        self.dead.values()
    }

    /// The dead letter of this id.
    ///
    /// An id begins with the millisecond at which its letter was filed, so mostly only the letters of that moment are
    /// looked at.
    pub fn dead_letter(&self, id: Uuid) -> Option<&DeadLetterRow> {
        let millis = id.0.iter().take(6).fold(0i64, |sum, byte| sum << 8 | i64::from(*byte));
        let (first, last) = (Uuid([0; 16]), Uuid([u8::MAX; 16]));
        let moment = (Micros(millis * 1000), first)..=(Micros(millis * 1000 + 999), last);
        let near = self.dead.range(moment).find(|((_, of), _)| *of == id);
        near.or_else(|| self.dead.iter().find(|((_, of), _)| *of == id)).map(|(_, row)| row)
    }

    /// How many dead letters it holds.
    pub fn dead_letter_count(&self) -> u64 {
        self.dead.len() as u64
    }

    /// The dead letters of one partition's messages in a range of offsets, by offset; a timer's is negative.
    pub fn dead_letters_at(
        &self,
        partition: PartitionId,
        offsets: RangeInclusive<i64>,
    ) -> impl DoubleEndedIterator<Item = &DeadLetterRow> + '_ {
        let (from, to) = (*offsets.start(), *offsets.end());
        // An empty range is no range of the set.
        let to = to.max(from.saturating_sub(1));
        let first = (partition, from, Micros(i64::MIN), Uuid([0; 16]));
        let last = (partition, to, Micros(i64::MAX), Uuid([0xff; 16]));
        let keys = (first <= last).then(|| self.dead_at.range(first..=last));
        keys.into_iter().flatten().filter_map(|(_, _, failed, id)| self.dead.get(&(*failed, *id)))
    }

    /// Files a dead letter.
    pub(crate) fn put_dead(&mut self, row: DeadLetterRow) {
        let letter = &row.letter;
        self.dead_at.insert((letter.partition, letter.offset, letter.failed, letter.id));
        self.dead.insert((letter.failed, letter.id), row);
    }

    /// Removes a dead letter.
    pub(crate) fn remove_dead(&mut self, key: &(Micros, Uuid)) {
        if let Some(DeadLetterRow { letter, .. }) = self.dead.remove(key) {
            self.dead_at.remove(&(letter.partition, letter.offset, letter.failed, letter.id));
        }
    }

    /// The group of this name, made without subscription when it is new; true when it was made.
    pub(crate) fn group_or_new(&mut self, name: &str) -> (GroupNumber, bool) {
        if let Some(number) = self.group_names.get(name) {
            return (*number, false);
        }
        let number = GroupNumber(NonZeroU32::new(self.next_group).unwrap_or(NonZeroU32::MIN));
        self.next_group += 1;
        let name: Arc<str> = name.into();
        self.group_names.insert(name.clone(), number);
        let group = Group { number, name, subscription: None, cursor_count: 0, sweep_from: None };
        self.groups.insert(number, group);
        (number, true)
    }
}
