//! Transactions: acknowledgments, pushes and positions that happen together or not at all.

use queen_model::Refusal;
use queen_record::ids::{Offset, Tenant};

use super::{AckDone, AckItem, PushAnswer, PushBatch, Subscribe};

/// One transaction.
#[derive(Clone, Debug)]
pub struct Transaction<'a> {
    /// Whose.
    pub tenant: Tenant,
    /// Decided first, in order.
    pub acks: Vec<TransactionAck>,
    /// Decided next.
    pub pushes: PushBatch<'a>,
    /// Decided last.
    pub positions: Vec<PositionSet>,
}

/// One acknowledgment of a transaction: each names its own group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionAck {
    /// Group name; `QUEUE_MODE` when the request names none.
    pub group: String,
    /// What is acknowledged.
    pub item: AckItem,
}

/// Where a group shall read next in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionSet {
    /// Queue name; it must exist.
    pub queue: String,
    /// Partition name; made when it does not exist.
    pub partition: String,
    /// Group name.
    pub group: String,
    /// The offset that is read next; `None` forgets the group's place.
    pub offset: Option<Offset>,
    /// The caller's note; `None` keeps the one that is there.
    pub note: Option<String>,
    /// Registers the group when it is not registered.
    pub subscribe: Option<Subscribe>,
}

/// The end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionAnswer {
    /// All of it happened.
    Committed {
        /// One per acknowledgment, in order.
        acks: Vec<AckDone>,
        /// One per pushed item, in order.
        pushes: Vec<PushAnswer>,
    },
    /// Nothing of it happened.
    RolledBack(Rollback),
}

/// Why a transaction was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Which kind of guard failed.
    pub reason: RollbackReason,
    /// For a person.
    pub error: String,
}

/// The kind of guard that failed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackReason {
    /// An acknowledgment does not hold.
    RejectedAck,
    /// A pushed transactionId is stored already.
    Duplicate,
    /// A position names no queue.
    QueueNotFound,
    /// More bytes than one entry may have.
    TooLarge,
    /// Names beyond their budget.
    NameTooLong,
    /// A field that cannot be meant.
    BadRequest,
}

impl RollbackReason {
    /// The kind of a planner's refusal.
    pub(crate) fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NameTooLong { .. } => Self::NameTooLong,
            Refusal::TooLarge { .. } => Self::TooLarge,
            Refusal::BadRequest(_) => Self::BadRequest,
        }
    }

    /// The stable code string.
    pub fn code(self) -> &'static str {
        match self {
            Self::RejectedAck => "rejected_ack",
            Self::Duplicate => "duplicate",
            Self::QueueNotFound => "queue_not_found",
            Self::TooLarge => "too_large",
            Self::NameTooLong => "name_too_long",
            Self::BadRequest => "bad_request",
        }
    }
}
