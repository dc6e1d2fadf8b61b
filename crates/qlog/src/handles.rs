//! A bounded cache of open files, for readers and the writer alike.
//!
//! A file with unsynced records is pinned: it stays open until the sync that reports on it. The writer syncs before
//! more than the limit are pinned, so the limit holds for all of them. When the process has no descriptor left all
//! the same, [`SparingDisk`] closes what is not pinned and asks once more.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use queen_io::{DirEntry, Disk, DiskFile, OpenMode};
use queen_record::ids::LogId;

use crate::names::Ext;

/// Names one file of one log. The epoch tells a file from one that had its name before.
pub(crate) type Key = (LogId, u64, Ext, u64);

/// The process has no descriptor left.
const EMFILE: i32 = 24;
/// The system has none.
const ENFILE: i32 = 23;

struct Slot {
    file: Arc<dyn DiskFile>,
    /// Place in the order of use; `None` while pinned.
    used: Option<u64>,
    writable: bool,
}

#[derive(Default)]
struct Lru {
    files: BTreeMap<Key, Slot>,
    /// The files that may be closed, least recently used first.
    order: BTreeMap<u64, Key>,
    clock: u64,
}

/// Least recently used handles go first; a handle in use stays open until its user is done.
pub(crate) struct Handles {
    limit: usize,
    lru: Mutex<Lru>,
}

impl Lru {
    /// Makes an unpinned file the most recently used one.
    fn touch(&mut self, key: Key) -> Option<Arc<dyn DiskFile>> {
        self.clock += 1;
        let slot = self.files.get_mut(&key)?;
        if let Some(used) = &mut slot.used {
            self.order.remove(used);
            *used = self.clock;
            self.order.insert(self.clock, key);
        }
        Some(slot.file.clone())
    }

    /// Takes out what is above the limit; one file that is not pinned stays, for its next user.
    fn evict(&mut self, limit: usize) -> Vec<Arc<dyn DiskFile>> {
        let mut evicted = Vec::new();
        while self.files.len() > limit && self.order.len() > 1 {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            evicted.extend(self.files.remove(&oldest).map(|slot| slot.file));
        }
        evicted
    }
}

// Closing may wait for the file system, so it always happens after the lock is gone.
impl Handles {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), lru: Mutex::new(Lru::default()) }
    }

    /// Most files that are open at a time.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The handle if it is open already.
    pub(crate) fn cached(&self, key: Key) -> Option<Arc<dyn DiskFile>> {
        self.lru.lock().touch(key)
    }

    /// The handle, opened if need be; the lock is not held while opening.
    pub(crate) fn open(
        &self,
        disk: &dyn Disk,
        key: Key,
        path: &Path,
    ) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.cached(key) {
            return Ok(file);
        }
        let file = disk.open(path, OpenMode::Read)?;
        Ok(self.insert(key, file, false))
    }

    /// The same, open for writing too.
    pub(crate) fn open_write(
        &self,
        disk: &dyn Disk,
        key: Key,
        path: &Path,
    ) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut lru = self.lru.lock();
            if lru.files.get(&key).is_some_and(|slot| slot.writable)
                && let Some(file) = lru.touch(key)
            {
                return Ok(file);
            }
        }
        let file = disk.open(path, OpenMode::Write)?;
        Ok(self.insert(key, file, true))
    }

    /// Adds a file that was just opened. One that is writable is not replaced by one that is not.
    pub(crate) fn insert(
        &self,
        key: Key,
        file: Arc<dyn DiskFile>,
        writable: bool,
    ) -> Arc<dyn DiskFile> {
        let mut lru = self.lru.lock();
        if lru.files.get(&key).is_some_and(|slot| slot.writable && !writable)
            && let Some(other) = lru.touch(key)
        {
            return other;
        }
        lru.clock += 1;
        let used = lru.clock;
        let old = lru.files.insert(key, Slot { file: file.clone(), used: Some(used), writable });
        if let Some(used) = old.as_ref().and_then(|slot| slot.used) {
            lru.order.remove(&used);
        }
        lru.order.insert(used, key);
        let evicted = lru.evict(self.limit);
        drop(lru);
        drop((old, evicted));
        file
    }

    /// Adds the file as one with unsynced records: it stays open until it is unpinned.
    pub(crate) fn pin(&self, key: Key, file: &Arc<dyn DiskFile>) {
        let mut lru = self.lru.lock();
        let slot = Slot { file: file.clone(), used: None, writable: true };
        let old = lru.files.insert(key, slot);
        if let Some(used) = old.as_ref().and_then(|slot| slot.used) {
            lru.order.remove(&used);
        }
        let evicted = lru.evict(self.limit);
        drop(lru);
        drop((old, evicted));
    }

    /// The file has been synced and may be closed.
    pub(crate) fn unpin(&self, key: Key) {
        let mut lru = self.lru.lock();
        lru.clock += 1;
        let used = lru.clock;
        let pinned = lru.files.get_mut(&key).filter(|slot| slot.used.is_none());
        let Some(slot) = pinned else { return };
        slot.used = Some(used);
        lru.order.insert(used, key);
        let evicted = lru.evict(self.limit);
        drop(lru);
        drop(evicted);
    }

    /// Closes a file that nobody will ask for again.
    pub(crate) fn forget(&self, key: Key) {
        let old = {
            let mut lru = self.lru.lock();
            let old = lru.files.remove(&key);
            if let Some(used) = old.as_ref().and_then(|slot| slot.used) {
                lru.order.remove(&used);
            }
            old
        };
        drop(old);
    }

    /// Closes everything that is not pinned.
    fn close_idle(&self) {
        let mut idle = Vec::new();
        {
            let mut lru = self.lru.lock();
            for key in std::mem::take(&mut lru.order).into_values() {
                idle.extend(lru.files.remove(&key));
            }
        }
        drop(idle);
    }
}

/// A disk that closes cached files when there is no descriptor left for a call, and repeats the call once.
///
/// The system looks for the descriptor first: a call that failed so has done nothing.
pub(crate) struct SparingDisk {
    disk: Arc<dyn Disk>,
    handles: Arc<Handles>,
}

impl SparingDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, handles: Arc<Handles>) -> Self {
        Self { disk, handles }
    }

    fn sparing<T>(&self, call: impl Fn(&dyn Disk) -> io::Result<T>) -> io::Result<T> {
        match call(&*self.disk) {
            Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => {
                self.handles.close_idle();
                call(&*self.disk)
            }
            other => other,
        }
    }
}

impl Disk for SparingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.sparing(|disk| disk.open(path, mode))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.sparing(|disk| disk.list(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.sparing(|disk| disk.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
}
