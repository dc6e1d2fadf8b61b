//! Giving space back: which log files hold nothing that anybody may still ask for, and at what pace they go.
//!
//! ```text
//! policy     what is dead, and when a file goes, is rewritten or is sealed early: no I/O
//! view       what the state says of a partition
//! reclaimer  one pass: carry out what is recorded, look at some files, plan
//! ```
//!
//! Node-local and not replicated: nodes that hold the same entries may hold different files. `qlog` keeps the order of
//! plan, record and removal; this crate only chooses.
//!
//! - L1: a file is judged by a state that has applied all its entries, so "gone" is never "not yet made".
//! - L2: dead stays dead: partition numbers are never reused and marks only rise.
//! - L3: a pass has a ceiling in files, look-ups, time and bytes copied, and goes on where the last one stopped.
#![forbid(unsafe_code)]

pub mod policy;
mod reclaimer;
mod seal;
mod view;

pub use policy::{Fate, Options};
pub use reclaimer::{Partitions, Pass, Reclaimer};
pub use view::StateView;
