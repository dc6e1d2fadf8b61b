//! Disk and clock behind small traits, the real ones, a simulated disk that loses unsynced data, and a scratch disk that
//! keeps every change in memory.
//!
//! Nothing above this crate calls the operating system's file or time functions: durability can only be
//! tested when the test decides what survives.
#![forbid(unsafe_code)]

mod clock;
mod disk;
mod real;
mod scratch;
pub mod sim;
mod site;
pub mod suite;

pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{DirEntry, Disk, DiskFile, OpenMode, Space};
pub use real::RealDisk;
pub use scratch::{Change, ChangeKind, ScratchDisk};
pub use sim::SimDisk;
pub use site::{SiteGuard, site};
