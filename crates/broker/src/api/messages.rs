//! One message with everything around it.

use queen_model::QueueOptions;
use queen_record::ids::{Micros, PartitionId, Uuid};

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
