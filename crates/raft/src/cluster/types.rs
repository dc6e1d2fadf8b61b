//! The types that the consensus library works with. None of them is stored or sent as the library would: `wire` and
//! `files` have codecs of their own.

use std::fmt;
use std::sync::Arc;

use openraft::impls::leader_id_std::LeaderId;
use queen_model::Entry;
use queen_record::ids::EntryIndex;
use serde::{Deserialize, Serialize};

use super::identity::DiskId;

openraft::declare_raft_types!(
    /// What this cluster replicates, among whom.
    pub(crate) Types:
        D = Command,
        R = Done,
        NodeId = u64,
        Node = Member,
        Term = u64,
        LeaderId = LeaderId<u64, u64>,
        AsyncRuntime = super::runtime::Runtime,
);

pub(crate) type Raft = openraft::Raft<Types, super::machine::Machine>;
pub(crate) type Metrics = openraft::RaftMetrics<Types>;
pub(crate) type LogEntry = openraft::type_config::alias::EntryOf<Types>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, Member>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub(crate) type Payload = openraft::EntryPayload<Command, u64, Member>;

/// A planned entry on its way: its appends hold their payloads. Clones share it.
#[derive(Clone)]
pub(crate) struct Command(pub(crate) Arc<Entry>);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} effects at {}", self.0.effects.len(), self.0.now)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl PartialEq for Command {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// The library's answer to a proposal: what came of it, the core learns from the entry itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done;

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("done")
    }
}

/// Where a member is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` of its replication.
    pub raft: String,
    /// `host:port` of its API.
    pub http: String,
    /// The directory behind the number; `None` until a leader has met it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskId>,
}

impl Member {
    /// A member that nobody has met yet.
    pub fn at(raft: impl Into<String>, http: impl Into<String>) -> Self {
        Self { raft: raft.into(), http: http.into(), disk: None }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.raft, self.http)
    }
}

/// The library counts from 0, entries from 1.
pub(crate) fn entry_index(index: u64) -> EntryIndex {
    EntryIndex(index + 1)
}

/// The library's index of an entry; `None` before the first.
pub(crate) fn raft_index(index: EntryIndex) -> Option<u64> {
    index.0.checked_sub(1)
}

pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(term.into(), index)
}
