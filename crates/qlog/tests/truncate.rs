//! Truncation of a running node's logs: what is above goes everywhere, whatever files it lies in, and power cuts at any
//! place leave a run without a hole.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::sync::Arc;

use common::{DIR, Model, assert_entries, assert_reads, options, reopen, write};
use queen_io::sim::Explorer;
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, Options, Qlog};
use queen_record::ids::EntryIndex;

fn settings() -> Options {
    Options { prealloc_min_syncs: 1, prealloc_kb: 1, ..options(DIR, 700) }
}

/// Files of four logs rolled, made ahead and given side files, a point in the middle, and unsynced entries at the end.
fn filled(sim: &SimDisk) -> (Qlog, Model, DurablePoint) {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (qlog, _, _) = reopen(&disk, settings(), &DurablePoint::default()).unwrap();
    let mut model = Model::default();
    let mut durable = DurablePoint::default();
    for round in 0..14 {
        let mut group = vec![model.entry(&[(10_000, 1), (10_001, 2)], 2, 60, &[])];
        if round % 2 == 0 {
            group.push(model.entry(&[(10_002, 3)], 1, 20, &[10_000]));
        }
        if round == 9 {
            // A log that is newer than the point.
            group.push(model.entry(&[(10_003, 4)], 1, 90, &[]));
        }
        let logs = write(&qlog, &group).unwrap();
        if round < 13 {
            qlog.sync(&logs).unwrap();
        }
        if round % 3 == 0 {
            while qlog.background().unwrap() {}
        }
        if round == 6 {
            durable = qlog.durable_point(EntryIndex(model.last().0 - 1));
            qlog.point_written(&durable);
        }
    }
    (qlog, model, durable)
}

/// Entries of another leader: other logs, other lengths.
fn others(model: &mut Model) -> Vec<common::Entry> {
    (0..4)
        .flat_map(|_| {
            [
                model.entry(&[(10_001, 2), (10_002, 3)], 3, 41, &[]),
                model.entry(&[(10_000, 1), (10_004, 5)], 1, 33, &[0]),
            ]
        })
        .collect()
}

#[test]
fn what_is_above_goes_and_the_rest_can_be_read_and_followed() {
    let (_, all, durable) = filled(&SimDisk::new());
    for last in durable.index.0..=all.last().0 {
        let sim = SimDisk::new();
        let (qlog, mut model, durable) = filled(&sim);
        let last = EntryIndex(last);
        qlog.truncate_after(last).unwrap();
        model.truncate(last);
        assert_reads(&qlog, &model);
        assert!(qlog.synced_index() <= last);
        let more = others(&mut model);
        for group in more.chunks(3) {
            let logs = write(&qlog, group).unwrap();
            qlog.sync(&logs).unwrap();
            while qlog.background().unwrap() {}
        }
        assert_reads(&qlog, &model);
        drop(qlog);
        let disk: Arc<dyn Disk> = Arc::new(sim);
        let (qlog, entries, cut) = reopen(&disk, settings(), &durable).unwrap();
        assert_eq!((cut.last, cut.bytes), (model.last(), 0), "truncated behind {last}");
        assert_entries(&model, durable.index.next(), &entries);
        assert_reads(&qlog, &model);
    }
}

#[test]
fn truncation_may_follow_truncation() {
    let (qlog, mut model, durable) = filled(&SimDisk::new());
    for back in [1, 2, 5, 3, 7] {
        let last = EntryIndex((model.last().0 - back).max(durable.index.0));
        qlog.truncate_after(last).unwrap();
        model.truncate(last);
        let logs = write(&qlog, &others(&mut model)[..4]).unwrap();
        model.truncate(EntryIndex(last.0 + 4));
        qlog.sync(&logs).unwrap();
        assert_reads(&qlog, &model);
    }
}

#[test]
fn a_point_behind_a_truncation_names_what_is_there() {
    let sim = SimDisk::new();
    let (qlog, mut model, durable) = filled(&sim);
    let last = EntryIndex(durable.index.0 + 3);
    qlog.truncate_after(last).unwrap();
    model.truncate(last);
    let point = qlog.durable_point(last);
    assert_eq!(point.index, last);
    drop(qlog);
    let disk: Arc<dyn Disk> = Arc::new(sim);
    let (qlog, entries, _) = reopen(&disk, settings(), &point).unwrap();
    assert!(entries.is_empty());
    assert_reads(&qlog, &model);
}

#[test]
fn nothing_durable_is_truncated() {
    let (qlog, _, durable) = filled(&SimDisk::new());
    let below = EntryIndex(durable.index.0 - 1);
    let truncated = std::panic::AssertUnwindSafe(|| qlog.truncate_after(below));
    let panic = std::panic::catch_unwind(truncated).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"truncation below the durable point"));
}

#[test]
fn a_power_cut_of_a_truncation_leaves_no_hole() {
    for keep in [0, 2, 5] {
        let sim = SimDisk::new();
        let (qlog, old, durable) = filled(&sim);
        let filled_calls = sim.calls();
        let last = EntryIndex(durable.index.0 + keep);
        qlog.truncate_after(last).unwrap();
        let truncated_calls = sim.calls();
        let mut new = old.clone();
        new.truncate(last);
        let logs = write(&qlog, &others(&mut new)).unwrap();
        qlog.sync(&logs).unwrap();
        let synced_calls = sim.calls();
        drop(qlog);
        let mut images = 0;
        for image in Explorer::new(&sim, keep).filter(|image| image.call >= filled_calls) {
            images += 1;
            let note = format!("keep {keep}, call {} {:?}", image.call, image.choice);
            let disk: Arc<dyn Disk> = Arc::new(image.disk.clone());
            let (qlog, entries, cut) = reopen(&disk, settings(), &durable)
                .unwrap_or_else(|error| unreachable!("{note}: refused: {error}"));
            let (model, least) = match image.call {
                call if call >= synced_calls => (&new, new.last()),
                call if call >= truncated_calls => (&new, last),
                _ => (&old, last),
            };
            assert!(cut.last >= least, "{note}: {} of {least}", cut.last);
            assert_entries(model, durable.index.next(), &entries);
            let mut kept = model.clone();
            kept.truncate(cut.last);
            assert_eq!(kept.last(), cut.last, "{note}");
            if images % 8 == 0 {
                assert_reads(&qlog, &kept);
            }
        }
        assert!(images > 100, "{images} images");
    }
}

#[test]
fn an_empty_file_of_an_earlier_truncation_takes_a_lower_entry() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim);
    let (qlog, _, _) = reopen(&disk, settings(), &DurablePoint::default()).unwrap();
    let mut model = Model::default();
    let both = [(10_000, 1), (10_001, 2)];
    let write_one = |model: &mut Model, targets: &[(u64, u64)]| {
        let logs = write(&qlog, &[model.entry(targets, 1, 300, &[])]).unwrap();
        qlog.sync(&logs).unwrap();
    };
    for targets in [&both[..], &both, &both[1..], &both[1..], &both] {
        write_one(&mut model, targets);
    }
    // The first log rolled for entry 5, then lost it; nothing of it is above 3.
    for last in [4, 3] {
        qlog.truncate_after(EntryIndex(last)).unwrap();
        model.truncate(EntryIndex(last));
    }
    for _ in 0..4 {
        write_one(&mut model, &both);
    }
    while qlog.background().unwrap() {}
    assert_reads(&qlog, &model);
    let (qlog, entries, _) = reopen(&disk, settings(), &DurablePoint::default()).unwrap();
    assert_entries(&model, EntryIndex(1), &entries);
    assert_reads(&qlog, &model);
}
