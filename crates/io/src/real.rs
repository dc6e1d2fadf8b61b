//! The operating system's disk. Each call is the system call it names; nothing is decided here.
//!
//! Directories are made with mode 0700 and files with 0600. A symbolic link in the last place of a path is
//! refused, not followed: a data directory holds none. Interrupted calls are repeated.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::disk::{DirEntry, Disk, DiskFile, OpenMode};

/// The operating system's files and directories.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600).custom_flags(flags(OFlags::NOFOLLOW));
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
            OpenMode::Truncate => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Arc::new(RealFile { file: options.open(path)? }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if std::fs::symlink_metadata(path)?.is_dir() { Ok(()) } else { Err(error) }
            }
            other => other,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(flags(OFlags::DIRECTORY | OFlags::NOFOLLOW))
            .open(path)?;
        directory.sync_all()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match std::fs::symlink_metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Flags in the type that the standard library takes.
fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let mut rest = [IoSliceMut::new(rest)];
            match rustix::io::preadv2(&self.file, &mut rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                // Not in memory, or a file system that cannot tell.
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(done))
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn forget_range(&self, offset: u64, len: u64) {
        let Some(len) = NonZeroU64::new(len) else { return };
        // A hint: a file system that does not take it changes nothing.
        rustix::fs::fadvise(&self.file, offset, Some(len), Advice::DontNeed).unwrap_or(());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn modes_are_private_and_links_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("d");
        let path = dir.join("f");
        let link = dir.join("l");
        RealDisk.create_dir(&dir).unwrap();
        RealDisk.open(&path, OpenMode::CreateNew).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));

        symlink(&path, &link).unwrap();
        for mode in [OpenMode::Read, OpenMode::Write, OpenMode::CreateNew, OpenMode::Truncate] {
            assert!(RealDisk.open(&link, mode).is_err());
        }
        let dir_link = root.path().join("dl");
        symlink(&dir, &dir_link).unwrap();
        assert!(RealDisk.sync_dir(&dir_link).is_err());
        assert!(RealDisk.create_dir(&dir_link).is_err());
    }
}
