//! Copies of a simulated node for members that lack too much: the product's own backup, packed at once.

use std::path::Path;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use queen_broker::backup;
use queen_io::Disk;
use queen_qlog::{DurablePoint, Qlog};
use queen_raft::{Snapshot, SnapshotSource};
use queen_store::DiskStore;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::node::DATA;

type Answer = oneshot::Sender<Result<Snapshot, String>>;

/// Who wants a copy, and the checkpoint task that makes it.
#[derive(Default)]
pub(crate) struct Copies {
    waiting: Mutex<Vec<Answer>>,
    told: Notify,
}

impl Copies {
    /// Waits until somebody wants a copy.
    pub(crate) async fn asked(&self) {
        while self.waiting.lock().is_empty() {
            self.told.notified().await;
        }
    }

    /// Makes a copy of the point that was written just now.
    pub(crate) fn serve(
        &self,
        disk: &dyn Disk,
        (qlog, point, term): (&Qlog, &DurablePoint, u64),
        store: &mut DiskStore,
        now_us: i64,
    ) {
        for answer in std::mem::take(&mut *self.waiting.lock()) {
            let copy = copy(disk, (qlog, point), store, now_us).map(|pieces| {
                let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
                let (sender, received) = mpsc::channel(pieces.len().max(1));
                for piece in pieces {
                    // There is room for all of them.
                    drop(sender.try_send(Ok(Bytes::from(piece))));
                }
                Snapshot { index: point.index, term, bytes, pieces: received }
            });
            // Whoever asked may be gone.
            drop(answer.send(copy));
        }
    }
}

fn copy(
    disk: &dyn Disk,
    logs: (&Qlog, &DurablePoint),
    store: &mut DiskStore,
    now_us: i64,
) -> Result<Vec<Vec<u8>>, String> {
    let dir = Path::new(DATA);
    let pack = backup::stage(disk, dir, logs, store, now_us).map_err(|error| error.to_string())?;
    let mut pieces = Vec::new();
    let mut take = |piece: Vec<u8>| {
        pieces.push(piece);
        Ok(())
    };
    pack.write(disk, &mut take).map_err(|error| error.to_string())?;
    backup::clear(disk, dir).map_err(|error| error.to_string())?;
    Ok(pieces)
}

impl SnapshotSource for Copies {
    fn open(&self) -> BoxFuture<'_, Result<Snapshot, String>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.waiting.lock().push(reply);
            self.told.notify_one();
            answer.await.map_err(|_| "the node is stopping".to_owned())?
        })
    }
}
