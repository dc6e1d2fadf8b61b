//! Which directory stands behind a member's number.
//!
//! A majority means something only while everybody who counts keeps what it promised. A number is no promise: the disk
//! behind it may be a new one, or an old copy. So directories are told apart.
//!
//! - I1: a directory draws its id once, at its first start. The membership names each member's: another directory under the
//!   same number is refused, and knows why.
//! - I2: a directory whose log is empty takes calls only of who names its id, so it neither votes nor acknowledges before
//!   the cluster knows it. To found a cluster is the exception, and takes the word of every listed node.
//! - I3: a leader plans only under a membership that names the directories of a majority, and then sends entries only to
//!   members that are named. So no acknowledgement that a user's message rests on is of a directory that nobody would miss.
//! - I4: a start counts: whoever was seen at a later start, or with more of the log in the same term, and comes back with
//!   less, is an older copy. It is refused by whoever has seen more, and knows why. A leader tells the others with its
//!   heartbeats what it has seen, so that they know when it is gone.

mod bind;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::files::{Files, FilesError};
use super::store::Shared;
use super::wire::{Wire, WireError, text_of, u64_of};
pub(crate) use bind::Binder;

/// More directories than this are remembered of members only. Before the membership names anybody it is no measure.
const SEEN_MAX: usize = 64;

/// A directory's own name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskId(pub u128);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DiskId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| format!("{text:?} is no id of a directory"))
    }
}

impl TryFrom<String> for DiskId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DiskId> for String {
    fn from(id: DiskId) -> Self {
        id.to_string()
    }
}

impl Wire for DiskId {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u128_le(self.0);
    }

    fn read(from: &mut Bytes) -> Result<Self, WireError> {
        let (low, high) = (u64_of(from)?, u64_of(from)?);
        Ok(Self(u128::from(low) | u128::from(high) << 64))
    }
}

/// One start of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Boot {
    /// How many starts there were, this one among them.
    pub(crate) count: u64,
    /// Drawn at the start: two copies of one directory that start the same number of times differ in it.
    pub(crate) nonce: u64,
}

/// How far a directory has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sighting {
    pub(crate) boot: Boot,
    /// The term of its vote.
    pub(crate) term: u64,
    /// The end of its log as the library counts: entries below it are there. Of another directory: those it has
    /// acknowledged in that term.
    pub(crate) end: u64,
}

impl Sighting {
    /// Whether a directory that is seen like this now cannot be the one that was `before`, but only an older copy of it.
    fn is_older_than(&self, before: &Self) -> bool {
        let other_start = self.boot.count == before.boot.count && self.boot != before.boot;
        self.boot.count < before.boot.count
            || other_start
            || (self.term, self.end) < (before.term, before.end)
    }
}

impl Wire for Sighting {
    fn put(&self, out: &mut Vec<u8>) {
        for number in [self.boot.count, self.boot.nonce, self.term, self.end] {
            out.put_u64_le(number);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self, WireError> {
        let boot = Boot { count: u64_of(from)?, nonce: u64_of(from)? };
        Ok(Self { boot, term: u64_of(from)?, end: u64_of(from)? })
    }
}

/// What was seen of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    disk: DiskId,
    last: Sighting,
}

impl Wire for Vec<Seen> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32_le(u32::try_from(self.len()).unwrap_or(u32::MAX));
        for Seen { disk, last } in self {
            disk.put(out);
            last.put(out);
        }
    }

    fn read(from: &mut Bytes) -> Result<Self, WireError> {
        super::wire::list(from, 48, |from| {
            Ok(Seen { disk: DiskId::read(from)?, last: Sighting::read(from)? })
        })
    }
}

/// What a caller says of itself, and of who it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) disk: DiskId,
    pub(crate) now: Sighting,
    /// The directory that its membership names for the other one.
    pub(crate) means: Option<DiskId>,
    /// The most that it has seen of that directory.
    pub(crate) seen: Option<Sighting>,
}

impl Wire for Greeting {
    fn put(&self, out: &mut Vec<u8>) {
        self.disk.put(out);
        self.now.put(out);
        self.means.put(out);
        self.seen.put(out);
    }

    fn read(from: &mut Bytes) -> Result<Self, WireError> {
        Ok(Self {
            disk: DiskId::read(from)?,
            now: Sighting::read(from)?,
            means: Option::read(from)?,
            seen: Option::read(from)?,
        })
    }
}

/// What a greeting is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// Go on.
    Known { disk: DiskId, now: Sighting },
    /// This directory holds nothing yet, and the caller does not name it: nothing is answered before it does.
    Unnamed { disk: DiskId },
    /// The caller means another directory, or an earlier life of this one.
    NotMeant(String),
    /// The caller is an older copy of what was seen.
    Older(String),
}

