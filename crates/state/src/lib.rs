//! The tables in RAM, their stored row format, the read view, and `apply`, the only mutator.
#![forbid(unsafe_code)]

mod keyspace;

pub use keyspace::Keyspace;
