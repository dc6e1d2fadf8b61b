//! A small part of the damage, and tests of the judge. `cargo xtask damage` does all of it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::path::Path;
use std::sync::Arc;

use queen_doctor::{Finding, Progress, StoreKind, Target, examine};
use queen_io::Disk;
use queen_io::sim::Choice;
use queen_record::ids::Micros;
use queen_record::layout::Shards;
use queen_sim::client::{Client, Item};
use queen_sim::damage::Directory;
use queen_sim::damage::judge::{COLUMNS, Judge, Verdict};
use queen_sim::damage::kinds::{Damage, KINDS, all};
use queen_sim::damage::make;
use queen_sim::history::History;
use queen_sim::node::{DATA, EPOCH, Setup, SimNode, Start, new_disk, open};

/// Flips and sectors of which one in so many is judged; everything else is judged whole.
const EVERY: usize = 97;

fn judge_some(directory: &Directory, takes: &dyn Fn(&Path) -> bool) -> [u64; COLUMNS.len()] {
    let judge = Judge::new(directory).unwrap();
    let mut columns = [0; COLUMNS.len()];
    for (step, damage) in all(directory, takes).iter().enumerate() {
        // Flips, sectors and truncations are many and alike.
        if damage.kind() < 4 && step % EVERY != 0 {
            continue;
        }
        let verdict = judge.judge(damage).verdict;
        columns[verdict.column()] += 1;
        assert!(!matches!(verdict, Verdict::Wrong(_)), "{damage:?}: {verdict:?}");
    }
    columns
}

#[test]
fn nothing_that_is_wrong_with_a_directory_passes_unsaid() {
    for shards in [Shards::None, Shards::Count(2)] {
        let directory = make::plain(shards, 1).unwrap();
        let columns = judge_some(&directory, &|_| true);
        // Every verdict occurs but "no store" alone, which a small part may miss.
        let [refused, repaired, harmless, cut, ..] = columns;
        assert!(refused > 0 && repaired > 0 && harmless > 0 && cut > 0, "{columns:?}");
    }
}

#[test]
fn an_lmdb_file_is_verified_as_well() {
    let plain = make::plain(Shards::None, 1).unwrap();
    let directory = make::lmdb(&plain).unwrap();
    let judge = Judge::new(&directory).unwrap();
    let file = Path::new("/data/store/data.mdb");
    let flips = all(&directory, &|path| path == file);
    let mut refused = 0;
    for damage in flips.iter().filter(|damage| damage.kind() == 0).step_by(4001) {
        let (whole, by_rows) = (judge.judge(damage).verdict, judge.judge_store(damage).verdict);
        assert!(!matches!(whole, Verdict::Wrong(_)), "{damage:?}: {whole:?}");
        assert_eq!(whole, by_rows, "{damage:?}");
        refused += u32::from(matches!(whole, Verdict::Refused(_)));
    }
    assert!(refused > 0);
}

/// The judge must not accept what is another history.
#[test]
fn the_judge_rejects_another_model() {
    let wrong = |change: &dyn Fn(&mut Directory)| {
        let mut directory = make::plain(Shards::None, 1).unwrap();
        change(&mut directory);
        Judge::new(&directory).err().unwrap_or_default()
    };
    assert_eq!(wrong(&|_| {}), "");
    let last = make::plain(Shards::None, 1).unwrap().last;
    assert!(wrong(&|d| d.history.digests.get_mut(&last).unwrap()[0] ^= 1).contains("another"));
    assert!(wrong(&|d| d.last -= 1).contains("never sent"));
    assert!(wrong(&|d| d.last += 1).contains("Shorter"));
    assert!(wrong(&|d| d.durable = last + 1).contains("durable one is above"));
    let first = |d: &mut Directory| {
        let part = d.history.parts.values_mut().find(|part| !part.messages.is_empty()).unwrap();
        part.messages[0].payload.push(0);
    };
    assert!(wrong(&first).contains("offset 0 is another"));
}

#[test]
fn kinds_have_their_places() {
    let directory = make::plain(Shards::None, 1).unwrap();
    let mut seen = [false; KINDS.len()];
    for damage in all(&directory, &|_| true) {
        seen[damage.kind()] = true;
    }
    assert_eq!(seen, [true; KINDS.len()]);
    let pair = |damage: &Damage| matches!(damage, Damage::Deleted(files) if files.len() == 2);
    let files = directory.files.len();
    let pairs = all(&directory, &|_| true).iter().filter(|damage| pair(damage)).count();
    assert_eq!(pairs, files * (files - 1) / 2);
}

/// Between the record of a removal and the removal itself a start finishes it, and the doctor calls that no loss.
#[test]
fn what_reclaim_recorded_and_had_not_done_is_no_finding() {
    let setup = Setup {
        segment_bytes: 1024,
        lanes: 1,
        shards: Shards::None,
        prealloc_kb: 0,
        precreate: true,
    };
    let disk = new_disk();
    let bare = open(&disk, &setup).unwrap();
    let mut node =
        SimNode::start(&disk, bare, Start { now: EPOCH, seed: 1 }, History::new()).unwrap();
    let mut client = Client::default();
    for number in 0..8 {
        let item = Item {
            queue: if number < 6 { "gone" } else { "stays" }.to_owned(),
            partition: "p".to_owned(),
            transaction_id: format!("t{number}"),
            payload: vec![b'1'; 600],
        };
        client.push(&mut node, vec![item]).unwrap();
        client.settle(&mut node).unwrap();
        while node.background().unwrap() {}
    }
    client.delete_queue(&mut node, "gone");
    client.settle(&mut node).unwrap();
    let checkpoint = |node: &mut SimNode| {
        node.begin_checkpoint();
        node.write_checkpoint().unwrap();
    };
    checkpoint(&mut node);
    node.reclaim().unwrap();
    checkpoint(&mut node);
    let now = Micros(node.now());
    let image: Arc<dyn Disk> = Arc::new(disk.crash_now(&Choice::AllKept));
    let target = Target {
        dir: DATA.into(),
        store: StoreKind::Plain,
        key: None,
        now,
        hash_window_min_s: 900,
    };
    let report = examine(&image, &target, &Progress::new()).unwrap();
    assert!(report.starts() && report.is_clean(), "{:?}", report.findings);
    let given_back = |finding: &Finding| finding.what.contains("given back");
    assert!(report.findings.iter().any(given_back), "{:?}", report.findings);
}
