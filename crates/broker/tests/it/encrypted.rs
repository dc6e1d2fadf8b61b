//! Encryption at rest: nothing of a payload on the disk, all of it for whoever may read, and never an envelope.

use std::collections::BTreeSet;
use std::path::Path;

use queen_broker::api::{
    AckStatus, Api, CallError, DeadLetterQuery, FetchEntry, FetchRequest, FramedGroup, LetterRef,
    MessageDetail, MessageQuery, PartitionRef, PopAnswer, PopRequest, PushBatch, PushItem, Reads,
    ReplayEnd, ReplayTo, Transaction, TransactionAnswer,
};
use queen_broker::cipher::EncryptionKey;
use queen_io::SimDisk;
use queen_io::sim::{Explorer, Image};
use queen_model::OptionsPatch;
use queen_record::compress::{PayloadCompressor, PayloadDecompressor};
use queen_record::frame::FrameRef;
use queen_record::header::HEADER_LEN;
use queen_record::ids::{PartitionId, Uuid};
use queen_record::scan::{Scanner, Step};

use crate::support::{DEADLINE, Rig, T, ids, pop, queue_mode, set, statuses};

const FILE: &str = "/data/ENCRYPTION";
const MARKER: &str = "attack-at-dawn";

fn key(digit: char) -> EncryptionKey {
    EncryptionKey::parse(&digit.to_string().repeat(64)).unwrap()
}

fn encrypted(wanted: bool) -> OptionsPatch {
    OptionsPatch { encryption_enabled: set(wanted), ..Default::default() }
}

async fn rig() -> Rig {
    let rig = Rig::with_key(key('a'));
    rig.configure("q", OptionsPatch { retry_limit: set(0), ..encrypted(true) }).await;
    rig
}

/// The payloads of an answer.
fn payloads(answer: &PopAnswer) -> Vec<String> {
    let messages = answer.claims.iter().flat_map(|claim| &claim.messages);
    messages.map(|message| String::from_utf8(message.data.to_vec()).unwrap()).collect()
}

async fn detail(rig: &Rig, id: &str) -> Result<MessageDetail, CallError> {
    let partition = PartitionRef::Number(PartitionId(1));
    rig.api().message(T, partition, id.to_owned()).await.map(Option::unwrap)
}

async fn dead_payloads(rig: &Rig) -> Result<Vec<String>, CallError> {
    let query = DeadLetterQuery { tenant: T, limit: 10, ..Default::default() };
    let page = rig.api().dead_letters(query).await?;
    let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
    Ok(page.rows.iter().map(|letter| text(&letter.payload)).collect())
}

/// Every file's bytes, and the payload of every record in a queue log once more decompressed.
fn all_bytes(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for (path, _) in disk.files() {
        let bytes = disk.contents(&path).unwrap();
        let name = path.to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "qlog") {
            let mut scanner = Scanner::new(&bytes, HEADER_LEN);
            while let Step::Record { at, record } = scanner.step() {
                if record.head.compressed {
                    let payload = PayloadDecompressor::new().unwrap().decompress(record.payload);
                    found.push((format!("{name} at {at}"), payload.unwrap()));
                }
            }
        }
        found.push((name, bytes));
    }
    found
}

/// Where a text stands on the disk.
fn places_of(disk: &SimDisk, text: &str) -> Vec<String> {
    let has = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    all_bytes(disk).into_iter().filter(|(_, bytes)| has(bytes)).map(|(name, _)| name).collect()
}

/// Waits until the node's health names this: it is noted a moment after the answer.
async fn is_unhealthy(rig: &Rig, of: &str) {
    while !rig.api().health().reason.is_some_and(|reason| reason.contains(of)) {
        tokio::task::yield_now().await;
    }
    assert!(!rig.api().health().serving);
}

fn refusal(rig: &Rig) -> String {
    rig.start_again().err().unwrap().to_string()
}

