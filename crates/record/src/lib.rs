//! Ids, units and every byte of a log file.
//!
//! ```text
//! file    = header (32 bytes) record*
//! record  = len u32 | checksum u64 | seq | pid | base | count | created | kind | hashes | payload
//! payload = frame*                      one frame per message, optionally one zstd frame around all
//! ```
//!
//! Everything here is pure: no file, clock or thread. Decoding borrows and never panics, whatever the bytes are;
//! encoding appends to the caller's buffer. Nothing is allocated from a length that was not checked first.
//! All integers are little-endian except two: a hash digest and a UUID are stored in their canonical byte order.
#![forbid(unsafe_code)]

pub mod compress;
pub mod frame;
pub mod hash;
pub mod header;
pub mod ids;
pub mod layout;
pub mod le;
pub mod qhsh;
pub mod qidx;
pub mod record;
pub mod scan;
pub mod seal;
pub mod side;
