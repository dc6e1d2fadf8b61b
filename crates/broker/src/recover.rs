//! From a directory to a state: load the store, open the logs, replay what is above the checkpoint, cut the rest.

use std::path::Path;
use std::sync::Arc;

use queen_io::Disk;
use queen_planner::filter::{Band, DuplicateFilter};
use queen_qlog::{Cut, DurablePoint, Qlog, ReadError};
use queen_raft::{Examined, examine, replay};
use queen_record::ids::{EntryIndex, Micros, PartitionId, QueueId};
use queen_state::State;
use queen_store::Checkpoint;

use crate::backup;
use crate::node::StartError;

/// A directory that was recovered.
pub struct Opened {
    /// As of the last complete entry in the logs.
    pub state: State,
    /// The logs, cut behind that entry.
    pub qlog: Qlog,
    /// The entry that the store covers.
    pub durable: EntryIndex,
    /// Rows of the store.
    pub rows: u64,
    /// Whether there was no store: everything was applied from the logs, and nothing says where they should end.
    pub fresh: bool,
    /// What was replayed from the logs, and what was cut from them.
    pub cut: Cut,
    /// The term of the last entry in the logs.
    pub last_term: u64,
    /// Partitions that entries above the checkpoint make, on a member; they are not applied yet.
    pub made: Vec<(PartitionId, QueueId, EntryIndex)>,
}

/// Who wrote a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A node alone: whatever its logs hold is committed.
    Local,
    /// A member of a cluster: what stands above the checkpoint may not be, and is left for the others to decide.
    Member,
}

impl Kind {
    /// Who wrote the directory, by what it holds.
    ///
    /// # Errors
    /// The directory cannot be looked at.
    pub fn of(disk: &dyn Disk, dir: &Path) -> Result<Self, StartError> {
        let path = dir.join(queen_raft::DIR).join(queen_raft::STATE);
        let is_member = disk.exists(&path).map_err(|error| directory(&path, &error))?;
        Ok(if is_member { Self::Member } else { Self::Local })
    }
}

/// Opens a directory as its owner's.
///
/// # Errors
/// Every refusal of store, logs and replay.
pub fn open(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    qlog: &queen_qlog::Options,
    store: &mut dyn Checkpoint,
    kind: Kind,
) -> Result<Opened, StartError> {
    if kind == Kind::Local && Kind::of(&**disk, dir)? == Kind::Member {
        let foreign = dir.join(queen_raft::DIR).join(queen_raft::STATE);
        return Err(StartError::Directory(format!(
            "{} exists: this directory was written by the openraft replicator, not by the local one",
            foreign.display()
        )));
    }
    if kind == Kind::Member {
        queen_raft::check_files(disk.clone(), dir)?;
    }
    let mut state = State::new();
    let loaded = store.load(&mut |keyspace, key, value| {
        state.load_row(keyspace, key, value).map_err(|error| error.to_string())
    })?;
    let point = match state.logs_point() {
        [] => DurablePoint::default(),
        bytes => DurablePoint::decode(bytes).map_err(|error| {
            StartError::Directory(format!(
                "the store's record of the logs does not decode: {error}"
            ))
        })?,
    };
    if point.index != state.applied() {
        return Err(StartError::Directory(format!(
            "the store is at entry {}, its record of the logs at {}",
            state.applied(),
            point.index
        )));
    }
    tracing::info!(rows = loaded.rows, applied = state.applied().0, "store loaded");
    // Also in a store that a start made which then refused: it must go on to be refused, not to cut what it cannot apply.
    if loaded.fresh || point.index == EntryIndex(0) {
        check_reapplicable(disk, &qlog.dir)?;
    }
    let (qlog, recovery) = Qlog::open(disk.clone(), qlog.clone(), &point)?;
    let (cut, last_term, made) = match kind {
        Kind::Local => {
            let cut = replay(recovery, &mut |index, term, entry| {
                state.apply(index, term, entry).map_err(|error| error.to_string())
            })?;
            (cut, state.term(), Vec::new())
        }
        Kind::Member => {
            let Examined { cut, last_term, made } = examine(recovery)?;
            (cut, last_term.unwrap_or_else(|| state.term()), made)
        }
    };
    if cut.bytes > 0 {
        tracing::warn!(
            entries = cut.entries,
            bytes = cut.bytes,
            "cut an unfinished group from the logs"
        );
    }
    if loaded.fresh && cut.delivered > 0 && kind == Kind::Local {
        tracing::warn!(
            last = cut.last.0,
            "the store was gone and is made again from the logs; nothing says whether they end where they did"
        );
    }
    tracing::info!(replayed = cut.delivered, last = cut.last.0, "logs recovered");
    // What a process that ended has staged counts for nothing. A start that refuses leaves it: it may hold what is missing.
    backup::clear(&**disk, dir).map_err(|error| {
        StartError::Directory(format!("what a backup has staged cannot be removed: {error}"))
    })?;
    let (rows, fresh) = (loaded.rows, loaded.fresh);
    Ok(Opened { state, qlog, durable: point.index, rows, fresh, cut, last_term, made })
}

/// Without a checkpoint the logs must still begin with their first file: what is missing in front cannot be applied again.
fn check_reapplicable(disk: &Arc<dyn Disk>, qlog: &Path) -> Result<(), StartError> {
    if !disk.exists(qlog).map_err(|error| directory(qlog, &error))? {
        return Ok(());
    }
    for log in disk.list(qlog).map_err(|error| directory(qlog, &error))? {
        if !log.is_dir || !log.name.starts_with('q') || log.name.contains('.') {
            continue;
        }
        let dir = qlog.join(&log.name);
        let names = disk.list(&dir).map_err(|error| directory(&dir, &error))?;
        let is_log = |name: &str| Path::new(name).extension().is_some_and(|kind| kind == "qlog");
        let first = names.iter().find(|entry| is_log(&entry.name));
        if let Some(first) = first.filter(|first| first.name != "r00000001.qlog") {
            return Err(StartError::Directory(format!(
                "Cannot re-apply logs: the store has no checkpoint, and {} begins with {}",
                dir.display(),
                first.name
            )));
        }
    }
    Ok(())
}

/// A duplicate filter that knows every hash stored since then.
///
/// # Errors
/// A damaged log.
pub fn warm_filter(qlog: &Qlog, since: Micros) -> Result<DuplicateFilter, ReadError> {
    let mut filter = DuplicateFilter::default();
    qlog.hashes_since(since, &mut |_, range, partition, hashes, created| {
        let band = Band { from: range.from, to: range.to };
        for hash in hashes {
            filter.insert(partition, *hash, band, created);
        }
    })?;
    Ok(filter)
}

fn directory(path: &Path, error: &std::io::Error) -> StartError {
    StartError::Directory(format!("{}: {error}", path.display()))
}
