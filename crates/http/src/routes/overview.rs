//! `GET /api/v1/resources/namespaces`, `/tasks` and `/overview`.

use queen_broker::api::{Api, Label, Spread};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared;

/// Sums by namespace or task.
pub(crate) async fn labels<A: Api>(call: &Call<'_, A>, label: Label) -> Result<Answer, ApiError> {
    let rows = call.api()?.labels(call.tenant, label).await?;
    let (list, name) = match label {
        Label::Namespace => ("namespaces", "namespace"),
        Label::Task => ("tasks", "task"),
    };
    let bytes = 64 + rows.len() * 128;
    let room = call.room(shared::wide(bytes)).await?;
    let mut json = Json::with_capacity(bytes);
    json.raw("{").field(list).raw("[");
    for row in &rows {
        json.next().raw("{").field(name).string(&row.label).field("queues").u64(row.queues);
        json.field("partitions").u64(row.partitions);
        json.field("messages").raw("{").field("total").u64(row.counts.total);
        json.field("pending").u64(row.counts.pending.saturating_sub(row.counts.processing));
        json.raw("}}");
    }
    json.raw("]}");
    Ok(error::ok_in(room, json))
}

/// Everything in one view.
pub(crate) async fn overview<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let view = call.api()?.overview(call.tenant).await?;
    let counts = &view.counts;
    let mut json = Json::new();
    json.raw("{").field("queues").u64(view.queues).field("partitions").u64(view.partitions);
    json.field("namespaces").u64(view.namespaces).field("tasks").u64(view.tasks);
    json.field("messages").raw("{").field("total").u64(counts.total);
    json.field("pending").u64(counts.pending.saturating_sub(counts.processing));
    json.field("processing").u64(counts.processing).field("completed").u64(counts.completed);
    json.field("failed").u64(0).field("deadLetter").u64(counts.dead_letter).raw("}");
    json.field("lag").raw("{");
    spread(json.field("time"), view.lag_seconds);
    spread(json.field("offset"), view.lag_messages).raw("}");
    json.field("timestamp").iso3(view.now).field("statsAge").u64(view.age_seconds).raw("}");
    Ok(error::ok(json))
}

/// Median and minimum are 0 by contract.
fn spread(json: &mut Json, spread: Spread) -> &mut Json {
    json.raw("{").field("avg").u64(spread.mean).field("median").u64(0);
    json.field("min").u64(0).field("max").u64(spread.max).raw("}")
}
