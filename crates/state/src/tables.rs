//! The tables and how they are read, loaded and cut for a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId, Tenant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cursor::{Cursor, GroupNumber};
use crate::cut::{Cut, RowKey, RowSet, StoredRow};
use crate::partition::{Partition, PartitionTable, QueueNumber};
use crate::queue::{DeadLetterRow, Group, Queue};
use crate::rows::{self, RowError, Scalars};
use crate::{Keyspace, rows::split_partition};

/// Key of the scalars in `meta`.
pub(crate) const SCALARS_KEY: &[u8] = b"scalars";
/// Key of the logs' durable point in `meta`; its bytes belong to the log layer.
pub(crate) const LOGS_KEY: &[u8] = b"logs";

/// Everything a node knows but the messages.
pub struct State {
    pub(crate) scalars: Scalars,
    pub(crate) queues: Vec<Option<Box<Queue>>>,
    pub(crate) names: BTreeMap<Tenant, BTreeMap<Arc<str>, QueueNumber>>,
    pub(crate) partitions: PartitionTable,
    pub(crate) cursors: HashMap<(PartitionId, GroupNumber), Cursor, FixedState>,
    /// Deleted queues (no group) and deleted groups whose rows are still to be removed.
    pub(crate) garbage: BTreeSet<(QueueNumber, Option<GroupNumber>)>,
    pub(crate) logs: Vec<u8>,
    dirty: RowSet,
    cut: Option<Cut>,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// The state before the first entry.
    pub fn new() -> Self {
        Self {
            scalars: Scalars {
                applied: 0,
                term: 0,
                next_partition: 1,
                next_queue: 1,
                kv_version_next: 1,
                last_now: Micros(0),
                max_created: Micros(0),
            },
            queues: Vec::new(),
            names: BTreeMap::new(),
            partitions: PartitionTable::default(),
            cursors: HashMap::with_hasher(FixedState::with_seed(0x6375_7273)),
            garbage: BTreeSet::new(),
            logs: Vec::new(),
            dirty: RowSet::default(),
            cut: None,
        }
    }

    /// The last applied entry.
    pub fn applied(&self) -> EntryIndex {
        EntryIndex(self.scalars.applied)
    }

    /// The term of the last applied entry.
    pub fn term(&self) -> u64 {
        self.scalars.term
    }

    /// The number that the next partition gets.
    pub fn next_partition(&self) -> PartitionId {
        PartitionId(self.scalars.next_partition)
    }

    /// The version that the next key gets.
    pub fn kv_version_next(&self) -> u64 {
        self.scalars.kv_version_next
    }

    /// The time that the next entry must be above.
    pub fn last_now(&self) -> Micros {
        self.scalars.last_now
    }

    /// The highest time of any append.
    pub fn max_created(&self) -> Micros {
        self.scalars.max_created
    }

    /// The logs' durable point of the checkpoint this state was loaded from; empty when there was none.
    pub fn logs_point(&self) -> &[u8] {
        &self.logs
    }

    /// The live queue of this name.
    pub fn queue(&self, tenant: Tenant, name: &str) -> Option<&Queue> {
        self.queue_by_number(*self.names.get(&tenant)?.get(name)?)
    }

    /// The queue of this number, deleted ones included while they are swept.
    pub fn queue_by_number(&self, number: QueueNumber) -> Option<&Queue> {
        self.queues.get(number.0.get() as usize)?.as_deref()
    }

