//! Logs that the last durable point says are going, and directories that already have their dead name.

use std::path::Path;

use queen_io::{Disk, OpenMode};
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::ids::LogId;

use crate::active::unused;
use crate::durable::LogTail;
use crate::error::{Fault, OpenError};
use crate::names::{Ext, dead_dir, file_path, log_dir, parse_file};
use crate::scan::read_exact_at;

/// What is there of a log that was being removed.
pub(crate) enum Retired {
    /// The log that the point speaks of.
    AsRecorded,
    /// A later one of the same id.
    Anew,
}

/// A later log begins with a file 1 that is not finished, or was made for an entry above the recorded ones.
pub(crate) fn retired(disk: &dyn Disk, dir: &Path, tail: &LogTail) -> Result<Retired, OpenError> {
    let names = disk.list(dir).map_err(Fault::io(dir, "list"))?;
    let Some(lowest) = names.iter().filter_map(|entry| parse_file(&entry.name)).min() else {
        return Ok(Retired::Anew);
    };
    if lowest != 1 {
        return Ok(Retired::AsRecorded);
    }
    let path = file_path(dir, lowest, Ext::Log);
    let file = disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
    if unused(&*file).map_err(Fault::io(&path, "read"))? {
        return Ok(Retired::Anew);
    }
    let mut bytes = [0; HEADER_LEN];
    read_exact_at(&*file, &mut bytes, 0).map_err(Fault::io(&path, "read"))?;
    match FileHeader::decode(&bytes) {
        Ok(header) if header.first_seq > tail.tail_index => Ok(Retired::Anew),
        // A header that is wrong is refused when the log is opened.
        _ => Ok(Retired::AsRecorded),
    }
}

pub(crate) fn finish_retiring(disk: &dyn Disk, dir: &Path, log: LogId) -> Result<(), Fault> {
    let path = log_dir(dir, log);
    let dead = dead_dir(dir, log);
    disk.rename(&path, &dead).map_err(Fault::io(&path, "rename"))?;
    {
        let _site = queen_io::site("retire");
        disk.sync_dir(dir).map_err(Fault::io(dir, "sync"))?;
    }
    remove_dir(disk, &dead)
}

/// Removes a retired log. Its name says that it is dead, so stopping half way leaves nothing to mistake.
pub(crate) fn remove_dir(disk: &dyn Disk, dir: &Path) -> Result<(), Fault> {
    for entry in disk.list(dir).map_err(Fault::io(dir, "list"))? {
        let path = dir.join(&entry.name);
        disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
    }
    disk.remove_dir(dir).map_err(Fault::io(dir, "remove"))
}
