//! What must be there, as somebody knows who writes down every message.

use std::collections::BTreeMap;

use queen_record::hash::checksum;
use queen_record::ids::PartitionId;
use queen_record::record::HASH_LEN;

use super::STEP_US;
use super::node::{Aging, Item};
use super::traffic::Life;

/// A second after which retention and reclaim must have done their work: the step that is due, and the next one.
const LATE_US: i64 = 2 * STEP_US;
/// Bytes are kept for so long at least: a push may repeat an id.
const HASHES_US: i64 = 900 * 1_000_000;

/// A message.
#[derive(Clone, Copy, Debug)]
struct Made {
    offset: u64,
    created: i64,
    checksum: u64,
    /// Bytes that it takes in the log.
    bytes: u64,
    life: Life,
    /// When the last group was done with it.
    done: Option<i64>,
}

impl Made {
    /// Until when it must be readable; `None` for ever.
    fn readable_until(&self) -> Option<i64> {
        let after = |seconds: i32| i64::from(seconds) * 1_000_000;
        match self.life {
            Life::Age(seconds) => Some(self.created + after(seconds)),
            Life::Done(seconds) => self.done.map(|done| done.max(self.created + after(seconds))),
            Life::Kept | Life::Reborn(_) => None,
        }
    }

    /// From when on it must be gone for readers.
    fn gone_from(&self) -> Option<i64> {
        self.readable_until().map(|until| until + LATE_US)
    }

    /// From when on it must take no room.
    fn reclaimed_from(&self) -> Option<i64> {
        let free = self.readable_until()?.max(self.created + HASHES_US);
        Some(free + LATE_US)
    }
}

#[derive(Default)]
struct Part {
    queue: &'static str,
    messages: Vec<Made>,
    /// Next offset that each group has yet to do.
    done: BTreeMap<&'static str, u64>,
}

/// The model.
#[derive(Default)]
pub(super) struct Model {
    pub(super) pushed: u64,
    parts: BTreeMap<PartitionId, Part>,
}

impl Model {
    /// A message was stored.
    pub(super) fn pushed(&mut self, id: PartitionId, offset: u64, item: &Item, created: i64) {
        self.pushed += 1;
        let part = self.parts.entry(id).or_default();
        part.queue = item.queue;
        part.messages.push(Made {
            offset,
            created,
            checksum: checksum(&item.payload),
            bytes: record_bytes(item),
            life: item.life,
            done: None,
        });
    }

    /// A group is done with everything below an offset. The queue whose messages live until they are done has two.
    pub(super) fn taken(&mut self, id: PartitionId, group: &'static str, next: u64, now: i64) {
        const GROUPS: usize = 2;
        let Some(part) = self.parts.get_mut(&id) else { return };
        part.done.insert(group, next);
        if part.done.len() < GROUPS {
            return;
        }
        let all = part.done.values().min().copied().unwrap_or(0);
        for made in part.messages.iter_mut().filter(|made| made.offset < all) {
            made.done.get_or_insert(now);
        }
    }

    /// A queue is deleted.
    pub(super) fn delete(&mut self, queue: &str) {
        self.parts.retain(|_, part| part.queue != queue);
    }

    /// Forgets what must take no room any more.
    pub(super) fn forget(&mut self, now: i64) {
        for part in self.parts.values_mut() {
            part.messages.retain(|made| made.reclaimed_from().is_none_or(|from| now < from));
        }
        self.parts.retain(|_, part| !part.messages.is_empty() || part.done.len() > 1);
    }

    pub(super) fn live_messages(&self) -> u64 {
        self.parts.values().map(|part| part.messages.len() as u64).sum()
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.parts.values().flat_map(|part| &part.messages).map(|made| made.bytes).sum()
    }

    /// Whether the checksum of a delivered message is the stored one's; one that is forgotten cannot be judged.
    pub(super) fn is_stored(&self, id: PartitionId, offset: u64, payload: &[u8]) -> bool {
        let part = self.parts.get(&id);
        let made = part.and_then(|part| part.messages.iter().find(|made| made.offset == offset));
        made.is_none_or(|made| made.checksum == checksum(payload))
    }

    /// Reads everything; what is not as it should be.
    ///
    /// # Errors
    /// A read that failed.
    pub(super) fn compare(&self, node: &Aging) -> Result<Vec<String>, String> {
        let mut wrong = Vec::new();
        let now = node.now();
        for (id, part) in &self.parts {
            let Some(found) = node.readable(part.queue, *id)? else {
                let due = part
                    .messages
                    .iter()
                    .filter(|made| made.gone_from().is_none_or(|from| now < from));
                let missing = due.count();
                if missing > 0 {
                    wrong.push(format!("partition {id} of {} is gone with {missing}", part.queue));
                }
                continue;
            };
            for made in &part.messages {
                let place = format!("{} {id}/{}", part.queue, made.offset);
                match found.get(&made.offset) {
                    None if made.readable_until().is_none_or(|until| now <= until) => {
                        wrong.push(format!("{place} is missing"));
                    }
                    Some(_) if made.gone_from().is_some_and(|from| now >= from) => {
                        wrong.push(format!("{place} is there"));
                    }
                    Some(payload) if checksum(payload) != made.checksum => {
                        wrong.push(format!("{place} is another"));
                    }
                    _ => {}
                }
            }
        }
        Ok(wrong)
    }
}

/// Bytes that a message adds to a record: its frame and its hash. The head of the record is not counted.
fn record_bytes(item: &Item) -> u64 {
    const FRAME_HEAD: usize = 4 + 1 + 16 + 2;
    (FRAME_HEAD + item.transaction_id.len() + item.payload.len() + HASH_LEN) as u64
}
