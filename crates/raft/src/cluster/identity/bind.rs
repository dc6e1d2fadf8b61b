//! The leader writes the directories it has met into the membership.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::Precondition;
use tokio::sync::{Mutex, watch};

use super::Identity;
use crate::cluster::changes::shown;
use crate::cluster::types::{LogId, Member, Metrics, Raft};

/// How often a member looks whom it has met: while the membership names not everybody, and else.
const EVERY: Duration = Duration::from_millis(20);
const EVERY_NAMED: Duration = Duration::from_millis(500);
/// How long one naming may take: without a majority it would keep other changes waiting for ever.
const NAME_MAX: Duration = Duration::from_secs(5);

/// Names directories in the membership while this member leads.
pub(crate) struct Binder {
    pub(crate) node: u64,
    pub(crate) raft: Raft,
    pub(crate) identity: Arc<Identity>,
    /// Held while it names: a change of the membership that is asked for comes behind.
    pub(crate) naming: Arc<Mutex<()>>,
    /// Held by whoever may append entries.
    pub(crate) turn: Arc<Mutex<()>>,
    /// The term that it leads and has met members in.
    pub(crate) led: Option<u64>,
}

impl Binder {
    /// Looks until the node stops.
    pub(crate) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let pause = if self.names_all() { EVERY_NAMED } else { EVERY };
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.forget();
            // Whoever changes the membership now comes first.
            let Ok(_naming) = self.naming.try_lock() else { continue };
            let Some((at, members)) = self.to_name() else { continue };
            let _rest = self.turn.lock().await;
            let names: Vec<String> = members
                .iter()
                .filter_map(|(id, member)| Some(format!("{id}={}", member.disk?)))
                .collect();
            let same = Precondition::LastMembershipLogId { last_membership_log_id: at };
            let change = ChangeMembers::SetNodes(members);
            let changed = async {
                let done = self.raft.change_membership_if(change, true, [same]).await;
                let done = done.map_err(|error| error.to_string())?.log_id;
                // Whoever changes the membership next finds it committed.
                let is_shown =
                    move |seen: &Metrics| *seen.committed_membership_config.log_id() >= Some(done);
                shown(&self.raft, is_shown).await.map_err(|error| error.text)
            };
            let Ok(changed) = tokio::time::timeout(NAME_MAX, changed).await else { continue };
            match changed {
                Ok(()) => tracing::info!("the membership names directories: {}", names.join(", ")),
                // It lost the lead, or the membership has changed: it is looked at again.
                Err(error) => tracing::debug!("no directory was named: {error}"),
            }
        }
    }

    /// Lets go of whom it met in another term, or before it was named: a number may be another directory's by now.
    fn forget(&mut self) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state.is_leader().then_some(metrics.current_term);
        let mut met = self.identity.unnamed.lock();
        if leads != self.led {
            self.led = leads;
            met.clear();
        }
        let membership = metrics.membership_config.membership();
        met.retain(|id, _| membership.get_node(id).is_some_and(|member| member.disk.is_none()));
    }

    /// Whether the membership leaves nobody out.
    fn names_all(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let mut nodes = metrics.membership_config.nodes().peekable();
        nodes.peek().is_some() && nodes.all(|(_, member)| member.disk.is_some())
    }

    /// Which members to write anew, and the membership that this was decided on.
    fn to_name(&self) -> Option<(Option<LogId>, BTreeMap<u64, Member>)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let stored = &metrics.membership_config;
        let is_committed = metrics.committed_membership_config.log_id() == stored.log_id();
        if !metrics.state.is_leader() || !is_committed || stored.get_joint_config().len() != 1 {
            return None;
        }
        let membership = stored.membership();
        let met = self.identity.unnamed.lock().clone();
        let mut found = BTreeMap::new();
        for (id, member) in membership.nodes().filter(|(_, member)| member.disk.is_none()) {
            let disk = if *id == self.node {
                Some(self.identity.store.disk)
            } else {
                met.get(id).copied()
            };
            if let Some(disk) = disk {
                found.insert(*id, Member { disk: Some(disk), ..member.clone() });
            }
        }
        if found.is_empty() {
            return None;
        }
        // The first time a majority is named at once: from then on nobody else is sent anything.
        let after = membership.nodes().map(|(id, member)| {
            let named = member.disk.is_some() || found.contains_key(id);
            (*id, named)
        });
        let after: BTreeMap<u64, bool> = after.collect();
        let set = stored.get_joint_config().first()?;
        let named = set.iter().filter(|id| after.get(id) == Some(&true)).count();
        (named > set.len() / 2).then(|| (*stored.log_id(), found))
    }
}
