//! The small files of a member, below `raft/`, and the bytes of the entries that are the cluster's own.
//!
//! ```text
//! state.json       whose directory, vote, purge point, where each term begins: replaced whole and synced, in order with the appends
//! seen.json        starts of other directories: replaced whole and synced before they count
//! committed.json   a hint, rewritten in place and never synced: unreadable means unknown
//! membership.json  the last applied membership: replaced whole and synced before it counts as applied
//!
//! entry bytes of the cluster's own entries: FF FF FF FF, then 01 (blank) or 02 and the membership as JSON
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Disk, DiskFile, OpenMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::identity::{Boot, DiskId, Sighting};
use super::snapshot::swap::{PENDING, Pending};
use super::types::{LogId, Member, Membership, Payload, StoredMembership, Vote, log_id};

/// The directory of these files.
pub const DIR: &str = "raft";
/// What says that a directory belongs to a cluster.
pub const STATE: &str = "state.json";
const COMMITTED: &str = "committed.json";
const SEEN: &str = "seen.json";
const MEMBERSHIP: &str = "membership.json";
/// A file of these is small; a larger one is none of them.
const BYTES_MAX: u64 = 1 << 20;
/// What an entry of the cluster's own begins with: no planned entry has this length.
const OWN: [u8; 4] = [0xFF; 4];
const BLANK: u8 = 1;
const MEMBERS: u8 = 2;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A call failed.
    #[error("{}: {operation}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was done.
        operation: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}: replace this node (remove it from the members, start it empty, add it again)", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl FilesError {
    pub(crate) fn io(
        path: &Path,
        operation: &'static str,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self::Io { path, operation, error }
    }
}

/// A log id as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Id {
    pub(crate) term: u64,
    pub(crate) index: u64,
}

impl From<LogId> for Id {
    fn from(id: LogId) -> Self {
        Self { term: id.leader_id.term, index: id.index }
    }
}

impl From<Id> for LogId {
    fn from(id: Id) -> Self {
        log_id(id.term, id.index)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteJson {
    term: u64,
    node: u64,
    committed: bool,
}

impl From<&Vote> for VoteJson {
    fn from(vote: &Vote) -> Self {
        let leader = &vote.leader_id;
        Self { term: leader.term, node: leader.voted_for, committed: vote.committed }
    }
}

impl From<VoteJson> for Vote {
    fn from(vote: VoteJson) -> Self {
        if vote.committed {
            Self::new_committed(vote.term, vote.node)
        } else {
            Self::new(vote.term, vote.node)
        }
    }
}

/// `state.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) floor_v: u32,
    /// Whose directory it is.
    pub(crate) node: u64,
    /// The directory's own name, from its first start on.
    #[serde(default)]
    pub(crate) disk: Option<DiskId>,
    /// The last start.
    #[serde(default)]
    pub(crate) boot: Boot,
    pub(crate) vote: Option<VoteJson>,
    pub(crate) purged: Option<Id>,
    /// The first entry of each term that the log holds, ascending.
    pub(crate) terms: Vec<Id>,
}

impl State {
    /// The term that was voted in last.
    pub(crate) fn vote_term(&self) -> u64 {
        self.vote.map_or(0, |vote| vote.term)
    }
}

/// A membership as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MembersJson {
    configs: Vec<BTreeSet<u64>>,
    nodes: BTreeMap<u64, Member>,
}

impl MembersJson {
    fn of(membership: &Membership) -> Self {
        let nodes = membership.nodes().map(|(id, node)| (*id, node.clone())).collect();
        Self { configs: membership.get_joint_config().clone(), nodes }
    }

    fn membership(self) -> Result<Membership, String> {
        Membership::new(self.configs, self.nodes).map_err(|error| error.to_string())
    }
}

/// `membership.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredJson {
    at: Option<Id>,
    members: MembersJson,
}

impl StoredJson {
    pub(crate) fn of(stored: &StoredMembership) -> Self {
        let at = stored.log_id().map(Id::from);
        Self { at, members: MembersJson::of(stored.membership()) }
    }

    /// The membership; `path` is where this was read.
    pub(crate) fn stored(self, path: &Path) -> Result<StoredMembership, FilesError> {
        let damaged = |reason| FilesError::Damaged { path: path.to_owned(), reason };
        let membership = self.members.membership().map_err(damaged)?;
        Ok(StoredMembership::new(self.at.map(LogId::from), membership))
    }
}

