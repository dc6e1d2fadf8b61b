//! Power cuts: behind every call of a scripted run, under every choice of what survives.
//!
//! Whatever is left must open; every synced entry is there, what is there is a prefix of what was sent, opening again
//! changes no byte, a cut during recovery leads to the same end, and writing goes on.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{DIR, Model, assert_entries, assert_reads, options, reopen, write};
use queen_io::sim::{Choice, Explorer};
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, Options, Qlog};
use queen_record::ids::EntryIndex;

fn settings() -> Options {
    Options { prealloc_min_syncs: 1, prealloc_kb: 1, ..options(DIR, 700) }
}

/// What was promised after how many calls.
#[derive(Clone)]
struct Promise {
    calls: u64,
    synced: EntryIndex,
    durable: DurablePoint,
}

fn promise(promises: &mut Vec<Promise>, sim: &SimDisk, qlog: &Qlog, durable: &DurablePoint) {
    promises.push(Promise {
        calls: sim.calls(),
        synced: qlog.synced_index(),
        durable: durable.clone(),
    });
}

/// Groups over three logs and the system log, with rolls, files made ahead, zeros ahead, side files and points.
fn run(sim: &SimDisk, model: &mut Model, rounds: u64, background: bool) -> Vec<Promise> {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut durable = DurablePoint::default();
    let mut promises = vec![Promise { calls: 0, synced: EntryIndex(0), durable: durable.clone() }];
    let (qlog, _, _) = reopen(&disk, settings(), &durable).unwrap();
    for round in 0..rounds {
        let mut group = vec![model.entry(&[(10_000, 1), (10_001, 2)], 2, 60, &[])];
        if round % 2 == 0 {
            group.push(model.entry(&[(10_002, 3)], 1, 20, &[10_000]));
        }
        if round % 5 == 4 {
            group.push(model.entry(&[], 0, 0, &[0]));
        }
        let mut logs = write(&qlog, &group).unwrap();
        if round % 4 == 3 {
            // A second group before the first is synced, as a pipeline would.
            let more = [model.entry(&[(10_001, 2)], 1, 90, &[])];
            logs.extend(write(&qlog, &more).unwrap());
            logs.sort_unstable();
            logs.dedup();
        }
        qlog.sync(&logs).unwrap();
        promise(&mut promises, sim, &qlog, &durable);
        if background {
            while qlog.background().unwrap() {}
        }
        if round % 3 == 2 {
            durable = qlog.durable_point(EntryIndex(model.last().0 - 1));
            promise(&mut promises, sim, &qlog, &durable);
        }
    }
    promises
}

fn logs(sim: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let files = sim.files().into_iter();
    files.map(|(path, _)| (path.clone(), sim.contents(&path).unwrap())).collect()
}

/// Opens the image and checks what is there; the entries it holds.
fn check(image: &SimDisk, model: &Model, promise: &Promise, note: &str, read: bool) -> Model {
    let disk: Arc<dyn Disk> = Arc::new(image.clone());
    let (qlog, entries, cut) = match reopen(&disk, settings(), &promise.durable) {
        Ok(opened) => opened,
        Err(error) => unreachable_open(note, &error.to_string()),
    };
    assert!(cut.last >= promise.synced, "{note}: {} of {}", cut.last, promise.synced);
    assert_eq!(cut.last.0, promise.durable.index.0 + entries.len() as u64, "{note}");
    assert_entries(model, promise.durable.index.next(), &entries);
    let mut kept = model.clone();
    kept.truncate(cut.last);
    assert_eq!(kept.last(), cut.last, "{note}");
    if read {
        assert_reads(&qlog, &kept);
    }
    kept
}

fn unreachable_open(note: &str, error: &str) -> ! {
    std::panic::panic_any(format!("{note}: a power cut was refused: {error}"))
}

fn check_again(image: &SimDisk, kept: &Model, promise: &Promise, note: &str) {
    let before = logs(image);
    check(image, kept, promise, note, false);
    assert!(before == logs(image), "{note}: opening again changed something");
}

fn explore(rounds: u64, background: bool, seed: u64) -> usize {
    explore_on(&SimDisk::new(), rounds, background, seed)
}

fn explore_on(sim: &SimDisk, rounds: u64, background: bool, seed: u64) -> usize {
    let mut model = Model::default();
    let promises = run(sim, &mut model, rounds, background);
    let mut images = 0;
    for image in Explorer::new(sim, seed) {
        images += 1;
        let promise = promises.iter().rfind(|p| p.calls <= image.call).unwrap();
        let note = format!("call {} {:?}", image.call, image.choice);
        let start =
            if images % 997 == 0 { Some(image.disk.crash_now(&Choice::AllKept)) } else { None };
        let kept = check(&image.disk, &model, promise, &note, images % 8 == 0);
        if images % 4 == 0 {
            check_again(&image.disk, &kept, promise, &note);
        }
        if let Some(start) = start {
            during_recovery(&start, &model, promise, kept.last(), &note);
        }
        if images % 101 == 0 {
            go_on(&image.disk, kept, promise, &note);
        }
    }
    images
}

