//! What the edges call: one trait, plain types, no wire format.
//!
//! Every call is asynchronous and may be dropped at any time: a pop whose future is dropped gives its claim
//! back. A write's answer means that its entry is durable and applied on this node.

mod backup;
mod dead_letters;
mod depth;
mod fetch;
mod groups;
mod letters;
mod members;
mod messages;
mod overview;
mod queues;
mod reads;
mod rendered;
mod transaction;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queen_model::{OptionsPatch, QueueOptions, Refusal};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};

pub use crate::admission::Admission;
pub use backup::Backup;
pub use dead_letters::{DeadLetter, DeadLetterPage, DeadLetterQuery};
pub use depth::{Backlog, BusyPartition, BusyPartitions, QueueDepth};
pub use fetch::{
    Bounds, CHANGED_LIMIT_MAX, Changed, ChangedError, ChangedPage, ChangedPartition, ChangedQuery,
    FETCH_ENTRIES_MAX, FETCH_ENTRY_BYTES_MAX, FETCH_WAIT_MAX, FetchEntry, FetchError, FetchRequest,
    Fetched, OffsetFound, OffsetQuery,
};
pub use groups::{
    GroupOnQueue, GroupPartition, GroupSummary, LaggingCursor, Position, SubscriptionView,
};
pub use letters::{LetterRef, LetterSelect, Replay, ReplayEnd, ReplayTo, Seek, SeekTo};
pub use members::{Member, Members, MembersChange, MembersError};
pub use messages::{
    ConsumeMode, MESSAGES_DEPTH_MAX, MessageDetail, MessageGroup, MessagePage, MessageQuery,
    MessageRow, MessageStatus, PartitionRef,
};
pub use overview::{Label, LabelSummary, Overview, Spread};
pub use queues::{Counts, PartitionSummary, QueueDetail, QueueSummary};
pub use reads::Reads;
pub use rendered::{MESSAGE_JSON_MAX, escaped_len};
pub use transaction::{
    PositionSet, Rollback, RollbackReason, Transaction, TransactionAck, TransactionAnswer,
};

/// The consumer group of a pop or an ack that names none.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not done, and repeating it as it is will not help.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The deadline passed first; a write may have committed.
    #[error("timeout: no answer within {0:?}; a write may have been committed")]
    Timeout(Duration),
    /// The write budget stayed full for the whole hold.
    #[error("overloaded: too many bytes of writes are waiting; retry after {retry_after_s} s")]
    Overloaded {
        /// Whole seconds, 1..=5.
        retry_after_s: u32,
    },
    /// The disk gate is closed: writes that grow storage are refused.
    #[error(
        "storage is full: the data directory's file system is above the high-water mark; free space or grow the volume"
    )]
    StorageFull,
    /// Another backup is being taken.
    #[error("a backup is being taken already: wait for its end, or end the command that takes it")]
    BackupRunning,
    /// The cluster has no leader that this node knows of; nothing was done.
    #[error(
        "timeout: no leader: fewer than half of the voters can be reached, or an election is under way; ask again"
    )]
    NoLeader,
    /// The lead passed to another node while the call was under way: it may have been carried out.
    #[error(
        "timeout: the lead passed to another node before the answer; what was asked may have been committed: ask again"
    )]
    LeadLost,
    /// The node is stopping, or it stopped after a fault; nothing was done.
    #[error("timeout: this node is not serving: {0}")]
    NotServing(String),
    /// A fault or damaged data; logged where it was found.
    #[error("{0}")]
    Internal(String),
}

/// One message of a push, borrowed from the request.
#[derive(Clone, Copy, Debug)]
pub struct PushItem<'a> {
    /// Queue name, not empty.
    pub queue: &'a str,
    /// Partition name, already defaulted to `Default`.
    pub partition: &'a str,
    /// The caller's key; `None` takes the message id's text.
    pub transaction_id: Option<&'a str>,
    /// The JSON value's bytes, stored as they are.
    pub payload: &'a [u8],
    /// The validated token's subject.
    pub producer_sub: Option<&'a str>,
    /// Stored with the message; only transactions carry one.
    pub trace_id: Option<Uuid>,
}

