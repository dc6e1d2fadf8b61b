//! Decides: turns a command, a view of the state and the entries in flight into effects, or a refusal.
//!
//! P1. Planning never changes applied state; it changes the draft, the overlay and the engine.
//! P2. Whatever apply could refuse is refused here, before it is logged.
//! P3. No clock, no disk, no thread, no randomness: time and entropy come in with the stamp. What only the log knows
//!     is asked for by an answer of its own kind, and the command is planned again with the facts.
#![forbid(unsafe_code)]

pub mod ack;
pub mod catalog;
pub mod consume;
pub mod draft;
pub mod filter;
pub mod limits;
pub mod overlay;
pub mod push;
pub mod retention;
