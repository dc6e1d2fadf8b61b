//! What every checkpoint must do, as one test that each implementation passes.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use queen_state::Keyspace;

use crate::checkpoint::{Change, Checkpoint, Loaded};
use crate::error::StoreError;

/// Opens one place again, as after a restart. What it gave before has been dropped.
pub type Reopen = Box<dyn FnMut() -> Box<dyn Checkpoint>>;

/// The rows that a checkpoint should hold.
pub type Model = BTreeMap<(Keyspace, Vec<u8>), Vec<u8>>;

/// Runs the suite. `make` gives an empty place, another for each call.
pub fn run(make: impl Fn() -> Reopen) {
    for case in [
        starts_empty,
        keeps_what_was_written,
        follows_a_model,
        refuses_bad_keys,
        names_a_row_that_its_user_refuses,
    ] {
        case(&mut make());
    }
}

/// All rows, checked to come in order.
///
/// # Errors
/// As [`Checkpoint::load`].
pub fn load(store: &mut dyn Checkpoint) -> Result<(Model, Loaded), StoreError> {
    let mut rows = Model::new();
    let mut before: Option<(usize, Vec<u8>)> = None;
    let loaded = store.load(&mut |keyspace, key, value| {
        let table = Keyspace::ALL.iter().position(|known| *known == keyspace).unwrap();
        let place = (table, key.to_vec());
        assert!(before.as_ref().is_none_or(|before| *before < place), "rows come in order");
        before = Some(place);
        rows.insert((keyspace, key.to_vec()), value.to_vec());
        Ok(())
    })?;
    assert_eq!(loaded.rows, rows.len() as u64);
    Ok((rows, loaded))
}

/// Random changes, sorted, and the model after them. Repeats from its seed.
pub fn random_changes(model: &mut Model, seed: u64, count: u64) -> Vec<Change> {
    let mut state = seed;
    let mut next = |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut changes = BTreeMap::new();
    for _ in 0..count {
        let table = usize::try_from(next(Keyspace::ALL.len() as u64)).unwrap();
        let keyspace = *Keyspace::ALL.get(table).unwrap();
        let mut key = next(200).to_le_bytes().to_vec();
        key.extend((0..next(40)).map(|_| b'k'));
        key.extend((0..if next(20) == 0 { 460 } else { 0 }).map(|_| b'K'));
        let len = if next(15) == 0 { next(20_000) } else { next(120) };
        let fill = next(256).to_le_bytes()[0];
        let value = (next(4) > 0).then(|| vec![fill; usize::try_from(len).unwrap()]);
        changes.insert((keyspace, key), value);
    }
    let mut sorted = Vec::new();
    for ((keyspace, key), value) in changes {
        match &value {
            Some(value) => model.insert((keyspace, key.clone()), value.clone()),
            None => model.remove(&(keyspace, key.clone())),
        };
        sorted.push(Change { keyspace, key, value });
    }
    sorted
}

fn change(keyspace: Keyspace, key: &[u8], value: Option<&[u8]>) -> Change {
    Change { keyspace, key: key.to_vec(), value: value.map(<[u8]>::to_vec) }
}

fn starts_empty(reopen: &mut Reopen) {
    let empty = (Model::new(), Loaded { rows: 0, fresh: true });
    assert_eq!(load(reopen().as_mut()).unwrap(), empty);
    let mut store = reopen();
    let again = (Model::new(), Loaded { rows: 0, fresh: false });
    assert_eq!(load(store.as_mut()).unwrap(), again);
    assert_eq!(store.write(&mut std::iter::empty()).unwrap().rows, 0);
    assert_eq!(load(store.as_mut()).unwrap(), again);
    assert_eq!(store.verify().unwrap(), 0);
}

