//! Decided changes: what `apply` executes as written, on every node.
//!
//! Effect numbers are permanent. A version from `0x8000` on is this implementation's own; lower ones are the
//! documented layout. A kind or version that this build does not know stops a node: it is never skipped.

use bytes::Bytes;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, TxHash, Uuid};

use crate::QueueOptions;

/// Where a new group starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionMode {
    /// Before the oldest retained message.
    All,
    /// At the stored instant, as "now" when it was registered.
    New,
    /// At the stored instant, as a time that the caller named.
    Timestamp,
}

/// A group's subscription on one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupUpsert {
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// Group name.
    pub group: String,
    /// Id of the registration.
    pub id: Uuid,
    /// Where it starts.
    pub mode: SubscriptionMode,
    /// The instant that `mode` refers to; 0 with `All`.
    pub subscribe_at: Micros,
    /// Whether it delivers only the newest message.
    pub conflation: bool,
    /// When it was registered.
    pub registered: Micros,
}

/// A new partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionCreate {
    /// Its number: the entry's base plus its ordinal.
    pub id: PartitionId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// When it was made.
    pub created: Micros,
}

/// The message bytes of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendPayload {
    /// Not here: the entry was read from its payload-free form.
    Elsewhere {
        /// `40 + 16 x count + frame bytes`, before compression: what the append counts as retained.
        retained: u32,
    },
    /// The frames, as they are stored.
    Stored {
        /// Frames, or one zstd frame over them.
        bytes: Bytes,
        /// Whether `bytes` is compressed.
        compressed: bool,
        /// Bytes of the frames before compression.
        raw_len: u32,
    },
}

/// The messages of one push for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The partition.
    pub id: PartitionId,
    /// A leftover of an older design: written, never read.
    pub bucket: u16,
    /// Offset of the first message.
    pub base: Offset,
    /// When they were appended.
    pub created: Micros,
    /// One per message, in order; gives the count.
    pub hashes: Vec<TxHash>,
    /// Their frames.
    pub payload: AppendPayload,
}

impl Append {
    /// Messages in the append.
    pub fn count(&self) -> u32 {
        crate::codec::length(self.hashes.len())
    }

    /// Bytes that the append counts as retained; the same on every node.
    pub fn retained(&self) -> u32 {
        match &self.payload {
            AppendPayload::Elsewhere { retained } => *retained,
            AppendPayload::Stored { raw_len, .. } => 40 + 16 * self.count() + raw_len,
        }
    }
}

/// A lease as a cursor row stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The lease id that its holder presents.
    pub worker: Uuid,
    /// Last offset of the batch.
    pub batch_end: Offset,
    /// When it ends.
    pub expires: Micros,
    /// When it was taken or last extended.
    pub acquired: Micros,
    /// Whether the batch is one message that stands for its whole span.
    pub conflated: bool,
}

/// The last lease that an ack settled to its batch end, so that a repeated ack is answered the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Its id.
    pub worker: Uuid,
    /// First offset of its batch.
    pub low: Offset,
    /// Last offset of its batch.
    pub high: Offset,
}

/// A whole cursor row: a group's place in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorSet {
    /// The partition.
    pub id: PartitionId,
    /// Group name.
    pub group: String,
    /// Last offset done, -1 for none.
    pub committed: i64,
    /// The lease, if one was given out and not settled. It may have expired.
    pub lease: Option<Lease>,
    /// `failed` acks charged to the batch at the cursor.
    pub retries: u32,
    /// Offset at which the last leased delivery started.
    pub attempt_offset: Option<Offset>,
    /// Leased deliveries that started there.
    pub attempts: u32,
    /// Messages consumed so far.
    pub consumed: u64,
    /// When the row was made.
    pub created: Micros,
    /// The caller's note, set by positions; empty means none.
    pub metadata: String,
    /// The last settled lease.
    pub released: Option<Released>,
}

/// What retention moved in one partition. No mark ever moves back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// The partition.
    pub id: PartitionId,
    /// Messages below are gone for readers.
    pub log_start: Offset,
    /// Below, the bytes may be reclaimed; never above `log_start`.
    pub txns_start: Offset,
    /// Below, the hashes are gone.
    pub rows_start: Offset,
    /// When the oldest retained message was appended; `None` when there is none, or when the layout did not say.
    pub oldest: Option<Micros>,
    /// Bytes that the removed appends counted as retained; 0 in layouts that did not say.
    pub freed: u64,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DlqInsert {
    /// Its own id.
    pub id: Uuid,
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// The partition.
    pub partition: PartitionId,
    /// Group that gave up.
    pub group: String,
    /// Offset of the message; -1 for a timer.
    pub offset: i64,
    /// Id of the message.
    pub message_id: Option<Uuid>,
    /// Its transactionId.
    pub transaction_id: String,
    /// Snapshot of its payload as the log has it.
    pub payload: Bytes,
    /// Whether that is an encrypted envelope.
    pub encrypted: bool,
    /// Reason.
    pub error: String,
    /// Retry counter at that time.
    pub retries: u32,
    /// When it was filed.
    pub failed: Micros,
}

/// One decided change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Changes nothing.
    Noop,
    /// A queue is made or its options replaced.
    QueueUpsert {
        /// Whose.
        tenant: Tenant,
        /// Queue name.
        queue: String,
        /// Queue id.
        id: Uuid,
        /// All options.
        options: QueueOptions,
        /// When it was made.
        created: Micros,
    },
    /// A queue and all that is in it are gone; its rows are removed later, in chunks.
    QueueDelete {
        /// Whose.
        tenant: Tenant,
        /// Queue name.
        queue: String,
    },
    /// A group is registered or its subscription replaced.
    GroupUpsert(GroupUpsert),
    /// A group's cursors on one queue are gone, and its subscription; its dead letters stay.
    GroupDelete {
        /// Whose.
        tenant: Tenant,
        /// Queue name.
        queue: String,
        /// Group name.
        group: String,
        /// Whether the subscription goes too.
        metadata: bool,
    },
    /// A partition is made.
    PartitionCreate(PartitionCreate),
    /// A partition is removed.
    PartitionDelete {
        /// The partition.
        id: PartitionId,
    },
    /// Messages are appended.
    Append(Append),
    /// A cursor row is replaced.
    CursorSet(CursorSet),
    /// A cursor row is removed.
    CursorDelete {
        /// The partition.
        id: PartitionId,
        /// Group name.
        group: String,
    },
    /// Retention moved a partition's marks.
    Watermark(Watermark),
    /// A dead letter is filed.
    DlqInsert(DlqInsert),
    /// A dead letter is removed.
    DlqDelete {
        /// Whose.
        tenant: Tenant,
        /// Queue name.
        queue: String,
        /// The letter's own id.
        id: Uuid,
    },
    /// Up to `limit` rows of deleted queues and groups are removed.
    DeleteChunk {
        /// Rows at most.
        limit: u32,
    },
}
