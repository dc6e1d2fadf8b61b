//! Giving space back: what goes is recorded first, and a power cut at any place leaves a directory that opens.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{ALL, DIR, Entry, Model, assert_entries, options, reopen, write};
use queen_io::sim::{Choice, Explorer, SimFault};
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, OpenError, Options, Qlog, ReadError, ReadLimit, Rewrite};
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};

const A: u64 = 10_000;
const B: u64 = 10_001;
const C: u64 = 10_002;
/// Partition of A whose queue is gone.
const DEAD: u64 = 1;
const LIVE: u64 = 2;
/// Partition of B, which goes as a whole, and the one of the log that comes after it.
const OLD: u64 = 3;
const NEW: u64 = 5;
const SLOW: u64 = 4;
/// A log that is to go and is appended to first.
const D: u64 = 10_003;
const LATE: u64 = 7;
/// A log that goes and does not come back.
const E: u64 = 10_004;

fn settings() -> Options {
    options(DIR, 700)
}

fn handle(sim: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(sim.clone())
}

/// What was promised after how many calls.
#[derive(Clone)]
struct Promise {
    calls: u64,
    synced: EntryIndex,
    durable: DurablePoint,
}

struct Run {
    sim: SimDisk,
    qlog: Qlog,
    model: Model,
    durable: DurablePoint,
    promises: Vec<Promise>,
    /// Calls before anything was planned: `crash.rs` looks at what is before.
    filled: u64,
}

impl Run {
    fn start(sim: SimDisk) -> Self {
        let durable = DurablePoint::default();
        let (qlog, _, _) = reopen(&handle(&sim), settings(), &durable).unwrap();
        let mut run =
            Self { sim, qlog, model: Model::default(), durable, promises: Vec::new(), filled: 0 };
        run.promise();
        run
    }

    fn promise(&mut self) {
        self.promises.push(Promise {
            calls: if self.promises.is_empty() { 0 } else { self.sim.calls() },
            synced: self.qlog.synced_index(),
            durable: self.durable.clone(),
        });
    }

    fn write(&mut self, targets: &[(u64, u64)], size: usize, extra: &[u64]) {
        let group = [self.model.entry(targets, 1, size, extra)];
        self.qlog.sync(&write(&self.qlog, &group).unwrap()).unwrap();
        self.promise();
    }

    fn background(&self) {
        while self.qlog.background().unwrap() {}
    }

    /// The store writes a point.
    fn point(&mut self) {
        let point = self.qlog.durable_point(self.model.last());
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        self.durable = DurablePoint::decode(&bytes).unwrap();
        self.promise();
        self.qlog.point_written(&self.durable);
    }

    fn carry_out(&mut self) -> (u64, u64, u64) {
        let done = self.qlog.carry_out().unwrap();
        assert!(done.failed.is_none());
        self.promise();
        (done.files, done.rewrites, done.logs)
    }

    fn files(&self, log: u64) -> Vec<u64> {
        let log = self.durable.log(LogId(log)).unwrap();
        log.files.iter().map(|file| file.number).collect()
    }

    /// Files full of dead messages, files with both, a log that is idle, one that goes.
    fn fill(&mut self) {
        for _ in 0..3 {
            self.write(&[(A, DEAD), (A, LIVE)], 90, &[]);
        }
        for _ in 0..9 {
            self.write(&[(A, DEAD)], 150, &[0]);
        }
        for _ in 0..3 {
            self.write(&[(A, LIVE), (A, DEAD)], 90, &[]);
        }
        self.write(&[(B, OLD), (C, SLOW), (D, OLD), (E, OLD)], 60, &[]);
        self.background();
        assert!(self.qlog.cold_files(LogId(A)).is_empty(), "no point covers them");
        self.point();
        self.filled = self.sim.calls();
    }

