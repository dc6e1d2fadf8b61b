//! Writes in small transactions, and the merge of what they put off.
//!
//! ```text
//! write   few pages, or a moderate number of rows that fill theirs: rows into their tables, one transaction
//!         else: batches into the delta, a slice a transaction; the last one makes them count
//! merge   the delta, when it has grown: rows into their tables in the order of their keys, a slice a transaction; the last
//!         one deletes the batches
//! ```
//!
//! The rows of `meta` go into their table in the last transaction of a write, so they are those of the batches that count.
//! While the delta holds anything, all changes go there: a table never has a newer row than the delta.
//!
//! A row that changes costs its own bytes in the delta, and a share of a page in a merge in which many rows share each
//! page. Written into the tables at once, it costs a page.

use queen_io::Clock;
use queen_state::Keyspace;

use super::LmdbStore;
use super::writer::{Writer, unsealed};
use crate::checkpoint::{Change, Merged, Written};
use crate::delta::{KeySet, PagesTouched, Pending, Place, SealedChange, batches, order, row_at};
use crate::error::StoreError;
use crate::image::{Verified, page_len};
use crate::seal::{SEAL_LEN, Seals};
use crate::sums::check_key;
use crate::table::TableName;

/// Memory that so many transactions of a write leave behind is kept.
const SLICES_KEPT: u64 = 4;

/// When what is written how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Rows of one transaction of a write, in bytes.
    pub(super) slice_bytes: usize,
    /// Batches of one transaction of a write.
    pub(super) slice_batches: usize,
    /// A write of so many bytes may go into its tables at once, when its rows fill their pages.
    pub(super) dense_bytes: u64,
    /// Pages of one transaction of a merge.
    pub(super) slice_pages: u64,
    /// Pages that a write puts into their tables whatever they hold.
    pub(super) pages_at_once: u64,
    /// A merge is due when the delta has a quarter of the file, within these bounds.
    pub(super) merge_bytes: (u64, u64),
    /// Or after so many writes.
    pub(super) merge_writes: u64,
    /// The map is never grown.
    pub(super) is_map_fixed: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            slice_bytes: 2 << 20,
            slice_batches: 80,
            dense_bytes: 8 << 20,
            slice_pages: 512,
            pages_at_once: 64,
            merge_bytes: (8 << 20, 256 << 20),
            merge_writes: 300,
            is_map_fixed: false,
        }
    }
}

/// The most that a transaction can add to the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    pub(super) pages: u64,
}

impl Room {
    /// What every transaction may need: table roots, the sums, lists of free pages.
    const BASE_PAGES: u64 = 256;

    fn of_rows(rows: impl IntoIterator<Item = usize>) -> Self {
        let mut room = Self { pages: 0 };
        rows.into_iter().for_each(|len| room.add(len));
        room
    }

    /// Counts a row: its leaf is copied and may be split in three, so may the branch above, and a long value has pages
    /// of its own.
    fn add(&mut self, stored_len: usize) {
        self.pages += 5 + (stored_len / page_len()) as u64;
    }

    pub(super) fn bytes(self) -> u64 {
        (self.pages + Self::BASE_PAGES).saturating_mul(page_len() as u64)
    }
}

/// What the delta holds.
#[derive(Debug)]
pub(super) struct Deferred {
    pending: Pending,
    /// Of the batches that count.
    bytes: u64,
    /// The number after the last batch in the file, those that do not count included.
    batches_end: u64,
    /// Writes since the last merge began.
    writes: u64,
    /// Rows of the batches that no merge has begun with, and of those that one is under way with.
    keys: KeySet,
    merging: KeySet,
    merge: Option<Merge>,
}

impl Default for Deferred {
    fn default() -> Self {
        let (keys, merging) = (KeySet::default(), KeySet::default());
        let pending = Pending::NONE;
        Self { pending, bytes: 0, batches_end: 1, writes: 0, keys, merging, merge: None }
    }
}

