//! Ids, units and every byte of a log file.
#![forbid(unsafe_code)]

pub mod ids;
