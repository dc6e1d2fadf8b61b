//! The operating system's disk. Each call is the system call it names; nothing is decided here.
//!
//! Directories are made with mode 0700 and files with 0600. A symbolic link in the last place of a path is
//! refused, not followed: a data directory holds none. So is everything else that is no regular file, without waiting
//! for it: the open of a FIFO would wait for its other end. Interrupted calls are repeated.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::disk::{DirEntry, Disk, DiskFile, OpenMode, Space};

/// The operating system's files and directories.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        options.read(true).mode(0o600).custom_flags(flags(safe));
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
        let file = match options.open(path) {
            // What a socket and a device without a driver answer.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                return Err(not_regular());
            }
            other => other?,
        };
        if !file.metadata()?.is_file() {
            return Err(not_regular());
        }
        Ok(Arc::new(RealFile { file }))
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

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
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

    fn space(&self, path: &Path) -> io::Result<Option<Space>> {
        let volume = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(volume.f_frsize);
        let used = bytes(volume.f_blocks.saturating_sub(volume.f_bfree));
        Ok(Some(Space { used, available: bytes(volume.f_bavail) }))
    }
}

fn not_regular() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "is not a regular file")
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

    fn reserve(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len)?)
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
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

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

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        let socket = root.path().join("socket");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let _listener = UnixListener::bind(&socket).unwrap();
        for path in [&*fifo, &*socket, Path::new("/dev/null")] {
            let (done, answer) = std::sync::mpsc::channel();
            for mode in [OpenMode::Read, OpenMode::Write, OpenMode::Truncate] {
                let (opened, done) = (path.to_path_buf(), done.clone());
                std::thread::spawn(move || done.send(RealDisk.open(&opened, mode).err()));
                let error = answer.recv_timeout(Duration::from_secs(10)).expect("it waits");
                let error = error.expect("it opens");
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}");
                assert_eq!(error.to_string(), "is not a regular file");
            }
        }
        let error = RealDisk.open(root.path(), OpenMode::Read).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
