//! `/api/v1/resources/queues`: list, detail, delete.

use queen_broker::api::{Api, PartitionSummary, QueueSummary};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared::{self, counts_gross, counts_net, options};

/// All queues, newest first; names and sizes only with `stats=lanes`.
pub(crate) async fn list<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let is_lanes = call.query.text("stats")?.as_deref() == Some("lanes");
    let queues = call.api()?.queues(call.tenant, !is_lanes).await?;
    let bytes = 64 + queues.len() * if is_lanes { 160 } else { 1024 };
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("{").field("queues").raw("[");
    for queue in &queues {
        json.next().raw("{");
        if is_lanes {
            lane(&mut json, queue);
        } else {
            row(&mut json, queue);
        }
        json.field("createdAt").iso6(queue.created).raw("}");
    }
    json.raw("]");
    if is_lanes {
        json.field("stats").string("lanes");
    } else {
        // This broker keeps neither keys nor timers.
        for name in ["kvRows", "kvBytes", "timerRows", "timerBytes"] {
            json.field(name).u64(0);
        }
    }
    json.raw("}");
    Ok(error::ok_in(room, json))
}

fn lane(json: &mut Json, queue: &QueueSummary) {
    json.field("id").uuid(&queue.id).field("name").string(&queue.name);
    json.field("queue").string(&queue.name).field("partitions").u64(queue.partitions);
}

fn row(json: &mut Json, queue: &QueueSummary) {
    let counts = queue.counts.unwrap_or_default();
    json.field("id").uuid(&queue.id).field("name").string(&queue.name);
    json.field("queue").string(&queue.name);
    json.field("namespace").string(&queue.options.namespace);
    json.field("task").string(&queue.options.task).field("storage").string("segments");
    json.field("partitions").u64(queue.partitions);
    segments(json, queue.log_files, counts.total);
    counts_net(json.field("messages"), &counts);
    json.field("retainedBytes").i64(queue.retained_bytes);
    options(json.field("options"), &queue.options);
}

/// The queue's log files; 0 when its messages lie in logs that it shares.
fn segments(json: &mut Json, log_files: u64, messages: u64) {
    json.field("segments").raw("{").field("segments").u64(log_files);
    json.field("messages").u64(messages).raw("}");
}

/// One queue with its partitions.
pub(crate) async fn detail<A: Api>(call: &Call<'_, A>, queue: String) -> Result<Answer, ApiError> {
    let found = call.api()?.queue(call.tenant, queue, call.options.partitions_max).await?;
    let Some(detail) = found else { return Err(ApiError::not_found("Queue not found")) };
    let queue = &detail.summary;
    let counts = queue.counts.unwrap_or_default();
    let bytes = 1024 + detail.partitions.len() * 640;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("{").field("id").uuid(&queue.id).field("name").string(&queue.name);
    json.field("namespace").string(&queue.options.namespace);
    json.field("task").string(&queue.options.task).field("createdAt").iso6(queue.created);
    options(json.field("options"), &queue.options);
    json.field("partitions").raw("[");
    for row in &detail.partitions {
        partition(&mut json, row);
    }
    json.raw("]");
    segments(&mut json, queue.log_files, counts.total);
    counts_gross(json.field("totals"), &counts);
    json.field("retainedBytes").i64(queue.retained_bytes);
    if detail.truncated {
        json.field("partitionsTruncated").bool(true);
    }
    json.raw("}");
    Ok(error::ok_in(room, json))
}

fn partition(json: &mut Json, row: &PartitionSummary) {
    json.next().raw("{").field("id").uuid(&row.uuid).field("name").string(&row.name);
    json.field("createdAt").iso6(row.created);
    counts_gross(json.field("messages"), &row.counts);
    counts_gross(json.field("stats"), &row.counts);
    json.field("cursor").raw("{").field("totalConsumed").u64(row.total_consumed);
    json.field("batchesConsumed").u64(0).raw("}");
    json.field("lastActivity").option(row.newest, Json::iso6);
    json.field("oldestMessage").option(row.oldest, Json::iso6);
    json.field("newestMessage").option(row.newest, Json::iso6);
    json.field("retainedBytes").i64(row.retained_bytes).raw("}");
}

/// Removes a queue; one that does not exist is no failure.
pub(crate) async fn delete<A: Api>(call: &Call<'_, A>, queue: String) -> Result<Answer, ApiError> {
    let existed = call.api()?.delete_queue(call.tenant, queue.clone(), call.deadline()).await?;
    let mut json = Json::new();
    json.raw("{").field("deleted").bool(existed).field("existed").bool(existed);
    json.field("queue").string(&queue);
    if !existed {
        json.field("message").string("Queue not found, nothing was deleted");
    }
    json.raw("}");
    Ok(error::ok(json))
}
