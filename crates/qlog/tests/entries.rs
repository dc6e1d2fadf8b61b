//! Entries read back by index: what was appended comes back, from any place, in pieces of any size, after restarts and
//! truncations; damage is an error; what reclaim took is its own error.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::reopen;
use common::run::{ALL, Run, assert_not_there, assert_reads, handle, read, settings};
use proptest::prelude::*;
use queen_io::{Disk, OpenMode, SimDisk};
use queen_qlog::walk::{FileWalk, Walked};
use queen_qlog::{EntryReader, ReadError, Rewrite, StoredEntry};
use queen_record::ids::{EntryIndex, LogId};

#[test]
fn what_was_appended_is_read() {
    let mut run = Run::new();
    assert_not_there(&run.qlog, &mut EntryReader::default(), 1);
    assert_not_there(&run.qlog, &mut EntryReader::default(), 0);
    assert_eq!(run.qlog.last_entry(), (EntryIndex(0), None));
    run.fill(9, 3);
    run.assert_all();
    run.append(&[(&[(10_001, 4)], 30, &[]), (&[(10_000, 1)], 40, &[0, 10_002])], 4);
    assert!(run.qlog.synced_index() < run.last());
    run.assert_all();
    assert_eq!(run.qlog.last_entry(), (run.last(), Some(4)));
}

#[test]
fn a_reader_that_waits_at_the_end_reads_on() {
    let mut run = Run::new();
    let mut reader = EntryReader::default();
    let mut seen = Vec::new();
    for round in 0..40 {
        run.append(&[(&[(10_000 + round % 5, round)], 100, &[10_001]), (&[], 0, &[0])], 1);
        if round % 3 == 1 {
            run.point(EntryIndex(run.last().0 - 1));
            run.background();
        }
        let next = seen.len() as u64 + 1;
        seen.extend(read(&run.qlog, &mut reader, next, u64::MAX, ALL).unwrap());
        assert_eq!(seen.len(), run.wanted.len());
        assert_not_there(&run.qlog, &mut reader, run.last().0 + 1);
    }
    assert_eq!(seen, run.wanted);
}

#[test]
fn entries_are_read_after_a_restart() {
    for with_point in [false, true] {
        let mut run = Run::new();
        run.fill(6, 2);
        run.write(&[(&[(10_001, 4)], 5, &[])], 5);
        if with_point {
            run.point(EntryIndex(run.last().0 / 2));
        }
        let (qlog, recovered, _) = reopen(&handle(&run.sim), settings(), &run.durable).unwrap();
        assert_reads(&qlog, &run.wanted);
        assert_eq!(qlog.last_entry(), (run.last(), Some(5)));
        let above = run.wanted.iter().filter(|entry| entry.index > run.durable.index);
        for (entry, wanted) in recovered.iter().zip(above) {
            assert_eq!((entry.index, entry.term), (wanted.index, wanted.term));
            assert_eq!((entry.now, &entry.bytes), (wanted.now, &wanted.bytes));
            assert_eq!(entry.messages.len(), wanted.messages.len());
        }
        run.qlog = qlog;
        run.fill(2, 6);
        run.assert_all();
    }
}

#[test]
fn the_term_of_the_points_own_entry_is_read() {
    let mut run = Run::new();
    run.fill(3, 4);
    run.point(run.last());
    let (qlog, _, _) = reopen(&handle(&run.sim), settings(), &run.durable).unwrap();
    assert_eq!(qlog.last_entry(), (run.last(), None));
    let last = run.last().0;
    let found = read(&qlog, &mut EntryReader::default(), last, last + 1, 0).unwrap();
    assert_eq!(found, run.wanted[run.wanted.len() - 1..]);
}

