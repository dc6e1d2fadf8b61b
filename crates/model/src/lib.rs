//! What is replicated: commands' effects, refusals, and the versioned entry codec.
//!
//! M1. Encoding an entry and decoding the bytes gives the payload-free form of the same entry.
//! M2. Decoding any bytes ends in an entry or an error and allocates at most what the bytes can fill.
#![forbid(unsafe_code)]

mod codec;
mod effect;
mod effect_codec;
mod entry;
mod options;
mod refusal;

pub use codec::DecodeError;
pub use effect::{
    Append, AppendPayload, CursorSet, DlqInsert, Effect, GroupUpsert, Lease, PartitionCreate,
    Released, SubscriptionMode, Watermark,
};
pub use effect_codec::{
    NIL, dead_letter_from_bytes, dead_letter_to_bytes, encode_options, group_from_bytes,
    group_to_bytes, options_from_bytes,
};
pub use entry::{CommandSpan, Entry, KINDS_VERSION};
pub use options::{
    LEASE_TIME_DEFAULT, LEASE_TIME_IMPLICIT, OptionsPatch, Patch, QueueOptions,
    SINK_HOLD_MAX_SECONDS_DEFAULT,
};
pub use refusal::{NAMES_BYTES_MAX, Refusal, TRANSACTION_ID_BYTES_MAX};
