//! Who writes the log: everything that waits in one group, one sync per touched log. A thread; in a simulation a task.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use openraft::storage::IOFlushed;
use queen_model::Effect;
use queen_qlog::{EntryWrite, Fault, MessageWrite, Qlog};
use queen_record::ids::{EntryIndex, LogId, Micros};
use queen_record::layout::SYSTEM_LOG;
use tokio::sync::{Notify, oneshot};

use super::cache::size;
use super::files::{Files, FilesError, Id, State, VoteJson, own_bytes};
use super::routes::{Routes, Unknown};
use super::snapshot::swap::Pending;
use super::store::Shared;
use super::types::{LogEntry, Payload, Types, entry_index};
use crate::payloads::message;

/// Bytes of entries that one group gathers before it is written.
const GROUP_BYTES_MAX: usize = 4 << 20;

/// What is asked of the writer.
pub(crate) enum Order {
    Append(Vec<LogEntry>, IOFlushed<Types>),
    Vote(VoteJson, oneshot::Sender<()>),
    /// Everything above goes.
    Truncate(EntryIndex, oneshot::Sender<()>),
    Purge(Id),
    /// A snapshot waits: unless the log holds what it covers, this is said durably, and nothing is written any more.
    Stage(Box<Pending>, oneshot::Sender<bool>),
}

/// The way of orders to the writer.
#[derive(Clone)]
pub(crate) struct Orders {
    to: Sender<Order>,
    told: Arc<Notify>,
}

impl Orders {
    pub(crate) fn new(to: Sender<Order>) -> Self {
        Self { to, told: Arc::default() }
    }

    /// Hands an order on; whether there is a writer.
    pub(crate) fn send(&self, order: Order) -> bool {
        let sent = self.to.send(order).is_ok();
        self.told.notify_one();
        sent
    }

    /// Told of each order, for a writer that must not block.
    pub(crate) fn told(&self) -> Arc<Notify> {
        self.told.clone()
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        // The writer ends with the last handle.
        self.told.notify_one();
    }
}