#[test]
fn only_the_new_bytes_are_read_behind_a_truncation() {
    for back in 1..12 {
        let mut run = Run::new();
        run.fill(5, 1);
        run.point(EntryIndex(run.last().0 - 12));
        run.fill(1, 2);
        let end = run.last().0;
        // One that has read all, one that holds an entry back, one that stands far behind.
        let mut readers = [EntryReader::default(), EntryReader::default(), EntryReader::default()];
        read(&run.qlog, &mut readers[0], 1, u64::MAX, ALL).unwrap();
        read(&run.qlog, &mut readers[1], end - 2, u64::MAX, 1).unwrap();
        read(&run.qlog, &mut readers[2], 1, 3, ALL).unwrap();
        run.truncate(EntryIndex((end - back).max(run.durable.index.0)));
        let kept = run.last();
        assert_eq!(run.qlog.last_entry().0, kept);
        let known = run.qlog.last_entry().1;
        assert!(known.is_none_or(|term| term == run.wanted.last().unwrap().term), "{known:?}");
        for reader in &mut readers {
            assert_not_there(&run.qlog, reader, kept.0 + 1);
        }
        for _ in 0..4 {
            run.write(&[(&[(10_001, 4), (10_003, 5)], 31, &[]), (&[(10_000, 1)], 9, &[0])], 3);
        }
        assert_eq!(run.qlog.last_entry(), (run.last(), Some(3)));
        run.assert_all();
        for (reader, from) in readers.iter_mut().zip([kept.0 + 1, end - 1, 3]) {
            let from = from.min(kept.0 + 1);
            let found = read(&run.qlog, reader, from, u64::MAX, ALL).unwrap();
            assert_eq!(found, run.wanted[usize::try_from(from - 1).unwrap()..], "back {back}");
        }
    }
}

/// Number of log and file, and the place of each record in it with its entry.
type Records = Vec<(String, u64, u64, EntryIndex)>;

fn records(sim: &SimDisk) -> Records {
    let mut found = Vec::new();
    for (path, _) in sim.files() {
        if path.extension().is_none_or(|ext| ext != "qlog") {
            continue;
        }
        FileWalk::open(sim, &path)
            .unwrap()
            .each(&path, &mut |step| {
                if let Walked::Record { at, record } = step {
                    let end = at + record.total_len() as u64;
                    found.push((path.display().to_string(), at, end, record.head.seq));
                }
                true
            })
            .unwrap();
    }
    found
}

#[test]
fn a_flipped_byte_is_an_error_or_was_not_needed() {
    for with_point in [false, true] {
        let mut run = Run::new();
        run.fill(4, 2);
        run.background();
        if with_point {
            run.point(EntryIndex(run.last().0 - 3));
        }
        let end = run.last().0 + 1;
        let mut failed = 0;
        for (file, at, until, seq) in records(&run.sim) {
            let log = Path::new(&file).parent().unwrap();
            for place in at..until {
                let disk_file = run.sim.open(Path::new(&file), OpenMode::Write).unwrap();
                let mut byte = [0];
                disk_file.read_at(&mut byte, place).unwrap();
                disk_file.write_all_at(&[byte[0] ^ 0x20], place).unwrap();
                // All in order, and then the damaged entry and its neighbour by a reader that has no place.
                let mut reader = EntryReader::default();
                for index in 1..end {
                    let wanted = &run.wanted[usize::try_from(index - 1).unwrap()];
                    match read(&run.qlog, &mut reader, index, index + 1, ALL) {
                        Ok(found) => {
                            assert_eq!(found, std::slice::from_ref(wanted), "{file} {place}");
                            assert_ne!(index, seq.0, "{file} {place}: damage was not seen");
                        }
                        Err(ReadError::Damage { file: named, offset, .. }) => {
                            assert!(index >= seq.0, "{file} {place}: entry {index} is whole");
                            assert_eq!((named.display().to_string(), offset), (file.clone(), at));
                            failed += 1;
                        }
                        Err(error) => unreachable!("{file} {place}: {error}"),
                    }
                }
                for index in [seq.0, seq.0 + 1] {
                    let found = read(&run.qlog, &mut EntryReader::default(), index, index + 1, ALL);
                    match found {
                        Ok(found) => assert_eq!(found[..], run.wanted[found_range(&found)]),
                        Err(ReadError::Damage { file: named, .. }) => {
                            assert!(named.starts_with(log));
                        }
                        Err(ReadError::NotThere { index, .. }) => assert_eq!(index.0, end),
                        Err(error) => unreachable!("{file} {place}: {error}"),
                    }
                }
                disk_file.write_all_at(&byte, place).unwrap();
            }
        }
        assert!(failed > 1000, "{failed}");
        run.assert_all();
    }
}

