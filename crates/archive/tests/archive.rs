//! Archives packed and unpacked: whole, cut, changed, hostile, interrupted.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use queen_archive::{
    ArchiveError, Manifest, Pack, Place, Progress, Source, Verify, read_archive, read_directory,
};
use queen_io::sim::Choice;
use queen_io::{Disk, OpenMode, RealDisk, SimDisk};

const FILES: [(&str, usize); 6] = [
    ("ENCRYPTION", 512),
    ("qlog/LANES", 1),
    ("qlog/RECLAIMED", 0),
    ("qlog/q7/r00000001.qlog", 700_000),
    ("qlog/q18446744073709551615/r00000002.qidx", 513),
    ("store/image", 70_001),
];

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
}

fn directory(disk: &SimDisk) -> Vec<Source> {
    let place = |(name, len): (&str, usize)| {
        let path = Path::new("/data").join(name);
        // More than is taken: a log goes on.
        disk.set_contents(&path, &bytes_of(len + 9));
        Source { name: name.to_owned(), path, len: len as u64 }
    };
    FILES.into_iter().map(place).collect()
}

fn pack() -> Vec<u8> {
    let disk = SimDisk::new();
    let pack = Pack::new(5120, 1_700_000_000_000_000, directory(&disk)).unwrap();
    let mut all = Vec::new();
    let mut take = |piece: Vec<u8>| {
        assert!(piece.len() <= 256 << 10);
        all.extend(piece);
        Ok(())
    };
    pack.write(&disk, &mut take).unwrap();
    assert_eq!(all.len() as u64, pack.bytes());
    all
}

fn unpack(archive: &[u8], disk: &SimDisk) -> Result<(Manifest, u64), ArchiveError> {
    let mut place = Place::new(disk, Path::new("/to"));
    let read = read_archive(&mut &*archive, &mut place, &Progress::new())?;
    Ok((read, place.written()))
}

fn check_unpacked(disk: &SimDisk) {
    let files: Vec<PathBuf> = disk.files().into_iter().map(|(path, _)| path).collect();
    assert_eq!(files.len(), FILES.len());
    for (name, len) in FILES {
        assert_eq!(disk.contents(&Path::new("/to").join(name)).unwrap(), bytes_of(len), "{name}");
    }
}

#[test]
fn what_was_packed_is_unpacked_and_durable() {
    let archive = pack();
    let disk = SimDisk::new();
    let (manifest, written) = unpack(&archive, &disk).unwrap();
    assert_eq!((manifest.index, manifest.members.len()), (5120, FILES.len()));
    assert_eq!(written, manifest.bytes());
    check_unpacked(&disk);
    disk.sync_dir(Path::new("/")).unwrap();
    check_unpacked(&disk.crash_now(&Choice::AllLost));
    // Again: everything is there.
    assert_eq!(unpack(&archive, &disk).unwrap().1, 0);
    check_unpacked(&disk);
}

#[test]
fn the_tar_of_this_machine_reads_it() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("b.tar"), pack()).unwrap();
    let mut tar = std::process::Command::new("tar");
    let list = tar.arg("tf").arg("b.tar").current_dir(root.path()).output().unwrap();
    assert!(list.status.success(), "{list:?}");
    let names = String::from_utf8(list.stdout).unwrap();
    assert_eq!(names.lines().count(), FILES.len() + 2);
    assert!(names.starts_with("queen-backup\n") && names.ends_with("queen-backup.sums\n"));
}

#[test]
fn an_archive_that_is_cut_anywhere_is_refused() {
    let archive = pack();
    for end in (0..archive.len()).step_by(997).chain(archive.len() - 1500..archive.len()) {
        let error = read_archive(&mut &archive[..end], &mut Verify, &Progress::new()).unwrap_err();
        assert!(matches!(error, ArchiveError::EndsEarly(_)), "{end}: {error}");
    }
    let mut more = archive.clone();
    more.extend([0; 9000]);
    assert!(read_archive(&mut &*more, &mut Verify, &Progress::new()).is_ok());
    more.push(1);
    assert!(read_archive(&mut &*more, &mut Verify, &Progress::new()).is_err());
}

