//! A disk that loses its power: from one call on nothing is done any more, and whoever waits for that is told.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use queen_io::{DirEntry, Disk, DiskFile, OpenMode, SimDisk};
use tokio::sync::Notify;

/// The power of one node, from its start to its end.
pub(crate) struct Power {
    is_off: AtomicBool,
    /// The last call that is done.
    last_call: AtomicU64,
    /// Told when it goes off by itself.
    pub went_off: Notify,
}

impl Default for Power {
    fn default() -> Self {
        let (is_off, last_call) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
        Self { is_off, last_call, went_off: Notify::new() }
    }
}

impl Power {
    /// Whether it is off.
    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::SeqCst)
    }

    /// Switches it off.
    pub(crate) fn cut(&self) {
        self.is_off.store(true, Ordering::SeqCst);
    }

    /// Switches it off behind that call of the disk.
    pub(crate) fn cut_behind(&self, call: u64) {
        self.last_call.store(call, Ordering::SeqCst);
    }
}

/// The disk of one node while it has power.
#[derive(Clone)]
pub(crate) struct PoweredDisk {
    disk: SimDisk,
    power: Arc<Power>,
}

impl PoweredDisk {
    /// This disk, while this power is on.
    pub(crate) fn new(disk: SimDisk, power: Arc<Power>) -> Self {
        Self { disk, power }
    }

    fn check(&self) -> io::Result<()> {
        if self.power.is_off() { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// As `check`, before a call that changes something.
    fn check_change(&self) -> io::Result<()> {
        self.check()?;
        if self.disk.calls() >= self.power.last_call.load(Ordering::SeqCst) {
            self.power.cut();
            self.power.went_off.notify_one();
        }
        self.check()
    }
}

impl Disk for PoweredDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        match mode {
            OpenMode::Read | OpenMode::Write => self.check()?,
            OpenMode::CreateNew | OpenMode::Truncate => self.check_change()?,
        }
        let file = self.disk.open(path, mode)?;
        Ok(Arc::new(PoweredFile { file, disk: self.clone() }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.check_change()?;
        self.disk.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.check()?;
        self.disk.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_change()?;
        self.disk.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_change()?;
        self.disk.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check_change()?;
        self.disk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.check_change()?;
        self.disk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.check_change()?;
        self.disk.sync_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.check()?;
        self.disk.exists(path)
    }
}

struct PoweredFile {
    file: Arc<dyn DiskFile>,
    disk: PoweredDisk,
}

impl DiskFile for PoweredFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.check()?;
        self.file.read_at(buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.disk.check()?;
        self.file.read_at_nowait(buf, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.check_change()?;
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.check_change()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.check_change()?;
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.check()?;
        self.file.len()
    }

    fn forget_range(&self, offset: u64, len: u64) {
        self.file.forget_range(offset, len);
    }
}
