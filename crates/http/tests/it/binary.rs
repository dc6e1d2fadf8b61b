//! The binary forms: the published examples byte for byte, and bodies that lie.

use std::sync::Arc;

use bytes::Bytes;
use queen_broker::api::{
    AckStatus, Chosen, FramedClaim, FramedGroup, FramedRecord, PopAnswer, PushAnswer, PushStatus,
};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};
use serde_json::json;

use crate::fake::{ID, Pop, Pushed};
use crate::node::{BODY_BYTES_MAX, Node, Reply, raw};

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let number = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(number).collect()
}

async fn send(node: &Node, path: &str, body: &[u8]) -> Reply {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: queen\r\nConnection: close\r\n\
         Content-Type: application/x-queen-push\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    raw(node.address, &request).await
}

fn pushed(id: Option<&str>, payload: &str) -> Pushed {
    Pushed {
        queue: "orders".into(),
        partition: "c-1".into(),
        transaction_id: id.map(str::to_owned),
        payload: payload.into(),
        tenant: Tenant::DEFAULT,
        producer_sub: None,
    }
}

/// Two messages with ids.
pub(crate) const PLAIN: &str = "51504231 04 01000000 0600 6f7264657273 0300 632d31 02000000
    0300 742d31 07000000 7b226e223a317d  0000 04000000 6e756c6c";

