//! Bytes as the messages of a framed group, compressed as a client would: accepted exactly when a simple reader of the
//! format accepts them, by a push and by a transaction alike.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use queen_broker::api::FramedGroup;
use queen_fuzz::{PER_BYTE, UNPACKED, UNPACKED_MAX, bounded, is_json, packed, put_text, put_u32};
use queen_http::fuzzing::{self, Pushed, Refused};

/// Messages that a body of the limit may hold.
const MESSAGES_MAX: usize = UNPACKED_MAX / 64;

fuzz_target!(|bytes: &[u8]| {
    let count = messages(bytes);
    let fits = count.is_some_and(|count| (1..=MESSAGES_MAX).contains(&count))
        && bytes.len() <= UNPACKED_MAX;
    let mut groups = Vec::new();
    put_u32(1, &mut groups);
    put_text("q", &mut groups);
    put_text("p", &mut groups);
    put_u32(count.unwrap_or(1), &mut groups);
    let packed = packed(bytes);
    put_u32(packed.len(), &mut groups);
    groups.extend_from_slice(&packed);

    let push = Bytes::from([b"QPB1\x08", &*groups].concat());
    let read = || fuzzing::push(&push, UNPACKED_MAX, pushed);
    let by_push = bounded(push.len() * PER_BYTE + UNPACKED, read);
    let transaction = Bytes::from([b"QTB1\0\0\0\0\0", &*groups].concat());
    let read = || {
        let parts = |parts: fuzzing::Parts<'_>| parts.groups.to_vec();
        fuzzing::transaction(&transaction, UNPACKED_MAX, parts)
    };
    let by_transaction = bounded(transaction.len() * PER_BYTE + UNPACKED, read);

    if fits {
        let by_push = by_push.expect("the simple reader accepts it");
        assert_eq!(by_push.len(), 1);
        assert_eq!((&*by_push[0].frames, &*by_push[0].packed), (bytes, &*packed));
        assert_eq!(by_transaction.expect("a push accepts it"), Some(by_push));
    } else {
        assert_eq!(by_push.err(), Some(Refused(400)));
        assert_eq!(by_transaction.err(), Some(Refused(400)));
    }
});

fn pushed(pushed: Pushed<'_>) -> Vec<FramedGroup> {
    match pushed {
        Pushed::Items(_) => panic!("it is framed"),
        Pushed::Framed(groups) => groups.to_vec(),
    }
}

/// How many messages the bytes hold, if they hold nothing else and each is whole, plain, named and JSON.
fn messages(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let (flags, body) = body.split_first()?;
        let (_id, body) = body.split_first_chunk::<16>()?;
        let (len, body) = body.split_first_chunk()?;
        let (name, payload) = body.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        let is_named = !name.is_empty() && std::str::from_utf8(name).is_ok();
        if *flags != 0 || !is_named || !is_json(payload) {
            return None;
        }
        count += 1;
        bytes = rest;
    }
    Some(count)
}