/// How long the disk takes for the next order, where that is simulated.
pub(crate) type Pace = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Why nothing can be written any more.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Logs(#[from] Fault),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error(
        "the leader has other entries above {last} than this node has carried out, up to {applied}: what one of the two \
         acknowledged is not in the other. Stop the cluster and keep all directories; docs/cluster.md says what then"
    )]
    CarriedOut { last: EntryIndex, applied: EntryIndex },
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    qlog: Qlog,
    files: Files,
    state: State,
    routes: Routes,
    orders: Receiver<Order>,
    told: Arc<Notify>,
    failed: Box<dyn Fn(String) + Send + Sync>,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        files: Files,
        state: State,
        routes: Routes,
        (orders, told): (Receiver<Order>, Arc<Notify>),
        failed: Box<dyn Fn(String) + Send + Sync>,
    ) -> Self {
        let qlog = shared.qlog.clone();
        Self { shared, qlog, files, state, routes, orders, told, failed }
    }

    /// Runs until every handle on the log is gone, or something fails.
    pub(crate) fn run(mut self) {
        let mut next = None;
        loop {
            let order = match next.take() {
                Some(order) => order,
                None => match self.orders.recv() {
                    Ok(order) => order,
                    Err(_) => return,
                },
            };
            if !self.carry_out(order, &mut next) {
                return;
            }
        }
    }

    /// The same as a task, in which each order takes the time that `pace` says.
    pub(crate) async fn run_here(mut self, pace: Pace) {
        let mut next = None;
        loop {
            let order = match next.take() {
                Some(order) => order,
                None => match self.orders.try_recv() {
                    Ok(order) => order,
                    Err(TryRecvError::Empty) => {
                        self.told.notified().await;
                        continue;
                    }
                    Err(TryRecvError::Disconnected) => return,
                },
            };
            let takes = pace();
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            if !self.carry_out(order, &mut next) {
                return;
            }
        }
    }

    /// Does what is asked, and sets `next` to the order behind it if it had to look for one; whether more can be done.
    fn carry_out(&mut self, order: Order, next: &mut Option<Order>) -> bool {
        let done = match order {
            Order::Append(entries, flushed) => self.append(entries, flushed, next),
            Order::Stage(pending, done) => match self.stage(&pending, done) {
                // What comes behind it would be lost: nobody is told that it is durable.
                Ok(true) => return false,
                Ok(false) => Ok(()),
                Err(failure) => Err(failure),
            },
            other => self.small(other),
        };
        if let Err(failure) = &done {
            (self.failed)(failure.to_string());
        }
        done.is_ok()
    }

    fn small(&mut self, order: Order) -> Result<(), Failure> {
        match order {
            Order::Append(..) | Order::Stage(..) => unreachable!("this is no small order"),
            Order::Vote(vote, done) => {
                self.state.vote = Some(vote);
                self.files.write_state(&self.state)?;
                // Who asked may have gone.
                let _told = done.send(());
            }
            Order::Truncate(last, done) => {
                let applied = *self.shared.applied.borrow();
                if last < applied {
                    // No leader that knows what was committed asks for this: it, or this node, has an older disk.
                    return Err(Failure::CarriedOut { last, applied });
                }
                self.qlog.truncate_after(last)?;
                self.routes.truncate(last);
                self.state.terms.retain(|first| entry_index(first.index) <= last);
                self.files.write_state(&self.state)?;
                self.shared.flushed.send_modify(|flushed| *flushed = (*flushed).min(last));
                let _told = done.send(());
            }
            Order::Purge(id) => {
                self.state.purged = Some(id);
                self.state.terms = terms_above(&self.state.terms, id);
                self.files.write_state(&self.state)?;
                // Only what the file says may be reclaimed.
                self.qlog.set_floor(entry_index(id.index));
            }
        }
        Ok(())
    }

    /// Whether a snapshot has to be loaded; then the marker is durable.
    fn stage(&mut self, pending: &Pending, done: oneshot::Sender<bool>) -> Result<bool, Failure> {
        let is_needed = !self.holds(pending.last_log_id);
        if is_needed {
            self.files.write_pending(pending)?;
            self.shared.is_staged.store(true, Ordering::Release);
        }
        let _told = done.send(is_needed);
        Ok(is_needed)
    }

    /// Whether the log has this very entry, or had it.
    fn holds(&self, id: Id) -> bool {
        if self.state.purged.is_some_and(|purged| purged.index >= id.index) {
            return true;
        }
        let term = self.state.terms.iter().rev().find(|first| first.index <= id.index);
        let is_there = *self.shared.flushed.borrow() >= entry_index(id.index);
        is_there && term.is_some_and(|first| first.term == id.term)
    }

    /// Writes these entries and all that wait behind them, up to the first order of another kind.
    fn append(
        &mut self,
        entries: Vec<LogEntry>,
        flushed: IOFlushed<Types>,
        next: &mut Option<Order>,
    ) -> Result<(), Failure> {
        let mut group = entries;
        let mut waiting = vec![flushed];
        let mut bytes: usize = group.iter().map(size).sum();
        while bytes < GROUP_BYTES_MAX {
            match self.orders.try_recv() {
                Ok(Order::Append(entries, flushed)) => {
                    bytes += entries.iter().map(size).sum::<usize>();
                    group.extend(entries);
                    waiting.push(flushed);
                }
                Ok(other) => {
                    *next = Some(other);
                    break;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        match self.write(&group) {
            Ok(()) => {
                for flushed in waiting {
                    flushed.io_completed(Ok(()));
                }
                Ok(())
            }
            Err(failure) => {
                for flushed in waiting {
                    flushed.io_completed(Err(std::io::Error::other(failure.to_string())));
                }
                Err(failure)
            }
        }
    }

    fn write(&mut self, group: &[LogEntry]) -> Result<(), Failure> {
        let Some(last) = group.last().map(|entry| entry_index(entry.log_id.index)) else {
            return Ok(());
        };
        self.note_terms(group)?;
        self.routes.forget_applied();
        let mut prepared = Vec::with_capacity(group.len());
        for entry in group {
            prepared.push(Prepared::of(entry, &mut self.routes)?);
        }
        let messages: Vec<Vec<MessageWrite<'_>>> =
            group.iter().zip(&prepared).map(|(entry, prepared)| prepared.messages(entry)).collect();
        let writes: Vec<EntryWrite<'_>> = group
            .iter()
            .zip(&prepared)
            .zip(&messages)
            .map(|((entry, prepared), messages)| EntryWrite {
                index: entry_index(entry.log_id.index),
                term: entry.log_id.leader_id.term,
                now: prepared.now,
                bytes: &prepared.bytes,
                logs: &prepared.touched,
                messages,
            })
            .collect();
        let touched = self.qlog.append(&writes)?;
        self.qlog.sync(&touched)?;
        self.shared.flushed.send_replace(last);
        Ok(())
    }

    /// Where a term begins is noted before its first entry is written.
    fn note_terms(&mut self, group: &[LogEntry]) -> Result<(), FilesError> {
        let mut is_new = false;
        for entry in group {
            let term = entry.log_id.leader_id.term;
            if self.state.terms.last().is_none_or(|last| last.term < term) {
                self.state.terms.push(entry.log_id.into());
                is_new = true;
            }
        }
        if is_new {
            self.files.write_state(&self.state)?;
            self.shared.state.lock().terms.clone_from(&self.state.terms);
        }
        Ok(())
    }
}

/// Terms that an entry above `id` still belongs to.
pub(crate) fn terms_above(terms: &[Id], id: Id) -> Vec<Id> {
    let below = terms.iter().filter(|first| first.index <= id.index).count();
    terms.get(below.saturating_sub(1)..).unwrap_or_default().to_vec()
}

/// An entry as it is written.
struct Prepared {
    bytes: Vec<u8>,
    now: Micros,
    /// The log of each effect.
    logs: Vec<LogId>,
    touched: Vec<LogId>,
}

impl Prepared {
    fn of(entry: &LogEntry, routes: &mut Routes) -> Result<Self, Unknown> {
        let Payload::Normal(command) = &entry.payload else {
            let bytes = own_bytes(&entry.payload).unwrap_or_default();
            return Ok(Self { bytes, now: Micros(0), logs: Vec::new(), touched: vec![SYSTEM_LOG] });
        };
        let mut bytes = Vec::new();
        command.0.encode(&mut bytes);
        let logs = routes.logs(entry_index(entry.log_id.index), &command.0)?;
        let mut touched = logs.clone();
        touched.sort_unstable();
        touched.dedup();
        if touched.is_empty() {
            touched.push(SYSTEM_LOG);
        }
        Ok(Self { bytes, now: command.0.now, logs, touched })
    }

    fn messages<'a>(&self, entry: &'a LogEntry) -> Vec<MessageWrite<'a>> {
        let Payload::Normal(command) = &entry.payload else { return Vec::new() };
        let message = |(effect, log): (&'a Effect, &LogId)| match effect {
            Effect::Append(append) => Some(message(append, *log)),
            _ => None,
        };
        command.0.effects.iter().zip(&self.logs).filter_map(message).collect()
    }
}
