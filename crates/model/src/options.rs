//! A queue's options: what `POST /api/v1/configure` reads and every listing shows.

/// The options of one queue.
///
/// Shape: integers are stored as `i32`, as the replicated effect carries them. Units stand at each field.
/// Source: the configure page of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the API has them, each on its own")]
pub struct QueueOptions {
    /// Label for discovery pops; empty means none.
    pub namespace: String,
    /// Label for discovery pops; empty means none.
    pub task: String,
    /// Stored and shown only.
    pub priority: i32,
    /// Seconds a lease lives when the pop names no length.
    pub lease_time: i32,
    /// How many `failed` acks redeliver before the next one dead-letters.
    pub retry_limit: i32,
    /// Milliseconds; stored and shown only.
    pub retry_delay: i32,
    /// Seconds; stored and shown only.
    pub ttl: i32,
    /// File exhausted messages when this or `dlq_after_max_retries` is true.
    pub dead_letter_queue: bool,
    /// File exhausted messages when this or `dead_letter_queue` is true.
    pub dlq_after_max_retries: bool,
    /// Seconds after its push at which a message becomes deliverable.
    pub delayed_processing: i32,
    /// Seconds a partition must be quiet before it delivers.
    pub window_buffer: i32,
    /// Seconds; with `retention_enabled`.
    pub retention_seconds: i32,
    /// Seconds; with `retention_enabled`.
    pub completed_retention_seconds: i32,
    /// Switch for the two fields above.
    pub retention_enabled: bool,
    /// Encrypt payloads at rest.
    pub encryption_enabled: bool,
    /// Seconds after which a message is removed, whatever `retention_enabled` says; 0 is off.
    pub max_wait_time_seconds: i32,
    /// Stored and shown only.
    pub max_queue_size: i32,
    /// Milliseconds, 0..=60000; stored and shown only.
    pub min_pop_wait_time: i32,
    /// Seconds within which a transactionId is stored once per partition; 0 is off.
    pub dedup_window_seconds: i32,
    /// Name of a sink that holds retention back; empty means none.
    pub retention_sink_hold: String,
    /// Seconds the sink may hold at most; a stored 0 reads as `SINK_HOLD_MAX_SECONDS_DEFAULT`.
    pub retention_sink_hold_max_seconds: i32,
}

/// Seconds: one week.
pub const SINK_HOLD_MAX_SECONDS_DEFAULT: i32 = 604_800;
/// Seconds of a lease on a queue made by `configure`.
pub const LEASE_TIME_DEFAULT: i32 = 300;
/// Seconds of a lease on a queue born from a push, a timer or a wildcard pop.
pub const LEASE_TIME_IMPLICIT: i32 = 60;

impl QueueOptions {
    /// The options of a queue made by `configure` that names none.
    #[must_use]
    pub fn configured() -> Self {
        Self {
            namespace: String::new(),
            task: String::new(),
            priority: 0,
            lease_time: LEASE_TIME_DEFAULT,
            retry_limit: 3,
            retry_delay: 1000,
            ttl: 3600,
            dead_letter_queue: true,
            dlq_after_max_retries: true,
            delayed_processing: 0,
            window_buffer: 0,
            retention_seconds: 0,
            completed_retention_seconds: 0,
            retention_enabled: false,
            encryption_enabled: false,
            max_wait_time_seconds: 0,
            max_queue_size: 0,
            min_pop_wait_time: 0,
            dedup_window_seconds: 3600,
            retention_sink_hold: String::new(),
            retention_sink_hold_max_seconds: SINK_HOLD_MAX_SECONDS_DEFAULT,
        }
    }

    /// The options of a queue born from its first use: labels are the first two dotted parts of its name.
    #[must_use]
    pub fn implicit(name: &str) -> Self {
        let mut parts = name.split('.');
        let first = parts.next().unwrap_or_default();
        let second = parts.next();
        let (namespace, task) = match second {
            Some(task) => (first.to_owned(), task.to_owned()),
            None => (first.to_owned(), String::new()),
        };
        Self {
            namespace,
            task,
            lease_time: LEASE_TIME_IMPLICIT,
            retention_sink_hold_max_seconds: 0,
            ..Self::configured()
        }
    }

