//! The log of the consensus library, which is the queue logs.
//!
//! - S1: one thread writes, in the order of the calls: appends, votes, cuts. So a vote is never durable before an append
//!   that was asked for earlier, nor an append before the vote of its term.
//! - S2: an entry can be read from the moment of its append, and is reported as flushed when all its logs are synced, in
//!   order.
//! - S3: after a failed write or sync nothing is written or reported any more, and the node stops.
//! - S4: what is older than memory holds is read from the queue logs, with its messages.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use crossbeam_channel::unbounded;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use queen_model::Entry;
use queen_qlog::{EntryReader, Qlog, StoredEntry};
use queen_record::ids::{EntryIndex, PartitionId, QueueId};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::cache::Cache;
use super::files::{Files, FilesError, Hint, State, VoteJson, own_payload};
use super::identity::{Boot, DiskId, names_a_majority};
use super::routes::{Owners, Routes};
use super::runtime::blocking;
use super::types::{
    Command, LogEntry, LogId, Payload, StoredMembership, Types, Vote, entry_index, log_id,
    raft_index,
};
use super::wire::{WireError, with_payloads};
use super::writer::{Order, Orders, Writer};

/// Bytes that one read for a follower returns at most, but for a single larger entry.
const READ_BYTES_MAX: usize = 4 << 20;

/// What writer, readers and state machine share.
pub(crate) struct Shared {
    pub(crate) cache: Mutex<Cache>,
    pub(crate) state: Mutex<State>,
    last: Mutex<Option<LogId>>,
    /// Where a log that was empty began.
    begin: AtomicU64,
    /// The highest entry that is synced in all its logs.
    pub(crate) flushed: watch::Sender<EntryIndex>,
    /// The highest entry that the core has applied.
    pub(crate) applied: watch::Sender<EntryIndex>,
    /// The last written checkpoint: its entry and that entry's term.
    pub(crate) durable: watch::Sender<Option<LogId>>,
    /// When a leader called last.
    pub(crate) heard: Mutex<Option<Instant>>,
    /// Set once nothing is waited for any more.
    pub(crate) stopped: watch::Sender<bool>,
    /// Whether a snapshot waits for the next start: this process writes no log any more.
    pub(crate) is_staged: AtomicBool,
    /// The last memberships that were applied, oldest first.
    pub(crate) memberships: Mutex<Vec<StoredMembership>>,
    /// What the leader lets its followers purge: the library's index; `None` before it said so.
    pub(crate) leader_floor: Mutex<Option<u64>>,
    pub(crate) qlog: Qlog,
    /// The directory's own name, and this start of it.
    pub(crate) disk: DiskId,
    pub(crate) boot: Boot,
}

/// The log.
pub(crate) struct Store {
    shared: Arc<Shared>,
    files: Files,
    hint: Hint,
    orders: Orders,
}

/// What a log is opened with.
pub(crate) struct StoreParts {
    pub(crate) files: Files,
    pub(crate) qlog: Qlog,
    pub(crate) node: u64,
    /// The last entry of the recovered logs, and its term.
    pub(crate) last: Option<LogId>,
    /// What the store covers.
    pub(crate) durable: Option<LogId>,
    pub(crate) owners: Box<dyn Owners>,
    /// Partitions that the entries above `durable` make.
    pub(crate) made: Vec<(PartitionId, QueueId, EntryIndex)>,
    pub(crate) cache_bytes_max: usize,
    /// Draws a number that nobody else draws.
    pub(crate) draw: Arc<dyn Fn() -> u128 + Send + Sync>,
    /// Told once when nothing can be written any more.
    pub(crate) failed: Box<dyn Fn(String) + Send + Sync>,
}

impl Shared {
    /// Entries below this are in the log, as the library counts, or were.
    pub(crate) fn end(&self) -> u64 {
        self.last.lock().map_or(0, |last| last.index + 1)
    }

    /// Whether the membership that is applied names the directories of a majority.
    pub(crate) fn is_named(&self, own: u64) -> bool {
        let memberships = self.memberships.lock();
        memberships.last().is_some_and(|last| names_a_majority(last.membership(), own))
    }

    /// The membership that was in force at an entry; `None` when it is not remembered any more, or not yet applied.
    pub(crate) fn membership_at(&self, id: LogId) -> Option<StoredMembership> {
        let memberships = self.memberships.lock();
        memberships.iter().rev().find(|stored| *stored.log_id() <= Some(id)).cloned()
    }
}

