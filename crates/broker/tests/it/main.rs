//! The node as its edges see it: real threads over a simulated disk.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod backup;
mod basics;
mod bytes;
mod choices;
mod consume;
mod dedup;
mod encrypted;
mod framed;
mod letters;
mod model;
mod read_limits;
mod read_waits;
mod reads;
mod refuse;
mod retention;
mod space;
mod support;
mod together;
mod transactions;
