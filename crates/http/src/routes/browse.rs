//! `GET /api/v1/messages`.

use std::borrow::Cow;

use queen_broker::api::{Api, MessageQuery, MessageRow, MessageStatus, escaped_len};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared::{self, count, wide};

const LIMIT_DEFAULT: usize = 200;
const LIMIT_MAX: usize = 1000;

/// A page of messages, newest first.
pub(crate) async fn list<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let query = &call.query;
    let owned = |name| query.filled(name).map(|text| text.map(Cow::into_owned));
    let limit = query.integer("limit")?.map_or(LIMIT_DEFAULT, count).clamp(1, LIMIT_MAX);
    let offset = query.integer("offset")?.map_or(0, count);
    let page = call
        .api()?
        .messages(MessageQuery {
            tenant: call.tenant,
            queue: owned("queue")?,
            partition: owned("partition")?,
            namespace: owned("namespace")?,
            task: owned("task")?,
            status: query.filled("status")?.map(|text| status(&text)).transpose()?,
            from: query.time("from")?,
            to: query.time("to")?,
            limit,
            offset,
        })
        .await?;
    let bytes = page.rows.iter().map(json_len).sum::<u64>() + 256;
    let room = call.room(bytes).await?;
    let mut json = Json::with_capacity(usize::try_from(bytes).unwrap_or(0));
    json.raw("{").field("messages").raw("[");
    for row in &page.rows {
        render(&mut json, row);
    }
    json.raw("]").field("total").u64(wide(page.rows.len()));
    json.field("pagination").raw("{").field("limit").u64(wide(limit));
    json.field("offset").u64(wide(offset)).raw("}");
    shared::mode(json.field("mode"), page.mode).raw("}");
    Ok(error::ok_in(room, json))
}

/// Bytes of a row in the answer at most.
fn json_len(row: &MessageRow) -> u64 {
    let names = escaped_len(&*row.queue) + escaped_len(&row.partition);
    let labels = escaped_len(&row.labels.0) + escaped_len(&row.labels.1);
    let payload = wide(row.message.data.len());
    1024 + 2 * names + labels + payload + shared::message_json_len(&row.message)
}

fn status(text: &str) -> Result<MessageStatus, ApiError> {
    use MessageStatus::{Completed, DeadLetter, Pending, Processing};
    let found = [Pending, Processing, Completed, DeadLetter].into_iter();
    let mut found = found.filter(|status| shared::status(*status) == text);
    found.next().ok_or_else(|| {
        ApiError::bad_request("status must be pending, processing, completed or dead_letter")
    })
}

fn render(json: &mut Json, row: &MessageRow) {
    let message = &row.message;
    json.next().raw("{").field("id").uuid(&message.id);
    json.field("transactionId").text(&message.transaction_id);
    json.field("txnHash").string(&row.hash.to_string());
    json.field("data").verbatim(&message.data).field("payload").verbatim(&message.data);
    json.field("traceId").option(message.trace_id.as_ref(), Json::uuid);
    json.field("producerSub").option(message.producer_sub.as_deref(), Json::text);
    json.field("createdAt").iso3(message.created).field("offset").u64(message.offset.0);
    json.field("queue").string(&row.queue).field("partition").string(&row.partition);
    json.field("partitionId").uuid(&row.partition_uuid);
    json.field("status").string(shared::status(row.status));
    json.field("queueStatus").option(row.queue_status.map(shared::status), Json::string);
    json.field("busStatus").raw("{").field("consumedBy").u64(wide(row.consumed_by));
    json.field("totalGroups").u64(wide(row.groups)).raw("}");
    json.field("queuePath").string(&format!("{}/{}", row.queue, row.partition));
    json.field("namespace").string(&row.labels.0).field("task").string(&row.labels.1);
    json.field("queuePriority").i64(row.priority.into()).field("payloadAvailable").bool(true);
    json.field("leaseExpiresAt").option(row.lease_expires, Json::iso6);
    json.field("segment").raw("{").field("seq").u64(row.entry.0);
    json.field("frameIdx").u64(row.frame).raw("}");
    json.field("isEncrypted").bool(row.encrypted).raw("}");
}
