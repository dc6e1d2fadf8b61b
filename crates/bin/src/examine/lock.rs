//! The directory and its lock, taken without writing: a node that runs keeps the examiner out, and the other way round.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::client::failure::Failure;

/// The directory itself, where its name is that of a symbolic link to it: what is synced and locked are directories.
pub(crate) fn resolved(dir: &Path) -> PathBuf {
    // Without a slash at the end, which would hide the link.
    let plain: PathBuf = dir.components().collect();
    if plain.is_symlink() { plain.canonicalize().unwrap_or(plain) } else { dir.to_path_buf() }
}

/// Takes the lock; `None` where there is no lock file, because no node has ever been there.
///
/// # Errors
/// When a node is at work, or the directory is none.
pub(crate) fn take(dir: &Path) -> Result<Option<File>, Failure> {
    if !dir.is_dir() {
        return Err(Failure::said(format!("{} is not a directory", dir.display())));
    }
    let path = dir.join("queen.lock");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::said(format!("{} cannot be opened: {error}", path.display())));
        }
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::said(format!(
            "{} is in use by another process: stop the node first, or name a copy that was made while it was stopped",
            dir.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Failure::said(format!("{} cannot be locked: {error}", path.display())))
        }
    }
}
