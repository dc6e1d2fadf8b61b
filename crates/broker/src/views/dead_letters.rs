//! Pages of dead letters.

use bytes::Bytes;
use queen_model::DlqInsert;
use queen_record::ids::{Micros, Uuid};
use queen_state::{DeadLetterRow, Queue, State};

use super::opened::{opened, place};
use crate::api::{CallError, DeadLetter, DeadLetterPage, DeadLetterQuery, escaped_len};
use crate::core::Shared;

/// Bytes of a page of dead letters as JSON at most; one letter is always shown.
const BYTES_MAX: u64 = 16 << 20;
/// Bytes of a letter in an answer at most, its payload and its texts aside.
const LETTER_JSON_MAX: u64 = 600;

/// A page of dead letters, newest failure first; shorter than asked for when its payloads are large.
///
/// # Errors
/// A payload of the page does not open.
pub(crate) fn dead_letters(
    shared: &Shared,
    query: &DeadLetterQuery,
) -> Result<DeadLetterPage, CallError> {
    let (mut page, encrypted) = stored_dead_letters(shared, query);
    for (letter, encrypted) in page.rows.iter_mut().zip(encrypted) {
        let place = || place(&letter.queue, &letter.partition, letter.offset);
        letter.payload = opened(shared, (&letter.payload, encrypted), place)?;
    }
    Ok(page)
}

/// A dead letter's payload as it was pushed.
///
/// # Errors
/// It does not open.
pub(crate) fn letter_payload(
    shared: &Shared,
    letter: &DlqInsert,
    partition: &str,
) -> Result<Bytes, CallError> {
    let place = || place(&letter.queue, partition, letter.offset);
    opened(shared, (&letter.payload, letter.encrypted), place)
}

/// The page with payloads as stored, and which of them are sealed.
fn stored_dead_letters(shared: &Shared, query: &DeadLetterQuery) -> (DeadLetterPage, Vec<bool>) {
    let state = shared.state.read();
    let mut rows: Vec<(&Queue, &DeadLetterRow)> = state
        .queues(query.tenant)
        .filter(|queue| query.queue.as_ref().is_none_or(|name| **name == *queue.name))
        .flat_map(|queue| queue.dead_letters().map(move |row| (queue, row)))
        .filter(|(_, row)| matches_query(&state, query, row))
        .collect();
    rows.sort_by(|(_, a), (_, b)| {
        (b.letter.failed, b.letter.id).cmp(&(a.letter.failed, a.letter.id))
    });
    let total = rows.len();
    let mut left = BYTES_MAX;
    let fits = |(_, row): &(&Queue, &DeadLetterRow)| {
        let had = left;
        let bytes = json_len(&state, row);
        left = left.saturating_sub(bytes);
        had == BYTES_MAX || bytes <= had
    };
    let page = rows.into_iter().skip(query.offset).take(query.limit).take_while(fits);
    let stored = |row: &DeadLetterRow| (dead_letter(&state, row), row.letter.encrypted);
    let (rows, encrypted) = page.map(|(_, row)| stored(row)).unzip();
    (DeadLetterPage { rows, total }, encrypted)
}

/// Bytes of a letter in an answer at most.
fn json_len(state: &State, row: &DeadLetterRow) -> u64 {
    let letter = &row.letter;
    let partition = state.partition(letter.partition);
    let partition = partition.map_or(0, |row| escaped_len(state.partition_name(row)));
    let names = escaped_len(&letter.queue) + partition + escaped_len(&letter.group);
    let texts = escaped_len(&letter.transaction_id) + escaped_len(&letter.error);
    // The payload is shown twice.
    LETTER_JSON_MAX + names + texts + 2 * letter.payload.len() as u64
}

fn matches_query(state: &State, query: &DeadLetterQuery, row: &DeadLetterRow) -> bool {
    let letter = &row.letter;
    let partition =
        || state.partition(letter.partition).map_or("", |row| state.partition_name(row));
    query.group.as_ref().is_none_or(|group| *group == letter.group)
        && query.from.is_none_or(|from| letter.failed >= from)
        && query.to.is_none_or(|to| letter.failed < to)
        && query.partition.as_ref().is_none_or(|name| name == partition())
}

fn dead_letter(state: &State, row: &DeadLetterRow) -> DeadLetter {
    let letter = &row.letter;
    let partition = state.partition(letter.partition).map_or("", |row| state.partition_name(row));
    DeadLetter {
        id: letter.id,
        queue: letter.queue.clone(),
        partition: partition.to_owned(),
        partition_id: letter.partition,
        group: letter.group.clone(),
        offset: letter.offset,
        message_id: letter.message_id,
        transaction_id: letter.transaction_id.clone(),
        payload: letter.payload.clone(),
        error: letter.error.clone(),
        retries: letter.retries,
        failed: letter.failed,
        created: letter.message_id.map(created_of),
    }
}

/// A `UUIDv7` begins with its time.
fn created_of(id: Uuid) -> Micros {
    let millis = queen_planner::push::tick_of(id) >> 12;
    Micros(i64::try_from(millis).unwrap_or(0).saturating_mul(1000))
}
