//! `POST /api/v1/ack` and `POST /api/v1/ack/batch`: both read both shapes, both answer an array.

use queen_broker::api::{AckAnswer, AckDone, AckItem, AckStatus, Api, escaped_len};
use queen_broker::offload::offload;
use queen_record::ids::PartitionId;
use serde::de::{Error, MapAccess};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, List, Object, Raw, Text, skip};
use crate::routes::shared::{self, ITEMS_MAX, wide};

/// Bytes of an answer's element, the transactionId aside.
const ELEMENT_BYTES: usize = 130;
/// Bytes of an answer's element at most, what it repeats of the acknowledgment aside.
const ELEMENT_JSON_MAX: u64 = 400;

/// Settles messages.
pub(crate) async fn ack<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    call.count(|stats| &stats.ack_requests, 1);
    let (group, items) = offload(body.len(), || request(body))?;
    if items.is_empty() {
        return Ok(error::ok(render(&[], &[])));
    }
    let room = call.mirror_room(items.iter().map(json_len).sum()).await?;
    let ids: Vec<String> = items.iter().map(|item| item.transaction_id.clone()).collect();
    let answers = call.api()?.ack(call.tenant, group, items, call.deadline()).await?;
    call.count(|stats| &stats.ack_messages, answers.len());
    let json = offload(answers.len() * ELEMENT_BYTES, || render(&ids, &answers));
    Ok(error::ok_in(room, json))
}

/// Bytes of an acknowledgment's element of the answer at most: what is wrong may name the id and the lease.
fn json_len(item: &AckItem) -> u64 {
    let lease = item.lease.as_ref().map_or(0, escaped_len);
    ELEMENT_JSON_MAX + 2 * escaped_len(&item.transaction_id) + lease
}

/// The group and the acknowledgments of a body.
pub(crate) fn request(body: &[u8]) -> Result<(String, Vec<AckItem>), ApiError> {
    let body = read::body::<Object<Body<'_>>>(body)?.0;
    let group = shared::group(body.group.as_ref().map(|group| &*group.0));
    Ok((group, body.items()?))
}

fn render(ids: &[String], answers: &[AckAnswer]) -> Json {
    let names: usize = ids.iter().map(String::len).sum();
    let mut json = Json::with_capacity(ids.len() * ELEMENT_BYTES + names + 2);
    json.raw("[");
    for (index, (id, answer)) in ids.iter().zip(answers).enumerate() {
        let (done, failure) = match &answer.result {
            Ok(done) => (*done, None),
            Err(text) => (AckDone::default(), Some(&**text)),
        };
        json.next().raw("{").field("index").u64(wide(index));
        json.field("transactionId").string(id).field("success").bool(failure.is_none());
        json.field("error").option(failure, Json::string);
        json.field("leaseReleased").bool(done.lease_released);
        json.field("dlq").bool(done.dead_lettered);
        json.field("noop").bool(done.noop).raw("}");
    }
    json.raw("]");
    json
}

#[derive(Debug, Default)]
struct Body<'a> {
    /// A list, also an empty one, makes a body without a single acknowledgment complete.
    list: Option<List<Object<Item<'a>>, ITEMS_MAX>>,
    single: Item<'a>,
    group: Option<Text<'a>>,
}

impl<'de> Fields<'de> for Body<'de> {
    const NAME: &'static str = "an acknowledgment or an object with \"acknowledgments\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "acknowledgments" => self.list = map.next_value()?,
            "consumerGroup" => self.group = map.next_value()?,
            _ => self.single.field(name, map)?,
        }
        Ok(())
    }
}

impl Body<'_> {
    fn items(self) -> Result<Vec<AckItem>, ApiError> {
        match self.list {
            Some(list) if list.is_too_long => Err(ApiError::too_many("acknowledgments", ITEMS_MAX)),
            Some(list) if !list.items.is_empty() || self.single.transaction_id.is_none() => {
                Ok(list.items.into_iter().map(|item| item.0.into_item()).collect())
            }
            _ if self.single.transaction_id.is_some() => Ok(vec![self.single.into_item()]),
            _ => Err(ApiError::bad_body("transactionId or acknowledgments is required")),
        }
    }
}

