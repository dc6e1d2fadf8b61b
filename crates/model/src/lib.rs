//! What is replicated: commands' effects and outcomes, refusals, and the versioned entry codec.
#![forbid(unsafe_code)]

mod options;
mod refusal;

pub use options::{
    LEASE_TIME_DEFAULT, LEASE_TIME_IMPLICIT, OptionsPatch, Patch, QueueOptions,
    SINK_HOLD_MAX_SECONDS_DEFAULT,
};
pub use refusal::{NAMES_BYTES_MAX, Refusal, TRANSACTION_ID_BYTES_MAX};