    /// Plans all that can be planned; how many files are to go and to be rewritten.
    fn plan(&mut self) -> (u64, u64) {
        let (mut unlinked, mut rewritten) = (0, 0);
        for log in [A, C] {
            for file in self.qlog.cold_files(LogId(log)) {
                let mut dead = 0;
                let mut all = 0;
                self.qlog
                    .walk_index(LogId(log), file.number, &mut |records| {
                        all += records.len();
                        dead += records.iter().filter(|r| r.partition.0 == DEAD).count();
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                if dead == all {
                    unlinked += self.qlog.plan_unlink(LogId(log), &[file.number]);
                } else if dead > 0 {
                    let mut keep = |r: &queen_record::qidx::QidxRecord| r.partition.0 != DEAD;
                    let done = self.qlog.rewrite(LogId(log), file.number, &mut keep).unwrap();
                    assert!(matches!(done, Rewrite::Planned(len) if len < file.len));
                    rewritten += 1;
                }
            }
        }
        self.promise();
        (unlinked, rewritten)
    }

    fn all(mut self) -> Self {
        self.fill();
        assert!(self.qlog.seal_early(LogId(C), 1).unwrap());
        assert!(!self.qlog.seal_early(LogId(C), 1).unwrap(), "it is no longer active");
        assert!(!self.qlog.seal_early(LogId(C), 2).unwrap(), "it is empty");
        self.background();
        let (unlinked, rewritten) = self.plan();
        assert!(unlinked >= 2 && rewritten >= 2, "{unlinked} and {rewritten}");
        assert!(self.qlog.wants_point());
        assert_eq!(self.carry_out(), (0, 0, 0), "nothing is recorded");
        // A written point of before the plan records nothing.
        self.qlog.point_written(&self.durable.clone());
        assert_eq!(self.carry_out(), (0, 0, 0));
        let last = self.qlog.active_file(LogId(B)).unwrap().last;
        assert!(self.qlog.plan_retire(LogId(B), last));
        self.point();
        assert!(!self.qlog.wants_point());
        assert!(self.durable.log(LogId(B)).unwrap().retired);
        self.write(&[(A, LIVE)], 20, &[]);
        assert_eq!(self.carry_out(), (unlinked + 1, rewritten, 1));
        // The log starts anew while the last point still says that it goes.
        self.write(&[(B, NEW), (A, LIVE)], 40, &[]);
        self.write(&[(C, SLOW)], 40, &[0]);
        self.point();
        let numbers = self.files(A);
        assert!(numbers.windows(2).any(|pair| pair[1] > pair[0] + 1), "there is a hole");
        assert!(self.durable.log(LogId(A)).unwrap().doomed.is_empty());
        assert_eq!(self.files(B), [1]);
        // The sealed file of the slow log is left behind by the point.
        assert_eq!(self.files(C), [1, 2]);
        // Planned, recorded, and undone by an append.
        self.write(&[(D, OLD)], 400, &[]);
        let last = self.qlog.active_file(LogId(D)).unwrap().last;
        assert!(!self.qlog.plan_retire(LogId(D), last), "no point covers it");
        self.point();
        assert!(self.qlog.plan_retire(LogId(D), last));
        self.point();
        self.write(&[(D, LATE)], 30, &[]);
        assert_eq!(self.carry_out(), (0, 0, 0));
        self.point();
        assert!(!self.durable.log(LogId(D)).unwrap().retired);
        self.write(&[(B, NEW), (D, LATE), (A, LIVE)], 30, &[]);
        let last = self.qlog.active_file(LogId(E)).unwrap().last;
        assert!(self.qlog.plan_retire(LogId(E), last));
        // Side files of a sealed file would be made in a directory that goes.
        assert!(!self.qlog.seal_early(LogId(E), 1).unwrap(), "it goes as a whole");
        self.point();
        assert_eq!(self.carry_out(), (1, 0, 1));
        self.point();
        assert!(self.durable.log(LogId(E)).is_none());
        self.write(&[(A, LIVE)], 30, &[]);
        self
    }
}

/// What must still be there: messages of partitions that live.
fn assert_live(qlog: &Qlog, model: &Model) {
    for (log, partition) in [(A, LIVE), (B, NEW), (C, SLOW), (D, LATE)] {
        let mine = |entry: &Entry| {
            let appends = entry.appends.clone().into_iter();
            appends.filter(|a| (a.log.0, a.partition.0) == (log, partition)).collect::<Vec<_>>()
        };
        let wanted: Vec<_> = model.entries.iter().flat_map(mine).collect();
        let found = qlog.read(LogId(log), PartitionId(partition), Offset(0), ALL).unwrap();
        let found: Vec<_> = found.iter().map(|r| (r.base.0, r.payload.to_vec())).collect();
        let wanted: Vec<_> = wanted.into_iter().map(|a| (a.base, a.payload)).collect();
        assert_eq!(found, wanted, "log {log} partition {partition}");
    }
    // What is dead may be there, whole or in part, and verifies.
    let partition = PartitionId(DEAD);
    for offset in 0..20 {
        let one = ReadLimit { messages: 1, bytes: 1 };
        qlog.read(LogId(A), partition, Offset(offset), one).unwrap();
    }
}

fn bytes(sim: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let files = sim.files().into_iter();
    files.map(|(path, _)| (path.clone(), sim.contents(&path).unwrap())).collect()
}

fn check(image: &SimDisk, model: &Model, promise: &Promise) -> Result<Model, String> {
    let opened = reopen(&handle(image), settings(), &promise.durable);
    let (qlog, entries, cut) = opened.map_err(|error| error.to_string())?;
    if cut.last < promise.synced {
        return Err(format!("{} of {}", cut.last, promise.synced));
    }
    assert_entries(model, promise.durable.index.next(), &entries);
    let mut kept = model.clone();
    kept.truncate(cut.last);
    assert_live(&qlog, &kept);
    let all = qlog.hashes_since(Micros(0), &mut |_, _, _, _, _| {});
    all.map_err(|error| error.to_string())?;
    Ok(kept)
}

/// The images of a run, until one is wrong.
fn explore(run: &Run, seed: u64) -> Result<u64, String> {
    let mut images = 0;
    for image in Explorer::new(&run.sim, seed) {
        if image.call < run.filled {
            continue;
        }
        images += 1;
        let promise = run.promises.iter().rfind(|p| p.calls <= image.call).unwrap();
        let wrong = |reason| format!("call {} {:?}: {reason}", image.call, image.choice);
        check(&image.disk, &run.model, promise).map_err(wrong)?;
        if images % 8 == 0 {
            let before = bytes(&image.disk);
            check(&image.disk, &run.model, promise).map_err(wrong)?;
            if before != bytes(&image.disk) {
                return Err(wrong("opening again changed something".to_owned()));
            }
        }
        if images % 700 == 0 {
            let again = image.disk.copy();
            let kept = check(&again, &run.model, promise).map_err(wrong)?;
            for inner in Explorer::new(&again, seed) {
                check(&inner.disk, &kept, promise).map_err(wrong)?;
            }
        }
    }
    Ok(images)
}

#[test]
fn every_power_cut_of_reclaim_recovers() {
    let run = Run::start(SimDisk::new()).all();
    assert_live(&run.qlog, &run.model);
    let images = explore(&run, 1).unwrap();
    assert!(images > 500, "{images} images");
}

#[test]
fn each_sync_of_reclaim_is_needed() {
    let sites = Run::start(SimDisk::new()).all().sim.sync_sites();
    let ours = ["#reclaim", "#rewrite", "#retire", "#seal"];
    let ours: Vec<&String> =
        sites.iter().filter(|site| ours.iter().any(|name| site.ends_with(name))).collect();
    assert_eq!(ours.len(), 4, "{sites:?}");
    for site in ours {
        let sim = SimDisk::new();
        sim.drop_sync(site);
        let run = Run::start(sim).all();
        // The plainest cuts show it.
        let cut = |call| {
            let promise = run.promises.iter().rfind(|p| p.calls <= call).unwrap();
            let image = run.sim.crash(call, &Choice::AllLost);
            check(&image, &run.model, promise)
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (run.filled..=run.sim.calls()).try_for_each(|call| cut(call).map(|_| ()))
        }));
        assert!(!matches!(outcome, Ok(Ok(()))), "{site} is not needed");
    }
}

