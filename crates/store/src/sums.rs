//! The store's own two rows in the meta table: the format, and how many rows there are with what sum of checksums.
//!
//! Counts and sums catch what no seal can: a page of rows that is well-formed and old, or one that is missing.
//!
//! Value of the sums row, little-endian, before its seal:
//!
//! ```text
//! commit u64 | for each table: keyspace_seed u64, row count u64, wrapping sum of checksums u64
//! ```
//!
//! `commit` is the number of the transaction that wrote the row. The store's own rows are not counted.

use queen_state::Keyspace;

use crate::checkpoint::Change;
use crate::error::StoreError;
use crate::seal::keyspace_seed;
use crate::table::TableName;

/// Key of the format row.
pub(crate) const FORMAT_KEY: &[u8] = b"store_format";
/// Key of the row of counts and sums.
pub(crate) const SUMS_KEY: &[u8] = b"store_sums";
/// The format that this build writes and the newest that it reads.
///
/// 1 had no delta; the first write makes it 2.
pub(crate) const FORMAT: u32 = 2;

const OWN_PREFIX: &[u8] = b"store_";
const KEY_LEN_MAX: usize = 511;

/// Counts and sums of every table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) commit: u64,
    tables: Vec<TableSum>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableSum {
    seed: u64,
    rows: u64,
    sum: u64,
}

impl Sums {
    pub(crate) fn new() -> Self {
        let table =
            |table: TableName| TableSum { seed: keyspace_seed(table.name()), rows: 0, sum: 0 };
        Self { commit: 0, tables: TableName::all().map(table).collect() }
    }

    /// Counts a row in.
    pub(crate) fn add(&mut self, table: impl Into<TableName>, checksum: u64) {
        if let Some(table) = self.table_mut(table.into()) {
            table.rows = table.rows.wrapping_add(1);
            table.sum = table.sum.wrapping_add(checksum);
        }
    }

    /// Counts a row out.
    pub(crate) fn subtract(&mut self, table: impl Into<TableName>, checksum: u64) {
        if let Some(table) = self.table_mut(table.into()) {
            table.rows = table.rows.wrapping_sub(1);
            table.sum = table.sum.wrapping_sub(checksum);
        }
    }

    pub(crate) fn rows(&self, table: impl Into<TableName>) -> u64 {
        let seed = keyspace_seed(table.into().name());
        self.tables.iter().find(|table| table.seed == seed).map_or(0, |table| table.rows)
    }

    /// The first table in which counts or sums differ.
    pub(crate) fn difference(&self, other: &Self) -> Option<TableName> {
        TableName::all().find(|table| {
            let seed = keyspace_seed(table.name());
            let of = |sums: &Self| sums.tables.iter().find(|table| table.seed == seed).copied();
            of(self) != of(other)
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.commit.to_le_bytes().to_vec();
        for table in &self.tables {
            for number in [table.seed, table.rows, table.sum] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }

    /// Tables that this build does not know make it fail; tables that the row does not know are empty.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (commit, tables) = bytes.split_first_chunk::<8>()?;
        let (numbers, rest) = tables.as_chunks::<8>();
        if !rest.is_empty() || !numbers.len().is_multiple_of(3) {
            return None;
        }
        let mut sums = Self::new();
        sums.commit = u64::from_le_bytes(*commit);
        for table in numbers.chunks_exact(3) {
            let [seed, rows, sum] = table else { return None };
            let seed = u64::from_le_bytes(*seed);
            let known = sums.tables.iter_mut().find(|known| known.seed == seed)?;
            known.rows = u64::from_le_bytes(*rows);
            known.sum = u64::from_le_bytes(*sum);
        }
        Some(sums)
    }

    fn table_mut(&mut self, table: TableName) -> Option<&mut TableSum> {
        let seed = keyspace_seed(table.name());
        self.tables.iter_mut().find(|table| table.seed == seed)
    }
}

/// Refuses a key that no row may have.
pub(crate) fn check_key(change: &Change) -> Result<(), StoreError> {
    let (keyspace, len) = (change.keyspace, change.key.len());
    if len == 0 || len > KEY_LEN_MAX {
        return Err(StoreError::KeyTooLong { keyspace, len });
    }
    if is_own(keyspace, &change.key) {
        let key = String::from_utf8_lossy(&change.key).into_owned();
        return Err(StoreError::KeyReserved { key });
    }
    Ok(())
}

/// Whether the row is the store's, not its user's.
pub(crate) fn is_own(keyspace: Keyspace, key: &[u8]) -> bool {
    keyspace == Keyspace::Meta && key.starts_with(OWN_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_and_decodes() {
        let mut sums = Sums::new();
        sums.commit = 7;
        sums.add(Keyspace::Meta, u64::MAX);
        sums.add(Keyspace::Meta, 3);
        sums.add(Keyspace::DeadLetters, 5);
        sums.subtract(Keyspace::DeadLetters, 5);
        let bytes = sums.encode();
        assert_eq!(Sums::decode(&bytes).as_ref(), Some(&sums));
        assert_eq!(sums.rows(Keyspace::Meta), 2);
        assert_eq!(sums.difference(&Sums::new()), Some(Keyspace::Meta.into()));
        assert_eq!(Sums::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Sums::decode(&bytes[..8]).unwrap().rows(Keyspace::Meta), 0, "an older build");
        let mut foreign = bytes;
        foreign[8] ^= 1;
        assert_eq!(Sums::decode(&foreign), None, "a table of a newer build");
    }
}
