//! The disk, at the level of system calls.
//!
//! What a crash (power loss) may leave: bytes written since the last `sync_data` of a file are lost, kept
//! or torn per 512-byte sector, independently of each other; names created, renamed or removed since the
//! last `sync_dir` of their directory are lost or kept, independently of each other and of the data.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// How `Disk::open` treats an existing or missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; writes fail.
    Read,
    /// Must exist; may be written.
    Write,
    /// Must not exist; created empty.
    CreateNew,
    /// Created empty, or cut to nothing when it exists.
    Truncate,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// File name without its directory. Names that are not UTF-8 are reported lossily.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// A directory tree on durable storage.
///
/// Paths are absolute in the implementation's own name space. The real implementation adds no logic to the
/// system call it names.
///
/// # Errors
/// Every call hands on the operating system's error; the caller adds path and operation.
#[expect(clippy::missing_errors_doc, reason = "one rule for all calls, stated above")]
pub trait Disk: Send + Sync + 'static {
    /// Opens or creates a file. A created name is durable only after `sync_dir` of its directory.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Makes one directory; its parent must exist. An existing directory is no error.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>>;
    /// Renames a file or directory, replacing an existing file. Durable after `sync_dir` of both directories.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Durable after `sync_dir`.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory. Durable after `sync_dir` of its parent.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory's names durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether a file or directory of this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
}

/// One open file. All calls may run at the same time from several threads.
///
/// # Errors
/// Every call hands on the operating system's error; the caller adds path and operation.
#[expect(clippy::missing_errors_doc, reason = "one rule for all calls, stated above")]
pub trait DiskFile: Send + Sync {
    /// Reads at `offset`; returns the number of bytes read, fewer than asked for only at the file's end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// As `read_at`, but only what is in memory: `None` when the read would wait for the device.
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;
    /// Writes all of `bytes` at `offset`, growing the file if needed. A failed call may have written a prefix.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the file's data and length durable. After an error nothing may be assumed about what is durable.
    fn sync_data(&self) -> io::Result<()>;
    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// A hint that the bytes in the range will not be read soon. Changes nothing that can be observed.
    fn forget_range(&self, offset: u64, len: u64);
}
