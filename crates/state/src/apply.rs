//! `apply`: executes an entry's effects as written, on every node.
//!
//! No clock, no setting, no choice. A failure here means that the planner let something through or that nodes
//! differ: the caller must stop the node with the index, never skip.

mod marks;

use queen_model::{
    Append, CursorSet, DlqInsert, Effect, Entry, GroupUpsert, PartitionCreate, QueueOptions,
};
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId, Tenant, Uuid};

use crate::cursor::{Cursor, GroupNumber};
use crate::cut::RowKey;
use crate::partition::{Partition, QueueNumber};
use crate::queue::{DeadLetterRow, Queue};
use crate::tables::State;

/// Why an entry cannot be applied. The node must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index}, effect {effect}: {detail}")]
pub struct ApplyError {
    /// The entry.
    pub index: EntryIndex,
    /// Which of its effects, from 0.
    pub effect: usize,
    /// What does not fit.
    pub detail: String,
}

impl State {
    /// Applies the next entry; one at or below the last applied changes nothing.
    ///
    /// # Errors
    /// When the entry is not the next one or an effect does not fit the tables: a bug or a foreign log. The
    /// tables may then hold part of the entry and must not be used or stored again.
    pub fn apply(&mut self, index: EntryIndex, term: u64, entry: &Entry) -> Result<(), ApplyError> {
        if index <= self.applied() {
            return Ok(());
        }
        self.check(index, entry).map_err(|detail| ApplyError { index, effect: 0, detail })?;
        for (at, effect) in entry.effects.iter().enumerate() {
            self.apply_effect(effect).map_err(|detail| ApplyError { index, effect: at, detail })?;
        }
        self.scalars.applied = index.0;
        self.scalars.term = term;
        self.scalars.last_now = entry.now;
        Ok(())
    }

    /// Takes note of an entry that changes nothing but the place in the order, as a cluster's own entries do.
    ///
    /// # Errors
    /// When the entry is not the next one.
    pub fn pass(&mut self, index: EntryIndex, term: u64) -> Result<(), ApplyError> {
        if index <= self.applied() {
            return Ok(());
        }
        if index != self.applied().next() {
            let detail = format!("applied is {}", self.applied());
            return Err(ApplyError { index, effect: 0, detail });
        }
        self.scalars.applied = index.0;
        self.scalars.term = term;
        Ok(())
    }

    fn check(&self, index: EntryIndex, entry: &Entry) -> Result<(), String> {
        if index != self.applied().next() {
            return Err(format!("applied is {}", self.applied()));
        }
        if entry.now <= self.last_now() {
            return Err(format!("its time {} is not above {}", entry.now, self.last_now()));
        }
        if entry.pid_base != self.next_partition() {
            return Err(format!("its partitions start at {}", entry.pid_base));
        }
        if entry.kv_version_base != self.kv_version_next() {
            return Err(format!("its key versions start at {}", entry.kv_version_base));
        }
        Ok(())
    }

