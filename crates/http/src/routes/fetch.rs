//! `POST /api/v1/fetch` and `POST /api/v1/fetch/offsets`.

use std::time::Duration;

use queen_broker::api::{
    Api, Bounds, FETCH_ENTRY_BYTES_MAX, FETCH_WAIT_MAX, FetchEntry, FetchError, FetchRequest,
    Fetched, OffsetFound, OffsetQuery, escaped_len,
};
use queen_broker::offload::offload;
use queen_record::ids::{Micros, Tenant};
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, Integer, Object, Raw, Text, skip};
use crate::routes::shared::{Entries, Place, UNKNOWN_QUEUE, entries, message_json_len, wide};
use crate::time;

/// Payload bytes of an entry that names no bound.
const ENTRY_BYTES_DEFAULT: i64 = 1024 * 1024;

/// Reads messages by offset.
pub(crate) async fn fetch<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let request = request(call.tenant, body)?;
    let names = request.entries.iter();
    let names: Vec<(String, String)> =
        names.map(|entry| (entry.queue.clone(), entry.partition.clone())).collect();
    let fetched = call.api()?.fetch(request).await?;
    let bytes = json_len(&names, &fetched);
    let room = call.room(bytes).await?;
    Ok(error::ok_in(room, offload(bytes, || render(&names, &fetched))))
}

/// Bytes of the answer at most.
fn json_len(names: &[(String, String)], fetched: &[Fetched]) -> u64 {
    let name =
        |(queue, partition): &(String, String)| 256 + escaped_len(queue) + escaped_len(partition);
    let entry = |entry: &Fetched| {
        let texts: u64 = entry.messages.iter().map(message_json_len).sum();
        wide(entry.messages.len()) * 128 + texts
    };
    64 + names.iter().map(name).sum::<u64>() + fetched.iter().map(entry).sum::<u64>()
}

/// What a body asks for.
pub(crate) fn request(tenant: Tenant, body: &[u8]) -> Result<FetchRequest, ApiError> {
    let body = read::body::<Object<Body<Entry<'_>>>>(body)?.0;
    let wait = body.wait_ms.map_or(0, |wait| u64::try_from(wait.0).unwrap_or(0));
    let bytes_max = body.bytes_max.map_or(u64::MAX, |bytes| positive(bytes.0));
    let bytes_min = body.bytes_min.map_or(1, |bytes| u64::try_from(bytes.0).unwrap_or(0));
    let entries = entries(body.entries)?;
    let entries = entries.into_iter().map(Entry::into_entry).collect::<Result<Vec<_>, _>>()?;
    Ok(FetchRequest {
        tenant,
        entries,
        bytes_max,
        wait: Duration::from_millis(wait).min(FETCH_WAIT_MAX),
        bytes_min,
    })
}

fn render(names: &[(String, String)], fetched: &[Fetched]) -> Json {
    let messages = fetched.iter().flat_map(|entry| &entry.messages);
    let bytes: usize = messages.map(|message| message.data.len() + 160).sum();
    let mut json = Json::with_capacity(64 + fetched.len() * 160 + bytes);
    json.raw("{").field("entries").raw("[");
    for ((queue, partition), entry) in names.iter().zip(fetched) {
        json.next().raw("{").field("queue").string(queue).field("partition").string(partition);
        json.field("records").raw("[");
        for message in &entry.messages {
            json.next().raw("{").field("offset").u64(message.offset.0);
            json.field("transactionId").text(&message.transaction_id);
            json.field("payload").verbatim(&message.data);
            json.field("ts").iso6(message.created).raw("}");
        }
        json.raw("]");
        bounds(&mut json, entry.bounds);
        match entry.error {
            None => {}
            Some(FetchError::UnknownQueue) => {
                json.field("error").string(UNKNOWN_QUEUE);
            }
            Some(FetchError::OffsetOutOfRange) => {
                json.field("error").string("OFFSET_OUT_OF_RANGE");
            }
        }
        json.raw("}");
    }
    json.raw("]}");
    json
}

fn bounds(json: &mut Json, bounds: Bounds) {
    json.field("highWatermark").u64(bounds.high_watermark);
    json.field("logStartOffset").u64(bounds.log_start);
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0).max(1)
}

