//! A copy of a whole node for a member that lacks entries which the others have purged.
//!
//! ```text
//! leader                                   member
//! SNAPSHOT vote            --->            an answer: go on, or a higher vote
//! SNAPSHOT_HEAD head       --->            <data>/snapshots/recv-<entry>/ grows
//! SNAPSHOT_PIECE ...       --->            (an archive: its sums come last)
//! SNAPSHOT_END             --->            all synced; the log's writer decides and writes snapshot.pending
//!                          <---  vote      the process ends, and loads it at its next start
//!
//! head = vote | log id (the entry it covers) | opt log id, membership (in force at that entry) | archive bytes u64
//! ```
//!
//! - N1: a snapshot covers one entry, and its membership is the one in force there.
//! - N2: the member's log writer decides in the order of the appends whether it is needed, and writes nothing after the
//!   marker: what the member has acknowledged is in its log or in the snapshot.
//! - N3: nothing of it is used before everything came, verified and is durable; then it is used whole, at a start.

pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod swap;

use bytes::{BufMut, Bytes};
use futures_util::future::BoxFuture;
use queen_record::ids::EntryIndex;
use tokio::sync::mpsc;

use super::types::{LogId, Membership, StoredMembership, Vote};
use super::wire::{Wire, WireError, u64_of};

/// Gives copies of this node while it runs, one at a time.
pub trait SnapshotSource: Send + Sync {
    /// Takes a copy of everything applied so far; the text says why there is none.
    fn open(&self) -> BoxFuture<'_, Result<Snapshot, String>>;
}

/// A copy of a node on its way: an archive.
#[derive(Debug)]
pub struct Snapshot {
    /// The last entry in it.
    pub index: EntryIndex,
    /// That entry's term.
    pub term: u64,
    /// Bytes of the archive.
    pub bytes: u64,
    /// Its pieces, in order; an error, or an end before `bytes`, says that it is none. Dropped, it ends the copy.
    pub pieces: mpsc::Receiver<Result<Bytes, String>>,
}

/// What a snapshot begins with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) vote: Vote,
    pub(crate) covers: LogId,
    pub(crate) membership: StoredMembership,
    pub(crate) bytes: u64,
}

impl Wire for Head {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.covers.put(out);
        self.membership.log_id().put(out);
        self.membership.membership().put(out);
        out.put_u64_le(self.bytes);
    }

    fn read(from: &mut Bytes) -> Result<Self, WireError> {
        let (vote, covers) = (Vote::read(from)?, LogId::read(from)?);
        let (at, membership) = (Option::<LogId>::read(from)?, Membership::read(from)?);
        let membership = StoredMembership::new(at, membership);
        Ok(Self { vote, covers, membership, bytes: u64_of(from)? })
    }
}
