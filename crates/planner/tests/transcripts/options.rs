//! The options of queues, by field and by the word for it in the stories.

/// Calls a macro with every option.
macro_rules! with_options {
    ($with:ident) => {
        $with![
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
                max_queue_size "maxQueueSize",
                min_pop_wait_time "minPopWaitTime",
                dedup_window_seconds "dedupWindowSeconds",
                retention_sink_hold "retentionSinkHold",
                retention_sink_hold_max_seconds "retentionSinkHoldMaxSeconds",
        ]
    };
}
