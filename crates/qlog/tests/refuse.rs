//! Every refusal, and every cut that is none.
//!
//! One directory is written once; each case damages a copy of it and opens that.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{ALL, DIR, Model, Opening, assert_entries, assert_reads, options, reopen, write};
use queen_io::sim::Choice;
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, OpenError, Options, ReadError};
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};
use queen_record::layout::Shards;
use queen_record::record::{EntryBody, EntryPart, decode, encode_entry_part};
use queen_record::scan::{Scanner, Step};

const A: u64 = 2;
const B: u64 = 3;

fn settings() -> Options {
    Options { shards: Shards::Count(4), prealloc_kb: 0, precreate: false, ..options(DIR, 600) }
}

struct Fixture {
    sim: SimDisk,
    model: Model,
    durable: DurablePoint,
}

/// Twelve entries in two logs of several files; durable up to the tenth.
fn fixture() -> Fixture {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, settings(), &DurablePoint::default()).unwrap();
    for _ in 0..12 {
        let group = [model.entry(&[(A, 1), (B, 2)], 1, 60, &[])];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
        while qlog.background().unwrap() {}
    }
    let durable = qlog.durable_point(EntryIndex(10));
    sim.settle();
    Fixture { sim, model, durable }
}

impl Fixture {
    fn copy(&self) -> SimDisk {
        self.sim.crash_now(&Choice::AllKept)
    }

    fn open(&self, sim: &SimDisk) -> Opening {
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        reopen(&disk, settings(), &self.durable)
    }

    fn refused(&self, sim: &SimDisk) -> OpenError {
        let before = records(sim);
        let error = self.open(sim).map(|_| ()).unwrap_err();
        assert!(before == records(sim), "a refusal changes no record: {error}");
        error
    }

    fn newest(&self, log: u64) -> PathBuf {
        self.sim.files().into_iter().map(|(path, _)| path).rfind(|p| is_log(p, log)).unwrap()
    }

    /// The file that was active at the durable point, and its durable length.
    fn durable_file(&self, log: u64) -> (PathBuf, u64) {
        let file = *self.durable.log(LogId(log)).unwrap().files.last().unwrap();
        (file_path(log, file.number), file.len)
    }
}

fn file_path(log: u64, number: u64) -> PathBuf {
    PathBuf::from(format!("{DIR}/q{log}/r{number:08}.qlog"))
}

fn is_log(path: &Path, log: u64) -> bool {
    path.starts_with(format!("{DIR}/q{log}")) && path.extension().is_some_and(|e| e == "qlog")
}

fn records(sim: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let logs =
        sim.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "qlog"));
    logs.map(|(path, _)| (path.clone(), sim.contents(&path).unwrap())).collect()
}

fn edit(sim: &SimDisk, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = sim.contents(path).unwrap();
    change(&mut bytes);
    sim.set_contents(path, &bytes);
}

fn remove(sim: &SimDisk, path: &Path) {
    sim.remove_file(path).unwrap();
    sim.settle();
}

/// Where each record of a file starts.
fn starts(bytes: &[u8]) -> Vec<usize> {
    let mut scanner = Scanner::new(bytes, HEADER_LEN);
    let mut found = Vec::new();
    while let Step::Record { at, .. } = scanner.step() {
        found.push(at);
    }
    found
}

#[test]
fn the_fixture_opens() {
    let fixture = fixture();
    let sim = fixture.copy();
    let (qlog, entries, cut) = fixture.open(&sim).unwrap();
    assert_eq!((entries.len(), cut.bytes), (2, 0));
    assert_entries(&fixture.model, EntryIndex(11), &entries);
    assert_reads(&qlog, &fixture.model);
    assert!(fixture.durable.log(LogId(A)).unwrap().files.len() > 2);
}

#[test]
fn trap_t1_a_bad_record_before_a_durable_one_is_refused() {
    let fixture = fixture();
    for log in [A, B] {
        let (path, len) = fixture.durable_file(log);
        // The file that was active at the point must be active still for this rule.
        let sim = fixture.copy();
        for (file, _) in fixture.sim.files() {
            if is_log(&file, log) && file > path {
                remove(&sim, &file);
            }
        }
        for at in HEADER_LEN..usize::try_from(len).unwrap() {
            let damaged = sim.crash_now(&Choice::AllKept);
            edit(&damaged, &path, |bytes| bytes[at] ^= 4);
            let error = fixture.refused(&damaged);
            assert!(matches!(error, OpenError::ActiveDamage { .. }), "byte {at}: {error}");
            assert!(error.to_string().contains("corruption inside acknowledged data"));
        }
    }
}

