//! `GET /api/v1/consumer-groups`, `/:group` and `/lagging`.

use queen_broker::api::{Api, GroupSummary};
use queen_model::SubscriptionMode;
use queen_record::ids::Uuid;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared;

/// A group that lags longer is shown as lagging.
const LAGGING_SECONDS: u64 = 300;
/// The bound of the lagging list when the request names none.
const LAG_SECONDS_DEFAULT: i64 = 3600;
const KIND: &str = "queen";

/// Every group on every queue where it has a cursor: a bare array.
pub(crate) async fn list<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let groups = call.api()?.groups(call.tenant).await?;
    let bytes = 2 + groups.len() * 512;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("[");
    for group in &groups {
        row(&mut json, group);
    }
    json.raw("]");
    Ok(error::ok_in(room, json))
}

fn row(json: &mut Json, group: &GroupSummary) {
    let state = if group.lag_seconds > LAGGING_SECONDS {
        "Lagging"
    } else if group.consumed > 0 {
        "Stable"
    } else {
        "Dead"
    };
    let stored = group.subscription.as_ref();
    let starts_all = |mode| mode == SubscriptionMode::All;
    json.next().raw("{").field("name").string(&group.group);
    json.field("topics").raw("[").next().string(&group.queue).raw("]");
    json.field("queueName").string(&group.queue).field("members").u64(group.cursors);
    json.field("partitionCursors").u64(group.cursors);
    json.field("partitionsWithLag").u64(group.with_lag).field("totalLag").u64(group.lag);
    json.field("maxTimeLag").u64(group.lag_seconds).field("state").string(state);
    json.field("storage").string("segments").field("kind").string(KIND);
    let mode = stored.map(|stored| if starts_all(stored.mode) { "all" } else { "new" });
    json.field("subscriptionMode").option(mode, Json::string);
    let at = stored.filter(|stored| !starts_all(stored.mode)).map(|stored| stored.at);
    json.field("subscriptionTimestamp").option(at, Json::iso6);
    let registered = stored.map(|stored| stored.registered);
    json.field("subscriptionCreatedAt").option(registered, Json::iso6);
    json.field("conflation").bool(stored.is_some_and(|stored| stored.conflation)).raw("}");
}

/// One group's cursors under the names of their queues.
pub(crate) async fn detail<A: Api>(call: &Call<'_, A>, group: String) -> Result<Answer, ApiError> {
    let queues = call.api()?.group(call.tenant, group, call.options.partitions_max).await?;
    if queues.is_empty() {
        return Err(ApiError::not_found("Consumer group not found"));
    }
    let partitions: usize = queues.iter().map(|queue| queue.partitions.len()).sum();
    let bytes = queues.len() * 128 + partitions * 192;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("{");
    for queue in &queues {
        json.next().string(&queue.queue).raw(":{").field("conflation").bool(queue.conflation);
        json.field("kind").string(KIND).field("partitions").raw("[");
        for row in &queue.partitions {
            json.next().raw("{").field("partition").string(&row.partition);
            worker(json.field("workerId"), row.lease.as_ref());
            json.field("lastConsumedAt").null().field("totalConsumed").u64(row.consumed);
            json.field("offsetLag").u64(row.lag).field("timeLagSeconds").u64(row.lag_seconds);
            json.field("leaseActive").bool(row.lease.is_some()).raw("}");
        }
        json.raw("]}");
    }
    json.raw("}");
    Ok(error::ok_in(room, json))
}

/// Cursors that are further behind than `minLagSeconds`, oldest first: a bare array.
pub(crate) async fn lagging<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let seconds = call.query.integer("minLagSeconds")?.unwrap_or(LAG_SECONDS_DEFAULT).max(0);
    let rows = call.api()?.lagging(call.tenant, seconds).await?;
    let bytes = 2 + rows.len() * 384;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("[");
    for row in &rows {
        json.next().raw("{").field("consumer_group").string(&row.group);
        json.field("queue_name").string(&row.queue);
        json.field("partition_name").string(&row.partition);
        json.field("partition_id").uuid(&row.partition_uuid);
        worker(json.field("worker_id"), row.lease.as_ref());
        json.field("kind").string(KIND).field("offset_lag").u64(row.lag);
        json.field("time_lag_seconds").u64(row.lag_seconds);
        hours(json.field("lag_hours"), row.lag_seconds);
        json.field("oldest_unconsumed_at").iso6(row.oldest);
        json.field("last_consumed_at").null().raw("}");
    }
    json.raw("]");
    Ok(error::ok_in(room, json))
}

fn worker<'j>(json: &'j mut Json, lease: Option<&Uuid>) -> &'j mut Json {
    json.option(lease, Json::uuid)
}

/// Hours with two digits behind the point.
fn hours(json: &mut Json, seconds: u64) -> &mut Json {
    let hundredths = seconds / 36;
    json.u64(hundredths / 100).raw(".");
    json.u64(hundredths / 10 % 10).u64(hundredths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_have_two_digits() {
        for (seconds, expected) in
            [(0, "0.00"), (35, "0.00"), (36, "0.01"), (5400, "1.50"), (359_964, "99.99")]
        {
            let mut json = Json::new();
            hours(&mut json, seconds);
            assert_eq!(json.as_slice(), expected.as_bytes());
        }
    }
}
