//! A backup of a running node: what is in it, who waits for it, what is left of it.

use std::path::Path;

use queen_archive::{Manifest, Place, Progress, read_archive};
use queen_broker::api::{Api, Backup, CallError};
use queen_broker::backup::STAGING;
use queen_io::sim::Choice;
use queen_io::{Disk, SimDisk};
use queen_record::layout::Shards;

use crate::support::{Rig, dir, ids, statuses};

async fn taken(backup: &mut Backup) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = backup.pieces.recv().await {
        all.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(all.len() as u64, backup.bytes);
    all
}

fn restored(archive: &[u8], like: &Rig) -> (Manifest, Rig) {
    let disk = SimDisk::new();
    let mut place = Place::new(&disk, &dir());
    let manifest = read_archive(&mut &*archive, &mut place, &Progress::new()).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    // Everything that was unpacked is durable.
    let mut rig = Rig::over(disk.crash_now(&Choice::AllLost), like);
    rig.restart();
    (manifest, rig)
}

/// More than waits to be taken.
async fn fill(rig: &Rig) {
    let mut seed = 7u32;
    for n in 0..50 {
        let letter = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'!' + 2 + u8::try_from(seed >> 26).unwrap() % 56)
        };
        let payload: String = (0..60_000).map(letter).collect();
        let payload = format!("\"{}\"", payload.replace(['\\', '"'], "-"));
        rig.push_payloads("orders", "p", &[(&*n.to_string(), &*payload)]).await;
    }
}

/// A thread of its own removes it.
fn wait_until_unstaged(rig: &Rig) {
    let staging = dir().join(STAGING);
    while rig.disk.exists(&staging).unwrap() {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn what_was_answered_before_is_in_it_and_what_comes_later_is_not() {
    for shards in [Shards::None, Shards::Count(2)] {
        let rig = Rig::with_shards(shards);
        for queue in ["orders", "mail", "jobs"] {
            rig.push(queue, "p", &["a", "b"]).await;
        }
        assert_eq!(ids(&rig.pop("mail", "g", 1).await), ["a"]);
        let mut backup = rig.api().backup().await.unwrap();
        // What is pushed while the backup is on its way, to logs that are in it and to a new one.
        for queue in ["orders", "late"] {
            rig.push(queue, "p", &["later"]).await;
        }
        let archive = taken(&mut backup).await;
        let (manifest, copy) = restored(&archive, &rig);
        assert_eq!(manifest.index, backup.index);
        // The lease of mail is in it too.
        for (queue, due) in [("orders", &["a", "b"][..]), ("mail", &[]), ("late", &[])] {
            let found = copy.pop(queue, "g", 9).await;
            assert_eq!(ids(&found), due, "{queue} with {shards:?}");
        }
        // It goes on as the other did, and knows what it has.
        let again = copy.push("orders", "p", &["b", "later"]).await;
        assert_eq!(statuses(&again), [(false, 1), (true, 2)]);
        assert_eq!(statuses(&rig.push("orders", "p", &["later"]).await), [(false, 2)]);
        wait_until_unstaged(&rig);
    }
}

#[tokio::test]
async fn one_at_a_time_and_nothing_is_left_of_one_that_nobody_takes() {
    let rig = Rig::new();
    fill(&rig).await;
    let first = rig.api().backup().await.unwrap();
    assert!(matches!(rig.api().backup().await, Err(CallError::BackupRunning)));
    assert!(rig.disk.exists(&dir().join(STAGING)).unwrap());
    // Nobody takes it: pushes go on all the same.
    rig.push("orders", "p", &["more"]).await;
    drop(first);
    wait_until_unstaged(&rig);
    let mut second = loop {
        match rig.api().backup().await {
            Ok(backup) => break backup,
            Err(CallError::BackupRunning) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    restored(&taken(&mut second).await, &rig);
}

#[tokio::test]
async fn a_node_that_stops_ends_it_and_a_start_clears_it() {
    let mut rig = Rig::new();
    fill(&rig).await;
    let mut backup = rig.api().backup().await.unwrap();
    let crashed = rig.disk.crash_now(&Choice::AllKept);
    assert!(crashed.exists(&dir().join(STAGING)).unwrap());
    rig.stop();
    let mut told = None;
    while let Some(piece) = backup.pieces.recv().await {
        told = piece.err();
    }
    assert_eq!(told.as_deref(), Some("the node is stopping"));
    let mut again = Rig::over(crashed, &rig);
    again.restart();
    assert!(!again.disk.exists(&dir().join(STAGING)).unwrap());
    assert!(rig.start_again().unwrap().api().backup().await.is_ok());
}
