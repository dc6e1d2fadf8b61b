//! A bounded cache of files opened for reading.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use queen_io::{Disk, DiskFile, OpenMode};
use queen_record::ids::LogId;

use crate::names::Ext;

type Key = (LogId, u64, Ext);

#[derive(Default)]
struct Lru {
    files: BTreeMap<Key, (u64, Arc<dyn DiskFile>)>,
    order: BTreeMap<u64, Key>,
    clock: u64,
}

/// Least recently used handles go first; a handle in use stays open until its user is done.
pub(crate) struct Handles {
    limit: usize,
    lru: Mutex<Lru>,
}

impl Handles {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), lru: Mutex::new(Lru::default()) }
    }

    /// The handle if it is open already.
    pub(crate) fn cached(&self, key: Key) -> Option<Arc<dyn DiskFile>> {
        let mut lru = self.lru.lock();
        let lru = &mut *lru;
        lru.clock += 1;
        let (used, file) = lru.files.get_mut(&key)?;
        lru.order.remove(used);
        *used = lru.clock;
        lru.order.insert(lru.clock, key);
        Some(file.clone())
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
        self.insert(key, file.clone());
        Ok(file)
    }

    fn insert(&self, key: Key, file: Arc<dyn DiskFile>) {
        let mut evicted = Vec::new();
        {
            let mut lru = self.lru.lock();
            let lru = &mut *lru;
            lru.clock += 1;
            if let Some((used, old)) = lru.files.insert(key, (lru.clock, file)) {
                lru.order.remove(&used);
                evicted.push(old);
            }
            lru.order.insert(lru.clock, key);
            while lru.files.len() > self.limit {
                let Some((_, oldest)) = lru.order.pop_first() else { break };
                evicted.extend(lru.files.remove(&oldest).map(|(_, file)| file));
            }
        }
        // Closing may wait for the file system, so it happens after the lock is gone.
        drop(evicted);
    }
}
