//! The start of a node, run on whatever disk is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_broker::StartError;
use queen_broker::cipher::{EncryptionKey, fingerprint};
use queen_broker::cycle::hash_window_s;
use queen_broker::recover::{self, Kind, Opened};
use queen_io::Disk;
use queen_raft::ReplayError;
use queen_record::ids::Micros;
use queen_store::{Checkpoint, DiskStore, ImageStore};

/// What keeps the checkpoint of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// An LMDB file: every directory of the program.
    Lmdb,
    /// A plain file: directories of the simulation.
    Plain,
}

/// The directory, and what a start on it would know.
#[derive(Clone, Debug)]
pub struct Target {
    /// The data directory.
    pub dir: PathBuf,
    /// What keeps its checkpoint.
    pub store: StoreKind,
    /// The key that a start would be given; without one the directory's mark of its key is verified and nothing else.
    pub key: Option<EncryptionKey>,
    /// The time of the start: what is older than the windows is not asked of the logs.
    pub now: Micros,
    /// The least window of remembered transactionIds, s.
    pub hash_window_min_s: i64,
}

impl Target {
    /// The store's directory.
    pub fn store_dir(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// The directory of the logs.
    pub fn qlog_dir(&self) -> PathBuf {
        self.dir.join("qlog")
    }
}

/// Starts: the steps of a node before it serves, in their order. To change nothing, `disk` is a
/// [`queen_io::ScratchDisk`].
///
/// # Errors
/// Why a node would refuse.
pub fn start(disk: &Arc<dyn Disk>, target: &Target) -> Result<Opened, StartError> {
    let mut store: Box<dyn Checkpoint> = match target.store {
        StoreKind::Lmdb => Box::new(ImageStore::open(disk.clone(), &target.store_dir())?),
        StoreKind::Plain => Box::new(DiskStore::open(disk.clone(), &target.store_dir())?),
    };
    match &target.key {
        Some(key) => fingerprint::check(&**disk, &target.dir, Some(key)).map(drop)?,
        None => fingerprint::verify(&**disk, &target.dir).map(drop)?,
    }
    // One thread is enough to sync what is not written.
    let qlog =
        queen_qlog::Options { fsync_threads: 0, ..queen_qlog::Options::new(target.qlog_dir()) };
    let kind = Kind::of(&**disk, &target.dir)?;
    let opened = recover::open(disk, &target.dir, &qlog, &mut *store, kind)?;
    let window_s = hash_window_s(&opened.state, target.hash_window_min_s);
    let since = target.now.plus_seconds(-window_s);
    opened.qlog.hashes_since(since, &mut |_, _, _, _, _| {})?;
    Ok(opened)
}

/// The file and the byte that a refusal names.
pub fn place(error: &StartError) -> Option<(&Path, Option<u64>)> {
    match error {
        StartError::Store(error) => error.path().map(|path| (path, None)),
        StartError::Logs(error) | StartError::Replay(ReplayError::Logs(error)) => error.place(),
        StartError::Key(error) => Some((error.path(), None)),
        StartError::Read(queen_qlog::ReadError::Damage { file, offset, .. }) => {
            Some((file, Some(*offset)))
        }
        _ => None,
    }
}
