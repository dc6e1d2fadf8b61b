//! Lets go of entries that nobody will ask for: raises the purge point, and with it what reclaim may take.
//!
//! - U1: nothing above the checkpoint, the applied state, or what a member that answers holds, less `log_keep`, is purged.
//!   A member that has been silent for longer than the hold does not count: it is sent a snapshot.
//! - U2: a follower purges what its leader lets it, which is by the same rule: so whoever leads next still has what a
//!   member that lags needs. Without a word of a leader nothing is purged.
//! - U3: a new leader knows nothing of how long others were silent: the hold begins anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;
use tokio::time::Instant;

use super::member::LIVE_ELECTIONS;
use super::start::ClusterOptions;
use super::store::Shared;
use super::types::{Raft, Types, raft_index};

const EVERY: Duration = Duration::from_millis(500);
/// The point moves by this many entries at least; by fewer where few are kept.
const STEP_MAX: u64 = 1024;

pub(crate) struct Purge {
    raft: Raft,
    store: Arc<Shared>,
    /// What this member tells its followers, plus one.
    floor: Arc<AtomicU64>,
    node: u64,
    keep: u64,
    hold: Duration,
    /// The term that this member leads, and since when it knows of each member.
    led: Option<(u64, BTreeMap<u64, Instant>)>,
}

/// What a leader knows of another member.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The library's index of the last entry that it is known to hold.
    matched: Option<u64>,
    /// Time since its last answer; without one, since this member leads.
    silent: Duration,
}

impl Purge {
    pub(crate) fn new(
        options: &ClusterOptions,
        raft: &Raft,
        store: &Arc<Shared>,
        floor: &Arc<AtomicU64>,
    ) -> Self {
        Self {
            raft: raft.clone(),
            store: store.clone(),
            floor: floor.clone(),
            node: options.node,
            keep: options.log_keep,
            hold: options.purge_hold.max(LIVE_ELECTIONS * options.election),
            led: None,
        }
    }

    /// Looks every half second until the node stops.
    pub(crate) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return,
                _ = ticks.tick() => {}
            }
            if self.tick().await.is_err() {
                // The library has ended; who watches it says why.
                return;
            }
        }
    }

    async fn tick(&mut self) -> Result<(), Box<openraft::errors::Fatal<Types>>> {
        let own = self.own();
        let target = if let Some(members) = self.members() {
            let target = own.and_then(|own| target(own, &members, self.hold, self.keep));
            self.floor.store(target.map_or(0, |target| target + 1), Ordering::Release);
            target
        } else {
            self.floor.store(0, Ordering::Release);
            let floor = *self.store.leader_floor.lock();
            own.zip(floor).map(|(own, floor)| own.min(floor))
        };
        let purged = self.store.state.lock().purged.map_or(0, |purged| purged.index + 1);
        let step = (self.keep / 4).clamp(1, STEP_MAX);
        let is_worth = |target: &u64| target + 1 >= purged + step;
        let Some(target) = target.filter(is_worth) else { return Ok(()) };
        let covered = self.raft.metrics().borrow_watched().snapshot.map(|id| id.index);
        // It purges only what a snapshot covers: the last checkpoint is one, once it was told to look.
        if covered.is_none_or(|covered| covered < target) {
            self.raft.trigger().snapshot().await.map_err(Box::new)?;
        }
        if let Some(target) = covered.map(|covered| covered.min(target)).filter(is_worth) {
            tracing::debug!(index = target + 1, "purge");
            self.raft.trigger().purge_log(target).await.map_err(Box::new)?;
        }
        Ok(())
    }

    /// The last entry that this member itself needs no more: both its store and its state are beyond it.
    fn own(&self) -> Option<u64> {
        let durable = (*self.store.durable.borrow())?.index.checked_sub(1)?;
        Some(durable.min(raft_index(*self.store.applied.borrow())?))
    }

    /// The other members, if this one leads.
    fn members(&mut self) -> Option<Vec<Known>> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if !metrics.state.is_leader() {
            self.led = None;
            return None;
        }
        let term = metrics.current_term;
        if self.led.as_ref().is_none_or(|(led, _)| *led != term) {
            self.led = Some((term, BTreeMap::new()));
        }
        let (_, since) = self.led.as_mut()?;
        let (matched, answers) = (metrics.replication.as_ref(), metrics.heartbeat.as_ref());
        let mut members = Vec::new();
        for (id, _) in metrics.membership_config.nodes().filter(|(id, _)| **id != self.node) {
            let known = since.entry(*id).or_insert_with(Instant::now).elapsed();
            let answer = answers.and_then(|all| all.get(id)).and_then(Option::as_ref);
            members.push(Known {
                matched: matched.and_then(|all| all.get(id)).copied().flatten().map(|id| id.index),
                silent: answer.map_or(known, |at| at.elapsed().min(known)),
            });
        }
        Some(members)
    }
}

/// Up to where entries may go; `None` for none of them.
fn target(own: u64, members: &[Known], hold: Duration, keep: u64) -> Option<u64> {
    let mut lowest = own;
    for member in members.iter().filter(|member| member.silent <= hold) {
        // Of one that nothing is known of, anything may be needed.
        lowest = lowest.min(member.matched?);
    }
    lowest.checked_sub(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_heard_keeps_what_it_lacks_and_who_is_not_does_only_for_a_while() {
        let hold = Duration::from_mins(10);
        let known = |matched, seconds| Known { matched, silent: Duration::from_secs(seconds) };
        let check = |members: &[Known], expected| {
            assert_eq!(target(100, members, hold, 10), expected, "{members:?}");
        };
        check(&[], Some(90));
        check(&[known(Some(100), 0), known(Some(200), 0)], Some(90));
        check(&[known(Some(100), 0), known(Some(50), 1)], Some(40));
        check(&[known(Some(100), 0), known(Some(50), 600)], Some(40));
        check(&[known(Some(100), 0), known(Some(50), 601)], Some(90));
        check(&[known(None, 0)], None);
        check(&[known(None, 601)], Some(90));
        check(&[known(Some(5), 0)], None);
    }
}
