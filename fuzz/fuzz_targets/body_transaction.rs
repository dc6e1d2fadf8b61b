//! Bytes as the JSON body of a transaction: what is accepted reads the same again.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use queen_broker::api::{PositionSet, Subscribe, TransactionAck};
use queen_fuzz::{
    Message, PER_BYTE, UNPACKED, UNPACKED_MAX, accepted, ack_json, bounded, check_group, is_json,
    put_groups, put_u32, with_payloads,
};
use queen_http::fuzzing::{self, Parts};
use serde_json::{Value, json};

type Read =
    (Vec<TransactionAck>, Vec<Message>, Vec<PositionSet>, Vec<queen_broker::api::FramedGroup>);

fuzz_target!(|bytes: &[u8]| {
    let body = Bytes::copy_from_slice(bytes);
    let unpacked = if bytes.starts_with(b"QTB1") { UNPACKED } else { 0 };
    let may = bytes.len() * PER_BYTE + unpacked;
    bounded(may, || fuzzing::transaction(&body, UNPACKED_MAX, |_| ()).ok());
    let Some(Some(found)) = accepted(read(&body)) else { return };
    let (acks, messages, positions, groups) = &found;
    groups.iter().for_each(check_group);
    let mut operations: Vec<Value> = acks.iter().map(ack).collect();
    operations.extend(messages.iter().map(Message::json));
    let positions: Vec<Value> = positions.iter().map(position).collect();
    // Two names that are not the same keep an ack without lease from borrowing another's.
    let head = with_payloads(&json!({
        "operations": operations, "positions": positions, "requiredLeases": ["a", "b"],
    }));
    assert!(is_json(head.as_bytes()));
    let again = if bytes.starts_with(b"QTB1") {
        assert!(messages.is_empty(), "a head has no pushes");
        let mut again = b"QTB1\0".to_vec();
        put_u32(head.len(), &mut again);
        again.extend_from_slice(head.as_bytes());
        put_groups(groups, &mut again);
        again
    } else {
        head.into_bytes()
    };
    assert_eq!(read(&Bytes::from(again)), Ok(Some(found)));
});

fn read(body: &Bytes) -> Result<Option<Read>, fuzzing::Refused> {
    fuzzing::transaction(body, UNPACKED_MAX, |parts: Parts<'_>| {
        let Parts { acks, items, positions, groups } = parts;
        (acks.to_vec(), Message::all(items), positions.to_vec(), groups.to_vec())
    })
}

fn ack(ack: &TransactionAck) -> Value {
    let mut json = ack_json(&ack.item);
    json["consumerGroup"] = json!(ack.group);
    json
}

fn position(position: &PositionSet) -> Value {
    let mode = match position.subscribe {
        None => None,
        Some(Subscribe::All) => Some("all"),
        Some(Subscribe::New) => Some("new"),
        Some(Subscribe::At(_)) => panic!("a position has no time"),
    };
    json!({
        "queue": position.queue, "partition": position.partition, "consumerGroup": position.group,
        "offset": position.offset.map(|offset| offset.0), "metadata": position.note,
        "subscriptionMode": mode,
    })
}
