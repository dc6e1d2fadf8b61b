//! What every disk must do, as one test that each implementation passes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{DirEntry, Disk, OpenMode};

/// Runs the suite. `make` gives a disk and an empty directory on it, another for each call.
pub fn run(make: impl Fn() -> (Arc<dyn Disk>, PathBuf)) {
    for case in [
        reads_and_writes,
        changes_length,
        reserves,
        opens_by_mode,
        lists_and_makes_directories,
        renames,
        links,
        removes,
        syncs,
    ] {
        let (disk, dir) = make();
        case(disk.as_ref(), &dir);
    }
}

fn put(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
    disk.open(path, OpenMode::Truncate).unwrap().write_all_at(bytes, 0).unwrap();
}

fn get(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0xEE; usize::try_from(file.len().unwrap()).unwrap() + 1];
    let count = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(count);
    bytes
}

fn reads_and_writes(disk: &dyn Disk, dir: &Path) {
    let file = disk.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    assert!(file.is_empty().unwrap());
    file.write_all_at(b"hello", 0).unwrap();
    file.write_all_at(b"L", 2).unwrap();
    file.write_all_at(b"far", 10_000).unwrap();
    assert_eq!(file.len().unwrap(), 10_003);
    let mut buf = [0xEE; 8];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8);
    assert_eq!(&buf, b"heLlo\0\0\0");
    assert_eq!(file.read_at(&mut buf, 9_998).unwrap(), 5, "short only at the end");
    assert_eq!(&buf[..5], b"\0\0far");
    assert_eq!(file.read_at(&mut buf, 10_003).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 20_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    if let Some(count) = file.read_at_nowait(&mut buf, 9_998).unwrap() {
        assert_eq!(count, 5);
        assert_eq!(&buf[..5], b"\0\0far");
    }
    file.forget_range(0, 10_003);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8);
    assert_eq!(&buf, b"heLlo\0\0\0");
    let mut big = vec![0; 1 << 20];
    file.write_all_at(&vec![7; 1 << 20], 5).unwrap();
    assert_eq!(file.read_at(&mut big, 5).unwrap(), 1 << 20);
    assert!(big.iter().all(|byte| *byte == 7));
}

fn changes_length(disk: &dyn Disk, dir: &Path) {
    let file = disk.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    file.set_len(4).unwrap();
    assert_eq!(get(disk, &dir.join("f")), b"0123");
    file.set_len(6).unwrap();
    assert_eq!(get(disk, &dir.join("f")), b"0123\0\0", "what was cut is gone");
    file.set_len(0).unwrap();
    assert!(file.is_empty().unwrap());
}

fn reserves(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("reserved");
    let file = disk.open(&path, OpenMode::CreateNew).unwrap();
    file.reserve(100_000).unwrap();
    assert_eq!(file.len().unwrap(), 100_000);
    assert!(get(disk, &path).iter().all(|byte| *byte == 0));
    disk.remove_file(&path).unwrap();
    assert!(disk.space(dir).unwrap().is_none_or(|space| space.available > 0));
}

fn opens_by_mode(disk: &dyn Disk, dir: &Path) {
    let path = dir.join("f");
    for mode in [OpenMode::Read, OpenMode::Write] {
        assert_eq!(disk.open(&path, mode).err().unwrap().kind(), ErrorKind::NotFound);
    }
    put(disk, &path, b"old");
    let error = disk.open(&path, OpenMode::CreateNew).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let reader = disk.open(&path, OpenMode::Read).unwrap();
    assert!(reader.write_all_at(b"x", 0).is_err());
    assert!(reader.set_len(0).is_err());
    let writer = disk.open(&path, OpenMode::Write).unwrap();
    writer.write_all_at(b"n", 0).unwrap();
    let mut buf = [0; 3];
    assert_eq!(reader.read_at(&mut buf, 0).unwrap(), 3);
    assert_eq!(&buf, b"nld", "handles share the file");
    disk.open(&path, OpenMode::Truncate).unwrap();
    assert!(reader.is_empty().unwrap());
    assert!(disk.open(&dir.join("no/f"), OpenMode::CreateNew).is_err());
}

fn lists_and_makes_directories(disk: &dyn Disk, dir: &Path) {
    assert_eq!(disk.list(dir).unwrap(), []);
    disk.create_dir(&dir.join("sub")).unwrap();
    disk.create_dir(&dir.join("sub")).unwrap();
    assert!(disk.create_dir(&dir.join("no/sub")).is_err());
    put(disk, &dir.join("b"), b"");
    put(disk, &dir.join("a10"), b"");
    put(disk, &dir.join("sub/c"), b"");
    let entry = |name: &str, is_dir| DirEntry { name: name.to_owned(), is_dir };
    let all = [entry("a10", false), entry("b", false), entry("sub", true)];
    assert_eq!(disk.list(dir).unwrap(), all);
    assert_eq!(disk.list(&dir.join("sub")).unwrap(), [entry("c", false)]);
    assert!(disk.list(&dir.join("no")).is_err());
    assert!(disk.create_dir(&dir.join("b")).is_err(), "a file is in the way");
    assert!(disk.open(&dir.join("sub"), OpenMode::Write).is_err());
}