#[tokio::test]
async fn no_byte_of_a_payload_is_on_the_disk() {
    let mut rig = rig().await;
    let short = format!("{{\"order\":\"{MARKER}\"}}");
    let compressible = format!("{{\"orders\":\"{}\"}}", MARKER.repeat(400));
    let large = format!("{{\"order\":\"{MARKER}\",\"rest\":\"{}\"}}", "x".repeat(300_000));
    rig.push_payloads("q", "p", &[("dead", &short), ("short", &short)]).await;
    rig.push_payloads("q", "p", &[("compressible", &compressible)]).await;
    rig.push_payloads("q", "p", &[("large", &large)]).await;
    let popped = rig.pop("q", queue_mode(), 1).await;
    assert_eq!(payloads(&popped), [&*short]);
    let id = popped.claims[0].partition_id;
    let done = rig.ack(queue_mode(), popped.lease, id, &[("dead", AckStatus::Failed)]).await;
    assert!(done[0].result.as_ref().unwrap().dead_lettered);

    for _ in 0..2 {
        // Ends with a checkpoint.
        rig.stop();
        assert_eq!(places_of(&rig.disk, MARKER), Vec::<String>::new());
        assert!(places_of(&rig.disk, "authTag").len() > 1, "the log and the store hold envelopes");
        rig.restart();
        assert_eq!(dead_payloads(&rig).await.unwrap(), [&*short]);
        assert!(detail(&rig, "short").await.unwrap().encrypted);
        let shown = detail(&rig, "large").await.unwrap().message.data;
        assert_eq!(shown, large.as_bytes());
    }
    let mut got = Vec::new();
    while got.len() < 3 {
        let popped = rig.pop("q", "readers", 10).await;
        let claim = &popped.claims[0];
        got.extend(payloads(&popped));
        let last = String::from_utf8(claim.messages.last().unwrap().transaction_id.to_vec());
        let acks = [(&*last.unwrap(), AckStatus::Completed)];
        rig.ack("readers", popped.lease, claim.partition_id, &acks).await;
    }
    assert_eq!(got[..2], [short.clone(), short]);
    assert_eq!(got[2..], [compressible, large][..got.len() - 2]);
}

#[tokio::test]
async fn the_same_search_finds_a_payload_that_is_not_encrypted() {
    let rig = Rig::with_key(key('a'));
    let text = format!("{{\"orders\":\"{}\"}}", MARKER.repeat(400));
    rig.push_payloads("q", "p", &[("1", &text)]).await;
    assert!(places_of(&rig.disk, &MARKER.repeat(400)).len() == 1, "decompressed");
    assert!(!detail(&rig, "1").await.unwrap().encrypted);
}

#[tokio::test]
async fn a_start_without_the_key_or_with_another_is_refused() {
    let mut rig = rig().await;
    rig.push("q", "p", &["1"]).await;
    rig.stop();
    let before = rig.disk.fingerprint();
    for (key, wanted) in [(None, "is not set"), (Some(key('b')), "is not the key")] {
        rig.key = key;
        let text = refusal(&rig);
        assert!(text.contains("QUEEN_ENCRYPTION_KEY") && text.contains(wanted), "{text}");
        assert!(text.contains(FILE), "{text}");
    }
    assert_eq!(rig.disk.fingerprint(), before, "a refused start changes nothing");
    rig.start_with(Some(key('a')));
    assert_eq!(payloads(&rig.pop("q", queue_mode(), 1).await), ["{\"id\":\"1\"}"]);
}

#[tokio::test]
async fn a_node_that_never_had_a_key_stores_plain_text_and_can_get_one() {
    let mut rig = Rig::new();
    rig.configure("q", encrypted(true)).await;
    rig.push("q", "p", &["1"]).await;
    assert!(rig.disk.contents(Path::new(FILE)).is_none());
    rig.restart();
    assert_eq!(ids(&rig.pop("q", "before", 10).await), ["1"]);
    rig.start_with(Some(key('a')));
    rig.push("q", "p", &["2"]).await;
    rig.configure("q", encrypted(false)).await;
    rig.push("q", "p", &["3"]).await;
    rig.configure("q", encrypted(true)).await;
    rig.push("q", "p", &["4"]).await;
    let mut flags = Vec::new();
    for id in ["1", "2", "3", "4"] {
        flags.push(detail(&rig, id).await.unwrap().encrypted);
    }
    assert_eq!(flags, [false, true, false, true]);
    let all = ["1", "2", "3", "4"].map(|id| format!("{{\"id\":\"{id}\"}}"));
    assert_eq!(payloads(&rig.pop("q", "after", 10).await), all);
}

