//! Reads by offset: fetch, first offsets at a time, changed partitions.

use std::time::Duration;

use bytes::Bytes;
use queen_broker::api::{
    Bounds, Changed, ChangedError, ChangedPage, ChangedPartition, FetchEntry, FetchError, Fetched,
    Message, OffsetFound,
};
use queen_record::ids::{Micros, Offset};
use serde_json::json;

use crate::fake::ID;
use crate::node::Node;

const ID_TEXT: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";
const AT: Micros = Micros(1_790_932_443_512_887);
const AT_TEXT: &str = "2026-10-02T09:14:03.512887Z";

fn message(offset: u64) -> Message {
    Message {
        offset: Offset(offset),
        id: ID,
        transaction_id: Bytes::from_static(b"t\""),
        trace_id: None,
        producer_sub: None,
        data: Bytes::from_static(b"{\"n\": 1}"),
        created: AT,
    }
}

#[tokio::test]
async fn fetch_answers_entry_by_entry() {
    let node = Node::start().await;
    let bounds = Bounds { log_start: 2, high_watermark: 9 };
    let failed = |error| Fetched { error: Some(error), ..Fetched::default() };
    *node.fake.reads.fetched.lock().unwrap() = vec![
        Fetched { messages: vec![message(7), message(8)], bounds, error: None },
        failed(FetchError::UnknownQueue),
        Fetched { bounds, ..failed(FetchError::OffsetOutOfRange) },
    ];
    let body = r#"{"entries":[{"queue":"orders","partition":"p","offset":7,"maxBytes":5},
        {"queue":"none","partition":12.50,"offset":null,"maxBytes":-1},
        {"queue":"q","maxBytes":99999999999999999999,"offset":99999999999999999999}],
        "maxBytes":0,"maxWaitMs":90000,"minBytes":null,"other":{}}"#;
    let record =
        |offset| json!({"offset":offset,"transactionId":"t\"","payload":{"n":1},"ts":AT_TEXT});
    assert_eq!(
        node.post("/api/v1/fetch", body).await.json(),
        json!({"entries":[
            {"queue":"orders","partition":"p","records":[record(7), record(8)],"highWatermark":9,
                "logStartOffset":2},
            {"queue":"none","partition":"12.50","records":[],"highWatermark":0,"logStartOffset":0,
                "error":"UNKNOWN_TOPIC_OR_PARTITION"},
            {"queue":"q","partition":"Default","records":[],"highWatermark":9,"logStartOffset":2,
                "error":"OFFSET_OUT_OF_RANGE"}]})
    );
    let asked = node.fake.reads.fetches.lock().unwrap().pop().unwrap();
    let entry = |queue: &str, partition: &str, offset, bytes_max| FetchEntry {
        queue: queue.to_owned(),
        partition: partition.to_owned(),
        offset,
        bytes_max,
    };
    let most = i64::MAX.unsigned_abs();
    let entries = [
        entry("orders", "p", 7, 5),
        entry("none", "12.50", 0, 1),
        entry("q", "Default", most, 8 << 20),
    ];
    assert_eq!(asked.entries, entries);
    assert_eq!((asked.bytes_max, asked.bytes_min, asked.wait), (1, 1, Duration::from_secs(30)));
    node.post("/api/v1/fetch", r#"{"entries":[{"queue":"q"}],"maxWaitMs":-5,"minBytes":-1}"#).await;
    let asked = node.fake.reads.fetches.lock().unwrap().pop().unwrap();
    assert_eq!((asked.bytes_max, asked.bytes_min, asked.wait), (u64::MAX, 0, Duration::ZERO));
    assert_eq!(asked.entries, [entry("q", "Default", 0, 1 << 20)]);
}

