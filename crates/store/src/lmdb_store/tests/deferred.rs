//! What is put off, merged, scrubbed and compared; and room for all of it.

use super::*;
use crate::ImageStore;

#[test]
fn a_store_that_puts_everything_off_passes_the_suite() {
    crate::suite::run(|| {
        let place = Place::new();
        Box::new(move || Box::new(place.open_eager()))
    });
}

/// A write that is refused after some of its transactions is as if it had not been, and the next one counts.
#[test]
fn what_a_refused_write_left_behind_does_not_count() {
    let place = Place::new();
    let mut store = place.open_eager();
    let mut model = Model::new();
    for seed in 0..12 {
        let bad = Change { keyspace: Keyspace::Cursors, key: vec![1; 600], value: None };
        let lost = random_changes(&mut Model::new(), 100 + seed, 40 + 10 * seed % 40);
        let refused = store.write(&mut lost.into_iter().chain([bad]));
        assert!(matches!(refused, Err(StoreError::KeyTooLong { .. })), "{refused:?}");
        assert!(store.0.deferred.debris() > 0);
        assert_eq!(load(&mut place_again(&place)).unwrap().0, model, "seed {seed}");
        let changes = random_changes(&mut model, seed, 20);
        store.write(&mut changes.into_iter()).unwrap();
        assert_eq!(load(&mut place_again(&place)).unwrap().0, model, "seed {seed}");
        if seed % 3 == 0 {
            // A process that finds them there goes on as well.
            drop(store);
            store = place.open_eager();
        }
    }
}

/// The same file without its lock, for reading.
fn place_again(place: &Place) -> ImageStore {
    ImageStore::of_file(Arc::new(RealDisk), &place.directory().join("data.mdb"))
}

/// From a map that holds next to nothing: every transaction finds room for what it needs at most.
#[test]
fn the_map_grows_before_it_is_needed() {
    for is_eager in [false, true] {
        let place = Place::new();
        let options = LmdbOptions { map_bytes: 64 << 10, headroom_bytes: 0 };
        let mut store = LmdbStore::open(&place.directory(), options).unwrap();
        if is_eager {
            store = Eager::over(store).0;
        }
        let mut model = Model::new();
        for round in 0..24_u8 {
            let rows = (0..200_u64).map(|number| {
                let len = match (number + u64::from(round)) % 50 {
                    0 => 300_000 * usize::from(round % 4),
                    1 => 1990,
                    _ => 100,
                };
                let key = ((number * 7919 % 200) << 20).to_le_bytes().to_vec();
                Change { keyspace: Keyspace::DeadLetters, key, value: Some(vec![round; len]) }
            });
            for row in rows.clone() {
                model.insert((row.keyspace, row.key), row.value.unwrap());
            }
            store.write(&mut rows.into_iter()).unwrap();
            while store.merge().unwrap().more {}
        }
        assert_eq!(load(&mut store).unwrap().0, model);
        assert!(store.options.map_bytes > 1 << 20);
    }
}

/// A file of the build before the delta is read, written on, and then one of this build.
#[test]
fn a_file_without_a_delta_is_read_and_written_on() {
    let bytes = file_with_own_rows(&[(FORMAT_KEY, 1_u32.to_le_bytes().to_vec())]);
    let place = Place::with_file(&bytes);
    let mut store = place.open_eager();
    assert_eq!(load(&mut store).unwrap().0, Model::new());
    assert_eq!(place.bytes(), bytes, "reading changes nothing");
    let mut model = Model::new();
    for seed in 0..9 {
        let changes = random_changes(&mut model, seed, 40);
        store.write(&mut changes.into_iter()).unwrap();
        assert_eq!(store.0.format, FORMAT);
        assert_eq!(verify(&place.bytes()).unwrap(), model);
    }
}

