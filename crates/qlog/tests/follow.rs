//! Catching up: what it costs, counted at the disk, and that it goes on beside a writer that changes everything.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may fail loudly, and says its seed"
)]

mod common;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::run::{ALL, handle, stored};
use common::{DIR, Model, options, reopen, write_in_term};
use parking_lot::Mutex;
use queen_io::{DirEntry, Disk, DiskFile, OpenMode, RealDisk, SimDisk};
use queen_qlog::{DurablePoint, EntryReader, Options, Qlog, ReadError, StoredEntry};
use queen_record::ids::{EntryIndex, LogId};

/// Counts what is read.
#[derive(Clone)]
struct CountingDisk {
    disk: SimDisk,
    bytes: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
}

struct CountingFile {
    file: Arc<dyn DiskFile>,
    bytes: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
}

impl CountingDisk {
    fn new() -> Self {
        Self { disk: SimDisk::new(), bytes: Arc::default(), calls: Arc::default() }
    }

    /// Bytes and calls since the last time.
    fn take(&self) -> (u64, u64) {
        (self.bytes.swap(0, Ordering::SeqCst), self.calls.swap(0, Ordering::SeqCst))
    }
}

impl Disk for CountingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let (bytes, calls) = (self.bytes.clone(), self.calls.clone());
        Ok(Arc::new(CountingFile { file: self.disk.open(path, mode)?, bytes, calls }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
}

impl DiskFile for CountingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(buf, offset)?;
        self.bytes.fetch_add(count as u64, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(count)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.file.read_at_nowait(buf, offset)
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
        self.file.len()
    }

    fn forget_range(&self, offset: u64, len: u64) {
        self.file.forget_range(offset, len);
    }
}

fn read(
    qlog: &Qlog,
    reader: &mut EntryReader,
    from: u64,
    to: u64,
    max: usize,
) -> Result<Vec<StoredEntry>, ReadError> {
    qlog.entries(reader, EntryIndex(from), EntryIndex(to), max)
}

/// Appends `count` entries of one message each, in groups, round about the logs.
fn fill(qlog: &Qlog, model: &mut Model, count: u64, logs: u64, size: usize) {
    for group in 0..count / 20 {
        let entry = |n: u64| (10_000 + (group * 20 + n) * 7 % logs, n % 5);
        let entries: Vec<_> = (0..20).map(|n| model.entry(&[entry(n)], 1, size, &[])).collect();
        let touched = write_in_term(qlog, &entries, 1).unwrap();
        qlog.sync(&touched).unwrap();
    }
}

fn point(qlog: &Qlog, model: &Model) {
    qlog.point_written(&qlog.durable_point(model.last()));
}

#[test]
fn a_catch_up_reads_every_byte_about_once() {
    for (logs, segment_bytes) in [(1, 40_000), (40, 40_000), (300, 40_000), (2, 900_000)] {
        let counting = CountingDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(counting.clone());
        let settings = options(DIR, segment_bytes);
        let (qlog, _, _) = reopen(&disk, settings, &DurablePoint::default()).unwrap();
        let mut model = Model::default();
        fill(&qlog, &mut model, 6000, logs, 200);
        // Nothing in memory tells where the entries are.
        point(&qlog, &model);
        while qlog.background().unwrap() {}
        let bytes = qlog.stats().bytes;
        let files = qlog.stats().files;
        counting.take();
        let mut reader = EntryReader::default();
        let mut next = 1;
        let mut calls = 0;
        while next <= model.last().0 {
            let found = read(&qlog, &mut reader, next, u64::MAX, 500).unwrap();
            next += found.len() as u64;
            calls += 1;
        }
        let (read_bytes, reads) = counting.take();
        println!(
            "{logs} logs, {files} files of {bytes} bytes: {read_bytes} bytes in {reads} reads, {calls} calls"
        );
        assert!(calls > 1000, "{calls}");
        assert!(read_bytes <= bytes + bytes / 10, "{read_bytes} of {bytes}");
        assert!(reads <= bytes / 4096 + 2 * files + logs, "{reads} reads of {files} files");
    }
}

