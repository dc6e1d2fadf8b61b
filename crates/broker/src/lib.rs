//! The node: takes commands, plans, proposes, applies, answers.
#![forbid(unsafe_code)]

pub mod api;
