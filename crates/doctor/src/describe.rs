//! Records, frames and effects as names and values, for tables and JSON alike.

use queen_model::Effect;
use queen_qlog::DurablePoint;
use queen_record::frame::FrameRef;
use queen_record::record::{EntryBody, Kind, Record};
use queen_state::{Field, FieldValue, Keyspace, RowError};

/// Payload bytes that are shown.
const PREVIEW_MAX: usize = 200;
/// Key of the row in `meta` that the logs wrote.
const LOGS_KEY: &[u8] = b"logs";

/// What something is, and its fields in the order they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its kind.
    pub kind: &'static str,
    /// Its fields.
    pub fields: Vec<Field>,
}

fn number(value: impl Into<i128>) -> FieldValue {
    FieldValue::Number(value.into())
}

#[expect(clippy::needless_pass_by_value, reason = "whatever can be shown, by value or not")]
fn text(value: impl ToString) -> FieldValue {
    FieldValue::Text(value.to_string())
}

/// A verified record that starts at `at`.
pub fn describe_record(at: u64, record: &Record<'_>) -> Described {
    let head = &record.head;
    let mut fields = vec![
        ("at", number(at)),
        ("length", number(record.total_len() as u64)),
        ("entry", number(head.seq.0)),
    ];
    let Some(part) = record.entry_part() else {
        fields.extend([
            ("partition", number(head.partition.0)),
            ("base", number(head.base.0)),
            ("count", number(head.count)),
            ("createdUs", number(head.created.0)),
            ("compressed", FieldValue::Flag(head.compressed)),
            ("payloadBytes", number(record.payload.len() as u64)),
        ]);
        let kind =
            if head.kind == Kind::Message { "messages" } else { "messages of a transaction" };
        return Described { kind, fields };
    };
    fields.extend([
        ("copies", number(part.copies)),
        ("term", number(part.term)),
        ("nowUs", number(part.now.0)),
    ]);
    match part.body {
        EntryBody::Whole(bytes) => {
            fields.push(("entryBytes", number(bytes.len() as u64)));
            Described { kind: "entry", fields }
        }
        EntryBody::Stub { digest, len } => {
            fields.push(("digest", text(format_args!("{digest:016x}"))));
            fields.push(("entryBytes", number(len)));
            Described { kind: "stub", fields }
        }
    }
}

/// One message. An encrypted payload is not shown; another one up to a limit.
pub fn describe_frame(offset: u64, frame: &FrameRef<'_>) -> Described {
    let mut fields = vec![
        ("offset", number(offset)),
        ("id", text(frame.id)),
        ("transactionId", text(frame.transaction_id)),
    ];
    if let Some(trace) = frame.trace {
        fields.push(("traceId", text(trace)));
    }
    if let Some(subject) = frame.producer_sub {
        fields.push(("producerSub", text(subject)));
    }
    fields.push(("bytes", number(frame.data.len() as u64)));
    fields.push(("encrypted", FieldValue::Flag(frame.encrypted)));
    if !frame.encrypted {
        fields.push(("payload", text(preview(frame.data))));
    }
    Described { kind: "message", fields }
}

fn preview(data: &[u8]) -> String {
    let shown = data.get(..PREVIEW_MAX).unwrap_or(data);
    let mut shown = String::from_utf8_lossy(shown).into_owned();
    if data.len() > PREVIEW_MAX {
        shown.push('…');
    }
    shown
}

