//! The binding to LMDB: one environment, write transactions, tables by name. Nothing else.
//!
//! The rest of the crate reads through `image`, never through the map: here rows are only read to be changed,
//! from a file that `image` has found good. What keeps this safe: an environment has at most one transaction,
//! since a transaction borrows it mutably; bytes out of the map are borrowed from the transaction and end with
//! its next change; LMDB's own locks are off, and the caller owns the file alone (`LmdbStore` holds a lock).
#![expect(unsafe_code, reason = "LMDB binding")]

mod env;
mod ffi;

pub(crate) use env::{Env, EnvOptions, LmdbError, Table, Txn};
pub use env::{bound_memory, trim_memory};
