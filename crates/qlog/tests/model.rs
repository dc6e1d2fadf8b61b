//! A log against a list: whatever is appended, rolled, sealed and reopened reads back the same.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::sync::Arc;

use common::{DIR, Model, assert_entries, assert_reads, options, reopen, write};
use proptest::collection::vec;
use proptest::prelude::*;
use queen_io::{Disk, RealDisk, SimDisk};
use queen_qlog::{DurablePoint, Options, ReadLimit};
use queen_record::ids::{EntryIndex, Offset};
use queen_record::layout::Shards;

/// Targets, messages per target, payload bytes, logs that are only touched.
type EntryPlan = (Vec<(u64, u64)>, usize, usize, Vec<u64>);

#[derive(Clone, Debug)]
enum Step {
    Group(Vec<EntryPlan>),
    Background,
    Point,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let targets = vec((10_000u64..10_003, 1u64..4), 0..4).prop_map(|mut list| {
        list.sort_unstable();
        list.dedup();
        list
    });
    let entry = (targets, 1usize..4, 0usize..200, vec(10_000u64..10_003, 0..2));
    let entry = entry.prop_map(|(targets, messages, size, mut extra)| {
        if targets.is_empty() {
            extra.push(0);
        }
        (targets, messages, size, extra)
    });
    prop_oneof![
        8 => vec(entry, 1..4).prop_map(Step::Group),
        3 => Just(Step::Background),
        1 => Just(Step::Point),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_log_is_a_list(
        steps in vec(step(), 1..40), segment in 200u64..2000, prealloc in 0u32..3,
    ) {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let settings = || Options {
            prealloc_kb: prealloc, prealloc_min_syncs: 2, ..options(DIR, segment)
        };
        let mut durable = DurablePoint::default();
        let (mut qlog, _, _) = reopen(&disk, settings(), &durable).unwrap();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Group(list) => {
                    let group: Vec<_> =
                        list.iter().map(|(t, m, s, e)| model.entry(t, *m, *s, e)).collect();
                    let logs = write(&qlog, &group).unwrap();
                    let mut wanted: Vec<_> = group.iter().flat_map(|e| e.logs.clone()).collect();
                    wanted.sort_unstable();
                    wanted.dedup();
                    prop_assert_eq!(&logs, &wanted);
                    prop_assert!(qlog.synced_index() < model.last());
                    qlog.sync(&logs).unwrap();
                    prop_assert_eq!(qlog.synced_index(), model.last());
                }
                Step::Background => { while qlog.background().unwrap() {} }
                Step::Point => {
                    let index = EntryIndex(model.last().0.saturating_sub(1)).max(durable.index);
                    durable = qlog.durable_point(index);
                    prop_assert_eq!(durable.index, index);
                    let mut bytes = Vec::new();
                    durable.encode(&mut bytes);
                    prop_assert_eq!(&DurablePoint::decode(&bytes).unwrap(), &durable);
                }
                Step::Reopen => {
                    drop(qlog);
                    let (again, entries, cut) = reopen(&disk, settings(), &durable).unwrap();
                    prop_assert_eq!((cut.bytes, cut.last), (0, model.last()));
                    prop_assert_eq!(entries.len() as u64, model.last().0 - durable.index.0);
                    assert_entries(&model, durable.index.next(), &entries);
                    qlog = again;
                }
            }
        }
        assert_reads(&qlog, &model);
        while qlog.background().unwrap() {}
        assert_reads(&qlog, &model);
    }
}

