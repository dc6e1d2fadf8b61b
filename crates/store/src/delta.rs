//! The delta: changes that are durable, and not yet in the tables that they belong to.
//!
//! A checkpoint of a few changed rows out of very many would rewrite a page for each. So such changes go to batches
//! first, one after the other, and are merged into the tables later, in the order of their keys, when there are many
//! for each page.
//!
//! ```text
//! table delta       number of a batch, u64 big-endian, from 1 -> batch
//! batch             version u8 | keyspace_seed u64 | row, ...          rows of one table
//! row               key length u16 | stored length u32 | key | stored value with its seal
//!                   a stored length of all ones deletes the row and has no bytes
//! meta row          store_pending: first u64 | next u64
//! ```
//!
//! - D1: the batches that count are those from `first` up to before `next`, and all of them are there. One at or behind
//!   `next` is of a write that did not end, and is written over.
//! - D2: of two changes of one row the later one counts, and both count before what the table has.
//! - D3: `first` rises in the transaction in which the last of the rows before it has reached its table.

use queen_state::Keyspace;
use roaring::RoaringBitmap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::seal::keyspace_seed;
use crate::table::TableName;

/// Key of the row that says which batches count.
pub(crate) const PENDING_KEY: &[u8] = b"store_pending";
const VERSION: u8 = 1;
const HEAD: usize = 9;
const ROW_HEAD: usize = 6;
const DELETED: u32 = u32::MAX;
/// With its page header and seal a batch fills eight pages.
const BATCH_BYTES: usize = 8 * 4096 - 16 - 8;

/// A change as it will be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedChange {
    pub(crate) keyspace: Keyspace,
    pub(crate) key: Vec<u8>,
    /// With its seal; `None` deletes the row.
    pub(crate) stored: Option<Vec<u8>>,
}

impl SealedChange {
    /// Bytes of key and stored value.
    pub(crate) fn len(&self) -> usize {
        self.key.len() + self.stored.as_ref().map_or(0, Vec::len)
    }
}

/// Which batches count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) first: u64,
    pub(crate) next: u64,
}

impl Pending {
    /// None.
    pub(crate) const NONE: Self = Self { first: 1, next: 1 };

    pub(crate) fn encode(self) -> Vec<u8> {
        [self.first.to_le_bytes(), self.next.to_le_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let [first, next] = numbers else { return None };
        let (first, next) = (u64::from_le_bytes(*first), u64::from_le_bytes(*next));
        (rest.is_empty() && 0 < first && first <= next).then_some(Self { first, next })
    }
}

/// The key of a batch.
#[expect(clippy::big_endian_bytes, reason = "keys must sort as their numbers do")]
pub(crate) fn batch_key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The number of a batch, from its key.
pub(crate) fn batch_number(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

/// Packs changes into batches, without seals, in their order.
pub(crate) fn batches(changes: &[SealedChange]) -> Vec<Vec<u8>> {
    let mut batches: Vec<Vec<u8>> = Vec::new();
    let mut of = None;
    for change in changes {
        let len = ROW_HEAD + change.len();
        let is_full = |batch: &Vec<u8>| batch.len() + len > BATCH_BYTES;
        if of != Some(change.keyspace) || batches.last().is_none_or(is_full) {
            of = Some(change.keyspace);
            let mut batch = Vec::with_capacity((HEAD + len).max(256));
            batch.push(VERSION);
            batch.extend_from_slice(&keyspace_seed(change.keyspace.name()).to_le_bytes());
            batches.push(batch);
        }
        let Some(batch) = batches.last_mut() else { continue };
        let key_len = u16::try_from(change.key.len())
            .unwrap_or_else(|_| panic!("a key of {} bytes passed its check", change.key.len()));
        let stored = change.stored.as_ref();
        let stored_len = stored.map_or(DELETED, |stored| {
            let len = u32::try_from(stored.len()).ok().filter(|len| *len != DELETED);
            len.unwrap_or_else(|| panic!("a row of {} bytes passed the planner", stored.len()))
        });
        batch.extend_from_slice(&key_len.to_le_bytes());
        batch.extend_from_slice(&stored_len.to_le_bytes());
        batch.extend_from_slice(&change.key);
        batch.extend_from_slice(stored.map_or(&[], Vec::as_slice));
    }
    batches
}

/// A row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaRow<'b> {
    pub(crate) key: &'b [u8],
    /// With its seal; `None` deletes the row.
    pub(crate) stored: Option<&'b [u8]>,
}

/// The row at a byte of a batch, and where the next one starts.
pub(crate) fn row_at(batch: &[u8], at: usize) -> Option<(DeltaRow<'_>, usize)> {
    let (key_len, rest) = batch.get(at..)?.split_first_chunk::<2>()?;
    let (stored_len, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*key_len)))?;
    let stored_len = u32::from_le_bytes(*stored_len);
    let end = at + ROW_HEAD + key.len();
    if stored_len == DELETED {
        return Some((DeltaRow { key, stored: None }, end));
    }
    let stored = rest.get(..stored_len as usize)?;
    Some((DeltaRow { key, stored: Some(stored) }, end + stored.len()))
}

