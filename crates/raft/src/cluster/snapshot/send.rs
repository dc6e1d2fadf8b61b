//! The leader's side: a copy of this node to one member.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BufMut;
use tokio::io::AsyncWriteExt;

use super::{Head, Snapshot, SnapshotSource};
use crate::cluster::link::Link;
use crate::cluster::network::{frame, kind, read_frame};
use crate::cluster::store::Shared;
use crate::cluster::types::{LogId, Vote, log_id, raft_index};
use crate::cluster::wire::Wire;

/// Time for a transfer besides that for its bytes, and for an answer.
const TIME_MIN: Duration = Duration::from_mins(1);
/// Bytes that a second is given for.
const BYTES_PER_SECOND: u64 = 10 << 20;
/// Between two lines about a transfer that runs.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// An answer is a vote, or a text.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Sends copies of this node.
pub(crate) struct Sending {
    pub(crate) source: Arc<dyn SnapshotSource>,
    pub(crate) store: Arc<Shared>,
}

/// Why a snapshot did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("no snapshot for node {target}: {reason}")]
    None { target: u64, reason: String },
    #[error("the snapshot for node {target} ended early: {reason}; it will be sent again")]
    Broken { target: u64, reason: String },
    #[error("node {target} did not take the snapshot: {reason}; see its log")]
    Refused { target: u64, reason: String },
}

impl Sending {
    /// Sends a copy that covers at least `least`; the member's vote, which is higher when it follows another leader.
    pub(crate) async fn send(
        &self,
        link: &mut Box<dyn Link>,
        target: u64,
        vote: Vote,
        least: Option<LogId>,
    ) -> Result<Vote, SendError> {
        let broken = |error: io::Error| SendError::Broken { target, reason: error.to_string() };
        link.write_all(&frame(kind::SNAPSHOT, |out| vote.put(out))).await.map_err(broken)?;
        if let Some(higher) = answer::<Option<Vote>>(link, target).await? {
            return Ok(higher);
        }
        let none = |reason: String| SendError::None { target, reason };
        let snapshot = self.source.open().await.map_err(none)?;
        let covers = raft_index(snapshot.index).map(|at| log_id(snapshot.term, at));
        let Some(covers) = covers.filter(|covers| Some(*covers) >= least) else {
            return Err(none("it covers less than the last checkpoint".to_owned()));
        };
        let membership = self
            .store
            .membership_at(covers)
            .ok_or_else(|| none("the membership of its entry is not known any more".to_owned()))?;
        let head = Head { vote, covers, membership, bytes: snapshot.bytes };
        let (started, bytes) = (Instant::now(), snapshot.bytes);
        tracing::info!(node = target, index = snapshot.index.0, bytes, "snapshot: sending");
        let limit = TIME_MIN + Duration::from_secs(bytes / BYTES_PER_SECOND);
        let sent = tokio::time::timeout(limit, pieces(link, target, &head, snapshot)).await;
        let late =
            |_| SendError::Broken { target, reason: format!("it took longer than {limit:?}") };
        let vote = sent.map_err(late)??;
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(node = target, took_ms, "snapshot: sent");
        Ok(vote)
    }
}

async fn pieces(
    link: &mut Box<dyn Link>,
    target: u64,
    head: &Head,
    mut snapshot: Snapshot,
) -> Result<Vote, SendError> {
    let broken = |reason: String| SendError::Broken { target, reason };
    let io = |error: io::Error| broken(error.to_string());
    link.write_all(&frame(kind::SNAPSHOT_HEAD, |out| head.put(out))).await.map_err(io)?;
    let (mut sent, mut told) = (0, Instant::now());
    while let Some(piece) = snapshot.pieces.recv().await {
        let piece = piece.map_err(broken)?;
        sent += piece.len() as u64;
        let framed = frame(kind::SNAPSHOT_PIECE, |out| out.put_slice(&piece));
        link.write_all(&framed).await.map_err(io)?;
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tracing::info!(node = target, sent, bytes = head.bytes, "snapshot: sending");
        }
    }
    if sent != head.bytes {
        return Err(broken(format!("{sent} of {} bytes could be read", head.bytes)));
    }
    link.write_all(&frame(kind::SNAPSHOT_END, |_| ())).await.map_err(io)?;
    answer::<Vote>(link, target).await
}

async fn answer<A: Wire>(link: &mut Box<dyn Link>, target: u64) -> Result<A, SendError> {
    let broken = |reason: String| SendError::Broken { target, reason };
    let read = read_frame(link, ANSWER_BYTES_MAX);
    let read = tokio::time::timeout(TIME_MIN, read).await;
    let read = read.map_err(|_| broken("it does not answer".to_owned()))?;
    let (found, body) = read.map_err(|error| broken(error.to_string()))?;
    if found == kind::ANSWER {
        return A::decode(body).map_err(|error| broken(error.to_string()));
    }
    let reason = String::from_utf8_lossy(&body).into_owned();
    Err(SendError::Refused { target, reason })
}
