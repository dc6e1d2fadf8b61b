//! The series this crate feeds, as handles: no recorder is global, so a process can hold several nodes.

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Level, Metadata, Recorder, SharedString, Unit,
};

use crate::cycle::RetentionDone;

/// Handles of the broker's series; described in `docs/metrics.md`.
pub struct BrokerMetrics {
    /// `queen_raft_plan_seconds`.
    pub plan_seconds: Histogram,
    /// `queen_raft_log_write_seconds`.
    pub write_seconds: Histogram,
    /// `queen_raft_log_fsync_seconds`.
    pub fsync_seconds: Histogram,
    /// `queen_raft_apply_entry_seconds`.
    pub apply_seconds: Histogram,
    /// `queen_raft_drain_commands`.
    pub drain_commands: Histogram,
    /// `queen_raft_proposals_total`.
    pub proposals: Counter,
    /// `queen_raft_index`, by kind.
    pub index: [Gauge; 4],
    /// `queen_raft_inflight`.
    pub in_flight: Gauge,
    /// `queen_raft_command_queue_depth`.
    pub queue_depth: Gauge,
    /// `queen_parked_long_polls`.
    pub parked: Gauge,
    /// `queen_consume_engine`, by kind.
    pub engine: [Gauge; 2],
    /// `queen_raft_dedup_filter_bytes`.
    pub filter_bytes: Gauge,
    /// `queen_raft_log_storage`, by kind.
    pub log_storage: [Gauge; 2],
    /// `queen_raft_storage_full`.
    pub storage_full: Gauge,
    /// `queen_raft_log_syncs_total`.
    pub syncs: Counter,
    /// `queen_raft_log_appended_bytes_total`.
    pub appended_bytes: Counter,
    /// `queen_raft_log_groups_total`.
    pub groups: Counter,
    /// `queen_raft_group_logs`: logs touched per group.
    pub group_logs: Gauge,
    /// `queen_raft_checkpoint_rows`.
    pub checkpoint_rows: Histogram,
    /// `queen_raft_checkpoint_bytes_total`.
    pub checkpoint_bytes: Counter,
    /// `queen_raft_store_merge_seconds`.
    pub store_merge_seconds: Histogram,
    /// `queen_raft_store_commit_seconds`.
    pub store_commit_seconds: Histogram,
    /// `queen_raft_durable_point_seconds`.
    pub durable_point_seconds: Histogram,
    /// `queen_raft_store_ram_rows`, by kind.
    pub ram_rows: [Gauge; 2],
    /// `queen_raft_checksum_failures_total`.
    pub checksum_failures: Counter,
    /// `queen_raft_log_scrub_bytes_total`.
    pub scrub_bytes: Counter,
    /// `queen_raft_log_scrub_age_seconds`.
    pub scrub_age: Gauge,
    /// `queen_raft_store_scrub_rows_total`.
    pub store_scrub_rows: Counter,
    /// `queen_raft_store_scrub_age_seconds`.
    pub store_scrub_age: Gauge,
    /// `queen_retention_messages_total`.
    pub removed_messages: Counter,
    /// `queen_retention_bytes_total`.
    pub removed_bytes: Counter,
    /// `queen_retention_partitions_total`.
    pub removed_partitions: Counter,
    /// `queen_retention_proposals_total`, by outcome: moved, removed, overtaken, `not_due`.
    pub retention_proposals: [Counter; 4],
    /// `queen_retention_round_seconds`.
    pub retention_round: Histogram,
    /// `queen_encryption_total`, by outcome: sealed, opened, failed.
    pub encryption: [Counter; 3],
    /// `queen_raft_reclaimed_bytes_total`.
    pub reclaimed_bytes: Counter,
    /// `queen_raft_rewritten_bytes_total`.
    pub rewritten_bytes: Counter,
    /// `queen_raft_reclaimed_total`, by kind: files, rewrites, logs, seals.
    pub reclaimed: [Counter; 4],
    /// `queen_raft_reclaim_pass_seconds`.
    pub reclaim_pass_seconds: Histogram,
    /// `queen_raft_admit_bytes`.
    pub admit_bytes: Gauge,
    /// `queen_raft_admit_total`, `outcome="refused"`.
    pub admit_refused: Counter,
}

