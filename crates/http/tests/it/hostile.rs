//! Input that no honest client sends: framing, sizes, depth, slowness.

use std::time::Duration;

use queen_http::ServeOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use queen_broker::api::CallError;

use crate::node::{BODY_BYTES_MAX, Node, Reply, app_options};

const HEAD: &str = "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nConnection: close\r\n";
const PUSH: &str = r#"{"items":[{"queue":"q","payload":1}]}"#;

#[tokio::test]
async fn framing_has_one_meaning_or_is_refused() {
    // A chunk of 2^63 bytes is a legal announcement: its bytes do not come in time.
    let mut options = app_options();
    options.body_timeout = Duration::from_millis(200);
    let node = Node::start_with(options, ServeOptions::default()).await;
    let refused = [
        format!("{HEAD}Content-Length: 37\r\nContent-Length: 38\r\n\r\n{PUSH} "),
        format!("{HEAD}Content-Length: 37, 38\r\n\r\n{PUSH} "),
        format!("{HEAD}Content-Length: -1\r\n\r\n{PUSH}"),
        format!("{HEAD}Content-Length: +37\r\n\r\n{PUSH}"),
        format!("{HEAD}Content-Length: 99999999999999999999\r\n\r\n{PUSH}"),
        format!("{HEAD}Transfer-Encoding: chunked, identity\r\n\r\n{PUSH}"),
        format!("{HEAD}Transfer-Encoding: xchunked\r\n\r\n{PUSH}"),
        format!("{HEAD}Transfer-Encoding: gzip, chunked\r\n\r\n25\r\n{PUSH}\r\n0\r\n\r\n"),
        format!(
            "{HEAD}Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n25\r\n{PUSH}\r\n0\r\n\r\n"
        ),
        format!("{HEAD}X-Folded: a\r\n b\r\nContent-Length: 37\r\n\r\n{PUSH}"),
        format!("{HEAD}Content-Length : 37\r\n\r\n{PUSH}"),
        format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n8000000000000000\r\n{PUSH}"),
        format!("{HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n{PUSH}"),
        "POST /api/v1/push HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n25\r\n".to_owned(),
        "GET /health HTTP/9.9\r\n\r\n".to_owned(),
        "GET /he alth HTTP/1.1\r\n\r\n".to_owned(),
        "\0\0\0\0\r\n\r\n".to_owned(),
    ];
    for request in &refused {
        let reply = node.raw(request.as_bytes()).await;
        assert!(matches!(reply.status, 400 | 408 | 413), "{request:?} {reply:?}");
    }
    assert!(node.fake.pushed.lock().unwrap().is_empty());
    // Chunked goes before a length, and the length's bytes are no second request.
    let both = format!(
        "{HEAD}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n25\r\n{PUSH}\r\n0\r\n\r\n"
    );
    let reply = node.raw(both.as_bytes()).await;
    assert_eq!((reply.status, reply.body.matches("HTTP/1.1").count()), (201, 0), "{reply:?}");
    let reply = node.raw(b"GET /health HTTP/1.0\r\n\r\n").await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn a_declared_length_over_the_limit_is_refused_unread() {
    let node = Node::start().await;
    for length in ["1048577", "10737418240"] {
        let reply = node.raw(format!("{HEAD}Content-Length: {length}\r\n\r\n").as_bytes()).await;
        assert_eq!(reply.status, 413, "{length}");
        assert!(reply.has_header("content-type: text/plain; charset=utf-8"), "{reply:?}");
        assert!(reply.has_header("connection: close"), "{reply:?}");
    }
}

#[tokio::test]
async fn chunks_without_end_are_cut_at_the_limit() {
    let node = Node::start().await;
    let mut stream = node.connect().await;
    stream.write_all(format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x1_0000));
    let mut sent = 0;
    // The server stops reading at the limit: then the answer comes, or the socket is closed to writing.
    while sent <= BODY_BYTES_MAX && stream.write_all(chunk.as_bytes()).await.is_ok() {
        sent += 0x1_0000;
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok();
    assert_eq!(Reply::parse(&answer).status, 413);
}

#[tokio::test]
async fn heads_are_limited() {
    let node = Node::start().await;
    let wide = format!("GET /health HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let many = |count| format!("GET /health HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(count));
    for request in [wide, many(101), many(10_000)] {
        let reply = node.raw(request.as_bytes()).await;
        assert_eq!(reply.status, 431, "{request:.60} {reply:?}");
    }
    let fits =
        format!("GET /health HTTP/1.1\r\nConnection: close\r\nX: {}\r\n\r\n", "x".repeat(60_000));
    assert_eq!(node.raw(fits.as_bytes()).await.status, 200);
}

#[tokio::test]
async fn json_that_aims_at_the_parser() {
    let node = Node::start().await;
    let item = |payload: &str| format!(r#"{{"items":[{{"queue":"q","payload":{payload}}}]}}"#);
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let refused = [
        item(&deep(100_000)),
        item(&deep(125)),
        item(&"[".repeat(100_000)),
        deep(100_000),
        format!(r#"{{"x":{},"items":[]}}"#, deep(100_000)),
        format!(r#"{{"items":{}}}"#, deep(100_000)),
        item("NaN"),
        item("01"),
        item("'a'"),
        item("\"\u{1}\""),
        format!("\u{feff}{PUSH}"),
        r#"{"items":[{"queue":"\ud800","payload":1}]}"#.to_owned(),
        r#"{"items":[{"queue":"q","transactionId":"\udc00","payload":1}]}"#.to_owned(),
        format!("{{\"items\":[{}]}}", "{},".repeat(100_000).trim_end_matches(',')),
    ];
    for body in &refused {
        let reply = node.post("/api/v1/push", body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &"bad_body".into()), "{body:.60}");
    }
    assert!(node.fake.pushed.lock().unwrap().is_empty());
    let number = "1".repeat(900_000);
    let kept = [deep(124), "1e400".into(), number, r#""\ud800""#.into(), r#"{"a":1,"a":2}"#.into()];
    for payload in &kept {
        assert_eq!(node.post("/api/v1/push", &item(payload)).await.status, 201, "{payload:.60}");
        let pushed = node.fake.pushed.lock().unwrap().pop().unwrap();
        assert!(pushed.payload == payload.as_bytes(), "{payload:.60}");
    }
    let mut bytes = format!("{HEAD}Content-Length: 37\r\n\r\n{PUSH}").into_bytes();
    *bytes.iter_mut().rev().nth(5).unwrap() = 0xff;
    assert_eq!(node.raw(&bytes).await.status, 400);
}

#[tokio::test]
async fn names_are_data() {
    let node = Node::start().await;
    for (path, name) in [
        ("..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        ("%00", "\0"),
        ("a%0D%0Ab", "a\r\nb"),
        ("%5C", "\\"),
        ("%252F", "%2F"),
        ("C:;x", "C:;x"),
        ("%E2%80%8Fq", "\u{200f}q"),
        ("a+b", "a+b"),
        ("%zz", "%zz"),
    ] {
        let path = format!("/api/v1/resources/queues/{path}");
        let reply = node.send("DELETE", &path, "").await;
        assert_eq!(reply.json()["queue"], name, "{path}");
        assert_eq!(node.fake.deleted.lock().unwrap().pop().as_deref(), Some(name));
    }
    let reply = node.send("DELETE", "/api/v1/resources/queues/%FF%FE", "").await;
    assert_eq!((reply.status, &reply.json()["code"]), (400, &"bad_request".into()));
}

#[tokio::test]
async fn a_slow_head_and_a_silent_connection_end() {
    let quick = Duration::from_millis(50);
    let serving = ServeOptions { head_timeout: quick, idle_timeout: quick, ..Default::default() };
    let node = Node::start_with(app_options(), serving).await;
    for sent in ["", "PRI * HT", "GET /health HT", "GET /health HTTP/1.1\r\nHost: q\r\n"] {
        let mut stream = node.connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        assert!(answer.is_empty(), "{sent:?} {answer:?}");
    }
    // One answer, and then the idle limit.
    let reply = node.raw(b"GET /health HTTP/1.1\r\nHost: q\r\n\r\n").await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn a_slow_body_is_given_up() {
    let mut options = app_options();
    options.body_timeout = Duration::from_millis(50);
    let node = Node::start_with(options, ServeOptions::default()).await;
    let reply = node.raw(format!("{HEAD}Content-Length: 37\r\n\r\n{{").as_bytes()).await;
    assert_eq!((reply.status, &reply.json()["code"]), (408, &"timeout".into()));
}

#[tokio::test]
async fn an_answer_does_not_wait_for_the_rest_of_the_next_request() {
    let node = Node::start().await;
    for next in ["\r\n", "GET /status HT"] {
        let mut stream = node.connect().await;
        let sent = format!("GET /status HTTP/1.1\r\nHost: q\r\n\r\n{next}");
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut first = [0; 15];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK", "{next:?}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let node = Node::start().await;
    let mut requests = "POST /api/v1/lease/L/extend HTTP/1.1\r\nHost: q\r\n\r\n".repeat(500);
    requests.push_str("GET /status HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n");
    let reply = node.raw(requests.as_bytes()).await;
    assert_eq!(reply.body.matches("\"renewed\":0").count(), 500);
    assert!(reply.body.ends_with(r#"{"status":"ok","engine":"raft"}"#));
}

#[tokio::test]
async fn a_write_that_was_read_and_found_no_room_keeps_its_connection() {
    let node = Node::start().await;
    let refusal = CallError::Overloaded { retry_after_s: 2 };
    node.fake.late_refusals.lock().unwrap().push_back(refusal);
    let body = PUSH.to_owned() + &" ".repeat(300_000);
    let head =
        format!("POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: {}\r\n\r\n", body.len());
    let next = "GET /health HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n";
    let reply = node.raw((head + &body + next).as_bytes()).await;
    assert_eq!(reply.status, 429);
    assert!(reply.body.contains("HTTP/1.1 200 OK"), "{}", reply.body);
}

#[tokio::test]
async fn a_small_write_that_found_no_room_keeps_its_connection_if_its_body_comes() {
    let node = Node::start().await;
    let refuse = || {
        let refusal = CallError::Overloaded { retry_after_s: 2 };
        node.fake.refusals.lock().unwrap().push_back(refusal);
    };
    refuse();
    let body = PUSH.to_owned() + &" ".repeat(100_000);
    let head =
        format!("POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: {}\r\n\r\n", body.len());
    let next = "GET /health HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n";
    let reply = node.raw((head.clone() + &body + next).as_bytes()).await;
    assert_eq!(reply.status, 429);
    assert!(reply.body.contains("HTTP/1.1 200 OK"), "{}", reply.body);
    node.fake.admitted.lock().unwrap().clear();
    refuse();
    let reply = node.raw((head + &body[..1000]).as_bytes()).await;
    assert_eq!(reply.status, 429);
    assert!(reply.has_header("connection: close"));
}

#[tokio::test]
async fn a_write_without_room_is_refused_before_its_body_is_read() {
    let node = Node::start().await;
    for path in ["/api/v1/push", "/api/v1/transaction"] {
        let refusal = CallError::Overloaded { retry_after_s: 2 };
        node.fake.refusals.lock().unwrap().push_back(refusal);
        // Nothing of the body is sent: the answer does not wait for it.
        let head = format!("POST {path} HTTP/1.1\r\nHost: q\r\nContent-Length: 700000\r\n\r\n");
        let reply = node.raw(head.as_bytes()).await;
        assert_eq!((reply.status, &reply.json()["code"]), (429, &"overloaded".into()));
        assert!(reply.has_header("retry-after: 2") && reply.has_header("connection: close"));
        // A large write asks for all of its room when its body is there.
        assert_eq!(node.fake.admitted.lock().unwrap().pop(), Some(256 << 10));
    }
    let whole = PUSH.to_owned() + &" ".repeat(300_000);
    assert_eq!(node.post("/api/v1/push", &whole).await.status, 201);
    let asked = std::mem::take(&mut *node.fake.admitted.lock().unwrap());
    assert_eq!(asked, [256 << 10, whole.len()]);
    assert_eq!(node.post("/api/v1/push", PUSH).await.status, 201);
    assert_eq!(std::mem::take(&mut *node.fake.admitted.lock().unwrap()), [PUSH.len()]);
    // Acks, pops and reads are let through whatever waits.
    assert_eq!(node.post("/api/v1/ack", r#"{"transactionId":"t"}"#).await.status, 200);
    assert!(node.fake.admitted.lock().unwrap().is_empty());
}
