//! `GET /api/v1/dlq`.

use queen_broker::api::{Api, DeadLetter, DeadLetterQuery};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared::wide;

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// A page of dead letters, newest failure first.
pub(crate) async fn list<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let query = &call.query;
    let owned = |name| query.filled(name).map(|text| text.map(std::borrow::Cow::into_owned));
    // A number below 0 is read as 0, one beyond the machine's width as the largest.
    let count = |value: i64| usize::try_from(value.max(0)).unwrap_or(usize::MAX);
    let limit = query.integer("limit")?.map_or(LIMIT_DEFAULT, count).clamp(1, LIMIT_MAX);
    let offset = query.integer("offset")?.map_or(0, count);
    let page = call
        .api()?
        .dead_letters(DeadLetterQuery {
            tenant: call.tenant,
            queue: owned("queue")?,
            group: owned("consumerGroup")?,
            partition: owned("partition")?,
            from: query.time("from")?,
            to: query.time("to")?,
            limit,
            offset,
        })
        .await?;
    let payloads: usize = page.rows.iter().map(|letter| letter.payload.len() * 2).sum();
    let mut json = Json::with_capacity(128 + page.rows.len() * 600 + payloads);
    json.raw("{").field("messages").raw("[");
    for letter in &page.rows {
        row(&mut json, letter);
    }
    json.raw("]").field("total").u64(wide(page.total));
    json.field("pagination").raw("{").field("limit").u64(wide(limit));
    json.field("offset").u64(wide(offset)).raw("}}");
    Ok(error::ok(json))
}

fn row(json: &mut Json, letter: &DeadLetter) {
    json.next().raw("{").field("id").uuid(&letter.id).field("queue").string(&letter.queue);
    json.field("partition").string(&letter.partition);
    json.field("partitionId").raw("\"").u64(letter.partition_id.0).raw("\"");
    json.field("createdAt").option(letter.created, Json::iso6);
    json.field("failedAt").iso6(letter.failed).field("consumerGroup").string(&letter.group);
    json.field("offset").i64(letter.offset);
    json.field("messageId").option(letter.message_id.as_ref(), Json::uuid);
    json.field("transactionId").string(&letter.transaction_id);
    json.field("data").verbatim(&letter.payload).field("payload").verbatim(&letter.payload);
    json.field("errorMessage").string(&letter.error);
    json.field("retryCount").u64(letter.retries.into()).raw("}");
}
