//! Writes a data directory anew beside itself, with its queues spread over other logs.
//!
//! ```text
//!  old ──> scratch ──> the start of a node ──┬──> live records, in the order of entries ──> logs of the new layout ──┐
//!   │                                        └──> rows as of the last entry, and the point that names the logs ──────┤
//!   └──> every file that is of neither ───────────────────────────────────────────────────────────────> NEW.partial ─┤
//!                                                     opened as a node would, compared, examined by the doctor ──> NEW
//! ```
//!
//! - W1: nothing of the old directory is changed: it is only listed and opened for reading.
//! - W2: the new directory has its name only when it is whole, durable and verified: what it holds is what the old one
//!   holds, partition by partition and row by row.
//! - W3: whatever moment a run is interrupted at, the same run again ends with the same directory.
//! - W4: only what a run of this made is ever removed: its mark is durable before anything else is made, and goes last.
//!
//! What is left out is what reclaim could have given back: records below their partition's mark, those of deleted
//! partitions, and entry records, all of which lie below the new point.
#![forbid(unsafe_code)]

mod content;
mod copy;
mod error;
mod job;
mod place;
mod progress;

pub use error::RelayoutError;
pub use job::{Job, OpenStore, Outcome, Report, relayout};
pub use place::MARK;
pub use progress::{Progress, Stage};
