//! What the new directory is made of: records, rows, and files of neither kind.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use queen_broker::backup::STAGING;
use queen_io::{Disk, OpenMode};
use queen_qlog::{Anew, AnewLogs, DurablePoint};
use queen_record::layout::Layout;
use queen_state::{RowPlace, State, StoredRow};
use queen_store::{Change, Checkpoint};

use crate::content::{Content, Tallies};
use crate::error::RelayoutError;
use crate::progress::Progress;

/// Rows encoded at once.
const ROWS: usize = 256;
/// Bytes of other files copied at once.
const PIECE: usize = 1 << 20;
/// What is made anew, by this or by a start, and what means nothing at rest.
const NOT_COPIED: [&str; 6] = ["qlog", "store", "queen.lock", "ballast", "ENCRYPTION.tmp", STAGING];

/// What was copied.
pub(crate) struct Copied {
    pub(crate) tallies: Tallies,
    /// Bytes of message records that were left out.
    pub(crate) dead_bytes: u64,
    pub(crate) anew: Anew,
}

/// Writes the live records into logs of `layout`, durably.
pub(crate) fn records(
    disk: &Arc<dyn Disk>,
    old: &Content,
    (dir, layout, segment_bytes): (&Path, Layout, u64),
    progress: &Progress,
) -> Result<Copied, RelayoutError> {
    let mut logs = AnewLogs::create(disk.clone(), dir, layout, segment_bytes)?;
    let (tallies, dead_bytes) = old.tally(progress, &mut |record| {
        // A record whose partition is gone is not live.
        let Some(log) = old.log_under(layout, record.head.partition) else { return Ok(()) };
        Ok(logs.put(log, record.head.seq, record.bytes)?)
    })?;
    let anew = logs.finish(old.opened.state.applied())?;
    Ok(Copied { tallies, dead_bytes, anew })
}

/// Writes every row, and the point of the new logs, into a new store, durably.
pub(crate) fn rows(
    state: &mut State,
    point: &DurablePoint,
    store: &mut dyn Checkpoint,
    progress: &Progress,
) -> Result<(), RelayoutError> {
    store.load(&mut |_, _, _| Ok(()))?;
    let mut bytes = Vec::new();
    point.encode(&mut bytes);
    let meta = state.begin_cut(&bytes);
    // What changed since the last checkpoint is among all rows, which follow.
    while !state.next_of_cut(ROWS).is_empty() {}
    state.finish_cut();
    let rows = AllRows { state, place: RowPlace::default(), batch: meta.into(), done: false };
    let mut counted = rows.inspect(|_| progress.add_done(1));
    store.write(&mut counted)?;
    Ok(())
}

/// The rows of a state without changes, a few at a time.
struct AllRows<'s> {
    state: &'s State,
    place: RowPlace,
    batch: VecDeque<StoredRow>,
    done: bool,
}

impl Iterator for AllRows<'_> {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(StoredRow { keyspace, key, value }) = self.batch.pop_front() {
                // Cursors that stand in their partition's row have none of their own.
                if value.is_none() {
                    continue;
                }
                return Some(Change { keyspace, key, value });
            }
            if self.done {
                return None;
            }
            match self.state.unchanged_rows(&mut self.place, ROWS) {
                Some(rows) => self.batch = rows.into(),
                None => self.done = true,
            }
        }
    }
}

/// Copies every other file of the old directory, durably but for the names in `to` itself.
pub(crate) fn others(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), RelayoutError> {
    for entry in disk.list(from).map_err(RelayoutError::io(from, "list"))? {
        if !NOT_COPIED.contains(&&*entry.name) {
            one(disk, &from.join(&entry.name), &to.join(&entry.name), entry.is_dir)?;
        }
    }
    Ok(())
}

fn one(disk: &dyn Disk, from: &Path, to: &Path, is_dir: bool) -> Result<(), RelayoutError> {
    if is_dir {
        disk.create_dir(to).map_err(RelayoutError::io(to, "create"))?;
        for entry in disk.list(from).map_err(RelayoutError::io(from, "list"))? {
            one(disk, &from.join(&entry.name), &to.join(&entry.name), entry.is_dir)?;
        }
        return disk.sync_dir(to).map_err(RelayoutError::io(to, "sync"));
    }
    let input = disk.open(from, OpenMode::Read).map_err(RelayoutError::io(from, "open"))?;
    let output = disk.open(to, OpenMode::CreateNew).map_err(RelayoutError::io(to, "create"))?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let count = input.read_at(&mut piece, at).map_err(RelayoutError::io(from, "read"))?;
        let bytes = piece.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        output.write_all_at(bytes, at).map_err(RelayoutError::io(to, "write"))?;
        at += count as u64;
    }
    output.sync_data().map_err(RelayoutError::io(to, "sync"))
}

/// Bytes of the files that `others` copies, and of the old store.
pub(crate) fn other_bytes(disk: &dyn Disk, from: &Path) -> Result<u64, RelayoutError> {
    let mut bytes = 0;
    for entry in disk.list(from).map_err(RelayoutError::io(from, "list"))? {
        if entry.name == "store" || !NOT_COPIED.contains(&&*entry.name) {
            bytes += bytes_of(disk, &from.join(&entry.name), entry.is_dir)?;
        }
    }
    Ok(bytes)
}

fn bytes_of(disk: &dyn Disk, path: &Path, is_dir: bool) -> Result<u64, RelayoutError> {
    if !is_dir {
        let len = disk.open(path, OpenMode::Read).and_then(|file| file.len());
        return len.map_err(RelayoutError::io(path, "open"));
    }
    let mut bytes = 0;
    for entry in disk.list(path).map_err(RelayoutError::io(path, "list"))? {
        bytes += bytes_of(disk, &path.join(&entry.name), entry.is_dir)?;
    }
    Ok(bytes)
}
