//! Reads by offset: what several partitions hold from given offsets on.
//!
//! A read goes on where it stopped when it is asked again, so one that waits reads every message once.

use queen_qlog::ReadLimit;
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant};
use queen_state::State;

use super::stored::{check_missing, damaged, detach, is_retained, messages_of};
use crate::api::{
    Bounds, CallError, FetchEntry, FetchError, FetchRequest, Fetched, Message, OffsetFound,
    OffsetQuery, escaped_len,
};
use crate::arrivals::Watched;
use crate::core::Shared;

/// Messages of one entry at most.
const MESSAGES_MAX: usize = 10_000;
/// Bytes that the messages of one call take up in its answer, whatever it asks for: what is left over is asked for again.
const HELD_MAX: u64 = 32 * 1024 * 1024;
/// Bytes of a message beside its payload and its texts.
const MESSAGE_OVERHEAD: u64 = 160;
/// Record bytes that one call reads: few wanted messages may lie in large records.
const READ_MAX: u64 = 256 * 1024 * 1024;
/// Record bytes of one read of the log.
const WINDOW_BYTES: u64 = 1024 * 1024;
/// Entries looked up under one hold of the state's lock.
const ENTRIES_PER_HOLD: usize = 256;

/// A fetch under way.
pub(crate) struct Fetch {
    tenant: Tenant,
    readings: Vec<Reading>,
    room: Room,
    bytes_min: u64,
}

/// What the call as a whole may still take.
struct Room {
    /// Payload bytes, as its caller wants it.
    bytes: u64,
    /// Bytes that its messages take up here.
    held: u64,
    /// Record bytes read.
    read: u64,
    /// Payload bytes taken so far; a message counts at least 1.
    taken: u64,
}

impl Room {
    fn is_spent(&self) -> bool {
        self.bytes == 0 || self.held == 0 || self.read == 0
    }
}

struct Reading {
    entry: FetchEntry,
    id: Option<PartitionId>,
    next: u64,
    bytes_left: u64,
    full: bool,
    answer: Fetched,
}

impl Fetch {
    pub(crate) fn new(request: FetchRequest) -> Self {
        let reading = |entry: FetchEntry| Reading {
            id: None,
            next: entry.offset,
            bytes_left: entry.bytes_max,
            full: false,
            answer: Fetched::default(),
            entry,
        };
        Self {
            tenant: request.tenant,
            room: Room {
                bytes: request.bytes_max.max(1),
                held: HELD_MAX,
                read: READ_MAX,
                taken: 0,
            },
            bytes_min: request.bytes_min,
            readings: request.entries.into_iter().map(reading).collect(),
        }
    }

    /// Reads what is there.
    pub(crate) fn pass(&mut self, shared: &Shared) -> Result<(), CallError> {
        for readings in self.readings.chunks_mut(ENTRIES_PER_HOLD) {
            let state = shared.state.read();
            for reading in readings {
                reading.locate(&state, self.tenant);
            }
        }
        for at in 0..self.readings.len() {
            self.read(shared, at)?;
        }
        Ok(())
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_enough(&self) -> bool {
        self.room.taken >= self.bytes_min
            || self.room.is_spent()
            || self.readings.iter().any(|reading| reading.answer.error.is_some())
            || self.readings.iter().all(|reading| reading.full)
    }

    /// What more messages would arrive in.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        let open = self.readings.iter().filter(|reading| !reading.full);
        let mut watched: Vec<Watched> = open
            .map(|reading| {
                let FetchEntry { queue, partition, .. } = &reading.entry;
                let by_name = || Watched::Name(queue_id(self.tenant, queue), (&**partition).into());
                reading.id.map_or_else(by_name, Watched::Partition)
            })
            .collect();
        watched.sort_unstable();
        watched.dedup();
        watched
    }

    pub(crate) fn into_answer(self) -> Vec<Fetched> {
        self.readings.into_iter().map(|reading| reading.answer).collect()
    }