fn keeps_what_was_written(reopen: &mut Reopen) {
    let mut store = reopen();
    load(store.as_mut()).unwrap();
    let changes = [
        change(Keyspace::Meta, b"applied_index", Some(&[1; 8])),
        change(Keyspace::Queues, b"q", Some(b"")),
        change(Keyspace::Queues, b"r", Some(b"row")),
        change(Keyspace::DeadLetters, &[0; 511], Some(&vec![7; 100_000])),
    ];
    let written = store.write(&mut changes.iter().cloned()).unwrap();
    assert_eq!(written.rows, 4);
    assert!(written.bytes > 100_000);
    let model: Model =
        changes.into_iter().map(|row| ((row.keyspace, row.key), row.value.unwrap())).collect();
    assert_eq!(load(store.as_mut()).unwrap().0, model);
    drop(store);

    // A write may come first: it verifies what it builds on.
    let mut store = reopen();
    let changes = [
        change(Keyspace::Meta, b"applied_index", Some(&[2; 8])),
        change(Keyspace::Queues, b"q", None),
        change(Keyspace::Queues, b"never", None),
        change(Keyspace::Groups, b"twice", Some(b"first")),
        change(Keyspace::Groups, b"twice", Some(b"second")),
    ];
    store.write(&mut changes.into_iter()).unwrap();
    drop(store);
    let mut store = reopen();
    let (rows, _) = load(store.as_mut()).unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows.get(&(Keyspace::Meta, b"applied_index".to_vec())).unwrap(), &[2; 8]);
    assert_eq!(rows.get(&(Keyspace::Groups, b"twice".to_vec())).unwrap(), b"second");
    assert!(!rows.contains_key(&(Keyspace::Queues, b"q".to_vec())));
    assert_eq!(store.verify().unwrap(), 4);
}

fn follows_a_model(reopen: &mut Reopen) {
    let mut model = Model::new();
    for round in 0..30 {
        let mut store = reopen();
        for step in 0..2 {
            let changes = random_changes(&mut model, round * 2 + step, 120);
            store.write(&mut changes.into_iter()).unwrap();
            assert_eq!(store.verify().unwrap(), model.len() as u64);
        }
        assert_eq!(load(store.as_mut()).unwrap().0, model, "round {round}");
    }
    let mut store = reopen();
    let all = model.keys().map(|(keyspace, key)| change(*keyspace, key, None));
    store.write(&mut all.collect::<Vec<_>>().into_iter()).unwrap();
    assert_eq!(load(store.as_mut()).unwrap().0, Model::new());
}

fn refuses_bad_keys(reopen: &mut Reopen) {
    let mut store = reopen();
    let good = change(Keyspace::Queues, b"good", Some(b"row"));
    for (keyspace, key) in [(Keyspace::Queues, &[1; 512][..]), (Keyspace::Cursors, b"")] {
        let bad = change(keyspace, key, Some(b"row"));
        match store.write(&mut [good.clone(), bad].into_iter()) {
            Err(StoreError::KeyTooLong { len, .. }) => assert_eq!(len, key.len()),
            other => panic!("{other:?}"),
        }
    }
    let own = change(Keyspace::Meta, b"store_format", None);
    let refused = store.write(&mut [good.clone(), own].into_iter());
    assert!(matches!(refused, Err(StoreError::KeyReserved { .. })));
    assert_eq!(load(store.as_mut()).unwrap().0, Model::new(), "all or nothing");
    store.write(&mut [good].into_iter()).unwrap();
    assert_eq!(load(store.as_mut()).unwrap().0.len(), 1, "a refusal is no failure");
}

fn names_a_row_that_its_user_refuses(reopen: &mut Reopen) {
    let mut store = reopen();
    let rows = [b"a", b"b", b"c"].map(|key| change(Keyspace::Groups, key, Some(b"row")));
    store.write(&mut rows.into_iter()).unwrap();
    let result = store.load(&mut |_, key, _| {
        if key == b"b" { Err("version 9".to_owned()) } else { Ok(()) }
    });
    match result {
        Err(StoreError::Damage { keyspace, key, reason, .. }) => {
            assert_eq!((keyspace, key.as_slice()), (Some(Keyspace::Groups), b"b".as_slice()));
            assert!(reason.contains("version 9"));
        }
        other => panic!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use queen_io::SimDisk;

    use super::*;
    use crate::{DiskStore, LmdbOptions, LmdbStore};

    #[test]
    fn the_lmdb_store_passes() {
        run(|| {
            let directory = tempfile::tempdir().unwrap();
            let options = LmdbOptions { map_bytes: 1 << 20, headroom_bytes: 4 << 20 };
            Box::new(move || {
                Box::new(LmdbStore::open(&directory.path().join("store"), options).unwrap())
            })
        });
    }

    #[test]
    fn the_disk_store_passes() {
        run(|| {
            let disk = SimDisk::new();
            Box::new(move || {
                Box::new(DiskStore::open(Arc::new(disk.clone()), Path::new("/store")).unwrap())
            })
        });
    }
}