#[test]
fn a_reader_that_follows_reads_what_is_new() {
    let counting = CountingDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(counting.clone());
    let (qlog, _, _) = reopen(&disk, options(DIR, 100_000), &DurablePoint::default()).unwrap();
    let mut model = Model::default();
    fill(&qlog, &mut model, 2000, 50, 300);
    point(&qlog, &model);
    let mut reader = EntryReader::default();
    read(&qlog, &mut reader, 1, u64::MAX, ALL).unwrap();
    let before = qlog.stats().bytes;
    counting.take();
    for _ in 0..100 {
        let next = model.last().0 + 1;
        fill(&qlog, &mut model, 20, 50, 300);
        assert_eq!(read(&qlog, &mut reader, next, u64::MAX, ALL).unwrap().len(), 20);
    }
    let new = qlog.stats().bytes - before;
    let (bytes, _) = counting.take();
    assert!(bytes <= new, "{bytes} of {new}");
    // Marks tell a new reader where the newest entries are, and in which logs there is none.
    read(&qlog, &mut EntryReader::default(), model.last().0, u64::MAX, ALL).unwrap();
    let (bytes, _) = counting.take();
    assert!(bytes < 5000, "{bytes}");
}

#[test]
fn a_new_place_costs_little_in_a_large_file() {
    for sealed in [false, true] {
        let counting = CountingDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(counting.clone());
        let settings = options(DIR, if sealed { 7_000_000 } else { 60_000_000 });
        let (qlog, _, _) = reopen(&disk, settings.clone(), &DurablePoint::default()).unwrap();
        let mut model = Model::default();
        fill(&qlog, &mut model, 20_000, 2, 700);
        point(&qlog, &model);
        while qlog.background().unwrap() {}
        let durable = qlog.durable_point(model.last());
        let (again, _, _) = reopen(&disk, settings, &durable).unwrap();
        for (qlog, is_again) in [(qlog, false), (again, true)] {
            counting.take();
            for from in (1..20_000).step_by(1237) {
                let found = read(&qlog, &mut EntryReader::default(), from, from + 2, ALL).unwrap();
                assert_eq!(found[1], stored(&model.entries[usize::try_from(from).unwrap()], 1));
                let (bytes, _) = counting.take();
                // Two logs of 8 MB each.
                assert!(bytes < 1_500_000, "from {from}: {bytes} bytes, again: {is_again}");
            }
        }
    }
}

#[derive(Default)]
struct Story {
    /// Whatever was ever appended, by index and term.
    written: BTreeMap<(EntryIndex, u64), StoredEntry>,
    /// Behind an entry only this term and later ones are there.
    cuts: Vec<(EntryIndex, u64)>,
    last: EntryIndex,
    floor: EntryIndex,
}

