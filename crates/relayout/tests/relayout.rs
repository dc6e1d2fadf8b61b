//! A directory written anew on a simulated disk: it holds the same under every layout, whatever interrupts it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_doctor::{StoreKind, Target};
use queen_io::sim::{Choice, Explorer, SimFault};
use queen_io::{DirEntry, Disk, DiskFile, OpenMode, SimDisk, Space};
use queen_record::header::HEADER_LEN;
use queen_record::ids::Micros;
use queen_record::layout::Shards;
use queen_record::record::decode;
use queen_relayout::{Job, MARK, Outcome, Progress, RelayoutError, Report, relayout};
use queen_sim::client::{Client, Item};
use queen_sim::damage::{Directory, make};
use queen_sim::history::History;
use queen_sim::node::{DATA, EPOCH, Setup, SimNode, Start, new_disk, open};
use queen_sim::oracle::{Bounds, check};
use queen_sim::rng::Rng;
use queen_sim::variant::VARIANTS;
use queen_sim::workload::after_recovery;
use queen_store::{Checkpoint, DiskStore};

const SEED: u64 = 1;
const TO: &str = "/new";
const PARTIAL: &str = "/new.partial";

fn job(shards: Shards, lanes: Option<u32>, segment_bytes: u64) -> Job {
    let from = Target {
        dir: DATA.into(),
        store: StoreKind::Plain,
        key: None,
        now: Micros(EPOCH + 3_600_000_000),
        hash_window_min_s: 900,
    };
    Job { from, to: TO.into(), shards, lanes, segment_bytes }
}

fn run_on(disk: &Arc<dyn Disk>, job: &Job) -> Result<Report, RelayoutError> {
    let open_store = |dir: &Path| {
        let store = DiskStore::open(disk.clone(), dir)?;
        Ok(Box::new(store) as Box<dyn Checkpoint>)
    };
    relayout(disk, &open_store, job, &Progress::new())
}

fn run(disk: &SimDisk, job: &Job) -> Result<Report, RelayoutError> {
    run_on(&(Arc::new(disk.clone()) as Arc<dyn Disk>), job)
}

/// The files below a directory, by their paths in it.
fn files(disk: &SimDisk, dir: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let all = disk.files().into_iter();
    all.filter_map(|(path, _)| {
        let inside = path.strip_prefix(dir).ok()?.to_path_buf();
        Some((inside, disk.contents(&path).unwrap()))
    })
    .collect()
}

/// A disk on which the new directory has the place of the old one.
fn switched(disk: &SimDisk) -> SimDisk {
    let new = new_disk();
    for (path, bytes) in files(disk, TO) {
        new.set_contents(&Path::new(DATA).join(path), &bytes);
    }
    new.settle();
    new
}

fn disk_of(directory: &Directory) -> SimDisk {
    let disk = SimDisk::new();
    for (path, bytes) in &directory.files {
        disk.set_contents(path, bytes);
    }
    disk.settle();
    disk
}

/// Judges a directory by all that is known of it; the node goes on from there.
fn node_on(disk: &SimDisk, setup: &Setup, history: &History, now: i64) -> SimNode {
    let before = disk.fingerprint();
    let bare = open(disk, setup).unwrap();
    assert_eq!(disk.fingerprint(), before, "a start found something to change");
    let applied = bare.opened.state.applied().0;
    assert_eq!(bare.opened.durable.0, applied, "a start found something to apply again");
    let history = history.resumed(applied, applied);
    check(&bare, &history, Bounds::at(disk.calls())).unwrap();
    let start = Start { now: now + 1_000_000, seed: applied };
    SimNode::start(disk, bare, start, history).unwrap()
}

