//! The checksum that every stored value ends with.
//!
//! ```text
//! stored        = value ‖ checksum u64, little-endian
//! checksum      = XXH3_64(value, seed = XXH3_64(key, seed = keyspace_seed))
//! keyspace_seed = XXH3_64(table name, seed = "QUEENSV1")
//! ```
//!
//! The key and the table are in it, so a right value in a wrong place fails too.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::table::TableName;

/// The letters `QUEENSV1`.
const FORMAT_SEED: u64 = 0x5155_4545_4E53_5631;

/// Bytes that a seal adds to a value.
pub const SEAL_LEN: usize = 8;

/// The seed of a table's checksums.
pub fn keyspace_seed(name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), FORMAT_SEED)
}

/// The seeds of all tables, computed once.
pub(crate) struct Seals {
    seeds: Vec<(TableName, u64)>,
}

impl Seals {
    pub(crate) fn new() -> Self {
        let seed = |table: TableName| (table, keyspace_seed(table.name()));
        Self { seeds: TableName::all().map(seed).collect() }
    }

    /// The checksum of a value in its place.
    pub(crate) fn checksum(&self, table: TableName, key: &[u8], value: &[u8]) -> u64 {
        let known = self.seeds.iter().find(|(known, _)| *known == table);
        let seed = known.map_or_else(|| keyspace_seed(table.name()), |(_, seed)| *seed);
        xxh3_64_with_seed(value, xxh3_64_with_seed(key, seed))
    }

    /// Appends the checksum to a value; returns it.
    pub(crate) fn seal(&self, table: impl Into<TableName>, key: &[u8], value: &mut Vec<u8>) -> u64 {
        let checksum = self.checksum(table.into(), key, value);
        value.extend_from_slice(&checksum.to_le_bytes());
        checksum
    }

    /// The value and its checksum, or `None` when the stored bytes are not what was sealed in this place.
    pub(crate) fn open<'v>(
        &self,
        table: impl Into<TableName>,
        key: &[u8],
        stored: &'v [u8],
    ) -> Option<(&'v [u8], u64)> {
        let (value, checksum) = stored.split_last_chunk::<SEAL_LEN>()?;
        let checksum = u64::from_le_bytes(*checksum);
        (self.checksum(table.into(), key, value) == checksum).then_some((value, checksum))
    }
}

#[cfg(test)]
mod tests {
    use queen_state::Keyspace;

    use super::*;

    fn checksum(name: &str, key: &[u8], value: &[u8]) -> u64 {
        xxh3_64_with_seed(value, xxh3_64_with_seed(key, keyspace_seed(name)))
    }

    /// The published vectors of store format 1.
    #[test]
    fn golden() {
        assert_eq!(keyspace_seed("kv"), 0x53f3_ee13_9695_3a75);
        assert_eq!(keyspace_seed("meta"), 0x0b5a_59ee_b420_6db6);
        assert_eq!(keyspace_seed("partitions"), 0x72bb_6c67_1e75_1374);
        assert_eq!(keyspace_seed("cursors"), 0x984e_74dc_701c_25f4);
        let hello = checksum("kv", &[1, 0x6b], b"hello").to_le_bytes();
        assert_eq!(hello, [0x21, 0x13, 0xc3, 0x47, 0xfd, 0xd1, 0xc3, 0x16]);

        let mut format = 1_u32.to_le_bytes().to_vec();
        let seals = Seals::new();
        seals.seal(Keyspace::Meta, b"store_format", &mut format);
        let want = [1, 0, 0, 0, 0x39, 0x66, 0x29, 0x55, 0x77, 0x50, 0xe3, 0x9e];
        assert_eq!(format, want);
        assert!(seals.open(Keyspace::Meta, b"store_format", &want).is_some());
    }

    #[test]
    fn a_value_in_another_place_or_changed_does_not_open() {
        let seals = Seals::new();
        let mut stored = b"value".to_vec();
        seals.seal(Keyspace::Queues, b"k", &mut stored);
        let value = seals.open(Keyspace::Queues, b"k", &stored).map(|opened| opened.0);
        assert_eq!(value, Some(b"value".as_slice()));
        assert!(seals.open(Keyspace::Groups, b"k", &stored).is_none());
        assert!(seals.open(Keyspace::Queues, b"l", &stored).is_none());
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(seals.open(Keyspace::Queues, b"k", &flipped).is_none());
        }
        assert!(seals.open(Keyspace::Queues, b"k", &stored[..7]).is_none());
    }
}
