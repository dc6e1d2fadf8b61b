//! Calls to other members: one connection each for the log, the heartbeat and the vote, one call at a time on each.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, v2::RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use xxhash_rust::xxh3::xxh3_64;

use super::identity::{DiskId, Identity, NotWelcome, Welcome};
use super::link::{Link, Network};
use super::runtime::blocking;
use super::snapshot::send::Sending;
use super::types::{LogId, Member, Types, Vote};
use super::wire::{BODY_BYTES_MAX, HEAD_LEN, Wire, put_blob};

/// What a connection begins with.
pub(crate) const MAGIC: [u8; 8] = *b"QNRAFT2\0";
/// The least time that a call gets: a busy disk is no silent peer.
const CALL_MIN: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Between a snapshot that did not arrive and the next try.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(5);

/// What a frame holds.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const APPEND: u8 = 2;
    pub(crate) const VOTE: u8 = 3;
    pub(crate) const PRE_VOTE: u8 = 4;
    pub(crate) const TRANSFER: u8 = 5;
    /// Whether the member holds anything of a cluster.
    pub(crate) const FOUNDED: u8 = 6;
    pub(crate) const SNAPSHOT: u8 = 7;
    pub(crate) const SNAPSHOT_HEAD: u8 = 8;
    pub(crate) const SNAPSHOT_PIECE: u8 = 9;
    pub(crate) const SNAPSHOT_END: u8 = 10;
    pub(crate) const ANSWER: u8 = 64;
    /// The call failed: a text.
    pub(crate) const ERROR: u8 = 65;
    /// The token is another one, or the caller looks for somebody else: a text.
    pub(crate) const REFUSED: u8 = 66;
}

/// Who calls, and with what right.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Arc<Identity>,
    node: u64,
    pub(crate) token: Arc<str>,
    pub(crate) network: Arc<dyn Network>,
    /// Members that could not be reached when they were called last: said once, not with each heartbeat.
    silent: Arc<Mutex<BTreeSet<u64>>>,
    /// What followers may purge, plus one: goes with every append; 0 says nothing.
    pub(crate) floor: Arc<AtomicU64>,
    /// Members that took a snapshot so far.
    sent: Arc<AtomicU64>,
    /// Sends copies of this node.
    snapshots: Option<Arc<Sending>>,
}

impl Caller {
    pub(crate) fn new(
        node: u64,
        token: &str,
        identity: Arc<Identity>,
        network: Arc<dyn Network>,
    ) -> Self {
        let (silent, floor, sent) = (Arc::default(), Arc::default(), Arc::default());
        let token = token.into();
        Self { identity, node, token, network, silent, floor, sent, snapshots: None }
    }

    pub(crate) fn sending(self, snapshots: Sending) -> Self {
        Self { snapshots: Some(Arc::new(snapshots)), ..self }
    }

    fn reached(&self, target: u64) {
        if self.silent.lock().remove(&target) {
            tracing::info!(node = target, "the member answers again");
        }
    }

    fn missed(&self, failed: &CallFailed, target: u64) {
        if matches!(failed, CallFailed::Unnamed { .. }) {
            // It will be, as soon as a leader has met it.
            tracing::debug!("{failed}");
        } else if self.silent.lock().insert(target) {
            tracing::warn!("{failed}");
        }
    }
}

/// A frame of this kind with this message.
pub(crate) fn frame(kind: u8, message: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; HEAD_LEN];
    out.push(kind);
    message(&mut out);
    let body = out.get(HEAD_LEN..).unwrap_or_default();
    let (len, sum) = (u32::try_from(body.len()).unwrap_or(u32::MAX), xxh3_64(body));
    if let Some(head) = out.get_mut(..HEAD_LEN) {
        let (len_slot, sum_slot) = head.split_at_mut(4);
        len_slot.copy_from_slice(&len.to_le_bytes());
        sum_slot.copy_from_slice(&sum.to_le_bytes());
    }
    out
}

/// Reads a frame: its kind and its message.
pub(crate) async fn read_frame<R: AsyncReadExt + Unpin>(
    from: &mut R,
    bytes_max: usize,
) -> io::Result<(u8, Bytes)> {
    let len = from.read_u32_le().await? as usize;
    let sum = from.read_u64_le().await?;
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    if len == 0 || len > bytes_max {
        return Err(invalid(format!("a frame of {len} bytes")));
    }
    // The room grows with what arrives, not with what was announced.
    let mut body = Vec::with_capacity(len.min(1 << 20));
    from.take(len as u64).read_to_end(&mut body).await?;
    if body.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if xxh3_64(&body) != sum {
        return Err(invalid("a frame's checksum does not match".to_owned()));
    }
    let mut body = Bytes::from(body);
    let kind = body.split_to(1);
    Ok((kind.first().copied().unwrap_or_default(), body))
}