fn found_range(found: &[StoredEntry]) -> std::ops::Range<usize> {
    let from = usize::try_from(found[0].index.0 - 1).unwrap();
    from..from + found.len()
}

#[test]
fn a_file_that_ends_early_is_damage() {
    let mut run = Run::new();
    run.fill(4, 2);
    let (file, at, _, seq) = records(&run.sim).pop().unwrap();
    run.sim.open(Path::new(&file), OpenMode::Write).unwrap().set_len(at + 3).unwrap();
    let mut reader = EntryReader::default();
    let found = read(&run.qlog, &mut reader, 1, u64::MAX, ALL).unwrap();
    let from = usize::try_from(seq.0 - 1).unwrap();
    assert_eq!(found, run.wanted[..from]);
    let error = read(&run.qlog, &mut reader, seq.0, u64::MAX, ALL).unwrap_err();
    assert!(matches!(error, ReadError::Damage { .. }), "{error}");
}

/// Files of a log that hold an entry above `floor`, by the records in them.
fn held_above(sim: &SimDisk, floor: EntryIndex) -> BTreeMap<String, usize> {
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for (file, _, _, seq) in records(sim) {
        if seq > floor {
            *held.entry(file).or_default() += 1;
        }
    }
    held
}

/// Reclaims whatever it may: every cold file goes, or is rewritten without every second message.
fn reclaim(run: &mut Run, rewrite: bool) -> u64 {
    for log in run.qlog.logs_from(LogId(0), 100) {
        for file in run.qlog.cold_files(log) {
            let mut kept = false;
            let mut keep = |_: &queen_record::qidx::QidxRecord| {
                kept = !kept;
                kept
            };
            let copied = rewrite
                && matches!(
                    run.qlog.rewrite(log, file.number, &mut keep).unwrap(),
                    Rewrite::Planned(_)
                );
            if !copied {
                run.qlog.plan_unlink(log, &[file.number]);
            }
        }
        if let Some(active) = run.qlog.active_file(log)
            && run.qlog.is_covered(log)
        {
            run.qlog.plan_retire(log, active.last);
        }
    }
    run.point(run.last());
    let done = run.qlog.carry_out().unwrap();
    assert!(done.failed.is_none());
    done.files + done.rewrites + done.logs
}

