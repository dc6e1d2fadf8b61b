//! Where an entry and its messages part: payloads go into message records, and what is applied holds none.

use queen_model::{Append, AppendPayload, Effect, Entry};
use queen_qlog::MessageWrite;
use queen_record::ids::LogId;

/// The message record of an append that holds its payload.
pub(crate) fn message(append: &Append, log: LogId) -> MessageWrite<'_> {
    let AppendPayload::Stored { bytes, compressed, .. } = &append.payload else {
        unreachable!("an entry that is written has its payloads")
    };
    MessageWrite {
        log,
        partition: append.id,
        base: append.base,
        created: append.created,
        hashes: &append.hashes,
        payload: bytes,
        compressed: *compressed,
    }
}

/// The entry as a replay would see it: apply does the same with both, and memory is freed early.
pub(crate) fn without_payloads(mut entry: Entry) -> Entry {
    for effect in &mut entry.effects {
        if let Effect::Append(append) = effect {
            append.payload = AppendPayload::Elsewhere { retained: append.retained() };
        }
    }
    entry
}
