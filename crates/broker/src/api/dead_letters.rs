//! Dead letters as they are listed.

use bytes::Bytes;
use queen_record::ids::{Micros, PartitionId, Tenant, Uuid};

/// Which dead letters to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// Whose.
    pub tenant: Tenant,
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this partition name.
    pub partition: Option<String>,
    /// Only failed at or after.
    pub from: Option<Micros>,
    /// Only failed before.
    pub to: Option<Micros>,
    /// Rows at most.
    pub limit: usize,
    /// Rows to skip, newest failure first.
    pub offset: usize,
}

/// One dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its own id.
    pub id: Uuid,
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// Partition number.
    pub partition_id: PartitionId,
    /// Group that gave up.
    pub group: String,
    /// Offset of the message; negative for a timer.
    pub offset: i64,
    /// The message's id.
    pub message_id: Option<Uuid>,
    /// The message's transactionId.
    pub transaction_id: String,
    /// Snapshot of the payload.
    pub payload: Bytes,
    /// Reason.
    pub error: String,
    /// Retry counter at that time.
    pub retries: u32,
    /// When it was filed.
    pub failed: Micros,
    /// When the message was appended, as far as known.
    pub created: Option<Micros>,
}

/// A page of dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterPage {
    /// Newest failure first.
    pub rows: Vec<DeadLetter>,
    /// Matching rows in all.
    pub total: usize,
}
