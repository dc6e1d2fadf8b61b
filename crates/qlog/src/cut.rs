//! Cutting one log: everything behind a place goes, and what is left is durable.
//!
//! The newest file goes first, each removal durable before the next, so a crash at any place leaves a log that ends
//! earlier than it did and has no hole.

use std::sync::Arc;

use parking_lot::RwLock;
use queen_io::{DiskFile, OpenMode};
use queen_record::header::{FIRST_SEQ_AT, HEADER_LEN};
use queen_record::ids::EntryIndex;

use crate::active::scan_file;
use crate::error::Fault;
use crate::file::{FileIndex, LogFile};
use crate::log::Log;
use crate::names::{Ext, file_path};
use crate::open::remove_sides;
use crate::scan::{CHUNK_WHOLE, read_exact_at};
use crate::shared::Shared;

/// What is to be cut from one log. Nobody appends meanwhile.
pub(crate) struct LogCutting<'a> {
    pub(crate) log: &'a Log,
    /// Number and end of the records of each file, ascending.
    pub(crate) files: &'a [(u64, u64)],
    /// Length of the newest one.
    pub(crate) physical_len: u64,
    /// File that becomes the active one, and where it ends then.
    pub(crate) to: (u64, u64),
    /// The entry that may be written next.
    pub(crate) next: EntryIndex,
    pub(crate) again: Again,
}

/// What of the kept file is written once more where it is: a sync of it may have failed before. The system has then
/// marked its pages clean: they can be read, no sync will write them, and a power cut loses them.
#[derive(Default)]
pub(crate) struct Again {
    pub(crate) header: bool,
    /// From this file and byte on.
    pub(crate) from: Option<(u64, u64)>,
}

impl LogCutting<'_> {
    /// Carries it out; returns the bytes of records that went.
    pub(crate) fn run(&self, shared: &Shared) -> Result<u64, Fault> {
        let _site = queen_io::site("cut");
        let (log, (number, end)) = (self.log, self.to);
        let disk = &*shared.disk;
        let mut bytes = 0;
        for (file, file_end) in self.files.iter().rev().take_while(|(file, _)| *file > number) {
            let path = file_path(&log.dir, *file, Ext::Log);
            remove_sides(disk, &log.dir, *file)?;
            disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            shared.sync_dir(&log.dir)?;
            bytes += file_end - HEADER_LEN as u64;
        }
        let Some((_, file_end)) = self.files.iter().find(|(file, _)| *file == number) else {
            return Ok(bytes);
        };
        bytes += file_end - end;
        let removed = self.files.last().is_some_and(|(file, _)| *file > number);
        if removed && remove_sides(disk, &log.dir, number)? {
            shared.sync_dir(&log.dir)?;
        }
        let files = log.files();
        let Some(kept) = files.iter().find(|file| file.number == number) else { return Ok(bytes) };
        let path = file_path(&log.dir, number, Ext::Log);
        let physical = if removed { *file_end } else { self.physical_len };
        let empty = end == HEADER_LEN as u64;
        let lower = empty && kept.first_seq > self.next;
        let file = disk.open(&path, OpenMode::Write).map_err(Fault::io(&path, "open"))?;
        if self.again.header {
            write_again(&*file, 0, HEADER_LEN as u64).map_err(Fault::io(&path, "write again"))?;
        }
        if let Some((from_number, from)) = self.again.from {
            let from = if from_number == number { from } else { HEADER_LEN as u64 };
            write_again(&*file, from, end).map_err(Fault::io(&path, "write again"))?;
        }
        if physical > end {
            file.set_len(end).map_err(Fault::io(&path, "cut"))?;
        }
        if lower {
            // A first seq above the next entry would hide that entry from whoever looks files up by seq.
            file.write_all_at(&self.next.0.to_le_bytes(), FIRST_SEQ_AT)
                .map_err(Fault::io(&path, "write header"))?;
        }
        // Also when nothing is to be cut: the recovery before may have cut it and ended before its sync, and a power cut
        // would bring the cut parts back beside entries that took their indexes.
        shared.sync_file(&*file, &path)?;
        // The process before may have ended between making or removing a name and syncing it.
        shared.sync_dir(&log.dir)?;
        if removed || *file_end > end || lower {
            let file = disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
            let first_seq = if lower { self.next } else { kept.first_seq };
            let scan = scan_file(file, end, first_seq).map_err(Fault::io(&path, "read"))?;
            {
                let mut tail = log.tail.lock();
                tail.oldest = scan.first.map(|(_, time)| time);
                tail.points = scan.points;
            }
            let index = FileIndex::Ram(RwLock::new(scan.index));
            let active = LogFile::new(log.id, number, first_seq, path, index, log.epoch);
            let mut list: Vec<Arc<LogFile>> =
                files.iter().filter(|file| file.number < number).cloned().collect();
            list.push(active);
            log.set_files(list);
        }
        let mut tail = log.tail.lock();
        tail.sealed.retain(|file| file.number < number);
        tail.number = number;
        tail.end = end;
        tail.allocated = end;
        tail.last = tail.marks.back().map_or(EntryIndex(0), |mark| mark.index);
        Ok(bytes)
    }
}

/// Writes the bytes from `from` to `end` where they are.
fn write_again(file: &dyn DiskFile, from: u64, end: u64) -> std::io::Result<()> {
    let mut at = from;
    let mut buf = Vec::new();
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_WHOLE);
        buf.resize(size, 0);
        read_exact_at(file, &mut buf, at)?;
        file.write_all_at(&buf, at)?;
        at += size as u64;
    }
    Ok(())
}
