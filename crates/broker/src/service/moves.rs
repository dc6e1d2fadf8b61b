//! Calls that look at the state first and then send one command or several: dead letters and seeks.

use std::time::Duration;

use queen_model::DlqInsert;
use queen_planner::consume::Place;
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};
use queen_state::{Queue, State};

use super::{Broker, Handed, hand_over, push_answer};
use crate::api::{
    CallError, LetterRef, LetterSelect, PartitionRef, PushAnswer, PushBatch, PushItem, PushStatus,
    Replay, ReplayEnd, ReplayTo, Rollback, RollbackReason, Seek, SeekTo,
};
use crate::core::Shared;
use crate::cycle::{
    DeleteLettersCommand, Input, PartAnswer, SeekCommand, TransactionCommand, TransactionOutcome,
};
use crate::views;

/// Rows that one command changes at most: a plan must not hold up the others.
const ROWS_PER_COMMAND: usize = 1024;

/// A dead letter as a replay needs it, with its payload as it was pushed.
struct FoundLetter {
    letter: DlqInsert,
    partition: String,
}

impl Broker {
    pub(super) async fn replay_letter(
        &self,
        tenant: Tenant,
        of: LetterRef,
        to: ReplayTo,
        deadline: Duration,
    ) -> Result<Option<Replay>, CallError> {
        let found = self.read(move |shared| {
            let of = match of {
                LetterRef::Message { partition, transaction_id } => {
                    let partition = views::numbered(shared, partition);
                    LetterRef::Message { partition, transaction_id }
                }
                id @ LetterRef::Id(_) => id,
            };
            let mut found = find_letter(&shared.state.read(), tenant, &of);
            if let Some(FoundLetter { letter, partition }) = &mut found {
                // It is stored anew, as the queue that it goes to wants it.
                letter.payload = views::letter_payload(shared, letter, partition)?;
            }
            Ok(found)
        });
        let Some(FoundLetter { letter, partition }) = found.await? else { return Ok(None) };
        let (queue, partition) =
            (to.queue.unwrap_or_else(|| letter.queue.clone()), to.partition.unwrap_or(partition));
        let copy_id = format!("dlq:{}", letter.id);
        let item = PushItem {
            queue: &queue,
            partition: &partition,
            transaction_id: Some(&copy_id),
            payload: &letter.payload,
            producer_sub: None,
            trace_id: None,
        };
        let prepared = self.prepare(tenant, PushBatch::Items(&[item]));
        let end = match prepared {
            Err(CallError::Refused(refusal)) => {
                let (reason, error) = (RollbackReason::of(&refusal), refusal.to_string());
                Some(ReplayEnd::Refused(Rollback { reason, error }))
            }
            Err(error) => return Err(error),
            Ok(prepared) => {
                let handed = hand_over(prepared);
                let letter = Some((letter.queue.clone(), letter.id));
                self.send_replay(tenant, handed, letter, deadline).await?
            }
        };
        let DlqInsert { id, group, transaction_id, .. } = letter;
        Ok(end.map(|end| Replay { id, queue, partition, group, transaction_id, copy_id, end }))
    }

    async fn send_replay(
        &self,
        tenant: Tenant,
        handed: Handed,
        letter: Option<(String, Uuid)>,
        deadline: Duration,
    ) -> Result<Option<ReplayEnd>, CallError> {
        let Handed { parts, minted, places } = handed;
        let outcome = self.call(deadline, |reply| {
            let (acks, positions) = (Vec::new(), Vec::new());
            let command = TransactionCommand { tenant, acks, parts, positions, letter, reply };
            Input::Transaction(Box::new(command))
        });
        Ok(match outcome.await? {
            TransactionOutcome::LetterGone => None,
            TransactionOutcome::RolledBack(rollback) => Some(ReplayEnd::Refused(rollback)),
            TransactionOutcome::Duplicate(_, original) => {
                let status = PushStatus::Duplicate(original.offset);
                Some(ReplayEnd::Duplicate(PushAnswer { message_id: original.id, status }))
            }
            TransactionOutcome::Committed { parts, .. } => {
                let parts: Vec<PartAnswer> = parts.into_iter().map(Ok).collect();
                let place = places.first().copied().unwrap_or_default();
                Some(ReplayEnd::Moved(push_answer(place, &minted, &parts)))
            }
        })
    }

    pub(super) async fn remove_letters(
        &self,
        tenant: Tenant,
        select: LetterSelect,
        deadline: Duration,
    ) -> Result<u64, CallError> {
        let found = self.read(move |shared| {
            let select = match select {
                LetterSelect::Message { partition, transaction_id } => {
                    let partition = views::numbered(shared, partition);
                    LetterSelect::Message { partition, transaction_id }
                }
                queue @ LetterSelect::Queue { .. } => queue,
            };
            Ok(select_letters(&shared.state.read(), tenant, &select))
        });
        let Some((queue, ids)) = found.await? else { return Ok(0) };
        let mut removed = 0;
        for chunk in ids.chunks(ROWS_PER_COMMAND) {
            let (queue, ids) = (queue.clone(), chunk.to_vec());
            removed += self
                .call(deadline, |reply| {
                    Input::DeleteLetters(DeleteLettersCommand { tenant, queue, ids, reply })
                })
                .await?;
        }
        Ok(removed)
    }