impl Wire for Welcome {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Known { disk, now } => {
                out.put_u8(0);
                disk.put(out);
                now.put(out);
            }
            Self::Unnamed { disk } => {
                out.put_u8(1);
                disk.put(out);
            }
            Self::NotMeant(text) | Self::Older(text) => {
                out.put_u8(if matches!(self, Self::Older(_)) { 3 } else { 2 });
                super::wire::put_blob(out, text.as_bytes());
            }
        }
    }

    fn read(from: &mut Bytes) -> Result<Self, WireError> {
        match super::wire::u8_of(from)? {
            0 => Ok(Self::Known { disk: DiskId::read(from)?, now: Sighting::read(from)? }),
            1 => Ok(Self::Unnamed { disk: DiskId::read(from)? }),
            2 => Ok(Self::NotMeant(text_of(from)?)),
            3 => Ok(Self::Older(text_of(from)?)),
            found => Err(WireError::Unknown { what: "welcome", found: found.into() }),
        }
    }
}

/// This member's directory, and what it has seen of the others'.
pub(crate) struct Identity {
    node: u64,
    files: Files,
    store: Arc<Shared>,
    /// The most that was seen of each directory. Their starts are durable.
    seen: Mutex<BTreeMap<DiskId, Sighting>>,
    /// Directories that the membership does not name yet, by their members' numbers.
    unnamed: Mutex<BTreeMap<u64, DiskId>>,
    /// Why this directory has no place in its cluster.
    refused: Mutex<Option<String>>,
}

impl Identity {
    /// The identity of a directory that has been counted as started.
    pub(crate) fn open(node: u64, files: Files, store: Arc<Shared>) -> Result<Self, FilesError> {
        let seen = Mutex::new(files.seen()?);
        let (unnamed, refused) = (Mutex::default(), Mutex::default());
        Ok(Self { node, files, store, seen, unnamed, refused })
    }

    /// Why this directory serves nobody, for a person.
    pub(crate) fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    /// Lets go of whom was met under this number.
    pub(crate) fn forget(&self, node: u64) {
        self.unnamed.lock().remove(&node);
    }

    fn refuse(&self, reason: &str) {
        let mut refused = self.refused.lock();
        if refused.as_deref() != Some(reason) {
            tracing::error!("{reason}");
            *refused = Some(reason.to_owned());
        }
    }

    /// How far this directory is.
    fn now(&self) -> Sighting {
        let term = self.store.state.lock().vote_term();
        Sighting { boot: self.store.boot, term, end: self.store.end() }
    }

    /// The directories that the membership names, as it is applied.
    fn named(&self) -> Vec<DiskId> {
        let memberships = self.store.memberships.lock();
        let Some(stored) = memberships.last() else { return Vec::new() };
        stored.membership().nodes().filter_map(|(_, member)| member.disk).collect()
    }

    fn disk_of(&self, node: u64) -> Option<DiskId> {
        let memberships = self.store.memberships.lock();
        memberships.last()?.membership().get_node(&node)?.disk
    }

    /// What this member says when it calls another one.
    pub(crate) fn greeting(&self, target: u64) -> Greeting {
        let means = self.disk_of(target);
        let seen = means.and_then(|disk| self.seen.lock().get(&disk).copied());
        Greeting { disk: self.store.disk, now: self.now(), means, seen }
    }

    /// Answers a greeting. Blocks: a start that is seen first is made durable before it counts.
    pub(crate) fn welcome(&self, from: u64, greeting: &Greeting) -> Result<Welcome, FilesError> {
        let Greeting { disk, now: caller, means, seen } = greeting;
        let now = self.now();
        let is_named = self.disk_of(self.node) == Some(self.store.disk);
        match means {
            Some(meant) if *meant != self.store.disk => {
                let reason = self.not_meant(*meant);
                // Who is named here knows better: the caller has not heard of the change.
                if !is_named {
                    self.refuse(&reason);
                }
                return Ok(Welcome::NotMeant(reason));
            }
            Some(_) if seen.is_some_and(|seen| now.is_older_than(&seen)) => {
                let reason = older(self.node);
                self.refuse(&reason);
                return Ok(Welcome::NotMeant(reason));
            }
            Some(_) => {
                let mut refused = self.refused.lock();
                if refused.take().is_some() {
                    tracing::info!("the cluster knows this directory now");
                }
            }
            None if now.end == 0 => return Ok(Welcome::Unnamed { disk: self.store.disk }),
            None => {}
        }
        if self.saw(*disk, *caller)? {
            Ok(Welcome::Known { disk: self.store.disk, now })
        } else {
            Ok(Welcome::Older(older(from)))
        }
    }