#[test]
fn a_real_directory_reads_back() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("qlog");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let settings = Options {
        fsync_threads: 3,
        fd_cache: 2,
        drop_behind_bytes: 4096,
        shards: Shards::Count(4),
        ..options(&dir, 3000)
    };
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, settings.clone(), &DurablePoint::default()).unwrap();
    for round in 0..200 {
        let targets = [(2, 1), (3, 2), (4, round % 7)];
        let group = [model.entry(&targets, 3, 100, &[5]), model.entry(&[], 0, 0, &[0])];
        let before = qlog.stats().syncs;
        let logs = write(&qlog, &group).unwrap();
        qlog.sync(&logs).unwrap();
        qlog.sync(&logs).unwrap();
        assert!(qlog.stats().syncs - before >= 5, "one sync per touched log");
        while round % 3 == 0 && qlog.background().unwrap() {}
    }
    assert_reads(&qlog, &model);
    let stats = qlog.stats();
    assert_eq!((stats.logs, stats.groups, stats.logs_touched), (5, 200, 1000));
    assert!(stats.rolls > 20 && stats.files > 20);
    let point = qlog.durable_point(EntryIndex(350));
    assert_eq!(point.layout, Some((1, 4)));
    drop(qlog);
    let (qlog, entries, cut) = reopen(&disk, settings, &point).unwrap();
    assert_eq!((entries.len(), cut.delivered, cut.bytes), (50, 50, 0));
    assert_entries(&model, EntryIndex(351), &entries);
    assert_reads(&qlog, &model);
    let group = [model.entry(&[(2, 1)], 1, 10, &[])];
    qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
    assert_reads(&qlog, &model);
}

#[test]
fn a_read_that_may_not_wait_takes_only_what_is_in_memory() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (qlog, _, _) = reopen(&disk, options(DIR, 1 << 20), &DurablePoint::default()).unwrap();
    let mut model = Model::default();
    let group = [model.entry(&[(10_000, 1)], 2, 100, &[])];
    write(&qlog, &group).unwrap();
    let limit = ReadLimit { messages: 10, bytes: 1000 };
    let (log, partition) = (group[0].logs[0], group[0].appends[0].partition);
    assert_eq!(qlog.try_read(log, partition, Offset(0), limit).unwrap().unwrap().len(), 1);
    sim.set_cold(true);
    assert_eq!(qlog.try_read(log, partition, Offset(0), limit).unwrap(), None);
    assert_eq!(qlog.read(log, partition, Offset(0), limit).unwrap().len(), 1);
}

#[test]
fn a_roll_keeps_a_group_in_one_file_and_seals_without_zeros() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let settings = Options { prealloc_min_syncs: 0, ..options(DIR, 4000) };
    let (qlog, _, _) = reopen(&disk, settings, &DurablePoint::default()).unwrap();
    let mut model = Model::default();
    for _ in 0..60 {
        let group: Vec<_> = (0..3).map(|_| model.entry(&[(10_000, 1)], 1, 50, &[])).collect();
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
        while qlog.background().unwrap() {}
    }
    let stats = qlog.stats();
    assert!(stats.prealloc_bytes > 0 && stats.rolls > 3);
    let logs = |path: &std::path::Path| path.extension().is_some_and(|ext| ext == "qlog");
    let total: u64 = sim.files().iter().filter(|(p, _)| logs(p)).map(|(_, len)| len).sum();
    let zeros = total - stats.bytes;
    assert!(zeros <= 4000 + 32, "zeros only in the active file, and one header ahead");
    assert_reads(&qlog, &model);
}

#[test]
fn ten_thousand_logs_open_without_a_handle_each() {
    let sim = SimDisk::new();
    sim.forget_journal();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut model = Model::default();
    let (qlog, _, _) = reopen(&disk, options(DIR, 1 << 20), &DurablePoint::default()).unwrap();
    let logs: Vec<u64> = (10_000..20_000).collect();
    let mut synced = Vec::new();
    for chunk in logs.chunks(500) {
        let targets: Vec<_> = chunk.iter().map(|log| (*log, 1)).collect();
        synced.extend(write(&qlog, &[model.entry(&targets, 1, 10, &[])]).unwrap());
    }
    qlog.sync(&synced).unwrap();
    let point = qlog.durable_point(EntryIndex(10));
    assert_eq!(point.logs.len(), 5000);
    drop(qlog);
    let (qlog, entries, cut) = reopen(&disk, options(DIR, 1 << 20), &point).unwrap();
    assert_eq!((entries.len(), cut.bytes, qlog.stats().logs), (10, 0, 10_000));
    assert_eq!(qlog.durable_point(EntryIndex(20)).logs.len(), 10_000);
}
