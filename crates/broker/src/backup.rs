//! A backup of a running node: everything that one durable point names, while everything goes on.
//!
//! ```text
//! Api::backup --request--> checkpoint thread: write a point, then at once stage it    --> its own thread: pack, send
//!                          <data>/backup.staging/   hard links of the logs, a copy of the store
//! ```
//!
//! - B1: every write that was answered before the request is in the point: it is written after the request came.
//! - B2: no later point is written before all files of this one have their second names, so none can be gone.
//! - B3: nobody waits for a backup: the core does not know of it, checkpoints wait while it is staged, and what is sent is
//!   read by a thread of its own, as fast as it is taken.
//! - B4: the staging goes when the last byte is sent or nobody takes any more, and what a crash leaves of it goes with the
//!   next start. Nothing in it counts.
//!
//! A link takes no space, but it keeps that of files which reclaim removes meanwhile.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use futures_util::future::BoxFuture;
use queen_archive::{Pack, PackError, Source, Stopped};
use queen_io::{Disk, OpenMode};
use queen_qlog::{DurablePoint, Linked, Qlog};
use queen_raft::{Snapshot, SnapshotSource};
use queen_record::ids::EntryIndex;
use queen_store::{Checkpoint, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::api::{Backup, CallError};
use crate::cipher::fingerprint::NAME as MARK;
use crate::core::Shared;

/// Where a backup's files have their second names, in the data directory.
pub const STAGING: &str = "backup.staging";
/// Pieces that wait to be taken.
const PIECES_WAITING: usize = 4;

/// Why a backup was not staged; nothing of the node is wrong for that.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A file of the staging.
    #[error("{}: {operation}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A log could not be linked.
    #[error("{0}; a backup needs hard links in the data directory")]
    Logs(#[from] queen_qlog::Fault),
    /// The store could not be copied.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The names are not those of a data directory.
    #[error("{0}")]
    Names(#[from] PackError),
}

impl StageError {
    fn io<'p>(path: &'p Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self + use<'p> {
        move |source| Self::Io { path: path.to_path_buf(), operation, source }
    }
}

/// Stages what `point`, the last that `store` was written with, names. To be called before the next one is written.
///
/// # Errors
/// [`StageError`]: what was staged so far is left for [`clear`].
pub fn stage(
    disk: &dyn Disk,
    dir: &Path,
    (qlog, point): (&Qlog, &DurablePoint),
    store: &mut dyn Checkpoint,
    taken_at_us: i64,
) -> Result<Pack, StageError> {
    clear(disk, dir)?;
    let staging = dir.join(STAGING);
    disk.create_dir(&staging).map_err(StageError::io(&staging, "create"))?;
    let below = |Linked { name, path, len }| Source { name: format!("qlog/{name}"), path, len };
    let mut sources: Vec<Source> =
        qlog.link_point(point, &staging)?.into_iter().map(below).collect();
    let mark = dir.join(MARK);
    if disk.exists(&mark).map_err(StageError::io(&mark, "look for"))? {
        let path = staging.join("mark");
        disk.link(&mark, &path).map_err(StageError::io(&mark, "link"))?;
        sources.push(source(disk, MARK.to_owned(), path)?);
    }
    let path = staging.join("store");
    let name = store.copy_image(&path)?;
    sources.push(source(disk, format!("store/{name}"), path)?);
    Ok(Pack::new(point.index.0, taken_at_us, sources)?)
}

fn source(disk: &dyn Disk, name: String, path: PathBuf) -> Result<Source, StageError> {
    let file = disk.open(&path, OpenMode::Read);
    let len = file.and_then(|file| file.len()).map_err(StageError::io(&path, "open"))?;
    Ok(Source { name, path, len })
}

/// Removes what is staged, whoever staged it.
///
/// # Errors
/// Something of it cannot be removed.
pub fn clear(disk: &dyn Disk, dir: &Path) -> Result<(), StageError> {
    let staging = dir.join(STAGING);
    if !disk.exists(&staging).map_err(StageError::io(&staging, "look for"))? {
        return Ok(());
    }
    for entry in disk.list(&staging).map_err(StageError::io(&staging, "list"))? {
        let path = staging.join(&entry.name);
        disk.remove_file(&path).map_err(StageError::io(&path, "remove"))?;
    }
    disk.remove_dir(&staging).map_err(StageError::io(&staging, "remove"))
}

/// The way of a request to the checkpoint thread, one at a time.
pub(crate) struct Backups {
    requests: Sender<Request>,
    is_taken: Arc<AtomicBool>,
}

/// What the checkpoint thread needs for a backup.
pub(crate) struct Stager {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) requests: Receiver<Request>,
}

/// Somebody wants a backup.
pub(crate) struct Request {
    reply: oneshot::Sender<Result<Staged, StageError>>,
    turn: Turn,
}

/// The one backup that may run.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A staged backup. Its staging goes with it.
struct Staged {
    pack: Pack,
    /// The term of the last entry in it.
    term: u64,
    staging: Staging,
}

struct Staging {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Given back after the staging is gone.
    _turn: Turn,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = clear(&*self.disk, &self.dir) {
            tracing::warn!(
                "a backup's staging is left until the next one, or the next start: {error}"
            );
        }
    }
}

