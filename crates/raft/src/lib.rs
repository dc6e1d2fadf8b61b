//! Replication: how a planned entry gets its place in the order and becomes durable.
//!
//! R1. Entries commit in the order in which they were proposed, without gap.
//! R2. A committed entry is durable: on one node when its own logs are synced.
//! R3. The replicator hands committed entries on and never applies them.
//! R4. After a failed write or sync nothing more commits.
#![forbid(unsafe_code)]

mod local;
mod replay;

use queen_model::Entry;
use queen_qlog::Fault;
use queen_record::ids::{EntryIndex, LogId};

pub use local::LocalReplicator;
pub use replay::{ReplayError, replay};

/// An entry to replicate.
#[derive(Debug)]
pub struct Proposal {
    /// The planned entry; its appends hold their payloads.
    pub entry: Entry,
    /// The log of each effect, in the order of the effects; `LogId(0)` for one that belongs to no queue.
    pub logs: Vec<LogId>,
}

/// An entry that will never be undone.
#[derive(Debug)]
pub struct Committed {
    /// Its place.
    pub index: EntryIndex,
    /// The term it was proposed in.
    pub term: u64,
    /// The entry.
    pub entry: Entry,
}

/// Orders entries and makes them durable.
///
/// `propose` and `commit` are called from one thread.
pub trait Replicator: Send {
    /// Gives the entry the next place and writes it; it is not yet durable. Its messages can be read at once.
    ///
    /// # Errors
    /// After a fault the node must stop: what was written may or may not be there after a restart.
    fn propose(&mut self, proposal: Proposal) -> Result<EntryIndex, Fault>;

    /// Waits until everything proposed is durable and returns it in order; empty when nothing was proposed.
    ///
    /// # Errors
    /// After a fault the node must stop and answer none of it.
    fn commit(&mut self) -> Result<Vec<Committed>, Fault>;
}
