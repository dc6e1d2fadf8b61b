//! Sealing, opening and filling the filters read and write in small pieces, however long a file is.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{DIR, Model, options, reopen, write};
use queen_io::{DirEntry, Disk, DiskFile, OpenMode, SimDisk};
use queen_qlog::{DurablePoint, Options};
use queen_record::ids::Micros;

const PIECE_MAX: usize = 128 * 1024;

/// Remembers the longest read or write.
#[derive(Clone)]
struct Sizes {
    sim: SimDisk,
    longest: Arc<AtomicUsize>,
}

struct SizedFile {
    file: Arc<dyn DiskFile>,
    longest: Arc<AtomicUsize>,
}

impl Sizes {
    fn take(&self) -> usize {
        self.longest.swap(0, Ordering::SeqCst)
    }
}

impl Disk for Sizes {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.sim.open(path, mode)?;
        Ok(Arc::new(SizedFile { file, longest: self.longest.clone() }))
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
}

impl DiskFile for SizedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.longest.fetch_max(buf.len(), Ordering::SeqCst);
        self.file.read_at(buf, offset)
    }
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.longest.fetch_max(buf.len(), Ordering::SeqCst);
        self.file.read_at_nowait(buf, offset)
    }
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.longest.fetch_max(bytes.len(), Ordering::SeqCst);
        self.file.write_all_at(bytes, offset)
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

#[test]
fn no_piece_is_long() {
    let sim = SimDisk::new();
    let sizes = Sizes { sim: sim.clone(), longest: Arc::default() };
    let disk: Arc<dyn Disk> = Arc::new(sizes.clone());
    let settings = Options { prealloc_kb: 0, ..options(DIR, 600_000) };
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, settings.clone(), &DurablePoint::default()).unwrap();
    // One full file, and a record in the next.
    for group in 0..200 {
        let targets: Vec<(u64, u64)> = (0..25).map(|p| (10_000, (p * 7 + group) % 400)).collect();
        let group = [model.entry(&targets, 1, 60, &[])];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
        if qlog.stats().rolls == 1 {
            break;
        }
    }
    assert_eq!(qlog.stats().rolls, 1);
    sizes.take();
    while qlog.background().unwrap() {}
    let sealing = sizes.take();
    assert!(sealing > 0 && sealing <= PIECE_MAX, "sealing: {sealing}");
    let side = |ext: &str| Path::new(DIR).join(format!("q10000/r00000001.{ext}"));
    let files = ["qidx", "qhsh"].map(|ext| sim.contents(&side(ext)).unwrap());
    assert!(files.iter().all(|file| file.len() > PIECE_MAX), "the file is too small to tell");
    drop(qlog);
    let (qlog, _, _) = reopen(&disk, settings.clone(), &DurablePoint::default()).unwrap();
    qlog.hashes_since(Micros(0), &mut |_, _, _, _, _| {}).unwrap();
    let opening = sizes.take();
    assert!(opening > 0 && opening <= PIECE_MAX, "opening: {opening}");
    drop(qlog);
    sim.remove_file(&side("qhsh")).unwrap();
    drop(reopen(&disk, settings, &DurablePoint::default()).unwrap());
    let rebuilding = sizes.take();
    assert!(rebuilding > 0 && rebuilding <= PIECE_MAX, "rebuilding: {rebuilding}");
    assert!(files == ["qidx", "qhsh"].map(|ext| sim.contents(&side(ext)).unwrap()));
}
