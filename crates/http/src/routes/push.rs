//! `POST /api/v1/push`.
//!
//! Items are borrowed from the body and payloads are slices of it (H3). The first item that is incomplete ends
//! the reading, so a body of many empty items costs nothing.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::StatusCode;
use queen_broker::api::{Api, PushAnswer, PushBatch, PushItem, PushStatus, escaped_len};
use queen_broker::offload::offload;
use queen_model::TRANSACTION_ID_BYTES_MAX;
use queen_record::frame::Frames;
use queen_record::ids::Uuid;
use serde::de::{Error, MapAccess};

use crate::app::Call;
use crate::binary::{Binary, BinaryPush};
use crate::budget::Room;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, List, Object, Raw, Text, skip};
use crate::routes::shared::{ITEMS_MAX, wide};

/// The partition of an item that names none.
pub(crate) const PARTITION_DEFAULT: &str = "Default";
/// Bytes of an answer's element with names of a usual length.
const ELEMENT_BYTES: usize = 220;
/// Bytes of an answer's element at most, the names of its message aside.
const ELEMENT_JSON_MAX: u64 = 400;

/// Stores messages.
pub(crate) async fn push<A: Api>(call: &Call<'_, A>, body: &Bytes) -> Result<Answer, ApiError> {
    call.count(|stats| &stats.push_requests, 1);
    if BinaryPush::is(body) {
        return binary(call, body).await;
    }
    let read = offload(body.len(), || Body::read(body))?;
    store(call, read.items(), false).await
}

/// Stores messages that came in a binary form.
async fn binary<A: Api>(call: &Call<'_, A>, body: &Bytes) -> Result<Answer, ApiError> {
    let mut limits = call.group_reader();
    let push = BinaryPush::open(body, &mut limits)?;
    match offload(push.content_len(), || push.read(&mut limits))? {
        Binary::Items(items) => store(call, items, push.wants_counts()).await,
        Binary::Framed(groups) => {
            let named = || {
                groups.iter().flat_map(|group| {
                    let frames = Frames::new(&group.frames).filter_map(Result::ok);
                    frames.map(|frame| (&*group.queue, Some(frame.transaction_id)))
                })
            };
            let bytes = if push.wants_counts() { 0 } else { json_len(named()) };
            let room = call.mirror_room(bytes).await?;
            let batch = PushBatch::Framed(&groups, call.sub.as_deref());
            let answers = call.api()?.push(call.tenant, batch, call.push_deadline()).await?;
            Ok(answer(
                call,
                named(),
                &answers,
                room.filter(|_| !push.wants_counts()),
                push.wants_counts(),
            ))
        }
    }
}

async fn store<A: Api>(
    call: &Call<'_, A>,
    mut items: Vec<PushItem<'_>>,
    counts: bool,
) -> Result<Answer, ApiError> {
    for item in &mut items {
        item.producer_sub = call.sub.as_deref();
    }
    let named = items.iter().map(|item| (item.queue, item.transaction_id));
    if items.is_empty() {
        return Ok(answer(call, named, &[], None, counts));
    }
    let bytes = if counts { 0 } else { json_len(named.clone()) };
    let room = call.mirror_room(bytes).await?;
    let batch = PushBatch::Items(&items);
    let answers = call.api()?.push(call.tenant, batch, call.push_deadline()).await?;
    Ok(answer(call, named, &answers, room, counts))
}

/// The answer to messages named by queue and transactionId.
fn answer<'a, A>(
    call: &Call<'_, A>,
    named: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    answers: &[PushAnswer],
    room: Option<Room>,
    counts: bool,
) -> Answer {
    call.count(|stats| &stats.push_messages, answers.len());
    if counts {
        return render_counts(answers);
    }
    let json = offload(answers.len() * ELEMENT_BYTES, || render(named, answers));
    error::json_in(StatusCode::CREATED, room, json)
}

/// Bytes of the answer to these messages at most.
fn json_len<'a>(named: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> u64 {
    let element = |(queue, id): (&str, Option<&str>)| {
        ELEMENT_JSON_MAX + escaped_len(queue) + id.map_or(0, escaped_len)
    };
    named.map(element).sum()
}