impl Deferred {
    /// Takes what is in the file.
    pub(super) fn found(&mut self, found: Verified) {
        self.keys = found.deferred;
        self.pending = found.pending;
        self.bytes = found.delta_bytes;
        self.batches_end = found.batches_end;
    }

    /// Whether the table may have an older value of this row.
    pub(super) fn has(&self, keyspace: Keyspace, key: &[u8]) -> bool {
        self.keys.may_have(keyspace, key) || self.merging.may_have(keyspace, key)
    }

    fn is_empty(&self) -> bool {
        self.pending.first == self.pending.next
    }

    /// Batches that were merged.
    #[cfg(test)]
    pub(super) fn merges(&self) -> u64 {
        self.pending.first - 1
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> Pending {
        self.pending
    }

    /// Batches that do not count.
    #[cfg(test)]
    pub(super) fn debris(&self) -> u64 {
        self.batches_end - self.pending.next
    }
}

/// A merge under way, over the batches from the first one up to before `end`.
#[derive(Debug)]
struct Merge {
    first: u64,
    end: u64,
    /// Bytes of these batches.
    bytes: u64,
    order: Vec<Place>,
    at: usize,
}

/// Changes as they come, sealed.
struct Source<'c> {
    changes: &'c mut dyn Iterator<Item = Change>,
    seals: &'c Seals,
    /// Rows of `meta`: they wait for the end.
    meta: Vec<SealedChange>,
    is_done: bool,
    written: Written,
}

impl Source<'_> {
    fn slice(&mut self, bytes_max: usize) -> Result<Vec<SealedChange>, StoreError> {
        let (mut slice, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max {
            let Some(change) = self.changes.next() else {
                self.is_done = true;
                break;
            };
            check_key(&change)?;
            let Change { keyspace, key, value } = change;
            let stored = value.map(|mut stored| {
                stored.reserve_exact(SEAL_LEN);
                self.seals.seal(keyspace, &key, &mut stored);
                stored
            });
            let change = SealedChange { keyspace, key, stored };
            bytes += change.len();
            self.written.rows += 1;
            self.written.bytes += change.len() as u64;
            let place = if keyspace == Keyspace::Meta { &mut self.meta } else { &mut slice };
            place.push(change);
        }
        Ok(slice)
    }
}

impl LmdbStore {
    /// Writes all changes, durable and counting when this returns.
    pub(super) fn write_all(
        &mut self,
        changes: &mut dyn Iterator<Item = Change>,
    ) -> Result<Written, StoreError> {
        if !self.verified {
            self.verify_file(&mut |_, _, _| Ok(()))?;
        }
        self.catch_up()?;
        let began_us = self.clock.monotonic_us();
        let seals = Seals::new();
        let (meta, written) = (Vec::new(), Written::default());
        let mut source = Source { changes, seals: &seals, meta, is_done: false, written };
        let mut next = self.deferred.pending.next;
        let mut added = 0;
        let (mut commit_us, mut slices) = (0, 0);
        loop {
            slices += 1;
            let mut slice = source.slice(self.tuning.slice_bytes)?;
            if next == self.deferred.pending.next && self.deferred.is_empty() {
                let mut fits = self.fits(&slice);
                while fits && !source.is_done && source.written.bytes < self.tuning.dense_bytes {
                    slice.extend(source.slice(self.tuning.slice_bytes)?);
                    fits = self.fits(&slice);
                }
                if fits && source.is_done {
                    commit_us += self.write_at_once(&slice, &source.meta)?;
                    break;
                }
            }
            for change in &slice {
                self.deferred.keys.insert(change.keyspace, &change.key);
            }
            let mut batches = batches(&slice);
            let mut number = next;
            next += batches.len() as u64;
            added += batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
            while batches.len() > self.tuning.slice_batches {
                let later = batches.split_off(self.tuning.slice_batches);
                let len = batches.len() as u64;
                commit_us += self.write_slice(number, batches)?;
                number += len;
                self.deferred.batches_end = self.deferred.batches_end.max(number);
                batches = later;
            }
            if source.is_done {
                commit_us += self.write_last(number, batches, &source.meta)?;
                self.deferred.bytes += added;
                break;
            }
            commit_us += self.write_slice(number, batches)?;
            self.deferred.batches_end = self.deferred.batches_end.max(next);
        }
        self.deferred.writes += 1;
        if slices > SLICES_KEPT {
            self.give_back_memory();
        }
        let mut written = source.written;
        written.commit_us = commit_us;
        written.put_us = self.clock.monotonic_us() - began_us - commit_us;
        Ok(written)
    }