/// A connection to a member, made when it is needed.
pub(crate) struct Peer {
    caller: Caller,
    target: u64,
    address: String,
    /// The connection, and the directory at its other end.
    link: Option<(Box<dyn Link>, DiskId)>,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallFailed {
    #[error("cannot reach node {target} at {address}: {error}")]
    Unreachable { target: u64, address: String, error: io::Error },
    #[error("node {target} at {address} refused this node's QUEEN_RAFT_TOKEN or number: {reason}")]
    Refused { target: u64, address: String, reason: String },
    #[error("node {target} at {address} is not called: {reason}")]
    NotWelcome { target: u64, address: String, reason: String },
    /// Before a leader has named its directory, nothing is asked of a member.
    #[error("the membership does not name the directory of node {target} yet")]
    Unnamed { target: u64 },
    #[error("node {target} does not answer: {error}")]
    Broken { target: u64, error: io::Error },
    #[error("node {target}: {reason}")]
    Remote { target: u64, reason: String },
}

impl From<CallFailed> for RPCError<Types> {
    fn from(failed: CallFailed) -> Self {
        match failed {
            CallFailed::Unreachable { .. }
            | CallFailed::Refused { .. }
            | CallFailed::NotWelcome { .. }
            | CallFailed::Unnamed { .. } => Self::Unreachable(Unreachable::new(&failed)),
            CallFailed::Broken { .. } | CallFailed::Remote { .. } => {
                Self::Network(NetworkError::new(&failed))
            }
        }
    }
}

impl Peer {
    pub(crate) fn new(caller: Caller, target: u64, address: String) -> Self {
        Self { caller, target, address, link: None }
    }

