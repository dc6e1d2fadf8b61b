//! Bytes as the body of a configure call: what is accepted reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queen_fuzz::{PER_BYTE, accepted, bounded};
use queen_http::fuzzing;
use queen_model::{OptionsPatch, Patch};
use serde_json::{Map, Value, json};

fuzz_target!(|bytes: &[u8]| {
    let Some((queue, patch, replace)) =
        accepted(bounded(bytes.len() * PER_BYTE, || fuzzing::configure(bytes)))
    else {
        return;
    };
    assert!(!queue.is_empty());
    let mode = if replace { "replace" } else { "merge" };
    let again = json!({ "queue": queue, "mode": mode, "options": options(patch.clone()) });
    assert_eq!(fuzzing::configure(again.to_string().as_bytes()), Ok((queue, patch, replace)));
});

/// The options that a call mentions.
fn options(patch: OptionsPatch) -> Value {
    let mut options = Map::new();
    macro_rules! put {
        ($($field:ident $name:literal),+ $(,)?) => {
            let OptionsPatch { $($field),+ } = patch;
            $(match $field {
                Patch::Absent => {}
                Patch::Reset => drop(options.insert($name.to_owned(), Value::Null)),
                Patch::Set(value) => drop(options.insert($name.to_owned(), json!(value))),
            })+
        };
    }
    put![
        namespace "namespace",
        task "task",
        priority "priority",
        lease_time "leaseTime",
        retry_limit "retryLimit",
        retry_delay "retryDelay",
        ttl "ttl",
        dead_letter_queue "deadLetterQueue",
        dlq_after_max_retries "dlqAfterMaxRetries",
        delayed_processing "delayedProcessing",
        window_buffer "windowBuffer",
        retention_seconds "retentionSeconds",
        completed_retention_seconds "completedRetentionSeconds",
        retention_enabled "retentionEnabled",
        encryption_enabled "encryptionEnabled",
        max_wait_time_seconds "maxWaitTimeSeconds",
        max_queue_size "maxSize",
        min_pop_wait_time "minPopWaitTime",
        dedup_window_seconds "dedupWindowSeconds",
        retention_sink_hold "retentionSinkHold",
        retention_sink_hold_max_seconds "retentionSinkHoldMaxSeconds",
    ];
    Value::Object(options)
}