    /// Whether an exhausted message is filed rather than dropped.
    pub fn files_dead_letters(&self) -> bool {
        self.dead_letter_queue || self.dlq_after_max_retries
    }
}

/// What a `configure` call says about one option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Not mentioned: merge keeps the stored value, replace takes the default.
    #[default]
    Absent,
    /// `null`: back to the default.
    Reset,
    /// A new value.
    Set(T),
}

/// The options that a `configure` call mentions; same names and units as [`QueueOptions`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is documented at QueueOptions under the same name")]
pub struct OptionsPatch {
    pub namespace: Patch<String>,
    pub task: Patch<String>,
    pub priority: Patch<i32>,
    pub lease_time: Patch<i32>,
    pub retry_limit: Patch<i32>,
    pub retry_delay: Patch<i32>,
    pub ttl: Patch<i32>,
    pub dead_letter_queue: Patch<bool>,
    pub dlq_after_max_retries: Patch<bool>,
    pub delayed_processing: Patch<i32>,
    pub window_buffer: Patch<i32>,
    pub retention_seconds: Patch<i32>,
    pub completed_retention_seconds: Patch<i32>,
    pub retention_enabled: Patch<bool>,
    pub encryption_enabled: Patch<bool>,
    pub max_wait_time_seconds: Patch<i32>,
    pub max_queue_size: Patch<i32>,
    pub min_pop_wait_time: Patch<i32>,
    pub dedup_window_seconds: Patch<i32>,
    pub retention_sink_hold: Patch<String>,
    pub retention_sink_hold_max_seconds: Patch<i32>,
}

impl OptionsPatch {
    /// The options after this call.
    ///
    /// Shape: `stored` is `None` for a new queue; `replace` sends every option that is not mentioned back to
    /// its default. Values out of range are clamped as the API says; what it refuses is refused before.
    #[must_use]
    pub fn applied(self, stored: Option<&QueueOptions>, replace: bool) -> QueueOptions {
        let default = QueueOptions::configured();
        let base = match stored {
            Some(stored) if !replace => stored.clone(),
            _ => default.clone(),
        };
        macro_rules! pick {
            ($($field:ident),* $(,)?) => {
                QueueOptions { $($field: match self.$field {
                    Patch::Absent => base.$field,
                    Patch::Reset => default.$field,
                    Patch::Set(value) => value,
                }),* }
            };
        }
        let mut options = pick!(
            namespace,
            task,
            priority,
            lease_time,
            retry_limit,
            retry_delay,
            ttl,
            dead_letter_queue,
            dlq_after_max_retries,
            delayed_processing,
            window_buffer,
            retention_seconds,
            completed_retention_seconds,
            retention_enabled,
            encryption_enabled,
            max_wait_time_seconds,
            max_queue_size,
            min_pop_wait_time,
            dedup_window_seconds,
            retention_sink_hold,
            retention_sink_hold_max_seconds,
        );
        options.dedup_window_seconds = options.dedup_window_seconds.max(0);
        options.min_pop_wait_time = options.min_pop_wait_time.clamp(0, 60_000);
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_the_name() {
        let options = QueueOptions::implicit("billing.invoices.x");
        assert_eq!((&*options.namespace, &*options.task), ("billing", "invoices"));
        assert_eq!(options.lease_time, 60);
        let options = QueueOptions::implicit("orders");
        assert_eq!((&*options.namespace, &*options.task), ("orders", ""));
    }

    #[test]
    fn merge_keeps_replace_resets_and_null_restores() {
        let stored = QueueOptions { lease_time: 30, retry_limit: 9, ..QueueOptions::configured() };
        let patch =
            OptionsPatch { retry_limit: Patch::Reset, ttl: Patch::Set(7), ..Default::default() };
        let merged = patch.clone().applied(Some(&stored), false);
        assert_eq!((merged.lease_time, merged.retry_limit, merged.ttl), (30, 3, 7));
        let replaced = patch.applied(Some(&stored), true);
        assert_eq!((replaced.lease_time, replaced.retry_limit, replaced.ttl), (300, 3, 7));
        let clamped = OptionsPatch { dedup_window_seconds: Patch::Set(-4), ..Default::default() };
        assert_eq!(clamped.applied(None, false).dedup_window_seconds, 0);
    }
}