#[tokio::test]
async fn a_transaction_id_is_known_again_on_an_encrypted_queue() {
    let mut rig = rig().await;
    let first = rig.push("q", "p", &["1", "2", "1"]).await;
    assert_eq!(statuses(&first), [(true, 0), (true, 1), (false, 0)]);
    let again = rig.push("q", "p", &["2", "3"]).await;
    assert_eq!(statuses(&again), [(false, 1), (true, 2)]);
    rig.restart();
    let again = rig.push("q", "p", &["1"]).await;
    assert_eq!((statuses(&again), again[0].message_id), (vec![(false, 0)], first[0].message_id));
}

/// Two messages under a former key; the mark of the key was removed, so the start is not refused.
async fn under_another_key() -> Rig {
    let mut rig = rig().await;
    rig.push("q", "p", &["1", "2"]).await;
    let popped = rig.pop("q", "undertaker", 1).await;
    let id = popped.claims[0].partition_id;
    rig.ack("undertaker", popped.lease, id, &[("1", AckStatus::DeadLetter)]).await;
    rig.stop();
    rig.disk.remove(Path::new(FILE));
    rig
}

#[tokio::test]
async fn a_message_that_does_not_open_is_an_error_and_stays() {
    let mut rig = under_another_key().await;
    for next in [Some(key('b')), None] {
        rig.start_with(next);
        assert!(rig.api().health().serving);
        let request = |commit_on_delivery| {
            let api = rig.api();
            let mut request = pop("q", queue_mode(), 10);
            request.commit_on_delivery = commit_on_delivery;
            async move { api.pop(request).await }
        };
        for commit_on_delivery in [false, true, false] {
            let error = request(commit_on_delivery).await.unwrap_err();
            let CallError::Internal(text) = error else { panic!("{error}") };
            for part in ["queue q", "partition p", "offset 0", "QUEEN_ENCRYPTION_KEY"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        is_unhealthy(&rig, "offset 0").await;
        for error in [detail(&rig, "2").await.err(), dead_payloads(&rig).await.err()] {
            let Some(CallError::Internal(text)) = error else { panic!("{error:?}") };
            assert!(text.contains("queue q, partition p, offset"), "{text}");
        }
        rig.stop();
        rig.disk.remove(Path::new(FILE));
    }
    rig.start_with(Some(key('a')));
    let popped = rig.pop("q", queue_mode(), 10).await;
    assert_eq!(ids(&popped), ["1", "2"], "nothing was committed");
    assert_eq!(popped.claims[0].attempt, 1, "nor leased");
    assert_eq!(dead_payloads(&rig).await.unwrap(), ["{\"id\":\"1\"}"]);
    assert!(rig.api().health().serving);
}

/// The payload at an offset of the first partition, and what the message list says of it.
async fn by_offset(rig: &Rig, offset: u64) -> Result<(String, String, bool), CallError> {
    let entry =
        FetchEntry { queue: "q".to_owned(), partition: "p".to_owned(), offset, bytes_max: 1 };
    let (wait, bytes_min) = (std::time::Duration::ZERO, 1);
    let request =
        FetchRequest { tenant: T, entries: vec![entry], bytes_max: u64::MAX, wait, bytes_min };
    let fetched = rig.api().fetch(request).await;
    let query = MessageQuery { tenant: T, limit: 10, ..MessageQuery::default() };
    let listed = rig.api().messages(query).await;
    assert_eq!(fetched.is_err(), listed.is_err());
    let (mut fetched, listed) = (fetched?, listed?);
    let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
    let message = fetched.remove(0).messages.remove(0);
    let row = listed.rows.iter().find(|row| row.message.offset.0 == offset).unwrap();
    Ok((text(&message.data), text(&row.message.data), row.encrypted))
}

#[tokio::test]
async fn reads_by_offset_and_the_message_list_show_what_was_pushed() {
    let mut rig = under_another_key().await;
    rig.start_with(Some(key('a')));
    let plain = "{\"id\":\"2\"}".to_owned();
    assert_eq!(by_offset(&rig, 1).await, Ok((plain.clone(), plain, true)));
    rig.configure("q", encrypted(false)).await;
    rig.push("q", "p", &["3"]).await;
    let plain = "{\"id\":\"3\"}".to_owned();
    assert_eq!(by_offset(&rig, 2).await, Ok((plain.clone(), plain, false)));
    for next in [Some(key('b')), None] {
        rig.stop();
        rig.disk.remove(Path::new(FILE));
        rig.start_with(next);
        let Err(CallError::Internal(text)) = by_offset(&rig, 0).await else {
            panic!("an envelope")
        };
        assert!(text.contains("queue q, partition p, offset"), "{text}");
        is_unhealthy(&rig, "queue q, partition p, offset").await;
    }
}

/// The queue no longer says that it is encrypted and the node has no key: the lease goes back all the same.
#[tokio::test]
async fn an_unexpected_envelope_gives_its_lease_back() {
    let mut rig = rig().await;
    rig.push("q", "p", &["1"]).await;
    rig.configure("q", encrypted(false)).await;
    rig.stop();
    rig.disk.remove(Path::new(FILE));
    rig.start_with(None);
    let mut request = pop("q", queue_mode(), 1);
    // The lease goes back a moment after the answer.
    request.wait = true;
    for _ in 0..3 {
        let error = rig.api().pop(request.clone()).await.unwrap_err();
        assert!(error.to_string().contains("cannot be shown"), "{error}");
    }
    is_unhealthy(&rig, "offset 0").await;
    let leased = || async {
        let detail = rig.api().queue(T, "q".to_owned(), 10).await.unwrap().unwrap();
        detail.summary.counts.unwrap().processing > 0
    };
    while leased().await {
        tokio::task::yield_now().await;
    }
    rig.start_with(Some(key('a')));
    let popped = rig.pop("q", queue_mode(), 1).await;
    assert_eq!((ids(&popped), popped.claims[0].attempt), (vec!["1".to_owned()], 1));
}

#[tokio::test]
async fn what_opens_is_served_around_what_does_not() {
    let mut rig = under_another_key().await;
    rig.start_with(Some(key('b')));
    rig.push("q", "good", &["3", "4"]).await;
    let mut request = pop("q", queue_mode(), 10);
    request.partitions = Some(5);
    let popped = rig.api().pop(request.clone()).await.unwrap();
    assert_eq!(payloads(&popped), ["{\"id\":\"3\"}", "{\"id\":\"4\"}"]);
    is_unhealthy(&rig, "partition p").await;
    assert!(rig.api().pop(request).await.is_err(), "only the other partition is left");

    // In one partition: up to the first that does not open.
    rig.push("q", "p", &["5"]).await;
    rig.stop();
    rig.disk.remove(Path::new(FILE));
    rig.start_with(Some(key('a')));
    let mut request = pop("q", "g", 10);
    request.partitions = Some(5);
    let popped = rig.api().pop(request).await.unwrap();
    assert_eq!(ids(&popped), ["1", "2"]);
    let id = popped.claims[0].partition_id;
    rig.ack("g", popped.lease, id, &[("2", AckStatus::Completed)]).await;
    let error = rig.api().pop(pop("q", "g", 10)).await.unwrap_err();
    assert!(error.to_string().contains("offset"), "{error}");
}

/// Frames as a client makes them.
fn framed(queue: &str, encrypted: bool, payload: &str) -> FramedGroup {
    let mut frames = Vec::new();
    for id in 1..3 {
        let frame = FrameRef {
            flags: 0,
            id: Uuid::v7(id, 0, id),
            trace: None,
            transaction_id: &format!("framed-{id}"),
            producer_sub: None,
            data: payload.as_bytes(),
            encrypted,
        };
        frame.encode(&mut frames).unwrap();
    }
    let packed = PayloadCompressor::new(1).unwrap().compress(&frames).unwrap();
    FramedGroup {
        queue: queue.to_owned(),
        partition: "p".to_owned(),
        frames: frames.into(),
        packed: packed.into(),
    }
}

#[tokio::test]
async fn every_way_in_is_encrypted() {
    let mut rig = rig().await;
    let text = format!("{{\"orders\":\"{}\"}}", MARKER.repeat(100));
    let api = rig.api();
    let groups = [framed("q", false, &text)];
    api.push(T, PushBatch::Framed(&groups, None), DEADLINE).await.unwrap();
    let item = PushItem {
        queue: "q",
        partition: "p",
        transaction_id: Some("bundled"),
        payload: text.as_bytes(),
        producer_sub: Some("somebody"),
        trace_id: Some(Uuid([1; 16])),
    };
    let pushes = PushBatch::Items(&[item]);
    let bundle = Transaction { tenant: T, acks: Vec::new(), pushes, positions: Vec::new() };
    let done = api.transaction(bundle, DEADLINE).await.unwrap();
    assert!(matches!(done, TransactionAnswer::Committed { .. }), "{done:?}");
    let popped = rig.pop("q", queue_mode(), 10).await;
    assert_eq!(payloads(&popped), [&*text; 3]);
    let message = &popped.claims[0].messages[2];
    assert_eq!(
        (message.producer_sub.as_deref(), message.trace_id),
        (Some(&b"somebody"[..]), item.trace_id)
    );
    let id = popped.claims[0].partition_id;
    let acks = [("framed-1", AckStatus::DeadLetter), ("bundled", AckStatus::Completed)];
    rig.ack(queue_mode(), popped.lease, id, &acks).await;
    assert_eq!(dead_payloads(&rig).await.unwrap(), [&*text]);
    // The dead letter goes to the same queue and is buried there again, then to one that is not encrypted.
    let letter = |id: &str| LetterRef::Message {
        partition: PartitionRef::Number(PartitionId(1)),
        transaction_id: id.to_owned(),
    };
    let replayed = api.replay(T, letter("framed-1"), ReplayTo::default(), DEADLINE).await;
    let replayed = replayed.unwrap().unwrap();
    assert!(matches!(replayed.end, ReplayEnd::Moved(_)), "{replayed:?}");
    let popped = rig.pop("q", queue_mode(), 10).await;
    assert_eq!(payloads(&popped), [&*text]);
    let acks = [(&*replayed.copy_id, AckStatus::DeadLetter)];
    rig.ack(queue_mode(), popped.lease, id, &acks).await;
    drop(api);
    rig.stop();
    assert_eq!(places_of(&rig.disk, MARKER), Vec::<String>::new());

    rig.restart();
    let to = ReplayTo { queue: Some("open".to_owned()), partition: None };
    let api = rig.api();
    let moved = api.replay(T, letter(&replayed.copy_id), to, DEADLINE).await.unwrap().unwrap();
    assert!(matches!(moved.end, ReplayEnd::Moved(_)), "{moved:?}");
    assert_eq!(payloads(&rig.pop("open", queue_mode(), 10).await), [&*text]);
    assert!(!places_of(&rig.disk, MARKER).is_empty());
}

/// Records are handed on whole only where none of their messages can be encrypted.
#[tokio::test]
async fn a_pop_for_records_is_answered_with_messages() {
    let framed = |queue| PopRequest { frames: true, ..pop(queue, queue_mode(), 10) };
    for key in [Some(key('a')), None] {
        let mut rig = Rig::new();
        rig.start_with(key.clone());
        rig.configure("q", encrypted(true)).await;
        rig.push("q", "p", &["1"]).await;
        let answer = rig.api().pop(framed("q")).await.unwrap();
        assert_eq!(
            (payloads(&answer), answer.records.len()),
            (vec!["{\"id\":\"1\"}".to_owned()], 0)
        );
        rig.push("open", "p", &["1"]).await;
        let answer = rig.api().pop(framed("open")).await.unwrap();
        assert_eq!(answer.records.is_empty(), key.is_some());
    }
}

#[tokio::test]
async fn a_client_cannot_call_its_payload_encrypted() {
    for rig in [Rig::new(), Rig::with_key(key('a'))] {
        let groups = [framed("q", true, &"[\"anything\"]".repeat(100))];
        let error =
            rig.api().push(T, PushBatch::Framed(&groups, None), DEADLINE).await.unwrap_err();
        assert!(matches!(error, CallError::Refused(_)), "{error}");
        assert!(rig.pop("q", queue_mode(), 1).await.claims.is_empty());
    }
}

/// X3: whatever a power cut leaves, an envelope never lies in a directory that a node without the key would serve.
#[tokio::test]
async fn a_power_cut_leaves_no_envelope_without_the_fingerprint() {
    let mut rig = rig().await;
    rig.push("q", "p", &["1"]).await;
    rig.stop();
    rig.key = None;
    let mut refused = BTreeSet::new();
    for Image { disk, call, choice, .. } in Explorer::new(&rig.disk, 1) {
        if !places_of(&disk, "authTag").is_empty() {
            let crashed = Rig::over(disk, &rig);
            let text = refusal(&crashed);
            assert!(text.contains("is not set"), "{choice:?} behind {call}: {text}");
            refused.insert(call);
        }
    }
    assert!(refused.len() > 5, "{refused:?}");
}
