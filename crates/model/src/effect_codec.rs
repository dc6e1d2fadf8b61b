//! Effects as bytes: `kind u16 | version u16 | body_len u32 | body`.

mod watermark;

use bytes::Bytes;
use queen_record::ids::{Micros, Offset, PartitionId, TxHash, Uuid};

use crate::QueueOptions;
use crate::codec::{DecodeError, Put, Take, length};
use crate::effect::{
    Append, AppendPayload, CursorSet, DlqInsert, Effect, GroupUpsert, Lease, PartitionCreate,
    Released, SubscriptionMode,
};

/// Bytes before an effect's body.
pub(crate) const EFFECT_HEAD_LEN: usize = 8;
/// First version number of layouts that are this implementation's own.
const OWN: u16 = 0x8000;

/// Appends one effect in its payload-free form.
pub(crate) fn encode(effect: &Effect, out: &mut Vec<u8>) {
    let (kind, version) = kind_and_version(effect);
    out.put_u16(kind);
    out.put_u16(version);
    let at = out.len();
    out.put_u32(0);
    encode_body(effect, out);
    let body = length(out.len() - at - 4);
    if let Some(slot) = out.get_mut(at..at + 4) {
        slot.copy_from_slice(&body.to_le_bytes());
    }
}

/// Reads one effect. Every byte of its body must be used.
pub(crate) fn decode(take: &mut Take<'_>) -> Result<Effect, DecodeError> {
    let kind = take.u16("effect kind")?;
    let version = take.u16("effect version")?;
    let mut body = Take::new(take.blob("effect body")?);
    let effect = decode_body(kind, version, &mut body)?;
    body.end("effect body")?;
    Ok(effect)
}

fn kind_and_version(effect: &Effect) -> (u16, u16) {
    match effect {
        Effect::Noop => (0, 1),
        Effect::QueueUpsert { .. } => (1, 1),
        Effect::QueueDelete { .. } => (2, 1),
        Effect::GroupUpsert(_) => (3, 1),
        Effect::GroupDelete { .. } => (4, OWN),
        Effect::PartitionCreate(_) => (5, 1),
        Effect::PartitionDelete { .. } => (6, 1),
        Effect::Append(_) => (7, 1),
        Effect::CursorSet(cursor) if cursor.released.is_some() => (8, 3),
        Effect::CursorSet(cursor) if !cursor.metadata.is_empty() => (8, 2),
        Effect::CursorSet(_) => (8, 1),
        Effect::CursorDelete { .. } => (9, 1),
        Effect::Watermark(_) => (12, OWN),
        Effect::DlqInsert(letter) if letter.encrypted => (10, OWN),
        Effect::DlqInsert(_) => (10, 1),
        Effect::DlqDelete { .. } => (11, 1),
        Effect::DeleteChunk { .. } => (28, OWN),
    }
}

fn encode_body(effect: &Effect, out: &mut Vec<u8>) {
    match effect {
        Effect::Noop => {}
        Effect::QueueUpsert { tenant, queue, id, options, created } => {
            out.put_tenant(*tenant);
            out.put_text(queue);
            out.put_uuid(*id);
            encode_options(options, out);
            out.put_i64(created.0);
        }
        Effect::QueueDelete { tenant, queue } => {
            out.put_tenant(*tenant);
            out.put_text(queue);
        }
        Effect::GroupUpsert(group) => encode_group(group, out),
        Effect::GroupDelete { tenant, queue, group, metadata } => {
            out.put_tenant(*tenant);
            out.put_text(queue);
            out.put_text(group);
            out.put_bool(*metadata);
        }
        Effect::PartitionCreate(create) => {
            out.put_u64(create.id.0);
            out.put_uuid(create.uuid);
            out.put_tenant(create.tenant);
            out.put_text(&create.queue);
            out.put_text(&create.partition);
            out.put_i64(create.created.0);
        }
        Effect::PartitionDelete { id } => out.put_u64(id.0),
        Effect::Append(append) => encode_append(append, out),
        Effect::CursorSet(cursor) => encode_cursor(cursor, out),
        Effect::CursorDelete { id, group } => {
            out.put_u64(id.0);
            out.put_text(group);
        }
        Effect::Watermark(marks) => watermark::encode(marks, out),
        Effect::DlqInsert(letter) => {
            encode_dead_letter(letter, out);
            if letter.encrypted {
                out.put_bool(true);
            }
        }
        Effect::DlqDelete { tenant, queue, id } => {
            out.put_tenant(*tenant);
            out.put_text(queue);
            out.put_uuid(*id);
        }
        Effect::DeleteChunk { limit } => out.put_u32(*limit),
    }
}

