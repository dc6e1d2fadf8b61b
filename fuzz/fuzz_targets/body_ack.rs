//! Bytes as the body of an acknowledgment, single or a list: what is accepted reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queen_fuzz::{Fields, PER_BYTE, accepted, ack_json, bounded, text};
use queen_http::fuzzing;
use serde_json::json;

fuzz_target!(|bytes: &[u8]| {
    let Some((group, items)) = accepted(bounded(bytes.len() * PER_BYTE, || fuzzing::ack(bytes)))
    else {
        return;
    };
    let top: Fields = serde_json::from_slice(bytes).expect("accepted");
    let list = top.get("acknowledgments");
    let list: Vec<Fields> =
        list.and_then(|raw| serde_json::from_str(raw.get()).expect("accepted")).unwrap_or_default();
    let list = if list.is_empty() && top.contains_key("transactionId") { vec![top] } else { list };
    assert_eq!(list.len(), items.len());
    for (fields, item) in list.iter().zip(&items) {
        assert_eq!(text(fields, "transactionId").as_ref(), Some(&item.transaction_id));
        assert_eq!(text(fields, "leaseId").filter(|lease| !lease.is_empty()), item.lease);
    }
    let list: Vec<_> = items.iter().map(ack_json).collect();
    let again = json!({ "acknowledgments": list, "consumerGroup": group }).to_string();
    assert_eq!(fuzzing::ack(again.as_bytes()), Ok((group, items)));
});
