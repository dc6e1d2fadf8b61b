//! `GET /api/v1/messages/:partitionId/:transactionId`.

use queen_broker::api::{Api, ConsumeMode, MessageDetail, PartitionRef, QUEUE_MODE};
use queen_record::ids::{PartitionId, Uuid};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared::{self, options};

/// One message with its groups; the partition is named by number or by UUID.
pub(crate) async fn detail<A: Api>(
    call: &Call<'_, A>,
    partition: &str,
    transaction_id: String,
) -> Result<Answer, ApiError> {
    let missing = || ApiError::not_found("Message not found");
    let partition = partition_ref(partition).ok_or_else(missing)?;
    let found = call.api()?.message(call.tenant, partition, transaction_id).await?;
    Ok(error::ok(render(&found.ok_or_else(missing)?)))
}

pub(super) fn partition_ref(text: &str) -> Option<PartitionRef> {
    if let Some(uuid) = Uuid::parse(text) {
        return Some(PartitionRef::Uuid(uuid));
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok().map(|id| PartitionRef::Number(PartitionId(id))) } else { None }
}

fn render(detail: &MessageDetail) -> Json {
    let message = &detail.message;
    let mut json = Json::with_capacity(1536 + message.data.len() * 2);
    json.raw("{").field("id").uuid(&message.id);
    json.field("transactionId").text(&message.transaction_id);
    json.field("data").verbatim(&message.data).field("payload").verbatim(&message.data);
    json.field("traceId").option(message.trace_id.as_ref(), Json::uuid);
    json.field("producerSub").option(message.producer_sub.as_deref(), Json::text);
    json.field("createdAt").iso6(message.created);
    json.field("partitionId").uuid(&detail.partition_uuid);
    json.field("partition").string(&detail.partition).field("queue").string(&detail.queue);
    json.field("queuePath").string(&format!("{}/{}", detail.queue, detail.partition));
    json.field("namespace").string(&detail.options.namespace);
    json.field("task").string(&detail.options.task);
    json.field("status").string(shared::status(detail.status));
    json.field("errorMessage").option(detail.error.as_deref(), Json::string);
    json.field("retryCount").u64(detail.retries.into());
    json.field("isEncrypted").bool(detail.encrypted);
    options(json.field("queueConfig"), &detail.options);
    let named = detail.groups.iter().filter(|group| group.name != QUEUE_MODE).count();
    let mode = ConsumeMode { queue_mode: named < detail.groups.len(), groups: named };
    shared::mode(json.field("mode"), mode);
    json.field("consumerGroups").raw("[");
    for group in &detail.groups {
        json.next().raw("{").field("name").string(&group.name);
        json.field("committed").i64(group.committed).field("consumed").bool(group.consumed);
        json.field("leaseExpiresAt").option(group.lease_expires, Json::iso6).raw("}");
    }
    json.raw("]}");
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_a_number_or_a_uuid() {
        assert_eq!(partition_ref("4"), Some(PartitionRef::Number(PartitionId(4))));
        let text = "01a16d65-4e4f-7001-bf27-b56a9334d445";
        assert_eq!(partition_ref(text), Uuid::parse(text).map(PartitionRef::Uuid));
        for text in ["", "-4", "+4", "four", "99999999999999999999"] {
            assert_eq!(partition_ref(text), None, "{text}");
        }
    }
}