#[test]
fn the_floor_holds_reclaim_back_and_what_is_below_it_is_not_there() {
    for rewrite in [false, true] {
        let mut run = Run::new();
        run.qlog.set_floor(EntryIndex(0));
        run.fill(12, 2);
        run.background();
        run.point(run.last());
        assert_eq!(reclaim(&mut run, rewrite), 0, "nothing is below the floor");
        run.assert_all();
        let mut taken = 0;
        let mut waiting = EntryReader::default();
        for floor in [5, 9, 17, 30] {
            // It stands in files that are about to change.
            read(&run.qlog, &mut waiting, floor, floor + 1, ALL).unwrap();
            let held = held_above(&run.sim, EntryIndex(floor));
            run.qlog.set_floor(EntryIndex(floor));
            taken += reclaim(&mut run, rewrite);
            assert_eq!(held_above(&run.sim, EntryIndex(floor)), held);
            let above = &run.wanted[usize::try_from(floor).unwrap()..];
            assert_reads(&run.qlog, above);
            let found = read(&run.qlog, &mut waiting, floor + 1, u64::MAX, ALL).unwrap();
            assert_eq!(found, above);
            // Below it entries are there as they were, or are said to be gone.
            let mut gone = 0;
            for index in 1..=floor {
                let wanted = &run.wanted[usize::try_from(index - 1).unwrap()];
                let mut reader = EntryReader::default();
                if let Ok(found) = read(&run.qlog, &mut reader, index, index + 1, ALL) {
                    assert_eq!(found, std::slice::from_ref(wanted));
                } else {
                    gone += 1;
                    assert_not_there(&run.qlog, &mut reader, index);
                }
            }
            assert_eq!(gone > 0, taken > 0, "floor {floor}: {gone} entries, {taken} files");
        }
        assert!(taken > 3, "{taken}");
        // After a restart too.
        let (qlog, _, _) = reopen(&handle(&run.sim), settings(), &run.durable).unwrap();
        assert_reads(&qlog, &run.wanted[30..]);
    }
}

#[test]
fn a_log_goes_only_below_the_floor() {
    let mut run = Run::new();
    run.write(&[(&[(10_000, 1)], 10, &[])], 1);
    run.write(&[(&[(10_001, 2)], 10, &[])], 1);
    run.point(run.last());
    run.qlog.set_floor(EntryIndex(1));
    assert!(run.qlog.is_covered(LogId(10_000)) && !run.qlog.is_covered(LogId(10_001)));
    assert!(!run.qlog.plan_retire(LogId(10_001), EntryIndex(2)));
    let mut reader = EntryReader::default();
    assert_eq!(read(&run.qlog, &mut reader, 1, 2, ALL).unwrap(), run.wanted[..1]);
    assert_eq!(reclaim(&mut run, false), 2, "a log and its file");
    assert_eq!(read(&run.qlog, &mut reader, 2, 3, ALL).unwrap(), run.wanted[1..]);
    assert_not_there(&run.qlog, &mut reader, 1);
    // The log begins anew.
    run.write(&[(&[(10_000, 1)], 10, &[])], 1);
    assert_eq!(read(&run.qlog, &mut reader, 3, 4, ALL).unwrap(), run.wanted[2..]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// One reader, asked for anything in any order beside changes of the logs, says what a list would.
    #[test]
    fn a_reader_may_be_asked_in_any_order(
        steps in proptest::collection::vec((0u8..12, 0u64..1000, 0u64..40, 0usize..900), 1..120),
    ) {
        let mut run = Run::new();
        let mut reader = EntryReader::default();
        let mut next = 1;
        let mut term = 1;
        for (kind, at, len, size) in steps {
            let target = [(10_000 + at % 5, at % 7)];
            match kind {
                0 | 1 => run.write(&[(&target, size, &[])], term),
                2 => run.write(&[(&[], 0, &[0]), (&target, size, &[10_000, 10_004])], term),
                3 => run.background(),
                4 => {
                    let last = run.last();
                    run.point(last);
                }
                5 if at % 3 == 0 => {
                    let last = run.durable.index.0.max(run.last().0.saturating_sub(len));
                    run.truncate(EntryIndex(last));
                    next = next.min(last + 1);
                    term += 1;
                }
                _ => {
                    let from = if at % 2 == 0 { next } else { 1 + at % (run.last().0 + 1) };
                    if from > run.last().0 {
                        assert_not_there(&run.qlog, &mut reader, from);
                        continue;
                    }
                    let found = read(&run.qlog, &mut reader, from, from + 1 + len, size).unwrap();
                    prop_assert!(!found.is_empty() && found[0].index.0 == from);
                    prop_assert_eq!(&found[..], &run.wanted[found_range(&found)]);
                    next = from + found.len() as u64;
                }
            }
        }
        if !run.wanted.is_empty() {
            run.assert_all();
        }
    }
}
