//! The routes over a real listener, with a scripted broker behind them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod auth;
mod backup;
mod binary;
mod ceilings;
mod changes;
mod errors;
mod fake;
mod fake_reads;
mod group_reads;
mod hostile;
mod jwks;
mod life;
mod members;
mod node;
mod offset_reads;
mod reads;
mod sums;
mod writes;
