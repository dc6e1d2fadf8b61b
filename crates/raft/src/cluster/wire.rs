//! Bytes between nodes: frames, and the messages in them.
//!
//! ```text
//! frame      = body_len u32 | XXH3_64(body) u64 | body            body at most 512 MiB
//! body       = kind u8 | message
//! vote       = term u64 | node u64 | committed u8
//! log id     = term u64 | index u64                               opt = u8 0 or 1, then it
//! entry      = log id | 0 (blank)
//!            | log id | 1 | len u32, payload-free entry bytes | per append: compressed u8 | len u32, stored bytes
//!            | log id | 2 | membership
//! membership = configs u32, each: n u32, n x u64 | nodes u32, each: id u64 | str raft | str http | opt id16 disk
//! str        = len u32, UTF-8
//! ```
//!
//! W1. Decoding any bytes ends in a message or an error and allocates at most a small multiple of them.
//! W2. Stored bytes travel as they are: a compressed payload is neither opened nor made again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use openraft::entry::RaftEntry;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use queen_model::{AppendPayload, Effect, Entry};

use super::types::{Command, LogEntry, LogId, Member, Membership, Payload, Types, Vote, log_id};

/// Bytes of a frame's body at most: the largest entry and its messages.
pub(crate) const BODY_BYTES_MAX: usize = 512 << 20;
/// Bytes of a frame before its body.
pub(crate) const HEAD_LEN: usize = 12;

/// Why bytes are no message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum WireError {
    #[error("the message ends early")]
    Short,
    #[error("the message has {0} bytes too many")]
    Long(usize),
    #[error("{what} {found} is unknown")]
    Unknown { what: &'static str, found: u64 },
    #[error("an entry does not decode: {0}")]
    Entry(String),
    #[error("a text is not UTF-8")]
    Text,
    #[error("a membership cannot be: {0}")]
    Membership(String),
}

type Result<T> = std::result::Result<T, WireError>;

/// A value with a byte form.
pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn read(from: &mut Bytes) -> Result<Self>;

    /// The value that fills `bytes`.
    fn decode(mut bytes: Bytes) -> Result<Self> {
        let value = Self::read(&mut bytes)?;
        if bytes.is_empty() { Ok(value) } else { Err(WireError::Long(bytes.len())) }
    }
}

pub(crate) fn u8_of(from: &mut Bytes) -> Result<u8> {
    from.try_get_u8().map_err(|_| WireError::Short)
}

pub(crate) fn u32_of(from: &mut Bytes) -> Result<u32> {
    from.try_get_u32_le().map_err(|_| WireError::Short)
}

pub(crate) fn u64_of(from: &mut Bytes) -> Result<u64> {
    from.try_get_u64_le().map_err(|_| WireError::Short)
}

fn bool_of(from: &mut Bytes) -> Result<bool> {
    match u8_of(from)? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(WireError::Unknown { what: "flag", found: found.into() }),
    }
}

pub(crate) fn put_blob(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(length(bytes.len()));
    out.put_slice(bytes);
}

pub(crate) fn blob_of(from: &mut Bytes) -> Result<Bytes> {
    let len = u32_of(from)? as usize;
    if len > from.len() {
        return Err(WireError::Short);
    }
    Ok(from.split_to(len))
}

pub(crate) fn text_of(from: &mut Bytes) -> Result<String> {
    let bytes = blob_of(from)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Text)
}

/// As many items as said; each has at least `least` bytes.
pub(crate) fn list<T>(
    from: &mut Bytes,
    least: usize,
    mut item: impl FnMut(&mut Bytes) -> Result<T>,
) -> Result<Vec<T>> {
    let count = u32_of(from)? as usize;
    if count > from.len() / least.max(1) {
        return Err(WireError::Short);
    }
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(item(from)?);
    }
    Ok(items)
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or_else(|_| panic!("{len} bytes passed a limit of 4 GiB"))
}

impl Wire for Vote {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.leader_id().term);
        out.put_u64_le(self.leader_id().voted_for);
        out.put_u8(self.is_committed().into());
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let (term, node, committed) = (u64_of(from)?, u64_of(from)?, bool_of(from)?);
        Ok(if committed { Self::new_committed(term, node) } else { Self::new(term, node) })
    }
}

impl Wire for LogId {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.leader_id.term);
        out.put_u64_le(self.index);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(log_id(u64_of(from)?, u64_of(from)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u8(self.is_some().into());
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(if bool_of(from)? { Some(T::read(from)?) } else { None })
    }
}