/// A power cut behind each call of a recovery leads to the same end.
fn during_recovery(
    start: &SimDisk,
    model: &Model,
    promise: &Promise,
    last: EntryIndex,
    note: &str,
) {
    check(start, model, promise, note, false);
    for image in Explorer::new(start, 7) {
        let note = format!("{note}, then call {} {:?} of recovery", image.call, image.choice);
        let kept = check(&image.disk, model, promise, &note, false);
        assert_eq!(kept.last(), last, "{note}");
        check_again(&image.disk, &kept, promise, &note);
    }
}

/// Writing goes on after recovery, and a second cut that keeps nothing unsynced loses nothing of it.
fn go_on(image: &SimDisk, mut model: Model, promise: &Promise, note: &str) {
    let disk: Arc<dyn Disk> = Arc::new(image.clone());
    let (qlog, _, _) = reopen(&disk, settings(), &promise.durable).unwrap();
    for _ in 0..4 {
        let group = [
            model.entry(&[(10_000, 1), (10_001, 2), (10_002, 3)], 2, 70, &[]),
            model.entry(&[(10_001, 2)], 1, 10, &[0]),
        ];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
        while qlog.background().unwrap() {}
    }
    assert_reads(&qlog, &model);
    let durable = qlog.durable_point(EntryIndex(model.last().0 - 3));
    let promise = Promise { calls: 0, synced: model.last(), durable };
    for choice in [Choice::AllLost, Choice::AllKept] {
        let left = image.crash_now(&choice);
        check(&left, &model, &promise, &format!("{note}, then {choice:?}"), true);
    }
}

#[test]
fn every_power_cut_of_a_run_recovers() {
    let images = explore(10, true, 1);
    assert!(images > 1000, "{images} images");
}

#[test]
fn every_power_cut_recovers_without_files_made_ahead() {
    let images = explore(9, false, 2);
    assert!(images > 500, "{images} images");
}

#[test]
fn a_failed_call_poisons_and_loses_nothing_acknowledged() {
    use queen_io::sim::SimFault;
    let clean = SimDisk::new();
    run(&clean, &mut Model::default(), 6, true);
    for call in 1..=clean.calls() {
        for fault in [SimFault::Eio, SimFault::Enospc, SimFault::ShortWrite] {
            let sim = SimDisk::new();
            sim.fail_call(call, fault);
            let disk: Arc<dyn Disk> = Arc::new(sim.clone());
            let Ok((qlog, _, _)) = reopen(&disk, settings(), &DurablePoint::default()) else {
                continue;
            };
            let mut model = Model::default();
            let mut synced = EntryIndex(0);
            for _ in 0..6 {
                let group = [model.entry(&[(10_000, 1), (10_001, 2)], 2, 90, &[])];
                let result = write(&qlog, &group).and_then(|logs| qlog.sync(&logs));
                if result.is_err() {
                    assert!(write(&qlog, &[model.entry(&[], 0, 0, &[0])]).is_err());
                    assert!(qlog.sync(&[]).is_err());
                    break;
                }
                synced = group[0].index;
                while let Ok(true) = qlog.background() {}
            }
            let promise = Promise { calls: 0, synced, durable: DurablePoint::default() };
            for choice in [Choice::AllLost, Choice::AllKept] {
                let note = format!("{fault:?} at {call}, {choice:?}");
                check(&sim.crash_now(&choice), &model, &promise, &note, false);
            }
        }
    }
}

/// The tests above would notice a missing sync: each one of a run, left out, breaks a promise.
#[test]
fn every_sync_is_needed() {
    let sim = SimDisk::new();
    run(&sim, &mut Model::default(), 7, true);
    let mut unneeded = Vec::new();
    for site in sim.sync_sites() {
        let sim = SimDisk::new();
        sim.drop_sync(&site);
        let outcome = std::panic::catch_unwind(|| explore_on(&sim, 7, true, 1));
        if outcome.is_ok() {
            unneeded.push(site);
        }
    }
    assert_eq!(unneeded, Vec::<String>::new());
}

/// A process that is killed leaves written records in the page cache: what recovery hands over must not get lost later.
#[test]
fn recovered_entries_are_durable() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, settings(), &DurablePoint::default()).unwrap();
    let first = [model.entry(&[(10_000, 1), (10_001, 2)], 1, 30, &[])];
    qlog.sync(&write(&qlog, &first).unwrap()).unwrap();
    let durable = qlog.durable_point(EntryIndex(1));
    for point in [DurablePoint::default(), durable] {
        let group = [model.entry(&[(10_000, 1), (10_001, 2)], 1, 30, &[0])];
        let disk_now = Arc::new(sim.clone()) as Arc<dyn Disk>;
        let (qlog, _, _) = reopen(&disk_now, settings(), &point).unwrap();
        write(&qlog, &group).unwrap();
        drop(qlog);
        let (_, _, cut) = reopen(&disk_now, settings(), &point).unwrap();
        assert_eq!(cut.last, model.last());
        let promise = Promise { calls: 0, synced: model.last(), durable: point };
        check(&sim.crash_now(&Choice::AllLost), &model, &promise, "killed, then cut", true);
    }
}
