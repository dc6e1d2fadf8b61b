//! Power cuts and damage, on the bytes of real LMDB files.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

use queen_io::SimDisk;
use tempfile::TempDir;

use super::*;
use crate::suite::{Model, load, random_changes};

mod deferred;

const OPTIONS: LmdbOptions = LmdbOptions { map_bytes: 1 << 20, headroom_bytes: 4 << 20 };

struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// A store over the given bytes of a file.
    fn with_file(bytes: &[u8]) -> Self {
        let place = Self::new();
        fs::create_dir(place.directory()).unwrap();
        fs::write(place.directory().join("data.mdb"), bytes).unwrap();
        place
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("store")
    }

    fn open(&self) -> LmdbStore {
        LmdbStore::open(&self.directory(), OPTIONS).unwrap()
    }

    fn open_eager(&self) -> Eager {
        Eager::over(self.open())
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.directory().join("data.mdb")).unwrap()
    }
}

/// A store that puts off whatever it can, in the smallest pieces, and merges a little after each write.
struct Eager(LmdbStore);

impl Eager {
    fn over(mut store: LmdbStore) -> Self {
        store.tuning = Tuning {
            slice_bytes: 3000,
            slice_batches: 2,
            dense_bytes: 0,
            slice_pages: 8,
            pages_at_once: 0,
            merge_bytes: (30_000, 30_000),
            merge_writes: 5,
            is_map_fixed: false,
        };
        Self(store)
    }
}

impl Checkpoint for Eager {
    fn load(&mut self, row: OnRow<'_>) -> Result<Loaded, StoreError> {
        self.0.load(row)
    }

    fn write(&mut self, changes: &mut dyn Iterator<Item = Change>) -> Result<Written, StoreError> {
        let written = self.0.write(changes)?;
        for _ in 0..3 {
            self.0.merge()?;
        }
        Ok(written)
    }

    fn copy_image(&mut self, to: &Path) -> Result<&'static str, StoreError> {
        self.0.copy_image(to)
    }

    fn verify(&mut self) -> Result<u64, StoreError> {
        self.0.verify()
    }
}

/// What the file is taken for, without LMDB.
fn verify(bytes: &[u8]) -> Result<Model, StoreError> {
    let path = Path::new("/store/data.mdb");
    let disk = SimDisk::new();
    disk.set_contents(path, bytes);
    let file = disk.open(path, OpenMode::Read).unwrap();
    let mut rows = Model::new();
    image::verify(path, &file, &mut |keyspace, key, value| {
        rows.insert((keyspace, key.to_vec()), value.to_vec());
        Ok(())
    })?;
    Ok(rows)
}

/// Files of successive checkpoints with what they hold. Small: a few dozen pages.
fn history(writes: u64, changes: u64) -> Vec<(Vec<u8>, Model)> {
    let place = Place::new();
    let mut store = place.open();
    history_of(&place, &mut store, writes, changes)
}

/// The same with most changes put off.
fn eager_history(writes: u64, changes: u64) -> Vec<(Vec<u8>, Model)> {
    let place = Place::new();
    let mut store = place.open_eager();
    let history = history_of(&place, &mut store, writes, changes);
    let merges = store.0.deferred.merges();
    assert!(merges > 0 || writes < 10, "no merge was needed");
    history
}

fn history_of(
    place: &Place,
    store: &mut dyn Checkpoint,
    writes: u64,
    changes: u64,
) -> Vec<(Vec<u8>, Model)> {
    let mut model = Model::new();
    let mut history = Vec::new();
    for seed in 0..writes {
        let changes = random_changes(&mut model, seed, changes);
        store.write(&mut changes.into_iter()).unwrap();
        history.push((place.bytes(), model.clone()));
    }
    history
}

#[test]
fn the_file_holds_each_checkpoint_when_write_returns() {
    for (bytes, model) in history(25, 60).into_iter().chain(eager_history(25, 60)) {
        let place = Place::with_file(&bytes);
        let (rows, loaded) = load(&mut place.open()).unwrap();
        assert_eq!((rows, loaded.fresh), (model, false));
    }
}

