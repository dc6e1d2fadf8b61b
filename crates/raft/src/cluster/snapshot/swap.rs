//! A staged snapshot takes the place of what the member had, before anything of it is opened.
//!
//! ```text
//! snapshot.pending    written last by who received it: the snapshot in snapshots/recv-<entry> is whole
//! snapshot.swapping   the same text: from here on it only goes forward
//!   qlog, store -> snapshots/replaced/        one name after the other, both directories synced after each
//!   snapshots/recv-<entry>/qlog, store -> .
//!   raft/membership.json, raft/state.json     the purge point is the entry that it covers
//! both markers are removed, snapshot.swapping last; then what is left in snapshots/
//! ```
//!
//! - W1: a crash anywhere goes on at the next start and ends the same; every step looks whether it is done.
//! - W2: with `snapshot.swapping` nothing else has used the directory since, so writing the small files again changes
//!   nothing.

use std::path::Path;
use std::sync::Arc;

use queen_io::Disk;
use queen_record::ids::EntryIndex;
use serde::{Deserialize, Serialize};

use super::Head;
use crate::cluster::files::{
    Files, FilesError, Id, State, StoredJson, VoteJson, read_json, replace_json,
};
use crate::cluster::types::{Vote, entry_index};

/// Where snapshots are staged, in the data directory.
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// Says that a snapshot waits to be loaded.
pub(crate) const PENDING: &str = "snapshot.pending";
const SWAPPING: &str = "snapshot.swapping";
/// What says, in the data directory, that a start loads a snapshot before anything else.
pub const STAGED: [&str; 2] = [PENDING, SWAPPING];
const REPLACED: &str = "replaced";
/// What a snapshot replaces. The mark of the encryption key is one file and is in some only.
const NAMES: [&str; 3] = ["qlog", "store", "ENCRYPTION"];

/// `snapshot.pending` and `snapshot.swapping`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// Its directory below `snapshots/`.
    staged: String,
    /// The entry it covers.
    applied: u64,
    applied_term: u64,
    /// The same as the library counts.
    pub(crate) last_log_id: Id,
    membership: StoredJson,
    pub(crate) vote: VoteJson,
}

impl Pending {
    pub(crate) fn of(head: &Head, staged: String) -> Self {
        Self {
            staged,
            applied: entry_index(head.covers.index).0,
            applied_term: head.covers.leader_id.term,
            last_log_id: head.covers.into(),
            membership: StoredJson::of(&head.membership),
            vote: VoteJson::from(&head.vote),
        }
    }
}

/// Loads a staged snapshot in place of what a member's directory holds, or goes on with it; the entry that it covers.
/// Without one, only what a transfer that never ended has left is removed.
///
/// To be called before store and logs are opened, by whoever holds the directory.
///
/// # Errors
/// [`FilesError`]: refuse to start. The next start goes on.
pub fn load_staged(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    node: u64,
) -> Result<Option<EntryIndex>, FilesError> {
    let snapshots = dir.join(SNAPSHOTS);
    let pending = match read_json::<Pending>(&**disk, &dir.join(SWAPPING))? {
        Some(pending) => Some(pending),
        None => begin(&**disk, dir)?,
    };
    if let Some(pending) = &pending {
        tracing::info!(index = pending.applied, "snapshot: loading");
        swap(disk, dir, node, pending)?;
        for marker in [PENDING, SWAPPING] {
            let path = dir.join(marker);
            if disk.exists(&path).map_err(FilesError::io(&path, "look for"))? {
                disk.remove_file(&path).map_err(FilesError::io(&path, "remove"))?;
            }
            disk.sync_dir(dir).map_err(FilesError::io(dir, "sync"))?;
        }
        tracing::info!(index = pending.applied, "snapshot: loaded");
    }
    remove_tree(&**disk, &snapshots)?;
    Ok(pending.map(|pending| EntryIndex(pending.applied)))
}

/// Makes sure that from here on it only goes forward; `None` when nothing is staged.
fn begin(disk: &dyn Disk, dir: &Path) -> Result<Option<Pending>, FilesError> {
    let path = dir.join(PENDING);
    let Some(pending) = read_json::<Pending>(disk, &path)? else { return Ok(None) };
    let snapshots = dir.join(SNAPSHOTS);
    let is_plain = pending.staged.starts_with("recv-") && !pending.staged.contains('/');
    let staged = snapshots.join(&pending.staged);
    let is_there = is_plain
        && disk.exists(&staged.join("store")).map_err(FilesError::io(&staged, "look into"))?;
    if !is_there {
        let reason = format!("what it names is not in {}", staged.display());
        return Err(FilesError::Damaged { path, reason });
    }
    let replaced = snapshots.join(REPLACED);
    remove_tree(disk, &replaced)?;
    disk.create_dir(&replaced).map_err(FilesError::io(&replaced, "create"))?;
    disk.sync_dir(&snapshots).map_err(FilesError::io(&snapshots, "sync"))?;
    replace_json(disk, dir, SWAPPING, &pending)?;
    Ok(Some(pending))
}

fn swap(disk: &Arc<dyn Disk>, dir: &Path, node: u64, pending: &Pending) -> Result<(), FilesError> {
    let snapshots = dir.join(SNAPSHOTS);
    let (staged, replaced) = (snapshots.join(&pending.staged), snapshots.join(REPLACED));
    for name in NAMES {
        let from = staged.join(name);
        if !disk.exists(&from).map_err(FilesError::io(&from, "look for"))? {
            continue;
        }
        let to = dir.join(name);
        if disk.exists(&to).map_err(FilesError::io(&to, "look for"))? {
            rename(&**disk, (dir, &replaced), name)?;
        }
        rename(&**disk, (&staged, dir), name)?;
    }
    let files = Files::open(disk.clone(), dir)?;
    files.write_membership(&pending.membership.clone().stored(&dir.join(PENDING))?)?;
    let own = files.state()?.unwrap_or_default();
    let is_newer = |own: &VoteJson| Vote::from(*own).leader_id.term >= pending.term();
    files.write_state(&State {
        floor_v: 1,
        node,
        vote: Some(own.vote.filter(is_newer).unwrap_or(pending.vote)),
        purged: Some(pending.last_log_id),
        terms: vec![pending.last_log_id],
        ..own
    })
}

impl Pending {
    /// The term of the leader that sent it.
    fn term(&self) -> u64 {
        Vote::from(self.vote).leader_id.term
    }
}

/// Moves a name from one directory to another, durably.
fn rename(disk: &dyn Disk, (from, to): (&Path, &Path), name: &str) -> Result<(), FilesError> {
    let target = to.join(name);
    disk.rename(&from.join(name), &target).map_err(FilesError::io(&target, "rename to"))?;
    // The new place first: until the old one is synced, the name may be in either, and that is looked at.
    disk.sync_dir(to).map_err(FilesError::io(to, "sync"))?;
    disk.sync_dir(from).map_err(FilesError::io(from, "sync"))
}

/// Removes a directory with everything in it; nothing is done when it is missing.
pub(crate) fn remove_tree(disk: &dyn Disk, dir: &Path) -> Result<(), FilesError> {
    if !disk.exists(dir).map_err(FilesError::io(dir, "look for"))? {
        return Ok(());
    }
    for entry in disk.list(dir).map_err(FilesError::io(dir, "list"))? {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            remove_tree(disk, &path)?;
        } else {
            disk.remove_file(&path).map_err(FilesError::io(&path, "remove"))?;
        }
    }
    disk.remove_dir(dir).map_err(FilesError::io(dir, "remove"))
}

#[cfg(test)]
mod tests;