#[test]
fn trap_t1_without_recorded_lengths_the_search_decides() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, options(DIR, 1 << 20), &DurablePoint::default()).unwrap();
    for _ in 0..4 {
        let group = [model.entry(&[(10_000, 1)], 1, 60, &[])];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
    }
    sim.settle();
    let path = file_path(10_000, 1);
    let starts = starts(&sim.contents(&path).unwrap());
    for (durable, refused) in [(4, true), (3, true), (2, false)] {
        let sim = sim.crash_now(&Choice::AllKept);
        // The length itself of entry 3's message is damaged: stepping over it leads nowhere.
        edit(&sim, &path, |bytes| bytes[starts[4] + 1] ^= 0x10);
        let disk: Arc<dyn Disk> = Arc::new(sim);
        let point = DurablePoint { index: EntryIndex(durable), ..DurablePoint::default() };
        let result = reopen(&disk, options(DIR, 1 << 20), &point);
        if refused {
            let error = result.map(|_| ()).unwrap_err().to_string();
            let fits =
                error.contains("corruption inside acknowledged data") || error.contains("missing");
            assert!(fits, "{error}");
        } else {
            let (_, entries, cut) = result.unwrap();
            assert_eq!((entries.len(), cut.last), (0, EntryIndex(2)));
        }
    }
}

#[test]
fn trap_t2_one_short_log_is_refused() {
    let fixture = fixture();
    for log in [A, B] {
        let (path, len) = fixture.durable_file(log);
        for cut in [1, 61, len - HEADER_LEN as u64] {
            let sim = fixture.copy();
            for (file, _) in fixture.sim.files() {
                if is_log(&file, log) && file > path {
                    remove(&sim, &file);
                }
            }
            edit(&sim, &path, |bytes| bytes.truncate(usize::try_from(len - cut).unwrap()));
            let error = fixture.refused(&sim);
            assert!(matches!(error, OpenError::FileShort { .. }), "{error}");
            assert!(error.to_string().contains("acknowledged records are missing"));
        }
    }
}

#[test]
fn trap_t3_a_missing_file_log_or_layout_is_refused() {
    let fixture = fixture();
    for tail in &fixture.durable.logs {
        for file in &tail.files {
            let sim = fixture.copy();
            remove(&sim, &file_path(tail.log.0, file.number));
            let error = fixture.refused(&sim);
            assert!(matches!(error, OpenError::FileMissing { .. }), "{error}");
        }
        let sim = fixture.copy();
        let dir = PathBuf::from(format!("{DIR}/q{}", tail.log));
        sim.rename(&dir, Path::new("/gone")).unwrap();
        sim.settle();
        let error = fixture.refused(&sim);
        assert!(matches!(error, OpenError::LogMissing { .. }), "{error}");
        assert!(error.to_string().contains("acknowledged records are missing"));
    }
    for name in ["LANES", "SHARDS"] {
        let path = Path::new(DIR).join(name);
        let sim = fixture.copy();
        remove(&sim, &path);
        assert!(matches!(fixture.refused(&sim), OpenError::LayoutMissing { .. }));
        let sim = fixture.copy();
        sim.set_contents(&path, b"7\n");
        assert!(matches!(fixture.refused(&sim), OpenError::LayoutChanged { .. }));
        let sim = fixture.copy();
        sim.set_contents(&path, b"x\n");
        assert!(matches!(fixture.refused(&sim), OpenError::LayoutUnreadable { .. }));
    }
    // Before the first point the ids of shared logs still give a lost SHARDS away.
    let sim = fixture.copy();
    remove(&sim, &Path::new(DIR).join("SHARDS"));
    let disk: Arc<dyn Disk> = Arc::new(sim);
    let error = reopen(&disk, settings(), &DurablePoint::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::LayoutMissing { .. }));
}

#[test]
fn an_extra_or_longer_file_is_refused() {
    let fixture = fixture();
    let mut point = fixture.durable.clone();
    let gone = point.logs[0].files.remove(0);
    let disk: Arc<dyn Disk> = Arc::new(fixture.copy());
    let error = reopen(&disk, settings(), &point).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::FileUnexpected { .. }), "{error}");
    let sim = fixture.copy();
    edit(&sim, &file_path(A, gone.number), |bytes| bytes.push(0));
    assert!(matches!(fixture.refused(&sim), OpenError::FileLong { .. }));
}

