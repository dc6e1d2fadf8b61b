//! What leaves has a bound, and a client that takes nothing does not stop the others.

use std::fmt::Write;

use bytes::Bytes;
use queen_broker::api::{Fetched, Message};
use queen_http::ServeOptions;
use queen_record::ids::{Micros, Offset, Uuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::node::{Node, Reply, app_options};

/// More than a call may have.
const TOO_MANY: usize = 131_073;

fn list(head: &str, item: &str, count: usize, tail: &str) -> String {
    let mut body = head.to_owned();
    for at in 0..count {
        let comma = if at == 0 { "" } else { "," };
        write!(body, "{comma}{item}").unwrap();
    }
    body + tail
}

async fn large_node() -> Node {
    let mut options = app_options();
    options.body_bytes_max = 48 << 20;
    Node::start_with(options, ServeOptions::default()).await
}

fn assert_too_large(reply: &Reply, text: &str) {
    assert_eq!(reply.status, 413, "{reply:.200?}");
    assert!(reply.body.contains(r#""code":"too_large""#), "{}", reply.body);
    assert!(reply.body.contains(text), "{}", reply.body);
}

#[tokio::test]
async fn a_call_has_so_many_elements() {
    let node = large_node().await;
    let push = list(r#"{"items":["#, r#"{"queue":"q","payload":1}"#, TOO_MANY, "]}");
    assert_too_large(&node.post("/api/v1/push", &push).await, "131072 items");
    let ack = list(r#"{"acknowledgments":["#, r#"{"transactionId":"x"}"#, TOO_MANY, "]}");
    assert_too_large(&node.post("/api/v1/ack/batch", &ack).await, "131072 acknowledgments");
    // Together, and each operation alone has fewer.
    let half =
        list(r#"{"type":"push","items":["#, r#"{"queue":"q","data":1}"#, TOO_MANY / 2 + 1, "]}");
    for operations in
        [format!("{half},{half}"), list("", r#"{"type":"ack","transactionId":"x"}"#, TOO_MANY, "")]
    {
        let body = format!(r#"{{"operations":[{operations}]}}"#);
        assert_too_large(&node.post("/api/v1/transaction", &body).await, "131072 acks and pushes");
    }
    assert!(node.fake.pushed.lock().unwrap().is_empty());
    assert!(node.fake.acked.lock().unwrap().is_empty());
    assert!(node.fake.transactions.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_answer_that_would_be_too_large_is_refused_before_anything_is_done() {
    const COUNT: usize = 120_000;

    let node = large_node().await;
    let name = "n".repeat(260);
    let item = format!(r#"{{"queue":"{name}","payload":1}}"#);
    let push = list(r#"{"items":["#, &item, COUNT, "]}");
    assert_too_large(&node.post("/api/v1/push", &push).await, "nothing was done");
    let ack = format!(r#"{{"transactionId":"{name}"}}"#);
    let acks = list(r#"{"acknowledgments":["#, &ack, COUNT, "]}");
    assert_too_large(&node.post("/api/v1/ack/batch", &acks).await, "nothing was done");
    let ack = format!(r#"{{"type":"ack","transactionId":"{name}"}}"#);
    let transaction = list(r#"{"operations":["#, &ack, COUNT, "]}");
    assert_too_large(&node.post("/api/v1/transaction", &transaction).await, "nothing was done");
    assert!(node.fake.pushed.lock().unwrap().is_empty());
    assert!(node.fake.acked.lock().unwrap().is_empty());
    assert!(node.fake.transactions.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_batch_is_clamped() {
    let node = Node::start().await;
    assert_eq!(node.get("/api/v1/pop/queue/q?batch=1000000").await.status, 204);
    assert_eq!(node.fake.popped.lock().unwrap().pop().unwrap().batch, Some(10_000));
}

#[tokio::test]
async fn a_client_that_sends_all_of_a_large_question_sees_the_refusal() {
    let node = large_node().await;
    let mut stream = node.connect().await;
    let body = vec![b' '; 12 << 20];
    let head =
        format!("POST /api/v1/fetch HTTP/1.1\r\nHost: q\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    // All of it is sent before anything is read.
    stream.write_all(&body).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(Reply::parse(&answer).status, 413);
}

#[tokio::test]
async fn a_refused_client_may_go_on_sending() {
    let node = large_node().await;
    let mut stream = node.connect().await;
    let head = "POST /api/v1/fetch HTTP/1.1\r\nHost: q\r\nContent-Length: 8388608\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The answer is there before the first byte of the body has left.
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    stream.write_all(&vec![b' '; 8 << 20]).await.unwrap();
    stream.read_to_end(&mut answer).await.unwrap();
}

fn message(bytes: usize) -> Message {
    Message {
        offset: Offset(0),
        id: Uuid([1; 16]),
        transaction_id: Bytes::from_static(b"t"),
        trace_id: None,
        producer_sub: None,
        data: Bytes::from(vec![b'1'; bytes]),
        created: Micros(0),
    }
}

#[tokio::test]
async fn who_does_not_read_makes_way_for_who_does() {
    const FETCH: &str = r#"{"entries":[{"queue":"q","offset":0}]}"#;
    const BYTES: usize = 100 << 20;

    let node = Node::start().await;
    *node.fake.reads.fetched.lock().unwrap() =
        vec![Fetched { messages: vec![message(BYTES)], ..Fetched::default() }];
    let head = format!(
        "POST /api/v1/fetch HTTP/1.1\r\nHost: q\r\nContent-Length: {}\r\n\r\n",
        FETCH.len()
    );
    let mut silent = Vec::new();
    for _ in 0..3 {
        let mut stream = node.connect().await;
        stream.write_all(format!("{head}{FETCH}").as_bytes()).await.unwrap();
        // Its answer is on the way: that much of the budget is taken.
        stream.read_exact(&mut [0; 16]).await.unwrap();
        silent.push(stream);
    }
    // Small answers go on in any case, and so do pops.
    assert_eq!(node.get("/api/v1/resources/queues").await.status, 200);
    assert_eq!(node.get("/api/v1/pop/queue/q").await.status, 204);
    let reply = node.post("/api/v1/fetch", FETCH).await;
    assert_eq!(reply.status, 200, "{}", reply.head);
    assert!(reply.body.len() > BYTES);
    // The oldest of the silent ones was cut off in the middle.
    let mut rest = Vec::new();
    let end = silent[0].read_to_end(&mut rest).await;
    assert!(end.is_err() || rest.len() < BYTES);
}