    /// Asks, and waits for the answer no longer than `limit`.
    pub(crate) async fn call<A: Wire>(
        &mut self,
        kind: u8,
        message: impl FnOnce(&mut Vec<u8>),
        limit: Duration,
    ) -> Result<A, CallFailed> {
        let target = self.target;
        // A connection that was left in the middle of a call is of no use: it comes back only after a whole answer.
        let link = match self.link.take() {
            Some(link) => Ok(link),
            None => self.connect().await,
        };
        let (mut link, disk) = link.inspect_err(|failed| self.caller.missed(failed, target))?;
        if kind == kind::APPEND && !self.caller.identity.may_append(target, disk) {
            return Err(CallFailed::Unnamed { target });
        }
        let question = frame(kind, message);
        let asked = async {
            link.write_all(&question).await?;
            read_frame(&mut link, BODY_BYTES_MAX).await
        };
        let answered = match tokio::time::timeout(limit, asked).await {
            Ok(answered) => answered,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let (kind, body) = answered.map_err(|error| CallFailed::Broken { target, error })?;
        self.link = Some((link, disk));
        let reason = || String::from_utf8_lossy(&body).into_owned();
        match kind {
            kind::ANSWER => A::decode(body.clone())
                .map_err(|error| CallFailed::Remote { target, reason: error.to_string() }),
            _ => Err(CallFailed::Remote { target, reason: reason() }),
        }
    }

    /// Connects and greets; the connection, and the directory at its other end.
    async fn connect(&self) -> Result<(Box<dyn Link>, DiskId), CallFailed> {
        let (target, address) = (self.target, self.address.clone());
        let unreachable =
            |error: io::Error| CallFailed::Unreachable { target, address: address.clone(), error };
        let hello = frame(kind::HELLO, |out| {
            out.put_slice(&MAGIC);
            out.put_u64_le(self.caller.node);
            out.put_u64_le(target);
            put_blob(out, self.caller.token.as_bytes());
            self.caller.identity.greeting(target).put(out);
        });
        let connected = async {
            let mut link = self.caller.network.connect(&self.address).await?;
            link.write_all(&hello).await?;
            let answer = read_frame(&mut link, 4096).await?;
            Ok((link, answer))
        };
        let connected = match tokio::time::timeout(CONNECT_MAX, connected).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let (link, (kind, body)) = connected.map_err(unreachable)?;
        if kind != kind::ANSWER {
            let reason = String::from_utf8_lossy(&body).into_owned();
            return Err(CallFailed::Refused { target, address, reason });
        }
        let welcome = Welcome::decode(body)
            .map_err(|error| CallFailed::Remote { target, reason: error.to_string() })?;
        // A start that is seen first is written down.
        let identity = self.caller.identity.clone();
        let taken = blocking(move || identity.welcomed(target, welcome)).await;
        match taken.unwrap_or_else(|error| Err(NotWelcome::Refused(error.to_string()))) {
            Ok(disk) => {
                self.caller.reached(target);
                Ok((link, disk))
            }
            Err(NotWelcome::Unnamed) => Err(CallFailed::Unnamed { target }),
            Err(NotWelcome::Refused(reason)) => {
                Err(CallFailed::NotWelcome { target, address, reason })
            }
        }
    }
}

impl Peer {
    /// Sends a copy of this node that covers at least `least`.
    async fn send_snapshot(
        &self,
        vote: Vote,
        least: Option<LogId>,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let Some(snapshots) = &self.caller.snapshots else {
            let none = io::Error::other("this node gives no snapshots");
            return Err(StreamingError::Unreachable(Unreachable::new(&none)));
        };
        let target = self.target;
        let connected = self.connect().await.and_then(|(link, disk)| {
            let may = self.caller.identity.may_append(target, disk);
            if may { Ok(link) } else { Err(CallFailed::Unnamed { target }) }
        });
        let failed = match connected {
            // Large frames go one way: this connection is of its own, and ends with it.
            Ok(mut link) => match snapshots.send(&mut link, self.target, vote, least).await {
                Ok(vote) => {
                    self.caller.sent.fetch_add(1, Ordering::AcqRel);
                    return Ok(SnapshotResponse::new(vote));
                }
                Err(failed) => {
                    tracing::warn!("{failed}");
                    // The next try costs a copy of the store: not at once.
                    tokio::time::sleep(SNAPSHOT_PAUSE).await;
                    Unreachable::new(&failed)
                }
            },
            Err(failed) => {
                self.caller.missed(&failed, self.target);
                Unreachable::new(&failed)
            }
        };
        Err(StreamingError::Unreachable(failed))
    }
}

fn limit(option: &RPCOption) -> Duration {
    option.soft_ttl().max(CALL_MIN)
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let floor = self.caller.floor.load(Ordering::Acquire);
        let sent = self.caller.sent.load(Ordering::Acquire);
        // What this leader has seen of the others goes along where there is time for it.
        let seen =
            if rpc.entries.is_empty() { self.caller.identity.all_seen() } else { Vec::new() };
        let question = |out: &mut Vec<u8>| {
            out.put_u64_le(floor);
            seen.put(out);
            rpc.put(out);
        };
        let answer = self.call(kind::APPEND, question, limit(&option)).await?;
        if matches!(answer, AppendEntriesResponse::Conflict)
            && self.caller.sent.load(Ordering::Acquire) != sent
        {
            // Perhaps of the log that a snapshot has replaced meanwhile.
            let late = io::Error::other("the answer is older than the snapshot");
            return Err(RPCError::Network(NetworkError::new(&late)));
        }
        // An answer to a heartbeat says nothing of what is synced.
        let last = rpc.entries.last().map(RaftEntry::log_id);
        let acknowledged = match &answer {
            AppendEntriesResponse::Success => last,
            AppendEntriesResponse::PartialSuccess(matched) => matched.filter(|_| last.is_some()),
            AppendEntriesResponse::Conflict | AppendEntriesResponse::HigherVote(_) => None,
        };
        if let (Some(id), Some((_, disk))) = (acknowledged, &self.link) {
            self.caller.identity.acknowledged(*disk, rpc.vote.leader_id.term, id.index + 1);
        }
        Ok(answer)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Ok(self.call(kind::VOTE, |out| rpc.put(out), limit(&option)).await?)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Ok(self.call(kind::PRE_VOTE, |out| rpc.put(out), limit(&option)).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, ()>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot.meta.last_log_id) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<openraft::raft::TransferLeaderResponse<Types>, RPCError<Types>> {
        let _taken: Option<Vote> =
            self.call(kind::TRANSFER, |out| rpc.put(out), limit(&option)).await?;
        Ok(Ok(()))
    }
}

/// Makes connections to members.
pub(crate) struct Peers(pub(crate) Caller);

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &Member) -> Peer {
        Peer::new(self.0.clone(), target, node.raft.clone())
    }
}