/// Whether the files of a member below a data directory can be read.
///
/// # Errors
/// The first that cannot.
pub fn check_files(disk: Arc<dyn Disk>, data: &Path) -> Result<(), FilesError> {
    let files = Files { disk, dir: data.join(DIR) };
    files.state()?;
    files.seen()?;
    files.membership().map(drop)
}

/// The files of one member.
#[derive(Clone)]
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Files {
    /// The files below a data directory, which exists.
    pub(crate) fn open(disk: Arc<dyn Disk>, data: &Path) -> Result<Self, FilesError> {
        let dir = data.join(DIR);
        disk.create_dir(&dir).map_err(io(&dir, "create"))?;
        disk.sync_dir(data).map_err(io(data, "sync"))?;
        // The process before may have ended between giving a file its name and syncing that. What is read from here on, a
        // vote above all, must not be taken back by a power cut.
        disk.sync_dir(&dir).map_err(io(&dir, "sync"))?;
        Ok(Self { disk, dir })
    }

    pub(crate) fn state(&self) -> Result<Option<State>, FilesError> {
        self.read(STATE)
    }

    /// Notes that a snapshot waits for the next start.
    pub(crate) fn write_pending(&self, pending: &Pending) -> Result<(), FilesError> {
        let data = self.dir.parent().unwrap_or(&self.dir);
        replace_json(&*self.disk, data, PENDING, pending)
    }

    pub(crate) fn write_state(&self, state: &State) -> Result<(), FilesError> {
        self.replace(STATE, state)
    }

    /// The membership that was applied last.
    pub(crate) fn membership(&self) -> Result<StoredMembership, FilesError> {
        match self.read::<StoredJson>(MEMBERSHIP)? {
            Some(stored) => stored.stored(&self.dir.join(MEMBERSHIP)),
            None => Ok(StoredMembership::default()),
        }
    }

    pub(crate) fn write_membership(&self, stored: &StoredMembership) -> Result<(), FilesError> {
        self.replace(MEMBERSHIP, &StoredJson::of(stored))
    }

    /// Starts of other directories.
    pub(crate) fn seen(&self) -> Result<BTreeMap<DiskId, Sighting>, FilesError> {
        Ok(self.read(SEEN)?.unwrap_or_default())
    }

    pub(crate) fn write_seen(&self, seen: &BTreeMap<DiskId, Sighting>) -> Result<(), FilesError> {
        self.replace(SEEN, seen)
    }

    /// The hint of what is committed; `None` also when it cannot be read.
    pub(crate) fn committed(&self) -> Option<LogId> {
        let id: Option<Id> = self.read(COMMITTED).ok().flatten();
        id.map(LogId::from)
    }

    /// Where the hint is written.
    pub(crate) fn committed_hint(&self) -> Result<Hint, FilesError> {
        let path = self.dir.join(COMMITTED);
        let is_there = self.disk.exists(&path).map_err(io(&path, "look for"))?;
        let mode = if is_there { OpenMode::Write } else { OpenMode::CreateNew };
        let file = self.disk.open(&path, mode).map_err(io(&path, "open"))?;
        Ok(Hint { file, path })
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FilesError> {
        read_json(&*self.disk, &self.dir.join(name))
    }

    pub(crate) fn replace<T: Serialize>(&self, name: &str, value: &T) -> Result<(), FilesError> {
        replace_json(&*self.disk, &self.dir, name, value)
    }
}

/// Reads a small file; `None` when there is none.
pub(crate) fn read_json<T: DeserializeOwned>(
    disk: &dyn Disk,
    path: &Path,
) -> Result<Option<T>, FilesError> {
    if !disk.exists(path).map_err(io(path, "look for"))? {
        return Ok(None);
    }
    let damaged = |reason: String| FilesError::Damaged { path: path.to_owned(), reason };
    let file = disk.open(path, OpenMode::Read).map_err(io(path, "open"))?;
    let len = file.len().map_err(io(path, "read"))?;
    if len > BYTES_MAX {
        return Err(damaged(format!("{len} bytes are too many")));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let read = file.read_at(&mut bytes, 0).map_err(io(path, "read"))?;
    bytes.truncate(read);
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| damaged(format!("it does not parse: {error}")))
}

/// Replaces a small file of a directory whole and durably.
pub(crate) fn replace_json<T: Serialize>(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    value: &T,
) -> Result<(), FilesError> {
    let (path, made) = (dir.join(name), dir.join(format!("{name}.tmp")));
    let mut bytes = serde_json::to_vec(value)
        .map_err(|error| FilesError::Damaged { path: path.clone(), reason: error.to_string() })?;
    bytes.push(b'\n');
    let file = disk.open(&made, OpenMode::Truncate).map_err(io(&made, "create"))?;
    file.write_all_at(&bytes, 0).map_err(io(&made, "write"))?;
    file.sync_data().map_err(io(&made, "sync"))?;
    disk.rename(&made, &path).map_err(io(&path, "rename to"))?;
    disk.sync_dir(dir).map_err(io(dir, "sync"))
}

/// `committed.json`, open.
pub(crate) struct Hint {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
}

impl Hint {
    pub(crate) fn write(&self, committed: LogId) -> Result<(), FilesError> {
        let id = Id::from(committed);
        // Of one length, so that a shorter one leaves nothing of a longer one behind it.
        let text = format!("{{\"term\":{:>20},\"index\":{:>20}}}\n", id.term, id.index);
        self.file.write_all_at(text.as_bytes(), 0).map_err(io(&self.path, "write"))
    }
}

/// The log's bytes of an entry of the cluster's own; `None` for a planned one.
pub(crate) fn own_bytes(payload: &Payload) -> Option<Vec<u8>> {
    let mut bytes = OWN.to_vec();
    match payload {
        Payload::Blank => bytes.push(BLANK),
        Payload::Membership(membership) => {
            bytes.push(MEMBERS);
            let json = serde_json::to_vec(&MembersJson::of(membership));
            bytes
                .extend(json.unwrap_or_else(|error| panic!("numbers and texts are JSON: {error}")));
        }
        Payload::Normal(_) => return None,
    }
    Some(bytes)
}

/// Whether an entry of the log is one of the cluster's own: nothing of it is applied to the state.
pub(crate) fn is_own(bytes: &[u8]) -> bool {
    bytes.starts_with(&OWN)
}

/// The payload of an entry of the cluster's own.
pub(crate) fn own_payload(bytes: &[u8]) -> Result<Payload, String> {
    match bytes.strip_prefix(&OWN) {
        Some([BLANK]) => Ok(Payload::Blank),
        Some([MEMBERS, json @ ..]) => {
            let members: MembersJson =
                serde_json::from_slice(json).map_err(|error| error.to_string())?;
            Ok(Payload::Membership(members.membership()?))
        }
        _ => Err("it is no entry of a cluster".to_owned()),
    }
}

/// An entry of the cluster's own for a person: `blank`, or `membership` and what is stored of it.
pub(crate) fn own_text(bytes: &[u8]) -> Result<String, String> {
    Ok(match own_payload(bytes)? {
        Payload::Membership(_) => {
            let json = bytes.get(OWN.len() + 1..).unwrap_or_default();
            format!("membership {}", String::from_utf8_lossy(json))
        }
        Payload::Blank | Payload::Normal(_) => "blank".to_owned(),
    })
}

fn io(path: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> FilesError + use<> {
    FilesError::io(path, operation)
}

#[cfg(test)]
mod tests {
    use queen_io::SimDisk;
    use queen_io::sim::{Choice, SimFault};

    use super::*;

    #[test]
    fn a_vote_that_a_start_has_read_outlives_a_power_cut() {
        let disk = SimDisk::new();
        let data = Path::new("/data");
        disk.create_dir(data).unwrap();
        disk.settle();
        let vote = |term| Some(VoteJson { term, node: 2, committed: false });
        let voted = |term| State { node: 1, vote: vote(term), ..State::default() };
        let files = Files::open(Arc::new(disk.clone()), data).unwrap();
        files.write_state(&voted(3)).unwrap();
        // The process ends behind the rename, before the directory is synced.
        let calls = disk.calls();
        files.write_state(&voted(4)).unwrap();
        disk.fail_call(disk.calls() + (disk.calls() - calls), SimFault::Eio);
        files.write_state(&voted(5)).unwrap_err();
        let left = disk.fork();
        let files = Files::open(Arc::new(left.clone()), data).unwrap();
        assert_eq!(files.state().unwrap().unwrap().vote, vote(5));
        let after = left.crash_now(&Choice::AllLost);
        let files = Files::open(Arc::new(after), data).unwrap();
        assert_eq!(files.state().unwrap().unwrap().vote, vote(5));
    }
}