    /// Whether changes are better put into their tables at once: few pages, or many rows in each.
    fn fits(&self, slice: &[SealedChange]) -> bool {
        let (mut touched, mut bytes) = (PagesTouched::default(), 0);
        for change in slice {
            touched.add(change.keyspace, &change.key, change.stored.as_ref().map_or(0, Vec::len));
            bytes += change.len() as u64;
        }
        let pages_worth = bytes.saturating_mul(2) / page_len() as u64;
        touched.pages <= self.tuning.pages_at_once.max(pages_worth)
    }

    fn write_at_once(
        &mut self,
        slice: &[SealedChange],
        meta: &[SealedChange],
    ) -> Result<i64, StoreError> {
        let debris = self.deferred.pending.next..self.deferred.batches_end;
        let room = Room::of_rows(slice.iter().chain(meta).map(SealedChange::len));
        let ((), commit_us) = self.transact(room, |writer| {
            slice.iter().chain(meta).try_for_each(|change| writer.change(change))?;
            debris.clone().try_for_each(|number| writer.delete_batch(number))
        })?;
        self.deferred.batches_end = self.deferred.pending.next;
        Ok(commit_us)
    }

    fn write_slice(&mut self, number: u64, batches: Vec<Vec<u8>>) -> Result<i64, StoreError> {
        let room = Room::of_rows(batches.iter().map(Vec::len));
        let ((), commit_us) = self.transact(room, |writer| put_batches(writer, number, batches))?;
        Ok(commit_us)
    }

    /// The transaction that makes a write count.
    fn write_last(
        &mut self,
        number: u64,
        batches: Vec<Vec<u8>>,
        meta: &[SealedChange],
    ) -> Result<i64, StoreError> {
        let next = number + batches.len() as u64;
        let pending = Pending { next, ..self.deferred.pending };
        let debris = next..self.deferred.batches_end;
        let lens = batches.iter().map(Vec::len).chain(meta.iter().map(SealedChange::len));
        let room = Room::of_rows(lens);
        let ((), commit_us) = self.transact(room, |writer| {
            put_batches(writer, number, batches)?;
            meta.iter().try_for_each(|change| writer.change(change))?;
            debris.clone().try_for_each(|number| writer.delete_batch(number))?;
            writer.put_pending(pending)
        })?;
        self.deferred.pending = pending;
        self.deferred.batches_end = next;
        Ok(commit_us)
    }

    // --- the merge ---

    /// Writes must not outrun merges for ever: the delta has to be read at a start.
    fn catch_up(&mut self) -> Result<(), StoreError> {
        let most = self.merge_bytes().saturating_mul(4);
        while self.deferred.bytes > most && self.merge_some()?.more {}
        Ok(())
    }

    /// The size of the delta at which a merge is due.
    fn merge_bytes(&self) -> u64 {
        let (least, most) = self.tuning.merge_bytes;
        (self.used_bytes / 4).clamp(least, most)
    }

    /// One transaction of a merge, if one is due or under way.
    pub(super) fn merge_some(&mut self) -> Result<Merged, StoreError> {
        if !self.verified || self.deferred.is_empty() {
            return Ok(Merged::default());
        }
        let merge = if let Some(merge) = self.deferred.merge.take() {
            merge
        } else if self.is_merge_due() {
            self.begin_merge()?
        } else {
            return Ok(Merged::default());
        };
        self.merge_slice(merge)
    }

