//! What the start did in memory, as findings.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use queen_broker::recover::Opened;
use queen_io::{Change, ChangeKind, Disk, OpenMode};
use queen_qlog::walk::is_leftover;
use queen_record::header::{FIRST_SEQ_UNUSED, FileHeader, HEADER_LEN};
use queen_record::ids::EntryIndex;

use crate::report::{Findings, Severity};

/// Bytes looked at at once.
const PIECE: usize = 1 << 16;

/// Adds what a start that serves changed.
pub(crate) fn findings(
    disk: &dyn Disk,
    opened: &Opened,
    changes: &[Change],
    findings: &mut Findings,
) -> io::Result<()> {
    for change in changes {
        let path = &*change.path;
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        match path.extension().and_then(OsStr::to_str) {
            _ if is_leftover(name) || in_dead_directory(path) => {
                let what = "unfinished work of an earlier process, which a start removes";
                findings.add(Severity::Note, path, None, what);
            }
            Some("qlog") => record_file(disk, opened, change, findings)?,
            Some("qidx" | "qhsh") => match change.kind {
                ChangeKind::Removed => {
                    let what = "made for a file that is written again; a start removes it";
                    findings.add(Severity::Note, path, None, what);
                }
                ChangeKind::Made => {
                    findings.add(Severity::Note, path, None, "missing; made again from its log");
                }
                _ => {
                    let what = "does not fit its log file; made again from it";
                    findings.add(Severity::Repaired, path, first_byte(change.kind), what);
                }
            },
            // In a directory without logs it is not missing, but new.
            _ if name == "LANES" && has_logs(disk, path)? => {
                findings.add(
                    Severity::Repaired,
                    path,
                    None,
                    "missing; written with 1, as early builds had it",
                );
            }
            // The lock files, and a store that a start makes new.
            _ => {}
        }
    }
    Ok(())
}

/// Whether there are logs beside a file of the layout.
fn has_logs(disk: &dyn Disk, file: &Path) -> io::Result<bool> {
    let Some(dir) = file.parent() else { return Ok(false) };
    Ok(disk.exists(dir)? && disk.list(dir)?.iter().any(|entry| entry.is_dir))
}

fn in_dead_directory(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name).and_then(OsStr::to_str);
    parent.is_some_and(is_leftover)
}

fn first_byte(kind: ChangeKind) -> Option<u64> {
    match kind {
        ChangeKind::Written { at } => Some(at),
        ChangeKind::Cut { to, .. } => Some(to),
        _ => None,
    }
}

/// Only records that no answer stood for, and space that held none, are removed from a record file.
fn record_file(
    disk: &dyn Disk,
    opened: &Opened,
    change: &Change,
    findings: &mut Findings,
) -> io::Result<()> {
    let path = &*change.path;
    let last = opened.cut.last;
    match change.kind {
        ChangeKind::Removed if begins_at(disk, path)?.is_some_and(|first| first <= last) => {
            // A cut takes nothing of it: the checkpoint says that its space is to be given back.
            let what = "given back to the disk as the checkpoint says; a start finishes it";
            findings.add(Severity::Note, path, None, what);
        }
        ChangeKind::Removed if !is_unused(disk, path)? => {
            let what = format!(
                "all of it lies behind entry {last}, the last that is complete in every log"
            );
            findings.add(Severity::Cut, path, None, what);
        }
        ChangeKind::Cut { to, from } if !all_zero(disk, path, to, from)? => {
            let bytes = from - to;
            let what = format!(
                "{bytes} bytes behind entry {last}, the last that is complete in every log: a write that never ended"
            );
            findings.add(Severity::Cut, path, Some(to), what);
        }
        ChangeKind::Written { at } if at < HEADER_LEN as u64 => {
            let what =
                "nothing of it is complete: a start empties it and gives it a new first entry";
            findings.add(Severity::Cut, path, Some(HEADER_LEN as u64), what);
        }
        _ => {}
    }
    Ok(())
}

/// The entry that a file was made for; `None` when it was never used or has no header.
fn begins_at(disk: &dyn Disk, path: &Path) -> io::Result<Option<EntryIndex>> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut bytes = [0; HEADER_LEN];
    let count = file.read_at(&mut bytes, 0)?;
    let header = FileHeader::decode(&bytes).ok().filter(|_| count == HEADER_LEN);
    Ok(header.map(|header| header.first_seq).filter(|first| *first != FIRST_SEQ_UNUSED))
}

/// Whether a file was made ahead of its use, or not even finished.
pub(crate) fn is_unused(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut bytes = [0; HEADER_LEN];
    let count = file.read_at(&mut bytes, 0)?;
    if count < HEADER_LEN {
        return Ok(true);
    }
    if bytes == [0; HEADER_LEN] {
        return all_zero(disk, path, 0, file.len()?);
    }
    Ok(FileHeader::decode(&bytes).is_ok_and(|header| header.first_seq == FIRST_SEQ_UNUSED))
}

fn all_zero(disk: &dyn Disk, path: &Path, from: u64, end: u64) -> io::Result<bool> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut buf = vec![0; PIECE];
    let mut at = from;
    while at < end {
        let count = file.read_at(&mut buf, at)?;
        let part = buf.get(..count).unwrap_or_default();
        if count == 0 || part.iter().any(|byte| *byte != 0) {
            return Ok(count == 0);
        }
        at += count as u64;
    }
    Ok(true)
}
