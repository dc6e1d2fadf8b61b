//! The node: takes commands, plans, proposes, applies, answers.
#![forbid(unsafe_code)]

mod admission;
pub mod api;
mod arrivals;
pub mod backup;
mod checkpoint;
pub mod cipher;
mod cluster;
mod core;
pub mod cycle;
mod inbox;
pub mod lookup;
pub mod machine;
pub mod metrics;
mod node;
pub mod offload;
pub mod prepare;
mod reclaim;
pub mod recover;
pub mod retention;
mod scrub;
mod service;
mod space;
mod views;

pub use self::core::End;
pub use checkpoint::StoreScrubPace;
pub use cluster::StateOwners;
pub use node::{Node, NodeOptions, NodeParts, RetentionOptions, StartError};
pub use scrub::ScrubPace;
pub use service::{Broker, BrokerOptions};
pub use space::SpaceLimits;
