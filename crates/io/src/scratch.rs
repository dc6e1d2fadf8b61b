//! A disk over another one: reads fall through, everything that is changed stays in memory.
//!
//! It shows what a program would do to a directory without doing it: the start of a node is run on it, and
//! [`ScratchDisk::changes`] says what the start would have written, cut and removed. The disk below is only ever asked
//! to list and to open for reading.
//!
//! Only the tree below one root is covered; outside of it there is nothing. Memory: one entry per name of every
//! directory that was looked into, and every block of 4 KiB whose bytes differ from those below. Writing again what is
//! there already costs nothing.

mod content;

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::disk::{DirEntry, Disk, DiskFile, OpenMode};
use content::{Handle, ScratchFile};

/// A disk that keeps its changes in memory.
#[derive(Clone)]
pub struct ScratchDisk {
    below: Arc<dyn Disk>,
    root: PathBuf,
    tree: Arc<Mutex<Dir>>,
    read: Arc<AtomicU64>,
}

/// One difference between a scratch disk and the disk below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// What became of it.
    pub kind: ChangeKind,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// There was none of this name.
    Made,
    /// Another file has its name.
    Replaced,
    /// Its name is gone.
    Removed,
    /// It ends earlier; what is left is as it was.
    Cut {
        /// Its length.
        to: u64,
        /// The length below.
        from: u64,
    },
    /// Bytes of it differ.
    Written {
        /// The first that does.
        at: u64,
    },
}

/// A directory: its names are taken from below when it is first looked into.
#[derive(Default)]
struct Dir {
    below: Option<PathBuf>,
    names: Option<BTreeMap<String, Node>>,
}

enum Node {
    File(Arc<ScratchFile>),
    Dir(Dir),
}

impl Node {
    fn is_dir(&self) -> bool {
        matches!(self, Self::Dir(_))
    }
}

impl Dir {
    fn load(&mut self, disk: &dyn Disk) -> io::Result<&mut BTreeMap<String, Node>> {
        if self.names.is_none() {
            let mut names = BTreeMap::new();
            if let Some(path) = &self.below {
                for DirEntry { name, is_dir } in disk.list(path)? {
                    let below = Some(path.join(&name));
                    let node = if is_dir {
                        Node::Dir(Self { below, names: None })
                    } else {
                        Node::File(Arc::new(ScratchFile::new(below)))
                    };
                    names.insert(name, node);
                }
            }
            self.names = Some(names);
        }
        Ok(self.names.get_or_insert_default())
    }

    fn check_empty(&mut self, disk: &dyn Disk) -> io::Result<()> {
        if self.load(disk)?.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
    }