#[test]
fn only_recorded_holes_are_accepted() {
    let run = Run::start(SimDisk::new()).all();
    run.sim.settle();
    let [first, .., _] = *run.files(A).as_slice() else { unreachable!("A has several files") };
    let gone = (1..100).find(|number| !run.files(A).contains(number)).unwrap();
    let path = |number: u64| PathBuf::from(format!("{DIR}/q{A}/r{number:08}.qlog"));
    let refusal = |change: &dyn Fn(&SimDisk)| {
        let copy = run.sim.crash_now(&Choice::AllKept);
        change(&copy);
        reopen(&handle(&copy), settings(), &run.durable).map(|_| ()).unwrap_err()
    };
    let error = refusal(&|sim| sim.remove(&path(first)));
    assert!(matches!(error, OpenError::FileMissing { .. }), "{error}");
    let bytes = run.sim.contents(&path(first)).unwrap();
    let error = refusal(&|sim| sim.set_contents(&path(gone), &bytes));
    assert!(matches!(error, OpenError::FileUnexpected { .. }), "{error}");
    let error = refusal(&|sim| sim.set_contents(&path(first), &bytes[..bytes.len() - 1]));
    assert!(matches!(error, OpenError::FileShort { .. }), "{error}");
    // A log that nobody recorded and that is older than the point.
    let other = Path::new(DIR).join("q77000/r00000001.qlog");
    let old = run.sim.contents(&path(first)).unwrap();
    let error = refusal(&|sim| {
        let mut bytes = old.clone();
        bytes[8] = 1;
        sim.set_contents(&other, &bytes);
    });
    assert!(matches!(error, OpenError::LogUnexpected { .. }), "{error}");
    // Without a store what is left cannot be applied.
    let copy = run.sim.crash_now(&Choice::AllKept);
    let error =
        reopen(&handle(&copy), settings(), &DurablePoint::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Reclaimed { .. }), "{error}");
}

