//! `POST /api/v1/consumer-groups/positions`: where a group reads next.

use queen_broker::api::{Api, Position, escaped_len};
use queen_broker::offload::offload;
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, List, Object, Raw, Text, skip};
use crate::routes::shared::{Place, wide};

/// Entries of one call at most.
const ENTRIES_MAX: usize = 65_536;

/// One answer per entry in order; without entries every position that the group has.
pub(crate) async fn positions<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body =
        if read::is_empty(body) { Body::default() } else { read::body::<Object<_>>(body)?.0 };
    let group = body.group.map(|group| group.0).filter(|group| !group.is_empty());
    let group =
        group.ok_or_else(|| ApiError::bad_request("consumerGroup is required"))?.into_owned();
    let entries = body.entries.map(|raw| entries(raw.0)).transpose()?;
    let found = call.api()?.positions(call.tenant, group.clone(), entries).await?;
    let bytes = found.iter().map(json_len).sum::<u64>() + escaped_len(&group) + 64;
    let room = call.room(bytes).await?;
    Ok(error::ok_in(room, offload(bytes, || render(&group, &found))))
}

/// Bytes of a position in the answer at most.
fn json_len(position: &Position) -> u64 {
    let note = position.next.as_ref().map_or(0, |(_, note)| escaped_len(note));
    wide(80) + escaped_len(&position.queue) + escaped_len(&position.partition) + note
}

fn render(group: &str, positions: &[Position]) -> Json {
    let mut json = Json::with_capacity(64 + positions.len() * 96);
    json.raw("{").field("consumerGroup").string(group).field("entries").raw("[");
    for position in positions {
        row(&mut json, position);
    }
    json.raw("]}");
    json
}

fn row(json: &mut Json, position: &Position) {
    json.next().raw("{").field("queue").string(&position.queue);
    json.field("partition").string(&position.partition);
    match &position.next {
        Some((offset, metadata)) => {
            json.field("offset").u64(*offset).field("metadata").string(metadata)
        }
        None => json.field("offset").null(),
    };
    json.raw("}");
}

/// Queue and partition of each entry.
fn entries(raw: &str) -> Result<Vec<(String, String)>, ApiError> {
    let bad = |what: String| ApiError::bad_request(format!("entries: {what}"));
    let list: List<Object<Place<'_>>, ENTRIES_MAX> =
        serde_json::from_str(raw).map_err(|error| bad(error.to_string()))?;
    if list.is_too_long {
        return Err(bad(format!("at most {ENTRIES_MAX}")));
    }
    list.items.into_iter().map(|place| place.0.names()).collect()
}

#[derive(Debug, Default)]
struct Body<'a> {
    group: Option<Text<'a>>,
    entries: Option<Raw<'a>>,
}

impl<'de> Fields<'de> for Body<'de> {
    const NAME: &'static str = "an object with \"consumerGroup\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "consumerGroup" => self.group = map.next_value()?,
            "entries" => self.entries = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}