#[tokio::test]
async fn fetch_refuses_what_it_cannot_read() {
    let node = Node::start().await;
    let many = |count| format!(r#"{{"entries":[{}]}}"#, vec![r#"{"queue":"q"}"#; count].join(","));
    assert_eq!(node.post("/api/v1/fetch", &many(1024)).await.status, 200);
    assert_eq!(node.post("/api/v1/fetch", r#"{"entries":[]}"#).await.json(), json!({"entries":[]}));
    node.fake.reads.fetches.lock().unwrap().clear();
    let bare = [
        (many(1025), "too many entries"),
        (many(50_000), "too many entries"),
        (r#"{"entries":[{"queue":"q","offset":-1}]}"#.into(), "offset must be non-negative"),
        (
            r#"{"entries":[{"queue":"q","offset":-99999999999999999999}]}"#.into(),
            "offset must be non-negative",
        ),
    ];
    for (body, error) in bare {
        let reply = node.post("/api/v1/fetch", &body).await;
        assert_eq!((reply.status, reply.json()), (400, json!({"error":error})), "{body:.60}");
    }
    let deep = format!(r#"{{"entries":{}{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
    let coded = [
        ("", "bad_body"),
        ("[]", "bad_body"),
        ("{}", "bad_request"),
        (r#"{"entries":null}"#, "bad_request"),
        (r#"{"entries":{}}"#, "bad_body"),
        (r#"{"entries":[null]}"#, "bad_body"),
        (r#"{"entries":[{}]}"#, "bad_request"),
        (r#"{"entries":[{"queue":""}]}"#, "bad_request"),
        (r#"{"entries":[{"queue":1}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","partition":{}}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","offset":"0"}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","offset":1.5}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","offset":1e3}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","maxBytes":true}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q"}],"maxWaitMs":"1"}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q"}]"#, "bad_body"),
        (&deep, "bad_body"),
    ];
    for (body, code) in coded {
        let reply = node.post("/api/v1/fetch", body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!(code)), "{body:.80}");
    }
    assert!(node.fake.reads.fetches.lock().unwrap().is_empty());
    assert_eq!(node.get("/api/v1/fetch").await.status, 405);
}

#[tokio::test]
async fn first_offsets_at_a_time() {
    let node = Node::start().await;
    let bounds = Bounds { log_start: 2, high_watermark: 9 };
    *node.fake.reads.offsets.lock().unwrap() = vec![
        OffsetFound { found: Some((4, AT)), bounds, unknown: false },
        OffsetFound { found: None, bounds, unknown: false },
        OffsetFound { unknown: true, ..OffsetFound::default() },
    ];
    let body = r#"{"entries":[{"queue":"q","partition":"p","timestamp":1790932443512},
        {"queue":"q","timestamp":"2026-10-02T09:14:03.512887Z"},{"queue":"z","timestamp":-1}]}"#;
    assert_eq!(
        node.post("/api/v1/fetch/offsets", body).await.json(),
        json!({"entries":[
            {"queue":"q","partition":"p","offset":4,"ts":AT_TEXT,"highWatermark":9,
                "logStartOffset":2},
            {"queue":"q","partition":"Default","offset":null,"ts":null,"highWatermark":9,
                "logStartOffset":2},
            {"queue":"z","partition":"Default","offset":null,"ts":null,"highWatermark":0,
                "logStartOffset":0,"error":"UNKNOWN_TOPIC_OR_PARTITION"}]})
    );
    let asked: Vec<i64> =
        node.fake.reads.offset_queries.lock().unwrap().iter().map(|query| query.at.0).collect();
    assert_eq!(asked, [1_790_932_443_512_000, AT.0, -1000]);
    for body in [
        r#"{"entries":[{"queue":"q"}]}"#,
        r#"{"entries":[{"queue":"q","timestamp":null}]}"#,
        r#"{"entries":[{"queue":"q","timestamp":1.5}]}"#,
        r#"{"entries":[{"queue":"q","timestamp":"now"}]}"#,
        r#"{"entries":[{"queue":"q","timestamp":[]}]}"#,
        r#"{"entries":[{"timestamp":1}]}"#,
    ] {
        let reply = node.post("/api/v1/fetch/offsets", body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!("bad_request")), "{body}");
    }
}

#[tokio::test]
async fn changed_partitions() {
    let node = Node::start().await;
    let row = ChangedPartition {
        name: "c-5".into(),
        uuid: ID,
        last_offset: -1,
        log_start: 2,
        last_write: AT,
    };
    let page = ChangedPage { partitions: vec![row], next: Some("ab".into()) };
    *node.fake.reads.changed.lock().unwrap() = Some(Changed {
        safe_time: AT,
        pages: vec![
            Ok(page),
            Ok(ChangedPage::default()),
            Err(ChangedError::BadCursor),
            Err(ChangedError::UnknownQueue),
        ],
    });
    let body = r#"{"entries":[{"queue":"a","since":"2026-10-02T09:14:03.512887Z","after":"xyz",
        "limit":5000},{"queue":"b","since":null,"after":null},{"queue":"c","after":"","limit":0},
        {"queue":"d"}]}"#;
    assert_eq!(
        node.post("/api/v1/partitions/changed", body).await.json(),
        json!({"safeTime":AT_TEXT,"safeTimeDegraded":false,"entries":[
            {"queue":"a","partitions":[{"name":"c-5","id":ID_TEXT,"lastOffset":-1,"logStart":2,
                "lastWriteAt":AT_TEXT}],"next":"ab"},
            {"queue":"b","partitions":[],"next":null},
            {"queue":"c","error":"BAD_CURSOR"},
            {"queue":"d","error":"UNKNOWN_TOPIC_OR_PARTITION"}]})
    );
    let asked = node.fake.reads.changed_queries.lock().unwrap().clone();
    let limits: Vec<usize> = asked.iter().map(|query| query.limit).collect();
    assert_eq!(limits, [1000, 1000, 1, 1000]);
    assert_eq!((asked[0].since, asked[0].after.as_deref()), (Some(AT), Some("xyz")));
    assert_eq!((asked[1].since, asked[1].after.as_deref()), (None, None));
    let many = format!(r#"{{"entries":[{}]}}"#, vec![r#"{"queue":"q"}"#; 1025].join(","));
    let reply = node.post("/api/v1/partitions/changed", &many).await;
    assert_eq!((reply.status, reply.json()), (400, json!({"error":"too many entries"})));
    assert_eq!(node.post("/api/v1/partitions/changed", r#"{"entries":[]}"#).await.status, 200);
    for (body, code) in [
        (r#"{"entries":[{"queue":"q","since":"yesterday"}]}"#, "bad_request"),
        (r#"{"entries":[{"queue":"q","since":""}]}"#, "bad_request"),
        (r#"{"entries":[{"queue":"q","since":5}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","after":5}]}"#, "bad_body"),
        (r#"{"entries":[{"queue":"q","limit":"5"}]}"#, "bad_body"),
        (r#"{"entries":[{"since":null}]}"#, "bad_request"),
        ("{}", "bad_request"),
    ] {
        let reply = node.post("/api/v1/partitions/changed", body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!(code)), "{body}");
    }
}