#[tokio::test]
async fn messages_one_by_one() {
    let node = Node::start().await;
    let body = hex(PLAIN);
    assert_eq!(body.len(), 52);
    let reply = send(&node, "/api/v1/push", &body).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(reply.json()[0]["transaction_id"], "t-1");
    let expected = [pushed(Some("t-1"), r#"{"n":1}"#), pushed(None, "null")];
    assert_eq!(*node.fake.pushed.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_compressed_body_answered_with_counts() {
    let node = Node::start().await;
    let body = hex("51504231 03 20000000 28b52ffd 20 20 010100
        01000000 0600 6f7264657273 0300 632d31 01000000 07000000 7b226e223a317d");
    assert_eq!(body.len(), 50);
    let reply = send(&node, "/api/v1/push", &body).await;
    let expected = json!({"count":1,"queued":1,"duplicate":0,"error":0});
    assert_eq!((reply.status, reply.json()), (201, expected));
    assert_eq!(*node.fake.pushed.lock().unwrap(), [pushed(None, r#"{"n":1}"#)]);
}

/// One group of one message, compressed by the client.
pub(crate) const GROUP: &str = "0600 6f7264657273 0300 632d31 01000000 2a000000
    28b52ffd 20 21 090100 1d000000 00 019a00000000710283 0405060708090a 0300 742d31 7b226e223a317d";

#[tokio::test]
async fn framed_groups_are_taken_over_as_they_came() {
    let node = Node::start().await;
    let body = hex(&format!("51504231 08 01000000 {GROUP}"));
    assert_eq!(body.len(), 72);
    let id = Uuid(hex("019a0000000071028304 05060708090a").try_into().unwrap());
    let answer = PushAnswer { message_id: id, status: PushStatus::Queued(Offset(3)) };
    node.fake.pushes.lock().unwrap().push_back(Ok(vec![answer]));
    let reply = send(&node, "/api/v1/push", &body).await;
    let expected = json!([{"index":0,"message_id":"019a0000-0000-7102-8304-05060708090a",
        "transaction_id":"t-1","queueName":"orders","status":"queued","offset":3}]);
    assert_eq!((reply.status, reply.json()), (201, expected));
    let packed = Bytes::copy_from_slice(&body[30..]);
    let frames = packed.slice(9..);
    let (queue, partition) = ("orders".to_owned(), "c-1".to_owned());
    let group = FramedGroup { queue, partition, frames, packed };
    assert_eq!(*node.fake.framed.lock().unwrap(), [group]);
}

#[tokio::test]
async fn a_transaction_with_a_head_and_a_group() {
    let node = Node::start().await;
    let head = r#"{"operations":[{"type":"ack","transactionId":"t-1","partitionId":"7","status":"completed","leaseId":"L"}],"requiredLeases":["L"]}"#;
    assert_eq!(head.len(), 129);
    let mut body = hex("51544231 00 81000000");
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&hex("01000000 0300 6f7574 0700 44656661756c74 01000000 22000000
        28b52ffd 20 19 c90000 15000000 00 019a000000007102830405060708090a 0100 78 31"));
    assert_eq!(body.len(), 198);
    let reply = send(&node, "/api/v1/transaction", &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let results = &reply.json()["results"];
    assert_eq!((&results[0]["type"], &results[0]["index"]), (&json!("ack"), &json!(0)));
    assert_eq!((&results[1]["type"], &results[1]["transactionId"]), (&json!("push"), &json!("x")));
    assert_eq!(results[1]["queueName"], "out");
    let asked = node.fake.transactions.lock().unwrap().pop().unwrap();
    assert_eq!(asked.acks[0].item.status, AckStatus::Completed);
    // The same, counted; and without a head.
    body[4] = 2;
    let answer = send(&node, "/api/v1/transaction", &body).await.json();
    assert_eq!((&answer["pushed"], &answer["duplicate"]), (&json!(1), &json!(0)));
    assert_eq!((&answer["acked"], &answer["results"]), (&json!(1), &json!([])));
    let headless: Vec<u8> = [&hex("51544231 00 00000000")[..], &body[9 + 129..]].concat();
    assert_eq!(send(&node, "/api/v1/transaction", &headless).await.json()["success"], true);
}

#[tokio::test]
async fn a_framed_pop_is_the_published_example() {
    let node = Node::start().await;
    let lease = Uuid::parse("019a0000-0000-7000-8000-0000000000ff");
    let payload = hex("1d000000 00 019a0000000070008000 0000000000a1 0300 742d31 7b226e223a317d
        22000000 02 019a0000000070008000 0000000000a2 0300 742d32 0300 737663 7b226e223a327d");
    let record = FramedRecord {
        base: Offset(10),
        created: Micros(1_760_000_000_123_456),
        count: 2,
        compressed: false,
        payload: Bytes::from(payload),
    };
    let claim = FramedClaim {
        partition_id: PartitionId(7),
        partition: Arc::from("c-1"),
        attempt: 1,
        first: Offset(11),
        last: Offset(11),
        records: vec![record],
    };
    let answer = PopAnswer {
        lease,
        records: vec![claim],
        chosen: Some(Chosen { batch: 100, partitions: 1 }),
        ..PopAnswer::default()
    };
    node.fake.pops.lock().unwrap().push_back(Pop::Answer(Ok(answer)));
    let request = "GET /api/v1/pop/queue/orders?frames=true&autopilot=true&consumerGroup=billing \
                   HTTP/1.1\r\nHost: queen\r\nConnection: close\r\n\r\n";
    let mut stream = node.connect().await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut all).await.unwrap();
    let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&all[..at]).to_lowercase();
    assert!(head.contains("content-type: application/x-queen-pop"), "{head}");
    assert!(head.contains("content-length: 257"), "{head}");
    let own = r#"{"frames":true,"autopilot":{"partitions":1,"batch":100}}"#;
    let mut expected = hex("51504631 01 38000000");
    expected.extend_from_slice(own.as_bytes());
    expected.extend_from_slice(&hex("0600 6f7264657273 2400"));
    expected.extend_from_slice(b"019a0000-0000-7000-8000-0000000000ff");
    expected.extend_from_slice(&hex("0700 62696c6c696e67 01000000 0700000000000000 0300 632d31
        0b00000000000000 0b00000000000000 01000000 01000000 0a00000000000000 40e2cfeeb5400600
        02000000 00 47000000
        1d000000 00 019a0000000070008000 0000000000a1 0300 742d31 7b226e223a317d
        22000000 02 019a0000000070008000 0000000000a2 0300 742d32 0300 737663 7b226e223a327d"));
    assert_eq!(expected.len(), 257);
    assert_eq!(all[at..], expected);
    assert!(node.fake.popped.lock().unwrap().pop().unwrap().frames);
}

#[tokio::test]
async fn bodies_that_break_off_anywhere_are_refused() {
    let node = Node::start().await;
    let framed = format!("51504231 08 01000000 {GROUP}");
    for whole in [hex(PLAIN), hex(&framed)] {
        for end in 4..whole.len() {
            let reply = send(&node, "/api/v1/push", &whole[..end]).await;
            assert_eq!((reply.status, &reply.json()["code"]), (400, &json!("bad_body")), "{end}");
        }
        let longer = [&whole[..], b"x"].concat();
        assert_eq!(send(&node, "/api/v1/push", &longer).await.status, 400);
    }
    assert!(node.fake.pushed.lock().unwrap().is_empty());
    assert!(node.fake.framed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn bodies_that_lie_are_refused() {
    let node = Node::start().await;
    let zeros = |len: usize| zstd_of(&vec![0; len]);
    let mut bomb = hex("51504231 01");
    bomb.extend_from_slice(&u32::try_from(BODY_BYTES_MAX + 1).unwrap().to_le_bytes());
    bomb.extend_from_slice(&zeros(BODY_BYTES_MAX + 1));
    let mut shorter = hex("51504231 01 10000000");
    shorter.extend_from_slice(&zeros(1 << 20));
    let mut longer = hex("51504231 01 00001000");
    longer.extend_from_slice(&zeros(16));
    // A frame that states 2^62 bytes.
    let mut stated = hex("51504231 08 01000000 0100 71 0000 01000000 0e000000 28b52ffd e0");
    stated.extend_from_slice(&(1u64 << 62).to_le_bytes());
    stated.extend_from_slice(&[1, 0, 0]);
    let twice = [&zeros(20)[..], &zeros(20)[..]].concat();
    let mut nested = hex("51504231 01 28000000");
    nested.extend_from_slice(&twice);
    let rows: Vec<(&str, Vec<u8>)> = vec![
        ("unknown flags", hex("51504231 10 00000000")),
        ("ids and frames", hex("51504231 0c 00000000")),
        ("2^32-1 groups", hex("51504231 00 ffffffff")),
        ("2^32-1 messages", hex("51504231 00 01000000 0100 71 0000 ffffffff")),
        ("2^32-1 bytes", hex("51504231 00 01000000 0100 71 0000 01000000 ffffffff")),
        ("no queue", hex("51504231 00 01000000 0000 0000 01000000 01000000 31")),
        ("no UTF-8", hex("51504231 00 01000000 0100 ff 0000 01000000 01000000 31")),
        ("no JSON", hex("51504231 00 01000000 0100 71 0000 01000000 01000000 7b")),
        ("two documents", hex("51504231 00 01000000 0100 71 0000 01000000 03000000 312031")),
        ("an empty payload", hex("51504231 00 01000000 0100 71 0000 01000000 00000000")),
        ("a bomb", bomb),
        ("more than stated", shorter),
        ("less than stated", longer),
        ("2^62 stated", stated),
        ("two frames", nested),
        ("no zstd", hex("51504231 01 04000000 01020304")),
    ];
    for (what, body) in rows {
        let reply = send(&node, "/api/v1/push", &body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!("bad_body")), "{what}");
    }
    let frame = |flags: u8, id: &str, payload: &str| {
        let mut body = vec![flags];
        body.extend_from_slice(&[7; 16]);
        body.extend_from_slice(&u16::try_from(id.len()).unwrap().to_le_bytes());
        body.extend_from_slice(id.as_bytes());
        body.extend_from_slice(payload.as_bytes());
        [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &body[..]].concat()
    };
    let group = |count: u32, frames: &[u8]| {
        let packed = zstd_of(frames);
        let mut body = hex("51504231 08 01000000 0100 71 0000");
        body.extend_from_slice(&count.to_le_bytes());
        body.extend_from_slice(&u32::try_from(packed.len()).unwrap().to_le_bytes());
        body.extend_from_slice(&packed);
        body
    };
    assert_eq!(send(&node, "/api/v1/push", &group(1, &frame(0, "t", "1"))).await.status, 201);
    let good = frame(0, "t", "1");
    let rows: Vec<(&str, Vec<u8>)> = vec![
        ("another count", group(2, &good)),
        ("none", group(0, &good)),
        ("an empty group", group(0, b"")),
        ("trace flag", group(1, &frame(1, "t", "1"))),
        ("producer flag", group(1, &frame(2, "t", "1"))),
        ("encrypted flag", group(1, &frame(4, "t", "1"))),
        ("no id", group(1, &frame(0, "", "1"))),
        ("no JSON", group(1, &frame(0, "t", "{"))),
        ("deep JSON", group(1, &frame(0, "t", &"[".repeat(100_000)))),
        ("a cut frame", group(1, &good[..good.len() - 1])),
    ];
    node.fake.framed.lock().unwrap().clear();
    for (what, body) in rows {
        let reply = send(&node, "/api/v1/push", &body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!("bad_body")), "{what}");
    }
    assert!(node.fake.framed.lock().unwrap().is_empty());
    for (what, body) in [
        ("flags", hex("51544231 01 00000000 00000000")),
        ("head", hex("51544231 00 ffffffff 00000000")),
        ("head is no JSON", hex("51544231 00 01000000 7b 00000000")),
        ("rest", hex("51544231 00 00000000 00000000 00")),
    ] {
        assert_eq!(send(&node, "/api/v1/transaction", &body).await.status, 400, "{what}");
    }
    let pushes = r#"{"operations":[{"type":"push","queue":"q","payload":1}]}"#;
    let mut body = hex("51544231 00");
    body.extend_from_slice(&u32::try_from(pushes.len()).unwrap().to_le_bytes());
    body.extend_from_slice(pushes.as_bytes());
    body.extend_from_slice(&[0; 4]);
    assert_eq!(send(&node, "/api/v1/transaction", &body).await.json()["code"], "bad_request");
    let nothing = hex("51544231 00 00000000 00000000");
    let answer = send(&node, "/api/v1/transaction", &nothing).await.json();
    assert_eq!((&answer["success"], &answer["reason"]), (&json!(false), &json!("bad_request")));
}

#[tokio::test]
async fn a_message_repeated_in_the_answer_keeps_its_id() {
    let node = Node::start().await;
    let answers = [PushStatus::Queued(Offset(0)), PushStatus::Duplicate(Offset(0))];
    let answers = answers.map(|status| PushAnswer { message_id: ID, status });
    node.fake.pushes.lock().unwrap().push_back(Ok(answers.to_vec()));
    let mut body = hex(PLAIN);
    body[4] |= 2;
    let answer = send(&node, "/api/v1/push", &body).await.json();
    assert_eq!(answer, json!({"count":2,"queued":1,"duplicate":1,"error":0}));
}

/// One zstd frame that states its content size.
fn zstd_of(content: &[u8]) -> Vec<u8> {
    let mut context = zstd::bulk::Compressor::new(1).unwrap();
    context.include_contentsize(true).unwrap();
    context.compress(content).unwrap()
}
