//! What a scratch disk must do, and that nothing of it reaches the disk below.

use std::path::Path;

use super::*;
use crate::sim::SimDisk;
use crate::suite;

fn below() -> SimDisk {
    let disk = SimDisk::new();
    disk.set_contents(Path::new("/d/a"), &[7; 10_000]);
    disk.set_contents(Path::new("/d/sub/b"), b"bytes of b");
    disk.set_contents(Path::new("/d/sub/c"), b"bytes of c");
    disk
}

fn scratch(disk: &SimDisk) -> ScratchDisk {
    ScratchDisk::new(Arc::new(disk.clone()), Path::new("/d"))
}

fn get(disk: &dyn Disk, path: &str) -> Vec<u8> {
    let file = disk.open(Path::new(path), OpenMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn it_is_a_disk() {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/d")).unwrap();
    suite::run(|| (Arc::new(scratch(&disk)), "/d".into()));
}

/// Whatever is done to the scratch disk, the disk below has the same bytes and has seen no changing call.
#[test]
fn nothing_reaches_the_disk_below() {
    let disk = below();
    let (before, calls) = (disk.fingerprint(), disk.calls());
    let scratch = scratch(&disk);
    let file = scratch.open(Path::new("/d/a"), OpenMode::Write).unwrap();
    file.write_all_at(b"xyz", 4095).unwrap();
    file.set_len(5000).unwrap();
    file.sync_data().unwrap();
    scratch.open(Path::new("/d/sub/b"), OpenMode::Truncate).unwrap();
    scratch.rename(Path::new("/d/sub/c"), Path::new("/d/sub/e")).unwrap();
    scratch.open(Path::new("/d/n"), OpenMode::CreateNew).unwrap();
    scratch.rename(Path::new("/d/sub"), Path::new("/d/sub2")).unwrap();
    scratch.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(get(&scratch, "/d/sub2/e"), b"bytes of c");
    let mut a = vec![7; 5000];
    a[4095..4098].copy_from_slice(b"xyz");
    assert_eq!(get(&scratch, "/d/a"), a);
    assert_eq!((disk.fingerprint(), disk.calls()), (before, calls));
    assert!(scratch.bytes_read() > 0);
}

#[test]
fn changes_are_named() {
    let disk = below();
    let scratch = scratch(&disk);
    assert_eq!(scratch.changes().unwrap(), []);
    let a = scratch.open(Path::new("/d/a"), OpenMode::Write).unwrap();
    a.write_all_at(&[7; 6000], 1000).unwrap();
    assert_eq!(scratch.changes().unwrap(), [], "the same bytes again");
    a.set_len(9000).unwrap();
    scratch.remove_file(Path::new("/d/sub/b")).unwrap();
    let c = scratch.open(Path::new("/d/sub/c"), OpenMode::Write).unwrap();
    c.write_all_at(b"B", 6).unwrap();
    scratch.open(Path::new("/d/sub/new.tmp"), OpenMode::CreateNew).unwrap();
    scratch.rename(Path::new("/d/sub/new.tmp"), Path::new("/d/sub/new")).unwrap();
    let change = |path: &str, kind| Change { path: path.into(), kind };
    assert_eq!(
        scratch.changes().unwrap(),
        [
            change("/d/a", ChangeKind::Cut { to: 9000, from: 10_000 }),
            change("/d/sub/b", ChangeKind::Removed),
            change("/d/sub/c", ChangeKind::Written { at: 6 }),
            change("/d/sub/new", ChangeKind::Made),
        ]
    );
    scratch.rename(Path::new("/d/sub/new"), Path::new("/d/sub/c")).unwrap();
    a.set_len(10_000).unwrap();
    let changes = scratch.changes().unwrap();
    assert_eq!(changes[0].kind, ChangeKind::Written { at: 9000 });
    assert_eq!(changes[2], change("/d/sub/c", ChangeKind::Replaced));
}

#[test]
fn a_removed_directory_is_all_its_files() {
    let disk = below();
    let scratch = scratch(&disk);
    for name in ["b", "c"] {
        scratch.remove_file(&Path::new("/d/sub").join(name)).unwrap();
    }
    scratch.remove_dir(Path::new("/d/sub")).unwrap();
    assert_eq!(scratch.changes().unwrap().len(), 2);
    assert!(!scratch.exists(Path::new("/d/sub/b")).unwrap());
    assert!(scratch.open(Path::new("/elsewhere"), OpenMode::Read).is_err());
}
