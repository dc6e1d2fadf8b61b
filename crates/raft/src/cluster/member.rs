//! The handle on a running member: who leads, who belongs to it, and its end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use queen_record::ids::EntryIndex;
use tokio::runtime::Runtime;

use super::changes::Rules;
use super::identity::Identity;
use super::machine::{Core, Event};
use super::start::ClusterOptions;
use super::store::Shared;
use super::types::{Member, Raft, entry_index, log_id, raft_index};

/// How long the library has to end.
const END_MAX: Duration = Duration::from_secs(5);

/// How long handing over may take, how often it is asked again, and how lately the next leader must have answered.
const HAND_OVER_MAX: Duration = Duration::from_secs(3);
const HAND_OVER_EVERY: Duration = Duration::from_millis(100);
const HEARD_MAX: Duration = Duration::from_secs(1);

/// A member is live that answered within this many times the least silence before an election.
pub(crate) const LIVE_ELECTIONS: u32 = 2;

/// A member of a cluster.
pub struct Cluster {
    node: u64,
    pub(crate) raft: Raft,
    /// Held while a change of the membership runs.
    pub(crate) changing: tokio::sync::Semaphore,
    /// Held while directories are named in the membership.
    pub(crate) naming: Arc<tokio::sync::Mutex<()>>,
    /// Held by whoever may append entries: the core for a round, or a change of the membership.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// What changes are held against.
    pub(crate) rules: Rules,
    pub(crate) identity: Arc<Identity>,
    core: Core,
    shared: Arc<Shared>,
    /// What runs it, when that is its own.
    ends: Mutex<Option<(Runtime, JoinHandle<()>)>>,
}

/// What a member shares with its tasks.
pub(crate) struct Handles {
    pub(crate) raft: Raft,
    pub(crate) identity: Arc<Identity>,
    pub(crate) naming: Arc<tokio::sync::Mutex<()>>,
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

/// What a member knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Whose view it is.
    pub node: u64,
    /// The current term.
    pub term: u64,
    /// Who leads; `None` while nobody is known to.
    pub leader: Option<u64>,
    /// Whether this member leads.
    pub is_leader: bool,
    /// Voters of the membership in force; two sets while it changes.
    pub voters: Vec<Vec<u64>>,
    /// Entry of that membership.
    pub membership_index: Option<EntryIndex>,
    /// Whether that membership is committed.
    pub is_committed: bool,
    /// The last entry in this member's log.
    pub last: EntryIndex,
    /// The last entry that this member knows to be committed.
    pub committed: EntryIndex,
    /// Time since a majority answered the leader, if this member leads others.
    pub quorum_age: Option<Duration>,
    /// Time since a leader called, if one did.
    pub heard: Option<Duration>,
    /// All members.
    pub members: Vec<MemberView>,
}

/// A member as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its number.
    pub node: u64,
    /// Where it is reached.
    pub at: Member,
    /// Whether it votes.
    pub is_voter: bool,
    /// The last entry that it is known to hold; only a leader knows.
    pub matched: Option<EntryIndex>,
    /// Time since its last answer; only a leader knows.
    pub answered: Option<Duration>,
}

impl Cluster {
    pub(crate) fn new(
        options: &ClusterOptions,
        handles: Handles,
        core: Core,
        shared: Arc<Shared>,
    ) -> Self {
        let Handles { raft, identity, naming, turn } = handles;
        let changing = tokio::sync::Semaphore::new(1);
        let ends = Mutex::default();
        let rules = Rules {
            promote_lag_max: options.promote_lag_max,
            live_within: LIVE_ELECTIONS * options.election,
        };
        Self {
            node: options.node,
            raft,
            changing,
            naming,
            turn,
            rules,
            identity,
            core,
            shared,
            ends,
        }
    }

    /// Why this member's directory has no place in its cluster, and what to do about it; `None` when it has.
    pub fn refused(&self) -> Option<String> {
        self.identity.refused()
    }

    /// The runtime and the writer's thread are this member's own, and end with it.
    pub(crate) fn own(&self, runtime: Runtime, writer: JoinHandle<()>) {
        *self.ends.lock() = Some((runtime, writer));
    }

    /// Entries that a learner may be behind when it becomes a voter.
    pub fn promote_lag_max(&self) -> u64 {
        self.rules.promote_lag_max
    }

    /// A member that answered the leader within this time is live.
    pub fn live_within(&self) -> Duration {
        self.rules.live_within
    }

    /// What this member knows now.
    pub fn view(&self) -> View {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let stored = &metrics.membership_config;
        let voters: Vec<Vec<u64>> =
            stored.get_joint_config().iter().map(|set| set.iter().copied().collect()).collect();
        let matched = metrics.replication.as_ref();
        let heard = metrics.heartbeat.as_ref();
        let is_leader = metrics.state.is_leader();
        let committed = metrics.cluster_committed.or(metrics.local_committed);
        let last = metrics.last_log_index.map_or(EntryIndex(0), entry_index);
        let members = stored.nodes().map(|(id, at)| {
            let own = is_leader && *id == self.node;
            let matching = matched.and_then(|all| all.get(id)).copied().flatten();
            let age = heard.and_then(|all| all.get(id)).and_then(Option::as_ref);
            MemberView {
                node: *id,
                at: at.clone(),
                is_voter: voters.iter().any(|set| set.contains(id)),
                matched: if own { Some(last) } else { matching.map(|id| entry_index(id.index)) },
                answered: if own { Some(Duration::ZERO) } else { age.map(|at| at.elapsed()) },
            }
        });
        View {
            node: self.node,
            term: metrics.current_term,
            leader: metrics.current_leader,
            is_leader,
            membership_index: stored.log_id().map(|id| entry_index(id.index)),
            is_committed: metrics.committed_membership_config.log_id() == stored.log_id(),
            last,
            committed: committed.map_or(EntryIndex(0), |id| entry_index(id.index)),
            quorum_age: quorum_age(
                self.node,
                &voters,
                metrics.last_quorum_acked.as_ref().map(|at| at.elapsed()),
            ),
            heard: self.shared.heard.lock().map(|at| at.elapsed()),
            members: members.collect(),
            voters,
        }
    }

