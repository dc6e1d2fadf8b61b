//! The tables in RAM, their stored row format, the read view, and `apply`, the only mutator.
//!
//! S1. Applying the same entries gives the same rows on every node, whatever it was restarted from.
//! S2. `apply` changes nothing unless the entry is the next one and its bases are the state's own.
//! S3. A row that changed since the last cut is dirty; a cut yields every row as of the entry it was taken at.
//! S4. Numbers of partitions, queues and groups are never reused, so a row of something deleted cannot be taken
//!     for one of its successor.
#![forbid(unsafe_code)]

mod apply;
mod counts;
mod cursor;
mod cut;
mod describe;
mod keyspace;
mod partition;
mod queue;
mod rows;
mod stored;
mod tables;

pub use apply::ApplyError;
pub use counts::PartitionCounts;
pub use cursor::{Cursor, GroupNumber};
pub use cut::StoredRow;
pub use describe::{Field, FieldValue, describe_letter, describe_row};
pub use keyspace::Keyspace;
pub use partition::{Marks, Partition, QueueNumber};
pub use queue::{DeadLetterRow, Group, Queue};
pub use rows::RowError;
pub use stored::{RowPlace, stored_again};
pub use tables::State;