impl Store {
    /// The log over recovered queue logs, and its writer, to be run; it ends with the last handle.
    pub(crate) fn open(parts: StoreParts) -> Result<(Self, Writer), FilesError> {
        let StoreParts {
            files,
            qlog,
            node,
            last,
            durable,
            owners,
            made,
            cache_bytes_max,
            draw,
            failed,
        } = parts;
        let mut state = files.state()?.unwrap_or_default();
        state.floor_v = 1;
        state.node = node;
        let disk = *state.disk.get_or_insert_with(|| DiskId(draw()));
        let nonce = u64::try_from(draw() & u128::from(u64::MAX)).unwrap_or_default();
        state.boot = Boot { count: state.boot.count + 1, nonce };
        // What was noted of entries that a crash or a cut took away.
        let end = last.map_or(0, |last| last.index + 1);
        state.terms.retain(|first| first.index < end);
        // Whoever hears of this start will know it from now on.
        files.write_state(&state)?;
        let next = last.map_or(0, |last| last.index + 1);
        let flushed = entry_index(next).0 - 1;
        let shared = Arc::new(Shared {
            cache: Mutex::new(Cache::new(next, cache_bytes_max)),
            state: Mutex::new(state.clone()),
            last: Mutex::new(last),
            begin: AtomicU64::new(0),
            flushed: watch::Sender::new(EntryIndex(flushed)),
            applied: watch::Sender::new(owners.applied()),
            durable: watch::Sender::new(durable),
            heard: Mutex::new(None),
            stopped: watch::Sender::new(false),
            is_staged: AtomicBool::new(false),
            memberships: Mutex::new(vec![files.membership()?]),
            leader_floor: Mutex::new(None),
            qlog: qlog.clone(),
            disk,
            boot: state.boot,
        });
        let (orders, received) = unbounded();
        let hint = files.committed_hint()?;
        let routes = Routes::new(owners, qlog, made);
        let orders = Orders::new(orders);
        let told = orders.told();
        let writer =
            Writer::new(shared.clone(), files.clone(), state, routes, (received, told), failed);
        Ok((Self { shared, files, hint, orders }, writer))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where the writer takes its orders.
    pub(crate) fn orders(&self) -> Orders {
        self.orders.clone()
    }

    fn order(&self, order: Order) -> io::Result<()> {
        if self.orders.send(order) { Ok(()) } else { Err(gone()) }
    }

    async fn ordered(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) -> io::Result<()> {
        let (done, waiting) = oneshot::channel();
        self.order(order(done))?;
        waiting.await.map_err(|_| gone())
    }
}

fn gone() -> io::Error {
    io::Error::other("the log writer has stopped")
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Reader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let purged = self.shared.state.lock().purged.map(LogId::from);
        let last = *self.shared.last.lock();
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.max(purged) })
    }

    async fn get_log_reader(&mut self) -> Reader {
        Reader { shared: self.shared.clone(), files: Some(EntryReader::default()) }
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let json = VoteJson::from(vote);
        self.ordered(|done| Order::Vote(json, done)).await?;
        self.shared.state.lock().vote = Some(json);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        match committed {
            Some(committed) => self.hint.write(committed).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let last = *self.shared.last.lock();
        // A hint may be of a log that was longer.
        Ok(self.files.committed().filter(|hint| last.is_some_and(|last| *hint <= last)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let Some(last) = entries.last().map(|entry| entry.log_id) else {
            callback.io_completed(Ok(()));
            return Ok(());
        };
        {
            let mut cache = self.shared.cache.lock();
            for entry in &entries {
                cache.push(entry.clone());
            }
            let flushed = self.shared.flushed.borrow().0;
            let applied = self.shared.applied.borrow().0;
            cache.trim(flushed.min(applied));
        }
        let first = entries.first().map_or(0, |entry| entry.log_id.index);
        if self.shared.last.lock().replace(last).is_none() {
            self.shared.begin.store(first, Ordering::Release);
        }
        self.order(Order::Append(entries, callback))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let end = last.map_or(0, |last| last.index + 1);
        self.ordered(|done| Order::Truncate(EntryIndex(end), done)).await?;
        self.shared.cache.lock().truncate(end);
        self.shared.state.lock().terms.retain(|first| first.index < end);
        let mut known = self.shared.last.lock();
        *known = (*known).min(last);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.shared.state.lock().purged = Some(upto.into());
        // A copy of the state may reach beyond the log: it goes on behind it.
        self.shared.cache.lock().skip_to(upto.index + 1);
        {
            let mut last = self.shared.last.lock();
            *last = (*last).max(Some(upto));
        }
        self.order(Order::Purge(upto.into()))
    }
}

/// Reads the log, for the library itself and for each follower.
pub(crate) struct Reader {
    shared: Arc<Shared>,
    /// Where the last read of the files ended; away while a read runs.
    files: Option<EntryReader>,
}

impl Reader {
    /// Entries from `start` to `end`, as many as fit, at least one.
    async fn some(&mut self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        let older = {
            let cache = self.shared.cache.lock();
            let end = end.min(cache.end());
            if start >= end {
                return Ok(Vec::new());
            }
            if start >= cache.first() {
                return Ok(cache.range(start, end, bytes_max));
            }
            end.min(cache.first())
        };
        // It may have left memory a moment ago and is written, or it is older.
        let qlog = self.shared.qlog.clone();
        let mut reader = self.files.take().unwrap_or_default();
        let read = blocking(move || {
            let (from, to) = (entry_index(start), entry_index(older));
            let found = qlog.entries(&mut reader, from, to, bytes_max);
            (reader, found)
        });
        let (reader, found) = read.await?;
        self.files = Some(reader);
        found.map_err(io::Error::other)?.into_iter().map(log_entry).collect()
    }
}

impl RaftLogReader<Types> for Reader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<LogEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let mut start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let purged = self.shared.state.lock().purged;
        start = start.max(purged.map_or(0, |purged| purged.index + 1));
        start = start.max(self.shared.begin.load(Ordering::Acquire));
        let mut entries = Vec::new();
        while start < end {
            let some = self.some(start, end, usize::MAX).await?;
            if some.is_empty() {
                break;
            }
            start += some.len() as u64;
            entries.extend(some);
        }
        Ok(entries)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        self.some(start, end, READ_BYTES_MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.state.lock().vote.map(Vote::from))
    }

    /// The last entry of each term in the range, from what was noted when terms began.
    async fn get_key_log_ids(&mut self, range: RangeInclusive<LogId>) -> io::Result<Vec<LogId>> {
        let (first, last) = (*range.start(), *range.end());
        let terms = self.shared.state.lock().terms.clone();
        let ends = terms.windows(2).filter_map(|pair| match pair {
            [ended, next] => next.index.checked_sub(1).map(|index| log_id(ended.term, index)),
            _ => None,
        });
        let inside = ends.filter(|end| end.index >= first.index && end.index < last.index);
        Ok(inside.chain([last]).collect())
    }
}

