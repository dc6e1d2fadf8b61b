//! Entry bytes: the published vector, and every effect there and back.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use bytes::Bytes;
use proptest::prelude::*;
use queen_model::{
    Append, AppendPayload, CommandSpan, CursorSet, DecodeError, DlqInsert, Effect, Entry,
    GroupUpsert, Lease, PartitionCreate, QueueOptions, Released, SubscriptionMode, Watermark,
};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, TxHash, Uuid};

fn entry(effects: Vec<Effect>) -> Entry {
    let count = u32::try_from(effects.len()).unwrap();
    let commands = (count > 0).then_some(CommandSpan {
        request: Uuid([7; 16]),
        first_effect: 0,
        effect_count: count,
    });
    Entry {
        now: Micros(1_792_836_718_160_000),
        pid_base: PartitionId(2),
        kv_version_base: 1,
        commands: commands.into_iter().collect(),
        effects,
    }
}

#[test]
fn the_published_empty_entry() {
    let mut bytes = Vec::new();
    entry(vec![]).encode(&mut bytes);
    let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    assert_eq!(
        hex,
        "2600000048e137867dc2aa3101000300000080e8b953935e0600\
         0200000000000000010000000000000000000000\
         00000000"
    );
    assert_eq!(Entry::decode(&bytes), Ok(entry(vec![])));
}

fn one_of_each() -> Vec<Effect> {
    let tenant = Tenant::DEFAULT;
    let cursor = CursorSet {
        id: PartitionId(2),
        group: "g".into(),
        committed: -1,
        lease: None,
        retries: 0,
        attempt_offset: None,
        attempts: 0,
        consumed: 0,
        created: Micros(1),
        metadata: String::new(),
        released: None,
    };
    let lease = Lease {
        worker: Uuid([3; 16]),
        batch_end: Offset(9),
        expires: Micros(5),
        acquired: Micros(4),
        conflated: false,
    };
    let released = Released { worker: Uuid([4; 16]), low: Offset(1), high: Offset(3) };
    vec![
        Effect::Noop,
        Effect::QueueUpsert {
            tenant,
            queue: "q".into(),
            id: Uuid([1; 16]),
            options: QueueOptions::implicit("a.b"),
            created: Micros(8),
        },
        Effect::QueueDelete { tenant, queue: "gone".into() },
        Effect::GroupUpsert(GroupUpsert {
            tenant,
            queue: "q".into(),
            group: "g".into(),
            id: Uuid([2; 16]),
            mode: SubscriptionMode::New,
            subscribe_at: Micros(6),
            conflation: false,
            registered: Micros(6),
        }),
        Effect::GroupDelete { tenant, queue: "q".into(), group: "h".into(), metadata: false },
        Effect::PartitionCreate(PartitionCreate {
            id: PartitionId(2),
            uuid: Uuid([5; 16]),
            tenant,
            queue: "q".into(),
            partition: "p".into(),
            created: Micros(8),
        }),
        Effect::PartitionDelete { id: PartitionId(1) },
        Effect::Append(Append {
            id: PartitionId(2),
            bucket: 3,
            base: Offset(0),
            created: Micros(9),
            hashes: vec![TxHash([1; 16]), TxHash([2; 16])],
            payload: AppendPayload::Elsewhere { retained: 99 },
        }),
        Effect::CursorSet(cursor.clone()),
        Effect::CursorSet(CursorSet { metadata: "note".into(), ..cursor.clone() }),
        Effect::CursorSet(CursorSet {
            lease: Some(lease),
            released: Some(released),
            attempt_offset: Some(Offset(4)),
            ..cursor
        }),
        Effect::CursorDelete { id: PartitionId(2), group: "g".into() },
        Effect::DlqInsert(dead_letter(false)),
        Effect::DlqInsert(dead_letter(true)),
        Effect::Watermark(WATERMARK),
        Effect::Watermark(Watermark { oldest: None, ..WATERMARK }),
        Effect::DeleteChunk { limit: 4096 },
    ]
}

const WATERMARK: Watermark = Watermark {
    id: PartitionId(2),
    log_start: Offset(9),
    txns_start: Offset(4),
    rows_start: Offset(5),
    oldest: Some(Micros(11)),
    freed: 777,
};

