//! Power cuts, faults and damage on the simulated disk.

use queen_io::SimDisk;
use queen_io::sim::{Explorer, Image as Cut, SimFault};

use super::*;
use crate::suite::{Model, load, random_changes};

const DIRECTORY: &str = "/store";

fn open(disk: &SimDisk) -> Result<DiskStore, StoreError> {
    DiskStore::open(Arc::new(disk.clone()), Path::new(DIRECTORY))
}

/// Some checkpoints; with each the number of calls when it was reported. The first is the empty store.
fn run(disk: &SimDisk, writes: u64) -> Vec<(u64, Model)> {
    let mut store = open(disk).unwrap();
    load(&mut store).unwrap();
    let mut model = Model::new();
    let mut reported = vec![(disk.calls(), model.clone())];
    for seed in 0..writes {
        let changes = random_changes(&mut model, seed, 8);
        store.write(&mut changes.into_iter()).unwrap();
        reported.push((disk.calls(), model.clone()));
    }
    reported
}

/// The cut must leave the last checkpoint that was reported, or the next one.
fn check(cut: &Cut, reported: &[(u64, Model)]) -> Result<(), String> {
    let what = format!("call {}, {:?}", cut.call, cut.choice);
    let mut store = open(&cut.disk).map_err(|error| format!("{what}: {error}"))?;
    let (rows, loaded) = load(&mut store).map_err(|error| format!("{what}: {error}"))?;
    let last = reported.iter().rposition(|(call, _)| *call <= cut.call);
    let is = |at: usize| reported.get(at).is_some_and(|(_, model)| *model == rows);
    let right = match last {
        Some(last) => !loaded.fresh && (is(last) || is(last + 1)),
        None => rows.is_empty(),
    };
    if right { Ok(()) } else { Err(what) }
}

#[test]
fn every_power_cut_leaves_the_old_checkpoint_or_the_new_one() {
    let disk = SimDisk::new();
    let reported = run(&disk, 6);
    let mut cuts = 0;
    for cut in Explorer::new(&disk, 3) {
        check(&cut, &reported).unwrap();
        cuts += 1;
    }
    assert!(cuts > 500, "{cuts}");
}

#[test]
fn each_sync_is_needed() {
    let disk = SimDisk::new();
    run(&disk, 3);
    let sites = disk.sync_sites();
    assert_eq!(
        sites,
        [
            "sync_data store/image.tmp #checkpoint",
            "sync_dir / #store_directory",
            "sync_dir store #checkpoint"
        ]
    );
    for site in sites {
        let disk = SimDisk::new();
        disk.drop_sync(&site);
        let reported = run(&disk, 3);
        let failed = Explorer::new(&disk, 3).any(|cut| check(&cut, &reported).is_err());
        assert!(failed, "nothing notices when {site} does nothing");
    }
}

#[test]
fn each_call_may_fail() {
    let calls = {
        let disk = SimDisk::new();
        run(&disk, 3);
        disk.calls()
    };
    for call in 1..=calls {
        for fault in [SimFault::Eio, SimFault::Enospc, SimFault::Eintr, SimFault::ShortWrite] {
            let disk = SimDisk::new();
            disk.fail_call(call, fault);
            let mut models = vec![Model::new()];
            if let Ok(mut store) = open(&disk) {
                let mut failed = load(&mut store).is_err();
                let mut model = Model::new();
                for seed in 0..3 {
                    let changes = random_changes(&mut model, seed, 8);
                    let result = store.write(&mut changes.into_iter());
                    models = vec![models.pop().unwrap(), model.clone()];
                    match result {
                        Ok(_) => models = vec![model.clone()],
                        Err(error) => {
                            failed = true;
                            assert!(matches!(error, StoreError::Fault { .. }), "{error}");
                            let again = store.write(&mut std::iter::empty());
                            assert!(matches!(again, Err(StoreError::Poisoned)));
                            break;
                        }
                    }
                }
                assert!(failed, "call {call}");
            }
            for choice in disk.choices(call) {
                let mut store = open(&disk.crash_now(&choice)).unwrap();
                let rows = load(&mut store).unwrap().0;
                assert!(models.contains(&rows), "call {call} {fault:?} {choice:?}");
            }
        }
    }
}

#[test]
fn every_flipped_bit_and_every_length_is_refused() {
    let disk = SimDisk::new();
    run(&disk, 1);
    let path = Path::new("/store/image");
    let bytes = disk.contents(path).unwrap();
    let refused = |bytes: &[u8]| {
        disk.set_contents(path, bytes);
        match load(&mut open(&disk).unwrap()) {
            Err(StoreError::Damage { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    for bit in (0..bytes.len() * 8).step_by(13) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refused(&flipped);
    }
    for len in (0..bytes.len()).step_by(7) {
        refused(&bytes[..len]);
    }
}

/// The process ends between the rename and its sync, and starts again: what it then loads must stay loaded.
#[test]
fn what_a_load_hands_out_survives_a_power_cut() {
    let disk = SimDisk::new();
    let mut store = open(&disk).unwrap();
    load(&mut store).unwrap();
    let mut model = Model::new();
    let first = random_changes(&mut model, 0, 8);
    store.write(&mut first.into_iter()).unwrap();
    let before = disk.calls();
    let second = random_changes(&mut model, 1, 8);
    // Open, write, sync, rename, and the sync of the directory, which is interrupted.
    disk.fail_call(before + 5, SimFault::Eintr);
    assert!(store.write(&mut second.into_iter()).is_err());
    let (rows, _) = load(&mut open(&disk).unwrap()).unwrap();
    assert!(rows == model, "the rename is to be seen");
    let left = disk.crash_now(&queen_io::sim::Choice::AllLost);
    assert!(load(&mut open(&left).unwrap()).unwrap().0 == model, "and to stay");
}

#[test]
fn a_copied_image_is_that_of_the_last_write() {
    let disk = SimDisk::new();
    let reported = run(&disk, 2);
    let mut store = open(&disk).unwrap();
    load(&mut store).unwrap();
    assert_eq!(store.copy_image(Path::new("/copy")).unwrap(), "image");
    let changes = random_changes(&mut Model::new(), 9, 8);
    store.write(&mut changes.into_iter()).unwrap();
    let copy = SimDisk::new();
    copy.set_contents(
        &Path::new(DIRECTORY).join("image"),
        &disk.contents(Path::new("/copy")).unwrap(),
    );
    assert_eq!(load(&mut open(&copy).unwrap()).unwrap().0, reported.last().unwrap().1);
}
