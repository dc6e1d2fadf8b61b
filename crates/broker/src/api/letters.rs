//! What can be done with dead letters, and with a group's place.

use queen_record::ids::{Micros, Tenant, Uuid};

use super::{PartitionRef, PushAnswer, Rollback};

/// Which dead letter is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterRef {
    /// The one of this id.
    Id(Uuid),
    /// The newest of this message.
    Message {
        /// The message's partition.
        partition: PartitionRef,
        /// The message's transactionId.
        transaction_id: String,
    },
}

/// Which dead letters are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterSelect {
    /// All of a queue, or of one group on it.
    Queue {
        /// Queue name.
        queue: String,
        /// Only of this group.
        group: Option<String>,
    },
    /// All of one message.
    Message {
        /// The message's partition.
        partition: PartitionRef,
        /// The message's transactionId.
        transaction_id: String,
    },
}

/// Where a replayed message goes; what is left out is where it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayTo {
    /// Queue name.
    pub queue: Option<String>,
    /// Partition name.
    pub partition: Option<String>,
}

/// A dead letter that was found, and what became of its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The letter's id.
    pub id: Uuid,
    /// Queue that the copy goes to.
    pub queue: String,
    /// Partition that it goes to.
    pub partition: String,
    /// Group that had given up.
    pub group: String,
    /// The message's transactionId.
    pub transaction_id: String,
    /// The copy's transactionId.
    pub copy_id: String,
    /// What happened.
    pub end: ReplayEnd,
}

/// The end of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The copy is stored and the letter is gone.
    Moved(PushAnswer),
    /// A copy is there already; nothing was written and the letter stays.
    Duplicate(PushAnswer),
    /// Refused; the letter stays.
    Refused(Rollback),
}

/// Where a seek goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Behind the newest message.
    End,
    /// Before the first message at or after this time; behind the newest when there is none.
    Time(Micros),
}

/// A seek of one group on one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seek {
    /// Whose.
    pub tenant: Tenant,
    /// Group name.
    pub group: String,
    /// Queue name.
    pub queue: String,
    /// Only this partition.
    pub partition: Option<String>,
    /// Where to.
    pub to: SeekTo,
}
