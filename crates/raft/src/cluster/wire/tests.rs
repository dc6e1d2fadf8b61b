//! Round trips, and bytes that are none.

use queen_model::{Append, CommandSpan, PartitionCreate};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, TxHash, Uuid};

use super::super::identity::DiskId;
use super::super::network::{frame, read_frame};
use super::*;

/// Makes partition 7 and appends two times two messages.
pub(crate) fn command() -> Command {
    let append = |base: u64, bytes: &'static [u8], compressed: bool, raw_len: u32| {
        Effect::Append(Append {
            id: PartitionId(7),
            bucket: 3,
            base: Offset(base),
            created: Micros(11),
            hashes: vec![TxHash([1; 16]), TxHash([2; 16])],
            payload: AppendPayload::Stored {
                bytes: Bytes::from_static(bytes),
                compressed,
                raw_len,
            },
        })
    };
    let create = Effect::PartitionCreate(PartitionCreate {
        id: PartitionId(7),
        uuid: Uuid::v7(1, 2, 3),
        tenant: Tenant::default(),
        queue: "orders".to_owned(),
        partition: "a".to_owned(),
        created: Micros(10),
    });
    let effects =
        vec![create, append(0, b"stored frames", false, 13), append(2, b"packed", true, 99)];
    let effect_count = u32::try_from(effects.len()).unwrap();
    let commands = vec![CommandSpan { request: Uuid::v7(1, 1, 1), first_effect: 0, effect_count }];
    let (now, pid_base) = (Micros(12), PartitionId(7));
    Command(Arc::new(Entry { now, pid_base, kv_version_base: 1, commands, effects }))
}

fn membership() -> Membership {
    let node = |id: u64| {
        let disk = (id == 2).then_some(DiskId(u128::MAX - 5));
        (id, Member { disk, ..Member::at(format!("h{id}:7400"), format!("h{id}:6632")) })
    };
    let configs = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 2])];
    Membership::new(configs, (1..=4).map(node).collect::<BTreeMap<_, _>>()).unwrap()
}

fn request() -> AppendEntriesRequest<Types> {
    let entry = |index, payload| LogEntry::new(log_id(3, index), payload);
    AppendEntriesRequest {
        vote: Vote::new_committed(3, 2),
        prev_log_id: Some(log_id(2, 4)),
        entries: vec![
            entry(5, Payload::Blank),
            entry(6, Payload::Normal(command())),
            entry(7, Payload::Membership(membership())),
        ],
        leader_commit: None,
    }
}

fn bytes_of(value: &impl Wire) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

#[test]
fn a_request_comes_as_it_was_sent() {
    let bytes = bytes_of(&request());
    let read = AppendEntriesRequest::<Types>::decode(Bytes::from(bytes.clone())).unwrap();
    assert_eq!(read.entries, request().entries);
    assert_eq!(bytes_of(&read), bytes);
}

#[test]
fn cut_or_longer_bytes_are_no_message() {
    let bytes = bytes_of(&request());
    for len in 0..bytes.len() {
        let cut = Bytes::copy_from_slice(&bytes[..len]);
        assert!(AppendEntriesRequest::<Types>::decode(cut).is_err(), "{len}");
    }
    let longer = Bytes::from([bytes, vec![0]].concat());
    assert_eq!(AppendEntriesRequest::<Types>::decode(longer).unwrap_err(), WireError::Long(1));
}

#[test]
fn any_changed_byte_ends_in_a_message_or_an_error() {
    let bytes = bytes_of(&request());
    for place in 0..bytes.len() {
        for change in [1, 0x80, 0xFF] {
            let mut changed = bytes.clone();
            changed[place] ^= change;
            // It must not panic; a frame's checksum tells what was changed on the way.
            drop(AppendEntriesRequest::<Types>::decode(Bytes::from(changed)));
        }
    }
}

#[test]
fn counts_that_lie_allocate_nothing() {
    let mut lying = bytes_of(&request().vote);
    lying.extend([0, 0]);
    lying.extend(u32::MAX.to_le_bytes());
    assert_eq!(
        AppendEntriesRequest::<Types>::decode(Bytes::from(lying)).unwrap_err(),
        WireError::Short
    );
}

#[test]
fn an_append_whose_length_does_not_fit_its_entry_is_refused() {
    let mut out = Vec::new();
    let Command(entry) = command();
    let mut bare = Vec::new();
    entry.encode(&mut bare);
    put_blob(&mut out, &bare);
    out.put_u8(0);
    put_blob(&mut out, b"other frames than these");
    out.put_u8(1);
    put_blob(&mut out, b"packed");
    assert!(matches!(Command::decode(Bytes::from(out)), Err(WireError::Entry(_))));
}

#[tokio::test]
async fn frames_are_whole_or_refused() {
    let sent = frame(9, |out| out.extend_from_slice(b"message"));
    let (kind, body) = read_frame(&mut &*sent, 64).await.unwrap();
    assert_eq!((kind, &*body), (9, &b"message"[..]));
    assert!(read_frame(&mut &*sent, 4).await.is_err(), "longer than it may be");
    for place in 0..sent.len() {
        let mut changed = sent.clone();
        changed[place] ^= 0x10;
        assert!(read_frame(&mut &*changed, 64).await.is_err(), "{place}");
    }
    for len in 0..sent.len() {
        assert!(read_frame(&mut &sent[..len], 64).await.is_err(), "{len}");
    }
}
