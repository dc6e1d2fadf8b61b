//! A volume with an end: a simulated disk on which others take room, too.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use queen_io::{DirEntry, Disk, DiskFile, OpenMode, SimDisk, Space};

const ENOSPC: i32 = 28;

/// The volume. Clones are handles of one.
#[derive(Clone)]
pub(super) struct Volume {
    sim: SimDisk,
    size: Arc<AtomicU64>,
    /// Bytes that others hold.
    others: Arc<AtomicU64>,
    looks: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
}

struct VolumeFile {
    file: Arc<dyn DiskFile>,
    volume: Volume,
}

impl Volume {
    pub(super) fn new(size: u64) -> Self {
        let (others, looks, refused) = Default::default();
        Self { sim: SimDisk::new(), size: Arc::new(size.into()), others, looks, refused }
    }

    /// Makes it larger, or smaller.
    pub(super) fn resize(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
    }

    /// Lets others take so much that this share is in use, in thousandths.
    pub(super) fn fill_to(&self, per_mille: u64) {
        let wanted = self.size.load(Ordering::SeqCst) / 1000 * per_mille;
        self.others.store(wanted.saturating_sub(self.own()), Ordering::SeqCst);
    }

    /// How often somebody asked how full it is.
    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Ordering::SeqCst)
    }

    /// Writes that found no room.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    fn own(&self) -> u64 {
        self.sim.files().iter().map(|(_, len)| len).sum()
    }

    fn available(&self) -> u64 {
        let used = self.own() + self.others.load(Ordering::SeqCst);
        self.size.load(Ordering::SeqCst).saturating_sub(used)
    }
}

impl Disk for Volume {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.sim.open(path, mode)?;
        Ok(Arc::new(VolumeFile { file, volume: self.clone() }))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.sim.create_dir(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.sim.list(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.link(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.sim.remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.sim.remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.sim.sync_dir(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.sim.exists(path)
    }
    fn space(&self, _: &Path) -> io::Result<Option<Space>> {
        let available = self.available();
        let used = self.size.load(Ordering::SeqCst) - available;
        self.looks.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Space { used, available }))
    }
}

impl DiskFile for VolumeFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.file.read_at_nowait(buf, offset)
    }
    /// What fits is written, then there is no room.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let grown = (offset + bytes.len() as u64).saturating_sub(self.file.len()?);
        let missing = grown.saturating_sub(self.volume.available());
        let fitting = bytes.len().saturating_sub(usize::try_from(missing).unwrap());
        self.file.write_all_at(&bytes[..fitting], offset)?;
        if missing == 0 {
            return Ok(());
        }
        self.volume.refused.fetch_add(1, Ordering::SeqCst);
        Err(io::Error::from_raw_os_error(ENOSPC))
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn forget_range(&self, offset: u64, len: u64) {
        self.file.forget_range(offset, len);
    }
}
