//! `DELETE /api/v1/consumer-groups/:group` and `…/queues/:queue`.

use queen_broker::api::Api;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;

/// Removes a group's cursors, and its subscription unless `deleteMetadata=false`; an unknown group is done.
pub(crate) async fn delete<A: Api>(
    call: &Call<'_, A>,
    group: String,
    queue: Option<String>,
) -> Result<Answer, ApiError> {
    let metadata = call.query.boolean("deleteMetadata")?.unwrap_or(true);
    let (name, on) = (group.clone(), queue.clone());
    let done = call.api()?.delete_group(call.tenant, name, on, metadata, call.deadline()).await?;
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("consumerGroup").string(&group);
    json.field("queueName").option(queue.as_deref(), Json::string);
    json.field("deletedPartitions").u64(done.partitions);
    json.field("metadataDeleted").bool(done.metadata).field("queues").raw("[");
    for queue in &done.queues {
        json.next().string(queue);
    }
    json.raw("]}");
    Ok(error::ok(json))
}