/// Where a row lies: the table it belongs to, the place of its batch among those given, its byte in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) keyspace: Keyspace,
    pub(crate) batch: u32,
    pub(crate) at: u32,
}

/// The last change of each row, in the order of tables and keys; `None` for a batch that is none. Rule D2.
pub(crate) fn order(batches: &[&[u8]]) -> Option<Vec<Place>> {
    let mut rows: Vec<(Keyspace, &[u8], Place)> = Vec::new();
    for (number, batch) in (0..).zip(batches) {
        let (version, rest) = batch.split_first()?;
        let seed = u64::from_le_bytes(*rest.first_chunk()?);
        let named = |keyspace: &Keyspace| keyspace_seed(keyspace.name()) == seed;
        let keyspace = Keyspace::ALL.into_iter().find(named).filter(|_| *version == VERSION)?;
        let mut at = HEAD;
        while at < batch.len() {
            let (row, next) = row_at(batch, at)?;
            let place = Place { keyspace, batch: number, at: u32::try_from(at).ok()? };
            rows.push((keyspace, row.key, place));
            at = next;
        }
    }
    // Stable: changes of one row stay in the order in which they were made.
    rows.sort_by_key(|(keyspace, key, _)| (*keyspace, *key));
    let mut places: Vec<Place> = Vec::with_capacity(rows.len());
    let mut before = None;
    for (keyspace, key, place) in rows {
        if before.replace((keyspace, key)) == Some((keyspace, key)) {
            places.pop();
        }
        places.push(place);
    }
    Some(places)
}

/// Rows by a hash of 24 bits each: two bytes a row, and two megabytes at most. Says "in" of a few that are not: of one in
/// thirty while it has half a million.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySet(RoaringBitmap);

impl KeySet {
    pub(crate) fn insert(&mut self, keyspace: Keyspace, key: &[u8]) {
        self.0.insert(Self::hash(keyspace, key));
    }

    pub(crate) fn may_have(&self, keyspace: Keyspace, key: &[u8]) -> bool {
        !self.0.is_empty() && self.0.contains(Self::hash(keyspace, key))
    }

    fn hash(keyspace: Keyspace, key: &[u8]) -> u32 {
        let hash = xxh3_64_with_seed(key, keyspace_seed(keyspace.name()));
        u32::try_from(hash >> 40).unwrap_or(0)
    }
}

/// About how many pages of the tables hold the rows of these keys, which are sorted. Rows of numbers near each other are
/// taken to share a page, as many as rows of their length would.
#[derive(Default)]
pub(crate) struct PagesTouched {
    last: Option<(TableName, u64)>,
    pub(crate) pages: u64,
}

