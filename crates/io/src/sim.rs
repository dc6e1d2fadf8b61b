//! A disk in memory that forgets what was not synced, fails when told to, and keeps a journal of its calls.
//!
//! Every call that changes something (open that creates or cuts, write, change of length, sync, rename, remove,
//! create a directory, sync a directory) has a number, from 1. [`SimDisk::crash`] gives the disk that a power
//! cut after that call leaves, under a [`Choice`]; [`Explorer`] walks over all calls and all choices. What a
//! cut may leave is written in `pending.rs`.
//!
//! Faults: EIO, ENOSPC and EINTR change nothing; a short write has written a prefix. After a failed `sync_data`
//! a later one says yes without having written what the first left out, as Linux does.

mod content;
mod explore;
mod pending;
mod random;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::disk::{DirEntry, Disk, DiskFile, OpenMode};
use crate::site::current_site;

pub use explore::{Explorer, Image};
pub use pending::Choice;

use content::Content;
use pending::{Op, Pending};
use tree::{NameChange, Node, Tree};

/// How one call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// The device reports an error.
    Eio,
    /// The disk is full.
    Enospc,
    /// A signal came first. The real disk repeats such a call; a caller must stand it all the same.
    Eintr,
    /// A write puts half of its bytes down, then the disk is full. Any other call fails with ENOSPC.
    ShortWrite,
}

impl SimFault {
    fn error(self) -> io::Error {
        match self {
            Self::Eio => Errno::IO.into(),
            Self::Enospc | Self::ShortWrite => Errno::NOSPC.into(),
            Self::Eintr => Errno::INTR.into(),
        }
    }
}

