//! `POST /api/v1/partitions/changed`.

use queen_broker::api::{
    Api, CHANGED_LIMIT_MAX, ChangedError, ChangedPage, ChangedQuery, escaped_len,
};
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, Integer, Object, Text, skip};
use crate::routes::shared::{Entries, UNKNOWN_QUEUE, count, entries};
use crate::time;

/// Partitions that were written lately, page by page.
pub(crate) async fn changed<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body = read::body::<Object<Body<'_>>>(body)?.0;
    let entries = entries(body.entries)?;
    let queries = entries.into_iter().map(Entry::into_query).collect::<Result<Vec<_>, _>>()?;
    let changed = call.api()?.changed(call.tenant, queries.clone()).await?;
    let rows = changed.pages.iter().flatten().flat_map(|page| &page.partitions);
    let rows: u64 = rows.map(|row| 200 + escaped_len(&row.name)).sum();
    let names: u64 = queries.iter().map(|query| 192 + escaped_len(&query.queue)).sum();
    let bytes = 128 + names + rows;
    let room = call.room(bytes).await?;
    let mut json = Json::with_capacity(usize::try_from(bytes).unwrap_or(0));
    // The same spelling as `lastWriteAt`: clients compare the two as texts.
    json.raw("{").field("safeTime").iso6(changed.safe_time);
    json.field("safeTimeDegraded").bool(false).field("entries").raw("[");
    for (query, answer) in queries.iter().zip(&changed.pages) {
        json.next().raw("{").field("queue").string(&query.queue);
        match answer {
            Ok(found) => page(&mut json, found),
            Err(ChangedError::UnknownQueue) => json.field("error").string(UNKNOWN_QUEUE),
            Err(ChangedError::BadCursor) => json.field("error").string("BAD_CURSOR"),
        };
        json.raw("}");
    }
    json.raw("]}");
    Ok(error::ok_in(room, json))
}

fn page<'j>(json: &'j mut Json, page: &ChangedPage) -> &'j mut Json {
    json.field("partitions").raw("[");
    for row in &page.partitions {
        json.next().raw("{").field("name").string(&row.name).field("id").uuid(&row.uuid);
        json.field("lastOffset").i64(row.last_offset).field("logStart").u64(row.log_start);
        json.field("lastWriteAt").iso6(row.last_write).raw("}");
    }
    json.raw("]").field("next").option(page.next.as_deref(), Json::string)
}

#[derive(Debug, Default)]
struct Body<'a> {
    entries: Option<Entries<Entry<'a>>>,
}

impl<'de> Fields<'de> for Body<'de> {
    const NAME: &'static str = "an object with \"entries\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "entries" => self.entries = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Entry<'a> {
    queue: Option<Text<'a>>,
    since: Option<Text<'a>>,
    after: Option<Text<'a>>,
    limit: Option<Integer>,
}

impl<'de> Fields<'de> for Entry<'de> {
    const NAME: &'static str = "an entry with \"queue\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "queue" => self.queue = map.next_value()?,
            "since" => self.since = map.next_value()?,
            "after" => self.after = map.next_value()?,
            "limit" => self.limit = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl Entry<'_> {
    fn into_query(self) -> Result<ChangedQuery, ApiError> {
        let queue = self.queue.map(|queue| queue.0).filter(|queue| !queue.is_empty());
        let queue = queue.ok_or_else(|| ApiError::bad_request("every entry needs a queue"))?;
        let since = self.since.map(|since| {
            time::parse(&since.0).ok_or_else(|| ApiError::bad_request("since is not a time"))
        });
        let limit = self.limit.map_or(CHANGED_LIMIT_MAX, |limit| count(limit.0));
        Ok(ChangedQuery {
            queue: queue.into_owned(),
            since: since.transpose()?,
            after: self.after.map(|after| after.0.into_owned()),
            limit: limit.clamp(1, CHANGED_LIMIT_MAX),
        })
    }
}
