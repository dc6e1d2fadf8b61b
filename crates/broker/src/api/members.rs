//! Who belongs to a cluster, and what can be changed about it.

use std::collections::BTreeSet;
use std::time::Duration;

/// What a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// Whose view it is.
    pub node: u64,
    /// As in [`Health`](super::Health).
    pub role: &'static str,
    /// Whether it leads and a majority answers it: only then others' figures are known.
    pub leads: bool,
    /// Who leads, as far as this node knows.
    pub leader: Option<u64>,
    /// The current term.
    pub term: u64,
    /// Changes with the voters and their addresses: two halves of a split show different ones. Hexadecimal.
    pub cluster_id: String,
    /// The sets of voters that must agree: one, or two while voters change; none on a node that waits to be added.
    pub voters: Vec<Vec<u64>>,
    /// Entry of the membership in force.
    pub membership: Option<u64>,
    /// Whether that entry is committed.
    pub is_committed: bool,
    /// Whether a change runs on this node.
    pub is_changing: bool,
    /// The last entry in this node's log.
    pub last: u64,
    /// The last entry that this node knows to be committed.
    pub committed: u64,
    /// The last entry that is applied here.
    pub applied: u64,
    /// The last entry that the written checkpoint covers.
    pub durable: u64,
    /// Files of the queue logs, and their bytes.
    pub logs: (u64, u64),
    /// Time since a leader called, if one did.
    pub heard: Option<Duration>,
    /// A member that answered within this time is live.
    pub live_within: Duration,
    /// Entries that a learner may be behind when it becomes a voter.
    pub promote_lag_max: u64,
    /// All members, by number.
    pub members: Vec<Member>,
}

/// A member as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub node: u64,
    /// Whether it votes.
    pub is_voter: bool,
    /// `host:port` of its replication.
    pub raft: String,
    /// `host:port` of its API.
    pub http: String,
    /// The last entry that it is known to hold; only a leader knows.
    pub matched: Option<u64>,
    /// Time since its last answer; only a leader knows.
    pub answered: Option<Duration>,
}

/// What is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersChange {
    /// A node gets the log and does not vote.
    AddLearner {
        /// Its number, from 1.
        node: u64,
        /// `host:port` of its replication.
        raft: String,
        /// `host:port` of its API.
        http: String,
    },
    /// Learners become voters.
    Promote {
        /// Their numbers.
        nodes: BTreeSet<u64>,
        /// Without asking whether they have caught up.
        force: bool,
    },
    /// Exactly these vote.
    SetVoters {
        /// Their numbers.
        nodes: BTreeSet<u64>,
        /// Without asking whether they have caught up.
        force: bool,
    },
    /// A member leaves.
    Remove {
        /// Its number.
        node: u64,
    },
}

/// Why the membership was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct MembersError {
    /// The code that callers go by, as `docs/cluster.md` lists them.
    pub code: &'static str,
    /// What to do about it, for a person.
    pub text: String,
}