/// Each call of planning and carrying out fails once: the logs go on, or stop, and nothing live is lost.
#[test]
fn a_failing_call_loses_nothing() {
    let clean = Run::start(SimDisk::new());
    let run = clean.all();
    let first = run.promises.iter().find(|p| !p.durable.logs.is_empty()).unwrap().calls;
    for call in first..=run.sim.calls() {
        for fault in [SimFault::Eio, SimFault::Enospc, SimFault::Eintr] {
            let sim = SimDisk::new();
            let mut run = Run::start(sim.clone());
            run.fill();
            if sim.calls() >= call {
                continue;
            }
            sim.fail_call(call, fault);
            let ended = script_with_fault(&mut run);
            let promise = run.promises.last().unwrap().clone();
            for choice in [Choice::AllLost, Choice::AllKept] {
                let outcome = check(&sim.crash_now(&choice), &run.model, &promise).map(|_| ());
                assert!(outcome.is_ok(), "{fault:?} at {call}, {choice:?}, {ended:?}: {outcome:?}");
            }
        }
    }
}

/// Reclaims as `all` does, and returns the first failure.
fn script_with_fault(run: &mut Run) -> Result<(), String> {
    let text = |error: queen_qlog::Fault| error.to_string();
    run.qlog.seal_early(LogId(C), 1).map_err(text)?;
    while run.qlog.background().map_err(text)? {}
    for file in run.qlog.cold_files(LogId(A)) {
        let mut keep = |r: &queen_record::qidx::QidxRecord| r.partition.0 != DEAD;
        let done = run.qlog.rewrite(LogId(A), file.number, &mut keep);
        if done.map_err(|error| error.to_string())? == Rewrite::Pointless {
            run.qlog.plan_unlink(LogId(A), &[file.number]);
        }
        if run.qlog.wants_point() {
            run.point();
        }
        run.qlog.carry_out().map_err(text)?;
    }
    let last = run.qlog.active_file(LogId(B)).unwrap().last;
    run.qlog.plan_retire(LogId(B), last);
    run.point();
    run.qlog.carry_out().map_err(text)?;
    run.qlog.carry_out().map_err(text)?;
    run.point();
    let group = [run.model.entry(&[(A, LIVE), (C, SLOW)], 1, 30, &[])];
    run.qlog.sync(&write(&run.qlog, &group).map_err(text)?).map_err(text)?;
    run.promise();
    Ok(())
}

