//! Which rows a checkpoint has to write, and their values as of one entry while apply goes on.
//!
//! A cut swaps the set of dirty rows out and copies no value. Rows are encoded when the checkpoint thread asks for
//! them, a few at a time; a row that apply is about to change first is encoded by apply and kept aside. So a cut
//! costs the answer path nothing, and memory only for rows that change while the checkpoint runs.

use std::collections::{BTreeMap, BTreeSet};

use queen_record::ids::{PartitionId, Uuid};
use roaring::RoaringTreemap;

use crate::cursor::GroupNumber;
use crate::partition::QueueNumber;
use crate::{Keyspace, rows};

/// One stored row by its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKey {
    Queue(QueueNumber),
    Group(QueueNumber, GroupNumber),
    Partition(PartitionId),
    Cursor(PartitionId, GroupNumber),
    Dead(PartitionId, Uuid),
}

impl RowKey {
    pub(crate) fn stored(self) -> (Keyspace, Vec<u8>) {
        match self {
            Self::Queue(queue) => (Keyspace::Queues, rows::key_u32(queue.0.get(), None)),
            Self::Group(queue, group) => {
                (Keyspace::Groups, rows::key_u32(queue.0.get(), Some(group.0.get())))
            }
            Self::Partition(id) => (Keyspace::Partitions, rows::key_partition(id, &[])),
            Self::Cursor(id, group) => {
                (Keyspace::Cursors, rows::key_partition(id, &rows::key_u32(group.0.get(), None)))
            }
            Self::Dead(id, letter) => (Keyspace::DeadLetters, rows::key_partition(id, &letter.0)),
        }
    }
}

/// Rows by identity: partitions, of which there are millions, as a bitmap.
#[derive(Default)]
pub(crate) struct RowSet {
    partitions: RoaringTreemap,
    others: BTreeSet<RowKey>,
}

impl RowSet {
    pub(crate) fn insert(&mut self, key: RowKey) {
        match key {
            RowKey::Partition(id) => {
                self.partitions.insert(id.0);
            }
            other => {
                self.others.insert(other);
            }
        }
    }

    pub(crate) fn remove(&mut self, key: RowKey) -> bool {
        match key {
            RowKey::Partition(id) => self.partitions.remove(id.0),
            other => self.others.remove(&other),
        }
    }

    pub(crate) fn contains(&self, key: RowKey) -> bool {
        match key {
            RowKey::Partition(id) => self.partitions.contains(id.0),
            other => self.others.contains(&other),
        }
    }

    /// The first row in stored order, taken out.
    pub(crate) fn pop(&mut self) -> Option<RowKey> {
        let next = match (self.others.first().copied(), self.partitions.min()) {
            (Some(other), Some(id)) => Some(other.min(RowKey::Partition(PartitionId(id)))),
            (Some(other), None) => Some(other),
            (None, Some(id)) => Some(RowKey::Partition(PartitionId(id))),
            (None, None) => None,
        };
        if let Some(next) = next {
            self.remove(next);
        }
        next
    }

    pub(crate) fn len(&self) -> u64 {
        self.partitions.len() + self.others.len() as u64
    }
}

/// One stored change of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// Its table.
    pub keyspace: Keyspace,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value; `None` removes the row.
    pub value: Option<Vec<u8>>,
}

/// A checkpoint under way.
pub(crate) struct Cut {
    pub(crate) pending: RowSet,
    pub(crate) saved: BTreeMap<RowKey, Option<Vec<u8>>>,
}
