//! Changes of consumer groups: delete, subscription, seek.

use queen_broker::api::{Api, Seek, SeekTo};
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, Object, Raw, Text, skip};
use crate::time;

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

/// Sets where a registered group starts, on every queue.
pub(crate) async fn resubscribe<A: Api>(
    call: &Call<'_, A>,
    group: String,
    body: &[u8],
) -> Result<Answer, ApiError> {
    let wanted = read::body::<Object<Wanted<'_>>>(body)?.0;
    let text = wanted.subscription.and_then(|raw| serde_json::from_str::<Text<'_>>(raw.0).ok());
    let Some((text, at)) = text.and_then(|text| time::parse(&text.0).map(|at| (text, at))) else {
        return Err(ApiError::bad_request("subscriptionTimestamp must be a time"));
    };
    let name = group.clone();
    let updated = call.api()?.resubscribe(call.tenant, name, at, call.deadline()).await?;
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("consumerGroup").string(&group);
    json.field("newTimestamp").string(&text.0).field("rowsUpdated").u64(updated).raw("}");
    Ok(error::ok(json))
}

/// Moves a group's cursors to the end or to a time.
pub(crate) async fn seek<A: Api>(
    call: &Call<'_, A>,
    (group, queue, partition): (String, String, Option<String>),
    body: &[u8],
) -> Result<Answer, ApiError> {
    let (to, text) = seek_to(body)?;
    let seek = Seek {
        tenant: call.tenant,
        group: group.clone(),
        queue: queue.clone(),
        partition: partition.clone(),
        to,
    };
    let moved = call.api()?.seek(seek, call.deadline()).await?;
    let missing = || ApiError::unsuccessful_missing("Queue or partition not found");
    let moved = moved.ok_or_else(missing)?;
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("consumerGroup").string(&group);
    json.field("queueName").string(&queue);
    json.field("partitionName").option(partition.as_deref(), Json::string);
    json.field("seekToEnd").bool(to == SeekTo::End);
    json.field("targetTimestamp").option(text.as_deref(), Json::string);
    json.field("partitionsUpdated").u64(moved).field("updated").bool(true).raw("}");
    Ok(error::ok(json))
}

/// Where a seek goes, and the time as it was sent.
fn seek_to(body: &[u8]) -> Result<(SeekTo, Option<String>), ApiError> {
    if read::is_empty(body) {
        return Ok((SeekTo::End, None));
    }
    let wanted = read::body::<Object<Wanted<'_>>>(body)?.0;
    let refused = || ApiError::unsuccessful("Must specify toEnd=true or a timestamp");
    if wanted.to_end.is_some_and(|raw| raw.0 == "true") {
        return Ok((SeekTo::End, None));
    }
    let raw = wanted.timestamp.ok_or_else(refused)?;
    let text = serde_json::from_str::<Text<'_>>(raw.0).map_err(|_| refused())?;
    let at = time::parse(&text.0);
    let at = at.ok_or_else(|| ApiError::unsuccessful("timestamp is not a time"))?;
    Ok((SeekTo::Time(at), Some(text.0.into_owned())))
}

#[derive(Debug, Default)]
struct Wanted<'a> {
    subscription: Option<Raw<'a>>,
    to_end: Option<Raw<'a>>,
    timestamp: Option<Raw<'a>>,
}

impl<'de> Fields<'de> for Wanted<'de> {
    const NAME: &'static str = "an object that says where to";

    fn field<M: MapAccess<'de>>(&mut self, name: &str, map: &mut M) -> Result<(), M::Error> {
        match name {
            "subscriptionTimestamp" => self.subscription = map.next_value()?,
            "toEnd" => self.to_end = map.next_value()?,
            "timestamp" => self.timestamp = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}
