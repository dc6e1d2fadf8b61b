//! The boundaries of a partition's appends and what each counts, in the active file, in sealed ones, and across them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::sync::Arc;

use common::{DIR, options, reopen};
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, EntryWrite, MessageWrite, Place, Qlog};
use queen_record::compress::PayloadCompressor;
use queen_record::hash::tx_hash;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId, TxHash};

const LOG: LogId = LogId(10_000);
const P: PartitionId = PartitionId(7);

/// What was appended to `P`: base, end, time, bytes it counts.
type Made = (u64, u64, i64, u64);

/// Appends of one to three messages to `P`, every third one compressed, with others of two partitions between them.
fn fill(qlog: &Qlog, appends: u64) -> Vec<Made> {
    let mut packer = PayloadCompressor::new(1).unwrap();
    let (mut made, mut base) = (Vec::new(), 0);
    for number in 1..=appends {
        let count = 1 + number % 3;
        let raw = vec![
            b'a';
            if number % 3 == 0 { 600 + usize::try_from(number).unwrap() * 9 } else { 30 }
        ];
        let packed = packer.compress(&raw);
        let created = Micros(i64::try_from(number).unwrap() * 100);
        let hashes: Vec<TxHash> = (0..count).map(|n| tx_hash(&format!("{number}-{n}"))).collect();
        let message = MessageWrite {
            log: LOG,
            partition: P,
            base: Offset(base),
            created,
            hashes: &hashes,
            payload: packed.as_deref().unwrap_or(&raw),
            compressed: packed.is_some(),
        };
        let other = |partition| MessageWrite {
            partition: PartitionId(partition),
            base: Offset(number - 1),
            hashes: &hashes[..1],
            payload: b"between",
            compressed: false,
            ..message
        };
        let write = EntryWrite {
            index: EntryIndex(number),
            term: 1,
            now: created,
            bytes: b"entry",
            logs: &[LOG],
            messages: &[other(6), message, other(8)],
        };
        qlog.sync(&qlog.append(&[write]).unwrap()).unwrap();
        made.push((base, base + count, created.0, 40 + 16 * count + raw.len() as u64));
        base += count;
    }
    made
}

fn check(qlog: &Qlog, made: &[Made]) {
    let end = made.last().unwrap().1;
    for from in 0..=end {
        for (until, max) in [(i64::MAX, 1000), (i64::MAX, 3), (900, 1000), (0, 4), (1500, 2)] {
            let mut wanted = Vec::new();
            for append in made.iter().filter(|append| append.1 > from) {
                wanted.push(*append);
                if append.2 >= until || wanted.len() > max {
                    break;
                }
            }
            let found = qlog.appends(LOG, P, Offset(from), Micros(until), max).unwrap();
            let place = |place: &Place| (place.base.0, place.end.0, place.created.0);
            let found: Vec<_> = found.iter().map(place).collect();
            let wanted: Vec<_> = wanted.iter().map(|made| (made.0, made.1, made.2)).collect();
            assert_eq!(found, wanted, "from {from} until {until}, {max}");
        }
    }
    for (first, start) in made.iter().enumerate() {
        for last in first..=made.len() {
            let until = made.get(last).map_or(end, |made| made.0);
            let sum: u64 = made[first..last].iter().map(|made| made.3).sum();
            let found = qlog.retained_bytes(LOG, P, Offset(start.0)..Offset(until)).unwrap();
            assert_eq!(found, sum, "{}..{until}", start.0);
        }
    }
    let other = LogId(10_001);
    assert_eq!(qlog.appends(other, P, Offset(0), Micros(i64::MAX), 9).unwrap(), []);
    assert_eq!(qlog.retained_bytes(other, P, Offset(0)..Offset(9)).unwrap(), 0);
}

#[test]
fn appends_and_what_they_count() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let open = || reopen(&disk, options(DIR, 1500), &DurablePoint::default()).unwrap().0;
    let qlog = open();
    let made = fill(&qlog, 24);
    assert!(qlog.stats().rolls > 3, "several files");
    check(&qlog, &made);
    while qlog.background().unwrap() {}
    check(&qlog, &made);
    drop(qlog);
    check(&open(), &made);
}

#[test]
fn a_head_that_is_not_the_indexed_one_is_damage() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (qlog, _, _) = reopen(&disk, options(DIR, 1 << 20), &DurablePoint::default()).unwrap();
    fill(&qlog, 4);
    let (path, _) =
        sim.files().into_iter().find(|(path, _)| path.ends_with("r00000001.qlog")).unwrap();
    let mut bytes = sim.contents(&path).unwrap();
    // The count in the head of the second record, behind the first one's 49 bytes, hash and payload.
    let at = 32 + (49 + 16 + 7) + 4 + 8 + 8 + 8 + 8;
    bytes[at] ^= 1;
    sim.set_contents(&path, &bytes);
    let found = qlog.retained_bytes(LOG, P, Offset(0)..Offset(9));
    assert!(found.unwrap_err().to_string().contains("not the record its index names"));
}