/// The entry as the logs hold it.
fn log_entry(stored: StoredEntry) -> io::Result<LogEntry> {
    let StoredEntry { index, term, bytes, messages, .. } = stored;
    let invalid = |reason: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("entry {index}: {reason}"))
    };
    let raft = raft_index(index).ok_or_else(|| invalid("it has no place".to_owned()))?;
    let payload = if super::files::is_own(&bytes) {
        own_payload(&bytes).map_err(invalid)?
    } else {
        let entry = Entry::decode(&bytes).map_err(|error| invalid(error.to_string()))?;
        Payload::Normal(Command(Arc::new(
            filled(entry, &messages).map_err(|e| invalid(e.to_string()))?,
        )))
    };
    Ok(LogEntry::new(log_id(term, raft), payload))
}

/// The entry with its messages, which stand in any order of logs.
fn filled(entry: Entry, messages: &[queen_qlog::StoredMessage]) -> Result<Entry, WireError> {
    let appends: Vec<_> = entry
        .effects
        .iter()
        .filter_map(|effect| match effect {
            queen_model::Effect::Append(append) => Some((append.id, append.base)),
            _ => None,
        })
        .collect();
    let by_place: std::collections::BTreeMap<_, _> =
        messages.iter().map(|message| ((message.partition, message.base), message)).collect();
    with_payloads(entry, |place| {
        let key = appends.get(place);
        let message = key
            .and_then(|key| by_place.get(key))
            .ok_or_else(|| WireError::Entry("an append of it has no message record".to_owned()))?;
        Ok((message.compressed, Bytes::clone(&message.payload)))
    })
}

#[cfg(test)]
mod tests;
