//! The hashes that end up in files: transactionId digests and queue ids.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64, xxh3_128};

use crate::ids::{QueueId, Tenant, TxHash};

/// Digest of a transactionId: XXH3-128, seed 0, of its UTF-8 bytes alone.
///
/// Shape: canonical digest, high byte first. It is the only big-endian field of a record besides ids.
/// Source: seed `002_68f7b2f3dec52511.txt`, the dump (`order-8891` gives `b97eb77d...b3c8`).
#[must_use]
pub fn tx_hash(transaction_id: &str) -> TxHash {
    #[expect(clippy::big_endian_bytes, reason = "the canonical XXH3-128 digest is big-endian")]
    TxHash(xxh3_128(transaction_id.as_bytes()).to_be_bytes())
}

/// Id of a queue: XXH3-64, seed 0, of the tenant's text, the byte 0x1F and the queue's name; 0 becomes 1.
#[must_use]
pub fn queue_id(tenant: Tenant, queue: &str) -> QueueId {
    let mut hasher = Xxh3Default::new();
    hasher.update(&tenant.0.text());
    hasher.update(&[0x1f]);
    hasher.update(queue.as_bytes());
    QueueId(never_zero(hasher.digest()))
}

/// XXH3-64, seed 0: the checksum of records, indexes and entries.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of bytes that arrive in pieces; equal to [`checksum`] of their concatenation.
#[derive(Clone)]
pub struct Checksum(Xxh3Default);

impl Checksum {
    /// The checksum of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self(Xxh3Default::new())
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

/// Log 0 is the system log, so a hash of 0 is moved away from it.
pub(crate) fn never_zero(hash: u64) -> u64 {
    if hash == 0 { 1 } else { hash }
}
