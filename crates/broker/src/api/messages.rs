//! Messages with everything around them: one by its id, or a page of the newest.

use std::sync::Arc;

use queen_model::QueueOptions;
use queen_record::ids::{EntryIndex, Micros, PartitionId, Tenant, TxHash, Uuid};

use super::Message;

/// How a partition is named in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionRef {
    /// By number.
    Number(PartitionId),
    /// By UUID.
    Uuid(Uuid),
}

/// What a message is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// Waiting.
    Pending,
    /// Under a live lease.
    Processing,
    /// Consumed by every named group, or by queue mode when there is none.
    Completed,
    /// A dead letter holds it.
    DeadLetter,
}

/// A group's view of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageGroup {
    /// Group name.
    pub name: String,
    /// Last offset done, -1 for none.
    pub committed: i64,
    /// Whether the message is at or below the cursor.
    pub consumed: bool,
    /// Expiry of the group's live lease on the partition.
    pub lease_expires: Option<Micros>,
}

/// One message with everything around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageDetail {
    /// The message.
    pub message: Message,
    /// Whether its payload is stored encrypted.
    pub encrypted: bool,
    /// Partition UUID.
    pub partition_uuid: Uuid,
    /// Partition name.
    pub partition: String,
    /// Queue name.
    pub queue: String,
    /// The queue's options.
    pub options: QueueOptions,
    /// What it is doing.
    pub status: MessageStatus,
    /// Reason, when it is a dead letter.
    pub error: Option<String>,
    /// Retry counter, when it is a dead letter.
    pub retries: u32,
    /// One per cursor row of the partition.
    pub groups: Vec<MessageGroup>,
}

/// `offset + limit` of a page of messages at most: deeper pages would have to order everything before them.
pub const MESSAGES_DEPTH_MAX: usize = 10_000;

/// Which messages to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageQuery {
    /// Whose.
    pub tenant: Tenant,
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of partitions of this name.
    pub partition: Option<String>,
    /// Only of queues with this label.
    pub namespace: Option<String>,
    /// Only of queues with this label.
    pub task: Option<String>,
    /// Only those that do this.
    pub status: Option<MessageStatus>,
    /// Only appended at or after; one hour ago when absent.
    pub from: Option<Micros>,
    /// Only appended before; the next full minute when absent.
    pub to: Option<Micros>,
    /// Rows at most.
    pub limit: usize,
    /// Rows to skip, newest first.
    pub offset: usize,
}

/// One listed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// The message.
    pub message: Message,
    /// Whether its payload is stored encrypted.
    pub encrypted: bool,
    /// Hash of its transactionId.
    pub hash: TxHash,
    /// The entry that wrote it.
    pub entry: EntryIndex,
    /// Its place among the messages of its record.
    pub frame: u64,
    /// Queue name.
    pub queue: Arc<str>,
    /// The queue's labels: namespace and task.
    pub labels: (String, String),
    /// The queue's priority.
    pub priority: i32,
    /// Partition name.
    pub partition: String,
    /// Partition UUID.
    pub partition_uuid: Uuid,
    /// What it is doing.
    pub status: MessageStatus,
    /// What it is doing in queue mode; `None` when nobody consumes its partition so.
    pub queue_status: Option<MessageStatus>,
    /// Named groups with a cursor on its partition that consumed it.
    pub consumed_by: usize,
    /// Named groups with a cursor on its partition.
    pub groups: usize,
    /// When the last live lease on its partition ends, while it is processing.
    pub lease_expires: Option<Micros>,
}

/// How the listed queues are consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumeMode {
    /// Whether queue mode has a cursor.
    pub queue_mode: bool,
    /// Named groups.
    pub groups: usize,
}

/// A page of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessagePage {
    /// Newest first; fewer than asked for when their payloads are large.
    pub rows: Vec<MessageRow>,
    /// How their queues are consumed.
    pub mode: ConsumeMode,
}
