//! One log per queue: append, sync, roll, seal, index, read, recover.
//!
//! ```text
//! <dir>/LANES SHARDS
//! <dir>/q<log id>/r00000001.qlog .qidx .qhsh     sealed: never changes, found by its side files
//!                 r00000002.qlog                 active: index in RAM
//!                 r00000003.qlog                 made ahead, first seq all ones
//! ```
//!
//! An entry is written into every log it touches: its messages first, then the whole entry record (lowest log)
//! or a stub naming it (the others). Nothing orders the logs among each other on disk; an entry exists when all
//! its parts do, and recovery delivers the gapless run of complete entries and cuts the rest.
//!
//! Invariants:
//! - Q1 within a log seqs never decrease, and an entry's part follows its messages;
//! - Q2 a file is synced whole before a later one holds a record, so only the last file can have a torn tail;
//! - Q3 a file's name is durable before a record in it is trusted; a cut removes names newest first, and reclaim only those
//!   that a written point names, so numbers have no other hole;
//! - Q4 a durable point names only bytes whose entries are complete and synced, so no cut reaches below it;
//! - Q5 after a failed write or sync nothing is written again;
//! - Q6 no lock that a reader takes is held across I/O.
#![forbid(unsafe_code)]

mod active;
mod anew;
mod append;
mod appends;
mod background;
mod cold;
mod cut;
mod durable;
mod entries;
mod error;
mod file;
mod handles;
mod hashes;
mod inventory;
mod layout;
mod log;
mod merged;
mod names;
mod open;
mod options;
mod parts;
mod places;
mod points;
mod pool;
mod read;
mod reclaim;
mod recover;
mod retired;
mod rewrite;
mod scan;
mod scrub;
mod shared;
mod side;
mod staging;
mod stats;
mod terms;
mod truncate;
pub mod walk;

pub use anew::{Anew, AnewLogs};
pub use cold::ActiveFile;
pub use durable::{DurablePoint, FileTail, LogTail, PointError, Rewriting};
pub use entries::{EntryReader, StoredEntry, StoredMessage};
pub use error::{Fault, OpenError, ReadError};
pub use hashes::{FoundHash, HashSink};
pub use merged::{Merged, MergedRecord};
pub use options::Options;
pub use places::Place;
pub use read::{ReadLimit, SeqRange, StoredRecord};
pub use reclaim::{ColdFile, Reclaimed};
pub use recover::{Cut, LogCut, MessageHead, RecoveredEntry, Recovery};
pub use rewrite::Rewrite;
pub use scrub::{Scrub, Scrubbed};
pub use shared::{EntryWrite, MessageWrite, Qlog};
pub use staging::Linked;
pub use stats::Stats;