impl Backups {
    pub(crate) fn new() -> (Self, Receiver<Request>) {
        let (requests, receiver) = unbounded();
        (Self { requests, is_taken: Arc::default() }, receiver)
    }

    /// A place for a backup; `None` while there is another.
    fn turn(&self) -> Option<Turn> {
        let is_taken = self.is_taken.swap(true, Ordering::SeqCst);
        (!is_taken).then(|| Turn(Arc::clone(&self.is_taken)))
    }
}

impl Stager {
    /// Stages the point that was written just now.
    pub(crate) fn serve(
        &self,
        shared: &Shared,
        (point, term): (&DurablePoint, u64),
        store: &mut dyn Checkpoint,
        request: Request,
    ) {
        let Request { reply, turn } = request;
        let started = std::time::Instant::now();
        let staging = Staging { disk: Arc::clone(&self.disk), dir: self.dir.clone(), _turn: turn };
        let qlog = shared.reader.qlog();
        let now = shared.clock.now().0;
        let staged = stage(&*self.disk, &self.dir, (qlog, point), store, now);
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let staged = staged.map(|pack| {
            let (files, bytes) = (pack.manifest().members.len(), pack.bytes());
            tracing::info!(index = point.index.0, files, bytes, took_ms, "backup staged");
            Staged { pack, term, staging }
        });
        // Whoever asked may be gone: then the staging goes here.
        drop(reply.send(staged));
    }
}

/// Takes a backup.
pub(crate) async fn take(shared: &Arc<Shared>) -> Result<Backup, CallError> {
    take_with_term(shared).await.map(|(backup, _)| backup)
}

/// Backups for members of the cluster that lack what the others have purged.
pub(crate) struct Snapshots(pub(crate) Weak<Shared>);

impl SnapshotSource for Snapshots {
    fn open(&self) -> BoxFuture<'_, Result<Snapshot, String>> {
        Box::pin(async move {
            let shared = self.0.upgrade().ok_or("the node is stopping")?;
            let (backup, term) =
                take_with_term(&shared).await.map_err(|error| error.to_string())?;
            let Backup { index, bytes, pieces } = backup;
            Ok(Snapshot { index: EntryIndex(index), term, bytes, pieces })
        })
    }
}

/// Takes a backup; also the term of the last entry in it.
async fn take_with_term(shared: &Arc<Shared>) -> Result<(Backup, u64), CallError> {
    let turn = shared.backups.turn().ok_or(CallError::BackupRunning)?;
    let (reply, answer) = oneshot::channel();
    let stopping = || {
        let reason = shared.failed.lock().clone();
        CallError::NotServing(reason.unwrap_or_else(|| "the node is stopping".to_owned()))
    };
    shared.backups.requests.send(Request { reply, turn }).map_err(|_| stopping())?;
    let staged = answer.await.map_err(|_| stopping())?;
    let staged = staged.map_err(|error| {
        tracing::error!("the backup was not taken: {error}");
        CallError::Internal(format!("the backup was not taken: {error}"))
    })?;
    let (index, bytes, term) = (staged.pack.manifest().index, staged.pack.bytes(), staged.term);
    let (sender, pieces) = mpsc::channel(PIECES_WAITING);
    let shared = Arc::clone(shared);
    let send = move || send(&shared, staged, &sender);
    let spawned = std::thread::Builder::new().name("queen-backup".to_owned()).spawn(send);
    spawned.map_err(|error| {
        CallError::Internal(format!("the backup was not taken: no thread for it: {error}"))
    })?;
    Ok((Backup { index, bytes, pieces }, term))
}

/// Sends all of a staged backup, until nobody takes it or the node stops.
fn send(shared: &Shared, staged: Staged, sender: &mpsc::Sender<Result<Bytes, String>>) {
    let Staged { pack, staging, .. } = staged;
    let mut stops = false;
    // The last piece waits until the staging is gone: whoever has all of a backup may ask for the next at once.
    let mut last = None;
    let mut take = |piece: Vec<u8>| {
        stops = shared.arrivals.is_stopped();
        let before = last.replace(Bytes::from(piece)).filter(|_| !stops);
        let sent = before.map_or(Ok(()), |piece| sender.blocking_send(Ok(piece)));
        if stops || sent.is_err() { Err(Stopped) } else { Ok(()) }
    };
    let written = pack.write(&*staging.disk, &mut take);
    drop(staging);
    let written = written.and_then(|()| {
        let sent = last.map_or(Ok(()), |piece| sender.blocking_send(Ok(piece)));
        sent.map_err(|_| PackError::Stopped)
    });
    let told = match written {
        Ok(()) => {
            tracing::info!(index = pack.manifest().index, bytes = pack.bytes(), "backup sent");
            return;
        }
        Err(PackError::Stopped) if stops => "the node is stopping".to_owned(),
        Err(PackError::Stopped) => {
            tracing::warn!("the backup was given up: nobody takes it any more");
            return;
        }
        Err(error) => {
            tracing::error!("the backup ends early: {error}");
            error.to_string()
        }
    };
    // Nobody to tell: the backup is short, and its reader knows.
    drop(sender.blocking_send(Err(told)));
}
