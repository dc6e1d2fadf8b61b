//! A process that ends while the system stays up leaves more than a power cut does: names and bytes that can be read
//! and that no sync has made durable, or ever will. What a restart builds on them must survive the next power cut.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::sync::Arc;

use common::{DIR, Model, options, reopen, write};
use queen_io::sim::{Choice, SimFault};
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, Options};

fn settings() -> Options {
    options(DIR, 400)
}

fn handle(sim: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(sim.clone())
}

/// Writes six groups; ends at the first failure. Each reopening must find all that was synced before.
fn work(sim: &SimDisk, model: &mut Model) {
    let Ok((qlog, _, _)) = reopen(&handle(sim), settings(), &DurablePoint::default()) else {
        return;
    };
    for _ in 0..6 {
        let group = [model.entry(&[(10_000, 1), (10_001, 2)], 2, 90, &[])];
        if write(&qlog, &group).and_then(|logs| qlog.sync(&logs)).is_err() {
            return;
        }
        while let Ok(true) = qlog.background() {}
    }
}

#[test]
fn a_restart_behind_a_failed_call_makes_durable_what_it_found() {
    let clean = SimDisk::new();
    work(&clean, &mut Model::default());
    for call in 1..=clean.calls() {
        // A failed sync marks pages clean; an interrupted call stands for a process that was killed there.
        for fault in [SimFault::Eio, SimFault::Eintr] {
            let sim = SimDisk::new();
            sim.fail_call(call, fault);
            let mut model = Model::default();
            work(&sim, &mut model);
            let (qlog, _, cut) =
                reopen(&handle(&sim), settings(), &DurablePoint::default()).unwrap();
            model.truncate(cut.last);
            // Other logs than those whose files may be unsynced.
            let group = [model.entry(&[(10_002, 3)], 1, 20, &[])];
            qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
            let left = sim.crash_now(&Choice::AllLost);
            let opened = reopen(&handle(&left), settings(), &DurablePoint::default());
            let found = opened.map(|(_, _, cut)| cut.last).map_err(|error| error.to_string());
            assert_eq!(found, Ok(model.last()), "{fault:?} at call {call}");
        }
    }
}

/// A recovery that ended between its cut and the sync of it: the next one finds nothing to cut.
#[test]
fn what_a_killed_recovery_cut_does_not_come_back() {
    let sim = SimDisk::new();
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&handle(&sim), settings(), &DurablePoint::default()).unwrap();
    let first = [model.entry(&[(10_000, 1), (10_001, 2)], 1, 30, &[])];
    qlog.sync(&write(&qlog, &first).unwrap()).unwrap();
    let durable = qlog.durable_point(first[0].index);
    let before = model.clone();
    let half = [model.entry(&[(10_000, 1), (10_001, 2)], 1, 30, &[])];
    write(&qlog, &half).unwrap();
    for kept in [Choice::Items(1), Choice::Items(2)] {
        let probe = sim.crash_now(&kept);
        reopen(&handle(&probe), settings(), &durable).unwrap();
        for call in 1..=probe.calls() {
            for log in [10_000, 10_001] {
                let left = sim.crash_now(&kept);
                left.fail_call(call, SimFault::Eintr);
                assert!(reopen(&handle(&left), settings(), &durable).is_err());
                let (qlog, _, cut) = reopen(&handle(&left), settings(), &durable).unwrap();
                let mut model = before.clone();
                model.truncate(cut.last);
                // The index of the entry that was cut, in one of its logs only.
                let group = [model.entry(&[(log, log - 9_999)], 1, 5, &[])];
                qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
                let left = left.crash_now(&Choice::AllLost);
                let opened = reopen(&handle(&left), settings(), &durable);
                let found = opened.map(|(_, _, cut)| cut.last).map_err(|error| error.to_string());
                assert_eq!(found, Ok(model.last()), "{kept:?}, killed at call {call}");
            }
        }
    }
}
