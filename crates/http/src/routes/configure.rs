//! `POST /api/v1/configure`.

use queen_broker::api::Api;
use queen_model::{OptionsPatch, Patch};

use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, Object, Raw, Text, skip};
use crate::routes::shared;

/// Bytes of a `retentionSinkHold` name at most.
const SINK_HOLD_BYTES_MAX: usize = 64;
/// Seconds: one minute to one year.
const SINK_HOLD_SECONDS: std::ops::RangeInclusive<i32> = 60..=31_536_000;

/// Letters of a mode that there is not that an error shows.
const SHOWN_MAX: usize = 64;
/// The fields that mean something, in the body or in its options.
const NAMES: &[&str] = &[
    "queue",
    "mode",
    "options",
    "namespace",
    "task",
    "priority",
    "leaseTime",
    "retryLimit",
    "retryDelay",
    "ttl",
    "deadLetterQueue",
    "dlqAfterMaxRetries",
    "delayedProcessing",
    "windowBuffer",
    "retentionSeconds",
    "completedRetentionSeconds",
    "retentionEnabled",
    "encryptionEnabled",
    "maxWaitTimeSeconds",
    "maxSize",
    "maxQueueSize",
    "minPopWaitTime",
    "dedupWindowSeconds",
    "retentionSinkHold",
    "retentionSinkHoldMaxSeconds",
];

/// Makes a queue or changes one.
pub(crate) async fn configure<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let Request { queue, patch, replace } = request(body)?;
    let deadline = call.deadline();
    let done = call.api()?.configure(call.tenant, queue.clone(), patch, replace, deadline).await?;
    let mut json = Json::new();
    json.raw("{").field("configured").bool(true).field("queueId").uuid(&done.queue_id);
    json.field("partitionId").null().field("queue").string(&queue);
    json.field("namespace").string(&done.options.namespace);
    json.field("task").string(&done.options.task).field("storage").string("segments");
    shared::options(json.field("options"), &done.options).raw("}");
    Ok(error::ok(json))
}

/// What a body asks for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) queue: String,
    pub(crate) patch: OptionsPatch,
    pub(crate) replace: bool,
}

/// Reads a body.
pub(crate) fn request(body: &[u8]) -> Result<Request, ApiError> {
    let body = read::body::<Object<Named<'_>>>(body)?.0;
    let queue = body.get("queue").and_then(text).filter(|queue| !queue.is_empty());
    let queue = queue.ok_or_else(|| ApiError::bad_request("queue is required"))?;
    let replace = match body.get("mode") {
        None | Some("null") => false,
        Some(mode) => match text(mode).as_deref() {
            Some("merge") => false,
            Some("replace") => true,
            _ => {
                let shown: String = mode.chars().take(SHOWN_MAX).collect();
                let text = format!("mode must be \"merge\" or \"replace\", got {shown}");
                return Err(ApiError::bare_bad_request(text));
            }
        },
    };
    Ok(Request { queue, patch: patch(&body)?, replace })
}

/// The options that the body mentions.
fn patch(body: &Named<'_>) -> Result<OptionsPatch, ApiError> {
    // Labels at the top level are sent as null by clients that mean nothing by it.
    let nested = match body.get("options") {
        Some(options) if options.starts_with('{') => {
            Some(read::body::<Object<Named<'_>>>(options.as_bytes())?.0)
        }
        _ => None,
    };
    let (options, is_nested) = (nested.as_ref().unwrap_or(body), nested.is_some());
    let label = |name| match options.text(name)? {
        Patch::Set(text) if !is_nested && text.is_empty() => Ok(Patch::Absent),
        Patch::Reset if !is_nested => Ok(Patch::Absent),
        Patch::Absent if is_nested => match body.text(name)? {
            Patch::Set(text) if !text.is_empty() => Ok(Patch::Set(text)),
            _ => Ok(Patch::Absent),
        },
        patch => Ok::<_, ApiError>(patch),
    };
    Ok(OptionsPatch {
        namespace: label("namespace")?,
        task: label("task")?,
        priority: options.integer("priority")?,
        lease_time: options.integer("leaseTime")?,
        retry_limit: options.integer("retryLimit")?,
        retry_delay: options.integer("retryDelay")?,
        ttl: options.integer("ttl")?,
        dead_letter_queue: options.boolean("deadLetterQueue")?,
        dlq_after_max_retries: options.boolean("dlqAfterMaxRetries")?,
        delayed_processing: options.integer("delayedProcessing")?,
        window_buffer: options.integer("windowBuffer")?,
        retention_seconds: options.integer("retentionSeconds")?,
        completed_retention_seconds: options.integer("completedRetentionSeconds")?,
        retention_enabled: options.boolean("retentionEnabled")?,
        encryption_enabled: options.boolean("encryptionEnabled")?,
        max_wait_time_seconds: options.integer("maxWaitTimeSeconds")?,
        max_queue_size: match options.integer("maxSize")? {
            Patch::Absent => options.integer("maxQueueSize")?,
            patch => patch,
        },
        min_pop_wait_time: options.integer("minPopWaitTime")?,
        dedup_window_seconds: options.integer("dedupWindowSeconds")?,
        retention_sink_hold: options.sink_hold()?,
        retention_sink_hold_max_seconds: options.sink_hold_seconds()?,
    })
}

/// The fields of a body or of its options that mean something, each still unread: a tree of all of them would be many
/// times as large as the body.
#[derive(Debug, Default)]
struct Named<'a>(Vec<(&'static str, Raw<'a>)>);

impl<'de> Fields<'de> for Named<'de> {
    const NAME: &'static str = "an object with \"queue\" and \"options\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let Some(name) = NAMES.iter().find(|known| **known == name) else { return skip(map) };
        let value = map.next_value()?;
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, slot)) => *slot = value,
            None => self.0.push((name, value)),
        }
        Ok(())
    }
}

