//! Unpacking into a directory that grows into a data directory.
//!
//! What is there already is read and compared, and written only where it differs: an unpacking that was interrupted is
//! begun again from the start and writes what is left. A file counts only when all of them do, so none of it is trusted
//! before the sums have come; then everything is synced, files first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Disk, DiskFile, OpenMode};

use crate::SUMS;
use crate::error::ArchiveError;
use crate::manifest::{Manifest, Member};
use crate::name::is_member;
use crate::unpack::Sink;

/// A directory that a backup is unpacked into.
pub struct Place<'d> {
    disk: &'d dyn Disk,
    dir: PathBuf,
    keeps_sums: bool,
    /// Lengths of the files that were there.
    found: BTreeMap<String, u64>,
    dirs: BTreeSet<PathBuf>,
    open: Option<Open>,
    buf: Vec<u8>,
    written: u64,
}

struct Open {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    len: u64,
    /// Its length before.
    old_len: u64,
}

impl<'d> Place<'d> {
    /// Unpacks into `dir`, which is made when it is missing; its parent must exist.
    pub fn new(disk: &'d dyn Disk, dir: &Path) -> Self {
        Self {
            disk,
            dir: dir.to_path_buf(),
            keeps_sums: false,
            found: BTreeMap::new(),
            dirs: BTreeSet::new(),
            open: None,
            buf: Vec::new(),
            written: 0,
        }
    }

    /// Leaves the sums beside the files, so that the directory can be verified and restored from.
    #[must_use]
    pub fn keeping_sums(self) -> Self {
        Self { keeps_sums: true, ..self }
    }

    /// Bytes that had to be written: the others were there.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Notes what is there; refuses what is not of this backup.
    fn look(&mut self, below: &str, names: &BTreeSet<&str>) -> Result<(), ArchiveError> {
        let dir = if below.is_empty() { self.dir.clone() } else { self.dir.join(below) };
        for entry in self.disk.list(&dir).map_err(ArchiveError::io(&dir, "list"))? {
            let name =
                if below.is_empty() { entry.name } else { format!("{below}/{}", entry.name) };
            let path = self.dir.join(&name);
            if entry.is_dir {
                let inside = format!("{name}/");
                let is_ours =
                    names.range(&*inside..).next().is_some_and(|n| n.starts_with(&inside));
                if !is_ours {
                    return Err(ArchiveError::InTheWay(path));
                }
                self.look(&name, names)?;
                continue;
            }
            let is_sums = self.keeps_sums && name == SUMS;
            if !is_sums && !names.contains(&*name) {
                return Err(ArchiveError::InTheWay(path));
            }
            let file = self.disk.open(&path, OpenMode::Read);
            let len = file.and_then(|file| file.len()).map_err(ArchiveError::io(&path, "open"))?;
            self.found.insert(name, len);
        }
        Ok(())
    }

