//! A member that goes on alone, by an operator's word: the others' disks are lost, or there were none yet.
//!
//! - A1: forced, it appends a membership whose only voter is itself, in a term above all that it knows, behind everything
//!   that its log holds. So what nobody will ever contradict is committed with it.
//! - A2: it is done once: `force_recovered.json` says so, and a cluster that has grown since is left as it is.
//! - A3: whatever interrupts it, the same start again finishes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use queen_io::Disk;
use queen_qlog::{EntryReader, Qlog};
use queen_record::ids::EntryIndex;
use serde::{Deserialize, Serialize};

use super::files::{Files, FilesError, Id, State, is_own, own_payload, replace_json};
use super::start::{ClusterError, ClusterOptions};
use super::store::Store;
use super::types::{
    LogEntry, LogId, Member, Membership, Payload, StoredMembership, Vote, entry_index, log_id,
    raft_index,
};

/// Says that a directory was forced to go on alone, and since when.
const MARKER: &str = "force_recovered.json";
/// Bytes of entries that are looked at together.
const PIECE: usize = 4 << 20;

/// `force_recovered.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    node_id: u64,
    term: u64,
    index: u64,
    previous_voters: BTreeSet<u64>,
    previous_nodes: BTreeMap<u64, Member>,
    at_ms: i64,
}

/// What is to be done before the library opens the log.
pub(crate) struct Alone {
    node: u64,
    member: Member,
    before: StoredMembership,
    term: u64,
    end: u64,
    at_ms: i64,
}

/// Where the logs of a directory end, and what its store covers.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) last: Option<LogId>,
    pub(crate) durable: Option<LogId>,
}

impl Alone {
    /// Looks what has to be done, and readies the small files for it; `None` when the node is alone already.
    ///
    /// # Errors
    /// [`ClusterError`]: it was done before, or there is nothing to go on with.
    pub(crate) fn prepare(
        options: &ClusterOptions,
        files: &Files,
        qlog: &Qlog,
        ends: Ends,
        at_ms: i64,
    ) -> Result<Option<Self>, ClusterError> {
        let node = options.node;
        let Some(last) = ends.last.max(ends.durable) else {
            return Err(ClusterError::NotForced("its log is empty".to_owned()));
        };
        let before = in_force(files, qlog, ends)?;
        let membership = before.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let is_alone = voters == BTreeSet::from([node]) && membership.nodes().count() == 1;
        if is_alone {
            tracing::warn!(
                "QUEEN_RAFT_FORCE_RECOVER is set, and node {node} is the only member already: nothing is done; restart without it"
            );
            return Ok(None);
        }
        let marker = options.dir.join(super::DIR).join(MARKER);
        if let Some(marker_of) = files.read::<Marker>(MARKER)?
            && marker_of.node_id == node
        {
            return Err(ClusterError::NotForced(format!(
                "it is still set, but this node already recovered ({}), and its cluster has other members since. Start without it; to force this directory once more, move that file away first",
                marker.display()
            )));
        }
        let listed = options.peers.get(&node).or_else(|| membership.get_node(&node));
        let Some(listed) =
            listed.cloned().or_else(|| options.listen.is_none().then(Member::default))
        else {
            return Err(ClusterError::NotForced(format!(
                "neither the membership nor QUEEN_RAFT_PEERS says where node {node} is reached"
            )));
        };
        let mut state = files.state()?.unwrap_or_default();
        let term = state.vote_term().max(last.leader_id.term) + 1;
        // A copy of another node's directory becomes this one's, and whoever knew it by its name meets another.
        state.node = node;
        state.disk = None;
        files.write_state(&state)?;
        let end = last.index + 1;
        Ok(Some(Self { node, member: listed, before, term, end, at_ms }))
    }

    /// Does it. Blocks until it is durable.
    pub(crate) async fn carry_out(self, store: &mut Store, files: &Files) -> Result<(), String> {
        let Self { node, member, before, term, end, at_ms } = self;
        let member = Member { disk: Some(store.shared().disk), ..member };
        let membership =
            Membership::new(vec![BTreeSet::from([node])], BTreeMap::from([(node, member)]))
                .map_err(|error| error.to_string())?;
        // Without the vote the term could be another's.
        store.save_vote(&Vote::new(term, node)).await.map_err(|error| error.to_string())?;
        let entry = LogEntry::new(log_id(term, end), Payload::Membership(membership));
        store.blocking_append([entry]).await.map_err(|error| error.to_string())?;
        let before = before.membership();
        let marker = Marker {
            node_id: node,
            term,
            index: entry_index(end).0,
            previous_voters: before.voter_ids().collect(),
            previous_nodes: before.nodes().map(|(id, at)| (*id, at.clone())).collect(),
            at_ms,
        };
        files.replace(MARKER, &marker).map_err(|error| error.to_string())?;
        tracing::warn!(
            term,
            index = marker.index,
            "node {node} was forced to go on alone: what the others had committed without it is lost. Restart without QUEEN_RAFT_FORCE_RECOVER, start the others empty with QUEEN_RAFT_JOIN=true, add and promote them"
        );
        Ok(())
    }
}

/// The membership that is in force at the end of the logs.
fn in_force(files: &Files, qlog: &Qlog, ends: Ends) -> Result<StoredMembership, ClusterError> {
    let mut found = files.membership()?;
    let purged = files.state()?.and_then(|state| state.purged).map(LogId::from);
    // Up to what the store covers, the file knows it.
    let known = ends.durable.max(purged).max(*found.log_id());
    let mut next = known.map_or(EntryIndex(1), |id| entry_index(id.index).next());
    let end = ends.last.map_or(EntryIndex(1), |id| entry_index(id.index).next());
    let mut reader = EntryReader::default();
    let log = |error: String| ClusterError::Log(error);
    while next < end {
        let entries =
            qlog.entries(&mut reader, next, end, PIECE).map_err(|error| log(error.to_string()))?;
        for entry in entries {
            next = entry.index.next();
            if !is_own(&entry.bytes) {
                continue;
            }
            if let Payload::Membership(membership) = own_payload(&entry.bytes).map_err(log)? {
                let at = raft_index(entry.index).map(|at| log_id(entry.term, at));
                found = StoredMembership::new(at, membership);
            }
        }
    }
    Ok(found)
}

/// Makes the directory of a node alone that of a cluster whose only member it is. Its checkpoint must cover its logs.
///
/// # Errors
/// [`FilesError`]: it is still a node's alone. The same call again finishes it.
pub fn promote(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    (node, at): (u64, Member),
    applied: (EntryIndex, u64),
) -> Result<(), FilesError> {
    let (index, term) = applied;
    let damaged = |path: PathBuf, reason: String| FilesError::Damaged { path, reason };
    let covers = raft_index(index)
        .map(|at| log_id(term, at))
        .ok_or_else(|| damaged(dir.to_owned(), "nothing was ever written here".to_owned()))?;
    let membership = Membership::new(vec![BTreeSet::from([node])], BTreeMap::from([(node, at)]));
    let membership = membership.map_err(|error| damaged(dir.to_owned(), error.to_string()))?;
    let files = Files::open(disk.clone(), dir)?;
    files.write_membership(&StoredMembership::new(Some(covers), membership))?;
    // The last: with it the directory is a member's.
    let purged = Id::from(covers);
    let state =
        State { floor_v: 1, node, purged: Some(purged), terms: vec![purged], ..State::default() };
    replace_json(&**disk, &dir.join(super::DIR), super::STATE, &state)
}
