//! Partition rows and the dense table that finds one by its number.
//!
//! A million idle partitions must fit a small machine, so a row is one flat struct: the name lies in its queue's
//! arena, what only retention sets is boxed, and the first cursor is inline.

use std::num::NonZeroU32;

use queen_record::ids::{Micros, Offset, PartitionId, Uuid};

use crate::cursor::Cursor;

/// Number of a queue inside the state: from 1, never reused, the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNumber(pub NonZeroU32);

/// What retention moved; absent while nothing was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Messages below are gone for readers.
    pub log_start: u64,
    /// Below, the bytes may be reclaimed.
    pub txns_start: u64,
    /// Below, the hashes are gone.
    pub rows_start: u64,
    /// When the oldest retained message was appended; `None` when there is none, or when nobody said.
    pub oldest: Option<Micros>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// Its queue.
    pub queue: QueueNumber,
    pub(crate) name_at: u32,
    pub(crate) name_len: u16,
    /// Its UUID.
    pub uuid: Uuid,
    /// Offset of the newest message, -1 while there is none.
    pub last_offset: i64,
    /// When it was made.
    pub created: Micros,
    /// When the newest message was appended; `created - 1` while there is none.
    pub last_created: Micros,
    /// Bytes of the retained appends.
    pub retained_bytes: i64,
    /// Marks that retention moved.
    pub marks: Option<Box<Marks>>,
    /// The cursor that was made first.
    pub cursor: Option<Cursor>,
}

const _: () =
    assert!(size_of::<Option<Partition>>() <= 160, "the budget is 300 bytes per idle partition");

impl Partition {
    /// Oldest offset that readers may see.
    pub fn log_start(&self) -> Offset {
        Offset(self.marks.as_ref().map_or(0, |marks| marks.log_start))
    }

    /// Below, neither a message nor its hash is there: the bytes may be reclaimed. Never above `log_start`.
    pub fn txns_start(&self) -> Offset {
        Offset(self.marks.as_ref().map_or(0, |marks| marks.txns_start))
    }

    /// The offset that the next message gets.
    pub fn next_offset(&self) -> Offset {
        Offset(u64::try_from(self.last_offset + 1).unwrap_or(0))
    }

    /// Retained messages.
    pub fn retained_count(&self) -> u64 {
        self.next_offset().0.saturating_sub(self.log_start().0)
    }
}

const CHUNK: usize = 128;

struct Chunk {
    rows: Vec<Option<Partition>>,
    live: usize,
}

/// Partitions by number. Numbers are handed out in order, so a table indexed by them has few holes.
#[derive(Default)]
pub(crate) struct PartitionTable {
    chunks: Vec<Option<Box<Chunk>>>,
    live: u64,
}

impl PartitionTable {
    pub(crate) fn insert(&mut self, id: PartitionId, row: Partition) {
        let (chunk, at) = place(id);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let Some(slot) = self.chunks.get_mut(chunk) else { return };
        let chunk = slot.get_or_insert_with(|| {
            Box::new(Chunk { rows: (0..CHUNK).map(|_| None).collect(), live: 0 })
        });
        if let Some(place) = chunk.rows.get_mut(at) {
            assert!(place.is_none(), "partition {id} is made twice");
            *place = Some(row);
            chunk.live += 1;
            self.live += 1;
        }
    }

    pub(crate) fn remove(&mut self, id: PartitionId) -> Option<Partition> {
        let (chunk, at) = place(id);
        let slot = self.chunks.get_mut(chunk)?;
        let held = slot.as_mut()?;
        let row = held.rows.get_mut(at)?.take()?;
        held.live -= 1;
        self.live -= 1;
        if held.live == 0 {
            *slot = None;
        }
        Some(row)
    }

    pub(crate) fn get(&self, id: PartitionId) -> Option<&Partition> {
        let (chunk, at) = place(id);
        self.chunks.get(chunk)?.as_ref()?.rows.get(at)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        let (chunk, at) = place(id);
        self.chunks.get_mut(chunk)?.as_mut()?.rows.get_mut(at)?.as_mut()
    }

    pub(crate) fn len(&self) -> u64 {
        self.live
    }

    pub(crate) fn iter_from(
        &self,
        from: PartitionId,
    ) -> impl Iterator<Item = (PartitionId, &Partition)> {
        let (first, at) = place(from);
        let chunks = self.chunks.iter().enumerate().skip(first);
        chunks.filter_map(|(chunk, held)| Some((chunk, held.as_ref()?))).flat_map(
            move |(chunk, held)| {
                let skipped = if chunk == first { at } else { 0 };
                held.rows.iter().enumerate().skip(skipped).filter_map(move |(at, row)| {
                    Some((PartitionId((chunk * CHUNK + at) as u64), row.as_ref()?))
                })
            },
        )
    }
}

fn place(id: PartitionId) -> (usize, usize) {
    let id = usize::try_from(id.0).unwrap_or(usize::MAX);
    (id / CHUNK, id % CHUNK)
}
