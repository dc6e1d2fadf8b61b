//! Reads for people and tools: listings, details and pages of the applied state. They hold the state's lock in slices.

mod dead_letters;
mod message;
mod opened;
mod queues;

pub(crate) use dead_letters::{dead_letters, letter_payload};
pub(crate) use message::message;
pub(crate) use queues::{queue, queues};

/// Partitions visited under one hold of the state's lock: a fraction of a millisecond.
const PARTITIONS_PER_HOLD: usize = 2048;
