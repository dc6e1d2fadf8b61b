//! Bytes as the body of a read by offset: what is accepted is within its limits and reads the same again.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use queen_broker::api::{FETCH_ENTRY_BYTES_MAX, FETCH_WAIT_MAX};
use queen_fuzz::{PER_BYTE, accepted, bounded};
use queen_http::fuzzing;
use serde_json::{Value, json};

fuzz_target!(|bytes: &[u8]| {
    let Some(request) = accepted(bounded(bytes.len() * PER_BYTE, || fuzzing::fetch(bytes))) else {
        return;
    };
    assert!(request.entries.len() <= 1024);
    assert!(request.wait <= FETCH_WAIT_MAX);
    let entry = |entry: &queen_broker::api::FetchEntry| {
        assert!(!entry.queue.is_empty() && !entry.partition.is_empty());
        assert!((1..=FETCH_ENTRY_BYTES_MAX).contains(&entry.bytes_max));
        json!({
            "queue": entry.queue, "partition": entry.partition, "offset": entry.offset,
            "maxBytes": entry.bytes_max,
        })
    };
    let entries: Vec<_> = request.entries.iter().map(entry).collect();
    let bytes_max = (request.bytes_max < u64::MAX).then_some(request.bytes_max);
    let wait = u64::try_from(request.wait.as_millis()).expect("short");
    assert_eq!(Duration::from_millis(wait), request.wait);
    let again: Value = json!({
        "entries": entries, "maxBytes": bytes_max, "maxWaitMs": wait, "minBytes": request.bytes_min,
    });
    let again = fuzzing::fetch(again.to_string().as_bytes()).expect("it was accepted");
    assert_eq!(format!("{again:?}"), format!("{request:?}"));
});