fn decode_body(kind: u16, version: u16, body: &mut Take<'_>) -> Result<Effect, DecodeError> {
    Ok(match (kind, version) {
        (0, 1) => Effect::Noop,
        (1, 1) => Effect::QueueUpsert {
            tenant: body.tenant()?,
            queue: body.text("queue")?.to_owned(),
            id: body.uuid("queue id")?,
            options: decode_options(body)?,
            created: Micros(body.i64("created")?),
        },
        (2, 1) => {
            Effect::QueueDelete { tenant: body.tenant()?, queue: body.text("queue")?.to_owned() }
        }
        (3, 1) => Effect::GroupUpsert(decode_group(body)?),
        (4, 1 | OWN) => Effect::GroupDelete {
            tenant: body.tenant()?,
            queue: body.text("queue")?.to_owned(),
            group: body.text("group")?.to_owned(),
            metadata: if version == OWN { body.bool("metadata")? } else { true },
        },
        (5, 1) => Effect::PartitionCreate(PartitionCreate {
            id: PartitionId(body.u64("partition id")?),
            uuid: body.uuid("partition uuid")?,
            tenant: body.tenant()?,
            queue: body.text("queue")?.to_owned(),
            partition: body.text("partition")?.to_owned(),
            created: Micros(body.i64("created")?),
        }),
        (6, 1) => Effect::PartitionDelete { id: PartitionId(body.u64("partition id")?) },
        (7, 1) => Effect::Append(decode_append(body)?),
        (8, 1..=3) => Effect::CursorSet(decode_cursor(version, body)?),
        (9, 1) => Effect::CursorDelete {
            id: PartitionId(body.u64("partition id")?),
            group: body.text("group")?.to_owned(),
        },
        (10, 1) => Effect::DlqInsert(decode_dead_letter(body)?),
        (10, OWN) => {
            let letter = decode_dead_letter(body)?;
            Effect::DlqInsert(DlqInsert { encrypted: body.bool("encrypted")?, ..letter })
        }
        (11, 1) => Effect::DlqDelete {
            tenant: body.tenant()?,
            queue: body.text("queue")?.to_owned(),
            id: body.uuid("dead letter id")?,
        },
        (12, 1 | 6 | OWN) => Effect::Watermark(watermark::decode(version, body)?),
        (28, OWN) => Effect::DeleteChunk { limit: body.u32("limit")? },
        (0..=12 | 28, _) => {
            let found = u64::from(kind) << 16 | u64::from(version);
            return Err(DecodeError::Unknown { what: "effect kind and version", found });
        }
        _ => return Err(DecodeError::Unknown { what: "effect kind", found: kind.into() }),
    })
}

/// Appends all options in the order of the effect.
pub fn encode_options(options: &QueueOptions, out: &mut Vec<u8>) {
    let label = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    out.put_opt_text(label(&options.namespace).as_deref());
    out.put_opt_text(label(&options.task).as_deref());
    out.put_i32(options.priority);
    out.put_i32(options.lease_time);
    out.put_i32(options.retry_limit);
    out.put_i32(options.retry_delay);
    out.put_i32(options.ttl);
    out.put_bool(options.dead_letter_queue);
    out.put_bool(options.dlq_after_max_retries);
    out.put_i32(options.delayed_processing);
    out.put_i32(options.window_buffer);
    out.put_i32(options.retention_seconds);
    out.put_i32(options.completed_retention_seconds);
    out.put_bool(options.retention_enabled);
    out.put_bool(options.encryption_enabled);
    out.put_i32(options.max_wait_time_seconds);
    out.put_i32(options.max_queue_size);
    out.put_i32(options.min_pop_wait_time);
    out.put_i32(options.dedup_window_seconds);
    out.put_text(&options.retention_sink_hold);
    out.put_i32(options.retention_sink_hold_max_seconds);
}

