//! Answers the calls of other members.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::Instant;

use super::identity::{Greeting, Identity, Seen, Welcome};
use super::link::{Link, Listen};
use super::network::{MAGIC, frame, kind, read_frame};
use super::runtime::{blocking, spawn};
use super::snapshot::receive::{Intake, Taken};
use super::store::Shared;
use super::types::{Raft, Types, Vote};
use super::wire::{BODY_BYTES_MAX, Wire, WireError, blob_of, u64_of};

/// A greeting is small.
const HELLO_BYTES_MAX: usize = 4096;
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after the system could not hand out a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What calls are answered from.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) node: u64,
    pub(crate) token: Arc<str>,
    pub(crate) raft: Raft,
    pub(crate) store: Arc<Shared>,
    pub(crate) identity: Arc<Identity>,
    /// Takes snapshots.
    pub(crate) intake: Arc<Intake>,
}

impl Server {
    /// Takes connections until `stopped` says so.
    pub(crate) async fn serve(
        self,
        mut listener: Box<dyn Listen>,
        mut stopped: watch::Receiver<bool>,
    ) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(link) => {
                    let (server, mut stopped) = (self.clone(), stopped.clone());
                    spawn(async move {
                        tokio::select! {
                            biased;
                            _ = stopped.wait_for(|stopped| *stopped) => {}
                            ended = server.connection(link) => {
                                if let Err(error) = ended {
                                    tracing::debug!("a member's connection ended: {error}");
                                }
                            }
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("the raft port takes no connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(&self, mut link: Box<dyn Link>) -> io::Result<()> {
        let hello = read_frame(&mut link, HELLO_BYTES_MAX);
        let Ok(hello) = tokio::time::timeout(HELLO_TIME_MAX, hello).await else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        let welcome = match self.greet(hello?).await {
            Ok(welcome) => welcome,
            Err(reason) => {
                tracing::warn!("refused a member's connection: {reason}");
                let refused = frame(kind::REFUSED, |out| out.extend_from_slice(reason.as_bytes()));
                return link.write_all(&refused).await;
            }
        };
        link.write_all(&frame(kind::ANSWER, |out| welcome.put(out))).await?;
        if !matches!(welcome, Welcome::Known { .. }) {
            return Ok(());
        }
        loop {
            let (kind, body) = match read_frame(&mut link, BODY_BYTES_MAX).await {
                Ok(call) => call,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            if kind == kind::SNAPSHOT {
                return self.snapshot(&mut link, body).await;
            }
            let answer = match self.answer(kind, body).await {
                Ok(answer) => answer,
                Err(reason) => frame(kind::ERROR, |out| out.extend_from_slice(reason.as_bytes())),
            };
            link.write_all(&answer).await?;
        }
    }

    /// Takes a snapshot; the connection ends with it.
    async fn snapshot(&self, link: &mut Box<dyn Link>, asked: Bytes) -> io::Result<()> {
        let taken = match self.intake.take(link, asked).await {
            Ok(taken) => taken,
            Err(reason) => {
                tracing::warn!("snapshot: not taken: {reason}");
                let refused = frame(kind::ERROR, |out| out.extend_from_slice(reason.as_bytes()));
                return link.write_all(&refused).await;
            }
        };
        match taken {
            Taken::Refused(vote) => {
                link.write_all(&frame(kind::ANSWER, |out| Some(vote).put(out))).await
            }
            Taken::Known(vote) => link.write_all(&frame(kind::ANSWER, |out| vote.put(out))).await,
            Taken::Staged(vote) => {
                let told = link.write_all(&frame(kind::ANSWER, |out| vote.put(out))).await;
                // Whether the leader heard of it or not.
                self.intake.end();
                told
            }
        }
    }

    /// Answers a greeting of a member that knows the token and means this node.
    async fn greet(&self, hello: (u8, Bytes)) -> Result<Welcome, String> {
        let (from, greeting) = self.check(hello)?;
        let identity = self.identity.clone();
        match blocking(move || identity.welcome(from, &greeting)).await {
            Ok(welcome) => welcome.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Who greets, and how.
    fn check(&self, (kind, mut body): (u8, Bytes)) -> Result<(u64, Greeting), String> {
        let malformed = |_: WireError| "the greeting is malformed".to_owned();
        if kind != kind::HELLO || !body.starts_with(&MAGIC) {
            return Err("this is no greeting of this version".to_owned());
        }
        drop(body.split_to(MAGIC.len()));
        let from = u64_of(&mut body).map_err(malformed)?;
        let to = u64_of(&mut body).map_err(malformed)?;
        let token = blob_of(&mut body).map_err(malformed)?;
        if !is_same(&token, self.token.as_bytes()) {
            return Err(format!("node {from} has another QUEEN_RAFT_TOKEN"));
        }
        if to != self.node {
            return Err(format!("node {from} looks for node {to}, this is node {}", self.node));
        }
        Ok((from, Greeting::decode(body).map_err(malformed)?))
    }

    /// Takes what the leader has seen of the members. A start that is new is written down, which nothing waits for.
    fn hear(&self, seen: &[Seen]) {
        if self.identity.hear(seen) {
            let identity = self.identity.clone();
            spawn(async move {
                let written = blocking(move || identity.write_seen()).await;
                if let Err(error) = written
                    .map_err(|error| error.to_string())
                    .and_then(|written| written.map_err(|error| error.to_string()))
                {
                    tracing::error!("starts of other members are not written down: {error}");
                }
            });
        }
    }

    async fn answer(&self, kind: u8, mut body: Bytes) -> Result<Vec<u8>, String> {
        fn told<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
            result.map_err(|error| error.to_string())
        }
        match kind {
            kind::APPEND => {
                let floor = told(u64_of(&mut body))?;
                let seen = told(Vec::<Seen>::read(&mut body))?;
                let rpc = told(AppendEntriesRequest::<Types>::decode(body))?;
                let answer = told(self.raft.append_entries(rpc).await)?;
                // What a snapshot covers was acknowledged with it, and is not in the log before the next start.
                if self.store.is_staged.load(Ordering::Acquire) {
                    return Err("this node restarts to load a snapshot".to_owned());
                }
                if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
                    self.hear(&seen);
                    *self.store.heard.lock() = Some(Instant::now());
                    *self.store.leader_floor.lock() = floor.checked_sub(1);
                }
                Ok(frame(kind::ANSWER, |out| answer.put(out)))
            }
            kind::VOTE => {
                let answer = told(self.raft.vote(told(VoteRequest::<Types>::decode(body))?).await)?;
                Ok(frame(kind::ANSWER, |out| answer.put(out)))
            }
            kind::PRE_VOTE => {
                let rpc = told(VoteRequest::<Types>::decode(body))?;
                let answer = told(self.raft.pre_vote(rpc).await)?;
                Ok(frame(kind::ANSWER, |out| answer.put(out)))
            }
            kind::TRANSFER => {
                let rpc = told(TransferLeaderRequest::<Types>::decode(body))?;
                told(told(self.raft.handle_transfer_leader(rpc).await)?)?;
                Ok(frame(kind::ANSWER, |out| None::<Vote>.put(out)))
            }
            kind::FOUNDED => {
                let vote = Vote::new(0, self.node);
                // The entry that founds is the same on every listed node: with it alone, nothing has happened.
                let founded = (self.store.end() > 1).then_some(vote);
                Ok(frame(kind::ANSWER, |out| founded.put(out)))
            }
            other => Err(format!("call {other} is unknown to this version")),
        }
    }
}

/// Compares in a time that does not tell where they differ.
fn is_same(given: &[u8], expected: &[u8]) -> bool {
    let mut differ = u8::from(given.len() != expected.len());
    for (place, byte) in given.iter().enumerate() {
        differ |= byte ^ expected.get(place % expected.len().max(1)).copied().unwrap_or(1);
    }
    differ == 0
}