impl Wire for Membership {
    fn put(&self, out: &mut Vec<u8>) {
        let configs = self.get_joint_config();
        out.put_u32_le(length(configs.len()));
        for config in configs {
            out.put_u32_le(length(config.len()));
            for id in config {
                out.put_u64_le(*id);
            }
        }
        let nodes: Vec<_> = self.nodes().collect();
        out.put_u32_le(length(nodes.len()));
        for (id, node) in nodes {
            out.put_u64_le(*id);
            put_blob(out, node.raft.as_bytes());
            put_blob(out, node.http.as_bytes());
            node.disk.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let configs = list(from, 4, |from| {
            Ok(list(from, 8, u64_of)?.into_iter().collect::<BTreeSet<u64>>())
        })?;
        let nodes = list(from, 17, |from| {
            let id = u64_of(from)?;
            let (raft, http) = (text_of(from)?, text_of(from)?);
            Ok((id, Member { raft, http, disk: Option::read(from)? }))
        })?;
        let nodes: BTreeMap<u64, Member> = nodes.into_iter().collect();
        Self::new(configs, nodes).map_err(|error| WireError::Membership(error.to_string()))
    }
}

impl Wire for Command {
    fn put(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.put_u32_le(0);
        self.0.encode(out);
        let len = length(out.len() - at - 4);
        if let Some(slot) = out.get_mut(at..at + 4) {
            slot.copy_from_slice(&len.to_le_bytes());
        }
        for effect in &self.0.effects {
            let Effect::Append(append) = effect else { continue };
            let AppendPayload::Stored { bytes, compressed, .. } = &append.payload else {
                unreachable!("an entry that is sent has its payloads")
            };
            out.put_u8((*compressed).into());
            put_blob(out, bytes);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let bytes = blob_of(from)?;
        let entry = Entry::decode(&bytes).map_err(|error| WireError::Entry(error.to_string()))?;
        let with = |_: usize| Ok((bool_of(from)?, blob_of(from)?));
        Ok(Self(Arc::new(with_payloads(entry, with)?)))
    }
}

/// The entry with the stored bytes of each of its appends, in order: whether they are compressed, and they.
pub(crate) fn with_payloads(
    mut entry: Entry,
    mut stored: impl FnMut(usize) -> Result<(bool, Bytes)>,
) -> Result<Entry> {
    let mut place = 0;
    for effect in &mut entry.effects {
        let Effect::Append(append) = effect else { continue };
        let (compressed, bytes) = stored(place)?;
        place += 1;
        // What an append counts as retained says how long its frames are.
        let heads = 40 + 16 * u64::from(append.count());
        let raw_len = u64::from(append.retained()).checked_sub(heads);
        let raw_len = raw_len.and_then(|len| u32::try_from(len).ok());
        let fits = |len: u32| compressed || len as usize == bytes.len();
        let raw_len = raw_len.filter(|len| fits(*len)).ok_or_else(|| {
            WireError::Entry(format!("an append of partition {} has other messages", append.id))
        })?;
        append.payload = AppendPayload::Stored { bytes, compressed, raw_len };
    }
    Ok(entry)
}

impl Wire for LogEntry {
    fn put(&self, out: &mut Vec<u8>) {
        self.log_id.put(out);
        match &self.payload {
            Payload::Blank => out.put_u8(0),
            Payload::Normal(command) => {
                out.put_u8(1);
                command.put(out);
            }
            Payload::Membership(membership) => {
                out.put_u8(2);
                membership.put(out);
            }
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let log_id = LogId::read(from)?;
        let payload = match u8_of(from)? {
            0 => Payload::Blank,
            1 => Payload::Normal(Command::read(from)?),
            2 => Payload::Membership(Membership::read(from)?),
            found => return Err(WireError::Unknown { what: "payload", found: found.into() }),
        };
        Ok(Self::new(log_id, payload))
    }
}

impl Wire for AppendEntriesRequest<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.prev_log_id.put(out);
        self.leader_commit.put(out);
        out.put_u32_le(length(self.entries.len()));
        for entry in &self.entries {
            entry.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let vote = Vote::read(from)?;
        let (prev_log_id, leader_commit) = (Option::read(from)?, Option::read(from)?);
        let entries = list(from, 17, LogEntry::read)?;
        Ok(Self { vote, prev_log_id, entries, leader_commit })
    }
}

impl Wire for AppendEntriesResponse<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Success => out.put_u8(0),
            Self::PartialSuccess(matching) => {
                out.put_u8(1);
                matching.put(out);
            }
            Self::Conflict => out.put_u8(2),
            Self::HigherVote(vote) => {
                out.put_u8(3);
                vote.put(out);
            }
        }
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(match u8_of(from)? {
            0 => Self::Success,
            1 => Self::PartialSuccess(Option::read(from)?),
            2 => Self::Conflict,
            3 => Self::HigherVote(Vote::read(from)?),
            found => return Err(WireError::Unknown { what: "answer", found: found.into() }),
        })
    }
}

impl Wire for VoteRequest<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.last_log_id.put(out);
        out.put_u8(self.leadership_transfer.into());
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let mut request = Self::new(Vote::read(from)?, Option::read(from)?);
        request.leadership_transfer = bool_of(from)?;
        Ok(request)
    }
}

impl Wire for VoteResponse<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.last_log_id.put(out);
        out.put_u8(self.vote_granted.into());
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        let (vote, last) = (Vote::read(from)?, Option::read(from)?);
        Ok(Self { vote, vote_granted: bool_of(from)?, last_log_id: last })
    }
}

impl Wire for TransferLeaderRequest<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        self.from_leader().put(out);
        out.put_u64_le(*self.to_node_id());
        self.last_log_id().copied().put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self> {
        Ok(Self::new(Vote::read(from)?, u64_of(from)?, Option::read(from)?))
    }
}

#[cfg(test)]
pub(crate) mod tests;