impl Story {
    fn least_term(&self, index: EntryIndex) -> u64 {
        let cuts = self.cuts.iter().filter(|(last, _)| *last < index);
        cuts.map(|(_, term)| *term).max().unwrap_or(1)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What writer and readers know of each other.
#[derive(Default)]
struct Turns {
    /// Calls that readers made.
    calls: AtomicU64,
    /// Whether the writer is done, or somebody failed.
    is_over: AtomicBool,
}

/// Ends the others' waiting however its owner ends.
struct Over<'a>(&'a Turns);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// Appends, rolls, seals, reclaims and truncates.
fn change(qlog: &Qlog, story: &Mutex<Story>, turns: &Turns, random: &mut Random, steps: u64) {
    let mut model = Model::default();
    let mut term = 1;
    let mut durable = EntryIndex(0);
    for step in 0..steps {
        // The readers keep up, so that each change meets them somewhere.
        while turns.calls.load(Ordering::SeqCst) < step && !turns.is_over.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        match random.below(10) {
            0..5 => {
                let mut entries = Vec::new();
                for _ in 0..=random.below(3) {
                    let target = [(10_000 + random.below(6), random.below(4))];
                    let targets = if random.below(4) == 0 { &[][..] } else { &target[..] };
                    let size = usize::try_from(random.below(300)).unwrap();
                    let extra = [0, 10_000 + random.below(6)];
                    let mut entry = model.entry(targets, 1, size, &extra);
                    entry.bytes.extend(format!("term {term} {size}").into_bytes());
                    story.lock().written.insert((entry.index, term), stored(&entry, term));
                    entries.push(entry);
                }
                let logs = write_in_term(qlog, &entries, term).unwrap();
                qlog.sync(&logs).unwrap();
                story.lock().last = model.last();
            }
            5..7 => {
                qlog.background().unwrap();
            }
            7 => {
                durable = durable.max(EntryIndex(model.last().0.saturating_sub(20)));
                qlog.point_written(&qlog.durable_point(durable));
                let floor = EntryIndex(durable.0.saturating_sub(random.below(40)));
                let mut now = story.lock();
                now.floor = now.floor.max(floor);
                qlog.set_floor(now.floor);
            }
            8 => {
                for log in qlog.logs_from(LogId(0), 100) {
                    let cold = qlog.cold_files(log);
                    for file in cold {
                        let mut keep = |record: &queen_record::qidx::QidxRecord| {
                            record.base.0.is_multiple_of(3)
                        };
                        if random.below(2) == 0 {
                            qlog.rewrite(log, file.number, &mut keep).unwrap();
                        } else {
                            qlog.plan_unlink(log, &[file.number]);
                        }
                    }
                }
                durable = durable.max(EntryIndex(model.last().0.saturating_sub(20)));
                qlog.point_written(&qlog.durable_point(durable));
                qlog.carry_out().unwrap();
            }
            _ => {
                let last = model.last().0.saturating_sub(random.below(12));
                let last = durable.max(EntryIndex(last));
                term += 1;
                story.lock().last = last;
                qlog.truncate_after(last).unwrap();
                model.truncate(last);
                story.lock().cuts.push((last, term));
            }
        }
    }
}

/// Reads on, now and then from elsewhere, until the writer is done and all was read.
fn follow(qlog: &Qlog, story: &Mutex<Story>, turns: &Turns, random: &mut Random) -> u64 {
    let mut reader = EntryReader::default();
    let mut next = EntryIndex(1);
    let mut seen = 0;
    loop {
        let done = turns.is_over.load(Ordering::SeqCst);
        turns.calls.fetch_add(1, Ordering::SeqCst);
        let (cuts, last) = {
            let now = story.lock();
            if next <= now.floor || random.below(50) == 0 {
                next = EntryIndex(now.floor.0 + 1 + random.below(8));
            }
            (now.cuts.len(), now.last)
        };
        let least = |index| story.lock().least_term(index);
        let terms: Vec<u64> = (0..64).map(|n| least(EntryIndex(next.0 + n))).collect();
        let end = EntryIndex(next.0 + 1 + random.below(60));
        let max = usize::try_from(random.below(2000)).unwrap();
        match qlog.entries(&mut reader, next, end, max) {
            Ok(found) => {
                assert!(!found.is_empty() && found[0].index == next);
                for (entry, term) in found.iter().zip(&terms) {
                    let written = story.lock().written.get(&(entry.index, entry.term)).cloned();
                    assert_eq!(Some(entry), written.as_ref());
                    assert!(entry.term >= *term, "entry {} was truncated before", entry.index);
                }
                assert!(found.is_sorted_by(|a, b| a.index.next() == b.index && a.term <= b.term));
                seen += found.len() as u64;
                next = EntryIndex(next.0 + found.len() as u64);
            }
            Err(ReadError::NotThere { index, .. }) => {
                assert_eq!(index, next);
                let now = story.lock();
                // It was there all the time if nothing was truncated, so the floor passed it or it lies above.
                let excused = now.cuts.len() > cuts || now.last < last;
                assert!(next > last || next <= now.floor || excused, "entry {next} of {last}");
                if done && next > now.last {
                    return seen;
                }
                next = next.min(now.last.next());
            }
            Err(error) => unreachable!("entry {next}: {error}"),
        }
        if done && next > story.lock().last {
            return seen;
        }
    }
}

fn beside_a_writer(disk: &Arc<dyn Disk>, settings: Options, seed: u64, steps: u64) {
    println!("seed {seed}");
    let (qlog, _, _) = reopen(disk, settings, &DurablePoint::default()).unwrap();
    qlog.set_floor(EntryIndex(0));
    let story = Mutex::new(Story::default());
    let turns = Turns::default();
    let seen: Vec<u64> = std::thread::scope(|scope| {
        let (qlog, story, turns) = (&qlog, &story, &turns);
        let readers = [seed + 100, seed + 200].map(|seed| {
            scope.spawn(move || {
                // A reader that fails ends the writer's waiting; one that is through has seen its end.
                let _over = Over(turns);
                follow(qlog, story, turns, &mut Random(seed))
            })
        });
        let writer = scope.spawn(move || {
            let _over = Over(turns);
            change(qlog, story, turns, &mut Random(seed), steps);
        });
        let seen = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        writer.join().unwrap();
        seen
    });
    println!("seed {seed}: {} entries, {seen:?} read", story.lock().last);
    assert!(qlog.stats().rolls > 0);
}

#[test]
fn readers_go_on_beside_a_writer() {
    for seed in 0..12 {
        beside_a_writer(&handle(&SimDisk::new()), options(DIR, 2000), seed, 600);
    }
}

#[test]
fn readers_go_on_beside_a_writer_on_a_real_disk() {
    for seed in 100..102 {
        let dir = tempfile::tempdir().unwrap();
        let settings = options(dir.path().join("qlog"), 2000);
        beside_a_writer(&(Arc::new(RealDisk) as Arc<dyn Disk>), settings, seed, 200);
    }
}
