//! A stored row as names and values, for people who look into a checkpoint. Nothing in the program reads this form.

use queen_model::DlqInsert;
use queen_record::ids::PartitionId;

use crate::cursor::Cursor;
use crate::keyspace::Keyspace;
use crate::rows::{self, RowError};
use crate::tables::{LOGS_KEY, SCALARS_KEY};

/// The value of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A number.
    Number(i128),
    /// A text; it may hold anything.
    Text(String),
    /// A yes or no.
    Flag(bool),
}

/// Name and value.
pub type Field = (&'static str, FieldValue);

fn number(value: impl Into<i128>) -> FieldValue {
    FieldValue::Number(value.into())
}

#[expect(clippy::needless_pass_by_value, reason = "whatever can be shown, by value or not")]
fn text(value: impl ToString) -> FieldValue {
    FieldValue::Text(value.to_string())
}

/// The fields of a row, those of its key first.
///
/// Shape: as stored; a payload is only measured. The logs' own record in `meta` is opaque here: its length.
///
/// # Errors
/// When the row is newer than this build, or is none.
pub fn describe_row(keyspace: Keyspace, key: &[u8], row: &[u8]) -> Result<Vec<Field>, RowError> {
    match keyspace {
        Keyspace::Meta => meta(key, row),
        Keyspace::Queues => queue(key, row),
        Keyspace::Groups => group(key, row),
        Keyspace::Partitions => partition(key, row),
        Keyspace::Cursors => {
            let cursor = rows::cursor_from_row(row)?;
            let mut fields = vec![partition_of(rows::split_partition(key)?.0)];
            cursor_fields(&cursor, &mut fields);
            Ok(fields)
        }
        Keyspace::DeadLetters => dead_letter(row),
    }
}

fn partition_of(id: PartitionId) -> Field {
    ("partition", number(id.0))
}

fn meta(key: &[u8], row: &[u8]) -> Result<Vec<Field>, RowError> {
    let name = ("row", text(String::from_utf8_lossy(key)));
    if key == LOGS_KEY {
        return Ok(vec![name, ("bytes", number(row.len() as u64))]);
    }
    if key != SCALARS_KEY {
        return Err(RowError(format!("meta row {:?} is not known to this build", name.1)));
    }
    let scalars = rows::scalars_from_row(row)?;
    Ok(vec![
        name,
        ("applied", number(scalars.applied)),
        ("term", number(scalars.term)),
        ("nextPartition", number(scalars.next_partition)),
        ("nextQueue", number(scalars.next_queue)),
        ("lastNowUs", number(scalars.last_now.0)),
        ("maxCreatedUs", number(scalars.max_created.0)),
    ])
}

fn queue(key: &[u8], row: &[u8]) -> Result<Vec<Field>, RowError> {
    let number_of = nonzero(rows::split_u32(key)?.0)?;
    let queue = rows::queue_from_row(number_of, row)?;
    Ok(vec![
        ("queueNumber", number(number_of.get())),
        ("tenant", text(queue.tenant)),
        ("queue", text(&queue.name)),
        ("id", text(queue.id)),
        ("createdUs", number(queue.created.0)),
        ("deleted", FieldValue::Flag(queue.deleted)),
        ("options", text(format_args!("{:?}", queue.options))),
    ])
}

fn group(key: &[u8], row: &[u8]) -> Result<Vec<Field>, RowError> {
    let (queue, rest) = rows::split_u32(key)?;
    let group_number = crate::GroupNumber(nonzero(rows::split_u32(rest)?.0)?);
    let group = rows::group_from_row(group_number, row)?;
    let mut fields = vec![
        ("queueNumber", number(queue)),
        ("groupNumber", number(group_number.0.get())),
        ("group", text(&group.name)),
        ("deleted", FieldValue::Flag(group.sweep_from.is_some())),
    ];
    if let Some(subscription) = &group.subscription {
        fields.push(("subscription", text(format_args!("{:?}", subscription.mode))));
        fields.push(("subscribeAtUs", number(subscription.subscribe_at.0)));
    }
    Ok(fields)
}

fn partition(key: &[u8], row: &[u8]) -> Result<Vec<Field>, RowError> {
    let (partition, name) = rows::partition_from_row(row)?;
    let mut fields = vec![
        partition_of(rows::split_partition(key)?.0),
        ("queueNumber", number(partition.queue.0.get())),
        ("name", text(name)),
        ("uuid", text(partition.uuid)),
        ("lastOffset", number(partition.last_offset)),
        ("createdUs", number(partition.created.0)),
        ("lastCreatedUs", number(partition.last_created.0)),
        ("retainedBytes", number(partition.retained_bytes)),
    ];
    if let Some(marks) = &partition.marks {
        fields.extend([
            ("logStart", number(marks.log_start)),
            ("txnsStart", number(marks.txns_start)),
            ("rowsStart", number(marks.rows_start)),
        ]);
        if let Some(oldest) = marks.oldest {
            fields.push(("oldestUs", number(oldest.0)));
        }
    }
    if let Some(cursor) = &partition.cursor {
        cursor_fields(cursor, &mut fields);
    }
    Ok(fields)
}

fn cursor_fields(cursor: &Cursor, fields: &mut Vec<Field>) {
    fields.extend([
        ("groupNumber", number(cursor.group.0.get())),
        ("committed", number(cursor.committed)),
        ("consumed", number(cursor.consumed)),
    ]);
    if let Some(lease) = cursor.lease() {
        fields.extend([
            ("leaseWorker", text(lease.worker)),
            ("leaseEnd", number(lease.batch_end.0)),
            ("leaseExpiresUs", number(lease.expires.0)),
        ]);
    }
    if !cursor.metadata().is_empty() {
        fields.push(("metadata", text(cursor.metadata())));
    }
}

fn dead_letter(row: &[u8]) -> Result<Vec<Field>, RowError> {
    Ok(describe_letter(&rows::dead_letter_from_row(row)?.letter))
}

/// The fields of a dead letter; its payload is measured, not shown.
pub fn describe_letter(letter: &DlqInsert) -> Vec<Field> {
    vec![
        ("id", text(letter.id)),
        partition_of(letter.partition),
        ("queue", text(&letter.queue)),
        ("group", text(&letter.group)),
        ("offset", number(letter.offset)),
        ("transactionId", text(&letter.transaction_id)),
        ("payloadBytes", number(letter.payload.len() as u64)),
        ("encrypted", FieldValue::Flag(letter.encrypted)),
        ("error", text(&letter.error)),
        ("retries", number(letter.retries)),
        ("failedUs", number(letter.failed.0)),
    ]
}

fn nonzero(value: u32) -> Result<std::num::NonZeroU32, RowError> {
    std::num::NonZeroU32::new(value).ok_or_else(|| RowError("a number in the key is 0".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::GroupNumber;

    #[test]
    fn rows_have_names_and_what_is_none_is_refused() {
        let cursor = Cursor {
            group: GroupNumber(std::num::NonZeroU32::MIN),
            committed: -1,
            consumed: 7,
            created: queen_record::ids::Micros(1),
            released: queen_model::Released {
                worker: queen_model::NIL,
                low: queen_record::ids::Offset(0),
                high: queen_record::ids::Offset(0),
            },
            busy: None,
        };
        let key = rows::key_partition(PartitionId(300), &[0, 0, 0, 1]);
        let row = rows::cursor_row(&cursor);
        let fields = describe_row(Keyspace::Cursors, &key, &row).unwrap();
        let expected = [
            ("partition", FieldValue::Number(300)),
            ("groupNumber", FieldValue::Number(1)),
            ("committed", FieldValue::Number(-1)),
            ("consumed", FieldValue::Number(7)),
        ];
        assert_eq!(fields, expected);
        for keyspace in Keyspace::ALL {
            assert!(describe_row(keyspace, b"", &[]).is_err());
            assert!(describe_row(keyspace, &key, &[9, 9]).is_err());
        }
    }
}
