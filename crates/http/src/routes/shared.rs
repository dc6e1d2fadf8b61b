//! What several routes show in the same way.

use std::borrow::Cow;

use queen_broker::api::{
    ConsumeMode, Counts, FETCH_ENTRIES_MAX, Message, MessageStatus, QUEUE_MODE, escaped_len,
};
use queen_model::{QueueOptions, SINK_HOLD_MAX_SECONDS_DEFAULT};
use serde::de::MapAccess;

use crate::error::ApiError;
use crate::json::Json;
use crate::read::{Fields, List, Name, Object, Text, skip};
use crate::routes::PARTITION_DEFAULT;

/// Messages, acknowledgments or operations of one call at most.
pub(crate) const ITEMS_MAX: usize = 131_072;

/// What an entry about a queue that does not exist answers.
pub(crate) const UNKNOWN_QUEUE: &str = "UNKNOWN_TOPIC_OR_PARTITION";

/// The entries of a read by offset.
pub(crate) type Entries<T> = List<Object<T>, FETCH_ENTRIES_MAX>;

/// The entries of a body that must have some, though there may be none among them.
pub(crate) fn entries<T>(entries: Option<Entries<T>>) -> Result<Vec<T>, ApiError> {
    let list = entries.ok_or_else(|| ApiError::bad_request("entries is required"))?;
    if list.is_too_long {
        return Err(ApiError::bare_bad_request("too many entries"));
    }
    Ok(list.items.into_iter().map(|entry| entry.0).collect())
}

/// A partition named in a body.
#[derive(Debug, Default)]
pub(crate) struct Place<'a> {
    queue: Option<Text<'a>>,
    partition: Option<Name<'a>>,
}

impl<'de> Fields<'de> for Place<'de> {
    const NAME: &'static str = "an entry with \"queue\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "queue" => self.queue = map.next_value()?,
            "partition" => self.partition = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl Place<'_> {
    /// Queue and partition; a partition that is not named is the default one.
    pub(crate) fn names(self) -> Result<(String, String), ApiError> {
        let filled = |name: &str| !name.is_empty();
        let queue = self.queue.map(|queue| queue.0).filter(|queue| filled(queue));
        let queue = queue.ok_or_else(|| ApiError::bad_request("every entry needs a queue"))?;
        let partition = self.partition.map(|partition| partition.0);
        let partition = partition.filter(|partition| filled(partition));
        let partition = partition.map_or_else(|| PARTITION_DEFAULT.to_owned(), Cow::into_owned);
        Ok((queue.into_owned(), partition))
    }
}

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

/// How queues are consumed: by queue mode, by named groups, by both or by nobody.
pub(crate) fn mode(json: &mut Json, mode: ConsumeMode) -> &mut Json {
    json.raw("{").field("hasQueueMode").bool(mode.queue_mode);
    json.field("busGroupsCount").u64(wide(mode.groups));
    json.field("type").string(match (mode.queue_mode, mode.groups) {
        (false, 0) => "none",
        (true, 0) => "queue",
        (false, _) => "bus",
        (true, _) => "hybrid",
    });
    json.raw("}")
}

/// A message's status by its name.
pub(crate) fn status(status: MessageStatus) -> &'static str {
    match status {
        MessageStatus::Pending => "pending",
        MessageStatus::Processing => "processing",
        MessageStatus::Completed => "completed",
        MessageStatus::DeadLetter => "dead_letter",
    }
}

/// A number of rows asked for; below 0 it is 0, beyond the machine's width the largest.
pub(crate) fn count(value: i64) -> usize {
    usize::try_from(value.max(0)).unwrap_or(usize::MAX)
}

/// The group that a request means; none or an empty name is queue mode.
pub(crate) fn group(name: Option<&str>) -> String {
    name.filter(|name| !name.is_empty()).unwrap_or(QUEUE_MODE).to_owned()
}

/// Bytes of a message's payload and texts in a JSON answer at most.
pub(crate) fn message_json_len(message: &Message) -> u64 {
    let producer = message.producer_sub.as_ref().map_or(0, escaped_len);
    wide(message.data.len()) + escaped_len(&message.transaction_id) + producer
}

/// A number of rows or bytes as JSON has it.
pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
