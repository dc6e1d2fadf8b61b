//! Stored rows: what the checkpoint holds for each table.
//!
//! Every value begins with a version byte; numbers are LEB128, signed ones zigzag, ids raw, text counted. Keys are
//! big-endian numbers, so that they sort as the tables are walked.

use std::num::NonZeroU32;

use queen_model::{
    DlqInsert, Lease, Released, dead_letter_from_bytes, dead_letter_to_bytes, encode_options,
    group_from_bytes, group_to_bytes, options_from_bytes,
};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};

use crate::cursor::{Busy, Cursor, GroupNumber};
use crate::partition::{Marks, Partition, QueueNumber};
use crate::queue::{DeadLetterRow, Group, Queue};

const VERSION: u8 = 1;
/// Of a dead letter whose payload is an encrypted envelope; laid out as version 1.
const VERSION_ENCRYPTED: u8 = 2;

/// Why a stored row cannot be taken. The bytes passed their checksum: a newer build wrote them, or a bug did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RowError(pub String);

impl From<queen_model::DecodeError> for RowError {
    fn from(error: queen_model::DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// Appends numbers in their stored form.
pub(crate) trait PutRow {
    fn put_number(&mut self, value: u64);
    fn put_signed(&mut self, value: i64);
    fn put_text(&mut self, text: &str);
}

impl PutRow for Vec<u8> {
    fn put_number(&mut self, mut value: u64) {
        loop {
            let low = u8::try_from(value & 0x7f).unwrap_or(0);
            value >>= 7;
            if value == 0 {
                return self.push(low);
            }
            self.push(low | 0x80);
        }
    }

    fn put_signed(&mut self, value: i64) {
        self.put_number(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    fn put_text(&mut self, text: &str) {
        self.put_number(text.len() as u64);
        self.extend_from_slice(text.as_bytes());
    }
}

/// Reads a stored row from its front.
pub(crate) struct TakeRow<'a>(&'a [u8]);

impl<'a> TakeRow<'a> {
    /// Starts behind the version byte.
    pub(crate) fn versioned(bytes: &'a [u8]) -> Result<Self, RowError> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => Ok(Self(rest)),
            Some((version, _)) => {
                Err(RowError(format!("row version {version} is newer than this build")))
            }
            None => Err(RowError("the row is empty".to_owned())),
        }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], RowError> {
        let (found, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| RowError(format!("the row ends {len} bytes early")))?;
        self.0 = rest;
        Ok(found)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, RowError> {
        Ok(self.bytes(1)?.first().copied().unwrap_or_default())
    }

    pub(crate) fn number(&mut self) -> Result<u64, RowError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RowError("a number has more than 64 bits".to_owned()))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, RowError> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(crate) fn narrow<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, RowError> {
        let value = self.number()?;
        T::try_from(value).map_err(|_| RowError(format!("{what} {value} is out of range")))
    }

    pub(crate) fn nonzero(&mut self, what: &str) -> Result<NonZeroU32, RowError> {
        self.narrow::<u32>(what).and_then(|value| {
            NonZeroU32::new(value).ok_or_else(|| RowError(format!("{what} is 0")))
        })
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, RowError> {
        let mut id = [0; 16];
        id.copy_from_slice(self.bytes(16)?);
        Ok(Uuid(id))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, RowError> {
        let len = self.narrow::<usize>("a length")?;
        std::str::from_utf8(self.bytes(len)?).map_err(|error| RowError(error.to_string()))
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn end(self) -> Result<(), RowError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(RowError(format!("{} bytes are left over", self.0.len())))
    }
}

/// Key of a row numbered by up to two numbers.
#[expect(clippy::big_endian_bytes, reason = "keys must sort as their numbers do")]
pub(crate) fn key_u32(number: u32, then: Option<u32>) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    if let Some(then) = then {
        key.extend_from_slice(&then.to_be_bytes());
    }
    key
}

/// Key of a row of a partition.
#[expect(clippy::big_endian_bytes, reason = "keys must sort as their numbers do")]
pub(crate) fn key_partition(id: PartitionId, then: &[u8]) -> Vec<u8> {
    let mut key = id.0.to_be_bytes().to_vec();
    key.extend_from_slice(then);
    key
}

/// Reads big-endian numbers from a key.
#[expect(clippy::big_endian_bytes, reason = "keys must sort as their numbers do")]
pub(crate) fn split_u32(key: &[u8]) -> Result<(u32, &[u8]), RowError> {
    let (head, rest) =
        key.split_first_chunk::<4>().ok_or_else(|| RowError("the key is short".to_owned()))?;
    Ok((u32::from_be_bytes(*head), rest))
}

/// Reads a partition number from a key.
#[expect(clippy::big_endian_bytes, reason = "keys must sort as their numbers do")]
pub(crate) fn split_partition(key: &[u8]) -> Result<(PartitionId, &[u8]), RowError> {
    let (head, rest) =
        key.split_first_chunk::<8>().ok_or_else(|| RowError("the key is short".to_owned()))?;
    Ok((PartitionId(u64::from_be_bytes(*head)), rest))
}

pub(crate) fn queue_row(queue: &Queue) -> Vec<u8> {
    let mut row = vec![VERSION];
    row.extend_from_slice(&queue.tenant.0.0);
    row.put_text(&queue.name);
    row.extend_from_slice(&queue.id.0);
    row.put_signed(queue.created.0);
    row.put_number(u64::from(queue.next_group));
    row.push(u8::from(queue.deleted));
    encode_options(&queue.options, &mut row);
    row
}

pub(crate) fn queue_from_row(number: NonZeroU32, row: &[u8]) -> Result<Queue, RowError> {
    let mut take = TakeRow::versioned(row)?;
    let tenant = Tenant(take.uuid()?);
    let name = take.text()?.to_owned();
    let mut queue = Queue::new(QueueNumber(number), tenant, &name, take.uuid()?);
    queue.created = Micros(take.signed()?);
    queue.next_group = take.nonzero("next group")?.get();
    queue.deleted = take.byte()? != 0;
    let (options, used) = options_from_bytes(take.0)?;
    queue.options = options;
    take.bytes(used)?;
    take.end()?;
    Ok(queue)
}

pub(crate) fn group_row(group: &Group) -> Vec<u8> {
    let mut row = vec![VERSION];
    row.put_text(&group.name);
    row.put_number(group.sweep_from.map_or(0, |from| from + 1));
    row.push(u8::from(group.subscription.is_some()));
    if let Some(subscription) = &group.subscription {
        group_to_bytes(subscription, &mut row);
    }
    row
}

pub(crate) fn group_from_row(number: GroupNumber, row: &[u8]) -> Result<Group, RowError> {
    let mut take = TakeRow::versioned(row)?;
    let name = take.text()?.into();
    let sweep_from = take.number()?.checked_sub(1);
    let subscription = match take.byte()? {
        0 => {
            take.end()?;
            None
        }
        _ => Some(group_from_bytes(take.rest())?),
    };
    Ok(Group { number, name, subscription, cursor_count: 0, sweep_from })
}

pub(crate) fn partition_row(partition: &Partition, name: &str) -> Vec<u8> {
    let mut row = Vec::with_capacity(96 + name.len());
    row.push(VERSION);
    row.put_number(u64::from(partition.queue.0.get()));
    row.extend_from_slice(&partition.uuid.0);
    row.put_text(name);
    row.put_signed(partition.last_offset);
    row.put_signed(partition.created.0);
    row.put_signed(partition.last_created.0);
    row.put_signed(partition.retained_bytes);
    put_marks(partition.marks.as_deref(), &mut row);
    row.push(u8::from(partition.cursor.is_some()));
    if let Some(cursor) = &partition.cursor {
        put_cursor(cursor, &mut row);
    }
    row
}

/// Reads a partition row; returns it with its name, which the caller stores in the queue.
pub(crate) fn partition_from_row(row: &[u8]) -> Result<(Partition, &str), RowError> {
    let mut take = TakeRow::versioned(row)?;
    let queue = QueueNumber(take.nonzero("queue number")?);
    let uuid = take.uuid()?;
    let name = take.text()?;
    let mut partition = Partition {
        queue,
        name_at: 0,
        name_len: 0,
        uuid,
        last_offset: take.signed()?,
        created: Micros(take.signed()?),
        last_created: Micros(take.signed()?),
        retained_bytes: take.signed()?,
        marks: None,
        cursor: None,
    };
    partition.marks = take_marks(&mut take)?.map(Box::new);
    if take.byte()? != 0 {
        partition.cursor = Some(take_cursor(&mut take)?);
    }
    take.end()?;
    Ok((partition, name))
}

const NO_MARKS: u8 = 0;
const MARKS: u8 = 1;
const MARKS_WITHOUT_OLDEST: u8 = 2;

fn put_marks(marks: Option<&Marks>, row: &mut Vec<u8>) {
    let Some(marks) = marks else { return row.push(NO_MARKS) };
    row.push(if marks.oldest.is_some() { MARKS } else { MARKS_WITHOUT_OLDEST });
    row.put_number(marks.log_start);
    row.put_number(marks.txns_start);
    row.put_number(marks.rows_start);
    if let Some(oldest) = marks.oldest {
        row.put_signed(oldest.0);
    }
}

fn take_marks(take: &mut TakeRow<'_>) -> Result<Option<Marks>, RowError> {
    let kind = take.byte()?;
    if kind == NO_MARKS {
        return Ok(None);
    }
    if kind > MARKS_WITHOUT_OLDEST {
        return Err(RowError(format!("marks of kind {kind} are newer than this build")));
    }
    Ok(Some(Marks {
        log_start: take.number()?,
        txns_start: take.number()?,
        rows_start: take.number()?,
        oldest: if kind == MARKS { Some(Micros(take.signed()?)) } else { None },
    }))
}

pub(crate) fn cursor_row(cursor: &Cursor) -> Vec<u8> {
    let mut row = vec![VERSION];
    put_cursor(cursor, &mut row);
    row
}

pub(crate) fn cursor_from_row(row: &[u8]) -> Result<Cursor, RowError> {
    let mut take = TakeRow::versioned(row)?;
    let cursor = take_cursor(&mut take)?;
    take.end()?;
    Ok(cursor)
}

fn put_cursor(cursor: &Cursor, row: &mut Vec<u8>) {
    row.put_number(u64::from(cursor.group.0.get()));
    row.put_signed(cursor.committed);
    row.put_number(cursor.consumed);
    row.put_signed(cursor.created.0);
    row.push(u8::from(cursor.released().is_some()));
    if let Some(released) = cursor.released() {
        row.extend_from_slice(&released.worker.0);
        row.put_number(released.low.0);
        row.put_number(released.high.0);
    }
    let Some(busy) = cursor.busy.as_deref() else { return row.push(0) };
    row.push(if busy.lease.is_some() { 2 } else { 1 });
    if let Some(lease) = busy.lease {
        row.extend_from_slice(&lease.worker.0);
        row.put_number(lease.batch_end.0);
        row.put_signed(lease.expires.0);
        row.put_signed(lease.acquired.0);
        row.push(u8::from(lease.conflated));
    }
    row.put_number(u64::from(busy.retries));
    row.put_number(busy.attempt_offset.map_or(0, |offset| offset.0 + 1));
    row.put_number(u64::from(busy.attempts));
    row.put_text(&busy.metadata);
}

fn take_cursor(take: &mut TakeRow<'_>) -> Result<Cursor, RowError> {
    let group = GroupNumber(take.nonzero("group number")?);
    let committed = take.signed()?;
    let consumed = take.number()?;
    let created = Micros(take.signed()?);
    let released = match take.byte()? {
        0 => Released { worker: queen_model::NIL, low: Offset(0), high: Offset(0) },
        _ => Released {
            worker: take.uuid()?,
            low: Offset(take.number()?),
            high: Offset(take.number()?),
        },
    };
    let busy = match take.byte()? {
        0 => None,
        kind => Some(Box::new(take_busy(take, kind == 2)?)),
    };
    Ok(Cursor { group, committed, consumed, created, released, busy })
}

fn take_busy(take: &mut TakeRow<'_>, leased: bool) -> Result<Busy, RowError> {
    let lease = if leased {
        Some(Lease {
            worker: take.uuid()?,
            batch_end: Offset(take.number()?),
            expires: Micros(take.signed()?),
            acquired: Micros(take.signed()?),
            conflated: take.byte()? != 0,
        })
    } else {
        None
    };
    Ok(Busy {
        lease,
        retries: take.narrow("retry count")?,
        attempt_offset: take.number()?.checked_sub(1).map(Offset),
        attempts: take.narrow("attempt count")?,
        metadata: take.text()?.to_owned(),
    })
}

pub(crate) fn dead_letter_row(row: &DeadLetterRow) -> Vec<u8> {
    let mut bytes = vec![if row.letter.encrypted { VERSION_ENCRYPTED } else { VERSION }];
    bytes.put_number(u64::from(row.group.0.get()));
    dead_letter_to_bytes(&row.letter, &mut bytes);
    bytes
}

pub(crate) fn dead_letter_from_row(bytes: &[u8]) -> Result<DeadLetterRow, RowError> {
    let (encrypted, mut take) = match bytes.split_first() {
        Some((&VERSION_ENCRYPTED, rest)) => (true, TakeRow(rest)),
        _ => (false, TakeRow::versioned(bytes)?),
    };
    let group = GroupNumber(take.nonzero("group number")?);
    let letter = dead_letter_from_bytes(take.rest())?;
    Ok(DeadLetterRow { group, letter: DlqInsert { encrypted, ..letter } })
}

/// The scalars, as one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scalars {
    pub(crate) applied: u64,
    pub(crate) term: u64,
    pub(crate) next_partition: u64,
    pub(crate) next_queue: u32,
    pub(crate) kv_version_next: u64,
    pub(crate) last_now: Micros,
    pub(crate) max_created: Micros,
}

pub(crate) fn scalars_row(scalars: &Scalars) -> Vec<u8> {
    let mut row = vec![VERSION];
    row.put_number(scalars.applied);
    row.put_number(scalars.term);
    row.put_number(scalars.next_partition);
    row.put_number(u64::from(scalars.next_queue));
    row.put_number(scalars.kv_version_next);
    row.put_signed(scalars.last_now.0);
    row.put_signed(scalars.max_created.0);
    row
}

pub(crate) fn scalars_from_row(row: &[u8]) -> Result<Scalars, RowError> {
    let mut take = TakeRow::versioned(row)?;
    let scalars = Scalars {
        applied: take.number()?,
        term: take.number()?,
        next_partition: take.number()?,
        next_queue: take.narrow("next queue")?,
        kv_version_next: take.number()?,
        last_now: Micros(take.signed()?),
        max_created: Micros(take.signed()?),
    };
    take.end()?;
    Ok(scalars)
}
