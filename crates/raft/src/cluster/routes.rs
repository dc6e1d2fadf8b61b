//! Which logs an entry touches, on every member alike: read from its effects, never sent.

use std::collections::BTreeMap;

use queen_model::{Effect, Entry};
use queen_qlog::Qlog;
use queen_record::hash::queue_id;
use queen_record::ids::{EntryIndex, LogId, PartitionId, QueueId};
use queen_record::layout::SYSTEM_LOG;

/// Knows whose a partition is, as of the applied state.
pub trait Owners: Send {
    /// The queue of a partition; `None` when the state has no such partition.
    fn queue_of(&self, partition: PartitionId) -> Option<QueueId>;

    /// The last entry that the answers take into account.
    fn applied(&self) -> EntryIndex;
}

/// The logs of entries that are written before they are applied.
pub(crate) struct Routes {
    owners: Box<dyn Owners>,
    qlog: Qlog,
    /// Partitions that entries above the applied one made.
    made: BTreeMap<PartitionId, (QueueId, EntryIndex)>,
}

/// A partition that nobody knows: the entry cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("entry {index} appends to partition {partition}, which nobody made")]
pub(crate) struct Unknown {
    index: EntryIndex,
    partition: PartitionId,
}

impl Routes {
    /// `made` are the partitions of entries that stand in the logs and are not applied.
    pub(crate) fn new(
        owners: Box<dyn Owners>,
        qlog: Qlog,
        made: Vec<(PartitionId, QueueId, EntryIndex)>,
    ) -> Self {
        let made = made.into_iter().map(|(id, queue, index)| (id, (queue, index))).collect();
        Self { owners, qlog, made }
    }

    /// The log of each effect of the next entry to be written.
    pub(crate) fn logs(&mut self, index: EntryIndex, entry: &Entry) -> Result<Vec<LogId>, Unknown> {
        let mut logs = Vec::with_capacity(entry.effects.len());
        for effect in &entry.effects {
            logs.push(self.log(index, effect)?);
        }
        Ok(logs)
    }

    fn log(&mut self, index: EntryIndex, effect: &Effect) -> Result<LogId, Unknown> {
        let of_queue = |tenant, queue: &str| self.qlog.log_of(queue_id(tenant, queue), None);
        let partition = match effect {
            Effect::Noop | Effect::DeleteChunk { .. } => return Ok(SYSTEM_LOG),
            Effect::QueueUpsert { tenant, queue, .. }
            | Effect::QueueDelete { tenant, queue }
            | Effect::GroupDelete { tenant, queue, .. }
            | Effect::DlqDelete { tenant, queue, .. } => return Ok(of_queue(*tenant, queue)),
            Effect::GroupUpsert(group) => return Ok(of_queue(group.tenant, &group.queue)),
            Effect::DlqInsert(letter) => return Ok(of_queue(letter.tenant, &letter.queue)),
            Effect::PartitionCreate(create) => {
                let queue = queue_id(create.tenant, &create.queue);
                self.made.insert(create.id, (queue, index));
                create.id
            }
            Effect::Append(append) => {
                let Some(queue) = self.queue_of(append.id) else {
                    return Err(Unknown { index, partition: append.id });
                };
                return Ok(self.qlog.log_of(queue, Some(append.id)));
            }
            Effect::CursorSet(set) => set.id,
            Effect::Watermark(marks) => marks.id,
            Effect::PartitionDelete { id } | Effect::CursorDelete { id, .. } => *id,
        };
        // Of a partition that is gone nothing is read any more: any log does.
        let queue = self.queue_of(partition);
        Ok(queue.map_or(SYSTEM_LOG, |queue| self.qlog.log_of(queue, Some(partition))))
    }

    fn queue_of(&self, partition: PartitionId) -> Option<QueueId> {
        let made = self.made.get(&partition).map(|(queue, _)| *queue);
        made.or_else(|| self.owners.queue_of(partition))
    }

    /// Forgets what the state knows by now.
    pub(crate) fn forget_applied(&mut self) {
        if self.made.is_empty() {
            return;
        }
        let applied = self.owners.applied();
        self.made.retain(|_, (_, index)| *index > applied);
    }

    /// Forgets what entries above `last` made: they will never be.
    pub(crate) fn truncate(&mut self, last: EntryIndex) {
        self.made.retain(|_, (_, index)| *index <= last);
    }
}