fn render_counts(answers: &[PushAnswer]) -> Answer {
    let count = |of: fn(&PushStatus) -> bool| {
        wide(answers.iter().filter(|answer| of(&answer.status)).count())
    };
    let mut json = Json::new();
    json.raw("{").field("count").u64(wide(answers.len()));
    json.field("queued").u64(count(|status| matches!(status, PushStatus::Queued(_))));
    json.field("duplicate").u64(count(|status| matches!(status, PushStatus::Duplicate(_))));
    json.field("error").u64(count(|status| matches!(status, PushStatus::Refused(_)))).raw("}");
    error::json(StatusCode::CREATED, json)
}

fn render<'a>(
    named: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    answers: &[PushAnswer],
) -> Json {
    let mut json = Json::with_capacity(answers.len() * ELEMENT_BYTES + 2);
    json.raw("[");
    for (index, ((queue, id), answer)) in named.zip(answers).enumerate() {
        json.next().raw("{").field("index").u64(wide(index));
        json.field("message_id").uuid(&answer.message_id).field("transaction_id");
        match id {
            Some(id) => json.string(id),
            None => json.uuid(&answer.message_id),
        };
        json.field("queueName").string(queue).field("status");
        match &answer.status {
            PushStatus::Queued(offset) => json.string("queued").field("offset").u64(offset.0),
            PushStatus::Duplicate(offset) => json.string("duplicate").field("offset").u64(offset.0),
            PushStatus::Refused(refusal) => {
                json.string("error").field("error").string(&refusal.to_string());
                json.field("code").string(refusal.code())
            }
        };
        json.raw("}");
    }
    json.raw("]");
    json
}

/// A push as its request gives it.
#[derive(Debug, Default)]
pub(crate) struct Body<'a> {
    items: Option<List<Object<Item<'a>>, ITEMS_MAX>>,
}

impl<'a> Body<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// 400; 413 for too many items.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, ApiError> {
        let read = read::body::<Object<Self>>(body)?.0;
        if read.items.as_ref().is_some_and(|items| items.is_too_long) {
            return Err(ApiError::too_many("items", ITEMS_MAX));
        }
        Ok(read)
    }

    /// Its messages.
    pub(crate) fn items(&self) -> Vec<PushItem<'_>> {
        let items = self.items.as_ref().map(|items| &*items.items).unwrap_or_default();
        items.iter().map(|item| item.0.borrow()).collect()
    }
}

impl<'de> Fields<'de> for Body<'de> {
    const NAME: &'static str = "an object with \"items\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "items" => self.items = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }

    fn check<E: Error>(&self) -> Result<(), E> {
        if self.items.is_none() { Err(E::missing_field("items")) } else { Ok(()) }
    }
}

/// A message as a request gives it.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    queue: Option<Text<'a>>,
    partition: Option<Text<'a>>,
    pub(super) transaction_id: Option<Text<'a>>,
    /// `null` is a payload, so this is not read as an option.
    payload: Option<Raw<'a>>,
    /// An older name of the payload, in transactions.
    data: Option<Raw<'a>>,
    trace_id: Option<Raw<'a>>,
}

impl<'de> Fields<'de> for Item<'de> {
    const NAME: &'static str = "an item with \"queue\" and \"payload\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "queue" => self.queue = map.next_value()?,
            "partition" => self.partition = map.next_value()?,
            "transactionId" => self.transaction_id = map.next_value()?,
            "payload" => self.payload = Some(map.next_value()?),
            "data" => self.data = Some(map.next_value()?),
            "traceId" => self.trace_id = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }

    fn check<E: Error>(&self) -> Result<(), E> {
        if filled(self.queue.as_ref()).is_none() {
            return Err(E::missing_field("queue"));
        }
        if self.payload.is_none() {
            return Err(E::missing_field("payload"));
        }
        check_id(self.transaction_id.as_ref())
    }
}

/// Refuses a transactionId that no message can carry.
pub(super) fn check_id<E: Error>(id: Option<&Text<'_>>) -> Result<(), E> {
    match filled(id) {
        Some(id) if id.len() > TRANSACTION_ID_BYTES_MAX => Err(E::custom(format_args!(
            "transactionId is longer than {TRANSACTION_ID_BYTES_MAX} bytes"
        ))),
        _ => Ok(()),
    }
}