#[test]
fn every_layout_holds_the_same_and_the_work_goes_on_between() {
    let mut dead_bytes = 0;
    for (variant, seed) in VARIANTS.into_iter().zip(SEED..) {
        let setup = variant.setup;
        let (mut disk, run_before) = variant.run(seed, &|_| {}).unwrap();
        assert_eq!(run_before.stopped, None, "{} seed {seed}", variant.name);
        let (mut history, mut now) = (run_before.history, run_before.now);
        let steps = [
            (Shards::Count(4), None),
            (Shards::Count(1), Some(2)),
            (Shards::None, None),
            (Shards::None, Some(1)),
        ];
        for (step, (shards, lanes)) in steps.into_iter().enumerate() {
            let at = format!("{} seed {seed} step {step}", variant.name);
            let old = files(&disk, DATA);
            let report = run(&disk, &job(shards, lanes, setup.segment_bytes)).unwrap();
            assert_eq!(files(&disk, DATA), old, "{at}: the old directory was changed");
            assert!(files(&disk, PARTIAL).is_empty(), "{at}");
            assert_eq!(report.outcome, Outcome::Made, "{at}");
            assert!(report.messages > 0 && report.doctor.is_clean(), "{at}: {report:#?}");
            dead_bytes += report.dead_bytes;
            disk = switched(&disk);
            let mut node = node_on(&disk, &setup, &history, now);
            assert_eq!(node.qlog().layout(), report.layouts.1, "{at}");
            assert_eq!(node.qlog().layout().shards(), shards, "{at}");
            let seed = seed * 16 + u64::try_from(step).unwrap();
            after_recovery(&mut node, seed).unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
            (history, now) = (node.history.clone(), node.now());
        }
    }
    assert!(dead_bytes > 0, "nothing was there to be left out");
}

/// More logs than are kept open, into few and back.
#[test]
fn many_logs_become_one_and_one_becomes_many() {
    let setup = VARIANTS.first().unwrap().setup;
    let disk = new_disk();
    let bare = open(&disk, &setup).unwrap();
    let start = Start { now: EPOCH, seed: SEED };
    let mut node = SimNode::start(&disk, bare, start, History::new()).unwrap();
    let (mut client, mut rng) = (Client::default(), Rng::new(SEED));
    for round in 0..3 {
        let item = |n: u64, len| Item {
            queue: format!("q{n}"),
            partition: format!("p{}", n % 3),
            transaction_id: format!("{round}-{n}"),
            payload: rng.bytes(len),
        };
        let mut item = item;
        let items = (0..150).map(|n| item(n, 30 + 9 * usize::try_from(n % 7).unwrap())).collect();
        client.push(&mut node, items).unwrap();
        client.settle(&mut node).unwrap();
    }
    let (history, now) = (node.history.clone(), node.now());
    drop(node);
    let report = run(&disk, &job(Shards::Count(1), None, setup.segment_bytes)).unwrap();
    assert_eq!((report.logs, report.queues, report.messages), ((150, 1), 150, 450));
    let disk = switched(&disk);
    drop(node_on(&disk, &setup, &history, now));
    let report = run(&disk, &job(Shards::None, None, setup.segment_bytes)).unwrap();
    assert_eq!((report.logs, report.queues, report.messages), ((1, 150), 150, 450));
    drop(node_on(&switched(&disk), &setup, &history, now));
}

/// What a power cut that takes all it can leaves.
fn durable(disk: &SimDisk) -> u128 {
    disk.crash_now(&Choice::AllLost).fingerprint()
}

/// Each sync counts: without it, some power cut after the end leaves something else.
#[test]
fn no_sync_is_there_for_nothing() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job = job(Shards::Count(2), None, 1024);
    let whole = disk_of(&directory);
    run(&whole, &job).unwrap();
    let wanted = whole.fingerprint();
    let (mut sites, mut idle) = (0, Vec::new());
    for site in whole.sync_sites() {
        let disk = disk_of(&directory);
        disk.drop_sync(&site);
        run(&disk, &job).unwrap();
        let is_same = |choice: &Choice| disk.crash_now(choice).fingerprint() == wanted;
        sites += 1;
        if disk.choices(SEED).iter().all(is_same) {
            idle.push(site);
        }
    }
    // That of the store's own name: the whole directory is synced after it.
    assert_eq!(idle, ["sync_dir new.partial #store_directory"], "of {sites}");
    assert!(sites > 10, "{sites}");
}

