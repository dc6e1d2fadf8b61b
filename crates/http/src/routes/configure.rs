//! `POST /api/v1/configure`.

use queen_broker::api::Api;
use queen_model::{OptionsPatch, Patch};

use serde_json::{Map, Value};

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read;
use crate::routes::shared;

/// Bytes of a `retentionSinkHold` name at most.
const SINK_HOLD_BYTES_MAX: usize = 64;
/// Seconds: one minute to one year.
const SINK_HOLD_SECONDS: std::ops::RangeInclusive<i32> = 60..=31_536_000;

/// Makes a queue or changes one.
pub(crate) async fn configure<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body = read::body::<Map<String, Value>>(body)?;
    let queue = match body.get("queue") {
        Some(Value::String(queue)) if !queue.is_empty() => queue.clone(),
        _ => return Err(ApiError::bad_request("queue is required")),
    };
    let replace = match body.get("mode") {
        None | Some(Value::Null) => false,
        Some(Value::String(mode)) if mode == "merge" => false,
        Some(Value::String(mode)) if mode == "replace" => true,
        Some(mode) => {
            let text = format!("mode must be \"merge\" or \"replace\", got {mode}");
            return Err(ApiError::bare_bad_request(text));
        }
    };
    let patch = patch(&body)?;
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

/// The options that the body mentions.
fn patch(body: &Map<String, Value>) -> Result<OptionsPatch, ApiError> {
    // Labels at the top level are sent as null by clients that mean nothing by it.
    let (options, is_nested) = match body.get("options") {
        Some(Value::Object(options)) => (Options(options), true),
        _ => (Options(body), false),
    };
    let label = |name| match options.text(name)? {
        Patch::Set(text) if !is_nested && text.is_empty() => Ok(Patch::Absent),
        Patch::Reset if !is_nested => Ok(Patch::Absent),
        Patch::Absent if is_nested => match Options(body).text(name)? {
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

/// The object that holds the options.
struct Options<'a>(&'a Map<String, Value>);

impl Options<'_> {
    fn integer(&self, name: &str) -> Result<Patch<i32>, ApiError> {
        self.read(name, "an integer", |value| value.as_i64().and_then(|wide| wide.try_into().ok()))
    }

    fn boolean(&self, name: &str) -> Result<Patch<bool>, ApiError> {
        self.read(name, "a boolean", Value::as_bool)
    }

    fn text(&self, name: &str) -> Result<Patch<String>, ApiError> {
        self.read(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn read<T>(
        &self,
        name: &str,
        kind: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Patch<T>, ApiError> {
        match self.0.get(name) {
            None => Ok(Patch::Absent),
            Some(Value::Null) => Ok(Patch::Reset),
            Some(value) => match convert(value) {
                Some(value) => Ok(Patch::Set(value)),
                // A number that a stored option has no room for is named as such.
                None if kind == "an integer" && (value.is_i64() || value.is_u64()) => {
                    let text = format!("{name} must be an integer of at most 32 bits");
                    Err(ApiError::bad_request(text))
                }
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
        let body: Map<String, Value> = serde_json::from_str(body).unwrap();
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
