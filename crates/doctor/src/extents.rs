//! Which offsets of each partition the logs hold, against what the state says they must.

use std::collections::BTreeMap;

use queen_broker::recover::Opened;
use queen_record::hash::queue_id;
use queen_record::ids::{LogId, Offset, PartitionId};

/// The last run of offsets without a hole.
#[derive(Clone, Copy)]
struct Run {
    first: Offset,
    next: Offset,
}

/// The runs of all partitions. Memory: about 50 bytes for each partition that has messages.
#[derive(Default)]
pub(crate) struct Extents(BTreeMap<(LogId, PartitionId), Run>);

impl Extents {
    /// Takes the next record of a partition; the text says why it cannot follow the one before.
    ///
    /// A hole starts the run anew: it is no damage below what retention has given up, and is judged in the end.
    pub(crate) fn add(
        &mut self,
        log: LogId,
        partition: PartitionId,
        base: Offset,
        end: Offset,
    ) -> Result<(), String> {
        let run = self.0.entry((log, partition)).or_insert(Run { first: base, next: base });
        if base < run.next {
            let next = run.next;
            return Err(format!("partition {partition} has offset {base} again, {next} was due"));
        }
        if base > run.next {
            run.first = base;
        }
        run.next = end;
        Ok(())
    }

    /// What is missing or too much: the log of the partition, and a text.
    pub(crate) fn against(&self, opened: &Opened) -> Vec<(LogId, String)> {
        let mut wrong = Vec::new();
        let state = &opened.state;
        for (id, row) in state.partitions() {
            let (Some(row), Some(queue)) = (state.partition(id), state.queue_by_number(row.queue))
            else {
                continue;
            };
            let log = opened.qlog.log_of(queue_id(queue.tenant, &queue.name), Some(id));
            let (start, next) = (row.log_start(), row.next_offset());
            let name = state.partition_name(row);
            let who = format!("queue {:?}, partition {name:?} ({id})", queue.name);
            match self.0.get(&(log, id)) {
                Some(run) if run.next > next => {
                    let more = run.next;
                    wrong.push((
                        log,
                        format!("{who}: messages up to {more}, the store knows {next}"),
                    ));
                }
                _ if start >= next => {}
                Some(run) if run.next == next && run.first <= start => {}
                Some(run) if run.next == next => {
                    let first = run.first;
                    let text =
                        format!("{who}: not all messages from offset {start} to {first} are there");
                    wrong.push((log, text));
                }
                Some(run) => {
                    let end = run.next;
                    wrong.push((
                        log,
                        format!("{who}: messages from offset {end} to {next} are missing"),
                    ));
                }
                None => {
                    let text = format!("{who}: messages from offset {start} to {next} are missing");
                    wrong.push((log, text));
                }
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_that_come_again_are_refused_and_holes_are_not() {
        let mut extents = Extents::default();
        let mut add = |base, end| extents.add(LogId(2), PartitionId(1), Offset(base), Offset(end));
        assert_eq!(add(5, 7), Ok(()));
        assert_eq!(add(7, 8), Ok(()));
        assert_eq!(add(10, 12), Ok(()));
        assert!(add(11, 13).unwrap_err().contains("offset 11 again, 12 was due"));
        let run = extents.0[&(LogId(2), PartitionId(1))];
        assert_eq!((run.first, run.next), (Offset(10), Offset(12)));
    }
}