/// The power fails behind any call, with anything kept of what was not synced: the same run again ends the same.
#[test]
fn any_power_cut_and_the_same_run_again_give_the_same_directory() {
    for (name, shards) in make::LAYOUTS {
        let directory = make::plain(shards, SEED).unwrap();
        let other = if shards == Shards::None { Shards::Count(2) } else { Shards::None };
        let job = job(other, None, 1024);
        let whole = disk_of(&directory);
        let old = files(&whole, DATA);
        let made = run(&whole, &job).unwrap();
        assert_eq!(files(&whole, DATA), old);
        let wanted = whole.fingerprint();
        let (mut seen, mut adopted) = (BTreeSet::new(), 0);
        let mut rng = Rng::new(SEED);
        for image in Explorer::new(&whole, SEED) {
            if !seen.insert(image.fingerprint) {
                continue;
            }
            let at =
                format!("{name} seed {SEED}: cut behind call {} {:?}", image.call, image.choice);
            let again = run(&image.disk, &job).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(image.disk.fingerprint(), wanted, "{at}");
            assert_eq!((again.digest, again.bytes), (made.digest, made.bytes), "{at}");
            assert_eq!(durable(&image.disk), wanted, "{at}");
            adopted += u32::from(again.outcome == Outcome::WasThere);
            // And once more, at some call of the second run.
            if rng.below(8) == 0 {
                let call = rng.below(image.disk.calls() + 1);
                let choice = Choice::ItemsRandom(rng.draw());
                let second = image.disk.crash(call, &choice);
                let at = format!("{at}, then behind call {call} {choice:?}");
                run(&second, &job).unwrap_or_else(|error| panic!("{at}: {error}"));
                assert_eq!(second.fingerprint(), wanted, "{at}");
            }
        }
        assert!(seen.len() > 100 && adopted > 0, "{name}: {} images, {adopted}", seen.len());
    }
}

/// Every call fails once: the run says so and leaves nothing that the next one cannot deal with.
#[test]
fn any_failed_call_is_said_and_the_same_run_again_ends_well() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job = job(Shards::Count(2), None, 1024);
    let whole = disk_of(&directory);
    run(&whole, &job).unwrap();
    let wanted = whole.fingerprint();
    for call in 1..=whole.calls() {
        for fault in [SimFault::Eio, SimFault::ShortWrite] {
            let disk = disk_of(&directory);
            disk.fail_call(call, fault);
            if let Err(error) = run(&disk, &job) {
                let text = error.to_string();
                assert!(
                    text.contains('/') && text.contains("error"),
                    "call {call} {fault:?}: {text}"
                );
            }
            run(&disk, &job)
                .unwrap_or_else(|error| panic!("behind call {call} {fault:?}: {error}"));
            assert_eq!(disk.fingerprint(), wanted, "call {call} {fault:?}");
            assert_eq!(durable(&disk), wanted, "call {call} {fault:?}");
        }
    }
}

#[test]
fn a_damaged_record_is_named_and_nothing_is_left() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job = job(Shards::Count(2), None, 1024);
    let sealed = directory.named(".qidx").next().unwrap().with_extension("qlog");
    let good = directory.files[&sealed].clone();
    for at in (40..good.len()).step_by(17) {
        let disk = disk_of(&directory);
        let mut bad = good.to_vec();
        bad[at] ^= 0x20;
        disk.set_contents(&sealed, &bad);
        let before = disk.fingerprint();
        let error = run(&disk, &job).unwrap_err().to_string();
        let named = error.contains(&sealed.display().to_string()) && error.contains("byte ");
        assert!(named, "byte {at}: {error}");
        assert_eq!(disk.fingerprint(), before, "byte {at}");
    }
}

#[test]
fn what_a_start_refuses_is_not_rewritten() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job = job(Shards::Count(2), None, 1024);
    let sealed = directory.named(".qidx").next().unwrap().with_extension("qlog");
    let disk = disk_of(&directory);
    disk.remove(&sealed);
    let before = disk.fingerprint();
    let error = run(&disk, &job).unwrap_err();
    assert!(matches!(error, RelayoutError::Refused { .. }), "{error}");
    assert!(error.to_string().contains(&sealed.display().to_string()), "{error}");
    assert_eq!(disk.fingerprint(), before);
}

