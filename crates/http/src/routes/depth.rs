//! `GET /api/v1/resources/queues/:queue/depth` and `GET /api/v1/resources/partitions`: what is left to do.

use std::borrow::Cow;

use queen_broker::api::{Api, Backlog};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared::{self, count};

const BUSY_DEFAULT: usize = 610;
const BUSY_MAX: usize = 5000;

/// The backlog of one queue, for one group or for the slowest of each partition.
pub(crate) async fn depth<A: Api>(call: &Call<'_, A>, queue: String) -> Result<Answer, ApiError> {
    let group = call.query.filled("group")?.map(Cow::into_owned);
    let most = call.options.partitions_max;
    let found = call.api()?.depth(call.tenant, queue.clone(), group.clone(), most).await?;
    let Some(depth) = found else { return Err(ApiError::not_found("Queue not found")) };
    let bytes = 512 + depth.partitions.len() * 96;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("{").field("queue").string(&queue);
    json.field("group").option(group.as_deref(), Json::string);
    backlog(&mut json, depth.total);
    json.field("partitionsPending").u64(depth.partitions_pending);
    json.field("partitionsReady").u64(depth.partitions_ready);
    json.field("conflation").bool(depth.conflation);
    // A group that takes only the newest message of a partition has one message per partition to do.
    let (pending, ready) = if depth.conflation {
        (depth.partitions_pending, depth.partitions_ready)
    } else {
        (depth.total.pending, depth.total.ready())
    };
    json.field("effectivePending").u64(pending).field("effectiveReady").u64(ready);
    json.field("partitions").raw("[");
    for (name, left) in &depth.partitions {
        json.next().raw("{").field("partition").string(name);
        backlog(&mut json, *left);
        json.raw("}");
    }
    json.raw("]");
    if depth.truncated {
        json.field("partitionsTruncated").bool(true);
    }
    json.raw("}");
    Ok(error::ok_in(room, json))
}

fn backlog(json: &mut Json, backlog: Backlog) {
    json.field("pending").u64(backlog.pending).field("processing").u64(backlog.processing);
    json.field("ready").u64(backlog.ready());
}

/// The partitions with the most pending messages; `pending` is without what is leased, as in every list.
pub(crate) async fn busy<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let queue = call.query.filled("queue")?.map(Cow::into_owned);
    let limit = call.query.integer("limit")?.map_or(BUSY_DEFAULT, count).clamp(1, BUSY_MAX);
    let busy = call.api()?.busy_partitions(call.tenant, queue, limit).await?;
    let bytes = 64 + busy.rows.len() * 192;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("{").field("partitions").raw("[");
    for row in &busy.rows {
        json.next().raw("{").field("queue").string(&row.queue);
        json.field("partition").string(&row.partition).field("id").uuid(&row.uuid);
        json.field("pending").u64(row.backlog.ready());
        json.field("processing").u64(row.backlog.processing);
        json.field("lagSeconds").option(row.lag_seconds, Json::u64).raw("}");
    }
    json.raw("]").field("walked").u64(busy.walked);
    json.field("truncated").bool(busy.truncated).raw("}");
    Ok(error::ok_in(room, json))
}
