//! Requests and answers of the reads by offset.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The error of an entry whose queue does not exist.
pub(super) const UNKNOWN: &str = "UNKNOWN_TOPIC_OR_PARTITION";
/// The error of an entry whose offset is not there: removed, or not written yet.
pub(super) const OUT_OF_RANGE: &str = "OFFSET_OUT_OF_RANGE";

/// A request: entries and what holds for all of them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<E> {
    pub(super) entries: Vec<E>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_wait_ms: Option<u64>,
}

impl<E> Request<E> {
    pub(super) fn of(entries: Vec<E>) -> Self {
        Self { entries, max_bytes: None, max_wait_ms: None }
    }
}

/// Which partitions were written lately.
#[derive(Debug, Serialize)]
pub(super) struct ChangedEntry<'a> {
    pub(super) queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<&'a str>,
}

/// The first offset at or after a time.
#[derive(Debug, Serialize)]
pub(super) struct TimeEntry<'a> {
    pub(super) queue: &'a str,
    pub(super) partition: &'a str,
    pub(super) timestamp: &'a str,
}

/// What to read.
#[derive(Debug, Serialize)]
pub(super) struct FetchEntry<'a> {
    pub(super) queue: &'a str,
    pub(super) partition: &'a str,
    pub(super) offset: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Changed {
    pub(super) safe_time: String,
    #[serde(default)]
    pub(super) safe_time_degraded: bool,
    pub(super) entries: Vec<ChangedPage>,
}

/// One page, or why there is none.
#[derive(Debug, Deserialize)]
pub(super) struct ChangedPage {
    #[serde(default)]
    pub(super) partitions: Vec<Partition>,
    #[serde(default)]
    pub(super) next: Option<String>,
    #[serde(default)]
    pub(super) error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Partition {
    pub(super) name: String,
    pub(super) id: String,
    /// −1 without messages.
    pub(super) last_offset: i64,
    pub(super) log_start: u64,
    /// Times of one spelling, so they compare as texts.
    #[serde(default)]
    pub(super) last_write_at: Option<String>,
}

impl Partition {
    /// The offset that the next message gets.
    pub(super) fn end(&self) -> u64 {
        u64::try_from(self.last_offset.saturating_add(1)).unwrap_or(0).max(self.log_start)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Offsets {
    pub(super) entries: Vec<Found>,
}

/// Where a time lies.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Found {
    #[serde(default)]
    pub(super) offset: Option<u64>,
    pub(super) high_watermark: u64,
    pub(super) log_start_offset: u64,
    #[serde(default)]
    pub(super) error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Fetched<'a> {
    #[serde(borrow)]
    pub(super) entries: Vec<FetchedEntry<'a>>,
}

/// The messages of one partition.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FetchedEntry<'a> {
    #[serde(borrow)]
    pub(super) partition: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) records: Vec<Record<'a>>,
    pub(super) log_start_offset: u64,
    #[serde(borrow, default)]
    pub(super) error: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record<'a> {
    pub(super) offset: u64,
    #[serde(borrow)]
    pub(super) transaction_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) payload: &'a RawValue,
    #[serde(borrow)]
    pub(super) ts: Cow<'a, str>,
}