pub(crate) fn decode_options(body: &mut Take<'_>) -> Result<QueueOptions, DecodeError> {
    let label = |body: &mut Take<'_>, what| {
        body.option(what, |body| body.text(what)).map(|text| text.unwrap_or_default().to_owned())
    };
    Ok(QueueOptions {
        namespace: label(body, "namespace")?,
        task: label(body, "task")?,
        priority: body.i32("priority")?,
        lease_time: body.i32("leaseTime")?,
        retry_limit: body.i32("retryLimit")?,
        retry_delay: body.i32("retryDelay")?,
        ttl: body.i32("ttl")?,
        dead_letter_queue: body.bool("deadLetterQueue")?,
        dlq_after_max_retries: body.bool("dlqAfterMaxRetries")?,
        delayed_processing: body.i32("delayedProcessing")?,
        window_buffer: body.i32("windowBuffer")?,
        retention_seconds: body.i32("retentionSeconds")?,
        completed_retention_seconds: body.i32("completedRetentionSeconds")?,
        retention_enabled: body.bool("retentionEnabled")?,
        encryption_enabled: body.bool("encryptionEnabled")?,
        max_wait_time_seconds: body.i32("maxWaitTimeSeconds")?,
        max_queue_size: body.i32("maxQueueSize")?,
        min_pop_wait_time: body.i32("minPopWaitTime")?,
        dedup_window_seconds: body.i32("dedupWindowSeconds")?,
        retention_sink_hold: body.text("retentionSinkHold")?.to_owned(),
        retention_sink_hold_max_seconds: body.i32("retentionSinkHoldMaxSeconds")?,
    })
}

fn encode_group(group: &GroupUpsert, out: &mut Vec<u8>) {
    out.put_tenant(group.tenant);
    out.put_text(&group.queue);
    out.put_text(&group.group);
    out.put_uuid(group.id);
    // Partition, namespace and task: scopes that no writer of ours narrows a group by.
    out.put_text("");
    out.put_text("");
    out.put_text("");
    out.put_u8(match group.mode {
        SubscriptionMode::All => 0,
        SubscriptionMode::New => 1,
        SubscriptionMode::Timestamp => 2,
    });
    out.put_i64(group.subscribe_at.0);
    out.put_bool(group.conflation);
    out.put_bool(true);
    out.put_i64(group.registered.0);
}

fn decode_group(body: &mut Take<'_>) -> Result<GroupUpsert, DecodeError> {
    let tenant = body.tenant()?;
    let queue = body.text("queue")?.to_owned();
    let group = body.text("group")?.to_owned();
    let id = body.uuid("group id")?;
    for scope in ["partition", "namespace", "task"] {
        body.text(scope)?;
    }
    let at = body.at();
    let mode = match body.u8("mode")? {
        0 => SubscriptionMode::All,
        1 => SubscriptionMode::New,
        2 => SubscriptionMode::Timestamp,
        other => {
            let detail = format!("{other} is no subscription mode");
            return Err(DecodeError::Invalid { what: "mode", at, detail });
        }
    };
    let subscribe_at = Micros(body.i64("subscribe at")?);
    let conflation = body.bool("conflation")?;
    body.bool("seeded")?;
    let registered = Micros(body.i64("registered")?);
    Ok(GroupUpsert { tenant, queue, group, id, mode, subscribe_at, conflation, registered })
}

fn encode_append(append: &Append, out: &mut Vec<u8>) {
    out.put_u64(append.id.0);
    out.put_u16(append.bucket);
    out.put_u64(append.base.0);
    out.put_u32(append.count());
    out.put_i64(append.created.0);
    out.put_u32(length(append.hashes.len() * 16));
    for hash in &append.hashes {
        out.put(&hash.0);
    }
    out.put_blob(&append.retained().to_le_bytes());
}

