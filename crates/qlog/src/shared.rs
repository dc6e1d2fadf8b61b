//! The handle on all logs, and what its clones share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use queen_io::Disk;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId, QueueId, TxHash};
use queen_record::layout::Layout;

use crate::durable::DurablePoint;
use crate::error::{Fault, OpenError};
use crate::handles::Handles;
use crate::inventory::Inventory;
use crate::log::Log;
use crate::options::Options;
use crate::pool::SyncPool;
use crate::recover::Recovery;
use crate::stats::{Counters, Stats, add, value};
use crate::terms::Terms;

/// All logs of one directory. Clones share everything.
///
/// `append` and `sync` are called from one thread; everything else from any.
#[derive(Clone)]
pub struct Qlog {
    pub(crate) shared: Arc<Shared>,
}

/// One entry to write.
#[derive(Clone, Copy, Debug)]
pub struct EntryWrite<'a> {
    /// Its index, above all written before.
    pub index: EntryIndex,
    /// Raft term; 0 on the local replicator.
    pub term: u64,
    /// The entry's time.
    pub now: Micros,
    /// Its bytes without payloads; opaque here.
    pub bytes: &'a [u8],
    /// The logs it touches: ascending, unique, at least one.
    pub logs: &'a [LogId],
    /// Its messages in effect order; each one's log is among `logs`.
    pub messages: &'a [MessageWrite<'a>],
}

/// The messages of one append.
#[derive(Clone, Copy, Debug)]
pub struct MessageWrite<'a> {
    /// The partition's log.
    pub log: LogId,
    /// The partition.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Time of creation; ascends within a partition.
    pub created: Micros,
    /// One per message, at least one.
    pub hashes: &'a [TxHash],
    /// The frames.
    pub payload: &'a [u8],
    /// Whether `payload` is a zstd frame.
    pub compressed: bool,
}

pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    pub(crate) logs: RwLock<BTreeMap<LogId, Arc<Log>>>,
    /// Logs with unsynced records, each with its first unsynced entry.
    pub(crate) dirty: Mutex<BTreeMap<LogId, EntryIndex>>,
    /// Highest index written.
    pub(crate) appended: AtomicU64,
    /// Terms of the entries up to it, as far as they are known.
    pub(crate) terms: Mutex<Terms>,
    /// Counts the beginnings and ends of truncations: odd while there is one.
    pub(crate) truncations: AtomicU64,
    /// Held while entries are truncated. A reader takes it only when it met an error, to tell what is going from damage.
    pub(crate) truncating: Mutex<()>,
    /// The first failure; while there is one, nothing is written.
    pub(crate) poison: Mutex<Option<String>>,
    pub(crate) recovered: AtomicBool,
    pub(crate) handles: Arc<Handles>,
    pub(crate) pool: SyncPool,
    /// Counts logs and files that took the place of others.
    pub(crate) epochs: AtomicU64,
    /// The index of the last durable point that the store has.
    pub(crate) written: AtomicU64,
    /// Entries above this one are kept, whatever point is written.
    pub(crate) floor: AtomicU64,
    /// Whether something is planned that no written point says.
    pub(crate) unrecorded: AtomicBool,
    /// What a start without a store goes by.
    pub(crate) inventory: Mutex<Inventory>,
    pub(crate) counters: Counters,
}