/// An acknowledgment as a request gives it.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    pub(super) transaction_id: Option<Text<'a>>,
    pub(super) partition_id: Option<Raw<'a>>,
    pub(super) lease: Option<Text<'a>>,
    pub(super) status: Option<Text<'a>>,
    pub(super) error: Option<Raw<'a>>,
}

impl<'de> Fields<'de> for Item<'de> {
    const NAME: &'static str = "an acknowledgment";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "transactionId" => self.transaction_id = map.next_value()?,
            "partitionId" => self.partition_id = map.next_value()?,
            "leaseId" => self.lease = map.next_value()?,
            "status" => self.status = map.next_value()?,
            "error" => self.error = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }

    fn check<E: Error>(&self) -> Result<(), E> {
        if self.transaction_id.is_none() { Err(E::missing_field("transactionId")) } else { Ok(()) }
    }
}

impl Item<'_> {
    pub(super) fn into_item(self) -> AckItem {
        let owned = |text: Text<'_>| text.0.into_owned();
        AckItem {
            transaction_id: self.transaction_id.map(owned).unwrap_or_default(),
            partition_id: self.partition_id.and_then(|raw| partition_id(raw.0)),
            lease: self.lease.map(owned).filter(|lease| !lease.is_empty()),
            status: self.status.map_or(AckStatus::Completed, |text| status(&text.0)),
            error: self.error.and_then(|raw| reason(raw.0)),
        }
    }
}

/// The number in a string of digits, or in a bare number.
fn partition_id(raw: &str) -> Option<PartitionId> {
    let text: Text<'_> = serde_json::from_str(raw).unwrap_or_else(|_| Text(raw.into()));
    let is_number = !text.0.is_empty() && text.0.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.0.parse().ok().map(PartitionId) } else { None }
}

fn status(text: &str) -> AckStatus {
    let statuses = [
        ("failed", AckStatus::Failed),
        ("retry", AckStatus::Retry),
        ("dlq", AckStatus::DeadLetter),
    ];
    let found = statuses.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found.map_or(AckStatus::Completed, |(_, status)| *status)
}

/// A reason is a text; any other value is kept as its JSON, since it is shown to a person only. An empty one says nothing.
fn reason(raw: &str) -> Option<String> {
    match serde_json::from_str::<Option<Text<'_>>>(raw) {
        Ok(text) => text.map(|text| text.0.into_owned()).filter(|text| !text.is_empty()),
        Err(_) => Some(raw.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_id_is_digits() {
        for (raw, expected) in [
            (r#""4""#, Some(4)),
            ("4", Some(4)),
            (r#""04""#, Some(4)),
            (r#""""#, None),
            (r#""-4""#, None),
            (r#""+4""#, None),
            ("4.0", None),
            (r#""18446744073709551616""#, None),
            (r#"{"a":1}"#, None),
        ] {
            assert_eq!(partition_id(raw), expected.map(PartitionId), "{raw}");
        }
    }

    #[test]
    fn any_other_status_is_completed() {
        assert_eq!(status("FAILED"), AckStatus::Failed);
        assert_eq!(status("Retry"), AckStatus::Retry);
        assert_eq!(status("dlq"), AckStatus::DeadLetter);
        assert_eq!(status("whatever"), AckStatus::Completed);
    }

    #[test]
    fn a_reason_that_is_no_text_is_kept_as_json() {
        assert_eq!(reason(r#""a\"b""#).as_deref(), Some("a\"b"));
        assert_eq!(reason(r#"{"a":1}"#).as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(reason("null"), None);
        assert_eq!(reason(r#""""#), None);
    }
}
