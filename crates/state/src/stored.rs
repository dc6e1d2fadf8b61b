//! Rows that did not change since the last checkpoint, a few at a time: what a scrub compares with the stored ones.

use std::num::NonZeroU32;

use queen_record::ids::PartitionId;

use crate::Keyspace;
use crate::cursor::GroupNumber;
use crate::cut::{RowKey, StoredRow};
use crate::partition::QueueNumber;
use crate::rows::{self, RowError};
use crate::tables::State;

/// A stored row as this build would store it: rows of an older version differ from it in their bytes only.
///
/// # Errors
/// As a load of the row.
pub fn stored_again(keyspace: Keyspace, key: &[u8], value: &[u8]) -> Result<Vec<u8>, RowError> {
    let number = |number| {
        NonZeroU32::new(number).ok_or_else(|| RowError("a number in the key is 0".to_owned()))
    };
    Ok(match keyspace {
        Keyspace::Meta => value.to_vec(),
        Keyspace::Queues => {
            let queue = number(rows::split_u32(key)?.0)?;
            rows::queue_row(&rows::queue_from_row(queue, value)?)
        }
        Keyspace::Groups => {
            let (_, rest) = rows::split_u32(key)?;
            let group = GroupNumber(number(rows::split_u32(rest)?.0)?);
            rows::group_row(&rows::group_from_row(group, value)?)
        }
        Keyspace::Partitions => {
            let (partition, name) = rows::partition_from_row(value)?;
            rows::partition_row(&partition, name)
        }
        Keyspace::Cursors => rows::cursor_row(&rows::cursor_from_row(value)?),
        Keyspace::DeadLetters => rows::dead_letter_row(&rows::dead_letter_from_row(value)?),
    })
}

/// How far a walk over all rows has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowPlace {
    /// Queues below this number are done, with their groups.
    queue: usize,
    /// Then partitions below this one, with their cursors and dead letters.
    partition: u64,
}

impl State {
    /// Rows as they are stored, from `place` on, which moves; `None` at the end, where it begins again. Rows that changed
    /// since the last cut are left out, and about `max` rows are looked at: those of one queue or partition are not parted.
    ///
    /// # Panics
    /// While a checkpoint is under way: what is stored is then neither the old row nor the new one for certain.
    pub fn unchanged_rows(&self, place: &mut RowPlace, max: usize) -> Option<Vec<StoredRow>> {
        assert!(!self.is_cut(), "rows are compared while a checkpoint is under way");
        let (mut rows, mut looked) = (Vec::new(), 0);
        let mut look = |key: RowKey| {
            looked += 1;
            if self.is_dirty(key) {
                return looked;
            }
            let value = self.encode(key);
            let (keyspace, key) = key.stored();
            rows.push(StoredRow { keyspace, key, value });
            looked
        };
        for held in self.queues.iter().skip(place.queue) {
            place.queue += 1;
            let Some(queue) = held.as_deref() else { continue };
            let mut looked = look(RowKey::Queue(queue.number));
            for group in queue.groups.keys() {
                looked = look(RowKey::Group(queue.number, *group));
            }
            if looked >= max {
                return Some(rows);
            }
        }
        for (id, row) in self.partitions.iter_from(PartitionId(place.partition)) {
            place.partition = id.0 + 1;
            let looked = self.rows_of(id, row.queue, &mut look);
            if looked >= max {
                return Some(rows);
            }
        }
        if looked > 0 {
            return Some(rows);
        }
        *place = RowPlace::default();
        None
    }

    fn rows_of(
        &self,
        id: PartitionId,
        queue: QueueNumber,
        look: &mut impl FnMut(RowKey) -> usize,
    ) -> usize {
        let mut looked = look(RowKey::Partition(id));
        let Some(queue) = self.queue_by_number(queue) else { return looked };
        for group in queue.groups.keys() {
            if self.cursors.contains_key(&(id, *group)) {
                looked = look(RowKey::Cursor(id, *group));
            }
        }
        for letter in queue.dead_letters_at(id, i64::MIN..=i64::MAX) {
            looked = look(RowKey::Dead(id, letter.letter.id));
        }
        looked
    }
}
