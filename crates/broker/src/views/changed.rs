//! Partitions that were written lately, page by page, and the time up to which pages are complete.
//!
//! A page is a walk in creation order. Its cursor names the queue's id and the last partition that was looked at, so
//! that a page may end before it is full: a walk is bounded whatever `since` passes over.

use std::ops::ControlFlow;

use queen_record::hash::checksum;
use queen_record::ids::{PartitionId, Tenant, Uuid};

use super::walk::{self, At, Target, Walked};
use crate::api::{Changed, ChangedError, ChangedPage, ChangedPartition, ChangedQuery, escaped_len};
use crate::core::Shared;

/// Partitions that one call looks at, over all its questions.
const VISITS_MAX: usize = 100_000;
/// Rows of one answer, over all its questions.
const ROWS_MAX: usize = 20_000;
/// Bytes of the rows of one answer as JSON, over all its questions, and one row of each beyond them.
const BYTES_MAX: usize = 8 << 20;
/// Bytes of a row in an answer at most, its name aside.
const ROW_JSON_MAX: u64 = 200;

/// What a call, or one question of it, may still take.
#[derive(Clone, Copy)]
struct Room {
    visits: usize,
    rows: usize,
    bytes: usize,
}

/// One page per question.
pub(crate) fn changed(shared: &Shared, tenant: Tenant, queries: &[ChangedQuery]) -> Changed {
    // Read first: whatever is applied after this is younger, and whatever is not younger is seen below.
    let safe_time = shared.state.read().max_created();
    let mut left = Room { visits: VISITS_MAX, rows: ROWS_MAX, bytes: BYTES_MAX };
    let mut pages = Vec::with_capacity(queries.len());
    for (done, query) in queries.iter().enumerate() {
        // Every question gets on, whatever those before it took.
        let share = |left: usize| (left / (queries.len() - done)).max(1);
        let Room { visits, rows, bytes } = left;
        let room = Room { visits: share(visits), rows: share(rows), bytes: share(bytes) };
        let page = page(shared, tenant, query, room);
        if let Ok((_, taken)) = &page {
            left.visits = visits.saturating_sub(taken.visits);
            left.rows = rows.saturating_sub(taken.rows);
            left.bytes = bytes.saturating_sub(taken.bytes);
        }
        pages.push(page.map(|(page, _)| page));
    }
    Changed { safe_time, pages }
}

/// The page, and what it took.
fn page(
    shared: &Shared,
    tenant: Tenant,
    query: &ChangedQuery,
    room: Room,
) -> Result<(ChangedPage, Room), ChangedError> {
    let found = {
        let state = shared.state.read();
        state.queue(tenant, &query.queue).map(|queue| (Target::of(queue), queue.id))
    };
    let (target, queue_id) = found.ok_or(ChangedError::UnknownQueue)?;
    let mut from = match query.after.as_deref().filter(|after| !after.is_empty()) {
        Some(after) => read_cursor(after, queue_id).ok_or(ChangedError::BadCursor)?,
        None => PartitionId(0),
    };
    let rows = query.limit.min(room.rows);
    let (mut page, mut taken) = (ChangedPage::default(), Room { visits: 0, rows: 0, bytes: 0 });
    let mut visit = |at: At<'_>| {
        taken.visits += 1;
        if query.since.is_none_or(|since| at.row.last_created >= since) {
            taken.rows += 1;
            taken.bytes += json_len(at.name());
            page.partitions.push(row(at));
        }
        let full = taken.rows >= rows || taken.visits >= room.visits || taken.bytes >= room.bytes;
        if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let next = loop {
        match walk::hold(shared, &target, from, room.visits, &mut visit) {
            Walked::Ended => break None,
            Walked::Paused(at) => from = at,
            Walked::Stopped(at) => break Some(at),
        }
    };
    page.next = next.map(|next| write_cursor(queue_id, next));
    Ok((page, taken))
}

/// Bytes of a row in an answer at most.
fn json_len(name: &str) -> usize {
    usize::try_from(ROW_JSON_MAX + escaped_len(name)).unwrap_or(usize::MAX)
}

fn row(at: At<'_>) -> ChangedPartition {
    let row = at.row;
    ChangedPartition {
        name: at.name().to_owned(),
        uuid: row.uuid,
        last_offset: row.last_offset,
        log_start: row.log_start().0,
        last_write: row.last_created,
    }
}

/// The queue's id, the partition's number and a checksum over both, in hexadecimal digits.
fn write_cursor(queue: Uuid, next: PartitionId) -> String {
    let mut bytes = queue.0.to_vec();
    bytes.extend_from_slice(&next.0.to_le_bytes());
    bytes.extend_from_slice(&seal(&bytes).to_le_bytes());
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
}

/// The partition that a cursor of this queue names; `None` for anything else.
fn read_cursor(text: &str, queue: Uuid) -> Option<PartitionId> {
    let mut bytes = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let (id, number) = body.split_last_chunk::<8>()?;
    let is_ours = id == queue.0 && u64::from_le_bytes(*sum) == seal(body);
    is_ours.then(|| PartitionId(u64::from_le_bytes(*number)))
}

/// Tells a cursor from a text that happens to have its shape.
fn seal(body: &[u8]) -> u64 {
    checksum(&[body, b"partitions/changed"].concat())
}

fn digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0')
}

fn value(digit: u8) -> Option<u8> {
    matches!(digit, b'0'..=b'9' | b'a'..=b'f').then(|| {
        let value = char::from(digit).to_digit(16).unwrap_or(0);
        u8::try_from(value).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_reads_back_for_its_queue_only(id: [u8; 16], other: [u8; 16], next: u64) {
            let text = write_cursor(Uuid(id), PartitionId(next));
            prop_assert_eq!(read_cursor(&text, Uuid(id)), Some(PartitionId(next)));
            prop_assert_eq!(read_cursor(&text, Uuid(other)).is_some(), id == other);
        }

        #[test]
        fn a_changed_cursor_is_none(id: [u8; 16], next: u64, at in 0usize..64, to in "[0-9a-fA-Z]") {
            let text = write_cursor(Uuid(id), PartitionId(next));
            let mut changed = text.clone();
            changed.replace_range(at..=at, &to);
            prop_assert_eq!(read_cursor(&changed, Uuid(id)).is_some(), changed == text);
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,80}") {
            prop_assert_eq!(read_cursor(&text, Uuid([7; 16])), None);
        }
    }
}
