//! The member's side: a copy of the leader, staged for the next start.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, Bytes};
use queen_archive::{Place, Progress, read_archive};
use queen_io::Disk;
use queen_record::ids::EntryIndex;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::Head;
use super::swap::{Pending, SNAPSHOTS, remove_tree};
use crate::cluster::files::FilesError;
use crate::cluster::link::Link;
use crate::cluster::network::{frame, kind, read_frame};
use crate::cluster::runtime::{blocking, runs_inline, spawn};
use crate::cluster::store::Shared;
use crate::cluster::types::{Vote, entry_index};
use crate::cluster::wire::Wire;
use crate::cluster::writer::{Order, Orders};

/// A leader that sends nothing for this long has given up.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// Bytes of a frame; a piece is a quarter of a mebibyte, a head is a membership.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Pieces that wait to be written.
const PIECES_WAITING: usize = 4;

/// Takes snapshots, one at a time.
pub(crate) struct Intake {
    pub(crate) disk: Arc<dyn Disk>,
    /// The data directory.
    pub(crate) dir: PathBuf,
    pub(crate) store: Arc<Shared>,
    pub(crate) orders: Orders,
    pub(crate) turn: Mutex<()>,
    /// Told once when a snapshot waits for the next start.
    pub(crate) restart: Arc<dyn Fn(String) + Send + Sync>,
}

/// What came of a snapshot.
pub(crate) enum Taken {
    /// The leader's is not the latest vote.
    Refused(Vote),
    /// It waits for the next start.
    Staged(Vote),
    /// The log holds what it covers.
    Known(Vote),
}

impl Intake {
    /// Receives a snapshot; the answer that is due.
    ///
    /// # Errors
    /// A text for the leader; the connection is of no use any more.
    pub(crate) async fn take(
        &self,
        link: &mut Box<dyn Link>,
        asked: Bytes,
    ) -> Result<Taken, String> {
        let vote = Vote::decode(asked).map_err(|error| error.to_string())?;
        let own = self.store.state.lock().vote.map(Vote::from);
        if let Some(own) = own.filter(|own| own.leader_id.term > vote.leader_id.term) {
            return Ok(Taken::Refused(own));
        }
        let Ok(_turn) = self.turn.try_lock() else {
            return Err("another snapshot is being received".to_owned());
        };
        if self.store.is_staged.load(Ordering::Acquire) {
            // What waits is named in a durable file, and must stay as it is.
            return Err("a snapshot waits for this node's next start".to_owned());
        }
        let go_on = frame(kind::ANSWER, |out| None::<Vote>.put(out));
        let told = |error: io::Error| error.to_string();
        tokio::io::AsyncWriteExt::write_all(link, &go_on).await.map_err(told)?;
        let (found, body) = next_frame(link).await?;
        if found != kind::SNAPSHOT_HEAD {
            return Err(format!("frame {found} where a snapshot's head is due"));
        }
        let head = Head::decode(body).map_err(|error| error.to_string())?;
        if head.vote != vote {
            return Err("the snapshot's head has another vote".to_owned());
        }
        let index = entry_index(head.covers.index);
        tracing::info!(index = index.0, bytes = head.bytes, "snapshot: receiving");
        let staged = format!("recv-{index}");
        self.unpack(link, &staged, index).await?;
        self.stage(Pending::of(&head, staged)).await
    }

    /// Unpacks the archive that follows into a directory, durably.
    async fn unpack(
        &self,
        link: &mut Box<dyn Link>,
        staged: &str,
        index: EntryIndex,
    ) -> Result<(), String> {
        let (pieces, mut received) = mpsc::channel(PIECES_WAITING);
        let (disk, data, staged) = (self.disk.clone(), self.dir.clone(), staged.to_owned());
        let unpack = move |pieces: &mut (dyn Iterator<Item = Bytes> + Send)| {
            unpack(&*disk, &data, &staged, index, pieces)
        };
        if runs_inline() {
            let mut all = Vec::new();
            loop {
                match next_frame(link).await? {
                    (kind::SNAPSHOT_PIECE, piece) => all.push(piece),
                    (kind::SNAPSHOT_END, _) => return unpack(&mut all.into_iter()),
                    (found, _) => return Err(format!("frame {found} in a snapshot")),
                }
            }
        }
        let unpacking =
            spawn(blocking(move || unpack(&mut std::iter::from_fn(|| received.blocking_recv()))));
        let came = loop {
            match next_frame(link).await {
                Ok((kind::SNAPSHOT_PIECE, piece)) => {
                    if pieces.send(piece).await.is_err() {
                        // It has failed, and says why.
                        break Ok(());
                    }
                }
                Ok((kind::SNAPSHOT_END, _)) => break Ok(()),
                Ok((found, _)) => break Err(format!("frame {found} in a snapshot")),
                Err(error) => break Err(error),
            }
        };
        drop(pieces);
        let unpacked = unpacking.await.map_err(io::Error::other).flatten();
        came.and(unpacked.map_err(|error| error.to_string())?)
    }

    async fn stage(&self, pending: Pending) -> Result<Taken, String> {
        let vote = Vote::from(pending.vote);
        let (done, decided) = oneshot::channel();
        let gone = "the log writer has stopped";
        if !self.orders.send(Order::Stage(Box::new(pending), done)) {
            return Err(gone.to_owned());
        }
        if decided.await.map_err(|_| gone.to_owned())? {
            Ok(Taken::Staged(vote))
        } else {
            tracing::info!("snapshot: not needed, the log holds what it covers");
            Ok(Taken::Known(vote))
        }
    }

    /// Ends the process, which loads the snapshot when it starts again.
    pub(crate) fn end(&self) {
        (self.restart)("snapshot staged: restarting to load it".to_owned());
    }
}

async fn next_frame(link: &mut Box<dyn Link>) -> Result<(u8, Bytes), String> {
    match tokio::time::timeout(IDLE_MAX, read_frame(link, FRAME_BYTES_MAX)).await {
        Ok(read) => read.map_err(|error| format!("the snapshot ended early: {error}")),
        Err(_) => Err(format!("no byte of the snapshot came for {IDLE_MAX:?}")),
    }
}

fn unpack(
    disk: &dyn Disk,
    data: &std::path::Path,
    staged: &str,
    index: EntryIndex,
    pieces: &mut (dyn Iterator<Item = Bytes> + Send),
) -> Result<(), String> {
    let snapshots = data.join(SNAPSHOTS);
    let dir = snapshots.join(staged);
    let made = || -> Result<(), FilesError> {
        disk.create_dir(&snapshots).map_err(FilesError::io(&snapshots, "create"))?;
        disk.sync_dir(data).map_err(FilesError::io(data, "sync"))?;
        remove_tree(disk, &dir)
    };
    made().map_err(|error| error.to_string())?;
    let mut input = Pieces { pieces, rest: Bytes::new() };
    let mut place = Place::new(disk, &dir);
    let manifest = read_archive(&mut input, &mut place, &Progress::new());
    let manifest = manifest.map_err(|error| error.to_string())?;
    if manifest.index != index.0 {
        return Err(format!("the snapshot of entry {index} holds entry {}", manifest.index));
    }
    disk.sync_dir(&snapshots).map_err(|error| format!("{}: {error}", snapshots.display()))
}

/// The pieces as one run of bytes; it ends when no more can come.
struct Pieces<'a> {
    pieces: &'a mut (dyn Iterator<Item = Bytes> + Send),
    rest: Bytes,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.next() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let count = buf.len().min(self.rest.len());
        self.rest.split_to(count).copy_to_slice(buf.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}