/// Messages that the caller framed, for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramedGroup {
    /// Queue name, not empty.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// Frames without flags, one after the other, each checked: ids, texts, payloads that are JSON.
    pub frames: Bytes,
    /// The same as the caller compressed it: one zstd frame with its content size.
    pub packed: Bytes,
}

/// What a push brings.
#[derive(Clone, Copy, Debug)]
pub enum PushBatch<'a> {
    /// Messages that the broker frames.
    Items(&'a [PushItem<'a>]),
    /// Messages that the caller framed; the subject is stamped on each.
    Framed(&'a [FramedGroup], Option<&'a str>),
}

impl PushBatch<'_> {
    /// Bytes of its messages, with something for each.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Items(items) => items.iter().map(|item| item.payload.len() + 128).sum(),
            Self::Framed(groups, _) => groups.iter().map(|group| group.frames.len()).sum(),
        }
    }

    /// Whether there is nothing to store.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Items(items) => items.is_empty(),
            Self::Framed(groups, _) => groups.is_empty(),
        }
    }
}

/// The verdict on one item, in input order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushAnswer {
    /// The new message's id, or the original's for a duplicate.
    pub message_id: Uuid,
    /// What happened.
    pub status: PushStatus,
}

/// What happened to one pushed item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushStatus {
    /// Stored at this offset.
    Queued(Offset),
    /// Not stored: the original stands at this offset.
    Duplicate(Offset),
    /// Refused, nothing stored.
    Refused(Refusal),
}

/// Which partitions a pop may take from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopTarget {
    /// Any partition of the queue.
    Queue(String),
    /// One partition.
    Partition {
        /// Queue name.
        queue: String,
        /// Partition name.
        partition: String,
    },
    /// Any partition of every queue with these labels; at least one is given.
    Labels {
        /// Only queues of this namespace.
        namespace: Option<String>,
        /// Only queues of this task.
        task: Option<String>,
    },
}

/// Where a group that does not exist yet starts, as the pop says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscribe {
    /// Before the oldest retained message.
    All,
    /// At the registering pop's own time.
    New,
    /// Before the first message at or after this time.
    At(Micros),
}

/// One pop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the API has them, each on its own")]
pub struct PopRequest {
    /// Whose names these are.
    pub tenant: Tenant,
    /// Where to take from.
    pub target: PopTarget,
    /// Group name; `QUEUE_MODE` when the request names none.
    pub group: String,
    /// Messages at most, 1..=[`BATCH_MAX`]; `None` takes the default, or what the autopilot chooses.
    pub batch: Option<u32>,
    /// Partitions at most, 1..=64; `None` as with the batch. Ignored when pinned.
    pub partitions: Option<u32>,
    /// Whether the broker chooses what is left out; wildcard pops only.
    pub autopilot: bool,
    /// Whether to wait for a message, up to the deadline.
    pub wait: bool,
    /// Deadline of the call from now.
    pub timeout: Duration,
    /// Seconds of the lease; `None` takes the queue's.
    pub lease_seconds: Option<i32>,
    /// Commit at delivery: no lease, nothing to ack.
    pub commit_on_delivery: bool,
    /// Used when this pop registers the group.
    pub subscribe: Subscribe,
    /// Whether the group delivers only the newest message of a partition; used when this pop registers it. The stored
    /// policy of a registered group wins.
    pub conflation: Option<bool>,
    /// Whether the caller takes stored records; the broker may answer with messages all the same.
    pub frames: bool,
}

/// Messages of a pop at most.
pub const BATCH_MAX: u32 = 10_000;
/// Messages of a pop that names no batch.
pub const BATCH_DEFAULT: u32 = 200;
/// Partitions of a pop that names no number.
pub const PARTITIONS_DEFAULT: u32 = 1;

/// One delivered message; every field is a slice of one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Place in the partition.
    pub offset: Offset,
    /// Message id.
    pub id: Uuid,
    /// UTF-8.
    pub transaction_id: Bytes,
    /// Only messages of a transaction carry one.
    pub trace_id: Option<Uuid>,
    /// UTF-8; the subject of the producer's token.
    pub producer_sub: Option<Bytes>,
    /// The JSON value's bytes as they were pushed.
    pub data: Bytes,
    /// When it was appended.
    pub created: Micros,
}