/// Name, unit and meaning of every series above, for `# HELP` and the document.
pub const DESCRIPTIONS: &[(&str, &str, &str)] = &[
    ("queen_raft_plan_seconds", "summary", "time to plan one cycle"),
    ("queen_raft_log_write_seconds", "summary", "time to write one group into the queue logs"),
    ("queen_raft_log_fsync_seconds", "summary", "time to sync the logs of one group"),
    ("queen_raft_apply_entry_seconds", "summary", "time to apply one entry"),
    ("queen_raft_drain_commands", "summary", "commands taken by one cycle"),
    ("queen_raft_proposals_total", "counter", "entries proposed since open"),
    ("queen_raft_index", "gauge", "last entry by kind: log, committed, applied, durable"),
    ("queen_raft_inflight", "gauge", "entries proposed and not applied"),
    ("queen_raft_command_queue_depth", "gauge", "commands waiting for the next cycle"),
    ("queen_parked_long_polls", "gauge", "long polls parked now"),
    ("queen_consume_engine", "gauge", "what the consumption engine holds, by kind: groups, parts"),
    ("queen_raft_dedup_filter_bytes", "gauge", "bytes of the duplicate filter"),
    ("queen_raft_log_storage", "gauge", "queue-log storage by kind: files, bytes"),
    (
        "queen_raft_storage_full",
        "gauge",
        "1 while the disk is too full for writes that grow storage",
    ),
    ("queen_raft_log_syncs_total", "counter", "fdatasync calls on queue-log files"),
    ("queen_raft_log_appended_bytes_total", "counter", "record bytes written to queue logs"),
    ("queen_raft_log_groups_total", "counter", "groups of entries written to queue logs"),
    ("queen_raft_group_logs", "gauge", "queue logs touched per group, mean since open"),
    ("queen_raft_checkpoint_rows", "summary", "rows written by one checkpoint"),
    ("queen_raft_checkpoint_bytes_total", "counter", "keys and values written by checkpoints"),
    (
        "queen_raft_store_merge_seconds",
        "summary",
        "time of one transaction that merges what checkpoints put off",
    ),
    ("queen_raft_store_commit_seconds", "summary", "time to commit and sync one checkpoint"),
    ("queen_raft_durable_point_seconds", "summary", "time of one durable point, cut to commit"),
    ("queen_raft_store_ram_rows", "gauge", "rows by kind: partitions, dirty"),
    ("queen_raft_checksum_failures_total", "counter", "reads that met damaged bytes"),
    (
        "queen_raft_log_scrub_bytes_total",
        "counter",
        "bytes of sealed logs read again and found sound",
    ),
    ("queen_raft_log_scrub_age_seconds", "gauge", "time since all sealed logs had been read again"),
    (
        "queen_raft_store_scrub_rows_total",
        "counter",
        "rows of the store verified again, in its file and in memory",
    ),
    (
        "queen_raft_store_scrub_age_seconds",
        "gauge",
        "time since all of the store had been verified",
    ),
    ("queen_retention_messages_total", "counter", "messages removed by retention"),
    ("queen_retention_bytes_total", "counter", "retained bytes that those messages counted"),
    ("queen_retention_partitions_total", "counter", "disused partitions removed"),
    (
        "queen_retention_proposals_total",
        "counter",
        "proposals of retention by outcome: moved, removed, overtaken, not_due",
    ),
    ("queen_retention_round_seconds", "summary", "time of one walk over all partitions"),
    ("queen_encryption_total", "counter", "payloads by outcome: sealed, opened, failed"),
    ("queen_raft_reclaimed_bytes_total", "counter", "bytes of log files given back"),
    (
        "queen_raft_rewritten_bytes_total",
        "counter",
        "bytes of live messages copied to new log files to give space back",
    ),
    (
        "queen_raft_reclaimed_total",
        "counter",
        "what was done to give space back, by kind: files, rewrites, logs, seals",
    ),
    ("queen_raft_reclaim_pass_seconds", "summary", "time of one pass over log files"),
    ("queen_raft_admit_bytes", "gauge", "bytes of writes admitted and not answered"),
    ("queen_raft_admit_total", "counter", "writes by outcome: refused"),
];

const HERE: Metadata<'static> = Metadata::new("queen", Level::INFO, None);

