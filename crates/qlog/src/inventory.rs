//! `FILES`: which files there were, for a start whose store is gone.
//!
//! With a store its durable point says what must be there. Without one the logs are applied again from their first
//! entry, and a newest file that is gone too would be a shorter log that nobody notices: this record names it.
//!
//! ```text
//! FILES = magic `QNQFILES` | whole u8 | count varint | log* | checksum of all before it u64
//! log   = id u64 | newest file number varint | its bytes as of then varint
//! ```
//! `whole` is 0, with no log, once anything was reclaimed: then the logs cannot be applied again at all.
//!
//! Written behind a store's point, so a directory that has it has had a store. It is not synced, and a write that fails is
//! only said: it counts for a directory that has lost its store, and what it cannot say then is what no directory said
//! before there was this record.

use std::path::Path;

use queen_io::{Disk, OpenMode};
use queen_record::hash::checksum;
use queen_record::ids::LogId;
use queen_record::le::{Reader, put_varint};

use crate::durable::DurablePoint;
use crate::error::{Fault, OpenError};
use crate::names::{Ext, file_path, log_dir};
use crate::scan::read_whole;

/// Beside the logs.
const FILES: &str = "FILES";
const MAGIC: &[u8; 8] = b"QNQFILES";
/// More than the record of ten million logs has.
const LEN_MAX: u64 = 256 << 20;
/// Bytes of a checksum.
const CHECKSUM_LEN: usize = 8;

/// What the record on disk says, as far as it takes to know whether it is out of date.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// Checksum of the logs and their newest numbers, without lengths; `None` before the first record of this process.
    said: Option<u64>,
    /// Something was reclaimed; nothing is to be said any more.
    is_over: bool,
}

impl Inventory {
    /// One for a directory in which something was reclaimed, or nothing.
    pub(crate) fn new(is_reclaimed: bool) -> Self {
        Self { said: None, is_over: is_reclaimed }
    }

    /// Writes the record when a log or a file came since the last one.
    pub(crate) fn keep(&mut self, disk: &dyn Disk, dir: &Path, point: &DurablePoint) {
        if self.is_over {
            return;
        }
        let newest = || point.logs.iter().filter_map(|log| Some((log.log, log.files.last()?)));
        let mut names = Vec::new();
        for (log, file) in newest() {
            names.extend_from_slice(&log.0.to_le_bytes());
            names.extend_from_slice(&file.number.to_le_bytes());
        }
        let names = checksum(&names);
        if self.said == Some(names) {
            return;
        }
        let mut bytes = start(true, newest().count());
        for (log, file) in newest() {
            bytes.extend_from_slice(&log.0.to_le_bytes());
            put_varint(&mut bytes, file.number);
            put_varint(&mut bytes, file.len);
        }
        if write(disk, dir, bytes) {
            self.said = Some(names);
        }
    }

    /// Says that the logs are no longer whole.
    pub(crate) fn end(&mut self, disk: &dyn Disk, dir: &Path) {
        if !std::mem::replace(&mut self.is_over, true) {
            // `RECLAIMED` says the same and must be there; a full disk must not keep space from being freed.
            write(disk, dir, start(false, 0));
        }
    }
}

/// Whether the record is there. The layout's files were durable before any log was, so they are too.
pub(crate) fn is_there(disk: &dyn Disk, dir: &Path) -> Result<bool, Fault> {
    let path = dir.join(FILES);
    disk.exists(&path).map_err(Fault::io(&path, "look for"))
}

/// Checks a directory without a store against the record: nothing that it names may be missing or shorter.
pub(crate) fn check(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    if !is_there(disk, dir)? {
        return Ok(());
    }
    let path = dir.join(FILES);
    let file = disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
    let is_possible = file.len().map_err(Fault::io(&path, "read"))? <= LEN_MAX;
    let bytes = is_possible.then(|| read_whole(&*file)).transpose();
    let bytes = bytes.map_err(Fault::io(&path, "read"))?;
    let Some(logs) = bytes.and_then(|bytes| decode(&bytes)) else {
        return Err(OpenError::InventoryUnreadable { file: path });
    };
    let Some(logs) = logs else { return Err(OpenError::Reclaimed { file: path }) };
    for (log, number, recorded) in logs {
        let file = file_path(&log_dir(dir, log), number, Ext::Log);
        let Some(len) = len_of(disk, &file)? else { return Err(OpenError::NotWhole { file }) };
        if len < recorded {
            return Err(OpenError::FileShort { file, len, recorded });
        }
    }
    Ok(())
}

fn len_of(disk: &dyn Disk, path: &Path) -> Result<Option<u64>, Fault> {
    if !disk.exists(path).map_err(Fault::io(path, "look for"))? {
        return Ok(None);
    }
    let file = disk.open(path, OpenMode::Read).map_err(Fault::io(path, "open"))?;
    file.len().map(Some).map_err(Fault::io(path, "read"))
}

fn start(is_whole: bool, logs: usize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(u8::from(is_whole));
    put_varint(&mut bytes, logs as u64);
    bytes
}