/// A process that is killed between or in its writes leaves a whole checkpoint, and none that it reported is lost.
#[test]
fn a_killed_process_leaves_the_last_reported_checkpoint_or_the_next() {
    const PLACE: &str = "QUEEN_STORE_TEST_PLACE";
    const EAGER: &str = "QUEEN_STORE_TEST_EAGER";
    const NAME: &str = "a_killed_process_leaves_the_last_reported_checkpoint_or_the_next";
    if let Some(directory) = std::env::var_os(PLACE) {
        let store = LmdbStore::open(Path::new(&directory), OPTIONS).unwrap();
        // Every second one puts its changes off.
        let is_eager = std::env::var_os(EAGER).is_some();
        let mut store: Box<dyn Checkpoint> =
            if is_eager { Box::new(Eager::over(store)) } else { Box::new(store) };
        let mut model = Model::new();
        for seed in 0_u64.. {
            let changes = random_changes(&mut model, seed, 40);
            store.write(&mut changes.into_iter()).unwrap();
            println!("reported {seed}");
        }
    }
    for kill in 0..20 {
        let place = Place::new();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("lmdb_store::tests::{NAME}"), "--exact", "--nocapture"])
            .env(PLACE, place.directory())
            .envs((kill % 2 == 1).then_some((EAGER, "1")))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut reports = lines.filter(|line| line.contains("reported"));
        assert!(reports.by_ref().nth(kill * 2).is_some());
        child.kill().unwrap();
        // What it still said before it died counts too.
        let reported = (kill * 2 + 1 + reports.count()) as u64;
        child.wait().unwrap();

        let mut model = Model::new();
        for seed in 0..reported {
            random_changes(&mut model, seed, 40);
        }
        let last = model.clone();
        random_changes(&mut model, reported, 40);
        let rows = load(&mut place.open()).unwrap().0;
        assert!(rows == last || rows == model, "after {reported} reports");
    }
}

/// What is on disk while LMDB commits: any sectors of the new data pages, then the meta page. The old checkpoint
/// has to be there until the last sector is, and 600 cuts show that no page of it is written over.
#[test]
fn a_power_cut_during_a_commit_leaves_the_old_checkpoint_or_the_new_one() {
    let history = history(25, 60);
    let mut cuts = 0;
    for pair in history.windows(2) {
        let ((old, old_model), (new, new_model)) = (&pair[0], &pair[1]);
        for seed in 0..25_u64 {
            let mut cut = old.clone();
            cut.resize(old.len().max(new.len()), 0);
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            for at in (8192..new.len()).step_by(512) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if state % 25 <= seed {
                    cut[at..at + 512].copy_from_slice(&new[at..at + 512]);
                }
            }
            cut.truncate(if seed % 2 == 0 { cut.len() } else { old.len().max(8192) });
            assert_eq!(verify(&cut).unwrap(), *old_model, "seed {seed}");
            cuts += 1;
        }
        let mut cut = old.clone();
        cut.resize(old.len().max(new.len()), 0);
        cut[8192..new.len()].copy_from_slice(&new[8192..]);
        assert_eq!(verify(&cut).unwrap(), *old_model);
        cut[..8192].copy_from_slice(&new[..8192]);
        assert_eq!(verify(&cut).unwrap(), *new_model);
    }
    assert_eq!(cuts, 600);
}

/// Refused, or the same rows.
fn check_damaged(bytes: &[u8], model: &Model, what: &str) -> bool {
    match verify(bytes) {
        Ok(rows) => {
            assert!(rows == *model, "{what} changed the content");
            false
        }
        Err(StoreError::Damage { .. } | StoreError::TooNew { .. }) => true,
        Err(other) => panic!("{what}: {other}"),
    }
}

/// Every 97th bit, or as `QUEEN_STORE_BIT_STEP` says.
fn flipped_bits(bytes: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let step = std::env::var("QUEEN_STORE_BIT_STEP").ok().and_then(|step| step.parse().ok());
    (0..bytes.len() * 8).step_by(step.unwrap_or(97))
}

