//! `/api/v1/dlq`: list, replay, delete; and the same by a message's partition and transactionId.

use hyper::StatusCode;
use queen_broker::api::{
    Api, DeadLetter, DeadLetterQuery, LetterRef, LetterSelect, PushStatus, Replay, ReplayEnd,
    ReplayTo, escaped_len,
};
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, Object, Text, skip};
use crate::routes::messages::partition_ref;
use crate::routes::shared::{count, wide};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// A page of dead letters, newest failure first.
pub(crate) async fn list<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let query = &call.query;
    let owned = |name| query.filled(name).map(|text| text.map(std::borrow::Cow::into_owned));
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
    let bytes = page.rows.iter().map(json_len).sum::<u64>() + 128;
    let room = call.room(bytes).await?;
    let mut json = Json::with_capacity(usize::try_from(bytes).unwrap_or(0));
    json.raw("{").field("messages").raw("[");
    for letter in &page.rows {
        row(&mut json, letter);
    }
    json.raw("]").field("total").u64(wide(page.total));
    json.field("pagination").raw("{").field("limit").u64(wide(limit));
    json.field("offset").u64(wide(offset)).raw("}}");
    Ok(error::ok_in(room, json))
}

/// Bytes of a letter in the answer at most.
fn json_len(letter: &DeadLetter) -> u64 {
    let DeadLetter { queue, partition, group, transaction_id, error, payload, .. } = letter;
    let texts = [queue, partition, group, transaction_id, error].map(escaped_len);
    600 + texts.iter().sum::<u64>() + 2 * wide(payload.len())
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

/// Pushes a copy of a dead letter and removes the letter.
pub(crate) async fn replay<A: Api>(
    call: &Call<'_, A>,
    letter: Option<LetterRef>,
    body: &[u8],
) -> Result<Answer, ApiError> {
    let to =
        if read::is_empty(body) { To::default() } else { read::body::<Object<To<'_>>>(body)?.0 };
    let to = ReplayTo {
        queue: To::half("queue", to.queue.as_ref())?,
        partition: To::half("partition", to.partition.as_ref())?,
    };
    let found = match letter {
        Some(letter) => call.api()?.replay(call.tenant, letter, to, call.deadline()).await?,
        None => None,
    };
    let Some(replay) = found else {
        let mut json = Json::new();
        json.raw("{").field("success").bool(false).field("result").string("gone");
        json.field("error").string("Message not found").raw("}");
        return Ok(error::json(StatusCode::NOT_FOUND, json));
    };
    Ok(render_replay(&replay))
}

fn render_replay(replay: &Replay) -> Answer {
    let (result, status, answer) = match &replay.end {
        ReplayEnd::Moved(answer) => ("moved", "queued", answer),
        ReplayEnd::Duplicate(answer) => ("duplicate", "duplicate", answer),
        ReplayEnd::Refused(rollback) => {
            let mut json = Json::new();
            json.raw("{").field("success").bool(false).field("error").string(&rollback.error);
            json.field("reason").string(rollback.reason.code());
            json.field("dlqRowRemoved").bool(false).raw("}");
            return error::json(StatusCode::CONFLICT, json);
        }
    };
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("result").string(result);
    json.field("queue").string(&replay.queue).field("partition").string(&replay.partition);
    json.field("consumerGroup").string(&replay.group).field("dlqId").uuid(&replay.id);
    json.field("originalTransactionId").string(&replay.transaction_id);
    json.field("replayedAs").raw("{").field("index").u64(0);
    json.field("message_id").uuid(&answer.message_id);
    json.field("transaction_id").string(&replay.copy_id);
    json.field("queueName").string(&replay.queue).field("status").string(status);
    if let PushStatus::Queued(offset) | PushStatus::Duplicate(offset) = &answer.status {
        json.field("offset").u64(offset.0);
    }
    json.raw("}").field("dlqRowRemoved").bool(result == "moved").raw("}");
    error::ok(json)
}

/// Where a replay goes.
#[derive(Debug, Default)]
struct To<'a> {
    queue: Option<Text<'a>>,
    partition: Option<Text<'a>>,
}

impl<'de> Fields<'de> for To<'de> {
    const NAME: &'static str = "an object with \"queue\" and \"partition\", or nothing";

    fn field<M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            "queue" => self.queue = map.next_value()?,
            "partition" => self.partition = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl To<'_> {
    fn half(name: &str, text: Option<&Text<'_>>) -> Result<Option<String>, ApiError> {
        match text.map(|text| &*text.0) {
            Some("") => Err(ApiError::unsuccessful(format!("{name} must not be empty"))),
            text => Ok(text.map(str::to_owned)),
        }
    }
}

/// Removes the dead letters of a queue, or of one group on it.
pub(crate) async fn purge<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let query = &call.query;
    let owned = |name| query.filled(name).map(|text| text.map(std::borrow::Cow::into_owned));
    let refused = |error: &str, message: &str| {
        let mut json = Json::new();
        json.raw("{").field("success").bool(false).field("error").string(error);
        json.field("message").string(message).raw("}");
        error::json(StatusCode::BAD_REQUEST, json)
    };
    let (queue, group) = (owned("queue")?, owned("consumerGroup")?);
    let Some(queue) = queue else {
        let message = "name the queue whose dead letters are to be deleted";
        return Ok(refused("queue is required", message));
    };
    if group.is_none() && query.text("consumerGroup")?.is_some() {
        // A script's variable that was not set must not delete what all others keep.
        let message = "leave consumerGroup out to delete the dead letters of all groups";
        return Ok(refused("consumerGroup must not be empty", message));
    }
    let select = LetterSelect::Queue { queue: queue.clone(), group: group.clone() };
    let deleted = call.api()?.delete_letters(call.tenant, select, call.deadline()).await?;
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("queue").string(&queue);
    json.field("consumerGroup").option(group.as_deref(), Json::string);
    json.field("deleted").u64(deleted).raw("}");
    Ok(error::ok(json))
}

/// Removes the dead letters of one message; a live message cannot be deleted.
pub(crate) async fn delete_of_message<A: Api>(
    call: &Call<'_, A>,
    partition: &str,
    transaction_id: String,
) -> Result<Answer, ApiError> {
    let missing = || ApiError::unsuccessful_missing("Message not found");
    let of = partition_ref(partition).ok_or_else(missing)?;
    let id = transaction_id.clone();
    let select = LetterSelect::Message { partition: of, transaction_id };
    let deleted = call.api()?.delete_letters(call.tenant, select, call.deadline()).await?;
    if deleted == 0 {
        return Err(missing());
    }
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("partitionId").string(partition);
    json.field("transactionId").string(&id).field("deleted").u64(deleted).raw("}");
    Ok(error::ok(json))
}
