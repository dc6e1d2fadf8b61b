//! Passes over real logs on a simulated disk, with partitions whose marks a test sets.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use queen_io::{Disk, ManualClock, SimDisk};
use queen_qlog::{DurablePoint, EntryWrite, MessageWrite, Qlog, ReadLimit};
use queen_reclaim::{Fate, Options, Partitions, Pass, Reclaimer};
use queen_record::hash::tx_hash;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId};
use queen_record::layout::Shards;

const ALL: ReadLimit = ReadLimit { messages: u32::MAX, bytes: u64::MAX };

#[derive(Default)]
struct Known {
    /// Marks of the partitions that live, all in the log they were pushed to.
    marks: BTreeMap<PartitionId, (LogId, u64)>,
    queues: BTreeSet<LogId>,
    asked: usize,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Known>>);

impl Partitions for Fake {
    fn fates(&self, ids: &[PartitionId]) -> Vec<Fate> {
        let mut known = self.0.lock();
        known.asked += ids.len();
        let fate = |id| match known.marks.get(id) {
            None => Fate::Gone,
            Some((log, from)) => Fate::Lives { log: *log, from: Offset(*from) },
        };
        ids.iter().map(fate).collect()
    }

    fn in_use(&self, logs: &BTreeSet<LogId>) -> BTreeSet<LogId> {
        logs.intersection(&self.0.lock().queues).copied().collect()
    }
}

struct Rig {
    qlog: Qlog,
    fake: Fake,
    reclaimer: Reclaimer,
    last: EntryIndex,
    next: BTreeMap<(LogId, PartitionId), u64>,
    now: i64,
}

impl Rig {
    fn new(shards: Shards, segment_bytes: u64) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let settings = queen_qlog::Options {
            segment_bytes,
            shards,
            fsync_threads: 0,
            ..queen_qlog::Options::new(Path::new("/qlog"))
        };
        let (qlog, recovery) = Qlog::open(disk, settings, &DurablePoint::default()).unwrap();
        recovery.for_each(&mut |_| Ok(())).unwrap();
        let fake = Fake::default();
        let clock = Arc::new(ManualClock::new(0));
        let options = Options::new(segment_bytes);
        let reclaimer = Reclaimer::new(qlog.clone(), Box::new(fake.clone()), clock, options);
        let (last, next) = (EntryIndex(0), BTreeMap::new());
        Self { qlog, fake, reclaimer, last, next, now: 1_000_000 }
    }

    /// One message of `size` bytes.
    fn push(&mut self, log: u64, partition: u64, size: usize) {
        let key = (LogId(log), PartitionId(partition));
        let base = self.next.entry(key).or_default();
        self.fake.0.lock().queues.insert(key.0);
        self.fake.0.lock().marks.entry(key.1).or_insert((key.0, 0));
        self.last = self.last.next();
        let hashes = [tx_hash(&format!("{log} {partition} {base}"))];
        let message = MessageWrite {
            log: key.0,
            partition: key.1,
            base: Offset(*base),
            created: Micros(self.now),
            hashes: &hashes,
            payload: &vec![7; size],
            compressed: false,
        };
        let entry = EntryWrite {
            index: self.last,
            term: 0,
            now: Micros(self.now),
            bytes: b"entry",
            logs: &[key.0],
            messages: &[message],
        };
        *base += 1;
        let logs = self.qlog.append(&[entry]).unwrap();
        self.qlog.sync(&logs).unwrap();
    }

    fn point(&self) {
        while self.qlog.background().unwrap() {}
        self.qlog.point_written(&self.qlog.durable_point(self.last));
    }

    fn pass(&mut self) -> Pass {
        self.now += 1_000;
        self.reclaimer.pass(Micros(self.now)).unwrap()
    }

    /// Passes and points until nothing is planned; files removed, rewritten, logs removed.
    fn settle(&mut self) -> (u64, u64, u64) {
        let mut done = (0, 0, 0);
        loop {
            self.point();
            let pass = self.pass();
            done.0 += pass.reclaimed.files;
            done.1 += pass.reclaimed.rewrites;
            done.2 += pass.reclaimed.logs;
            if pass.planned == 0 && !pass.is_work_left {
                return done;
            }
        }
    }

    fn mark(&self, partition: u64, from: u64) {
        self.fake.0.lock().marks.get_mut(&PartitionId(partition)).unwrap().1 = from;
    }

    fn offsets(&self, log: u64, partition: u64) -> Vec<u64> {
        let found = self.qlog.read(LogId(log), PartitionId(partition), Offset(0), ALL).unwrap();
        found.iter().map(|record| record.base.0).collect()
    }
}

