//! Replication: how a planned entry gets its place in the order and becomes durable.
//!
//! R1. Entries commit in the order in which they were proposed, without gap.
//! R2. A committed entry is durable: on one node when its own logs are synced, in a cluster when those of a majority are.
//! R3. The replicator hands committed entries on and never applies them.
//! R4. After a failed write or sync nothing more commits.
#![forbid(unsafe_code)]

mod cluster;
mod local;
mod payloads;
mod replay;

use queen_model::Entry;
use queen_qlog::Fault;
use queen_record::ids::{EntryIndex, LogId};

pub use cluster::{
    Change, Cluster, ClusterError, ClusterOptions, ClusterParts, ClusterReplicator, DIR, DiskId,
    FilesError, Link, Listen, Member, MemberView, Network, NotChanged, Owners, STAGED, STATE,
    Snapshot, SnapshotSource, Tasks, View, check_files, load_staged, promote, start, start_here,
};
pub use local::LocalReplicator;
pub use replay::{Examined, ReplayError, StoredEntry, examine, replay};

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

/// What happened, in order.
#[derive(Debug)]
pub enum Step {
    /// An entry is committed; apply it.
    Committed {
        /// The entry.
        committed: Committed,
        /// Whether it is the one that was proposed last.
        is_own: bool,
    },
    /// An entry that changes no state has this place.
    Passed {
        /// Its place.
        index: EntryIndex,
        /// The term it was proposed in.
        term: u64,
    },
    /// From here on this node plans, on the state as it is at this step.
    Lead,
    /// From here on it does not. What was proposed and is not committed may be, later, or never.
    Follow,
}

/// Orders entries and makes them durable.
///
/// All calls come from one thread.
pub trait Replicator: Send {
    /// Whether this node plans from the start, before any step.
    fn leads_at_start(&self) -> bool;

    /// Hands in an entry for the next place; one at a time, and only between [`Step::Lead`] and [`Step::Follow`].
    ///
    /// # Errors
    /// After a fault the node must stop: what was written may or may not be there after a restart.
    fn propose(&mut self, proposal: Proposal) -> Result<(), Fault>;

    /// Waits until what was proposed is committed or given up, and appends all that happened.
    ///
    /// # Errors
    /// After a fault the node must stop and answer none of it.
    fn commit(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault>;

    /// Appends what happened so far of what was proposed; whether nothing of it is waited for any more. To be called again
    /// when the replicator has woken the core.
    ///
    /// # Errors
    /// As [`Replicator::commit`].
    fn try_commit(&mut self, steps: &mut Vec<Step>) -> Result<bool, Fault> {
        self.commit(steps).map(|()| true)
    }

    /// Appends what happened since the last call. From here to [`Replicator::end_round`] no entry but a proposed one gets a
    /// place while this node plans; for that a change of the membership is waited for.
    ///
    /// # Errors
    /// After a fault the node must stop.
    fn begin_round(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault>;

    /// The same without waiting; whether the round has begun.
    ///
    /// # Errors
    /// As [`Replicator::begin_round`].
    fn try_begin_round(&mut self, steps: &mut Vec<Step>) -> Result<bool, Fault> {
        self.begin_round(steps).map(|()| true)
    }

    /// The round is over.
    fn end_round(&mut self);

    /// All steps up to this entry were carried out.
    fn applied(&mut self, index: EntryIndex);
}
