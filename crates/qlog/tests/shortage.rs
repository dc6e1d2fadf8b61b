//! Too few descriptors, no room for what is optional, and files that are none: none of it ends or hangs a node that
//! could go on.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{DIR, Model, assert_entries, assert_reads, options, reopen, write};
use queen_io::sim::{Choice, SimFault};
use queen_io::{DirEntry, Disk, DiskFile, OpenMode, RealDisk, SimDisk};
use queen_qlog::{DurablePoint, Options, Qlog};
use queen_record::ids::EntryIndex;

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// Counts open files, has at most `descriptors` of them, and fails writes of zeros with `zeros`.
#[derive(Clone)]
struct Short {
    sim: SimDisk,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    descriptors: usize,
    zeros: Option<i32>,
}

struct ShortFile {
    file: Arc<dyn DiskFile>,
    disk: Short,
}

impl Short {
    fn new(descriptors: usize, zeros: Option<i32>) -> Self {
        let (open, most) = (Arc::default(), Arc::default());
        Self { sim: SimDisk::new(), open, most, descriptors, zeros }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Whether there is a descriptor for one more call.
    fn descriptor(&self) -> io::Result<()> {
        if self.open.load(Ordering::SeqCst) < self.descriptors {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(EMFILE))
        }
    }
}

impl Disk for Short {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.descriptor()?;
        let file = self.sim.open(path, mode)?;
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(open, Ordering::SeqCst);
        Ok(Arc::new(ShortFile { file, disk: self.clone() }))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.sim.create_dir(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.descriptor()?;
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
        self.descriptor()?;
        self.sim.sync_dir(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.sim.exists(path)
    }
}

impl Drop for ShortFile {
    fn drop(&mut self) {
        self.disk.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DiskFile for ShortFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.file.read_at_nowait(buf, offset)
    }
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Some(code) = self.disk.zeros.filter(|_| bytes.iter().all(|byte| *byte == 0)) else {
            return self.file.write_all_at(bytes, offset);
        };
        self.file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
        Err(io::Error::from_raw_os_error(code))
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

/// Two hundred logs: one after the other, then all in each of a few groups, with rolls.
fn write_widely(qlog: &Qlog, model: &mut Model, at_once: usize) {
    let targets: Vec<(u64, u64)> = (10_000..10_200).map(|log| (log, 1)).collect();
    for target in &targets {
        let group = [model.entry(&[*target], 1, 50, &[])];
        qlog.sync(&write(qlog, &group).unwrap()).unwrap();
    }
    for _ in 0..4 {
        while qlog.background().unwrap() {}
        for part in targets.chunks(at_once) {
            let group = [model.entry(part, 1, 150, &[])];
            qlog.sync(&write(qlog, &group).unwrap()).unwrap();
            assert_eq!(qlog.synced_index(), group[0].index);
        }
    }
    assert!(qlog.stats().rolls > 0);
}

#[test]
fn many_logs_keep_few_files_open() {
    let short = Short::new(usize::MAX, None);
    for threads in [0, 4] {
        let disk = short.disk();
        short.sim.remove(Path::new(DIR));
        let settings = Options { fd_cache: 16, fsync_threads: threads, ..options(DIR, 600) };
        let mut model = Model::default();
        let (qlog, _, _) = reopen(&disk, settings.clone(), &DurablePoint::default()).unwrap();
        write_widely(&qlog, &mut model, 200);
        let most = short.most.load(Ordering::SeqCst);
        assert!(most <= 16 + 6, "{most} files were open");
        assert_reads(&qlog, &model);
        let point = qlog.durable_point(EntryIndex(200));
        drop(qlog);
        let (qlog, entries, _) = reopen(&disk, settings, &point).unwrap();
        assert_entries(&model, EntryIndex(201), &entries);
        assert_reads(&qlog, &model);
    }
}

#[test]
fn every_synced_group_survives_a_power_cut_although_files_were_closed() {
    let short = Short::new(usize::MAX, None);
    let settings = Options { fd_cache: 3, ..options(DIR, 600) };
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&short.disk(), settings.clone(), &DurablePoint::default()).unwrap();
    for _ in 0..12 {
        let targets: Vec<(u64, u64)> = (10_000..10_008).map(|log| (log, 1)).collect();
        // Entries of one group that lie in different logs: early syncs fall between their writes.
        let group = [model.entry(&targets, 1, 60, &[]), model.entry(&targets[2..4], 1, 60, &[])];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
        while qlog.background().unwrap() {}
        let left: Arc<dyn Disk> = Arc::new(short.sim.crash_now(&Choice::AllLost));
        let (found, _, cut) = reopen(&left, settings.clone(), &DurablePoint::default()).unwrap();
        assert_eq!(cut.last, model.last());
        assert_reads(&found, &model);
    }
}

#[test]
fn without_a_descriptor_idle_files_are_closed() {
    let short = Short::new(24, None);
    let settings = Options { fd_cache: 10_000, ..options(DIR, 600) };
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&short.disk(), settings, &DurablePoint::default()).unwrap();
    write_widely(&qlog, &mut model, 10);
    assert_eq!(short.most.load(Ordering::SeqCst), 24, "there were too few");
    assert_reads(&qlog, &model);
    assert!(!qlog.is_poisoned());
}

