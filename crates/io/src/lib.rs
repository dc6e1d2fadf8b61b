//! Disk and clock behind small traits, the real ones, a simulated disk that loses unsynced data, and an overlay that
//! keeps every change in memory.
//!
//! Nothing above this crate calls the operating system's file or time functions: durability can only be
//! tested when the test decides what survives.
#![forbid(unsafe_code)]

mod clock;
mod disk;
mod overlay;
mod real;
pub mod sim;
mod site;
pub mod suite;

pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{DirEntry, Disk, DiskFile, OpenMode};
pub use overlay::{Change, ChangeKind, OverlayDisk};
pub use real::RealDisk;
pub use sim::SimDisk;
pub use site::{SiteGuard, site};
