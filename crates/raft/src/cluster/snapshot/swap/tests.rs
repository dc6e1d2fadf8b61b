//! Power cuts behind every call of a swap.

use std::collections::BTreeMap;

use queen_io::sim::{Explorer, SimDisk};

use super::*;
use crate::cluster::types::{Member, Membership, StoredMembership, log_id};

const DATA: &str = "/data";

fn at(name: &str) -> std::path::PathBuf {
    Path::new(DATA).join(name)
}

fn pending() -> Pending {
    let nodes: BTreeMap<u64, Member> = [(1, Member::default()), (2, Member::default())].into();
    let membership = Membership::new(vec![[1, 2].into()], nodes).unwrap();
    let head = Head {
        vote: Vote::new_committed(5, 1),
        covers: log_id(4, 99),
        membership: StoredMembership::new(Some(log_id(1, 0)), membership),
        bytes: 7,
    };
    Pending::of(&head, "recv-100".to_owned())
}

/// A member with something old, and a snapshot that waits.
fn member(vote: Option<VoteJson>) -> SimDisk {
    let disk = Arc::new(SimDisk::new());
    for (name, text) in [
        ("qlog/q0/r00000001.qlog", "old"),
        ("qlog/q9/r00000001.qlog", "old"),
        ("store/data.mdb", "old"),
        ("store/lock.mdb", "old"),
        ("snapshots/recv-100/qlog/q0/r00000003.qlog", "new"),
        ("snapshots/recv-100/store/data.mdb", "new"),
        ("snapshots/recv-7/store/data.mdb", "of a transfer that never ended"),
    ] {
        disk.set_contents(&at(name), text.as_bytes());
    }
    let files = Files::open(disk.clone(), Path::new(DATA)).unwrap();
    files.write_state(&State { node: 2, vote, ..State::default() }).unwrap();
    replace_json(&*disk, Path::new(DATA), PENDING, &pending()).unwrap();
    disk.copy()
}

fn load(disk: &SimDisk) -> Option<EntryIndex> {
    let disk: Arc<dyn Disk> = Arc::new(disk.copy());
    load_staged(&disk, Path::new(DATA), 2).unwrap()
}

/// Loads on this very disk.
fn load_here(disk: SimDisk) -> (Arc<SimDisk>, Option<EntryIndex>) {
    let disk = Arc::new(disk);
    let shared: Arc<dyn Disk> = disk.clone();
    let loaded = load_staged(&shared, Path::new(DATA), 2).unwrap();
    (disk, loaded)
}

fn check_loaded(disk: &Arc<SimDisk>, vote: VoteJson) {
    let mut names: Vec<String> =
        disk.files().into_iter().map(|(path, _)| path.to_string_lossy().into_owned()).collect();
    names.sort();
    // What a replaced file of `raft/` leaves beside it when the power goes counts for nothing.
    names.retain(|name| Path::new(name).extension().is_none_or(|ext| ext != "tmp"));
    let expected =
        ["qlog/q0/r00000003.qlog", "raft/membership.json", "raft/state.json", "store/data.mdb"];
    assert_eq!(names, expected.map(|name| format!("{DATA}/{name}")));
    assert_eq!(disk.contents(&at("store/data.mdb")).unwrap(), b"new");
    let shared: Arc<dyn Disk> = disk.clone();
    let files = Files::open(shared, Path::new(DATA)).unwrap();
    let state = files.state().unwrap().unwrap();
    let covers = pending().last_log_id;
    assert_eq!((state.node, state.vote, state.purged), (2, Some(vote), Some(covers)));
    assert_eq!(state.terms, [covers]);
    assert_eq!(files.membership().unwrap().membership().get_joint_config().len(), 1);
}

#[test]
fn a_swap_that_loses_power_anywhere_ends_the_same() {
    let (disk, loaded) = load_here(member(None));
    assert_eq!(loaded, Some(EntryIndex(100)));
    check_loaded(&disk, pending().vote);
    let mut count = 0;
    for image in Explorer::new(&disk, 1) {
        let (again, _) = load_here(image.disk);
        check_loaded(&again, pending().vote);
        count += 1;
    }
    assert!(count > 100, "{count} images");
}

#[test]
fn the_members_own_vote_stays_when_it_is_newer() {
    let own = VoteJson::from(&Vote::new(6, 2));
    let (disk, _) = load_here(member(Some(own)));
    check_loaded(&disk, own);
    let older = VoteJson::from(&Vote::new(4, 2));
    let (disk, _) = load_here(member(Some(older)));
    check_loaded(&disk, pending().vote);
}

#[test]
fn a_marker_without_its_snapshot_refuses_and_nothing_staged_is_nothing() {
    let disk = member(None);
    disk.remove(&at("snapshots/recv-100/store/data.mdb"));
    disk.remove(&at("snapshots/recv-100/store"));
    let shared: Arc<dyn Disk> = Arc::new(disk.copy());
    let refused = load_staged(&shared, Path::new(DATA), 2).unwrap_err().to_string();
    assert!(refused.contains("snapshot.pending"), "{refused}");
    disk.remove(&at(PENDING));
    assert_eq!(load(&disk), None);
}