#[test]
fn a_full_disk_only_ends_the_zeros() {
    for code in [ENOSPC, EDQUOT, EIO] {
        let short = Short::new(usize::MAX, Some(code));
        let settings = Options { prealloc_min_syncs: 1, ..options(DIR, 2000) };
        let mut model = Model::default();
        let (qlog, _, _) =
            reopen(&short.disk(), settings.clone(), &DurablePoint::default()).unwrap();
        let mut failed = false;
        for _ in 0..40 {
            let group = [model.entry(&[(10_000, 1)], 1, 50, &[])];
            failed |= write(&qlog, &group).and_then(|logs| qlog.sync(&logs)).is_err();
        }
        assert_eq!((failed, qlog.is_poisoned()), (code == EIO, code == EIO), "error {code}");
        if failed {
            continue;
        }
        assert_eq!(qlog.stats().prealloc_bytes, 0);
        assert!(qlog.stats().rolls > 1);
        assert_reads(&qlog, &model);
        drop(qlog);
        let opened = reopen(&short.disk(), settings, &DurablePoint::default()).unwrap();
        assert_eq!(opened.2.last, model.last());
        assert_reads(&opened.0, &model);
    }
}

/// A log whose active file is more than half full, before the background has made the next one.
fn half_full(model: &mut Model) -> (SimDisk, Qlog) {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (qlog, _, _) = reopen(&disk, options(DIR, 1000), &DurablePoint::default()).unwrap();
    let group = [model.entry(&[(10_000, 1)], 1, 500, &[])];
    qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
    (sim, qlog)
}

#[test]
fn a_next_file_that_finds_no_room_is_made_later() {
    let next = Path::new(DIR).join("q10000/r00000002.qlog");
    let (sim, qlog) = half_full(&mut Model::default());
    let before = sim.calls();
    assert!(qlog.background().unwrap());
    let calls = sim.calls() - before;
    assert!(calls >= 4, "create, write, sync, sync the directory");
    for call in 1..=calls {
        for (fault, later) in
            [(SimFault::Enospc, true), (SimFault::ShortWrite, false), (SimFault::Eio, false)]
        {
            let mut model = Model::default();
            let (sim, qlog) = half_full(&mut model);
            sim.fail_call(sim.calls() + call, fault);
            if fault == SimFault::Eio {
                assert!(qlog.background().is_err() && qlog.is_poisoned());
                continue;
            }
            assert!(!qlog.background().unwrap(), "{fault:?} at call {call}");
            assert!(!sim.exists(&next).unwrap(), "a partial file stays");
            for choice in [Choice::AllLost, Choice::AllKept, Choice::Items(1), Choice::Items(2)] {
                let left: Arc<dyn Disk> = Arc::new(sim.crash_now(&choice));
                let (_, _, cut) =
                    reopen(&left, options(DIR, 1000), &DurablePoint::default()).unwrap();
                assert_eq!(cut.last, model.last(), "{fault:?} at call {call}, {choice:?}");
            }
            if later {
                assert!((0..100).any(|_| qlog.background().unwrap()));
                assert!(sim.exists(&next).unwrap());
            }
            for _ in 0..4 {
                let group = [model.entry(&[(10_000, 1)], 1, 500, &[])];
                qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
            }
            assert!(qlog.stats().rolls > 0);
            assert_reads(&qlog, &model);
            let left: Arc<dyn Disk> = Arc::new(sim.crash_now(&Choice::AllLost));
            let (_, _, cut) = reopen(&left, options(DIR, 1000), &DurablePoint::default()).unwrap();
            assert_eq!(cut.last, model.last());
        }
    }
}

#[test]
fn a_planted_fifo_is_refused_at_once() {
    for name in ["LANES", "q10000/r00000001.qlog", "q10000/r00000002.qlog", "q10000/r00000001.qidx"]
    {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("qlog");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let settings = options(&dir, 100);
        let mut model = Model::default();
        let (qlog, _, _) = reopen(&disk, settings.clone(), &DurablePoint::default()).unwrap();
        for _ in 0..3 {
            qlog.sync(&write(&qlog, &[model.entry(&[(10_000, 1)], 1, 100, &[])]).unwrap()).unwrap();
        }
        while qlog.background().unwrap() {}
        drop(qlog);
        let fifo: PathBuf = dir.join(name);
        std::fs::remove_file(&fifo).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let (done, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let opened = reopen(&disk, settings, &DurablePoint::default());
            done.send(opened.map(drop).map_err(|error| error.to_string()))
        });
        let error = answer.recv_timeout(Duration::from_secs(20)).expect("the start hangs");
        let wanted = format!("open {}: is not a regular file", fifo.display());
        assert_eq!(error, Err(wanted));
    }
}