/// A JSON text; none for another value.
fn text(raw: &str) -> Option<String> {
    serde_json::from_str::<Text<'_>>(raw).ok().map(|text| text.0.into_owned())
}

impl<'a> Named<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, raw)| raw.0)
    }

    fn integer(&self, name: &str) -> Result<Patch<i32>, ApiError> {
        let wide = self.read(name, "an integer", read::integer)?;
        Ok(match wide {
            Patch::Absent => Patch::Absent,
            Patch::Reset => Patch::Reset,
            // A number that a stored option has no room for is named as such.
            Patch::Set(wide) => Patch::Set(i32::try_from(wide).map_err(|_| {
                ApiError::bad_request(format!("{name} must be an integer of at most 32 bits"))
            })?),
        })
    }

    fn boolean(&self, name: &str) -> Result<Patch<bool>, ApiError> {
        self.read(name, "a boolean", |raw| match raw {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        })
    }

    fn text(&self, name: &str) -> Result<Patch<String>, ApiError> {
        self.read(name, "a string", text)
    }

    fn read<T>(
        &self,
        name: &str,
        kind: &str,
        convert: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Patch<T>, ApiError> {
        match self.get(name) {
            None => Ok(Patch::Absent),
            Some("null") => Ok(Patch::Reset),
            Some(raw) => match convert(raw) {
                Some(value) => Ok(Patch::Set(value)),
                None => Err(ApiError::bad_request(format!("{name} must be {kind}"))),
            },
        }
    }

    fn sink_hold(&self) -> Result<Patch<String>, ApiError> {
        let patch = self.text("retentionSinkHold")?;
        if let Patch::Set(name) = &patch {
            let is_plain =
                name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            if !is_plain || name.len() > SINK_HOLD_BYTES_MAX {
                let text = "retentionSinkHold must match [A-Za-z0-9._-]{0,64}";
                return Err(ApiError::bad_request(text));
            }
        }
        Ok(patch)
    }

    fn sink_hold_seconds(&self) -> Result<Patch<i32>, ApiError> {
        let patch = self.integer("retentionSinkHoldMaxSeconds")?;
        match patch {
            Patch::Set(seconds) if !SINK_HOLD_SECONDS.contains(&seconds) => {
                let text = "retentionSinkHoldMaxSeconds must be between 60 and 31536000";
                Err(ApiError::bad_request(text))
            }
            patch => Ok(patch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<OptionsPatch, u16> {
        let body = read::body::<Object<Named<'_>>>(body.as_bytes()).unwrap().0;
        patch(&body).map_err(|error| error.into_answer().status().as_u16())
    }

    #[test]
    fn labels_come_from_the_options_or_else_the_top() {
        let read = |body| read(body).map(|patch| (patch.namespace, patch.task));
        let set = |text: &str| Patch::Set(text.to_owned());
        let cases = [
            (r#"{"namespace":null,"task":"","options":{}}"#, Patch::Absent, Patch::Absent),
            (r#"{"namespace":"a","options":{"task":null}}"#, set("a"), Patch::Reset),
            (r#"{"namespace":"a","options":{"namespace":"b"}}"#, set("b"), Patch::Absent),
            (r#"{"namespace":"a","task":null}"#, set("a"), Patch::Absent),
            (r#"{"options":{"namespace":""}}"#, set(""), Patch::Absent),
        ];
        for (body, namespace, task) in cases {
            assert_eq!(read(body), Ok((namespace, task)), "{body}");
        }
    }

    #[test]
    fn values_of_the_wrong_kind_or_range_are_refused() {
        for body in [
            r#"{"options":{"leaseTime":"30"}}"#,
            r#"{"options":{"leaseTime":1.5}}"#,
            r#"{"options":{"leaseTime":2147483648}}"#,
            r#"{"options":{"retentionEnabled":1}}"#,
            r#"{"options":{"namespace":1}}"#,
            r#"{"options":{"retentionSinkHold":"a b"}}"#,
            r#"{"options":{"retentionSinkHoldMaxSeconds":59}}"#,
            r#"{"leaseTime":true}"#,
        ] {
            assert_eq!(read(body), Err(400), "{body}");
        }
    }

    #[test]
    fn options_are_read_from_either_level() {
        for body in [
            r#"{"queue":"q","options":{"leaseTime":5,"maxQueueSize":9,"x":1,"ttl":null}}"#,
            r#"{"queue":"q","options":[],"leaseTime":5,"maxSize":9,"maxQueueSize":1,"ttl":null}"#,
        ] {
            let patch = read(body).unwrap();
            assert_eq!(patch.lease_time, Patch::Set(5), "{body}");
            assert_eq!(patch.max_queue_size, Patch::Set(9), "{body}");
            assert_eq!(patch.ttl, Patch::Reset, "{body}");
        }
    }
}
