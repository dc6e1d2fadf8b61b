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

/// Room of the volume that a path is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in use, by whatever.
    pub used: u64,
    /// Bytes that this process may still take.
    pub available: u64,
}

impl Space {
    /// How full the volume is for this process, in percent, rounded up.
    #[must_use]
    pub fn used_percent(self) -> u32 {
        let all = u128::from(self.used) + u128::from(self.available);
        let percent = (u128::from(self.used) * 100).div_ceil(all.max(1));
        u32::try_from(percent).unwrap_or(100)
    }
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
    /// Gives a file a second name, which must be free and on the same file system. Both names lead to the same bytes;
    /// the file goes with the last of them. Durable after `sync_dir` of the new name's directory.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Durable after `sync_dir`.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory. Durable after `sync_dir` of its parent.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory's names durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether a file or directory of this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Room of the volume that holds `path`; `None` for a simulated one, which has no end.
    fn space(&self, _path: &Path) -> io::Result<Option<Space>> {
        Ok(None)
    }
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
    /// Takes room for `len` bytes of an empty file from the volume; they read as zeros.
    fn reserve(&self, len: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = 0;
        while at < len {
            let step = usize::try_from(len - at).unwrap_or(usize::MAX).min(ZEROS.len());
            let (zeros, _) = ZEROS.split_at(step);
            self.write_all_at(zeros, at)?;
            at += step as u64;
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullness_counts_what_this_process_may_take() {
        let percent = |used, available| Space { used, available }.used_percent();
        assert_eq!(percent(0, 100), 0);
        assert_eq!(percent(1, 999), 1);
        assert_eq!(percent(85, 15), 85);
        assert_eq!(percent(10, 0), 100);
        assert_eq!(percent(0, 0), 0);
        assert_eq!(percent(u64::MAX, u64::MAX), 50);
    }
}
