//! The node: takes commands, plans, proposes, applies, answers.
#![forbid(unsafe_code)]

mod admission;
pub mod api;
mod arrivals;
mod checkpoint;
pub mod cipher;
mod core;
pub mod cycle;
mod inbox;
pub mod lookup;
pub mod machine;
pub mod metrics;
mod node;
pub mod prepare;
pub mod recover;
pub mod retention;
mod service;
mod views;

pub use node::{Node, NodeOptions, NodeParts, RetentionOptions, StartError};
pub use service::{Broker, BrokerOptions};