    /// The names of the directory that `path` leads to.
    fn names(
        &mut self,
        disk: &dyn Disk,
        path: &[String],
    ) -> io::Result<&mut BTreeMap<String, Node>> {
        let names = self.load(disk)?;
        let Some((first, rest)) = path.split_first() else { return Ok(names) };
        match names.get_mut(first) {
            Some(Node::Dir(dir)) => dir.names(disk, rest),
            Some(Node::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }
}

impl ScratchDisk {
    /// Covers the tree below `root`.
    pub fn new(below: Arc<dyn Disk>, root: &Path) -> Self {
        let tree = Dir { below: Some(root.to_path_buf()), names: None };
        let (root, read) = (root.to_path_buf(), Arc::default());
        Self { below, root, tree: Arc::new(Mutex::new(tree)), read }
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Counts the bytes read into another counter, which may be shared.
    #[must_use]
    pub fn counting(self, read: Arc<AtomicU64>) -> Self {
        Self { read, ..self }
    }

    /// What differs from the disk below, by path. Directories that were never looked into have no difference.
    ///
    /// # Errors
    /// When the disk below cannot be read.
    pub fn changes(&self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let tree = self.lock();
        self.compare(&tree, &self.root, &mut changes)?;
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(changes)
    }

    fn compare(&self, dir: &Dir, path: &Path, changes: &mut Vec<Change>) -> io::Result<()> {
        let Some(names) = &dir.names else { return Ok(()) };
        let was = match self.below.list(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        for entry in was.iter().filter(|entry| !names.contains_key(&entry.name)) {
            self.all_removed(&path.join(&entry.name), entry.is_dir, changes)?;
        }
        for (name, node) in names {
            let path = path.join(name);
            let file = match node {
                Node::Dir(dir) => {
                    self.compare(dir, &path, changes)?;
                    continue;
                }
                Node::File(file) => file,
            };
            let existed = was.iter().any(|entry| entry.name == *name);
            let kind = if file.below() == Some(&*path) {
                file.difference(&*self.below)?
            } else {
                Some(if existed { ChangeKind::Replaced } else { ChangeKind::Made })
            };
            changes.extend(kind.map(|kind| Change { path, kind }));
        }
        Ok(())
    }

    fn all_removed(&self, path: &Path, is_dir: bool, changes: &mut Vec<Change>) -> io::Result<()> {
        if !is_dir {
            changes.push(Change { path: path.to_path_buf(), kind: ChangeKind::Removed });
            return Ok(());
        }
        for entry in self.below.list(path)? {
            self.all_removed(&path.join(&entry.name), entry.is_dir, changes)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Dir> {
        // Nothing in here panics half way through a change.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names on the way from the root.
    fn parts(&self, path: &Path) -> io::Result<Vec<String>> {
        let inside = path.strip_prefix(&self.root).map_err(|_| Errno::NOENT)?;
        let mut parts = Vec::new();
        for part in inside.components() {
            match part {
                Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
                Component::CurDir => {}
                _ => return Err(Errno::INVAL.into()),
            }
        }
        Ok(parts)
    }

    /// Calls `f` with the names of the directory that holds `path`, and its name there.
    fn in_parent<T>(
        &self,
        path: &Path,
        f: impl FnOnce(&mut BTreeMap<String, Node>, String) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut parts = self.parts(path)?;
        let name = parts.pop().ok_or(Errno::INVAL)?;
        let mut tree = self.lock();
        f(tree.names(&*self.below, &parts)?, name)
    }

    fn handle(&self, file: &Arc<ScratchFile>, writable: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Handle::open(file, &*self.below, writable, self.read.clone())?))
    }
}

impl Disk for ScratchDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let found = self.in_parent(path, |names, name| match names.get(&name) {
            Some(Node::Dir(_)) => Err(Errno::ISDIR.into()),
            Some(Node::File(_)) if mode == OpenMode::CreateNew => Err(Errno::EXIST.into()),
            Some(Node::File(file)) => Ok(Arc::clone(file)),
            None if matches!(mode, OpenMode::Read | OpenMode::Write) => Err(Errno::NOENT.into()),
            None => {
                let file = Arc::new(ScratchFile::new(None));
                names.insert(name, Node::File(Arc::clone(&file)));
                Ok(file)
            }
        });
        let handle = self.handle(&found?, mode != OpenMode::Read)?;
        if mode == OpenMode::Truncate {
            handle.set_len(0)?;
        }
        Ok(handle)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        if self.parts(path)?.is_empty() {
            return self.lock().load(&*self.below).map(drop);
        }
        self.in_parent(path, |names, name| match names.get(&name) {
            Some(Node::Dir(_)) => Ok(()),
            Some(Node::File(_)) => Err(Errno::EXIST.into()),
            None => {
                names.insert(name, Node::Dir(Dir::default()));
                Ok(())
            }
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let parts = self.parts(path)?;
        let mut tree = self.lock();
        let names = tree.names(&*self.below, &parts)?;
        let entry =
            |(name, node): (&String, &Node)| DirEntry { name: name.clone(), is_dir: node.is_dir() };
        Ok(names.iter().map(entry).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_parts, to_parts) = (self.parts(from)?, self.parts(to)?);
        if from_parts == to_parts {
            return self.in_parent(from, |names, name| {
                if names.contains_key(&name) { Ok(()) } else { Err(Errno::NOENT.into()) }
            });
        }
        if to_parts.starts_with(&from_parts) {
            return Err(Errno::INVAL.into());
        }
        let from_is_dir = self.in_parent(from, |names, name| {
            names.get(&name).map(Node::is_dir).ok_or_else(|| Errno::NOENT.into())
        })?;
        let below = &self.below;
        self.in_parent(to, |names, name| match (names.get_mut(&name), from_is_dir) {
            (Some(Node::File(_)), true) => Err(Errno::NOTDIR.into()),
            (Some(Node::Dir(_)), false) => Err(Errno::ISDIR.into()),
            (Some(Node::Dir(dir)), true) => dir.check_empty(&**below),
            _ => Ok(()),
        })?;
        let node = self.in_parent(from, |names, name| {
            names.remove(&name).ok_or_else(|| Errno::NOENT.into())
        })?;
        self.in_parent(to, |names, name| {
            names.insert(name, node);
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.in_parent(from, |names, name| match names.get(&name) {
            Some(Node::File(file)) => Ok(Arc::clone(file)),
            Some(Node::Dir(_)) => Err(Errno::PERM.into()),
            None => Err(Errno::NOENT.into()),
        })?;
        self.in_parent(to, |names, name| {
            if names.contains_key(&name) {
                return Err(Errno::EXIST.into());
            }
            names.insert(name, Node::File(file));
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.in_parent(path, |names, name| match names.get(&name) {
            Some(Node::Dir(_)) => Err(Errno::ISDIR.into()),
            Some(Node::File(_)) => {
                names.remove(&name);
                Ok(())
            }
            None => Err(Errno::NOENT.into()),
        })
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let below = &self.below;
        self.in_parent(path, |names, name| match names.get_mut(&name) {
            Some(Node::File(_)) => Err(Errno::NOTDIR.into()),
            Some(Node::Dir(dir)) => {
                dir.check_empty(&**below)?;
                names.remove(&name);
                Ok(())
            }
            None => Err(Errno::NOENT.into()),
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // The parent of the root is synced for the root's own name.
        if self.root.starts_with(path) { Ok(()) } else { self.list(path).map(drop) }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let parts = self.parts(path)?;
        if parts.is_empty() {
            return self.below.exists(path);
        }
        match self.in_parent(path, |names, name| Ok(names.contains_key(&name))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