    /// A tenant's live queues by name.
    pub fn queues(&self, tenant: Tenant) -> impl Iterator<Item = &Queue> + '_ {
        let names = self.names.get(&tenant);
        names.into_iter().flat_map(|names| names.values()).filter_map(|n| self.queue_by_number(*n))
    }

    /// Every tenant's live queues.
    pub fn all_queues(&self) -> impl Iterator<Item = &Queue> + '_ {
        self.names
            .values()
            .flat_map(|names| names.values())
            .filter_map(|number| self.queue_by_number(*number))
    }

    /// The live partition of this name in `queue`.
    pub fn partition_named(&self, queue: &Queue, name: &str) -> Option<PartitionId> {
        queue.names.find(name, &self.partitions)
    }

    /// The partition of this number, unless it or its queue is deleted.
    pub fn partition(&self, id: PartitionId) -> Option<&Partition> {
        let row = self.partitions.get(id)?;
        self.queue_by_number(row.queue).filter(|queue| !queue.deleted).map(|_| row)
    }

    /// The offset below which a partition's records may be reclaimed; `None` when all of them may, because the partition
    /// or its queue is deleted. One look into a table.
    ///
    /// The caller must ask only about records of applied entries: a partition that is not made yet is not there either.
    /// The answer never goes back: numbers are not reused and marks only rise.
    pub fn reclaimable(&self, id: PartitionId) -> Option<Offset> {
        self.partition(id).map(Partition::txns_start)
    }

    /// A partition's name.
    pub fn partition_name(&self, partition: &Partition) -> &str {
        self.queue_by_number(partition.queue)
            .map_or("", |queue| queue.names.text(partition.name_at, partition.name_len))
    }

    /// Partitions in the tables, those of deleted queues included.
    pub fn partition_count(&self) -> u64 {
        self.partitions.len()
    }

    /// Every partition in the tables, by number, from `from` on.
    pub fn partitions_from(
        &self,
        from: PartitionId,
    ) -> impl Iterator<Item = (PartitionId, &Partition)> {
        self.partitions.iter_from(from)
    }

    /// Every partition in the tables, by number.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &Partition)> {
        self.partitions.iter_from(PartitionId(0))
    }

    /// A group's cursor in one partition.
    pub fn cursor(&self, id: PartitionId, group: GroupNumber) -> Option<&Cursor> {
        match self.partitions.get(id)?.cursor.as_ref() {
            Some(first) if first.group == group => Some(first),
            _ => self.cursors.get(&(id, group)),
        }
    }

    /// Whether rows of deleted queues or groups are still to be removed.
    pub fn has_garbage(&self) -> bool {
        !self.garbage.is_empty()
    }

    /// Rows that changed since the last cut.
    pub fn dirty_rows(&self) -> u64 {
        self.dirty.len()
    }

    // --- dirty rows and the cut ---

    /// Marks a row as changing. Must be called before the change: a cut under way still needs the old value.
    pub(crate) fn touch(&mut self, key: RowKey) {
        if let Some(mut cut) = self.cut.take() {
            if cut.pending.remove(key) {
                cut.saved.insert(key, self.encode(key));
            }
            self.cut = Some(cut);
        }
        self.dirty.insert(key);
    }

    pub(crate) fn is_dirty(&self, key: RowKey) -> bool {
        self.dirty.contains(key)
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Starts a checkpoint as of the last applied entry; `logs` is the logs' durable point to record with it.
    ///
    /// Returns the rows of `meta`, which must be written in the same transaction.
    /// # Panics
    /// When the last cut was not finished: one checkpoint is in flight at a time.
    pub fn begin_cut(&mut self, logs: &[u8]) -> Vec<StoredRow> {
        assert!(self.cut.is_none(), "a checkpoint is already under way");
        self.logs = logs.to_vec();
        let pending = std::mem::take(&mut self.dirty);
        self.cut = Some(Cut { pending, saved: BTreeMap::new() });
        let meta = |key: &[u8], value: Vec<u8>| StoredRow {
            keyspace: Keyspace::Meta,
            key: key.to_vec(),
            value: Some(value),
        };
        vec![meta(LOGS_KEY, logs.to_vec()), meta(SCALARS_KEY, rows::scalars_row(&self.scalars))]
    }

    /// Takes up to `max` more rows of the cut, mostly in stored order; none when it is complete.
    pub fn next_of_cut(&mut self, max: usize) -> Vec<StoredRow> {
        let Some(mut cut) = self.cut.take() else { return Vec::new() };
        let mut found = Vec::new();
        while found.len() < max {
            let (key, value) = match cut.pending.pop() {
                Some(key) => (key, self.encode(key)),
                None => match cut.saved.pop_first() {
                    Some(saved) => saved,
                    None => break,
                },
            };
            let (keyspace, key) = key.stored();
            found.push(StoredRow { keyspace, key, value });
        }
        self.cut = Some(cut);
        found
    }

    /// Ends the checkpoint: its rows are in the store.
    pub fn finish_cut(&mut self) {
        let left = self.cut.take().map_or(0, |cut| cut.pending.len() + cut.saved.len() as u64);
        assert!(left == 0, "a checkpoint ended with {left} rows unwritten");
    }

    /// A row's stored value now; `None` when it is gone.
    pub(crate) fn encode(&self, key: RowKey) -> Option<Vec<u8>> {
        match key {
            RowKey::Queue(number) => self.queue_by_number(number).map(rows::queue_row),
            RowKey::Group(queue, group) => {
                self.queue_by_number(queue)?.groups.get(&group).map(rows::group_row)
            }
            RowKey::Partition(id) => {
                let row = self.partitions.get(id)?;
                Some(rows::partition_row(row, self.partition_name(row)))
            }
            RowKey::Cursor(id, group) => self.cursors.get(&(id, group)).map(rows::cursor_row),
            RowKey::Dead(id, letter) => {
                let queue = self.queue_by_number(self.partitions.get(id)?.queue)?;
                queue.dead_letter(letter).map(rows::dead_letter_row)
            }
        }
    }

    // --- load ---

    /// Takes one row of the checkpoint. Rows come table by table in the order of [`Keyspace::ALL`].
    ///
    /// # Errors
    /// When the row is newer than this build or refers to something that is not there.
    pub fn load_row(
        &mut self,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), RowError> {
        match keyspace {
            Keyspace::Meta => self.load_meta(key, value),
            Keyspace::Queues => self.load_queue(key, value),
            Keyspace::Groups => self.load_group(key, value),
            Keyspace::Partitions => self.load_partition(key, value),
            Keyspace::Cursors => self.load_cursor(key, value),
            Keyspace::DeadLetters => self.load_dead_letter(value),
        }
    }

    fn load_meta(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        match key {
            SCALARS_KEY => self.scalars = rows::scalars_from_row(value)?,
            LOGS_KEY => self.logs = value.to_vec(),
            other => {
                let name = String::from_utf8_lossy(other).into_owned();
                return Err(RowError(format!("meta row {name} is not known to this build")));
            }
        }
        Ok(())
    }

    fn load_queue(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        let number = nonzero(rows::split_u32(key)?.0)?;
        let queue = rows::queue_from_row(number, value)?;
        if queue.deleted {
            self.garbage.insert((queue.number, None));
        } else {
            let names = self.names.entry(queue.tenant).or_default();
            names.insert(queue.name.clone(), queue.number);
        }
        self.put_queue(queue);
        Ok(())
    }

    pub(crate) fn put_queue(&mut self, queue: Queue) {
        let at = queue.number.0.get() as usize;
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.queues.get_mut(at) {
            *slot = Some(Box::new(queue));
        }
    }

    fn load_group(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        let (queue, rest) = rows::split_u32(key)?;
        let (group, _) = rows::split_u32(rest)?;
        let (queue, group) = (QueueNumber(nonzero(queue)?), GroupNumber(nonzero(group)?));
        let row: Group = rows::group_from_row(group, value)?;
        let deleted = row.sweep_from.is_some();
        let owner = self.queue_mut(queue).ok_or_else(|| missing("queue", queue.0.get().into()))?;
        if !deleted {
            owner.group_names.insert(row.name.clone(), group);
        }
        owner.groups.insert(group, row);
        // The sweep of a deleted queue takes its groups along.
        if deleted && !owner.deleted {
            self.garbage.insert((queue, Some(group)));
        }
        Ok(())
    }

    fn load_partition(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        let (id, _) = split_partition(key)?;
        let (row, name) = rows::partition_from_row(value)?;
        if self.queue_by_number(row.queue).is_none() {
            return Err(missing("queue", row.queue.0.get().into()));
        }
        let name = name.to_owned();
        self.put_partition(id, row, &name);
        Ok(())
    }

    /// Adds a partition to the tables; its name is stored in its queue.
    pub(crate) fn put_partition(&mut self, id: PartitionId, mut row: Partition, name: &str) {
        let number = row.queue;
        let cursor = row.cursor.as_ref().map(|cursor| cursor.group);
        let Some(queue) =
            self.queues.get_mut(number.0.get() as usize).and_then(Option::as_deref_mut)
        else {
            return;
        };
        (row.name_at, row.name_len) = queue.names.store(name);
        queue.retained_bytes += row.retained_bytes;
        queue.members.insert(id.0);
        self.partitions.insert(id, row);
        queue.names.index(id, name, &self.partitions);
        if let Some(group) = cursor.and_then(|group| queue.groups.get_mut(&group)) {
            group.cursor_count += 1;
        }
    }

    fn load_cursor(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        let (id, _) = split_partition(key)?;
        let cursor = rows::cursor_from_row(value)?;
        let row = self.partitions.get(id).ok_or_else(|| missing("partition", id.0))?;
        let queue = row.queue;
        if let Some(group) =
            self.queue_mut(queue).and_then(|queue| queue.groups.get_mut(&cursor.group))
        {
            group.cursor_count += 1;
        }
        self.cursors.insert((id, cursor.group), cursor);
        Ok(())
    }

    fn load_dead_letter(&mut self, value: &[u8]) -> Result<(), RowError> {
        let row: DeadLetterRow = rows::dead_letter_from_row(value)?;
        let id = row.letter.partition;
        let queue = self.partitions.get(id).ok_or_else(|| missing("partition", id.0))?.queue;
        if let Some(queue) = self.queue_mut(queue) {
            queue.put_dead(row);
        }
        Ok(())
    }

    pub(crate) fn queue_mut(&mut self, number: QueueNumber) -> Option<&mut Queue> {
        self.queues.get_mut(number.0.get() as usize)?.as_deref_mut()
    }

    // --- digest ---

    /// One number per table that is equal on two nodes exactly when their rows are; for tests and operators.
    ///
    /// Shape: in the order of [`Keyspace::ALL`]; the wrapping sum over rows of a hash of key and value.
    pub fn digest(&self) -> [u64; Keyspace::ALL.len()] {
        let mut keys: Vec<RowKey> = Vec::new();
        for queue in self.queues.iter().flatten() {
            keys.push(RowKey::Queue(queue.number));
            keys.extend(queue.groups.keys().map(|group| RowKey::Group(queue.number, *group)));
            keys.extend(
                queue.dead.values().map(|row| RowKey::Dead(row.letter.partition, row.letter.id)),
            );
            for id in queue.members.iter().map(PartitionId) {
                let groups = queue.groups.keys().filter(|g| self.cursors.contains_key(&(id, **g)));
                keys.extend(groups.map(|group| RowKey::Cursor(id, *group)));
            }
        }
        keys.extend(self.partitions().map(|(id, _)| RowKey::Partition(id)));
        let mut sums = [0u64; Keyspace::ALL.len()];
        let mut add = |keyspace: Keyspace, key: &[u8], value: &[u8]| {
            let hash = xxh3_64_with_seed(value, xxh3_64_with_seed(key, 0));
            if let Some(at) = Keyspace::ALL.iter().position(|known| *known == keyspace)
                && let Some(sum) = sums.get_mut(at)
            {
                *sum = sum.wrapping_add(hash);
            }
        };
        for key in keys {
            if let Some(value) = self.encode(key) {
                let (keyspace, key) = key.stored();
                add(keyspace, &key, &value);
            }
        }
        add(Keyspace::Meta, SCALARS_KEY, &rows::scalars_row(&self.scalars));
        sums
    }
}

fn nonzero(number: u32) -> Result<NonZeroU32, RowError> {
    NonZeroU32::new(number).ok_or_else(|| RowError("a number in a key is 0".to_owned()))
}

fn missing(what: &str, number: u64) -> RowError {
    RowError(format!("the row belongs to {what} {number}, which is not there"))
}