    /// Time since a majority answered; `None` when this member leads nobody else.
    pub fn quorum_age(&self) -> Option<Duration> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let acked = metrics.last_quorum_acked.as_ref().map(|at| at.elapsed());
        let sets = metrics.membership_config.get_joint_config();
        let voters: Vec<Vec<u64>> = sets.iter().map(|set| set.iter().copied().collect()).collect();
        quorum_age(self.node, &voters, acked)
    }

    /// Where the leader is reached, if this member knows one that is not itself.
    pub fn leader(&self) -> Option<Member> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader.filter(|leader| *leader != self.node)?;
        metrics.membership_config.get_node(&leader).cloned()
    }

    /// Notes that the store covers this entry, which has this term.
    pub fn checkpointed(&self, index: EntryIndex, term: u64) {
        let id = raft_index(index).map(|at| log_id(term, at));
        self.shared.durable.send_if_modified(|known| {
            let is_newer = id > *known;
            if is_newer {
                *known = id;
            }
            is_newer
        });
    }

    /// Gives the lead to the voter that has the most of the log, if this member leads. Blocks until another one leads, or
    /// nobody took it in time.
    pub fn hand_over(&self) {
        let Some(runtime) = self.ends.lock().as_ref().map(|(runtime, _)| runtime.handle().clone())
        else {
            return;
        };
        let until = Instant::now() + HAND_OVER_MAX;
        let mut is_told = false;
        while Instant::now() < until {
            let view = self.view();
            if !view.is_leader {
                if is_told {
                    tracing::info!("leadership handed off");
                }
                return;
            }
            let heard = |member: &&MemberView| member.answered.is_some_and(|age| age < HEARD_MAX);
            let others =
                view.members.iter().filter(|member| member.is_voter && member.node != self.node);
            let Some(next) = others.filter(heard).max_by_key(|member| member.matched) else {
                return;
            };
            let (raft, to) = (self.raft.clone(), next.node);
            runtime.spawn(async move { raft.trigger().transfer_leader(to).await });
            is_told = true;
            std::thread::park_timeout(HAND_OVER_EVERY);
        }
        tracing::warn!("nobody took the lead in time: the others will elect");
    }

    /// Takes this member out of its cluster's business at once, because it cannot go on: a leader that only called the others
    /// would keep them from electing one. Returns before that is done.
    pub fn abandon(&self) {
        self.shared.stopped.send_replace(true);
        if let Some((runtime, _)) = self.ends.lock().as_ref() {
            let raft = self.raft.clone();
            runtime.spawn(async move {
                if let Err(error) = raft.shutdown().await {
                    tracing::warn!("the consensus library did not end in order: {error}");
                }
            });
        }
    }

    /// Lets go of the proposal that is out, if one is, and takes no other: the core comes to rest.
    pub fn begin_stop(&self) {
        self.core.tell(Event::Stop);
    }

    /// Ends the library, its threads and its connections. Blocks; the core has ended before.
    pub fn stop(&self) {
        let Some((runtime, writer)) = self.ends.lock().take() else { return };
        runtime.block_on(self.end());
        // The store, and with it the writer's orders, go with the library's tasks.
        runtime.shutdown_timeout(END_MAX);
        if writer.join().is_err() {
            tracing::error!("the log writer panicked");
        }
    }
}

impl Cluster {
    /// Ends the library and its connections; the core has ended before.
    pub async fn end(&self) {
        self.shared.stopped.send_replace(true);
        let ended = tokio::time::timeout(END_MAX, self.raft.shutdown()).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the consensus library did not end in order");
        }
    }

    /// Tells this member, if it leads, to give the lead to another one, whether that is well or not.
    pub async fn give_lead(&self, to: u64) {
        // One that does not lead, or has ended, has nothing to give.
        drop(self.raft.trigger().transfer_leader(to).await);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Time since a majority answered. A sole voter is its own majority: nobody answers it, and it waits for nobody.
fn quorum_age(node: u64, voters: &[Vec<u64>], acked: Option<Duration>) -> Option<Duration> {
    let is_alone = voters.iter().all(|set| *set == [node]);
    acked.filter(|_| !is_alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sole_voter_needs_no_answer() {
        let age = Some(Duration::from_mins(1));
        assert_eq!(quorum_age(1, &[vec![1]], age), None);
        assert_eq!(quorum_age(1, &[vec![1, 2, 3]], age), age);
        // While the membership changes both sets must agree.
        assert_eq!(quorum_age(1, &[vec![1], vec![1, 2]], age), age);
        assert_eq!(quorum_age(1, &[vec![2]], age), age);
    }
}