impl Qlog {
    /// Opens the directory, or makes it, and reads every log up to its end.
    ///
    /// Shape: nothing may be appended before the returned [`Recovery`] has run to its end. `durable` is the point
    /// the store recorded last, or the default for a store without one.
    ///
    /// # Errors
    /// [`OpenError`]: refuse to start; the directory needs a person. Leftovers of unfinished work are removed,
    /// and no record.
    /// Source: seed `000_63b83253d8273205.txt`, crash recovery.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        durable: &DurablePoint,
    ) -> Result<(Self, Recovery), OpenError> {
        crate::open::open(disk, options, durable)
    }

    /// The log of a partition, or of a queue's own effects.
    pub fn log_of(&self, queue: QueueId, partition: Option<PartitionId>) -> LogId {
        self.shared.layout.log_of(queue, partition)
    }

    /// Lanes and shards the directory was made with.
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// What every log holds as of `index`, or as of the highest synced index if that is lower.
    ///
    /// Shape: the returned point's `index` is the one it describes. Successive calls ask for rising indexes; what an
    /// earlier call has passed is forgotten.
    pub fn durable_point(&self, index: EntryIndex) -> DurablePoint {
        let index = index.min(self.synced_index());
        // Before the plans are looked at: one that is made meanwhile asks for another point.
        self.shared.unrecorded.store(false, Ordering::SeqCst);
        let layout = (self.shared.layout.lanes(), self.shared.layout.shards().number());
        let logs = self
            .shared
            .all_logs()
            .iter()
            .filter_map(|log| log.tail.lock().as_of(log.id, index))
            .collect();
        DurablePoint { index, layout: Some(layout), logs }
    }

    /// The highest index up to which every entry is synced in all its logs.
    pub fn synced_index(&self) -> EntryIndex {
        let dirty = self.shared.dirty.lock();
        // A group that is being written may have synced some of its logs already.
        let appended = EntryIndex(self.shared.appended.load(Ordering::SeqCst));
        let first = dirty.values().min();
        first.map_or(appended, |first| EntryIndex(first.0.saturating_sub(1)).min(appended))
    }

    /// The highest entry that was appended or recovered, and its term.
    ///
    /// Shape: index 0 while there was none. The term is `None` while the last entry is the durable point's own, after a
    /// start or a truncation: the store knows it then, and [`Qlog::entries`] can read it.
    pub fn last_entry(&self) -> (EntryIndex, Option<u64>) {
        let terms = self.shared.terms.lock();
        let last = EntryIndex(self.shared.appended.load(Ordering::SeqCst));
        (last, terms.of(last))
    }

    /// Whether an earlier write or sync failed.
    pub fn is_poisoned(&self) -> bool {
        self.shared.poison.lock().is_some()
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let mut stats = Stats {
            syncs: value(&shared.counters.syncs),
            dir_syncs: value(&shared.counters.dir_syncs),
            appended_bytes: value(&shared.counters.appended_bytes),
            prealloc_bytes: value(&shared.counters.prealloc_bytes),
            groups: value(&shared.counters.groups),
            logs_touched: value(&shared.counters.logs_touched),
            rolls: value(&shared.counters.rolls),
            records_read: value(&shared.counters.records_read),
            ..Stats::default()
        };
        for log in shared.all_logs() {
            let tail = log.tail.lock();
            stats.logs += 1;
            stats.files += tail.sealed.len() as u64 + u64::from(tail.number > 0);
            stats.bytes += tail.bytes();
        }
        stats
    }
}

impl Shared {
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn log(&self, log: LogId) -> Option<Arc<Log>> {
        self.logs.read().get(&log).cloned()
    }

    pub(crate) fn all_logs(&self) -> Vec<Arc<Log>> {
        self.logs.read().values().cloned().collect()
    }

    /// Fails once something has failed.
    pub(crate) fn check_poison(&self) -> Result<(), Fault> {
        match &*self.poison.lock() {
            None => Ok(()),
            Some(cause) => Err(Fault::Poisoned { cause: cause.clone() }),
        }
    }

    /// Keeps the first failure and hands it on.
    pub(crate) fn poisoned(&self, fault: Fault) -> Fault {
        self.poison.lock().get_or_insert_with(|| fault.to_string());
        fault
    }

    pub(crate) fn sync_dir(&self, dir: &Path) -> Result<(), Fault> {
        add(&self.counters.dir_syncs, 1);
        self.disk.sync_dir(dir).map_err(Fault::io(dir, "sync"))
    }

    pub(crate) fn sync_file(
        &self,
        file: &dyn queen_io::DiskFile,
        path: &Path,
    ) -> Result<(), Fault> {
        add(&self.counters.syncs, 1);
        file.sync_data().map_err(Fault::io(path, "sync"))
    }
}