/// The simulated disk. Clones are handles of one disk.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    live: Tree,
    next_node: Node,
    pending: Pending,
    /// The disk before the first call, and the calls.
    base: Tree,
    journal: Option<Vec<Op>>,
    calls: u64,
    faults: BTreeMap<u64, SimFault>,
    sites: BTreeSet<String>,
    dropped_sites: BTreeSet<String>,
    cold: bool,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk with a root directory `/`, that keeps a journal.
    pub fn new() -> Self {
        Self::from_tree(Tree::new(), 1)
    }

    fn from_tree(tree: Tree, next_node: Node) -> Self {
        let inner = Inner {
            base: tree.clone(),
            pending: Pending::new(tree.clone()),
            live: tree,
            next_node,
            journal: Some(Vec::new()),
            calls: 0,
            faults: BTreeMap::new(),
            sites: BTreeSet::new(),
            dropped_sites: BTreeSet::new(),
            cold: false,
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Number of numbered calls so far, failed ones included.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// The disk after a power cut behind call `at_call` (0: before the first). A fresh disk: nothing is pending
    /// on it, its journal is empty, this disk and its open files stay as they are. Without a journal, and behind
    /// the last call, the cut is now.
    #[must_use]
    pub fn crash(&self, at_call: u64, choice: &Choice) -> Self {
        let inner = self.lock();
        let tree = match &inner.journal {
            Some(journal) if at_call < inner.calls => {
                let mut pending = Pending::new(inner.base.clone());
                let count = usize::try_from(at_call).unwrap_or(usize::MAX);
                journal.iter().take(count).for_each(|op| pending.step(op));
                pending.image(choice)
            }
            _ => inner.pending.image(choice),
        };
        Self::from_tree(tree, inner.next_node)
    }

    /// The disk after a power cut now.
    #[must_use]
    pub fn crash_now(&self, choice: &Choice) -> Self {
        self.crash(u64::MAX, choice)
    }

    /// Every choice for a power cut now. `seed` draws the random ones.
    pub fn choices(&self, seed: u64) -> Vec<Choice> {
        self.lock().pending.choices(seed)
    }

    /// Makes everything durable and starts the journal and the numbers of calls anew.
    pub fn settle(&self) {
        let mut inner = self.lock();
        inner.settle();
    }

    /// Stops the journal: a long simulation that only cuts the power now needs none.
    pub fn forget_journal(&self) {
        self.lock().journal = None;
    }

    /// Makes the call of this number fail, once.
    pub fn fail_call(&self, call: u64, fault: SimFault) {
        self.lock().faults.insert(call, fault);
    }

    /// Makes every sync of this site (as in `sync_sites`) do nothing and say yes. For tests of the tests: each
    /// site switched off must fail one.
    pub fn drop_sync(&self, site: &str) {
        self.lock().dropped_sites.insert(site.to_owned());
    }

    /// The sites that have synced, sorted: `sync_data` or `sync_dir`, the path with every run of digits as `N`
    /// and, where [`crate::site`] named one, ` #name`. Example: `sync_data qlog/qN/rN.qlog #roll`.
    pub fn sync_sites(&self) -> Vec<String> {
        self.lock().sites.iter().cloned().collect()
    }

    /// Whether reads that must not wait find nothing in memory.
    pub fn set_cold(&self, cold: bool) {
        self.lock().cold = cold;
    }

    /// All files with their lengths, sorted by path.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let inner = self.lock();
        let len = |node: Node| inner.live.file(node).map_or(0, Content::len);
        inner.live.walk().into_iter().map(|(path, node)| (path, len(node))).collect()
    }

    /// A file's bytes.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let inner = self.lock();
        let node = inner.live.find(path).ok()?;
        inner.live.file(node).map(Content::to_vec)
    }

    /// Puts a file with these bytes in place, durably and outside the journal, with the directories above it.
    /// Settles the disk first.
    pub fn set_contents(&self, path: &Path, bytes: &[u8]) {
        let mut inner = self.lock();
        inner.settle();
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for dir in above {
            inner.link_missing(dir, true);
        }
        inner.link_missing(path, false);
        if let Ok(node) = inner.live.find(path) {
            *inner.live.file_mut(node) = Content::from_bytes(bytes);
        }
        inner.restart();
    }

    /// Takes a file or a directory with all in it away, durably and outside the journal. Settles the disk first.
    pub fn remove(&self, path: &Path) {
        let mut inner = self.lock();
        inner.settle();
        if let (Ok((dir, name)), Ok(node)) = (inner.live.place(path), inner.live.find(path)) {
            inner.live.apply(&NameChange::Unlink { dir, name, node });
        }
        inner.restart();
    }

    /// A hash over all names and bytes: equal disks have equal ones.
    pub fn fingerprint(&self) -> u128 {
        self.lock().live.fingerprint()
    }

    /// An independent disk with the same files, all durable.
    #[must_use]
    pub fn copy(&self) -> Self {
        let inner = self.lock();
        Self::from_tree(inner.live.pruned(), inner.next_node)
    }

    /// An independent disk in the same state, what is not synced included, without a journal: what a process that was killed
    /// leaves to the next one.
    #[must_use]
    pub fn fork(&self) -> Self {
        let inner = self.lock();
        let fork = Inner {
            live: inner.live.clone(),
            next_node: inner.next_node,
            pending: inner.pending.clone(),
            base: Tree::new(),
            journal: None,
            calls: inner.calls,
            faults: BTreeMap::new(),
            sites: BTreeSet::new(),
            dropped_sites: inner.dropped_sites.clone(),
            cold: inner.cold,
        };
        Self { inner: Arc::new(Mutex::new(fork)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked in another thread leaves a state that is as good as any.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn settle(&mut self) {
        self.pending.settle();
        self.restart();
    }

    /// Takes the live tree as the durable one, with no call made.
    fn restart(&mut self) {
        self.base = self.live.clone();
        self.pending = Pending::new(self.live.clone());
        self.calls = 0;
        if let Some(journal) = &mut self.journal {
            journal.clear();
        }
    }

    /// Numbers a call; an armed fault comes back for the caller to act on.
    fn number(&mut self) -> Option<SimFault> {
        self.calls += 1;
        self.faults.remove(&self.calls)
    }

    fn record(&mut self, op: Op) {
        self.pending.step(&op);
        if let Some(journal) = &mut self.journal {
            journal.push(op);
        }
    }

    /// Numbers a call that does `op` in whole or, with a fault, not at all.
    fn run(&mut self, op: Op) -> io::Result<()> {
        if let Some(fault) = self.number() {
            self.record(Op::Nothing);
            return Err(fault.error());
        }
        match &op {
            Op::Name(change) => self.live.apply(change),
            Op::Write { node, offset, bytes } => self.live.file_mut(*node).write(*offset, bytes),
            Op::SetLen { node, len } => self.live.file_mut(*node).set_len(*len),
            _ => {}
        }
        self.record(op);
        Ok(())
    }

    fn write(&mut self, node: Node, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.faults.get(&(self.calls + 1)) != Some(&SimFault::ShortWrite) {
            return self.run(Op::Write { node, offset, bytes: bytes.into() });
        }
        self.faults.remove(&(self.calls + 1));
        let (prefix, _) = bytes.split_at(bytes.len() / 2);
        self.run(Op::Write { node, offset, bytes: prefix.into() })?;
        Err(SimFault::ShortWrite.error())
    }

    /// A sync of the named kind. A failed one of data leaves what it did not write to no later sync.
    fn sync(&mut self, kind: &str, path: &Path, op: Op) -> io::Result<()> {
        let site = site_name(kind, path);
        let dropped = self.dropped_sites.contains(&site);
        self.sites.insert(site);
        if let Some(fault) = self.number() {
            self.record(match op {
                Op::SyncData { node } if fault != SimFault::Eintr => Op::SyncDataFailed { node },
                _ => Op::Nothing,
            });
            return Err(fault.error());
        }
        self.record(if dropped { Op::Nothing } else { op });
        Ok(())
    }

    /// A call that fails by its arguments has a number too, so that numbers do not depend on results.
    fn refuse<T>(&mut self, error: impl Into<io::Error>) -> io::Result<T> {
        self.number();
        self.record(Op::Nothing);
        Err(error.into())
    }

    fn create(&mut self, path: &Path, is_dir: bool) -> io::Result<Node> {
        let (dir, name) = match self.live.place(path) {
            Ok(place) => place,
            Err(error) => return self.refuse(error),
        };
        let node = self.next_node;
        self.run(Op::Name(NameChange::Link { dir, name, node, is_dir }))?;
        self.next_node += 1;
        Ok(node)
    }

    fn link_missing(&mut self, path: &Path, is_dir: bool) {
        if self.live.find(path).is_err()
            && let Ok((dir, name)) = self.live.place(path)
        {
            let node = self.next_node;
            self.next_node += 1;
            self.live.apply(&NameChange::Link { dir, name, node, is_dir });
        }
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let found = (self.live.find(from), self.live.place(to), self.live.find(to));
        let (node, (dir, name)) = match found {
            (Ok(_), Ok(_), Ok(_)) => return self.refuse(Errno::EXIST),
            (Ok(node), Ok(_), Err(_)) if self.live.is_dir(node) => {
                return self.refuse(Errno::PERM);
            }
            (Ok(node), Ok(place), Err(_)) => (node, place),
            (Err(error), _, _) | (_, Err(error), _) => return self.refuse(error),
        };
        self.run(Op::Name(NameChange::Link { dir, name, node, is_dir: false }))
    }

    fn unlink(&mut self, path: &Path, is_dir: bool) -> io::Result<()> {
        let (dir, name, node) = match self.live.place(path).and_then(|(dir, name)| {
            let node = self.live.find(path)?;
            Ok((dir, name, node))
        }) {
            Ok(found) => found,
            Err(error) => return self.refuse(error),
        };
        match self.live.names(node) {
            Some(_) if !is_dir => return self.refuse(Errno::ISDIR),
            Some(names) if !names.is_empty() => return self.refuse(Errno::NOTEMPTY),
            None if is_dir => return self.refuse(Errno::NOTDIR),
            _ => {}
        }
        self.run(Op::Name(NameChange::Unlink { dir, name, node }))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = match self.live.find(from) {
            Ok(node) => node,
            Err(error) => return self.refuse(error),
        };
        let (from, target, to) =
            match (self.live.place(from), self.live.find(to), self.live.place(to)) {
                (Ok(from), target, Ok(to)) => (from, target.ok(), to),
                (Err(error), _, _) | (_, _, Err(error)) => return self.refuse(error),
            };
        if target == Some(node) {
            return self.run(Op::Nothing);
        }
        if let Some(target) = target {
            let empty = self.live.names(target).is_none_or(BTreeMap::is_empty);
            match (self.live.is_dir(node), self.live.is_dir(target)) {
                (true, false) => return self.refuse(Errno::NOTDIR),
                (false, true) => return self.refuse(Errno::ISDIR),
                (true, true) if !empty => return self.refuse(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.run(Op::Name(NameChange::Rename { from, to, node }))
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.lock();
        let found = inner.live.find(path);
        let node = match (found, mode) {
            (Ok(node), OpenMode::Read) if inner.live.is_dir(node) => node,
            (Ok(node), OpenMode::Write | OpenMode::Truncate) if inner.live.is_dir(node) => {
                return Err(Errno::ISDIR.into());
            }
            (Ok(node), OpenMode::Read | OpenMode::Write) => node,
            (Ok(_), OpenMode::CreateNew) => return inner.refuse(Errno::EXIST),
            (Ok(node), OpenMode::Truncate) => {
                inner.run(Op::SetLen { node, len: 0 })?;
                node
            }
            (Err(error), OpenMode::Read | OpenMode::Write) => return Err(error),
            (Err(_), OpenMode::CreateNew | OpenMode::Truncate) => inner.create(path, false)?,
        };
        drop(inner);
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimFile { disk: self.clone(), node, path: path.to_owned(), writable }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        match inner.live.find(path) {
            Ok(node) if inner.live.is_dir(node) => inner.run(Op::Nothing),
            Ok(_) => inner.refuse(Errno::EXIST),
            Err(_) => inner.create(path, true).map(drop),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let inner = self.lock();
        let names = inner.live.names(inner.live.find(path)?).ok_or(Errno::NOTDIR)?;
        let entry = |(name, node): (&String, &Node)| DirEntry {
            name: name.clone(),
            is_dir: inner.live.is_dir(*node),
        };
        Ok(names.iter().map(entry).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.lock().rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.lock().link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.lock().unlink(path, false)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.lock().unlink(path, true)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        match inner.live.find(path) {
            Ok(dir) if inner.live.is_dir(dir) => inner.sync("sync_dir", path, Op::SyncDir { dir }),
            Ok(_) => inner.refuse(Errno::NOTDIR),
            Err(error) => inner.refuse(error),
        }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let inner = self.lock();
        Ok(inner.live.find(path).is_ok())
    }
}

struct SimFile {
    disk: SimDisk,
    node: Node,
    /// As opened; a rename does not change it.
    path: PathBuf,
    writable: bool,
}

impl SimFile {
    fn writer(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let mut inner = self.disk.lock();
        if self.writable { Ok(inner) } else { inner.refuse(Errno::BADF) }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = self.disk.lock();
        let content = inner.live.file(self.node).ok_or(Errno::ISDIR)?;
        Ok(content.read(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.disk.lock().cold { Ok(None) } else { self.read_at(buf, offset).map(Some) }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.writer()?.write(self.node, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writer()?.run(Op::SetLen { node: self.node, len })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.lock().sync("sync_data", &self.path, Op::SyncData { node: self.node })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().live.file(self.node).map_or(0, Content::len))
    }

    fn forget_range(&self, _offset: u64, _len: u64) {}
}

fn site_name(kind: &str, path: &Path) -> String {
    let mut name = format!("{kind} ");
    let path = path.to_string_lossy();
    let path = path.strip_prefix('/').filter(|path| !path.is_empty()).unwrap_or(&path);
    let mut in_digits = false;
    for letter in path.chars() {
        let digit = letter.is_ascii_digit();
        match (digit, in_digits) {
            (true, true) => {}
            (true, false) => name.push('N'),
            (false, _) => name.push(letter),
        }
        in_digits = digit;
    }
    if let Some(site) = current_site() {
        name.push_str(" #");
        name.push_str(site);
    }
    name
}