/// The messages that one pop took from one partition, contiguous and in offset order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The partition's name.
    pub partition: Arc<str>,
    /// 1, or one more than the previous leased delivery that started at the same offset.
    pub attempt: u32,
    /// At least one.
    pub messages: Vec<Message>,
}

/// The stored records that hold what one pop took from one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramedClaim {
    /// The partition's number.
    pub partition_id: PartitionId,
    /// The partition's name.
    pub partition: Arc<str>,
    /// As in [`Claim`].
    pub attempt: u32,
    /// Offset of the first message taken.
    pub first: Offset,
    /// Offset of the last.
    pub last: Offset,
    /// In offset order; they may hold more than was taken.
    pub records: Vec<FramedRecord>,
}

/// One stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramedRecord {
    /// Offset of its first message.
    pub base: Offset,
    /// When it was appended.
    pub created: Micros,
    /// Messages in it.
    pub count: u32,
    /// Whether `payload` is one zstd frame.
    pub compressed: bool,
    /// The messages' frames.
    pub payload: Bytes,
}

/// What a pop took; no claim means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PopAnswer {
    /// `None` with commit at delivery, or when nothing was taken.
    pub lease: Option<Uuid>,
    /// One per partition.
    pub claims: Vec<Claim>,
    /// The same as stored records, instead of `claims`, when the request takes them.
    pub records: Vec<FramedClaim>,
    /// Whether the group's policy is to deliver only the newest message.
    pub conflates: bool,
    /// What the autopilot chose, when it was asked to.
    pub chosen: Option<Chosen>,
}

/// The sizes of a pop as the broker chose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Messages at most.
    pub batch: u32,
    /// Partitions at most.
    pub partitions: u32,
}

/// A verdict of a consumer about one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStatus {
    /// Done.
    Completed,
    /// Redeliver, charging the retry budget.
    Failed,
    /// Redeliver without charge.
    Retry,
    /// Dead-letter now.
    DeadLetter,
}

/// One acknowledgment, as the request gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckItem {
    /// Of the popped message.
    pub transaction_id: String,
    /// `None`: what the request sent is not a partition id.
    pub partition_id: Option<PartitionId>,
    /// The text as sent; `None` is an unfenced ack. A text that is no UUID fences and matches no lease.
    pub lease: Option<String>,
    /// The verdict.
    pub status: AckStatus,
    /// Reason, recorded when the message is dead-lettered.
    pub error: Option<String>,
}

/// The result of one acknowledgment, in input order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckAnswer {
    /// `Err` is the text of a failed item; it names the lease or the id.
    pub result: Result<AckDone, String>,
}

/// What a successful acknowledgment did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckDone {
    /// The partition's lease ended with this call.
    pub lease_released: bool,
    /// This message was dead-lettered by this call.
    pub dead_lettered: bool,
    /// A `completed` at or below the cursor: nothing changed.
    pub noop: bool,
}

/// The result of a lease extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Partition leases extended; 0 means none is live under this id.
    pub renewed: u32,
    /// The earliest new expiry.
    pub expires: Option<Micros>,
}

/// A queue after `configure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// The queue's id; survives reconfiguration.
    pub queue_id: Uuid,
    /// Its options now.
    pub options: QueueOptions,
}

/// The result of a group delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDeleted {
    /// Cursors removed.
    pub partitions: u64,
    /// Whether a subscription was removed.
    pub metadata: bool,
    /// Queues on which anything was removed, sorted.
    pub queues: Vec<String>,
}

/// What `/health` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `leader`, `follower`, `learner`, `candidate` while there is no leader or the node loads, `stopped` after a fault.
    pub role: &'static str,
    /// The current term; 1 for a node alone.
    pub term: u64,
    /// Whether the node serves.
    pub serving: bool,
    /// Last applied entry.
    pub applied: u64,
    /// Last committed entry.
    pub committed: u64,
    /// Whether the state machine is open and applying.
    pub storage_ready: bool,
    /// Why not, for a person.
    pub reason: Option<String>,
}

/// Where calls are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Here,
    /// By the member at this `host:port`.
    At(String),
    /// Nowhere: there is no leader that this node knows of.
    Nowhere,
}

/// The broker, as the HTTP edge sees it: what changes something, beside the reads.
pub trait Api: Reads {
    /// Where calls are served, waiting for a leader no longer than `limit`.
    fn place(&self, limit: Duration) -> impl Future<Output = Place> + Send;

