//! The membership as callers see it, and changes of it.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queen_raft::{Change, MemberView, NotChanged, View};
use queen_record::hash::checksum;

use super::{HEARD_MAX, place, standing};
use crate::api::{Member, Members, MembersChange, MembersError, Place};
use crate::core::Shared;

/// What the node knows of its cluster; `None` for a node alone.
pub(crate) fn members(shared: &Shared) -> Option<Members> {
    let cluster = shared.cluster.get()?;
    let serves = place(shared) == Place::Here;
    let view = cluster.view();
    let leads = serves && view.is_leader;
    let is_heard = view.heard.is_some_and(|age| age < HEARD_MAX);
    let applied = shared.applied.load(Ordering::Relaxed);
    let has_failed = shared.failed.lock().is_some();
    let stats = shared.reader.qlog().stats();
    Some(Members {
        node: view.node,
        role: if has_failed { "stopped" } else { standing(shared, applied).role },
        leads,
        // A leader that nobody answers is none, nor is one that calls nobody any more.
        leader: view.leader.filter(|leader| leads || (*leader != view.node && is_heard)),
        term: view.term,
        cluster_id: cluster_id(&view),
        membership: view.membership_index.map(|index| index.0),
        is_committed: view.is_committed,
        is_changing: cluster.is_changing(),
        last: view.last.0,
        committed: view.committed.0.max(applied),
        applied,
        durable: shared.durable.load(Ordering::Relaxed),
        logs: (stats.files, stats.bytes),
        heard: view.heard,
        live_within: cluster.live_within(),
        promote_lag_max: cluster.promote_lag_max(),
        members: view.members.iter().map(|member| known(member, leads)).collect(),
        voters: view.voters,
    })
}

/// A member, with the figures that only a leader has.
fn known(member: &MemberView, leads: bool) -> Member {
    Member {
        node: member.node,
        is_voter: member.is_voter,
        raft: member.at.raft.clone(),
        http: member.at.http.clone(),
        matched: member.matched.filter(|_| leads).map(|index| index.0),
        answered: member.answered.filter(|_| leads),
    }
}

/// A number that changes with the voters and their addresses.
fn cluster_id(view: &View) -> String {
    let mut voters = String::new();
    for member in view.members.iter().filter(|member| member.is_voter) {
        // Writing to a string cannot fail.
        write!(voters, "{}={};", member.node, member.at.raft).unwrap_or_default();
    }
    format!("{:016x}", checksum(voters.as_bytes()))
}

/// Carries a change out. It goes on when the caller leaves: half of one is worse than one that nobody waits for.
pub(crate) async fn change_members(
    shared: &Arc<Shared>,
    change: MembersChange,
    limit: Duration,
) -> Result<(), MembersError> {
    if shared.cluster.get().is_none() {
        let text = "this node is no member of a cluster (QUEEN_RAFT_REPLICATOR=openraft)";
        return Err(MembersError { code: "unsupported", text: text.to_owned() });
    }
    let shared = shared.clone();
    let changing = tokio::spawn(async move {
        match shared.cluster.get() {
            Some(cluster) => cluster.change(change_of(change), limit).await,
            None => Ok(()),
        }
    });
    match changing.await {
        Ok(changed) => changed.map_err(|NotChanged { code, text }| MembersError { code, text }),
        Err(error) => {
            let text = format!("the change broke off: {error}; read the membership");
            Err(MembersError { code: "internal", text })
        }
    }
}

fn change_of(change: MembersChange) -> Change {
    match change {
        MembersChange::AddLearner { node, raft, http } => {
            Change::AddLearner { id: node, at: queen_raft::Member::at(raft, http) }
        }
        MembersChange::Promote { nodes, force } => Change::Promote { ids: nodes, force },
        MembersChange::SetVoters { nodes, force } => Change::SetVoters { voters: nodes, force },
        MembersChange::Remove { node } => Change::Remove { id: node },
    }
}