#[test]
fn no_flipped_bit_changes_what_is_read() {
    for (bytes, model) in [history(6, 25).pop().unwrap(), eager_history(4, 25).pop().unwrap()] {
        let (mut refused, mut harmless) = (0, 0);
        for bit in flipped_bits(&bytes) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if check_damaged(&flipped, &model, &format!("bit {bit}")) {
                refused += 1;
            } else {
                harmless += 1;
            }
        }
        // Free pages and the unused middle of pages are not read.
        println!("{} pages: {refused} refused, {harmless} harmless", bytes.len() / 4096);
        assert!(refused > harmless / 4);
    }
}

/// A changed commit number brings the tree of the checkpoint before into play, which is whole. Commits of many
/// numbers, so that each bit is the one that does it in some.
#[test]
fn no_flipped_bit_of_a_meta_page_brings_an_older_checkpoint_back() {
    for (bytes, model) in history(12, 10) {
        for bit in (0..160 * 8).chain(4096 * 8..(4096 + 160) * 8) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            check_damaged(&flipped, &model, &format!("bit {bit}"));
        }
    }
}

/// A flip that no check refuses must not matter to LMDB either: it maps such a file, and a write over it must
/// end with the rows that it should. In a process of its own, so that a signal is seen and counted.
#[test]
fn lmdb_writes_on_a_file_with_a_harmless_flip() {
    if !in_child("lmdb_store::tests::lmdb_writes_on_a_file_with_a_harmless_flip") {
        return;
    }
    let (bytes, model) = history(6, 25).pop().unwrap();
    let mut written = 0;
    // Each write syncs: every 23rd of the bits is a matter of seconds.
    for bit in flipped_bits(&bytes).step_by(23) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if verify(&flipped).is_err() {
            continue;
        }
        let place = Place::with_file(&flipped);
        let (mut store, mut model) = (place.open(), model.clone());
        for seed in 100..103 {
            let changes = random_changes(&mut model, seed, 60);
            store.write(&mut changes.into_iter()).unwrap();
        }
        assert!(load(&mut store).unwrap().0 == model, "bit {bit}");
        written += 1;
    }
    println!("{written} files with a harmless flip written on");
    assert!(written > 20);
}

#[test]
fn lost_misplaced_and_old_sectors_are_refused() {
    for history in [history(8, 60), eager_history(8, 60)] {
        check_sectors(&history);
    }
}

fn check_sectors(history: &[(Vec<u8>, Model)]) {
    let (bytes, model) = &history[7];
    let sectors = bytes.len() / 512;
    let mut refused = 0;
    for sector in 0..sectors {
        let span = sector * 512..sector * 512 + 512;
        let mut zeroed = bytes.clone();
        zeroed[span.clone()].fill(0);
        refused += u32::from(check_damaged(&zeroed, model, "zeroed"));
        let mut misplaced = bytes.clone();
        let other = (sector + sectors / 2) % sectors * 512;
        misplaced[span.clone()].copy_from_slice(&bytes[other..other + 512]);
        refused += u32::from(check_damaged(&misplaced, model, "misplaced"));
    }
    assert!(refused > 100);

    // A write that never reached the disk leaves a page as it was: well-formed, and old.
    let mut stale = 0;
    for (old, _) in &history[..7] {
        for page in (8192..bytes.len().min(old.len())).step_by(4096) {
            let mut mixed = bytes.clone();
            mixed[page..page + 4096].copy_from_slice(&old[page..page + 4096]);
            stale += u32::from(mixed != *bytes && check_damaged(&mixed, model, "stale page"));
        }
    }
    assert!(stale > 50, "{stale}");
}

/// A page's older version with the same shape: only the sums row tells.
#[test]
fn an_old_page_of_the_same_shape_is_refused_by_the_sums() {
    let place = Place::new();
    let mut store = place.open();
    let row = |value: u8| {
        let keys = (0..20_u8).map(|key| vec![key]);
        let change =
            move |key| Change { keyspace: Keyspace::Groups, key, value: Some(vec![value; 20]) };
        keys.map(change).collect::<Vec<_>>().into_iter()
    };
    let mut files = Vec::new();
    for value in 0..12 {
        store.write(&mut row(value)).unwrap();
        files.push(place.bytes());
    }
    let newest = &files[11];
    let mut by_sums = 0;
    for old in &files[..11] {
        for page in (8192..newest.len().min(old.len())).step_by(4096) {
            let mut mixed = newest.clone();
            mixed[page..page + 4096].copy_from_slice(&old[page..page + 4096]);
            if let Err(error) = verify(&mixed) {
                by_sums += u32::from(error.to_string().contains("its last commit counted"));
            } else {
                assert_eq!(verify(&mixed).unwrap(), verify(newest).unwrap());
            }
        }
    }
    assert!(by_sums > 0);
}

