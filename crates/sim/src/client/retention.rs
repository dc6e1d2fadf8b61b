//! What the client knows of retention: marks that it saw are not taken back, and nothing goes that a group has yet to do.

use std::collections::BTreeMap;

use queen_record::ids::PartitionId;

use super::{Client, WRONG, note};
use crate::history::What;
use crate::node::SimNode;

impl Client {
    /// Judges what retention did since an entry, and notes it.
    ///
    /// # Errors
    /// When a mark went back, or completed-retention took what a group had yet to do.
    pub fn retained(&mut self, node: &mut SimNode, before: u64) -> Result<(), String> {
        let live = node.history.parts.iter().filter(|(_, part)| part.until.is_none());
        let ids: Vec<(PartitionId, String)> =
            live.map(|(id, part)| (*id, part.queue.clone())).collect();
        for (id, queue) in ids {
            let start = node.with_state(|state| Some(state.partition(id)?.log_start().0));
            let Some(start) = start else {
                node.history.end_partition(before, id);
                continue;
            };
            if start > 0 {
                note(node, What::Starts(queue, id, start))?;
            }
        }
        let mut done: BTreeMap<(PartitionId, String), i64> = BTreeMap::new();
        for what in node.history.facts_at(node.applied()) {
            let (What::Leased(place, _) | What::Committed(place, _)) = what else { continue };
            if place.queue != "settled" {
                continue;
            }
            let at = if let What::Committed(_, at) = what { *at } else { -1 };
            let known = done.entry((place.partition, place.group.clone())).or_insert(at);
            *known = at.max(*known);
        }
        for ((id, group), at) in done {
            let start = node.with_state(|state| state.partition(id).map(|row| row.log_start().0));
            let passed = start.is_some_and(|start| i64::try_from(start).is_ok_and(|s| s > at + 1));
            if passed {
                return Err(format!(
                    "{WRONG}{group} has done {at} of {id}, which starts at {start:?}"
                ));
            }
        }
        Ok(())
    }
}