    /// Moves a group's cursors; `None` without such a queue or partition.
    pub(super) async fn seek_group(
        &self,
        seek: Seek,
        deadline: Duration,
    ) -> Result<Option<u64>, CallError> {
        let Seek { tenant, group, queue, partition, to } = seek;
        queen_planner::limits::check_names(&queue, &group)?;
        let mut moved = 0;
        let mut from = Some(PartitionId(0));
        while let Some(first) = from {
            let (name, pin) = (queue.clone(), partition.clone());
            let found =
                self.read(move |shared| places(shared, (tenant, &name), pin.as_deref(), to, first));
            let Some((places, next)) = found.await? else { break };
            from = next;
            let (queue, group) = (queue.clone(), group.clone());
            moved += self
                .call(deadline, |reply| {
                    Input::Seek(SeekCommand { tenant, queue, group, places, reply })
                })
                .await?;
        }
        Ok((moved > 0).then_some(moved))
    }
}

fn letters_of_message<'s>(
    state: &'s State,
    tenant: Tenant,
    partition: PartitionRef,
    transaction_id: &'s str,
) -> Option<(&'s Queue, impl DoubleEndedIterator<Item = &'s DlqInsert>)> {
    // No partition has a UUID that was not found.
    let PartitionRef::Number(id) = partition else { return None };
    let queue = state.queue_by_number(state.partition(id)?.queue)?;
    let queue = Some(queue).filter(|queue| queue.tenant == tenant)?;
    let of = move |letter: &&DlqInsert| {
        letter.partition == id && letter.transaction_id == transaction_id
    };
    Some((queue, queue.dead_letters().map(|row| &row.letter).filter(of)))
}

fn find_letter(state: &State, tenant: Tenant, of: &LetterRef) -> Option<FoundLetter> {
    let letter = match of {
        LetterRef::Id(id) => state
            .queues(tenant)
            .find_map(|queue| queue.dead_letter(*id))
            .map(|row| row.letter.clone()),
        LetterRef::Message { partition, transaction_id } => {
            letters_of_message(state, tenant, *partition, transaction_id)?.1.next_back().cloned()
        }
    }?;
    let row = state.partition(letter.partition)?;
    let partition = state.partition_name(row).to_owned();
    Some(FoundLetter { letter, partition })
}

fn select_letters(
    state: &State,
    tenant: Tenant,
    select: &LetterSelect,
) -> Option<(String, Vec<Uuid>)> {
    match select {
        LetterSelect::Queue { queue, group } => {
            let row = state.queue(tenant, queue)?;
            let of = |letter: &&DlqInsert| group.as_ref().is_none_or(|name| *name == letter.group);
            let letters = row.dead_letters().map(|row| &row.letter).filter(of);
            Some((queue.clone(), letters.map(|letter| letter.id).collect()))
        }
        LetterSelect::Message { partition, transaction_id } => {
            let (queue, letters) = letters_of_message(state, tenant, *partition, transaction_id)?;
            Some((queue.name.to_string(), letters.map(|letter| letter.id).collect()))
        }
    }
}

/// A run of places to seek to, and the partition after it.
type Places = (Vec<(PartitionId, Place)>, Option<PartitionId>);

/// Where the next partitions of a queue are put, from `first` on.
fn places(
    shared: &Shared,
    (tenant, name): (Tenant, &str),
    pin: Option<&str>,
    to: SeekTo,
    first: PartitionId,
) -> Result<Option<Places>, CallError> {
    let (rows, next) = {
        let state = shared.state.read();
        let Some(queue) = state.queue(tenant, name) else { return Ok(None) };
        let ids: Vec<PartitionId> = match pin {
            Some(pin) => state.partition_named(queue, pin).into_iter().collect(),
            None => queue.partitions_from(first).take(ROWS_PER_COMMAND).collect(),
        };
        let next = ids.last().filter(|_| pin.is_none()).map(|last| PartitionId(last.0 + 1));
        let row = |id: PartitionId| {
            let row = state.partition(id)?;
            Some((id, row.created, row.last_created, row.next_offset()))
        };
        (ids.into_iter().filter_map(row).collect::<Vec<_>>(), next)
    };
    if rows.is_empty() {
        return Ok(None);
    }
    let route = queue_id(tenant, name);
    let place = |(id, created, last_created, end): (PartitionId, Micros, Micros, Offset)| {
        let place = match to {
            SeekTo::End => Place::End,
            SeekTo::Time(time) if created >= time => Place::Next(Offset(0)),
            // What is appended meanwhile is after the time, and stands from here on.
            SeekTo::Time(time) if last_created < time => Place::Next(end),
            SeekTo::Time(time) => {
                let qlog = shared.reader.qlog();
                let log = qlog.log_of(route, Some(id));
                let found = qlog.first_at_or_after(log, id, time);
                let found = found.map_err(|error| shared.damaged_read(&error.to_string()))?;
                Place::Next(found.map_or(end, |(offset, _)| offset))
            }
        };
        Ok((id, place))
    };
    let places = rows.into_iter().map(place).collect::<Result<Vec<_>, CallError>>()?;
    Ok(Some((places, next)))
}
