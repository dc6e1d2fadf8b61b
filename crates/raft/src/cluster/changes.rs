//! Changes of the membership: decided on the leader, one at a time, each checked before anything is written.
//!
//! - M1: while a change runs the core proposes nothing: the entries of a change have places that no plan knows of.
//! - M2: each is conditional on the membership that was checked, and done again changes nothing.
//! - M3: no change is begun that would leave fewer live voters than a majority.

mod plan;

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::Precondition;

use super::member::Cluster;
use super::types::{Member, Metrics, Raft, Types};
pub(crate) use plan::Rules;
use plan::plan;

/// How long writes in flight have to come to rest before a change.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// What is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node that gets the log and does not vote.
    AddLearner {
        /// Its number.
        id: u64,
        /// Where it is reached.
        at: Member,
    },
    /// Learners become voters.
    Promote {
        /// Their numbers.
        ids: BTreeSet<u64>,
        /// Without asking whether they have caught up.
        force: bool,
    },
    /// Exactly these vote.
    SetVoters {
        /// Their numbers.
        voters: BTreeSet<u64>,
        /// Without asking whether they have caught up.
        force: bool,
    },
    /// A member leaves.
    Remove {
        /// Its number.
        id: u64,
    },
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct NotChanged {
    /// The code that callers go by.
    pub code: &'static str,
    /// What to do about it, for a person.
    pub text: String,
}

fn not<T>(code: &'static str, text: impl Into<String>) -> Result<T, NotChanged> {
    Err(NotChanged { code, text: text.into() })
}

impl Cluster {
    /// Carries a change out, if this member leads, and waits until it is committed.
    ///
    /// # Errors
    /// [`NotChanged`]; after `limit` it may still be carried out.
    pub async fn change(&self, change: Change, limit: Duration) -> Result<(), NotChanged> {
        match tokio::time::timeout(limit, self.change_now(change)).await {
            Ok(changed) => changed,
            Err(_) => not(
                "timeout",
                format!(
                    "the change is not committed after {limit:?}; it may still be: read the membership"
                ),
            ),
        }
    }

    /// Whether a change runs on this member.
    pub fn is_changing(&self) -> bool {
        self.changing.available_permits() == 0
    }

    async fn change_now(&self, change: Change) -> Result<(), NotChanged> {
        let Ok(_only) = self.changing.try_acquire() else {
            return not(
                "in_flight",
                "another change of the membership runs: ask again when it ended",
            );
        };
        // The leader may be naming directories: what is checked next has them.
        let _named = self.naming.lock().await;
        // Before the view: what the view shows is this membership, or a later one, which the library then refuses.
        let checked = *self.raft.metrics().borrow_watched().membership_config.log_id();
        let view = self.view();
        if !view.is_leader {
            return not("leader_changed", "this node does not lead any more: ask again");
        }
        let Some(members) = plan(&view, &change, self.rules)? else { return Ok(()) };
        if let Change::AddLearner { id, .. } = change {
            // Whoever was met under this number before may be another directory.
            self.identity.forget(id);
        }
        let Ok(_rest) = tokio::time::timeout(DRAIN_MAX, self.turn.lock()).await else {
            return not("busy", "writes in flight did not come to rest: ask again");
        };
        let same = Precondition::LastMembershipLogId { last_membership_log_id: checked };
        let done = self.raft.change_membership_if(members, false, [same]).await;
        let done = done.map_err(|error| refused(&error))?.log_id;
        // That it is committed, a leader that it removes may never show.
        let is_shown = move |seen: &Metrics| *seen.membership_config.log_id() >= Some(done);
        shown(&self.raft, is_shown).await
    }
}

/// Waits until a change of the membership is in what is shown next.
pub(super) async fn shown(
    raft: &Raft,
    is_shown: impl Fn(&Metrics) -> bool + Send,
) -> Result<(), NotChanged> {
    match raft.wait(None).metrics(is_shown, "shown").await {
        Ok(_) => Ok(()),
        Err(error) => not("no_leader", format!("the change is made, and this node stops: {error}")),
    }
}

fn refused(error: &RaftError<Types, ClientWriteError<Types>>) -> NotChanged {
    let text = format!("{error}: read the membership, and ask again");
    let code = match error {
        RaftError::APIError(
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
        ) => "leader_changed",
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => "membership_changed",
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
        )) => "in_flight",
        RaftError::APIError(ClientWriteError::ChangeMembershipError(_)) => "membership_invalid",
        RaftError::Fatal(_) => "no_leader",
    };
    NotChanged { code, text }
}