/// Every checksum holds, but a message is not where it should be.
#[test]
fn a_hole_is_named_and_nothing_is_left() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let disk = disk_of(&directory);
    let index = directory.named(".qidx").next().unwrap();
    let sealed = index.with_extension("qlog");
    let mut bytes = directory.files[&sealed].to_vec();
    let (mut at, mut moved) = (HEADER_LEN, None);
    while moved.is_none() {
        let mut record = decode(&bytes[at..]).unwrap();
        let len = record.total_len();
        if record.head.kind.is_message() {
            record.head.base.0 += 1000;
            let mut again = Vec::new();
            record.encode(&mut again);
            moved = Some((record.head.partition, again));
        } else {
            at += len;
        }
    }
    let (partition, again) = moved.unwrap();
    bytes[at..at + again.len()].copy_from_slice(&again);
    disk.set_contents(&sealed, &bytes);
    disk.remove(index);
    let before = disk.fingerprint();
    let error = run(&disk, &job(Shards::Count(2), None, 1024)).unwrap_err();
    assert!(matches!(error, RelayoutError::Missing { .. }), "{error}");
    let text = error.to_string();
    let log = sealed.parent().unwrap().display().to_string();
    assert!(text.contains(&log) && text.contains(&format!("({partition})")), "{text}");
    assert_eq!(disk.fingerprint(), before);
}

#[test]
fn a_name_that_is_taken_stays_as_it_is() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job_for = |shards| job(shards, None, 1024);
    let refused = |disk: &SimDisk, job: &Job| {
        let before = disk.fingerprint();
        let error = run(disk, job).unwrap_err();
        assert!(matches!(error, RelayoutError::Taken { .. }), "{error}");
        assert_eq!(disk.fingerprint(), before, "{error}");
        error.to_string()
    };
    // Something else, under either name.
    for dir in [TO, PARTIAL] {
        let disk = disk_of(&directory);
        disk.set_contents(&Path::new(dir).join("notes.txt"), b"mine");
        let text = refused(&disk, &job_for(Shards::Count(2)));
        assert!(text.contains(dir) && text.contains("is not empty"), "{text}");
    }
    // The result: it was there already, and is that of this layout only.
    let disk = disk_of(&directory);
    run(&disk, &job_for(Shards::Count(2))).unwrap();
    let made = disk.fingerprint();
    let again = run(&disk, &job_for(Shards::Count(2))).unwrap();
    assert_eq!((again.outcome, disk.fingerprint()), (Outcome::WasThere, made));
    assert!(refused(&disk, &job_for(Shards::Count(3))).contains("another layout"));
    // The old directory goes on: the result is out of date.
    let bare = open(&disk, &directory.setup).unwrap();
    let applied = bare.opened.state.applied().0;
    let start = Start { now: directory.now, seed: SEED };
    let history = directory.history.resumed(applied, directory.durable);
    let mut node = SimNode::start(&disk, bare, start, history).unwrap();
    let item = Item {
        queue: "orders".to_owned(),
        partition: "p0".to_owned(),
        transaction_id: "later".to_owned(),
        payload: b"{}".to_vec(),
    };
    let mut client = Client::default();
    client.push(&mut node, vec![item]).unwrap();
    client.settle(&mut node).unwrap();
    drop(node);
    let text = refused(&disk, &job_for(Shards::Count(2)));
    assert!(text.contains("does not hold what /data does"), "{text}");
    // A mark says that nothing in there counts.
    let disk = disk_of(&directory);
    disk.set_contents(&Path::new(PARTIAL).join(MARK), b"");
    disk.set_contents(&Path::new(PARTIAL).join("qlog/q5/r00000001.qlog"), b"half");
    assert_eq!(run(&disk, &job_for(Shards::Count(2))).unwrap().outcome, Outcome::Made);
    assert_eq!(disk.fingerprint(), made);
}