#[test]
fn trap_t4_a_damaged_sealed_file_is_never_served() {
    let fixture = fixture();
    let path = file_path(A, 1);
    let starts = starts(&fixture.sim.contents(&path).unwrap());
    let sim = fixture.copy();
    edit(&sim, &path, |bytes| bytes[starts[0] + 80] ^= 1);
    // With its side files the damage waits for the reader.
    let (qlog, _, _) = fixture.open(&sim).unwrap();
    let error = qlog.read(LogId(A), PartitionId(1), Offset(0), ALL).unwrap_err();
    assert!(matches!(&error, ReadError::Damage { file, .. } if *file == path), "{error}");
    // Without them the file is scanned.
    for ext in ["qidx", "qhsh"] {
        let scanned = sim.crash_now(&Choice::AllKept);
        remove(&scanned, &path.with_extension(ext));
        let error = fixture.refused(&scanned);
        assert!(error.to_string().contains("damaged record at byte"), "{error}");
    }
}

#[test]
fn damaged_side_files_are_made_again() {
    let fixture = fixture();
    for ext in ["qidx", "qhsh"] {
        let path = file_path(A, 1).with_extension(ext);
        let good = fixture.sim.contents(&path).unwrap();
        for at in 0..good.len() {
            let sim = fixture.copy();
            edit(&sim, &path, |bytes| bytes[at] ^= 0x20);
            let (qlog, _, _) = fixture.open(&sim).unwrap();
            assert_eq!(sim.contents(&path).unwrap(), good);
            assert_reads(&qlog, &fixture.model);
        }
    }
    // One that rots after the open is noticed by whoever reads it.
    let sim = fixture.copy();
    let (qlog, _, _) = fixture.open(&sim).unwrap();
    edit(&sim, &file_path(A, 1).with_extension("qidx"), |bytes| bytes[60] ^= 1);
    assert!(qlog.read(LogId(A), PartitionId(1), Offset(0), ALL).is_err());
}

#[test]
fn a_foreign_header_is_refused() {
    let fixture = fixture();
    for (at, byte) in [(0, b'X'), (8, 9), (16, 0xff), (24, 1)] {
        let sim = fixture.copy();
        edit(&sim, &file_path(A, 2), |bytes| bytes[at] = byte);
        assert!(matches!(fixture.refused(&sim), OpenError::Header { .. }));
    }
}

#[test]
fn an_entry_counts_only_when_all_its_parts_are_there() {
    let fixture = fixture();
    // Cut each record of the last entries, from the end of either log: the run ends before the first gap.
    for log in [A, B] {
        let path = fixture.newest(log);
        let bytes = fixture.sim.contents(&path).unwrap();
        for at in starts(&bytes) {
            let seq = decode(&bytes[at..]).unwrap().head.seq;
            if seq <= EntryIndex(10) {
                continue;
            }
            for torn in [0, 1, 20] {
                let sim = fixture.copy();
                edit(&sim, &path, |bytes| bytes.truncate(at + torn));
                let (qlog, entries, cut) = fixture.open(&sim).unwrap();
                assert_eq!(cut.last.0, seq.0 - 1, "log {log} cut at {at}");
                assert_eq!(entries.len() as u64, seq.0 - 11);
                assert!(cut.entries > 0 && cut.bytes > 0);
                let mut kept = fixture.model.clone();
                kept.truncate(cut.last);
                assert_reads(&qlog, &kept);
                let group = [kept.entry(&[(A, 1), (B, 2)], 2, 10, &[])];
                qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
                assert_reads(&qlog, &kept);
                let (qlog, _, cut) = fixture.open(&sim).unwrap();
                assert_eq!((cut.bytes, cut.last), (0, kept.last()));
                assert_reads(&qlog, &kept);
            }
        }
    }
}