/// Says in a new directory that its logs were never whole. Its name is not synced.
pub(crate) fn write_over(disk: &dyn Disk, dir: &Path) -> Result<(), Fault> {
    let path = dir.join(FILES);
    let tmp = path.with_extension("tmp");
    let file = disk.open(&tmp, OpenMode::Truncate).map_err(Fault::io(&tmp, "create"))?;
    let bytes = summed(start(false, 0));
    file.write_all_at(&bytes, 0).map_err(Fault::io(&tmp, "write"))?;
    file.sync_data().map_err(Fault::io(&tmp, "sync"))?;
    disk.rename(&tmp, &path).map_err(Fault::io(&path, "rename to"))
}

fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Whether it was written.
fn write(disk: &dyn Disk, dir: &Path, bytes: Vec<u8>) -> bool {
    let bytes = summed(bytes);
    let path = dir.join(FILES);
    let tmp = path.with_extension("tmp");
    let written = disk
        .open(&tmp, OpenMode::Truncate)
        .and_then(|file| file.write_all_at(&bytes, 0))
        .and_then(|()| disk.rename(&tmp, &path));
    if let Err(error) = &written {
        tracing::warn!(path = %path.display(), "the record of the log files is out of date: {error}");
    }
    written.is_ok()
}

/// A log, the number of its newest file, and that file's bytes.
type Newest = (LogId, u64, u64);

/// What the bytes say: `Some(None)` once something was reclaimed, `None` when they are no such record.
#[expect(clippy::option_option, reason = "unreadable, over, or a list")]
fn decode(bytes: &[u8]) -> Option<Option<Vec<Newest>>> {
    let (said, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_LEN)?)?;
    if checksum(said).to_le_bytes() != sum {
        return None;
    }
    let mut reader = Reader::new(said.strip_prefix(MAGIC)?);
    let is_whole = reader.u8()? == 1;
    let count = reader.varint()?;
    let mut logs = Vec::new();
    for _ in 0..count {
        logs.push((LogId(reader.u64()?), reader.varint()?, reader.varint()?));
    }
    let is_read = reader.rest().is_empty();
    is_read.then_some(is_whole.then_some(logs))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use queen_io::SimDisk;
    use queen_record::ids::EntryIndex;

    use super::*;
    use crate::durable::{FileTail, LogTail};

    const DIR: &str = "/q";

    fn point(logs: &[(u64, u64, u64)]) -> DurablePoint {
        let log = |&(log, number, len): &(u64, u64, u64)| LogTail {
            log: LogId(log),
            files: vec![FileTail { number, len }],
            ..LogTail::default()
        };
        DurablePoint {
            index: EntryIndex(1),
            layout: Some((1, 0)),
            logs: logs.iter().map(log).collect(),
        }
    }

    fn disk(files: &[(u64, u64, usize)]) -> Arc<SimDisk> {
        let disk = SimDisk::new();
        disk.create_dir(Path::new(DIR)).unwrap();
        for (log, number, len) in files {
            let dir = log_dir(Path::new(DIR), LogId(*log));
            disk.create_dir(&dir).unwrap();
            disk.set_contents(&file_path(&dir, *number, Ext::Log), &vec![1; *len]);
        }
        Arc::new(disk)
    }

    #[test]
    fn a_file_that_is_gone_or_shorter_is_named() {
        let disk = disk(&[(5, 2, 100), (7, 1, 40)]);
        let dir = Path::new(DIR);
        check(&*disk, dir).unwrap();
        let mut inventory = Inventory::default();
        inventory.keep(&*disk, dir, &point(&[(5, 2, 100), (7, 1, 40)]));
        check(&*disk, dir).unwrap();
        let path = file_path(&log_dir(dir, LogId(7)), 1, Ext::Log);
        disk.set_contents(&path, &[1; 39]);
        let error = check(&*disk, dir).unwrap_err();
        assert!(matches!(&error, OpenError::FileShort { file, .. } if *file == path), "{error}");
        disk.remove(&path);
        let error = check(&*disk, dir).unwrap_err();
        assert!(matches!(&error, OpenError::NotWhole { file } if *file == path), "{error}");
    }

    #[test]
    fn it_is_written_when_files_come_and_not_when_they_grow() {
        let disk = disk(&[]);
        let dir = Path::new(DIR);
        let mut inventory = Inventory::default();
        let kept = |inventory: &mut Inventory, logs: &[(u64, u64, u64)]| {
            let before = disk.calls();
            inventory.keep(&*disk, dir, &point(logs));
            disk.calls() > before
        };
        assert!(kept(&mut inventory, &[(5, 2, 100)]));
        assert!(!kept(&mut inventory, &[(5, 2, 200)]));
        assert!(kept(&mut inventory, &[(5, 3, 32)]));
        assert!(kept(&mut inventory, &[(5, 3, 32), (6, 1, 40)]));
        inventory.end(&*disk, dir);
        assert!(!kept(&mut inventory, &[(5, 4, 32)]));
        let error = check(&*disk, dir).unwrap_err();
        assert!(matches!(error, OpenError::Reclaimed { .. }), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let disk = disk(&[(5, 2, 100)]);
        let dir = Path::new(DIR);
        Inventory::default().keep(&*disk, dir, &point(&[(5, 2, 100)]));
        let path = dir.join(FILES);
        let good = disk.contents(&path).unwrap();
        let refused = |bytes: &[u8]| {
            disk.set_contents(&path, bytes);
            matches!(check(&*disk, dir), Err(OpenError::InventoryUnreadable { .. }))
        };
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&bad), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(refused(&good[..len]), "{len} bytes");
        }
    }
}