    /// Takes an answer to a greeting: the directory that was reached.
    ///
    /// Errors: the other one must not be called, with the reason.
    pub(crate) fn welcomed(&self, target: u64, welcome: Welcome) -> Result<DiskId, NotWelcome> {
        match welcome {
            Welcome::Known { disk, now } => match self.saw(disk, now) {
                Ok(true) => Ok(disk),
                Ok(false) => Err(NotWelcome::Refused(older(target))),
                Err(error) => Err(NotWelcome::Refused(error.to_string())),
            },
            Welcome::Unnamed { disk } => {
                self.unnamed.lock().insert(target, disk);
                Err(NotWelcome::Unnamed)
            }
            Welcome::NotMeant(reason) => Err(NotWelcome::Refused(reason)),
            Welcome::Older(reason) => {
                self.refuse(&reason);
                Err(NotWelcome::Refused(reason))
            }
        }
    }

    /// Whether entries may be sent over a connection to this directory of a member: only the membership's own counts, and
    /// while it names nobody, everybody's does.
    pub(crate) fn may_append(&self, target: u64, disk: DiskId) -> bool {
        let memberships = self.store.memberships.lock();
        let Some(stored) = memberships.last() else { return true };
        let membership = stored.membership();
        let named = membership.get_node(&target).and_then(|member| member.disk);
        let may = match named {
            Some(named) => named == disk,
            None => membership.nodes().all(|(_, member)| member.disk.is_none()),
        };
        if named.is_none() {
            self.unnamed.lock().insert(target, disk);
        }
        may
    }

    /// Notes that a directory has acknowledged all entries below `end` to this leader.
    pub(crate) fn acknowledged(&self, disk: DiskId, term: u64, end: u64) {
        if let Some(seen) = self.seen.lock().get_mut(&disk)
            && (seen.term, seen.end) < (term, end)
        {
            (seen.term, seen.end) = (term, end);
        }
    }

    /// What was seen of everybody, for the others.
    pub(crate) fn all_seen(&self) -> Vec<Seen> {
        self.seen.lock().iter().map(|(disk, last)| Seen { disk: *disk, last: *last }).collect()
    }

    /// Takes what a leader has seen; whether a start is among it that must be written down.
    pub(crate) fn hear(&self, told: &[Seen]) -> bool {
        let named = self.named();
        let mut seen = self.seen.lock();
        let mut is_new = false;
        for Seen { disk, last } in told.iter().filter(|told| named.contains(&told.disk)) {
            let known = seen.entry(*disk).or_insert_with(|| {
                is_new = true;
                *last
            });
            if known.boot.count < last.boot.count {
                is_new = true;
                known.boot = last.boot;
            }
            if (known.term, known.end) < (last.term, last.end) {
                (known.term, known.end) = (last.term, last.end);
            }
        }
        is_new
    }

    /// Makes what was seen durable. Blocks.
    pub(crate) fn write_seen(&self) -> Result<(), FilesError> {
        let seen = self.seen.lock();
        self.files.write_seen(&seen)
    }

    /// Whether a directory may be what was seen before; what is new of it is kept.
    fn saw(&self, disk: DiskId, now: Sighting) -> Result<bool, FilesError> {
        let mut seen = self.seen.lock();
        let before = seen.get(&disk).copied();
        if before.is_some_and(|before| now.is_older_than(&before)) {
            return Ok(false);
        }
        if before.is_none_or(|before| before.boot != now.boot) {
            // What it holds but has not acknowledged, it may lose.
            let (term, end) = before.map_or((0, 0), |before| (before.term, before.end));
            seen.insert(disk, Sighting { boot: now.boot, term, end });
            if seen.len() > SEEN_MAX {
                let named = self.named();
                seen.retain(|id, _| *id == disk || named.contains(id));
            }
            self.files.write_seen(&seen)?;
        }
        Ok(true)
    }

    fn not_meant(&self, meant: DiskId) -> String {
        let (node, disk) = (self.node, self.store.disk);
        format!(
            "node {node} of this cluster is the directory {meant}, and this one is {disk}: it does not hold what node {node} has promised, so it serves nobody. \
             Remove the node through a healthy one (DELETE /api/v1/system/raft/membership/members/{node}), then add it again (POST .../learners, POST .../promote)"
        )
    }
}

fn older(node: u64) -> String {
    format!(
        "the directory of node {node} is an older copy: the cluster has seen it with more. It serves nobody, and does not vote. \
         Remove the node through a healthy one (DELETE /api/v1/system/raft/membership/members/{node}), start it empty, add it again (POST .../learners, POST .../promote)"
    )
}

/// Why a member must not be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotWelcome {
    /// The membership does not name its directory yet.
    Unnamed,
    Refused(String),
}

/// Whether a membership names enough directories for a leader to plan: its own, and those of a majority of each set.
pub(crate) fn names_a_majority(membership: &super::types::Membership, own: u64) -> bool {
    let is_named = |id: &u64| membership.get_node(id).is_some_and(|member| member.disk.is_some());
    let majority = |set: &std::collections::BTreeSet<u64>| {
        set.iter().filter(|id| is_named(id)).count() > set.len() / 2
    };
    is_named(&own) && membership.get_joint_config().iter().all(majority)
}

#[cfg(test)]
mod tests;