    fn is_merge_due(&self) -> bool {
        self.deferred.bytes >= self.merge_bytes()
            || self.deferred.writes >= self.tuning.merge_writes
    }

    fn begin_merge(&mut self) -> Result<Merge, StoreError> {
        let Pending { first, next } = self.deferred.pending;
        let path = self.file_path.clone();
        let (order, _) = self.transact(Room::default(), |writer| {
            let batches = (first..next).map(|number| writer.batch(number, true));
            let batches = batches.collect::<Result<Vec<&[u8]>, StoreError>>()?;
            order(&batches).ok_or_else(|| unsealed(&path, TableName::Delta, &[]))
        })?;
        self.deferred.writes = 0;
        self.deferred.merging = std::mem::take(&mut self.deferred.keys);
        tracing::debug!(rows = order.len(), bytes = self.deferred.bytes, "merge of changes begins");
        Ok(Merge { first, end: next, bytes: self.deferred.bytes, order, at: 0 })
    }

    /// Puts the next rows into their tables; with the last ones the batches go.
    fn merge_slice(&mut self, mut merge: Merge) -> Result<Merged, StoreError> {
        let (path, tuning) = (self.file_path.clone(), self.tuning);
        let next = self.deferred.pending.next;
        let room = merge.room(&tuning);
        let ((at, is_last), _) = self.transact(room, |writer| {
            let (mut touched, mut bytes, mut at) = (PagesTouched::default(), 0, merge.at);
            let rows_end = at + tuning.slice_rows();
            while at < rows_end && touched.pages < tuning.slice_pages && bytes < tuning.slice_bytes
            {
                let Some(place) = merge.order.get(at) else { break };
                let batch = writer.batch(merge.first + u64::from(place.batch), false)?;
                let change = change_at(batch, *place)
                    .ok_or_else(|| unsealed(&path, TableName::Delta, &[]))?;
                let stored_len = change.stored.as_ref().map_or(0, Vec::len);
                touched.add(change.keyspace, &change.key, stored_len);
                bytes += change.len();
                writer.change(&change)?;
                at += 1;
            }
            let is_last = at == merge.order.len();
            if is_last {
                (merge.first..merge.end).try_for_each(|number| writer.delete_batch(number))?;
                writer.put_pending(Pending { first: merge.end, next })?;
            }
            Ok((at, is_last))
        })?;
        let rows = (at - merge.at) as u64;
        merge.at = at;
        if !is_last {
            self.deferred.merge = Some(merge);
            return Ok(Merged { rows, more: true });
        }
        self.deferred.merging = KeySet::default();
        self.give_back_memory();
        self.deferred.pending.first = merge.end;
        self.deferred.bytes = self.deferred.bytes.saturating_sub(merge.bytes);
        Ok(Merged { rows, more: self.deferred.bytes >= self.merge_bytes() })
    }
}

impl Tuning {
    /// Rows of one transaction of a merge at most: bounds the room that it may need.
    fn slice_rows(&self) -> usize {
        self.slice_bytes / 64 + 1
    }
}

impl Merge {
    /// What one transaction can add: copies of the pages of its rows, one value that may be as long as all batches, and
    /// with the last rows the numbers of the pages that the batches had.
    fn room(&self, tuning: &Tuning) -> Room {
        let mut room = Room::of_rows([tuning.slice_bytes]);
        room.pages += 5 * tuning.slice_rows() as u64;
        room.pages += self.bytes / page_len() as u64;
        room
    }
}

fn put_batches(
    writer: &mut Writer<'_>,
    number: u64,
    batches: Vec<Vec<u8>>,
) -> Result<(), StoreError> {
    (number..).zip(batches).try_for_each(|(number, batch)| writer.put_batch(number, batch))
}

fn change_at(batch: &[u8], place: Place) -> Option<SealedChange> {
    let (row, _) = row_at(batch, place.at as usize)?;
    let (key, stored) = (row.key.to_vec(), row.stored.map(<[u8]>::to_vec));
    Some(SealedChange { keyspace: place.keyspace, key, stored })
}
