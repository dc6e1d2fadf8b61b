//! A node as a member of a cluster: what it tells the replicator of its state, and where calls are served.

mod members;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use queen_raft::{Cluster, Owners};
use queen_record::hash::queue_id;
use queen_record::ids::{EntryIndex, PartitionId, QueueId};
use queen_state::State;

use crate::api::Place;
use crate::core::Shared;
pub(crate) use members::{change_members, members};

/// A leader that a majority has not answered for this long serves nobody: another one may have been elected.
const QUORUM_AGE_MAX: Duration = Duration::from_millis(1500);
/// How often a call that waits for a leader looks again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whose partitions are, by the applied state.
pub struct StateOwners(pub Arc<RwLock<State>>);

impl Owners for StateOwners {
    fn queue_of(&self, partition: PartitionId) -> Option<QueueId> {
        let state = self.0.read();
        let queue = state.queue_by_number(state.partition(partition)?.queue)?;
        Some(queue_id(queue.tenant, &queue.name))
    }

    fn applied(&self) -> EntryIndex {
        self.0.read().applied()
    }
}

/// Where calls are served now.
pub(crate) fn place(shared: &Shared) -> Place {
    let Some(cluster) = shared.cluster.get() else { return Place::Here };
    // Also when it leads: what it takes would be on top of a history that lacks something.
    if cluster.refused().is_some() {
        return Place::Nowhere;
    }
    if shared.is_leading() && quorum_answers(cluster) {
        return Place::Here;
    }
    cluster.leader().map_or(Place::Nowhere, |leader| Place::At(leader.http))
}

/// The same, waiting for a leader no longer than `limit`.
pub(crate) async fn place_within(shared: &Shared, limit: Duration) -> Place {
    let until = tokio::time::Instant::now() + limit;
    loop {
        let place = place(shared);
        let is_refused = shared.cluster.get().is_some_and(|cluster| cluster.refused().is_some());
        let has_failed = shared.failed.lock().is_some();
        let is_over = tokio::time::Instant::now() >= until || has_failed || is_refused;
        if place != Place::Nowhere || is_over {
            return place;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn quorum_answers(cluster: &Cluster) -> bool {
    cluster.quorum_age().is_none_or(|age| age < QUORUM_AGE_MAX)
}

/// A node's standing in its cluster.
pub(crate) struct Standing {
    pub(crate) role: &'static str,
    pub(crate) term: u64,
    pub(crate) committed: u64,
    /// Why it cannot serve, for a person.
    pub(crate) reason: Option<String>,
}

/// A follower that no leader has called for this long is cut off.
const HEARD_MAX: Duration = Duration::from_secs(5);
/// Entries that a healthy follower may be behind.
const LAG_MAX: u64 = 1000;

/// How the node stands; one alone leads in term 1.
pub(crate) fn standing(shared: &Shared, applied: u64) -> Standing {
    let Some(cluster) = shared.cluster.get() else {
        return Standing { role: "leader", term: 1, committed: applied, reason: None };
    };
    let view = cluster.view();
    let is_voter = view.members.iter().any(|member| member.node == view.node && member.is_voter);
    let committed = view.committed.0.max(applied);
    let (role, reason) = if let Some(reason) = cluster.refused() {
        ("learner", Some(reason))
    } else if shared.is_leading() {
        let answers = view.quorum_age.is_none_or(|age| age < QUORUM_AGE_MAX);
        ("leader", (!answers).then(|| "no majority of the voters answers this leader".to_owned()))
    } else if view.members.iter().all(|member| member.node != view.node) {
        let reason = if view.members.is_empty() {
            "this node is empty: it waits to be added to a cluster, or to found one with every node of QUEEN_RAFT_PEERS"
        } else {
            "this node is no member of its cluster: it waits to be added"
        };
        ("learner", Some(reason.to_owned()))
    } else if view.leader.is_none() || view.is_leader {
        ("candidate", Some("there is no leader".to_owned()))
    } else {
        let heard = view.heard.is_some_and(|age| age < HEARD_MAX);
        if !heard {
            let reason =
                "no leader calls this node: see its log, and that of the leader".to_owned();
            return Standing {
                role: "candidate",
                term: view.term,
                committed,
                reason: Some(reason),
            };
        }
        let behind = committed - applied;
        let reason = format!("this node is {behind} entries behind");
        (if is_voter { "follower" } else { "learner" }, (behind > LAG_MAX).then_some(reason))
    };
    Standing { role, term: view.term, committed, reason }
}