#[test]
fn too_little_room_is_said_before_anything_is_written() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job = job(Shards::Count(2), None, 1024);
    let disk = disk_of(&directory);
    let before = disk.fingerprint();
    let small: Arc<dyn Disk> = Arc::new(Small { disk: disk.clone(), available: 4096 });
    let error = run_on(&small, &job).unwrap_err();
    assert!(matches!(error, RelayoutError::NoRoom { available: 4096, .. }), "{error}");
    assert!(error.to_string().contains("/new needs "), "{error}");
    assert_eq!((disk.fingerprint(), disk.calls()), (before, 0));
    let large: Arc<dyn Disk> = Arc::new(Small { disk: disk.clone(), available: 4 << 20 });
    run_on(&large, &job).unwrap();
    let RelayoutError::NoRoom { needed, .. } = error else { return };
    let taken: usize = files(&disk, TO).values().map(Vec::len).sum();
    assert!(needed >= taken as u64, "{needed} said, {taken} taken");
}

/// A node comes while the old directory is read, and makes the file that it locks.
#[test]
fn a_node_that_was_started_meanwhile_is_noticed() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let disk = disk_of(&directory);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let open_store = |dir: &Path| {
        disk.open(&Path::new(DATA).join("queen.lock"), OpenMode::Truncate).unwrap();
        Ok(Box::new(DiskStore::open(shared.clone(), dir)?) as Box<dyn Checkpoint>)
    };
    let job = job(Shards::Count(2), None, 1024);
    let error = relayout(&shared, &open_store, &job, &Progress::new()).unwrap_err();
    assert!(matches!(error, RelayoutError::Started { .. }), "{error}");
    assert!(files(&disk, TO).is_empty() && files(&disk, PARTIAL).is_empty());
}

/// What is written does not arrive as it was: no name for it, and the same run again ends well.
#[test]
fn what_came_out_wrong_gets_no_name() {
    let directory = make::plain(Shards::None, SEED).unwrap();
    let job = job(Shards::Count(2), None, 1024);
    let whole = disk_of(&directory);
    run(&whole, &job).unwrap();
    let is_made = |path: &Path| {
        path.extension().is_some_and(|end| ["qlog", "qidx", "qhsh"].iter().any(|one| end == *one))
    };
    let made = files(&whole, TO).into_iter().filter(|(path, _)| is_made(path));
    let mut flips = 0;
    for (path, bytes) in made {
        // The header of a log file has no checksum.
        let first = if path.extension().is_some_and(|end| end == "qlog") { 32 } else { 0 };
        for at in (first..bytes.len()).step_by(41) {
            let disk = disk_of(&directory);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let open_store = |dir: &Path| {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                disk.set_contents(&Path::new(PARTIAL).join(&path), &bad);
                Ok(Box::new(DiskStore::open(shared.clone(), dir)?) as Box<dyn Checkpoint>)
            };
            let error = relayout(&shared, &open_store, &job, &Progress::new()).unwrap_err();
            let place = format!("{} byte {at}: {error}", path.display());
            assert!(matches!(error, RelayoutError::Differs { .. }), "{place}");
            assert!(files(&disk, TO).is_empty(), "{place}");
            run(&disk, &job).unwrap_or_else(|again| panic!("{place}, then {again}"));
            assert_eq!(disk.fingerprint(), whole.fingerprint(), "{place}");
            flips += 1;
        }
    }
    assert!(flips > 50, "{flips}");
}

/// A disk with an end.
struct Small {
    disk: SimDisk,
    available: u64,
}

impl Disk for Small {
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn DiskFile>> {
        self.disk.open(path, mode)
    }
    fn create_dir(&self, path: &Path) -> std::io::Result<()> {
        self.disk.create_dir(path)
    }
    fn list(&self, path: &Path) -> std::io::Result<Vec<DirEntry>> {
        self.disk.list(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.disk.link(from, to)
    }
    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        self.disk.remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> std::io::Result<()> {
        self.disk.remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> std::io::Result<()> {
        self.disk.sync_dir(path)
    }
    fn exists(&self, path: &Path) -> std::io::Result<bool> {
        self.disk.exists(path)
    }
    fn space(&self, _: &Path) -> std::io::Result<Option<Space>> {
        Ok(Some(Space { used: 0, available: self.available }))
    }
}
