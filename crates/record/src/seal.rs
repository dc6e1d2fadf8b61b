//! The checksum of one stored row, which also binds the row to its key and keyspace.
//!
//! ```text
//! stored        = value ‖ checksum u64
//! checksum      = XXH3_64(value, seed = XXH3_64(key, seed = keyspace seed))
//! keyspace seed = XXH3_64(keyspace name, seed = "QUEENSV1" as a number)
//! ```
//!
//! A value that was put under another key, or into another keyspace, fails like a flipped bit.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// `QUEENSV1`, read as a big-endian number.
const DOMAIN: u64 = 0x5155_4545_4e53_5631;

/// Seed of a keyspace, computed once per table.
#[must_use]
pub fn keyspace_seed(name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), DOMAIN)
}

/// Checksum of `value` under `key`, with the seed from [`keyspace_seed`].
#[must_use]
pub fn seal_with(keyspace_seed: u64, key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64_with_seed(key, keyspace_seed))
}

/// Checksum of `value` under `key` in the keyspace called `keyspace`.
#[must_use]
pub fn seal(keyspace: &str, key: &[u8], value: &[u8]) -> u64 {
    seal_with(keyspace_seed(keyspace), key, value)
}
