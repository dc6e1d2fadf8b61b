//! Bytes as a binary push, with every flag: what is accepted is what the JSON form would store, reads the same again, and
//! reads the same compressed.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use queen_broker::api::FramedGroup;
use queen_fuzz::{
    Message, PER_BYTE, UNPACKED, UNPACKED_MAX, accepted, bounded, check_group, packed, put_groups,
    put_text, put_u32, with_payloads,
};
use queen_http::fuzzing::{self, Pushed};
use serde_json::json;

const PACKED: u8 = 1;
const WITH_IDS: u8 = 4;
const FRAMED: u8 = 8;

#[derive(Debug, PartialEq)]
enum Found {
    Items(Vec<Message>),
    Framed(Vec<FramedGroup>),
}

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, content)) = bytes.strip_prefix(b"QPB1").and_then(<[u8]>::split_first) else {
        return;
    };
    let found = judge(bytes);
    if flags & PACKED == 0 && content.len() <= UNPACKED_MAX {
        let mut body = b"QPB1".to_vec();
        body.push(flags | PACKED);
        put_u32(content.len(), &mut body);
        body.extend_from_slice(&packed(content));
        // A group's own frames are counted too, so what is framed may now be too much.
        if flags & FRAMED == 0 {
            assert_eq!(judge(&body), found);
        } else {
            judge(&body);
        }
    }
});

/// Reads a body, and whatever it is accepted as.
fn judge(body: &[u8]) -> Option<Found> {
    let body = Bytes::copy_from_slice(body);
    bounded(body.len() * PER_BYTE + UNPACKED, || fuzzing::push(&body, UNPACKED_MAX, |_| ()).ok());
    let found = read(&body)?;
    let mut again = b"QPB1".to_vec();
    match &found {
        Found::Items(messages) => {
            as_json(messages);
            again.push(WITH_IDS);
            put_u32(messages.len(), &mut again);
            for message in messages {
                put_text(&message.queue, &mut again);
                put_text(&message.partition, &mut again);
                put_u32(1, &mut again);
                put_text(message.transaction_id.as_deref().unwrap_or_default(), &mut again);
                put_u32(message.payload.len(), &mut again);
                again.extend_from_slice(&message.payload);
            }
        }
        Found::Framed(groups) => {
            groups.iter().for_each(check_group);
            again.push(FRAMED);
            put_groups(groups, &mut again);
        }
    }
    assert_eq!(read(&Bytes::from(again)).as_ref(), Some(&found));
    Some(found)
}

fn as_json(messages: &[Message]) {
    let items: Vec<_> = messages.iter().map(Message::json).collect();
    let body = with_payloads(&json!({ "items": items }));
    let messages = messages.iter().cloned().map(Message::trimmed).collect();
    assert_eq!(read(&Bytes::from(body)), Some(Found::Items(messages)));
}

fn read(body: &Bytes) -> Option<Found> {
    accepted(fuzzing::push(body, UNPACKED_MAX, |pushed| match pushed {
        Pushed::Items(items) => Found::Items(Message::all(items)),
        Pushed::Framed(groups) => Found::Framed(groups.to_vec()),
    }))
}
