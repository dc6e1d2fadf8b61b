//! Durable points that are made while files roll.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{DIR, Model, options, reopen, write};
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, FileTail};
use queen_record::ids::{EntryIndex, LogId};

const LOG: u64 = 10_000;
const ENTRIES: u64 = 3000;
const HEADER: u64 = 32;

/// Every entry has a file of its own here: a point as of an entry names that file with its records, or the next one
/// without any, and never that file without any.
#[test]
fn a_point_that_is_made_during_a_roll_names_what_it_is_of() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (qlog, ..) = reopen(&disk, options(DIR, 64), &DurablePoint::default()).unwrap();
    let is_over = AtomicBool::new(false);
    let points = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut points = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                points.push(qlog.durable_point(EntryIndex(u64::MAX)));
            }
            points
        });
        let mut model = Model::default();
        for _ in 0..ENTRIES {
            let entry = model.entry(&[(LOG, 1)], 1, 40, &[]);
            qlog.sync(&write(&qlog, &[entry]).unwrap()).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap()
    });
    let mut during = 0;
    for point in &points {
        let Some(tail) = point.log(LogId(LOG)) else { continue };
        let FileTail { number, len } = *tail.files.last().unwrap();
        let of = tail.tail_index.0;
        let is_right = if len == HEADER { number == of + 1 } else { number == of };
        assert!(is_right, "as of entry {of}: file {number} with {len} bytes");
        during += u64::from(of < ENTRIES);
    }
    assert!(during > 0, "no point was made while there were rolls");
}