fn decode_append(body: &mut Take<'_>) -> Result<Append, DecodeError> {
    let id = PartitionId(body.u64("partition id")?);
    let bucket = body.u16("bucket")?;
    let base = Offset(body.u64("base offset")?);
    let at = body.at();
    let count = body.u32("count")? as usize;
    let created = Micros(body.i64("created")?);
    let hashes = body.blob("hashes")?;
    if hashes.len() != count.saturating_mul(16) || count == 0 {
        let detail = format!("{count} messages with {} bytes of hashes", hashes.len());
        return Err(DecodeError::Invalid { what: "append", at, detail });
    }
    let hashes = hashes
        .chunks_exact(16)
        .map(|chunk| {
            let mut hash = [0; 16];
            hash.copy_from_slice(chunk);
            TxHash(hash)
        })
        .collect();
    let at = body.at();
    let payload = body.blob("payload")?;
    let Ok(retained) = <[u8; 4]>::try_from(payload) else {
        let detail = format!("{} bytes stand for a retained length of 4", payload.len());
        return Err(DecodeError::Invalid { what: "payload-free append", at, detail });
    };
    let payload = AppendPayload::Elsewhere { retained: u32::from_le_bytes(retained) };
    Ok(Append { id, bucket, base, created, hashes, payload })
}

/// Appends a cursor row in the layout of the effect.
pub(crate) fn encode_cursor(cursor: &CursorSet, out: &mut Vec<u8>) {
    out.put_u64(cursor.id.0);
    out.put_text(&cursor.group);
    out.put_i64(cursor.committed);
    let lease = cursor.lease;
    out.put_opt_u64(lease.map(|lease| lease.batch_end.0));
    out.put_opt_text(lease.map(|lease| lease.worker.to_string()).as_deref());
    out.put_opt_i64(lease.map(|lease| lease.expires.0));
    out.put_opt_i64(lease.map(|lease| lease.acquired.0));
    out.put_u32(cursor.retries);
    out.put_opt_u64(cursor.attempt_offset.map(|offset| offset.0));
    out.put_u32(cursor.attempts);
    out.put_u64(cursor.consumed);
    out.put_bool(lease.is_some_and(|lease| lease.conflated));
    out.put_u32(0);
    out.put_i64(cursor.created.0);
    if cursor.released.is_some() || !cursor.metadata.is_empty() {
        out.put_text(&cursor.metadata);
    }
    if let Some(released) = cursor.released {
        out.put_text(&released.worker.to_string());
        out.put_u64(released.low.0);
        out.put_u64(released.high.0);
    }
}

fn decode_cursor(version: u16, body: &mut Take<'_>) -> Result<CursorSet, DecodeError> {
    let id = PartitionId(body.u64("partition id")?);
    let group = body.text("group")?.to_owned();
    let committed = body.i64("committed")?;
    let at = body.at();
    let batch_end = body.option("batch end", |body| body.u64("batch end"))?;
    let worker = body.option("worker", |body| lease_id(body))?;
    let expires = body.option("lease expires", |body| body.i64("lease expires"))?;
    let acquired = body.option("lease acquired", |body| body.i64("lease acquired"))?;
    let retries = body.u32("batch retry")?;
    let attempt_offset = body.option("attempt offset", |body| body.u64("attempt offset"))?;
    let attempts = body.u32("attempt count")?;
    let consumed = body.u64("total consumed")?;
    let conflated = body.bool("conflated")?;
    body.list("delivered", 16, |body| body.uuid("delivered"))?;
    let created = Micros(body.i64("created")?);
    let lease = match (batch_end, worker, expires, acquired) {
        (Some(batch_end), Some(worker), Some(expires), Some(acquired)) => Some(Lease {
            worker,
            batch_end: Offset(batch_end),
            expires: Micros(expires),
            acquired: Micros(acquired),
            conflated,
        }),
        (None, None, None, None) => None,
        _ => {
            let detail = "a lease is given in part".to_owned();
            return Err(DecodeError::Invalid { what: "cursor", at, detail });
        }
    };
    let metadata = if version >= 2 { body.text("metadata")?.to_owned() } else { String::new() };
    let released = if version >= 3 {
        Some(Released {
            worker: lease_id(body)?,
            low: Offset(body.u64("released low")?),
            high: Offset(body.u64("released high")?),
        })
    } else {
        None
    };
    let attempt_offset = attempt_offset.map(Offset);
    Ok(CursorSet {
        id,
        group,
        committed,
        lease,
        retries,
        attempt_offset,
        attempts,
        consumed,
        created,
        metadata,
        released,
    })
}