#[test]
fn trap_t7_a_cut_lowers_the_first_seq_of_an_empty_file() {
    let fixture = fixture();
    let (path, len) = fixture.durable_file(A);
    let sim = fixture.copy();
    for (file, _) in fixture.sim.files() {
        if is_log(&file, A) && file > path {
            remove(&sim, &file);
        }
    }
    edit(&sim, &path, |bytes| bytes.truncate(usize::try_from(len).unwrap()));
    // A file made for entry 50, of which nothing but the header is left.
    let number = fixture.durable.log(LogId(A)).unwrap().files.last().unwrap().number + 1;
    let header = FileHeader { number, first_seq: EntryIndex(50) }.encode();
    sim.set_contents(&file_path(A, number), &header);
    let (qlog, _, cut) = fixture.open(&sim).unwrap();
    assert_eq!(cut.last, EntryIndex(10));
    let bytes = sim.contents(&file_path(A, number)).unwrap();
    assert_eq!(FileHeader::decode(&bytes).unwrap().first_seq, EntryIndex(11));
    let mut kept = fixture.model.clone();
    kept.truncate(EntryIndex(10));
    let group = [kept.entry(&[(A, 1), (B, 2)], 2, 300, &[])];
    qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
    assert_reads(&qlog, &kept);
}

#[test]
fn parts_that_disagree_are_refused() {
    let fixture = fixture();
    let path = fixture.newest(B);
    let bytes = fixture.sim.contents(&path).unwrap();
    let last = *starts(&bytes).last().unwrap();
    let record = decode(&bytes[last..]).unwrap();
    let good = record.entry_part().unwrap();
    assert!(matches!(good.body, EntryBody::Stub { .. }));
    let EntryBody::Stub { digest, len } = good.body else { return };
    let whole = fixture.model.entries.last().unwrap().bytes.clone();
    let mut other = whole.clone();
    other[0] ^= 1;
    let cases: Vec<(EntryPart<'_>, bool)> = vec![
        (good, true),
        (EntryPart { body: EntryBody::Whole(&whole), ..good }, true),
        (EntryPart { copies: 3, ..good }, false),
        (EntryPart { term: 8, ..good }, false),
        (EntryPart { now: Micros(1), ..good }, false),
        (EntryPart { body: EntryBody::Stub { digest: digest ^ 1, len }, ..good }, false),
        (EntryPart { body: EntryBody::Stub { digest, len: len + 1 }, ..good }, false),
        (EntryPart { body: EntryBody::Whole(&other), ..good }, false),
    ];
    for (part, accepted) in cases {
        let sim = fixture.copy();
        edit(&sim, &path, |bytes| {
            bytes.truncate(last);
            encode_entry_part(&part, bytes).unwrap();
        });
        if accepted {
            assert_eq!(fixture.open(&sim).unwrap().2.last, EntryIndex(12));
        } else {
            let error = fixture.refused(&sim);
            assert!(matches!(error, OpenError::PartsDisagree { .. }), "{error}");
        }
    }
    // A second part of the same entry in one log.
    let sim = fixture.copy();
    edit(&sim, &path, |bytes| bytes.extend_from_within(last..));
    assert!(matches!(fixture.refused(&sim), OpenError::OutOfOrder { .. }));
    // An entry behind a later one.
    let sim = fixture.copy();
    edit(&sim, &path, |bytes| {
        encode_entry_part(&EntryPart { index: EntryIndex(3), ..good }, bytes).unwrap();
    });
    assert!(matches!(fixture.refused(&sim), OpenError::OutOfOrder { .. }));
}

#[test]
fn logs_that_end_before_the_durable_index_are_refused() {
    let fixture = fixture();
    let point = DurablePoint { index: EntryIndex(40), ..DurablePoint::default() };
    let disk: Arc<dyn Disk> = Arc::new(fixture.copy());
    let error = reopen(&disk, settings(), &point).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::LogsShort { .. }), "{error}");
    assert!(error.to_string().contains("acknowledged records are missing"));
}

#[test]
fn a_rejected_entry_cuts_nothing() {
    let fixture = fixture();
    let sim = fixture.copy();
    let before = records(&sim);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (_, recovery) = queen_qlog::Qlog::open(disk, settings(), &fixture.durable).unwrap();
    let error = recovery.for_each(&mut |_| Err("no".to_string())).unwrap_err();
    assert!(matches!(error, OpenError::Rejected { index: EntryIndex(11), .. }));
    assert!(before == records(&sim));
}

#[test]
fn trap_t6_retired_directories_and_leftovers_go_away() {
    let fixture = fixture();
    let sim = fixture.copy();
    for leftover in [
        "q9.dead/r00000001.qlog",
        "q9.dead.2/x",
        "LANES.tmp",
        "q2/r00000001.qlog.compact.tmp",
        "q2/r00000000.dead",
    ] {
        sim.set_contents(&Path::new(DIR).join(leftover), b"junk");
    }
    fixture.open(&sim).unwrap();
    assert_eq!(records(&sim), records(&fixture.sim));
    assert!(sim.files().iter().all(|(path, _)| !path.to_string_lossy().contains("dead")));
}

