//! What a restart hands to apply: every complete entry above the checkpoint, checked against its messages.

use queen_model::{Append, Effect, Entry};
use queen_qlog::{Cut, MessageHead, OpenError, RecoveredEntry, Recovery};
use queen_record::hash::queue_id;
use queen_record::ids::{EntryIndex, PartitionId, QueueId};

use crate::cluster::{is_own, own_text};

/// Why the logs cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The logs refuse.
    #[error(transparent)]
    Logs(#[from] OpenError),
}

/// Hands each recovered entry to `apply` in order, then cuts what is incomplete.
///
/// # Errors
/// When the logs refuse, when an entry's bytes are none, when an append has no message record, or when `apply`
/// says so. Nothing was cut then.
pub fn replay(
    recovery: Recovery,
    apply: &mut dyn FnMut(EntryIndex, u64, &Entry) -> Result<(), String>,
) -> Result<Cut, ReplayError> {
    let cut = recovery.for_each(&mut |recovered| {
        let index = recovered.index;
        let entry = Entry::decode(&recovered.bytes)
            .map_err(|error| format!("entry {index} does not decode: {error}"))?;
        check_messages(&entry, &recovered)
            .map_err(|append| format!("entry {index} has no message record for {append}"))?;
        apply(index, recovered.term.max(1), &entry)
    })?;
    Ok(cut)
}

/// What a log holds as an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredEntry {
    /// One that was planned; without payloads.
    Planned(Entry),
    /// One of the cluster's own, which changes no state: `blank`, or `membership` and the members as JSON.
    Own(String),
}

impl StoredEntry {
    /// Reads the bytes of an entry record.
    ///
    /// # Errors
    /// What is wrong with them, for a person.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        if is_own(bytes) {
            return own_text(bytes).map(Self::Own);
        }
        Entry::decode(bytes).map(Self::Planned).map_err(|error| error.to_string())
    }
}

/// What a member's logs hold above its checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// What was delivered and cut.
    pub cut: Cut,
    /// The term of the last entry; `None` when there was none.
    pub last_term: Option<u64>,
    /// Partitions that these entries made: the state does not know them until they are applied.
    pub made: Vec<(PartitionId, QueueId, EntryIndex)>,
}

/// Checks each recovered entry without applying any, then cuts what is incomplete: which of them are committed, the other
/// members decide.
///
/// # Errors
/// As [`replay`].
pub fn examine(recovery: Recovery) -> Result<Examined, ReplayError> {
    let (mut last_term, mut made) = (None, Vec::new());
    let cut = recovery.for_each(&mut |recovered| {
        let index = recovered.index;
        last_term = Some(recovered.term);
        let stored = StoredEntry::read(&recovered.bytes)
            .map_err(|error| format!("entry {index} does not decode: {error}"))?;
        let StoredEntry::Planned(entry) = stored else { return Ok(()) };
        made.extend(entry.effects.iter().filter_map(|effect| match effect {
            Effect::PartitionCreate(create) => {
                Some((create.id, queue_id(create.tenant, &create.queue), index))
            }
            _ => None,
        }));
        check_messages(&entry, &recovered)
            .map_err(|append| format!("entry {index} has no message record for {append}"))
    })?;
    Ok(Examined { cut, last_term, made })
}

/// Whether every append of the entry has its message record; the error names the one that has not.
fn check_messages(entry: &Entry, recovered: &RecoveredEntry) -> Result<(), String> {
    let key = |head: &MessageHead| (head.partition, head.base);
    let mut heads: Vec<&MessageHead> = recovered.messages.iter().collect();
    heads.sort_unstable_by_key(|head| key(head));
    let matches = |append: &Append| {
        let found = heads.binary_search_by_key(&(append.id, append.base), |head| key(head));
        let head = found.ok().and_then(|at| heads.get(at));
        head.is_some_and(|head| head.count == append.count() && head.created == append.created)
    };
    let mut appends = 0;
    for effect in &entry.effects {
        if let Effect::Append(append) = effect {
            appends += 1;
            if !matches(append) {
                return Err(format!("partition {} offset {}", append.id, append.base));
            }
        }
    }
    if appends != heads.len() {
        return Err(format!("{} records of {appends} appends", heads.len()));
    }
    Ok(())
}