#[test]
fn messages_below_a_mark_leave_an_own_log() {
    let mut rig = Rig::new(Shards::None, 1000);
    for _ in 0..20 {
        rig.push(10_000, 1, 200);
    }
    assert_eq!(rig.settle(), (0, 0, 0));
    // The first dead message is enough here, and a mark inside a file leaves the rest of it.
    rig.mark(1, 1);
    assert_eq!(rig.settle(), (0, 1, 0));
    assert_eq!(rig.offsets(10_000, 1), (1..20).collect::<Vec<_>>());
    rig.mark(1, 10);
    let (files, ..) = rig.settle();
    assert!(files >= 2, "{files}");
    let left = rig.offsets(10_000, 1);
    assert!(left[0] > 4 && left[0] <= 10 && *left.last().unwrap() == 19, "{left:?}");
}

#[test]
fn a_shared_log_is_rewritten_when_half_of_a_file_is_dead() {
    let mut rig = Rig::new(Shards::Count(1), 2000);
    for round in 0..30 {
        rig.push(2, 1 + round % 3, 150);
    }
    rig.fake.0.lock().marks.remove(&PartitionId(1));
    assert_eq!(rig.settle(), (0, 0, 0), "a third is dead");
    rig.fake.0.lock().marks.remove(&PartitionId(2));
    // What was kept is not looked at whole again at once.
    rig.now += 61_000_000;
    let (files, rewrites, logs) = rig.settle();
    assert!(files == 0 && rewrites >= 2 && logs == 0, "{files} {rewrites} {logs}");
    assert_eq!(rig.offsets(2, 3), (0..10).collect::<Vec<_>>());
    assert!(rig.offsets(2, 1).len() < 10);
}

#[test]
fn files_with_little_left_are_rewritten_several_in_a_pass() {
    let mut rig = Rig::new(Shards::None, 1024 * 1024);
    for _ in 0..60 {
        rig.push(10_000, 1, 200_000);
        rig.push(10_000, 2, 10);
    }
    rig.fake.0.lock().marks.remove(&PartitionId(1));
    rig.point();
    rig.pass();
    rig.point();
    // Four of a quarter of a file each fit the ceiling of one.
    assert_eq!(rig.pass().reclaimed.rewrites, 4);
    assert_eq!(rig.offsets(10_000, 2), (0..60).collect::<Vec<_>>());
}

#[test]
fn a_log_goes_with_its_queue_and_stays_without_messages() {
    let mut rig = Rig::new(Shards::None, 1000);
    for _ in 0..9 {
        rig.push(10_000, 1, 200);
    }
    rig.push(10_001, 2, 10);
    // Its queue is there, its only partition is not.
    rig.fake.0.lock().marks.clear();
    let (files, _, logs) = rig.settle();
    assert!(files >= 2 && logs == 0, "{files} {logs}");
    assert_eq!(rig.qlog.stats().logs, 2);
    rig.fake.0.lock().queues.remove(&LogId(10_000));
    // An entry of the log, as the deletion is one, makes it looked at again.
    rig.push(10_000, 3, 10);
    rig.fake.0.lock().marks.clear();
    rig.fake.0.lock().queues.remove(&LogId(10_000));
    assert_eq!(rig.settle().2, 1);
    assert_eq!(rig.qlog.stats().logs, 1);
}

#[test]
fn a_pass_has_a_ceiling_and_the_next_one_goes_on() {
    let mut rig = Rig::new(Shards::None, 100);
    for _ in 0..700 {
        rig.push(10_000, 1, 60);
    }
    rig.point();
    rig.mark(1, 600);
    let first = rig.pass();
    assert_eq!((first.looked, first.planned, first.is_work_left), (256, 256, true));
    // Four times as many, from where the first one stopped.
    let second = rig.pass();
    assert!(second.looked > 256 && !second.is_work_left, "{second:?}");
    assert_eq!(first.planned + second.planned, 600);
    let asked = rig.fake.0.lock().asked;
    assert_eq!(asked, 2, "a pass asks for a partition once");
    assert_eq!(rig.settle().0, 600);
    assert_eq!(rig.offsets(10_000, 1), (600..700).collect::<Vec<_>>());
}

#[test]
fn old_active_files_are_sealed_for_a_reason_only() {
    let mut rig = Rig::new(Shards::None, 8000);
    rig.push(10_000, 1, 100);
    rig.push(10_001, 2, 100);
    rig.push(10_002, 3, 2000);
    rig.point();
    assert_eq!(rig.pass().sealed, 0);
    rig.mark(1, 1);
    // Too young: looks are 5 s apart.
    rig.now += 10_000_000;
    assert_eq!(rig.pass().sealed, 0);
    rig.now += 600_000_000;
    // One holds a dead message, one is a quarter full, one is neither.
    assert_eq!(rig.pass().sealed, 2);
    assert_eq!(rig.settle().0, 1, "the dead one goes");
    assert_eq!((rig.offsets(10_001, 2), rig.offsets(10_002, 3)), (vec![0], vec![0]));
    rig.push(10_000, 1, 10);
    assert_eq!(rig.offsets(10_000, 1), [1]);
}
