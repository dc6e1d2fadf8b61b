//! Bytes as the JSON body of a push: what is accepted is what another reader finds, and reads the same again.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use queen_fuzz::{Fields, Message, PER_BYTE, UNPACKED_MAX, accepted, bounded, text, with_payloads};
use queen_http::fuzzing::{self, Pushed};
use serde_json::json;

fuzz_target!(|bytes: &[u8]| {
    let body = Bytes::copy_from_slice(bytes);
    if body.starts_with(b"QPB1") {
        return;
    }
    bounded(bytes.len() * PER_BYTE, || fuzzing::push(&body, UNPACKED_MAX, |_| ()).ok());
    let Some(messages) = read(&body) else { return };
    let top: Fields = serde_json::from_slice(bytes).expect("accepted");
    let items: Vec<Fields> = serde_json::from_str(top["items"].get()).expect("accepted");
    assert_eq!(items.len(), messages.len());
    for (item, message) in items.iter().zip(&messages) {
        let filled = |name| text(item, name).filter(|text| !text.is_empty());
        assert_eq!(filled("queue").as_ref(), Some(&message.queue));
        assert_eq!(filled("partition").unwrap_or("Default".to_owned()), message.partition);
        assert_eq!(filled("transactionId"), message.transaction_id);
        assert_eq!(item["payload"].get().as_bytes(), message.payload);
        assert_eq!(message.trace_id, None);
    }
    let items: Vec<_> = messages.iter().map(Message::json).collect();
    let again = with_payloads(&json!({ "items": items }));
    assert_eq!(read(&Bytes::from(again)), Some(messages));
});

fn read(body: &Bytes) -> Option<Vec<Message>> {
    accepted(fuzzing::push(body, UNPACKED_MAX, |pushed| match pushed {
        Pushed::Items(items) => Message::all(items),
        Pushed::Framed(_) => panic!("JSON is not framed"),
    }))
}
