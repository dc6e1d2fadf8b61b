//! What several routes show in the same way.

use queen_broker::api::{Counts, QUEUE_MODE};
use queen_model::{QueueOptions, SINK_HOLD_MAX_SECONDS_DEFAULT};

use crate::json::Json;

/// A queue's options under the names that `configure` reads.
pub(crate) fn options<'j>(json: &'j mut Json, options: &QueueOptions) -> &'j mut Json {
    let number = |json: &mut Json, name: &str, value: i32| {
        json.field(name).i64(i64::from(value));
    };
    json.raw("{");
    number(json, "priority", options.priority);
    number(json, "leaseTime", options.lease_time);
    number(json, "retryLimit", options.retry_limit);
    number(json, "retryDelay", options.retry_delay);
    number(json, "maxSize", options.max_queue_size);
    number(json, "maxQueueSize", options.max_queue_size);
    number(json, "ttl", options.ttl);
    json.field("deadLetterQueue").bool(options.dead_letter_queue);
    json.field("dlqAfterMaxRetries").bool(options.dlq_after_max_retries);
    number(json, "delayedProcessing", options.delayed_processing);
    number(json, "windowBuffer", options.window_buffer);
    number(json, "retentionSeconds", options.retention_seconds);
    number(json, "completedRetentionSeconds", options.completed_retention_seconds);
    json.field("retentionEnabled").bool(options.retention_enabled);
    json.field("encryptionEnabled").bool(options.encryption_enabled);
    number(json, "maxWaitTimeSeconds", options.max_wait_time_seconds);
    number(json, "minPopWaitTime", options.min_pop_wait_time);
    number(json, "dedupWindowSeconds", options.dedup_window_seconds);
    json.field("retentionSinkHold").string(&options.retention_sink_hold);
    let hold = match options.retention_sink_hold_max_seconds {
        0 => SINK_HOLD_MAX_SECONDS_DEFAULT,
        seconds => seconds,
    };
    number(json, "retentionSinkHoldMaxSeconds", hold);
    json.raw("}")
}

/// Counts as lists show them: `pending` without what is leased.
pub(crate) fn counts_net<'j>(json: &'j mut Json, counts: &Counts) -> &'j mut Json {
    json.raw("{").field("total").u64(counts.total);
    json.field("pending").u64(counts.pending.saturating_sub(counts.processing));
    json.field("processing").u64(counts.processing);
    json.field("completed").u64(counts.completed);
    json.field("deadLetter").u64(counts.dead_letter).raw("}")
}

/// Counts as a queue's detail shows them: `pending` with what is leased.
pub(crate) fn counts_gross<'j>(json: &'j mut Json, counts: &Counts) -> &'j mut Json {
    json.raw("{").field("total").u64(counts.total);
    json.field("pending").u64(counts.pending).field("processing").u64(counts.processing);
    json.field("completed").u64(counts.completed).field("failed").null();
    json.field("deadLetter").u64(counts.dead_letter).raw("}")
}

/// The group that a request means; none or an empty name is queue mode.
pub(crate) fn group(name: Option<&str>) -> String {
    name.filter(|name| !name.is_empty()).unwrap_or(QUEUE_MODE).to_owned()
}

/// A number of rows or bytes as JSON has it.
pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