/// One effect of an entry.
pub fn describe_effect(effect: &Effect) -> Described {
    let (kind, fields) = match effect {
        Effect::Noop => ("noop", vec![]),
        Effect::QueueUpsert { tenant, queue, id, options, created } => (
            "queue upsert",
            vec![
                ("tenant", text(tenant)),
                ("queue", text(queue)),
                ("id", text(id)),
                ("createdUs", number(created.0)),
                ("options", text(format_args!("{options:?}"))),
            ],
        ),
        Effect::QueueDelete { tenant, queue } => {
            ("queue delete", vec![("tenant", text(tenant)), ("queue", text(queue))])
        }
        Effect::GroupUpsert(group) => (
            "group upsert",
            vec![
                ("tenant", text(group.tenant)),
                ("queue", text(&group.queue)),
                ("group", text(&group.group)),
                ("mode", text(format_args!("{:?}", group.mode))),
                ("subscribeAtUs", number(group.subscribe_at.0)),
                ("conflation", FieldValue::Flag(group.conflation)),
            ],
        ),
        Effect::GroupDelete { tenant, queue, group, metadata } => (
            "group delete",
            vec![
                ("tenant", text(tenant)),
                ("queue", text(queue)),
                ("group", text(group)),
                ("subscriptionToo", FieldValue::Flag(*metadata)),
            ],
        ),
        Effect::PartitionCreate(made) => (
            "partition create",
            vec![
                ("partition", number(made.id.0)),
                ("uuid", text(made.uuid)),
                ("tenant", text(made.tenant)),
                ("queue", text(&made.queue)),
                ("name", text(&made.partition)),
            ],
        ),
        Effect::PartitionDelete { id } => ("partition delete", vec![("partition", number(id.0))]),
        Effect::Append(append) => (
            "append",
            vec![
                ("partition", number(append.id.0)),
                ("base", number(append.base.0)),
                ("count", number(append.count())),
                ("createdUs", number(append.created.0)),
                ("retainedBytes", number(append.retained())),
            ],
        ),
        Effect::Watermark(marks) => ("watermark", watermark_fields(marks)),
        Effect::CursorSet(cursor) => ("cursor set", cursor_fields(cursor)),
        Effect::CursorDelete { id, group } => {
            ("cursor delete", vec![("partition", number(id.0)), ("group", text(group))])
        }
        Effect::DlqInsert(letter) => ("dead letter", queen_state::describe_letter(letter)),
        Effect::DlqDelete { queue, id, .. } => {
            ("dead letter delete", vec![("queue", text(queue)), ("id", text(id))])
        }
        Effect::DeleteChunk { limit } => ("delete chunk", vec![("limit", number(*limit))]),
    };
    Described { kind, fields }
}

fn watermark_fields(marks: &queen_model::Watermark) -> Vec<Field> {
    let mut fields = vec![
        ("partition", number(marks.id.0)),
        ("logStart", number(marks.log_start.0)),
        ("txnsStart", number(marks.txns_start.0)),
        ("rowsStart", number(marks.rows_start.0)),
        ("freedBytes", number(marks.freed)),
    ];
    if let Some(oldest) = marks.oldest {
        fields.push(("oldestUs", number(oldest.0)));
    }
    fields
}

fn cursor_fields(cursor: &queen_model::CursorSet) -> Vec<Field> {
    let mut fields = vec![
        ("partition", number(cursor.id.0)),
        ("group", text(&cursor.group)),
        ("committed", number(cursor.committed)),
        ("consumed", number(cursor.consumed)),
        ("retries", number(cursor.retries)),
    ];
    if let Some(lease) = &cursor.lease {
        fields.extend([
            ("leaseWorker", text(lease.worker)),
            ("leaseEnd", number(lease.batch_end.0)),
            ("leaseExpiresUs", number(lease.expires.0)),
        ]);
    }
    fields
}

/// One row of the store; the logs' own record is opened too.
///
/// # Errors
/// When the row is newer than this build, or is none.
pub fn describe_row(keyspace: Keyspace, key: &[u8], row: &[u8]) -> Result<Described, RowError> {
    let mut fields = queen_state::describe_row(keyspace, key, row)?;
    let is_logs = keyspace == Keyspace::Meta && key == LOGS_KEY;
    if let Some(point) = is_logs.then(|| DurablePoint::decode(row)) {
        let point = point.map_err(|error| RowError(error.to_string()))?;
        fields.push(("index", number(point.index.0)));
        if let Some((lanes, shards)) = point.layout {
            fields.push(("lanes", number(lanes)));
            fields.push(("shards", number(shards)));
        }
        fields.push(("logs", text(format_args!("{:?}", point.logs))));
    }
    Ok(Described { kind: keyspace.name(), fields })
}
