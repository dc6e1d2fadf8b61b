//! Messages that the caller framed, and pops that hand stored records on.

use bytes::Bytes;
use queen_broker::api::{Api, FramedGroup, PopRequest, PushAnswer, PushBatch, PushStatus};
use queen_record::frame::{FrameRef, Frames};
use queen_record::ids::{Offset, Uuid};

use crate::support::{DEADLINE, Rig, T, ids, pop};

fn id(n: u8) -> Uuid {
    Uuid([n; 16])
}

fn group(partition: &str, messages: &[(u8, &str)]) -> FramedGroup {
    let mut frames = Vec::new();
    for (n, transaction_id) in messages {
        let frame = FrameRef {
            flags: 0,
            id: id(*n),
            trace: None,
            transaction_id,
            producer_sub: None,
            data: br#"{"padding":"................................................"}"#,
            encrypted: false,
        };
        frame.encode(&mut frames).unwrap();
    }
    let packed = zstd::bulk::compress(&frames, 1).unwrap();
    FramedGroup {
        queue: "q".into(),
        partition: partition.into(),
        frames: frames.into(),
        packed: packed.into(),
    }
}

async fn push(rig: &Rig, groups: &[FramedGroup], sub: Option<&str>) -> Vec<PushAnswer> {
    rig.api().push(T, PushBatch::Framed(groups, sub), DEADLINE).await.unwrap()
}

/// The records of one partition, as a framed pop gives them.
async fn records(rig: &Rig, consumer: &str) -> Vec<(u64, bool, Bytes)> {
    let request = PopRequest { frames: true, ..pop("q", consumer, 100) };
    let answer = rig.api().pop(request).await.unwrap();
    assert!(answer.claims.is_empty());
    let claim = &answer.records[0];
    let record = |record: &queen_broker::api::FramedRecord| {
        (record.base.0, record.compressed, record.payload.clone())
    };
    claim.records.iter().map(record).collect()
}

#[tokio::test]
async fn what_the_caller_compressed_is_stored_as_it_came() {
    let rig = Rig::new();
    let sent = group("p", &[(9, "a"), (3, "b"), (5, "c")]);
    let answers = push(&rig, std::slice::from_ref(&sent), None).await;
    let expected = [(9, 0), (3, 1), (5, 2)].map(|(n, offset)| PushAnswer {
        message_id: id(n),
        status: PushStatus::Queued(Offset(offset)),
    });
    assert_eq!(answers, expected);
    assert_eq!(records(&rig, "g").await, [(0, true, sent.packed)]);
    let messages = rig.pop("q", "h", 9).await;
    assert_eq!(ids(&messages), ["a", "b", "c"]);
    assert_eq!(messages.claims[0].messages[1].id, id(3));
}

#[tokio::test]
async fn a_duplicate_inside_a_group_or_in_the_window_is_left_out() {
    let rig = Rig::new();
    push(&rig, &[group("p", &[(1, "a")])], None).await;
    let answers = push(&rig, &[group("p", &[(2, "b"), (3, "a"), (4, "b"), (5, "c")])], None).await;
    let status: Vec<_> = answers.iter().map(|answer| (answer.message_id, &answer.status)).collect();
    let (queued, again) = (PushStatus::Queued, PushStatus::Duplicate);
    assert_eq!(
        status,
        [
            (id(2), &queued(Offset(1))),
            (id(1), &again(Offset(0))),
            (id(2), &again(Offset(1))),
            (id(5), &queued(Offset(2))),
        ]
    );
    let messages = rig.pop("q", "g", 9).await;
    assert_eq!(ids(&messages), ["a", "b", "c"]);
    let found: Vec<Uuid> = messages.claims[0].messages.iter().map(|message| message.id).collect();
    assert_eq!(found, [id(1), id(2), id(5)], "ids of a caller stay, whatever their order");
}

#[tokio::test]
async fn groups_of_one_partition_are_one_append_and_a_subject_is_stamped() {
    let rig = Rig::new();
    let groups =
        [group("p", &[(1, "a")]), group("r", &[(2, "b")]), group("p", &[(3, "a"), (4, "c")])];
    let answers = push(&rig, &groups, Some("svc")).await;
    assert_eq!(answers[2].status, PushStatus::Duplicate(Offset(0)));
    assert_eq!(answers[3].status, PushStatus::Queued(Offset(1)));
    let mut request = pop("q", "g", 9);
    request.partitions = Some(2);
    let taken = rig.api().pop(request).await.unwrap();
    let subs: Vec<_> = taken.claims.iter().flat_map(|claim| &claim.messages).collect();
    assert_eq!(subs.len(), 3);
    assert!(subs.iter().all(|message| message.producer_sub.as_deref() == Some(b"svc")));
}

#[tokio::test]
async fn a_framed_pop_leases_and_may_hold_more_than_was_taken() {
    let rig = Rig::new();
    push(&rig, &[group("p", &[(1, "a"), (2, "b"), (3, "c")])], None).await;
    let request = PopRequest { frames: true, ..pop("q", "g", 2) };
    let answer = rig.api().pop(request).await.unwrap();
    assert!(answer.lease.is_some());
    let claim = &answer.records[0];
    assert_eq!((claim.first, claim.last, claim.attempt), (Offset(0), Offset(1), 1));
    let frames = zstd::bulk::decompress(&claim.records[0].payload, 4096).unwrap();
    assert_eq!(Frames::new(&frames).count(), 3);
    // A group that only wants the newest message is answered with messages.
    let newest = PopRequest { frames: true, conflation: Some(true), ..pop("q", "n", 1) };
    let answer = rig.api().pop(newest).await.unwrap();
    assert_eq!((ids(&answer), answer.records.len()), (vec!["c".to_owned()], 0));
}

#[tokio::test]
async fn ids_of_the_broker_keep_ascending_after_ids_of_a_caller() {
    let rig = Rig::new();
    push(&rig, &[group("p", &[(255, "far")])], None).await;
    rig.push("q", "p", &["x", "y"]).await;
    let taken = rig.pop("q", "g", 9).await;
    let made: Vec<Uuid> = taken.claims[0].messages.iter().map(|message| message.id).collect();
    assert!(made[1] < made[2] && made[2] < id(255));
}