impl Item<'_> {
    /// The message of a push, by nobody: a trace id is taken and dropped.
    fn borrow(&self) -> PushItem<'_> {
        PushItem {
            queue: filled(self.queue.as_ref()).unwrap_or_default(),
            partition: filled(self.partition.as_ref()).unwrap_or(PARTITION_DEFAULT),
            transaction_id: filled(self.transaction_id.as_ref()),
            payload: self.payload.map_or("", |payload| payload.0).as_bytes(),
            producer_sub: None,
            trace_id: None,
        }
    }

    /// Whether a transaction can store it: it has a queue and a payload.
    pub(super) fn is_whole(&self) -> bool {
        filled(self.queue.as_ref()).is_some() && (self.payload.is_some() || self.data.is_some())
    }

    /// The message of a transaction: a trace id that is a UUID is stored; `None` without queue or payload.
    pub(super) fn of_transaction(&self) -> Option<PushItem<'_>> {
        if !self.is_whole() {
            return None;
        }
        let payload = self.payload.or(self.data)?;
        let trace = self.trace_id.and_then(|raw| serde_json::from_str::<Text<'_>>(raw.0).ok());
        let trace_id = trace.and_then(|text| Uuid::parse(&text.0));
        Some(PushItem { payload: payload.0.as_bytes(), trace_id, ..self.borrow() })
    }
}

/// A text that is there and not empty.
pub(super) fn filled<'a>(text: Option<&'a Text<'_>>) -> Option<&'a str> {
    text.map(|text| -> &'a Cow<'_, str> { &text.0 })
        .map(AsRef::as_ref)
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(body: &str) -> Option<(String, String, Option<String>, String)> {
        let body = Body::read(body.as_bytes()).ok()?;
        let item = *body.items().first()?;
        let payload = String::from_utf8(item.payload.to_vec()).unwrap();
        let id = item.transaction_id.map(str::to_owned);
        Some((item.queue.to_owned(), item.partition.to_owned(), id, payload))
    }

    fn check(body: &str, expected: (&str, &str, Option<&str>, &str)) {
        let (queue, partition, id, payload) = expected;
        let expected = (queue.into(), partition.into(), id.map(Into::into), payload.into());
        assert_eq!(item(body), Some(expected), "{body}");
    }

    #[test]
    fn defaults_nulls_and_escapes() {
        check(r#"{"items":[{"queue":"q","payload":null}]}"#, ("q", "Default", None, "null"));
        check(
            r#"{"items":[{"payload":{ "a" :1.0e2 },"queue":"q","partition":"","transactionId":""}]}"#,
            ("q", "Default", None, r#"{ "a" :1.0e2 }"#),
        );
        check(
            "{\"x\":{},\"items\":[{\"queue\":\"a\\nb\",\"partition\":null,\"traceId\":5,\
             \"transactionId\":\"\\u00e9\",\"payload\":\"\\ud800\"}]}",
            ("a\nb", "Default", Some("é"), "\"\\ud800\""),
        );
    }

    #[test]
    fn the_last_of_equal_names_counts() {
        let body = r#"{"items":[],"items":[{"queue":"a","queue":"b","payload":1,"payload":2}]}"#;
        check(body, ("b", "Default", None, "2"));
    }

    #[test]
    fn incomplete_or_wrong_items_are_refused() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"items":null}"#,
            r#"{"items":{}}"#,
            r#"{"items":[{}]}"#,
            r#"{"items":[{"queue":"q"}]}"#,
            r#"{"items":[{"queue":"","payload":1}]}"#,
            r#"{"items":[{"queue":null,"payload":1}]}"#,
            r#"{"items":[{"queue":5,"payload":1}]}"#,
            r#"{"items":[{"queue":"\ud800","payload":1}]}"#,
            r#"{"items":[{"queue":"q","payload":NaN}]}"#,
            r#"{"items":[{"queue":"q","payload":1}]} x"#,
            "\u{feff}{\"items\":[]}",
        ] {
            assert!(Body::read(body.as_bytes()).is_err(), "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0_u8.., 0..200)) {
            proptest::prop_assert!(Body::read(&bytes).is_err());
        }
    }
}