/// The first offsets at or after given times.
pub(crate) async fn offsets<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body = read::body::<Object<Body<TimeEntry<'_>>>>(body)?.0;
    let entries = entries(body.entries)?;
    let queries = entries.into_iter().map(TimeEntry::into_query).collect::<Result<Vec<_>, _>>()?;
    let found = call.api()?.offsets(call.tenant, queries.clone()).await?;
    let mut json = Json::with_capacity(64 + found.len() * 200);
    json.raw("{").field("entries").raw("[");
    for (query, found) in queries.iter().zip(&found) {
        offset(&mut json, query, found);
    }
    json.raw("]}");
    Ok(error::ok(json))
}

fn offset(json: &mut Json, query: &OffsetQuery, answer: &OffsetFound) {
    json.next().raw("{").field("queue").string(&query.queue);
    json.field("partition").string(&query.partition);
    json.field("offset").option(answer.found.map(|(offset, _)| offset), Json::u64);
    json.field("ts").option(answer.found.map(|(_, created)| created), Json::iso6);
    bounds(json, answer.bounds);
    if answer.unknown {
        json.field("error").string(UNKNOWN_QUEUE);
    }
    json.raw("}");
}

#[derive(Debug)]
struct Body<T> {
    entries: Option<Entries<T>>,
    bytes_max: Option<Integer>,
    wait_ms: Option<Integer>,
    bytes_min: Option<Integer>,
}

impl<T> Default for Body<T> {
    fn default() -> Self {
        Self { entries: None, bytes_max: None, wait_ms: None, bytes_min: None }
    }
}

impl<'de, T: Fields<'de>> Fields<'de> for Body<T> {
    const NAME: &'static str = "an object with \"entries\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "entries" => self.entries = map.next_value()?,
            "maxBytes" => self.bytes_max = map.next_value()?,
            "maxWaitMs" => self.wait_ms = map.next_value()?,
            "minBytes" => self.bytes_min = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Entry<'a> {
    place: Place<'a>,
    offset: Option<Integer>,
    bytes_max: Option<Integer>,
}

impl<'de> Fields<'de> for Entry<'de> {
    const NAME: &'static str = "an entry with \"queue\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "offset" => self.offset = map.next_value()?,
            "maxBytes" => self.bytes_max = map.next_value()?,
            _ => self.place.field(name, map)?,
        }
        Ok(())
    }
}

impl Entry<'_> {
    fn into_entry(self) -> Result<FetchEntry, ApiError> {
        let (queue, partition) = self.place.names()?;
        let offset = u64::try_from(self.offset.map_or(0, |offset| offset.0));
        let offset =
            offset.map_err(|_| ApiError::bare_bad_request("offset must be non-negative"))?;
        let bytes = positive(self.bytes_max.map_or(ENTRY_BYTES_DEFAULT, |bytes| bytes.0));
        let bytes_max = bytes.min(FETCH_ENTRY_BYTES_MAX);
        Ok(FetchEntry { queue, partition, offset, bytes_max })
    }
}

#[derive(Debug, Default)]
struct TimeEntry<'a> {
    place: Place<'a>,
    at: Option<Raw<'a>>,
}

impl<'de> Fields<'de> for TimeEntry<'de> {
    const NAME: &'static str = "an entry with \"queue\" and \"timestamp\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "timestamp" => self.at = map.next_value()?,
            _ => self.place.field(name, map)?,
        }
        Ok(())
    }
}

impl TimeEntry<'_> {
    fn into_query(self) -> Result<OffsetQuery, ApiError> {
        let (queue, partition) = self.place.names()?;
        let at = self.at.ok_or_else(|| ApiError::bad_request("timestamp is required"))?;
        let at = timestamp(at.0).ok_or_else(|| {
            ApiError::bad_request("timestamp must be milliseconds since 1970 or a time")
        })?;
        Ok(OffsetQuery { queue, partition, at })
    }
}

/// Milliseconds since the epoch, or a time in any accepted form.
fn timestamp(raw: &str) -> Option<Micros> {
    match read::integer(raw) {
        Some(millis) => Some(Micros(0).plus_millis(millis)),
        None => time::parse(&serde_json::from_str::<Text<'_>>(raw).ok()?.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_milliseconds_or_times() {
        assert_eq!(timestamp("1500"), Some(Micros(1_500_000)));
        assert_eq!(timestamp("-1"), Some(Micros(-1000)));
        assert_eq!(timestamp("99999999999999999999"), Some(Micros(i64::MAX)));
        assert_eq!(timestamp(r#""1970-01-01T00:00:01.5Z""#), Some(Micros(1_500_000)));
        for other in ["1.5", "true", "{}", r#""soon""#, r#""1500""#] {
            assert_eq!(timestamp(other), None, "{other}");
        }
    }
}