impl PagesTouched {
    /// Bytes of rows in a page that is two thirds full.
    const FILL: usize = 2700;
    /// What a page needs for a row beside its key and value.
    const ROW_BYTES: usize = 10;

    /// Counts a row.
    #[expect(clippy::big_endian_bytes, reason = "keys sort as their numbers do")]
    pub(crate) fn add(&mut self, table: impl Into<TableName>, key: &[u8], stored_len: usize) {
        let table = table.into();
        let number = key.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
        let near = (Self::FILL / (key.len() + stored_len + Self::ROW_BYTES)).max(1) as u64;
        let is_near = |last: (TableName, u64)| last.0 == table && number.abs_diff(last.1) < near;
        if !self.last.is_some_and(is_near) || key.len() < 8 {
            self.pages += 1;
            self.last = Some((table, number));
        }
        // Longer values lie on pages of their own.
        self.pages += if stored_len > 2000 { (stored_len / 4096) as u64 + 1 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(keyspace: Keyspace, key: &[u8], stored: Option<&[u8]>) -> SealedChange {
        SealedChange { keyspace, key: key.to_vec(), stored: stored.map(<[u8]>::to_vec) }
    }

    #[test]
    fn rows_come_back_in_order_the_later_one_of_two() {
        let changes = [
            change(Keyspace::Groups, b"b", Some(b"1")),
            change(Keyspace::Groups, b"a", Some(b"2")),
            change(Keyspace::Queues, b"z", None),
            change(Keyspace::Groups, b"a", Some(b"")),
            change(Keyspace::Groups, b"b", None),
            change(Keyspace::Groups, b"b", Some(&vec![7; 100_000])),
            change(Keyspace::Groups, b"c", Some(&vec![8; 20_000])),
            change(Keyspace::Groups, b"d", Some(&vec![9; 20_000])),
        ];
        let batches = batches(&changes);
        assert_eq!(batches.len(), 6);
        let slices: Vec<&[u8]> = batches.iter().map(Vec::as_slice).collect();
        let places = order(&slices).unwrap();
        let rows: Vec<SealedChange> = places
            .iter()
            .map(|place| {
                let (row, _) = row_at(slices[place.batch as usize], place.at as usize).unwrap();
                change(place.keyspace, row.key, row.stored)
            })
            .collect();
        let want = [2, 3, 5, 6, 7].map(|at: usize| changes[at].clone());
        assert_eq!(rows, want);
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let whole = batches(&[change(Keyspace::Groups, b"key", Some(b"value"))]).remove(0);
        assert_eq!(order(&[&whole]).unwrap().len(), 1);
        assert_eq!(order(&[&whole[..HEAD]]).unwrap().len(), 0);
        for len in (0..HEAD).chain(HEAD + 1..whole.len()) {
            assert_eq!(order(&[&whole[..len]]), None, "length {len}");
        }
        for at in 0..HEAD {
            let mut foreign = whole.clone();
            foreign[at] ^= 0x40;
            assert_eq!(order(&[&foreign]), None, "byte {at}");
        }
    }

    #[test]
    fn what_counts_is_a_range() {
        let pending = Pending { first: 3, next: 9 };
        assert_eq!(Pending::decode(&pending.encode()), Some(pending));
        assert_eq!(Pending::decode(&Pending::NONE.encode()), Some(Pending::NONE));
        for bad in [Pending { first: 0, next: 1 }, Pending { first: 2, next: 1 }] {
            assert_eq!(Pending::decode(&bad.encode()), None);
        }
        assert_eq!(Pending::decode(&[1; 15]), None);
    }

    #[test]
    fn neighbours_share_a_page() {
        let mut touched = PagesTouched::default();
        for id in [1u64, 2, 25, 40, 41, 900] {
            touched.add(Keyspace::Partitions, &batch_key(id), 90);
        }
        assert_eq!(touched.pages, 3);
        touched.add(Keyspace::Partitions, &batch_key(901), 10_000);
        assert_eq!(touched.pages, 3 + 1 + 3);
    }
}
