//! Disk and clock behind small traits, the real ones, and a simulated disk that loses unsynced data.
//!
//! Nothing above this crate calls the operating system's file or time functions: durability can only be
//! tested when the test decides what survives.
#![forbid(unsafe_code)]

mod clock;
mod disk;
mod real;
pub mod sim;
mod site;
pub mod suite;

pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{DirEntry, Disk, DiskFile, OpenMode, Space};
pub use real::RealDisk;
pub use sim::SimDisk;
pub use site::{SiteGuard, site};