fn renames(disk: &dyn Disk, dir: &Path) {
    disk.create_dir(&dir.join("x")).unwrap();
    disk.create_dir(&dir.join("y")).unwrap();
    put(disk, &dir.join("x/a"), b"first");
    put(disk, &dir.join("y/b"), b"second");
    let open = disk.open(&dir.join("x/a"), OpenMode::Write).unwrap();
    disk.rename(&dir.join("x/a"), &dir.join("y/b")).unwrap();
    assert!(!disk.exists(&dir.join("x/a")).unwrap());
    open.write_all_at(b"F", 0).unwrap();
    assert_eq!(get(disk, &dir.join("y/b")), b"First", "an open file keeps its handle");
    let error = disk.rename(&dir.join("x/a"), &dir.join("x/c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    disk.rename(&dir.join("y"), &dir.join("z.dead")).unwrap();
    assert_eq!(get(disk, &dir.join("z.dead/b")), b"First");
    assert!(!disk.exists(&dir.join("y")).unwrap());
}

fn links(disk: &dyn Disk, dir: &Path) {
    disk.create_dir(&dir.join("l")).unwrap();
    put(disk, &dir.join("a"), b"bytes");
    disk.link(&dir.join("a"), &dir.join("l/b")).unwrap();
    disk.open(&dir.join("l/b"), OpenMode::Write).unwrap().write_all_at(b"B", 0).unwrap();
    assert_eq!(get(disk, &dir.join("a")), b"Bytes", "both names lead to the same bytes");
    put(disk, &dir.join("c"), b"other");
    disk.rename(&dir.join("c"), &dir.join("a")).unwrap();
    assert_eq!(get(disk, &dir.join("l/b")), b"Bytes", "a name keeps the file that it was given to");
    disk.remove_file(&dir.join("a")).unwrap();
    assert_eq!(get(disk, &dir.join("l/b")), b"Bytes");
    let error = disk.link(&dir.join("a"), &dir.join("l/c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    put(disk, &dir.join("a"), b"again");
    let error = disk.link(&dir.join("a"), &dir.join("l/b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(disk.link(&dir.join("l"), &dir.join("d")).is_err(), "a directory");
    disk.remove_file(&dir.join("l/b")).unwrap();
}

fn removes(disk: &dyn Disk, dir: &Path) {
    disk.create_dir(&dir.join("d")).unwrap();
    put(disk, &dir.join("d/f"), b"bytes");
    let open = disk.open(&dir.join("d/f"), OpenMode::Read).unwrap();
    assert!(disk.remove_dir(&dir.join("d")).is_err(), "not empty");
    assert!(disk.remove_file(&dir.join("d")).is_err(), "a directory");
    assert!(disk.remove_dir(&dir.join("d/f")).is_err(), "a file");
    disk.remove_file(&dir.join("d/f")).unwrap();
    assert!(!disk.exists(&dir.join("d/f")).unwrap());
    let mut buf = [0; 5];
    assert_eq!(open.read_at(&mut buf, 0).unwrap(), 5, "an open file outlives its name");
    let error = disk.remove_file(&dir.join("d/f")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    disk.remove_dir(&dir.join("d")).unwrap();
    assert!(!disk.exists(&dir.join("d")).unwrap());
}

fn syncs(disk: &dyn Disk, dir: &Path) {
    let file = disk.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    disk.open(&dir.join("f"), OpenMode::Read).unwrap().sync_data().unwrap();
    disk.sync_dir(dir).unwrap();
    assert!(disk.sync_dir(&dir.join("no")).is_err());
    assert!(disk.sync_dir(&dir.join("f")).is_err());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{RealDisk, SimDisk};

    #[test]
    fn the_real_disk_passes() {
        let root = tempfile::tempdir().unwrap();
        let next = AtomicU64::new(0);
        run(|| {
            let dir = root.path().join(next.fetch_add(1, Ordering::Relaxed).to_string());
            RealDisk.create_dir(&dir).unwrap();
            (Arc::new(RealDisk), dir)
        });
    }

    #[test]
    fn the_simulated_disk_passes() {
        run(|| {
            let disk = SimDisk::new();
            disk.create_dir(Path::new("/data")).unwrap();
            (Arc::new(disk), "/data".into())
        });
    }

    #[test]
    fn a_cold_simulated_disk_passes() {
        run(|| {
            let disk = SimDisk::new();
            disk.set_cold(true);
            (Arc::new(disk), "/".into())
        });
    }
}
