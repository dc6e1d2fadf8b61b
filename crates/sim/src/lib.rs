//! Nodes on simulated disks: every power cut of one's work, whole clusters, and the oracles that judge what is left.
//!
//! `node` is the product's own code on one thread; `workload` works it, `client` notes in `history` what the answers
//! promise; `oracle` judges a disk that a power cut left; `crash` walks over all of them; `grouped` writes several
//! entries before one sync; `faults` makes each call fail once; `damage` changes bytes of a directory at rest; `age`
//! lets a node on real files see months of traffic; `cluster` runs several nodes over a simulated network.
#![forbid(unsafe_code)]

pub mod age;
pub mod client;
pub mod cluster;
pub mod crash;
pub mod damage;
pub mod faults;
pub mod grouped;
pub mod history;
pub mod node;
pub mod oracle;
pub mod rng;
pub mod sites;
pub mod variant;
pub mod workload;