    /// Takes room for a write of about this many bytes, before its body is read; kept until it is answered.
    ///
    /// # Errors
    /// [`CallError::Overloaded`] when there was none for the whole hold.
    fn admit(&self, bytes: usize) -> impl Future<Output = Result<Admission, CallError>> + Send;

    /// A backup of everything that was answered before; dropped, its pieces end it. One at a time.
    ///
    /// # Errors
    /// [`CallError::BackupRunning`]; [`CallError::Internal`] when it cannot be staged, which harms nothing.
    fn backup(&self) -> impl Future<Output = Result<Backup, CallError>> + Send;

    /// Stores messages; one answer per item in input order.
    fn push(
        &self,
        tenant: Tenant,
        batch: PushBatch<'_>,
        deadline: Duration,
    ) -> impl Future<Output = Result<Vec<PushAnswer>, CallError>> + Send;

    /// Does all of a transaction or nothing.
    fn transaction(
        &self,
        transaction: Transaction<'_>,
        deadline: Duration,
    ) -> impl Future<Output = Result<TransactionAnswer, CallError>> + Send;

    /// Takes messages.
    fn pop(&self, request: PopRequest)
    -> impl Future<Output = Result<PopAnswer, CallError>> + Send;

    /// Settles messages; one answer per item in input order.
    fn ack(
        &self,
        tenant: Tenant,
        group: String,
        items: Vec<AckItem>,
        deadline: Duration,
    ) -> impl Future<Output = Result<Vec<AckAnswer>, CallError>> + Send;

    /// Moves the expiry of every live partition lease of this id.
    fn extend(
        &self,
        tenant: Tenant,
        lease: String,
        seconds: i64,
        deadline: Duration,
    ) -> impl Future<Output = Result<Extended, CallError>> + Send;

    /// Makes a queue or changes its options.
    fn configure(
        &self,
        tenant: Tenant,
        queue: String,
        patch: OptionsPatch,
        replace: bool,
        deadline: Duration,
    ) -> impl Future<Output = Result<Configured, CallError>> + Send;

    /// Removes a queue with everything in it; whether it existed.
    fn delete_queue(
        &self,
        tenant: Tenant,
        queue: String,
        deadline: Duration,
    ) -> impl Future<Output = Result<bool, CallError>> + Send;

    /// Removes a group's cursors, on one queue or all, and its subscription with `metadata`.
    fn delete_group(
        &self,
        tenant: Tenant,
        group: String,
        queue: Option<String>,
        metadata: bool,
        deadline: Duration,
    ) -> impl Future<Output = Result<GroupDeleted, CallError>> + Send;

    /// Pushes a copy of a dead letter and removes it, in one step; `None` when it is not there.
    fn replay(
        &self,
        tenant: Tenant,
        letter: LetterRef,
        to: ReplayTo,
        deadline: Duration,
    ) -> impl Future<Output = Result<Option<Replay>, CallError>> + Send;

    /// Removes dead letters; returns how many.
    fn delete_letters(
        &self,
        tenant: Tenant,
        select: LetterSelect,
        deadline: Duration,
    ) -> impl Future<Output = Result<u64, CallError>> + Send;

    /// Sets where a group starts to a time, on every queue where it is registered; returns on how many.
    fn resubscribe(
        &self,
        tenant: Tenant,
        group: String,
        time: Micros,
        deadline: Duration,
    ) -> impl Future<Output = Result<u64, CallError>> + Send;

    /// Moves a group's cursors on a queue; returns how many, or `None` without such a queue or partition.
    fn seek(
        &self,
        seek: Seek,
        deadline: Duration,
    ) -> impl Future<Output = Result<Option<u64>, CallError>> + Send;

    /// The node's state, from memory only.
    fn health(&self) -> Health;

    /// What the node knows of its cluster, from memory only; `None` for a node alone.
    fn members(&self) -> Option<Members>;

    /// Changes the membership, on the node that leads; goes on when the call is dropped.
    ///
    /// # Errors
    /// [`MembersError`]; with the code `timeout` the change may still be made.
    fn change_members(
        &self,
        change: MembersChange,
        limit: Duration,
    ) -> impl Future<Output = Result<(), MembersError>> + Send;
}