    /// Reads one entry on as far as it may go.
    fn read(&mut self, shared: &Shared, at: usize) -> Result<(), CallError> {
        let Some(reading) = self.readings.get_mut(at) else { return Ok(()) };
        let Some(id) = reading.id.filter(|_| reading.answer.error.is_none()) else { return Ok(()) };
        let qlog = shared.reader.qlog();
        let log = qlog.log_of(queue_id(self.tenant, &reading.entry.queue), Some(id));
        let end = reading.answer.bounds.high_watermark;
        while reading.next < end && !reading.full && !self.room.is_spent() {
            let room = MESSAGES_MAX.saturating_sub(reading.answer.messages.len()) as u64;
            let limit = ReadLimit {
                messages: u32::try_from(room.min(end - reading.next)).unwrap_or(u32::MAX),
                bytes: reading.bytes_left.min(self.room.bytes).min(WINDOW_BYTES),
            };
            let records = qlog.read(log, id, Offset(reading.next), limit);
            let records = match records {
                Ok(records) => records,
                // What retention removed while this read may look like a gap.
                Err(_) if !is_retained(shared, id, reading.next) => {
                    reading.full = true;
                    return Ok(());
                }
                Err(error) => return Err(damaged(shared, error)),
            };
            if records.first().is_none_or(|record| record.base.0 > reading.next) {
                reading.full = true;
                return check_missing(shared, id, reading.next);
            }
            for record in &records {
                self.room.read = self.room.read.saturating_sub(record.payload.len() as u64);
                let first = reading.answer.messages.len();
                let raw_len = messages_of(shared, id, record, reading.next..end, |shown| {
                    reading.take(shown.message, &mut self.room)
                })?;
                let taken = reading.answer.messages.get_mut(first..).unwrap_or_default();
                let used: usize = taken.iter().map(|message| message.data.len()).sum();
                if used < raw_len / 2 {
                    taken.iter_mut().for_each(detach);
                }
                if reading.full || self.room.is_spent() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Reading {
    /// Looks up the partition as it is now.
    fn locate(&mut self, state: &State, tenant: Tenant) {
        let Some(queue) = state.queue(tenant, &self.entry.queue) else {
            self.fail(FetchError::UnknownQueue, Bounds::default());
            return;
        };
        let id = state.partition_named(queue, &self.entry.partition);
        // Another partition of that name begins anew: what was read is of the one before.
        self.full |= !self.answer.messages.is_empty() && self.id != id;
        self.id = id;
        let row = id.and_then(|id| state.partition(id));
        let Some(row) = row else { return };
        let bounds = bounds(row);
        self.answer.bounds = bounds;
        let is_new = self.answer.messages.is_empty();
        if is_new && !(bounds.log_start..=bounds.high_watermark).contains(&self.next) {
            self.fail(FetchError::OffsetOutOfRange, bounds);
        }
    }

    fn fail(&mut self, error: FetchError, bounds: Bounds) {
        self.answer = Fetched { messages: Vec::new(), bounds, error: Some(error) };
    }

    /// Takes the next message if there is room for it; whether there may be room for another.
    fn take(&mut self, message: Message, room: &mut Room) -> bool {
        let bytes = (message.data.len() as u64).max(1);
        let texts = escaped_len(&message.transaction_id);
        let held = bytes + texts + MESSAGE_OVERHEAD;
        let fits = bytes <= self.bytes_left && bytes <= room.bytes && held <= room.held;
        if !fits && !self.answer.messages.is_empty() {
            self.full = true;
            return false;
        }
        self.answer.messages.push(message);
        self.next += 1;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        room.bytes = room.bytes.saturating_sub(bytes);
        room.held = room.held.saturating_sub(held);
        room.taken = room.taken.saturating_add(bytes);
        self.full = self.bytes_left == 0 || self.answer.messages.len() >= MESSAGES_MAX;
        !self.full && !room.is_spent()
    }
}

fn bounds(row: &queen_state::Partition) -> Bounds {
    Bounds { log_start: row.log_start().0, high_watermark: row.next_offset().0 }
}

/// The first offset at or after a time, one answer per question.
pub(crate) fn offsets(
    shared: &Shared,
    tenant: Tenant,
    queries: &[OffsetQuery],
) -> Result<Vec<OffsetFound>, CallError> {
    queries.iter().map(|query| offset(shared, tenant, query)).collect()
}

fn offset(shared: &Shared, tenant: Tenant, query: &OffsetQuery) -> Result<OffsetFound, CallError> {
    let (id, bounds, newest) = {
        let state = shared.state.read();
        let Some(queue) = state.queue(tenant, &query.queue) else {
            return Ok(OffsetFound { unknown: true, ..OffsetFound::default() });
        };
        let id = state.partition_named(queue, &query.partition);
        match id.and_then(|id| Some((id, state.partition(id)?))) {
            Some((id, row)) => (id, bounds(row), row.last_created),
            None => return Ok(OffsetFound::default()),
        }
    };
    let none = OffsetFound { bounds, ..OffsetFound::default() };
    if query.at > newest || bounds.log_start >= bounds.high_watermark {
        return Ok(none);
    }
    let qlog = shared.reader.qlog();
    let log = qlog.log_of(queue_id(tenant, &query.queue), Some(id));
    let found = qlog.first_at_or_after(log, id, query.at);
    let mut found = found.map_err(|error| damaged(shared, error))?;
    if found.is_some_and(|(base, _)| base.0 < bounds.log_start) {
        // Its record may hold the oldest retained message, or lie below it and not be removed yet.
        let place = qlog.place_of(log, id, Offset(bounds.log_start));
        let place = place.map_err(|error| damaged(shared, error))?;
        let start =
            |place: queen_qlog::Place| (place.base.max(Offset(bounds.log_start)), place.created);
        found = place.map(start);
    }
    let found = found.filter(|(offset, _)| offset.0 < bounds.high_watermark);
    let found: Option<(u64, Micros)> = found.map(|(offset, created)| (offset.0, created));
    Ok(OffsetFound { found, ..none })
}
