//! Examines a data directory without changing it.
//!
//! ```text
//!  directory ──> scratch ──> the start of a node, as it is ──> starts / refuses ──┐
//!      │            └─ what it changed in memory ──────────> cut, made again ──┤──> Report
//!      └──> every byte of every file: records, frames, entries, side files ────┘
//! ```
//!
//! D1. The verdict is that of the start: it is the start's own code, run on a disk that keeps its writes in memory.
//! D2. Nothing of the directory is changed: the disk given is only listed and opened for reading.
//! D3. What is read beyond the start is reported as damage that a start does not see, never as a refusal.
#![forbid(unsafe_code)]

mod changes;
mod describe;
mod examine;
mod extents;
mod logs;
mod progress;
mod report;
mod sealed;
mod start;

pub use describe::{Described, describe_effect, describe_frame, describe_record, describe_row};
pub use examine::examine;
pub use progress::{Progress, Stage};
pub use report::{Figures, Finding, Report, Severity, Verdict};
pub use start::{StoreKind, Target, place, start};