    fn apply_effect(&mut self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::Noop => Ok(()),
            Effect::QueueUpsert { tenant, queue, id, options, created } => {
                self.upsert_queue(*tenant, queue, *id, options, *created);
                Ok(())
            }
            Effect::QueueDelete { tenant, queue } => self.delete_queue(*tenant, queue),
            Effect::GroupUpsert(group) => self.upsert_group(group),
            Effect::GroupDelete { tenant, queue, group, metadata } => {
                self.delete_group(*tenant, queue, group, *metadata)
            }
            Effect::PartitionCreate(create) => self.create_partition(create),
            Effect::PartitionDelete { id } => self.remove_partition(*id),
            Effect::Append(append) => self.append(append),
            Effect::CursorSet(set) => self.set_cursor(set),
            Effect::CursorDelete { id, group } => self.delete_cursor(*id, group),
            Effect::Watermark(marks) => self.move_marks(marks),
            Effect::DlqInsert(letter) => self.file_dead_letter(letter),
            Effect::DlqDelete { tenant, queue, id } => self.remove_dead_letter(*tenant, queue, *id),
            Effect::DeleteChunk { limit } => {
                self.sweep(*limit);
                Ok(())
            }
        }
    }

    fn upsert_queue(
        &mut self,
        tenant: Tenant,
        name: &str,
        id: Uuid,
        options: &QueueOptions,
        created: Micros,
    ) {
        let number = if let Some(queue) = self.queue(tenant, name) {
            queue.number
        } else {
            let next = self.scalars.next_queue;
            self.scalars.next_queue += 1;
            let number = QueueNumber(std::num::NonZeroU32::MIN.saturating_add(next - 1));
            let queue = Queue::new(number, tenant, name, id);
            self.names.entry(tenant).or_default().insert(queue.name.clone(), number);
            // The row did not exist before: a cut under way must see that.
            self.touch(RowKey::Queue(number));
            self.put_queue(queue);
            number
        };
        self.touch(RowKey::Queue(number));
        if let Some(queue) = self.queue_mut(number) {
            queue.id = id;
            queue.options = options.clone();
            queue.created = created;
        }
    }

    fn delete_queue(&mut self, tenant: Tenant, name: &str) -> Result<(), String> {
        let names = self.names.get_mut(&tenant);
        let number = names
            .and_then(|names| names.remove(name))
            .ok_or_else(|| format!("queue {name} is not there"))?;
        self.touch(RowKey::Queue(number));
        if let Some(queue) = self.queue_mut(number) {
            queue.deleted = true;
        }
        // The sweep of the queue takes its groups along.
        self.garbage.retain(|(queue, group)| *queue != number || group.is_none());
        self.garbage.insert((number, None));
        Ok(())
    }

    fn upsert_group(&mut self, group: &GroupUpsert) -> Result<(), String> {
        let number = self.live_queue(group.tenant, &group.queue)?;
        let id = self.group_number(number, &group.group)?;
        self.touch(RowKey::Group(number, id));
        if let Some(row) = self.queue_mut(number).and_then(|queue| queue.groups.get_mut(&id)) {
            row.subscription = Some(group.clone());
        }
        Ok(())
    }

    fn delete_group(
        &mut self,
        tenant: Tenant,
        queue: &str,
        group: &str,
        metadata: bool,
    ) -> Result<(), String> {
        let number = self.live_queue(tenant, queue)?;
        let owner = self.queue_mut(number).ok_or("the queue is not there")?;
        let id =
            owner.group_names.remove(group).ok_or_else(|| format!("group {group} is not there"))?;
        self.touch(RowKey::Group(number, id));
        let owner = self.queue_mut(number).ok_or("the queue is not there")?;
        let row = owner.groups.get_mut(&id).ok_or("the group is not there")?;
        row.sweep_from = Some(0);
        let subscription = if metadata { None } else { row.subscription.take() };
        self.garbage.insert((number, Some(id)));
        if let Some(subscription) = subscription {
            self.upsert_group(&subscription)?;
        }
        Ok(())
    }

    fn create_partition(&mut self, create: &PartitionCreate) -> Result<(), String> {
        let queue = self.live_queue(create.tenant, &create.queue)?;
        if create.id != self.next_partition() {
            return Err(format!("partition {} is made out of order", create.id));
        }
        self.touch(RowKey::Partition(create.id));
        self.scalars.next_partition += 1;
        let row = Partition {
            queue,
            name_at: 0,
            name_len: 0,
            uuid: create.uuid,
            last_offset: -1,
            created: create.created,
            // The first append may carry the creation time.
            last_created: Micros(create.created.0 - 1),
            retained_bytes: 0,
            marks: None,
            cursor: None,
        };
        self.put_partition(create.id, row, &create.partition);
        Ok(())
    }

    fn append(&mut self, append: &Append) -> Result<(), String> {
        self.touch(RowKey::Partition(append.id));
        let retained = i64::from(append.retained());
        let row = self.partitions.get_mut(append.id).ok_or("the partition is not there")?;
        if append.base != row.next_offset() {
            return Err(format!("append at {} where {} is due", append.base, row.next_offset()));
        }
        if append.created <= row.last_created {
            return Err(format!("append at {} is not after {}", append.created, row.last_created));
        }
        if let Some(marks) = row.marks.as_deref_mut()
            && marks.log_start == append.base.0
        {
            // Everything before it is gone.
            marks.oldest = Some(append.created);
        }
        row.last_offset += i64::from(append.count());
        row.last_created = append.created;
        row.retained_bytes += retained;
        let queue = row.queue;
        if let Some(queue) = self.queue_mut(queue) {
            queue.retained_bytes += retained;
        }
        self.scalars.max_created = self.scalars.max_created.max(append.created);
        Ok(())
    }

    fn set_cursor(&mut self, set: &CursorSet) -> Result<(), String> {
        let queue = self.partitions.get(set.id).ok_or("the partition is not there")?.queue;
        let group = self.group_number(queue, &set.group)?;
        let cursor = Cursor::from_effect(group, set);
        let inline = self.partitions.get(set.id).is_some_and(|row| {
            row.cursor
                .as_ref()
                .map_or(!self.cursors.contains_key(&(set.id, group)), |first| first.group == group)
        });
        let made = if inline {
            self.touch(RowKey::Partition(set.id));
            let row = self.partitions.get_mut(set.id).ok_or("the partition is not there")?;
            row.cursor.replace(cursor).is_none()
        } else {
            self.touch(RowKey::Cursor(set.id, group));
            self.cursors.insert((set.id, group), cursor).is_none()
        };
        if made && let Some(group) = self.queue_mut(queue).and_then(|q| q.groups.get_mut(&group)) {
            group.cursor_count += 1;
        }
        Ok(())
    }

    fn delete_cursor(&mut self, id: PartitionId, group: &str) -> Result<(), String> {
        let queue = self.partitions.get(id).ok_or("the partition is not there")?.queue;
        let owner = self.queue_by_number(queue).ok_or("the queue is not there")?;
        let number = owner.group(group).ok_or("the group is not there")?.number;
        self.drop_cursor(id, number);
        Ok(())
    }

    /// Removes a group's cursor from a partition, wherever it lies; whether there was one.
    fn drop_cursor(&mut self, id: PartitionId, group: GroupNumber) -> bool {
        let inline = self
            .partitions
            .get(id)
            .and_then(|row| row.cursor.as_ref())
            .is_some_and(|cursor| cursor.group == group);
        if inline {
            self.touch(RowKey::Partition(id));
            if let Some(row) = self.partitions.get_mut(id) {
                row.cursor = None;
            }
        } else if self.cursors.contains_key(&(id, group)) {
            self.touch(RowKey::Cursor(id, group));
            self.cursors.remove(&(id, group));
        } else {
            return false;
        }
        let queue = self.partitions.get(id).map(|row| row.queue);
        if let Some(group) = queue
            .and_then(|queue| self.queue_mut(queue))
            .and_then(|queue| queue.groups.get_mut(&group))
        {
            group.cursor_count -= 1;
        }
        true
    }

    fn file_dead_letter(&mut self, letter: &DlqInsert) -> Result<(), String> {
        let queue =
            self.partitions.get(letter.partition).ok_or("the partition is not there")?.queue;
        let group = self.group_number(queue, &letter.group)?;
        self.touch(RowKey::Dead(letter.partition, letter.id));
        if let Some(queue) = self.queue_mut(queue) {
            queue.put_dead(DeadLetterRow { group, letter: letter.clone() });
        }
        Ok(())
    }

    fn remove_dead_letter(&mut self, tenant: Tenant, queue: &str, id: Uuid) -> Result<(), String> {
        let number = self.live_queue(tenant, queue)?;
        let row = self.queue_by_number(number).and_then(|queue| queue.dead_letter(id));
        let row = row.ok_or_else(|| format!("dead letter {id} is not there"))?;
        let (failed, partition) = (row.letter.failed, row.letter.partition);
        self.touch(RowKey::Dead(partition, id));
        if let Some(queue) = self.queue_mut(number) {
            queue.remove_dead(&(failed, id));
        }
        Ok(())
    }

    fn remove_partition(&mut self, id: PartitionId) -> Result<(), String> {
        let queue = self.partitions.get(id).ok_or("the partition is not there")?.queue;
        let groups: Vec<GroupNumber> =
            self.queue_by_number(queue).map_or(Vec::new(), |q| q.groups.keys().copied().collect());
        for group in groups {
            self.drop_cursor(id, group);
        }
        self.drop_dead_letters(queue, id);
        self.touch(RowKey::Partition(id));
        let row = self.partitions.get(id).ok_or("the partition is not there")?;
        let name = self.partition_name(row).to_owned();
        let retained = row.retained_bytes;
        if let Some(queue) = self.queue_mut(queue) {
            queue.names.forget(id, &name);
            queue.members.remove(id.0);
            queue.retained_bytes -= retained;
        }
        self.partitions.remove(id);
        Ok(())
    }

    /// Removes up to `limit` rows of what was deleted, oldest queue first.
    fn sweep(&mut self, limit: u32) {
        let mut left = limit;
        while left > 0
            && let Some(first) = self.garbage.first().copied()
        {
            let (queue, group) = first;
            let done = match group {
                None => self.sweep_queue(queue, &mut left),
                Some(group) => self.sweep_group(queue, group, &mut left),
            };
            if done {
                self.garbage.remove(&first);
            }
        }
    }

    fn sweep_queue(&mut self, number: QueueNumber, left: &mut u32) -> bool {
        while *left > 0 {
            *left -= 1;
            let Some(queue) = self.queue_by_number(number) else { return true };
            if let Some((key, row)) = queue.dead.first_key_value() {
                let (key, id) = (*key, RowKey::Dead(row.letter.partition, row.letter.id));
                self.touch(id);
                if let Some(queue) = self.queue_mut(number) {
                    queue.remove_dead(&key);
                }
            } else if let Some(id) = queue.members.min() {
                let gone = self.remove_partition(PartitionId(id));
                debug_assert!(gone.is_ok(), "a member of the queue has a row");
            } else if let Some(group) = queue.groups.keys().next().copied() {
                self.touch(RowKey::Group(number, group));
                if let Some(queue) = self.queue_mut(number) {
                    queue.groups.remove(&group);
                }
            } else {
                self.touch(RowKey::Queue(number));
                if let Some(slot) = self.queues.get_mut(number.0.get() as usize) {
                    *slot = None;
                }
                return true;
            }
        }
        false
    }

    fn sweep_group(&mut self, number: QueueNumber, group: GroupNumber, left: &mut u32) -> bool {
        while *left > 0 {
            *left -= 1;
            let Some(queue) = self.queue_by_number(number) else { return true };
            let Some(from) = queue.groups.get(&group).and_then(|row| row.sweep_from) else {
                return true;
            };
            let next = queue.partitions_from(PartitionId(from)).next();
            self.touch(RowKey::Group(number, group));
            if let Some(id) = next {
                self.drop_cursor(id, group);
            }
            let Some(queue) = self.queue_mut(number) else { return true };
            if let Some(id) = next {
                if let Some(row) = queue.groups.get_mut(&group) {
                    row.sweep_from = Some(id.0 + 1);
                }
            } else {
                queue.groups.remove(&group);
                return true;
            }
        }
        false
    }

    fn live_queue(&self, tenant: Tenant, name: &str) -> Result<QueueNumber, String> {
        let queue = self.queue(tenant, name).ok_or_else(|| format!("queue {name} is not there"))?;
        Ok(queue.number)
    }

    /// The number of the group of this name, made without subscription when it is new.
    fn group_number(&mut self, queue: QueueNumber, name: &str) -> Result<GroupNumber, String> {
        let owner = self.queue_by_number(queue).ok_or("the queue is not there")?;
        if let Some(group) = owner.group(name) {
            return Ok(group.number);
        }
        self.touch(RowKey::Queue(queue));
        let owner = self.queue_mut(queue).ok_or("the queue is not there")?;
        let (number, _) = owner.group_or_new(name);
        self.touch(RowKey::Group(queue, number));
        Ok(number)
    }
}

/// The offset after a cursor: what its group reads next.
impl Cursor {
    /// First offset that the group has not done.
    pub fn wanted(&self) -> Offset {
        Offset(u64::try_from(self.committed + 1).unwrap_or(0))
    }
}