/// All rows as a scrub meets them: its steps may be of any size, and writes come between.
#[test]
fn a_scrub_reads_every_row_between_writes() {
    for step in [1, 7, 1000] {
        let place = Place::new();
        let mut store = place.open_eager().0;
        let mut model = Model::new();
        store.write(&mut random_changes(&mut model, 1, 150).into_iter()).unwrap();
        let batches = store.deferred.pending().next - store.deferred.pending().first;
        let (mut scrub, mut read) = (ScrubPlace::default(), 0);
        loop {
            let rows = store.scrub(&mut scrub, step).unwrap();
            read += rows;
            if rows < step {
                break;
            }
            store.write(&mut std::iter::empty()).unwrap();
        }
        assert_eq!(scrub, ScrubPlace::default());
        // Nothing is in its table yet but the rows of meta: the batches, and the store's own three.
        let meta = model.keys().filter(|(keyspace, _)| *keyspace == Keyspace::Meta).count() as u64;
        assert_eq!(read, batches + meta + 3, "step {step}");
        while store.merge().unwrap().more {}
        for seed in 2..9 {
            store.write(&mut random_changes(&mut model, seed, 10).into_iter()).unwrap();
            while store.merge().unwrap().more {}
        }
    }
}

#[test]
fn a_scrub_meets_what_is_damaged() {
    let (bytes, _) = history(6, 60).pop().unwrap();
    let place = Place::with_file(&bytes);
    let mut store = place.open();
    load(&mut store).unwrap();
    let mut met = 0;
    for bit in flipped_bits(&bytes).step_by(29) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(place.directory().join("data.mdb"), &flipped).unwrap();
        let mut scrub = ScrubPlace::default();
        let found = loop {
            match store.scrub(&mut scrub, 10) {
                Ok(10) => {}
                Ok(_) => break false,
                Err(StoreError::Damage { .. }) => break true,
                Err(other) => panic!("{other}"),
            }
        };
        // A scrub does not see counts and free pages.
        assert!(!found || verify(&flipped).is_err(), "bit {bit}");
        met += u32::from(found);
    }
    assert!(met > 100, "{met}");
}

#[test]
fn rows_in_memory_are_compared_with_those_in_the_tables() {
    let row = |key: u8, value: u8| StoredRow {
        keyspace: Keyspace::Groups,
        key: vec![key],
        value: Some(vec![value; 9]),
    };
    let same = |row: &StoredRow, stored: Option<&[u8]>| row.value.as_deref() == stored;
    let change = |row: StoredRow| Change { keyspace: row.keyspace, key: row.key, value: row.value };
    let place = Place::new();
    let mut store = place.open();
    load(&mut store).unwrap();
    store.write(&mut (0..9).map(|key| change(row(key, 1)))).unwrap();
    let rows = |value| (0..9).map(|key| row(key, value)).collect::<Vec<_>>();
    assert_eq!(store.compare(&rows(1), &same).unwrap(), 9);
    let text = store.compare(&rows(2), &same).unwrap_err().to_string();
    assert!(text.contains("differs from the one in memory") && text.ends_with("key 00"), "{text}");
    assert!(store.compare(&[row(9, 1)], &same).is_err(), "a row that is not stored");
    // A row that was put off is passed over until it is merged, after a restart too.
    let mut store = Eager::over(store).0;
    store.write(&mut [change(row(3, 2))].into_iter()).unwrap();
    assert_eq!(store.compare(&rows(1), &same).unwrap(), 8);
    drop(store);
    let mut store = place.open_eager().0;
    load(&mut store).unwrap();
    assert_eq!(store.compare(&rows(1), &same).unwrap(), 8);
    for _ in 0..5 {
        store.write(&mut std::iter::empty()).unwrap();
    }
    while store.merge().unwrap().more {}
    assert!(store.compare(&rows(1), &same).is_err());
    let mut now = rows(1);
    now[3] = row(3, 2);
    assert_eq!(store.compare(&now, &same).unwrap(), 9);
}
