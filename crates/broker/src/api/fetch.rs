//! Reads by offset: no lease, no cursor.

use std::time::Duration;

use queen_record::ids::{Micros, Tenant, Uuid};

use super::Message;

/// Entries of one call at most.
pub const FETCH_ENTRIES_MAX: usize = 1024;
/// Payload bytes of one entry at most.
pub const FETCH_ENTRY_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Longest wait of a fetch.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(30);
/// Partitions of one page of changed ones at most.
pub const CHANGED_LIMIT_MAX: usize = 1000;

/// A read of several partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// Whose.
    pub tenant: Tenant,
    /// At most [`FETCH_ENTRIES_MAX`].
    pub entries: Vec<FetchEntry>,
    /// Payload bytes of the whole call at most. The node has a ceiling of its own.
    pub bytes_max: u64,
    /// How long to wait for `bytes_min`.
    pub wait: Duration,
    /// Payload bytes for which it waits; a message counts at least 1.
    pub bytes_min: u64,
}

/// Where to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchEntry {
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// First offset to read.
    pub offset: u64,
    /// Payload bytes at most; one message is read whatever it says.
    pub bytes_max: u64,
}

/// Why an entry has no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// No such queue.
    UnknownQueue,
    /// Below the oldest retained offset, or above the next one.
    OffsetOutOfRange,
}

/// Where a partition's messages begin and end; 0 and 0 where there is no partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest retained offset.
    pub log_start: u64,
    /// The offset that the next message gets.
    pub high_watermark: u64,
}

/// What was read of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Consecutive, from the asked offset on.
    pub messages: Vec<Message>,
    /// Bounds.
    pub bounds: Bounds,
    /// Why there are none.
    pub error: Option<FetchError>,
}

/// A question for the first offset at or after a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetQuery {
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// The time.
    pub at: Micros,
}

/// The answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffsetFound {
    /// The offset and when its message was appended; `None` when nothing is that young.
    pub found: Option<(u64, Micros)>,
    /// Bounds.
    pub bounds: Bounds,
    /// Whether the queue does not exist.
    pub unknown: bool,
}

/// A question for the partitions of a queue that were written lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedQuery {
    /// Queue name.
    pub queue: String,
    /// Only those written at or after this time.
    pub since: Option<Micros>,
    /// The cursor of the page before.
    pub after: Option<String>,
    /// Rows at most, 1 to [`CHANGED_LIMIT_MAX`].
    pub limit: usize,
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedError {
    /// No such queue.
    UnknownQueue,
    /// Not a cursor of this queue.
    BadCursor,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPartition {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Offset of its newest message, -1 while it has none.
    pub last_offset: i64,
    /// The oldest retained offset.
    pub log_start: u64,
    /// When its newest message was appended.
    pub last_write: Micros,
}

/// A page of partitions in the order they were made. It may be short, and is the last one only without `next`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedPage {
    /// The partitions.
    pub partitions: Vec<ChangedPartition>,
    /// Where the next page begins.
    pub next: Option<String>,
}

/// Pages, and the time up to which they are complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Every message of this time or before is counted in the pages; later ones are younger.
    pub safe_time: Micros,
    /// One per question, in order.
    pub pages: Vec<Result<ChangedPage, ChangedError>>,
}