/// A flipped bit anywhere is refused, harmless, named when read, or (above the durable point only) a cut tail.
#[test]
fn no_flipped_bit_is_ever_served() {
    let fixture = fixture();
    let mut verdicts = [0u32; 4];
    for (path, len) in fixture.sim.files() {
        for at in 0..usize::try_from(len).unwrap() {
            let sim = fixture.copy();
            edit(&sim, &path, |bytes| bytes[at] ^= 1 << (at % 8));
            let Ok((qlog, _, cut)) = fixture.open(&sim) else {
                verdicts[0] += 1;
                continue;
            };
            assert!(cut.last >= EntryIndex(10), "{} byte {at}", path.display());
            let mut kept = fixture.model.clone();
            kept.truncate(cut.last);
            let mut named = false;
            for (log, partition) in [(A, 1), (B, 2)] {
                let log = LogId(log);
                let Ok(found) = qlog.read(log, PartitionId(partition), Offset(0), ALL) else {
                    named = true;
                    continue;
                };
                let entries = kept.entries.iter().flat_map(|e| &e.appends);
                let payloads: Vec<_> =
                    entries.filter(|a| a.log == log).map(|a| a.payload.clone()).collect();
                assert_eq!(found.iter().map(|r| r.payload.to_vec()).collect::<Vec<_>>(), payloads);
            }
            let place = if named { 1 } else { 2 + usize::from(cut.entries > 0) };
            verdicts[place] += 1;
        }
    }
    let [refused, named, harmless, cut] = verdicts;
    assert!(refused > 500 && named > 500 && harmless > 500, "{verdicts:?}");
    // Two of twelve entries lie above the durable point, in either log.
    assert!(cut < (refused + named + harmless + cut) / 5, "{verdicts:?}");
}

/// An entry may be applied before its own sync, where others made it durable: no point may promise it.
#[test]
fn trap_t5_a_point_ends_where_everything_is_synced() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, settings(), &DurablePoint::default()).unwrap();
    let first = [model.entry(&[(A, 1), (B, 2)], 1, 60, &[])];
    qlog.sync(&write(&qlog, &first).unwrap()).unwrap();
    let second = [model.entry(&[(A, 1), (B, 2)], 1, 60, &[])];
    let logs = write(&qlog, &second).unwrap();
    assert_eq!(qlog.durable_point(second[0].index).index, first[0].index);
    // One of two logs is not enough.
    qlog.sync(&logs[..1]).unwrap();
    let point = qlog.durable_point(second[0].index);
    assert_eq!(point.index, first[0].index);
    let left: Arc<dyn Disk> = Arc::new(sim.crash_now(&Choice::AllLost));
    let (_, entries, cut) = reopen(&left, settings(), &point).unwrap();
    assert_eq!((entries.len(), cut.last), (0, first[0].index));
    qlog.sync(&logs).unwrap();
    assert_eq!(qlog.durable_point(second[0].index).index, second[0].index);
}

#[test]
fn trap_t10_a_disk_that_fills_within_a_record_poisons_and_the_next_start_cuts() {
    use queen_io::sim::SimFault;
    for fault in [SimFault::Enospc, SimFault::ShortWrite] {
        let Fixture { sim, mut model, durable } = fixture();
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let (qlog, _, _) = reopen(&disk, settings(), &durable).unwrap();
        let kept = model.last();
        let group = [model.entry(&[(A, 1), (B, 2)], 1, 600, &[])];
        sim.fail_call(sim.calls() + 1, fault);
        let written = write(&qlog, &group).and_then(|logs| qlog.sync(&logs));
        assert!(written.is_err(), "{fault:?}");
        assert!(qlog.is_poisoned() && qlog.sync(&[]).is_err());
        for choice in [Choice::AllKept, Choice::AllLost] {
            let left: Arc<dyn Disk> = Arc::new(sim.crash_now(&choice));
            let (qlog, _, cut) = reopen(&left, settings(), &durable).unwrap();
            assert_eq!(cut.last, kept, "{fault:?} {choice:?}");
            let mut rest = model.clone();
            rest.truncate(kept);
            assert_reads(&qlog, &rest);
        }
    }
}
