//! What retention removes: marks that rise, and what a partition takes along.
//!
//! Counters are settled in the same step, so no reader ever sees a mark without them.

use queen_model::Watermark;
use queen_record::ids::{Offset, PartitionId, Uuid};

use crate::cut::RowKey;
use crate::partition::QueueNumber;
use crate::tables::State;

impl State {
    /// Moves a partition's marks; one that would go back stays.
    pub(super) fn move_marks(&mut self, moved: &Watermark) -> Result<(), String> {
        let row = self.partitions.get(moved.id).ok_or("the partition is not there")?;
        let (queue, next) = (row.queue, row.next_offset());
        if moved.log_start > next {
            return Err(format!("the log would start at {}, it ends at {next}", moved.log_start));
        }
        self.touch(RowKey::Partition(moved.id));
        let row = self.partitions.get_mut(moved.id).ok_or("the partition is not there")?;
        let newest = (row.last_offset, row.last_created);
        let marks = row.marks.get_or_insert_default();
        let rises = moved.log_start.0 > marks.log_start;
        if rises {
            marks.log_start = moved.log_start.0;
            let is_newest = |start: Offset| i64::try_from(start.0) == Ok(newest.0);
            marks.oldest = if moved.log_start == next {
                None
            } else {
                moved.oldest.or_else(|| is_newest(moved.log_start).then_some(newest.1))
            };
        }
        marks.rows_start = marks.rows_start.max(moved.rows_start.0);
        let txns_start = moved.txns_start.0.min(marks.log_start);
        marks.txns_start = marks.txns_start.max(txns_start);
        let freed = if moved.log_start == next {
            // Whatever the appends were said to count: nothing is left.
            row.retained_bytes
        } else {
            i64::try_from(moved.freed).unwrap_or(i64::MAX).min(row.retained_bytes)
        };
        if rises {
            row.retained_bytes -= freed;
            if let Some(queue) = self.queue_mut(queue) {
                queue.retained_bytes -= freed;
            }
        }
        Ok(())
    }

    /// Removes the dead letters of a partition: without it their rows cannot be loaded.
    pub(super) fn drop_dead_letters(&mut self, queue: QueueNumber, id: PartitionId) {
        let letters = self.queue_by_number(queue).map_or(Vec::new(), |queue| {
            let all = queue.dead_letters_at(id, i64::MIN..=i64::MAX);
            all.map(|row| (row.letter.failed, row.letter.id)).collect::<Vec<(_, Uuid)>>()
        });
        for key in letters {
            self.touch(RowKey::Dead(id, key.1));
            if let Some(queue) = self.queue_mut(queue) {
                queue.remove_dead(&key);
            }
        }
    }
}
