//! Reads of the applied state for people and tools: listings, details, pages, messages by offset.
//!
//! V1. No read holds the state's lock for longer than a few thousand rows take.
//! V2. What the logs hold is shown verified or not at all: damage is an error, and is said in the node's health.
//! V3. Whatever a request asks for, there is a ceiling to the rows, the bytes and the look-ups that it gets.

mod browse;
mod changed;
mod dead_letters;
mod depth;
mod fetch;
mod figures;
mod groups;
mod message;
mod oldest;
mod opened;
mod overview;
mod queues;
mod sampled;
mod stored;
mod walk;

pub(crate) use browse::messages;
pub(crate) use changed::changed;
pub(crate) use dead_letters::{dead_letters, letter_payload};
pub(crate) use depth::{busy, depth};
pub(crate) use fetch::{Fetch, offsets};
pub(crate) use groups::{group, groups, lagging, positions, positions_in};
pub(crate) use message::{message, numbered};
pub(crate) use overview::{labels, overview};
pub(crate) use queues::{queue, queues};
pub(crate) use sampled::Sampled;
