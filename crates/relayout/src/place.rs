//! The new directory while it grows, and its name when it is done.
//!
//! ```text
//! NEW.partial, RELAYOUT in it  ->  everything else  ->  RELAYOUT goes  ->  NEW
//! ```
//! Each step is durable before the next. So what has the mark was begun and never finished: it is removed and begun
//! again. What has no mark is whole, or of somebody else: it is opened and compared before it is believed, and never
//! removed.

use std::path::{Path, PathBuf};

use queen_io::{Disk, OpenMode};

use crate::error::RelayoutError;

/// The file that says that a directory is unfinished work of a run.
pub const MARK: &str = "RELAYOUT";
/// What its name ends with.
const PARTIAL: &str = ".partial";

/// The two names.
pub(crate) struct Place<'d> {
    disk: &'d dyn Disk,
    pub(crate) to: &'d Path,
    pub(crate) partial: PathBuf,
}

/// What is there when a run begins.
pub(crate) enum Found {
    /// Nothing, or unfinished work that has been removed.
    Nothing,
    /// Something without a mark under this name: the result of this run, or of somebody else.
    Unmarked(PathBuf),
}

impl<'d> Place<'d> {
    pub(crate) fn new(disk: &'d dyn Disk, to: &'d Path) -> Self {
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(PARTIAL);
        Self { disk, to, partial: to.with_file_name(name) }
    }

    /// Looks, and removes what an earlier run has begun.
    pub(crate) fn look(&self) -> Result<Found, RelayoutError> {
        for dir in [self.to, &*self.partial] {
            if !self.is_empty(dir)? && !self.is_marked(dir)? {
                return Ok(Found::Unmarked(dir.to_path_buf()));
            }
        }
        if !self.is_empty(self.to)? {
            // Only the directory that grows is ever marked.
            let what = format!("has a file {MARK} that no run of this leaves in it");
            return Err(RelayoutError::Taken { dir: self.to.to_path_buf(), what });
        }
        self.clear()?;
        Ok(Found::Nothing)
    }

    fn is_empty(&self, dir: &Path) -> Result<bool, RelayoutError> {
        let there = self.disk.exists(dir).map_err(RelayoutError::io(dir, "look for"))?;
        let names = if there { self.disk.list(dir) } else { Ok(Vec::new()) };
        Ok(names.map_err(RelayoutError::io(dir, "list"))?.is_empty())
    }

    fn is_marked(&self, dir: &Path) -> Result<bool, RelayoutError> {
        let mark = dir.join(MARK);
        self.disk.exists(&mark).map_err(RelayoutError::io(&mark, "look for"))
    }

    /// Removes the growing directory of a run that failed.
    pub(crate) fn remove(&self) -> Result<(), RelayoutError> {
        self.clear()?;
        let dir = &self.partial;
        if self.disk.exists(dir).map_err(RelayoutError::io(dir, "look for"))? {
            self.disk.remove_dir(dir).map_err(RelayoutError::io(dir, "remove"))?;
        }
        Ok(())
    }

    /// Removes what is in the growing directory, the mark last.
    fn clear(&self) -> Result<(), RelayoutError> {
        if self.is_empty(&self.partial)? {
            return Ok(());
        }
        let list = self.disk.list(&self.partial);
        for entry in list.map_err(RelayoutError::io(&self.partial, "list"))? {
            let path = self.partial.join(&entry.name);
            if entry.is_dir {
                self.remove_dir(&path)?;
            } else if entry.name != MARK {
                self.remove_file(&path)?;
            }
        }
        self.sync(&self.partial)?;
        self.unmark()
    }

    fn remove_dir(&self, dir: &Path) -> Result<(), RelayoutError> {
        for entry in self.disk.list(dir).map_err(RelayoutError::io(dir, "list"))? {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                self.remove_dir(&path)?;
            } else {
                self.remove_file(&path)?;
            }
        }
        self.disk.remove_dir(dir).map_err(RelayoutError::io(dir, "remove"))
    }

    fn remove_file(&self, path: &Path) -> Result<(), RelayoutError> {
        self.disk.remove_file(path).map_err(RelayoutError::io(path, "remove"))
    }

    fn unmark(&self) -> Result<(), RelayoutError> {
        self.remove_file(&self.partial.join(MARK))?;
        self.sync(&self.partial)
    }

    fn sync(&self, dir: &Path) -> Result<(), RelayoutError> {
        self.disk.sync_dir(dir).map_err(RelayoutError::io(dir, "sync"))
    }

    /// Makes the growing directory with its mark, durably.
    pub(crate) fn begin(&self) -> Result<(), RelayoutError> {
        let dir = &self.partial;
        self.disk.create_dir(dir).map_err(RelayoutError::io(dir, "create"))?;
        let mark = dir.join(MARK);
        // Its name is all it says.
        self.disk.open(&mark, OpenMode::Truncate).map_err(RelayoutError::io(&mark, "create"))?;
        self.sync(dir)?;
        self.sync(parent(dir))
    }

    /// The growing directory is whole, durable and verified: the mark goes, and it gets its name.
    pub(crate) fn finish(&self) -> Result<(), RelayoutError> {
        self.unmark()?;
        self.rename()
    }

    /// Gives the growing directory, which has no mark any more, its name.
    fn rename(&self) -> Result<(), RelayoutError> {
        let renamed = self.disk.rename(&self.partial, self.to);
        renamed.map_err(RelayoutError::io(self.to, "rename to"))?;
        self.sync(parent(self.to))
    }

    /// Gives what an earlier run has finished under one of the two names its own, durably: that run may have ended
    /// before any sync.
    pub(crate) fn adopt(&self, dir: &Path) -> Result<(), RelayoutError> {
        self.sync(dir)?;
        if dir == self.to { self.sync(parent(self.to)) } else { self.rename() }
    }
}

pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