#[test]
fn a_short_file_is_refused_by_name() {
    let (bytes, model) = history(6, 25).pop().unwrap();
    let lens = (0..bytes.len()).filter(|len| len % 61 == 0 || len % 4096 < 2 || *len < 400);
    for len in lens {
        let refused = check_damaged(&bytes[..len], &model, &format!("length {len}"));
        assert!(refused || len >= 8192);
    }
    let place = Place::with_file(&bytes[..4096 * 3]);
    let text = load(&mut place.open()).unwrap_err().to_string();
    assert!(text.contains("store/data.mdb is shorter than its last page"), "{text}");
    for (file, says) in [(vec![], "shorter"), (vec![b'x'; 20_000], "not an LMDB file")] {
        let place = Place::with_file(&file);
        let text = load(&mut place.open()).unwrap_err().to_string();
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn damage_of_a_row_names_it() {
    let place = Place::new();
    let mut store = place.open();
    let row = Change {
        keyspace: Keyspace::Partitions,
        key: vec![0xAB, 0xCD],
        value: Some(b"findme-findme".to_vec()),
    };
    store.write(&mut [row].into_iter()).unwrap();
    let mut bytes = place.bytes();
    let at = bytes.windows(13).rposition(|bytes| bytes == b"findme-findme").unwrap();
    bytes[at] ^= 1;
    let text = verify(&bytes).unwrap_err().to_string();
    let want = "store/data.mdb has a row that fails its checksum, keyspace partitions, key abcd";
    assert!(text.contains(want), "{text}");
}

#[test]
fn a_damaged_file_is_never_mapped_for_writing() {
    let (mut bytes, _) = history(6, 25).pop().unwrap();
    bytes[40] ^= 1;
    let place = Place::with_file(&bytes);
    let mut store = place.open();
    let write = store.write(&mut std::iter::empty());
    assert!(matches!(write, Err(StoreError::Damage { .. })));
    assert!(matches!(store.write(&mut std::iter::empty()), Err(StoreError::Poisoned)));
    assert_eq!(place.bytes(), bytes);
}

#[test]
fn a_failed_write_poisons_and_changes_nothing() {
    let place = Place::new();
    let mut model = Model::new();
    let mut store = place.open();
    let changes = random_changes(&mut model, 1, 60);
    store.write(&mut changes.into_iter()).unwrap();
    // More than the map: LMDB refuses in the middle of the write.
    store.tuning.is_map_fixed = true;
    let big = (0..100_u8).map(|key| Change {
        keyspace: Keyspace::Groups,
        key: vec![key],
        value: Some(vec![key; 1 << 20]),
    });
    assert!(matches!(store.write(&mut big.clone()), Err(StoreError::Fault { .. })));
    assert!(matches!(store.write(&mut std::iter::empty()), Err(StoreError::Poisoned)));
    assert_eq!(load(&mut store).unwrap().0, model, "reading is still possible");
    drop(store);
    // The same store with a map that may grow.
    let mut store = place.open();
    assert_eq!(load(&mut store).unwrap().0, model);
    store.write(&mut big.into_iter()).unwrap();
    assert_eq!(load(&mut store).unwrap().0.len(), model.len() + 100);
}

#[test]
fn one_process_has_it_open() {
    let place = Place::new();
    let store = place.open();
    match LmdbStore::open(&place.directory(), OPTIONS).err().unwrap() {
        StoreError::Fault { source, .. } => {
            assert_eq!(source.kind(), std::io::ErrorKind::WouldBlock);
        }
        other => panic!("{other}"),
    }
    drop(store);
    place.open();
}

#[test]
fn a_file_in_the_making_is_thrown_away() {
    let place = Place::new();
    let making = place.directory().join("new");
    fs::create_dir_all(&making).unwrap();
    fs::write(making.join("data.mdb"), b"half").unwrap();
    assert!(load(&mut place.open()).unwrap().1.fresh);
    assert!(!making.exists());
    let names: BTreeSet<_> =
        fs::read_dir(place.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["data.mdb", "lock.mdb"].map(Into::into).into());
}

/// The store's own rows as another build would have left them.
fn file_with_own_rows(rows: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let place = Place::new();
    load(&mut place.open()).unwrap();
    let options = EnvOptions { map_bytes: 1 << 20, tables_max: TABLES_MAX };
    let mut env = Env::open(&place.directory(), options).unwrap();
    for _ in 0..2 {
        let mut txn = env.begin().unwrap();
        let meta = txn.table(c"meta").unwrap();
        txn.delete(meta, FORMAT_KEY).unwrap();
        let mut sums = Sums::new();
        sums.commit = txn.commit_number();
        put_sums(&mut txn, meta, &sums, &Seals::new()).unwrap();
        for (key, value) in rows {
            let mut stored = value.clone();
            Seals::new().seal(Keyspace::Meta, key, &mut stored);
            txn.put(meta, key, &stored).unwrap();
        }
        txn.commit().unwrap();
    }
    drop(env);
    place.bytes()
}

#[test]
fn a_newer_format_and_a_lost_format_are_refused() {
    let format = |format: u32| (FORMAT_KEY, format.to_le_bytes().to_vec());
    for readable in [1, 2] {
        assert_eq!(verify(&file_with_own_rows(&[format(readable)])).unwrap(), Model::new());
    }
    match verify(&file_with_own_rows(&[format(3)])) {
        Err(StoreError::TooNew { format: 3, readable: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    let lost = verify(&file_with_own_rows(&[])).unwrap_err().to_string();
    assert!(lost.contains("no format row"), "{lost}");
    let unknown = file_with_own_rows(&[format(1), (b"store_other", vec![])]);
    assert!(matches!(verify(&unknown), Err(StoreError::Damage { .. })));
}

/// LMDB keeps the memory of its largest transaction; a store that has made a large write gives it back.
#[test]
fn memory_of_a_large_write_is_given_back() {
    if !in_child("lmdb_store::tests::memory_of_a_large_write_is_given_back") {
        return;
    }
    let place = Place::new();
    let options = LmdbOptions { map_bytes: 1 << 30, headroom_bytes: 1 << 28 };
    let mut store = LmdbStore::open(&place.directory(), options).unwrap();
    let row = |key: u64, fill: u8| Change {
        keyspace: Keyspace::Cursors,
        key: format!("{key:08}").into_bytes(),
        value: Some(vec![fill; 1900]),
    };
    load(&mut store).unwrap();
    let before = heap_bytes();
    store.write(&mut (0..40_000).map(|key| row(key, 1))).unwrap();
    store.write(&mut (0..10).map(|key| row(key, 2))).unwrap();
    let written = store.write(&mut (0..40_000).map(|key| row(key, 3))).unwrap();
    let after = heap_bytes();
    println!("{written:?}, heap {before} -> {after}");
    // 20,000 pages are 80 MB.
    assert!(after < before + (8 << 20), "{before} -> {after}");
    assert_eq!(store.verify().unwrap(), 40_000);
}

fn heap_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Runs a test of this binary in a process of its own. True in there.
fn in_child(test: &str) -> bool {
    const CHILD: &str = "QUEEN_STORE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    false
}

/// The copy is a store of its own, as of the last write; later writes do not reach it.
#[test]
fn a_copied_image_is_that_of_the_last_write() {
    let place = Place::new();
    let mut store = place.open();
    load(&mut store).unwrap();
    let mut model = Model::new();
    let mut write = |seed| {
        let changes = random_changes(&mut model, seed, 300);
        store.write(&mut changes.into_iter()).unwrap();
        let to = place.root.path().join(format!("copy-{seed}"));
        assert_eq!(store.copy_image(&to).unwrap(), "data.mdb");
        assert!(store.copy_image(&to).is_err(), "a name is not taken twice");
        (model.clone(), to)
    };
    let copies = [write(1), write(2), write(3)];
    for (rows, path) in copies {
        let copy = Place::with_file(&fs::read(path).unwrap());
        assert_eq!(load(&mut copy.open()).unwrap().0, rows);
    }
}
