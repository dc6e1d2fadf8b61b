//! The core's side of a cluster: proposes one entry at a time and learns, in order, what was committed.
//!
//! - P1: a proposal is out only while this member leads, and only one is. So nothing is planned on an entry whose outcome
//!   is open, and an entry is never refused behind one that was accepted.
//! - P2: it leads only after an entry of its own term is applied: the state is complete then, and the next index is known.
//!   And only under a membership that names the directories of a majority (I3 of `identity`).
//! - P3: a proposal whose fate is unknown ends the lead of the plan it was made on. When it is committed after all, it
//!   comes as any entry of another leader does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use openraft::async_runtime::WatchReceiver;
use openraft::impls::ProgressResponder;
use queen_model::Entry;
use queen_qlog::Fault;
use queen_record::ids::EntryIndex;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::machine::{Core, Event};
use super::runtime::spawn;
use super::store::Shared;
use super::types::{Command, Raft, Types};
use crate::payloads::without_payloads;
use crate::{Committed, Proposal, Replicator, Step};

/// Between two tries of a leader that was refused although it leads: its lease will be renewed, or it will be deposed.
const AGAIN: Duration = Duration::from_millis(10);

/// How long a stopping node waits for what it proposed.
const STOP_MAX: Duration = Duration::from_secs(3);

/// The replicator of a member of a cluster.
pub struct ClusterReplicator {
    raft: Raft,
    runtime: Handle,
    core: Core,
    events: Receiver<Event>,
    store: Arc<Shared>,
    /// The term in which the library leads.
    role: Option<u64>,
    /// The term of the last entry that was handed on.
    seen_term: u64,
    /// The term in which the core plans.
    leading: Option<u64>,
    /// The proposal that is out: its number and what it is.
    pending: Option<(u64, Arc<Entry>)>,
    proposals: u64,
    /// When a stopping node waits no longer for a majority.
    stop_by: Option<Instant>,
    turn: Arc<Mutex<()>>,
    /// The turn, while a round runs that may propose.
    held: Option<OwnedMutexGuard<()>>,
    node: u64,
}

impl Replicator for ClusterReplicator {
    fn leads_at_start(&self) -> bool {
        false
    }

    fn propose(&mut self, proposal: Proposal) -> Result<(), Fault> {
        assert!(self.pending.is_none(), "one proposal is out at a time");
        let Some(term) = self.leading else { return Ok(()) };
        self.proposals += 1;
        let (number, entry) = (self.proposals, Arc::new(proposal.entry));
        self.pending = Some((number, entry.clone()));
        let (raft, core) = (self.raft.clone(), self.core.clone());
        let _entered = self.runtime.enter();
        spawn(async move {
            if !propose(&raft, term, Command(entry)).await {
                core.tell(Event::Lost(number));
            }
        });
        Ok(())
    }

    fn commit(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
        while !self.try_commit(steps)? {
            let left = self.stop_by.map(|by| by.saturating_duration_since(Instant::now()));
            let event = match left {
                None => self.events.recv().ok(),
                Some(left) => self.events.recv_timeout(left).ok(),
            };
            match event {
                Some(event) => self.take(event, steps),
                // No majority will answer in time.
                None => self.lose(steps),
            }
        }
        Ok(())
    }

    fn try_commit(&mut self, steps: &mut Vec<Step>) -> Result<bool, Fault> {
        self.drain(steps);
        Ok(self.pending.is_none())
    }

    fn begin_round(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
        if !self.try_begin_round(steps)? {
            self.held = Some(self.turn.clone().blocking_lock_owned());
            self.drain(steps);
        }
        Ok(())
    }

    fn try_begin_round(&mut self, steps: &mut Vec<Step>) -> Result<bool, Fault> {
        self.drain(steps);
        if self.leading.is_some() && self.held.is_none() {
            let Ok(turn) = self.turn.clone().try_lock_owned() else { return Ok(false) };
            self.held = Some(turn);
            // A change of the membership that ran has told all of its entries when it let go.
            self.drain(steps);
        }
        Ok(true)
    }

    fn end_round(&mut self) {
        self.held = None;
    }

    fn applied(&mut self, index: EntryIndex) {
        self.store.applied.send_replace(index);
    }
}

impl ClusterReplicator {
    /// A member that does not lead yet; `seen_term` is the term of the last entry that the state covers.
    pub(crate) fn new(
        node: u64,
        (raft, runtime): (Raft, Handle),
        (core, events): (Core, Receiver<Event>),
        store: Arc<Shared>,
        seen_term: u64,
        turn: Arc<Mutex<()>>,
    ) -> Self {
        Self {
            raft,
            runtime,
            core,
            events,
            store,
            role: None,
            seen_term,
            leading: None,
            pending: None,
            proposals: 0,
            stop_by: None,
            turn,
            held: None,
            node,
        }
    }

    fn drain(&mut self, steps: &mut Vec<Step>) {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.take(event, steps),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, event: Event, steps: &mut Vec<Step>) {
        match event {
            Event::Entry { index, term, entry } => self.entry(index, term, &entry, steps),
            Event::Own { index, term } => {
                // It has the place that the plan was made for, as when a change was given up on and came after all.
                if self.pending.is_some() {
                    self.lose(steps);
                }
                steps.push(Step::Passed { index, term });
                self.seen_term = term;
            }
            Event::Role(term) => self.role = term,
            Event::Lost(number) => {
                if self.pending.as_ref().is_some_and(|(pending, _)| *pending == number) {
                    self.lose(steps);
                }
            }
            Event::Stop => self.stop_by = Some(Instant::now() + STOP_MAX),
        }
        self.settle(steps);
    }

    fn entry(&mut self, index: EntryIndex, term: u64, entry: &Arc<Entry>, steps: &mut Vec<Step>) {
        self.seen_term = term;
        let is_own = self.pending.as_ref().is_some_and(|(_, pending)| Arc::ptr_eq(pending, entry));
        if is_own {
            self.pending = None;
        } else {
            // Of another leader, or given up: the plan that is being made does not know it.
            self.lose(steps);
        }
        let entry = without_payloads((**entry).clone());
        steps.push(Step::Committed { committed: Committed { index, term, entry }, is_own });
    }

    /// The plan ends here: what it proposed may be committed, or never.
    fn lose(&mut self, steps: &mut Vec<Step>) {
        self.pending = None;
        if self.leading.take().is_some() {
            steps.push(Step::Follow);
        }
    }

    /// Whether the core may plan, by what is known now.
    fn settle(&mut self, steps: &mut Vec<Step>) {
        let may =
            self.role.filter(|term| self.seen_term == *term && self.store.is_named(self.node));
        if self.leading.is_some() && may != self.leading {
            self.lose(steps);
        }
        if may.is_some() && self.leading.is_none() {
            self.leading = may;
            steps.push(Step::Lead);
        }
    }
}

/// Proposes until the entry is committed, which is `true`, or cannot be in this term.
async fn propose(raft: &Raft, term: u64, command: Command) -> bool {
    loop {
        let (responder, answer) = ProgressResponder::<Types, _>::complete_only();
        let asked = raft.write(command.clone()).with_leader(term).responder(responder).await;
        if asked.is_err() {
            return false;
        }
        match answer.await {
            Ok(Ok(_)) => return true,
            // Refused before it was logged. While the term stands it is asked again: nothing was planned on it.
            Ok(Err(_)) if leads(raft, term) => tokio::time::sleep(AGAIN).await,
            Ok(Err(_)) | Err(_) => return false,
        }
    }
}

fn leads(raft: &Raft, term: u64) -> bool {
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.state.is_leader() && metrics.vote.leader_id.term == term
}