#[test]
fn interrupted_at_any_call_it_goes_on_and_ends_the_same() {
    let archive = pack();
    let whole = SimDisk::new();
    unpack(&archive, &whole).unwrap();
    for call in (0..whole.calls()).step_by(3) {
        for choice in [Choice::AllLost, Choice::AllKept, Choice::NamesKept, Choice::Scattered(call)]
        {
            let disk = whole.crash(call, &choice);
            unpack(&archive, &disk).unwrap();
            check_unpacked(&disk);
            disk.sync_dir(Path::new("/")).unwrap();
            check_unpacked(&disk.crash_now(&Choice::AllLost));
        }
    }
    let half = whole.crash(whole.calls() / 2, &Choice::AllKept);
    let (manifest, written) = unpack(&archive, &half).unwrap();
    assert!(written > 0 && written < manifest.bytes(), "{written}");
}

#[test]
fn a_directory_is_read_as_the_archive_is() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("kept");
    let mut place = Place::new(&RealDisk, &dir).keeping_sums();
    let manifest = read_archive(&mut &*pack(), &mut place, &Progress::new()).unwrap();
    let progress = Progress::new();
    assert_eq!(read_directory(&RealDisk, &dir, &mut Verify, &progress).unwrap(), manifest);
    assert_eq!((progress.done(), progress.total()), (manifest.bytes(), manifest.bytes()));
    let file = dir.join("store/image");
    let good = std::fs::read(&file).unwrap();
    let read = || read_directory(&RealDisk, &dir, &mut Verify, &Progress::new());
    let mut bad = good.clone();
    bad[70_000] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    assert!(matches!(read(), Err(ArchiveError::Sum(name)) if name == "store/image"));
    std::fs::write(&file, &good[1..]).unwrap();
    assert!(matches!(read(), Err(ArchiveError::Length { name, .. }) if name == "store/image"));
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(read(), Err(ArchiveError::Io { .. })));
    std::fs::remove_file(dir.join("queen-backup.sums")).unwrap();
    assert!(matches!(read(), Err(ArchiveError::Foreign(_))));
}

#[test]
fn nothing_is_written_through_a_link_or_over_a_stranger() {
    let root = tempfile::tempdir().unwrap();
    let (dir, outside) = (root.path().join("to"), root.path().join("outside"));
    let unpack = || {
        let mut place = Place::new(&RealDisk, &dir);
        read_archive(&mut &*pack(), &mut place, &Progress::new()).unwrap_err().to_string()
    };
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, &dir).unwrap();
    unpack();
    std::fs::remove_file(&dir).unwrap();
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&outside, dir.join("store")).unwrap();
    unpack();
    std::fs::remove_file(dir.join("store")).unwrap();
    std::os::unix::fs::symlink(outside.join("x"), dir.join("ENCRYPTION")).unwrap();
    unpack();
    std::fs::remove_file(dir.join("ENCRYPTION")).unwrap();
    for name in ["stranger", "qlog/q8/r00000001.qlog"] {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"x").unwrap();
        let error = unpack();
        assert!(error.contains(name.rsplit_once('/').map_or(name, |(above, _)| above)), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_file_that_shrank_ends_the_packing() {
    let disk = SimDisk::new();
    let pack = Pack::new(1, 1, directory(&disk)).unwrap();
    let path = Path::new("/data/store/image");
    disk.open(path, OpenMode::Write).unwrap().set_len(5).unwrap();
    let error = pack.write(&disk, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("/data/store/image ends at byte 5"), "{error}");
    let bad = Source { name: "../x".to_owned(), path: PathBuf::new(), len: 0 };
    assert!(Pack::new(1, 1, vec![bad]).is_err());
}

proptest! {
    /// Whatever was changed in an archive: it is refused, or what is unpacked is what was packed.
    #[test]
    fn changed_archives_are_refused_or_harmless(changes in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4)) {
        let good = pack();
        let mut bad = good.clone();
        for (at, flip) in changes {
            let at = at.index(bad.len());
            bad[at] ^= flip;
        }
        let disk = SimDisk::new();
        if unpack(&bad, &disk).is_ok() {
            check_unpacked(&disk);
        }
        for (path, _) in disk.files() {
            prop_assert!(path.starts_with("/to"));
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert!(read_archive(&mut &*bytes, &mut Verify, &Progress::new()).is_err());
    }
}