/// A lease id is the text of a UUID.
fn lease_id(body: &mut Take<'_>) -> Result<Uuid, DecodeError> {
    let at = body.at();
    Uuid::parse(body.text("worker")?).ok_or_else(|| DecodeError::Invalid {
        what: "worker",
        at,
        detail: "a lease id is not the text of a UUID".to_owned(),
    })
}

fn encode_dead_letter(letter: &DlqInsert, out: &mut Vec<u8>) {
    out.put_uuid(letter.id);
    out.put_tenant(letter.tenant);
    out.put_text(&letter.queue);
    out.put_u64(letter.partition.0);
    out.put_text(&letter.group);
    out.put_i64(letter.offset);
    out.put_opt_uuid(letter.message_id);
    out.put_text(&letter.transaction_id);
    out.put_blob(&letter.payload);
    out.put_text(&letter.error);
    out.put_u32(letter.retries);
    out.put_i64(letter.failed.0);
}

fn decode_dead_letter(body: &mut Take<'_>) -> Result<DlqInsert, DecodeError> {
    Ok(DlqInsert {
        id: body.uuid("dead letter id")?,
        tenant: body.tenant()?,
        queue: body.text("queue")?.to_owned(),
        partition: PartitionId(body.u64("partition id")?),
        group: body.text("group")?.to_owned(),
        offset: body.i64("offset")?,
        message_id: body.option("message id", |body| body.uuid("message id"))?,
        transaction_id: body.text("transactionId")?.to_owned(),
        payload: Bytes::copy_from_slice(body.blob("payload")?),
        encrypted: false,
        error: body.text("error")?.to_owned(),
        retries: body.u32("retries")?,
        failed: Micros(body.i64("failed at")?),
    })
}

/// Bytes of a UUID list and an empty tenant keep the smallest effect above its head.
const _: () = assert!(EFFECT_HEAD_LEN == size_of::<u16>() * 2 + size_of::<u32>());

/// Reads a dead letter from a stored row, as one that is not encrypted: the row says that elsewhere.
///
/// # Errors
/// When the bytes are not exactly one dead letter.
pub fn dead_letter_from_bytes(bytes: &[u8]) -> Result<DlqInsert, DecodeError> {
    let mut take = Take::new(bytes);
    let letter = decode_dead_letter(&mut take)?;
    take.end("dead letter")?;
    Ok(letter)
}

/// Appends a dead letter as a stored row, without whether it is encrypted.
pub fn dead_letter_to_bytes(letter: &DlqInsert, out: &mut Vec<u8>) {
    encode_dead_letter(letter, out);
}

/// Reads a group's subscription from a stored row.
///
/// # Errors
/// When the bytes are not exactly one subscription.
pub fn group_from_bytes(bytes: &[u8]) -> Result<GroupUpsert, DecodeError> {
    let mut take = Take::new(bytes);
    let group = decode_group(&mut take)?;
    take.end("group")?;
    Ok(group)
}

/// Appends a group's subscription as a stored row.
pub fn group_to_bytes(group: &GroupUpsert, out: &mut Vec<u8>) {
    encode_group(group, out);
}

/// Reads a queue's options from a stored row; returns them and how many bytes they took.
///
/// # Errors
/// When the bytes do not begin with options.
pub fn options_from_bytes(bytes: &[u8]) -> Result<(QueueOptions, usize), DecodeError> {
    let mut take = Take::new(bytes);
    let options = decode_options(&mut take)?;
    Ok((options, take.at()))
}

/// An id of all zeros, where a layout wants one and there is none.
pub const NIL: Uuid = Uuid([0; 16]);
