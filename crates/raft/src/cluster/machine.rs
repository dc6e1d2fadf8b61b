//! The library's state machine: it applies nothing itself, it hands committed entries to the core in order.
//!
//! - A1: an entry is handed on only when it is committed and synced in this member's own logs, so that a checkpoint never
//!   covers what a power cut may take, and a pop reads what it was granted.
//! - A2: a membership is durable before its entry counts as applied.

use std::io;
use std::sync::Arc;

use crossbeam_channel::Sender;
use futures_util::{Stream, StreamExt};
use openraft::RaftSnapshotBuilder;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use queen_model::Entry;
use queen_record::ids::EntryIndex;

use super::files::Files;
use super::runtime::blocking;
use super::store::Shared;
use super::types::{Done, LogId, Payload, StoredMembership, Types, entry_index};

/// Entries that may wait for the core.
const AHEAD_MAX: u64 = 1024;

/// What the core is told, in order.
#[derive(Debug)]
pub(crate) enum Event {
    /// A planned entry is committed.
    Entry { index: EntryIndex, term: u64, entry: Arc<Entry> },
    /// An entry of the cluster's own is committed.
    Own { index: EntryIndex, term: u64 },
    /// Whether this member leads, and in which term.
    Role(Option<u64>),
    /// The proposal of this number will not be committed, or nobody can say.
    Lost(u64),
    /// Nothing is waited for any more.
    Stop,
}

/// Where events go: a queue, and a call that wakes its reader.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) events: Sender<Event>,
    pub(crate) wake: Arc<dyn Fn() + Send + Sync>,
}

impl Core {
    pub(crate) fn tell(&self, event: Event) {
        // A core that has ended is told nothing.
        if self.events.send(event).is_ok() {
            (self.wake)();
        }
    }
}

pub(crate) struct Machine {
    core: Core,
    store: Arc<Shared>,
    files: Files,
    applied: Option<LogId>,
}

impl Machine {
    pub(crate) fn new(
        core: Core,
        store: Arc<Shared>,
        files: Files,
        applied: Option<LogId>,
    ) -> Self {
        Self { core, store, files, applied }
    }

    /// Waits until this member's own logs hold the entry durably.
    async fn flushed(&self, index: EntryIndex) -> io::Result<()> {
        let mut flushed = self.store.flushed.subscribe();
        let mut stopped = self.store.stopped.subscribe();
        tokio::select! {
            biased;
            known = flushed.wait_for(|flushed| *flushed >= index) => {
                known.map(drop).map_err(io::Error::other)
            }
            _ = stopped.wait_for(|stopped| *stopped) => Err(io::Error::other("the node is stopping")),
        }
    }

    /// Waits until the core has not too much to catch up with.
    async fn core_keeps_up(&self, index: EntryIndex) {
        let mut applied = self.store.applied.subscribe();
        let mut stopped = self.store.stopped.subscribe();
        tokio::select! {
            biased;
            _ = applied.wait_for(|applied| applied.0 + AHEAD_MAX >= index.0) => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn take(&mut self, id: LogId, payload: Payload) -> io::Result<()> {
        let (index, term) = (entry_index(id.index), id.leader_id.term);
        self.flushed(index).await?;
        match payload {
            Payload::Normal(command) => {
                self.core.tell(Event::Entry { index, term, entry: command.0 });
            }
            Payload::Blank => self.core.tell(Event::Own { index, term }),
            Payload::Membership(membership) => {
                let stored = StoredMembership::new(Some(id), membership);
                let (files, written) = (self.files.clone(), stored.clone());
                blocking(move || files.write_membership(&written))
                    .await?
                    .map_err(io::Error::other)?;
                self.remember(stored);
                self.core.tell(Event::Own { index, term });
            }
        }
        self.applied = Some(id);
        self.core_keeps_up(index).await;
        Ok(())
    }

    fn remember(&self, membership: StoredMembership) {
        let mut memberships = self.store.memberships.lock();
        let durable = *self.store.durable.borrow();
        let covered = |stored: &StoredMembership| *stored.log_id() <= durable;
        // Of those that the checkpoint covers the newest is enough.
        while memberships.get(1).is_some_and(covered) {
            memberships.remove(0);
        }
        memberships.push(membership);
    }

    /// What a snapshot of the last checkpoint says of itself.
    fn meta(&self) -> SnapshotMetaOf<Types> {
        let last_log_id = *self.store.durable.borrow();
        let membership = last_log_id.and_then(|id| self.store.membership_at(id));
        SnapshotMetaOf::<Types> { last_log_id, last_membership: membership.unwrap_or_default() }
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let membership = self.store.memberships.lock().last().cloned();
        Ok((self.applied, membership.unwrap_or_default()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + Send,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            self.take(entry.log_id, entry.payload).await?;
            if let Some(responder) = responder {
                responder.send(Done);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(self.meta())
    }

    async fn install_snapshot(&mut self, _: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        Err(io::Error::other("a snapshot is taken in at the start only"))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        let meta = self.meta();
        Ok(meta.last_log_id.is_some().then_some(SnapshotOf::<Types, ()> { meta, snapshot: () }))
    }
}

/// Notes which checkpoint a snapshot would be of: the files are gathered when one is sent.
pub(crate) struct Builder(SnapshotMetaOf<Types>);

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        Ok(SnapshotOf::<Types, ()> { meta: self.0.clone(), snapshot: () })
    }
}
