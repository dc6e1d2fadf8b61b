//! Changes of the membership: decided on the leader, one at a time, each checked before anything is written.
//!
//! - M1: while a change runs the core proposes nothing: the entries of a change have places that no plan knows of.
//! - M2: each is conditional on the membership that was checked, and done again changes nothing.
//! - M3: no change is begun that would leave fewer live voters than a majority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, RaftError};

use super::member::{Cluster, MemberView, View};
use super::types::{Member, Types};

/// A member that answered within this time is live.
pub const LIVE_WITHIN: Duration = Duration::from_secs(2);
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
    /// [`NotChanged`]; after `timeout` it may still be carried out.
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

    async fn change_now(&self, change: Change) -> Result<(), NotChanged> {
        let Ok(_only) = self.changing.try_lock() else {
            return not(
                "in_flight",
                "another change of the membership runs: ask again when it ended",
            );
        };
        let view = self.view();
        if !view.is_leader {
            return not("leader_changed", "this node does not lead any more: ask again");
        }
        let Some(todo) = plan(&view, &change, self.promote_lag_max)? else { return Ok(()) };
        let Ok(_rest) = tokio::time::timeout(DRAIN_MAX, self.turn.lock()).await else {
            return not("busy", "writes in flight did not come to rest: ask again");
        };
        let done = match todo {
            Todo::Learner(id, at) => self.raft.add_learner(id, at, false).await.map(drop),
            Todo::Members(members, keep) => {
                self.raft.change_membership(members, keep).await.map(drop)
            }
        };
        done.map_err(|error| refused(&error))
    }
}

/// What the library is asked for.
enum Todo {
    Learner(u64, Member),
    /// Whether voters that are none any more stay as learners.
    Members(ChangeMembers<u64, Member>, bool),
}

fn refused(error: &RaftError<Types, ClientWriteError<Types>>) -> NotChanged {
    let text = error.to_string();
    let code = match error {
        RaftError::APIError(
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
        ) => "leader_changed",
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => "membership_changed",
        RaftError::APIError(ClientWriteError::ChangeMembershipError(_)) => "membership_invalid",
        RaftError::Fatal(_) => "no_leader",
    };
    NotChanged { code, text }
}

/// Checks a change against the membership; `None` when there is nothing to do.
fn plan(view: &View, change: &Change, lag_max: u64) -> Result<Option<Todo>, NotChanged> {
    let voters: BTreeSet<u64> = view.voters.last().into_iter().flatten().copied().collect();
    let is_joint = view.voters.len() > 1;
    let target = |wanted: &BTreeSet<u64>| is_joint && *wanted == voters;
    let may_finish = matches!(change, Change::SetVoters { voters, .. } if target(voters));
    if is_joint && !may_finish {
        let list: Vec<String> = voters.iter().map(u64::to_string).collect();
        return not(
            "in_flight",
            format!(
                "a change is half done: finish it with PUT /api/v1/system/raft/membership/voters {{\"voters\":[{}]}}",
                list.join(",")
            ),
        );
    }
    if !view.is_committed && !may_finish {
        return not(
            "in_flight",
            "the last change of the membership is not committed yet: ask again",
        );
    }
    let members: BTreeMap<u64, &MemberView> =
        view.members.iter().map(|member| (member.node, member)).collect();
    match change {
        Change::AddLearner { id, at } => match members.get(id) {
            Some(member) if member.is_voter => {
                not("already_voter", format!("node {id} is a voter already"))
            }
            Some(member) if member.at == *at => Ok(None),
            Some(member) => not(
                "address_mismatch",
                format!("node {id} is a learner at {}: remove it first", member.at),
            ),
            None => Ok(Some(Todo::Learner(*id, at.clone()))),
        },
        Change::Promote { ids, force } => {
            let new: BTreeSet<u64> = ids.difference(&voters).copied().collect();
            for id in &new {
                check_caught_up(view, members.get(id).copied(), *id, *force, lag_max)?;
            }
            if new.is_empty() {
                return Ok(None);
            }
            let after = voters.union(&new).copied().collect();
            check_majority(&voters, &members)?;
            check_majority(&after, &members)?;
            Ok(Some(Todo::Members(ChangeMembers::AddVoterIds(new), true)))
        }
        Change::SetVoters { voters: wanted, force } => {
            if wanted.is_empty() {
                return not("last_voter", "a cluster needs a voter");
            }
            if *wanted == voters && !is_joint {
                return Ok(None);
            }
            for id in wanted.difference(&voters) {
                check_caught_up(view, members.get(id).copied(), *id, *force, lag_max)?;
            }
            check_majority(&voters, &members)?;
            check_majority(wanted, &members)?;
            Ok(Some(Todo::Members(ChangeMembers::ReplaceAllVoters(wanted.clone()), false)))
        }
        Change::Remove { id } => {
            let Some(member) = members.get(id) else { return Ok(None) };
            if !member.is_voter {
                let gone = ChangeMembers::RemoveNodes(BTreeSet::from([*id]));
                return Ok(Some(Todo::Members(gone, false)));
            }
            let after: BTreeSet<u64> = voters.iter().copied().filter(|voter| voter != id).collect();
            if after.is_empty() {
                return not("last_voter", format!("node {id} is the last voter"));
            }
            check_majority(&voters, &members)?;
            check_majority(&after, &members)?;
            Ok(Some(Todo::Members(ChangeMembers::RemoveVoters(BTreeSet::from([*id])), false)))
        }
    }
}

fn is_live(member: &MemberView) -> bool {
    member.answered.is_some_and(|age| age <= LIVE_WITHIN)
}

fn check_caught_up(
    view: &View,
    member: Option<&MemberView>,
    id: u64,
    force: bool,
    lag_max: u64,
) -> Result<(), NotChanged> {
    let Some(member) = member else {
        return not("not_a_member", format!("node {id} is no member: add it as a learner first"));
    };
    if force {
        return Ok(());
    }
    let lag = member.matched.map(|matched| view.last.0.saturating_sub(matched.0));
    match lag {
        Some(lag) if lag <= lag_max && is_live(member) => Ok(()),
        Some(lag) => not(
            "learner_behind",
            format!(
                "node {id} is {lag} entries behind, or does not answer: ask again when it caught up"
            ),
        ),
        None => not("learner_behind", format!("node {id} holds nothing yet: ask again later")),
    }
}

fn check_majority(
    voters: &BTreeSet<u64>,
    members: &BTreeMap<u64, &MemberView>,
) -> Result<(), NotChanged> {
    let live = voters.iter().filter(|id| members.get(id).is_some_and(|member| is_live(member)));
    let (live, needed) = (live.count(), voters.len() / 2 + 1);
    if live >= needed {
        return Ok(());
    }
    not("no_quorum", format!("{live} of the voters {voters:?} are live, {needed} are needed"))
}
