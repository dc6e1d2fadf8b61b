//! The store's checkpoint: one durable image of the rows that the broker keeps in memory.
//!
//! ```text
//! state (rows in RAM) --changes--> Checkpoint::write      one transaction, durable when it returns
//!                     <---rows---- Checkpoint::load       everything verified
//! ```
//!
//! [`LmdbStore`] keeps it in an LMDB file, [`DiskStore`] in a plain file on any [`queen_io::Disk`], for
//! simulations. [`ImageStore`] reads an LMDB file without LMDB. None knows what a row means.

mod checkpoint;
mod delta;
mod directory;
mod disk_store;
mod error;
mod image;
mod image_store;
mod lmdb;
mod lmdb_store;
mod seal;
pub mod suite;
mod sums;
mod table;

pub use checkpoint::{Change, Checkpoint, IsSame, Loaded, Merged, OnRow, Written};
pub use disk_store::DiskStore;
pub use error::StoreError;
pub use image::ScrubPlace;
pub use image_store::ImageStore;
pub use lmdb::{bound_memory, trim_memory};
pub use lmdb_store::{LmdbOptions, LmdbStore};
pub use seal::{SEAL_LEN, keyspace_seed};