    fn make_dirs(&mut self, manifest: &Manifest) -> Result<(), ArchiveError> {
        for member in &manifest.members {
            let mut dir = self.dir.clone();
            let parts: Vec<&str> = member.name.split('/').collect();
            for part in parts.iter().take(parts.len().saturating_sub(1)) {
                dir.push(part);
                if self.dirs.insert(dir.clone()) {
                    self.disk.create_dir(&dir).map_err(ArchiveError::io(&dir, "create"))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the file that is being written.
    fn close(&mut self) -> Result<(), ArchiveError> {
        let Some(Open { path, file, len, old_len }) = self.open.take() else { return Ok(()) };
        if old_len > len {
            file.set_len(len).map_err(ArchiveError::io(&path, "cut"))?;
        }
        // Also what was there already: the process before may have ended before its sync.
        file.sync_data().map_err(ArchiveError::io(&path, "sync"))
    }

    fn put(&mut self, name: &str, len: u64) -> Result<(), ArchiveError> {
        let path = self.dir.join(name);
        let old_len = self.found.get(name).copied();
        let mode = if old_len.is_some() { OpenMode::Write } else { OpenMode::CreateNew };
        let file = self.disk.open(&path, mode).map_err(ArchiveError::io(&path, "open"))?;
        self.open = Some(Open { path, file, len, old_len: old_len.unwrap_or(0) });
        Ok(())
    }
}

impl Sink for Place<'_> {
    fn begin(&mut self, manifest: &Manifest) -> Result<(), ArchiveError> {
        self.disk.create_dir(&self.dir).map_err(ArchiveError::io(&self.dir, "create"))?;
        let names = manifest.members.iter().map(|member| &*member.name).collect();
        self.look("", &names)?;
        let there = |member: &Member| self.found.get(&member.name).copied().unwrap_or(0);
        let missing = |member: &Member| member.len.saturating_sub(there(member));
        let needed = manifest.members.iter().map(missing).fold(0, u64::saturating_add);
        let space = self.disk.space(&self.dir).map_err(ArchiveError::io(&self.dir, "statvfs"))?;
        if let Some(space) = space.filter(|space| space.available < needed) {
            let (path, available) = (self.dir.clone(), space.available);
            return Err(ArchiveError::NoRoom { path, needed, available });
        }
        self.make_dirs(manifest)
    }

    fn file(&mut self, member: &Member) -> Result<(), ArchiveError> {
        self.close()?;
        self.put(&member.name, member.len)
    }

    fn bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), ArchiveError> {
        let Some(Open { path, file, old_len, .. }) = &self.open else { return Ok(()) };
        if at < *old_len {
            self.buf.resize(bytes.len(), 0);
            let count = file.read_at(&mut self.buf, at).map_err(ArchiveError::io(path, "read"))?;
            if self.buf.get(..count) == Some(bytes) {
                return Ok(());
            }
        }
        self.written += bytes.len() as u64;
        file.write_all_at(bytes, at).map_err(ArchiveError::io(path, "write"))
    }

    fn end(&mut self, sums: &Manifest) -> Result<(), ArchiveError> {
        self.close()?;
        if self.keeps_sums {
            let text = sums.encode();
            self.put(SUMS, text.len() as u64)?;
            self.bytes(0, text.as_bytes())?;
            self.close()?;
        }
        // The deepest first: a name counts only with what is below it.
        for dir in self.dirs.iter().rev() {
            self.disk.sync_dir(dir).map_err(ArchiveError::io(dir, "sync"))?;
        }
        self.disk.sync_dir(&self.dir).map_err(ArchiveError::io(&self.dir, "sync"))
    }
}

/// Removes what an unpacking has left in a directory, and the directory; nothing is there when it is missing.
///
/// # Errors
/// `InTheWay`: something in it is of no backup. Then nothing of it is removed.
pub fn remove_unpacked(disk: &dyn Disk, dir: &Path) -> Result<(), ArchiveError> {
    if !disk.exists(dir).map_err(ArchiveError::io(dir, "look for"))? {
        return Ok(());
    }
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    find_unpacked(disk, dir, "", &mut files, &mut dirs)?;
    for path in files {
        disk.remove_file(&path).map_err(ArchiveError::io(&path, "remove"))?;
    }
    for path in dirs.iter().rev() {
        disk.remove_dir(path).map_err(ArchiveError::io(path, "remove"))?;
    }
    Ok(())
}

fn find_unpacked(
    disk: &dyn Disk,
    dir: &Path,
    below: &str,
    files: &mut Vec<PathBuf>,
    dirs: &mut Vec<PathBuf>,
) -> Result<(), ArchiveError> {
    dirs.push(dir.to_path_buf());
    for entry in disk.list(dir).map_err(ArchiveError::io(dir, "list"))? {
        let name = if below.is_empty() { entry.name } else { format!("{below}/{}", entry.name) };
        let path = dir.join(name.rsplit('/').next().unwrap_or_default());
        if entry.is_dir {
            find_unpacked(disk, &path, &name, files, dirs)?;
        } else if is_member(&name) || name == SUMS {
            files.push(path);
        } else {
            return Err(ArchiveError::InTheWay(path));
        }
    }
    Ok(())
}