impl BrokerMetrics {
    /// Registers every series with a recorder.
    pub fn new(recorder: &dyn Recorder) -> Self {
        for (name, _, help) in DESCRIPTIONS {
            let name = KeyName::from_const_str(name);
            recorder.describe_gauge(name, None::<Unit>, SharedString::const_str(help));
        }
        let key = |name: &'static str| Key::from_static_name(name);
        let kind = |name: &'static str, kind: &'static str| {
            Key::from_parts(name, vec![metrics::Label::new("kind", kind)])
        };
        let gauge = |key: &Key| recorder.register_gauge(key, &HERE);
        let counter = |key: &Key| recorder.register_counter(key, &HERE);
        let summary = |name| recorder.register_histogram(&key(name), &HERE);
        let index = |of| gauge(&kind("queen_raft_index", of));
        let outcome = |name: &'static str, outcome: &'static str| {
            Key::from_parts(name, vec![metrics::Label::new("outcome", outcome)])
        };
        Self {
            plan_seconds: summary("queen_raft_plan_seconds"),
            write_seconds: summary("queen_raft_log_write_seconds"),
            fsync_seconds: summary("queen_raft_log_fsync_seconds"),
            apply_seconds: summary("queen_raft_apply_entry_seconds"),
            drain_commands: summary("queen_raft_drain_commands"),
            proposals: counter(&key("queen_raft_proposals_total")),
            index: [index("log"), index("committed"), index("applied"), index("durable")],
            in_flight: gauge(&key("queen_raft_inflight")),
            queue_depth: gauge(&key("queen_raft_command_queue_depth")),
            parked: gauge(&key("queen_parked_long_polls")),
            engine: ["groups", "parts"].map(|of| gauge(&kind("queen_consume_engine", of))),
            filter_bytes: gauge(&key("queen_raft_dedup_filter_bytes")),
            log_storage: ["files", "bytes"].map(|of| gauge(&kind("queen_raft_log_storage", of))),
            storage_full: gauge(&key("queen_raft_storage_full")),
            syncs: counter(&key("queen_raft_log_syncs_total")),
            appended_bytes: counter(&key("queen_raft_log_appended_bytes_total")),
            groups: counter(&key("queen_raft_log_groups_total")),
            group_logs: gauge(&key("queen_raft_group_logs")),
            checkpoint_rows: summary("queen_raft_checkpoint_rows"),
            checkpoint_bytes: counter(&key("queen_raft_checkpoint_bytes_total")),
            store_merge_seconds: summary("queen_raft_store_merge_seconds"),
            store_commit_seconds: summary("queen_raft_store_commit_seconds"),
            durable_point_seconds: summary("queen_raft_durable_point_seconds"),
            ram_rows: ["partitions", "dirty"]
                .map(|of| gauge(&kind("queen_raft_store_ram_rows", of))),
            checksum_failures: counter(&key("queen_raft_checksum_failures_total")),
            scrub_bytes: counter(&key("queen_raft_log_scrub_bytes_total")),
            scrub_age: gauge(&key("queen_raft_log_scrub_age_seconds")),
            store_scrub_rows: counter(&key("queen_raft_store_scrub_rows_total")),
            store_scrub_age: gauge(&key("queen_raft_store_scrub_age_seconds")),
            removed_messages: counter(&key("queen_retention_messages_total")),
            removed_bytes: counter(&key("queen_retention_bytes_total")),
            removed_partitions: counter(&key("queen_retention_partitions_total")),
            retention_proposals: ["moved", "removed", "overtaken", "not_due"]
                .map(|of| counter(&outcome("queen_retention_proposals_total", of))),
            retention_round: summary("queen_retention_round_seconds"),
            encryption: ["sealed", "opened", "failed"]
                .map(|of| counter(&outcome("queen_encryption_total", of))),
            reclaimed_bytes: counter(&key("queen_raft_reclaimed_bytes_total")),
            rewritten_bytes: counter(&key("queen_raft_rewritten_bytes_total")),
            reclaimed: ["files", "rewrites", "logs", "seals"]
                .map(|of| counter(&kind("queen_raft_reclaimed_total", of))),
            reclaim_pass_seconds: summary("queen_raft_reclaim_pass_seconds"),
            admit_bytes: gauge(&key("queen_raft_admit_bytes")),
            admit_refused: counter(&outcome("queen_raft_admit_total", "refused")),
        }
    }

    /// Counts what retention did in one round.
    pub(crate) fn retained(&self, done: &RetentionDone) {
        self.removed_messages.increment(done.messages);
        self.removed_bytes.increment(done.bytes);
        self.removed_partitions.increment(done.partitions);
        let [moved, removed, overtaken, not_due] = &self.retention_proposals;
        moved.increment(done.moved);
        removed.increment(done.partitions);
        overtaken.increment(done.overtaken);
        not_due.increment(done.not_due);
    }
}