/// A file that was cut is damage of this file: the node goes on with the others.
#[test]
fn a_file_that_was_cut_is_not_rewritten_and_stops_nobody() {
    let mut run = Run::start(SimDisk::new());
    run.fill();
    let mut keep = |record: &queen_record::qidx::QidxRecord| record.partition.0 != DEAD;
    let file = run.qlog.cold_files(LogId(A)).remove(0);
    let path = PathBuf::from(format!("{DIR}/q{A}/r{:08}.qlog", file.number));
    let good = run.sim.contents(&path).unwrap();
    for cut in [33, 100, good.len() / 2, good.len() - 1] {
        run.sim.set_contents(&path, &good[..cut]);
        let error = run.qlog.rewrite(LogId(A), file.number, &mut keep).unwrap_err();
        assert!(matches!(&error, ReadError::Damage { file, .. } if *file == path), "{error}");
    }
    run.sim.set_contents(&path, &good);
    let done = run.qlog.rewrite(LogId(A), file.number, &mut keep).unwrap();
    assert!(matches!(done, Rewrite::Planned(_)), "{done:?}");
    run.write(&[(A, LIVE)], 90, &[]);
}

#[test]
fn readers_go_on_while_files_change_under_them() {
    let temp = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(queen_io::RealDisk);
    let settings = Options { fd_cache: 2, ..options(temp.path().join("qlog"), 4000) };
    let (qlog, _, _) = reopen(&disk, settings, &DurablePoint::default()).unwrap();
    let mut model = Model::default();
    for _ in 0..300 {
        let group = [model.entry(&[(A, DEAD), (A, LIVE)], 1, 200, &[])];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
    }
    while qlog.background().unwrap() {}
    let point = |qlog: &Qlog| {
        let point = qlog.durable_point(EntryIndex(300));
        qlog.point_written(&point);
    };
    point(&qlog);
    let live = (LogId(A), PartitionId(LIVE));
    // What retention asks for.
    let appends = || qlog.appends(live.0, live.1, Offset(0), Micros(i64::MAX), 1000).unwrap();
    let retained = || qlog.retained_bytes(live.0, live.1, Offset(0)..Offset(1)).unwrap();
    let (all, bytes) = (appends(), retained());
    assert_eq!(all.len(), 300);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    assert_live(&qlog, &model);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                assert_eq!(appends(), all);
                assert_eq!(retained(), bytes);
            }
        });
        for file in qlog.cold_files(LogId(A)) {
            let mut keep = |r: &queen_record::qidx::QidxRecord| r.partition.0 != DEAD;
            let done = qlog.rewrite(LogId(A), file.number, &mut keep).unwrap();
            assert!(matches!(done, Rewrite::Planned(_)));
            point(&qlog);
            assert_eq!(qlog.carry_out().unwrap().rewrites, 1);
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert_live(&qlog, &model);
    let first = qlog.read(LogId(A), PartitionId(DEAD), Offset(0), ALL).unwrap();
    assert!(first.first().is_some_and(|record| record.base.0 > 200), "the rest is active");
}