/// The bytes of one effect of this kind and version, inside an entry.
fn foreign(kind: u16, version: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry(vec![Effect::Noop]).encode(&mut bytes);
    // The last eight bytes are the effect that changes nothing; the first twelve cover the rest.
    bytes.truncate(bytes.len() - 8);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend(body);
    let len = u32::try_from(bytes.len() - 12).unwrap();
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[12..]);
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..12].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Watermarks of other builds are read; what they do not say is nothing.
#[test]
fn every_layout_of_a_watermark() {
    let numbers = |list: &[u64]| -> Vec<u8> { list.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let check = |version: u16, body: &[u8], expected: Watermark| {
        let decoded = Entry::decode(&foreign(12, version, body)).unwrap();
        assert_eq!(decoded.effects, [Effect::Watermark(expected)]);
        let longer = [body, &[0]].concat();
        for wrong in [&body[..body.len() - 1], &longer] {
            assert!(Entry::decode(&foreign(12, version, wrong)).is_err());
        }
    };
    let first = numbers(&[2, 9, 4]);
    let silent = Watermark { rows_start: Offset(4), oldest: None, freed: 0, ..WATERMARK };
    check(1, &first, silent);
    let sixth = [&*numbers(&[2, 9, 4, 5]), &[1], &11i64.to_le_bytes()].concat();
    check(6, &sixth, Watermark { freed: 0, ..WATERMARK });
    let empty = [&*numbers(&[2, 9, 4, 5]), &[0]].concat();
    check(6, &empty, Watermark { oldest: None, freed: 0, ..WATERMARK });
    check(0x8000, &[&*sixth, &777u64.to_le_bytes()].concat(), WATERMARK);
    let mut written = Vec::new();
    entry(vec![Effect::Watermark(WATERMARK)]).encode(&mut written);
    assert_eq!(written, foreign(12, 0x8000, &[&*sixth, &777u64.to_le_bytes()].concat()));
    for version in [0, 2, 5, 7, 0x8001] {
        let unknown = Entry::decode(&foreign(12, version, &first)).unwrap_err();
        assert!(matches!(unknown, DecodeError::Unknown { .. }), "{version}: {unknown}");
    }
}

fn dead_letter(encrypted: bool) -> DlqInsert {
    DlqInsert {
        id: Uuid([6; 16]),
        tenant: Tenant::DEFAULT,
        queue: "q".into(),
        partition: PartitionId(2),
        group: "g".into(),
        offset: 4,
        message_id: Some(Uuid([7; 16])),
        transaction_id: "t".into(),
        payload: Bytes::from_static(b"{}"),
        encrypted,
        error: "boom".into(),
        retries: 2,
        failed: Micros(10),
    }
}

/// One that is not encrypted keeps the layout that other builds write.
#[test]
fn only_an_encrypted_dead_letter_has_a_layout_of_its_own() {
    let bytes = |encrypted| {
        let mut bytes = Vec::new();
        entry(vec![Effect::DlqInsert(dead_letter(encrypted))]).encode(&mut bytes);
        bytes
    };
    let (plain, own) = (bytes(false), bytes(true));
    let has = |bytes: &[u8], head: [u8; 4]| bytes.windows(4).any(|window| window == head);
    assert!(has(&plain, [10, 0, 1, 0]) && has(&own, [10, 0, 0, 0x80]));
    assert_eq!(own.len(), plain.len() + 1);
}

#[test]
fn every_effect_comes_back() {
    let sent = entry(one_of_each());
    let mut bytes = Vec::new();
    sent.encode(&mut bytes);
    assert_eq!(Entry::decode(&bytes), Ok(sent));
}

#[test]
fn a_stored_payload_becomes_its_retained_length() {
    let append = Append {
        id: PartitionId(1),
        bucket: 0,
        base: Offset(7),
        created: Micros(9),
        hashes: vec![TxHash([1; 16])],
        payload: AppendPayload::Stored {
            bytes: Bytes::from_static(b"zz"),
            compressed: true,
            raw_len: 50,
        },
    };
    let mut bytes = Vec::new();
    entry(vec![Effect::Append(append)]).encode(&mut bytes);
    let back = Entry::decode(&bytes).unwrap();
    let Some(Effect::Append(append)) = back.effects.first() else { panic!("{back:?}") };
    assert_eq!(append.payload, AppendPayload::Elsewhere { retained: 40 + 16 + 50 });
}

#[test]
fn what_is_newer_or_inconsistent_is_refused() {
    let mut uncovered = entry(vec![Effect::Noop]);
    uncovered.commands.clear();
    let mut misnumbered = entry(one_of_each());
    misnumbered.pid_base = PartitionId(5);
    for bad in [uncovered, misnumbered] {
        let mut bytes = Vec::new();
        bad.encode(&mut bytes);
        assert!(matches!(Entry::decode(&bytes), Err(DecodeError::Invalid { .. })));
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        drop(Entry::decode(&bytes));
    }

    /// The checksum is set right, so that the damage reaches the fields behind it.
    #[test]
    fn a_changed_byte_never_panics(at in 12usize..700, to in any::<u8>()) {
        let mut bytes = Vec::new();
        entry(one_of_each()).encode(&mut bytes);
        let at = at % (bytes.len() - 12) + 12;
        bytes[at] = to;
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[12..]);
        bytes[4..12].copy_from_slice(&sum.to_le_bytes());
        if let Ok(entry) = Entry::decode(&bytes) {
            let mut again = Vec::new();
            entry.encode(&mut again);
            let back = Entry::decode(&again);
            prop_assert_eq!(back, Ok(entry));
        }
    }
}
