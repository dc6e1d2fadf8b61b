//! Every failure's status, code, headers and shape.

use std::time::Duration;

use queen_broker::api::CallError;
use queen_model::Refusal;
use serde_json::json;

use crate::fake::Pop;
use crate::node::{Node, send};

const PUSH: &str = r#"{"items":[{"queue":"q","payload":1}]}"#;

#[tokio::test]
async fn failures_of_the_broker() {
    let node = Node::start().await;
    let rows = [
        (CallError::Timeout(Duration::from_secs(30)), 503, "timeout", Some("1")),
        (CallError::NotServing("stopping".into()), 503, "retry", Some("1")),
        (CallError::Overloaded { retry_after_s: 3 }, 429, "overloaded", Some("3")),
        (CallError::StorageFull, 507, "storage_full", None),
        (CallError::Internal("broken".into()), 500, "internal", None),
        (Refusal::NameTooLong { bytes: 448, max: 447 }.into(), 413, "name_too_long", None),
        (Refusal::TooLarge { bytes: 2, max: 1 }.into(), 400, "too_large", None),
    ];
    for (error, status, code, retry_after) in rows {
        node.fake.pushes.lock().unwrap().push_back(Err(error.clone()));
        node.fake.pops.lock().unwrap().push_back(Pop::Answer(Err(error)));
        let push = node.post("/api/v1/push", PUSH).await;
        let pop = node.get("/api/v1/pop/queue/q").await;
        for reply in [push, pop] {
            assert_eq!((reply.status, &reply.json()["code"]), (status, &json!(code)), "{reply:?}");
            assert!(reply.has_header("content-type: application/json"), "{reply:?}");
            assert_eq!(reply.body.contains("timeout"), status == 503, "{reply:?}");
            let header = retry_after.map(|seconds| format!("retry-after: {seconds}"));
            assert_eq!(reply.head.contains("retry-after"), header.is_some(), "{reply:?}");
            assert!(header.is_none_or(|header| reply.has_header(&header)));
        }
    }
}

#[tokio::test]
async fn a_pop_refused_for_its_parameters_has_the_pop_shape() {
    let node = Node::start().await;
    for query in [
        "batch=x",
        "batch=",
        "batch=1e18",
        "partitions=1.5",
        "timeout=1s",
        "leaseSeconds=0x1",
        "wait=1",
        "wait=TRUE",
        "autoAck=yes",
        "commitOnDelivery=",
        "autopilot=on",
        "conflation=maybe",
        "conflation=true",
        "conflation=true&consumerGroup=g&autoAck=true",
        "consumerGroup=%FF",
    ] {
        let reply = node.get(&format!("/api/v1/pop/queue/q?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        let body = reply.json();
        assert_eq!((&body["success"], &body["messages"]), (&json!(false), &json!([])), "{query}");
        assert!(!body["error"].as_str().unwrap().is_empty(), "{query}");
        assert_eq!(body.get("code"), None, "{query}");
    }
    let refusal = Refusal::BadRequest("no".into());
    node.fake.pops.lock().unwrap().push_back(Pop::Answer(Err(refusal.into())));
    let reply = node.get("/api/v1/pop/queue/q").await;
    assert_eq!(reply.json(), json!({"success":false,"error":"no","messages":[]}));
    assert!(node.fake.popped.lock().unwrap().len() == 1);
}

#[tokio::test]
async fn unknown_routes() {
    let node = Node::start().await;
    for (method, path) in [
        ("GET", "/api/v1/popular?namespace=a"),
        ("POST", "/api/v1/transactions"),
        ("PUT", "/streams/x"),
        ("GET", "/api/v1/push/"),
        ("POST", "/api//v1/push"),
        ("GET", "/api/v1/resources/queues/"),
        ("BREW", "/api/v1/coffee"),
    ] {
        let reply = node.send(method, path, "").await;
        let shown = path.split('?').next().unwrap();
        assert_eq!(reply.status, 404, "{method} {path}");
        let expected = json!({"code":"no_such_route","error":"not found","path":shown});
        assert_eq!(reply.json(), expected);
    }
    let reply = node.get("/api/v1/push").await;
    assert_eq!((reply.status, &reply.json()["code"]), (405, &json!("method_not_allowed")));
}

#[tokio::test]
async fn bodies_that_are_not_the_routes_shape() {
    let node = Node::start().await;
    let long = format!(
        r#"{{"items":[{{"queue":"q","payload":1,"transactionId":"{}"}}]}}"#,
        "x".repeat(65_536)
    );
    let fits = long.replacen('x', "", 1);
    assert_eq!(node.post("/api/v1/push", &fits).await.status, 201);
    for (path, body) in [
        ("push", ""),
        ("push", "{}"),
        ("push", "[]"),
        ("push", r#"{"items":null}"#),
        ("push", r#"{"items":[{"queue":"q"}]}"#),
        ("push", r#"{"items":[{"payload":1}]}"#),
        ("push", r#"{"items":[{"queue":7,"payload":1}]}"#),
        ("push", r#"{"items":[{"queue":"q","payload":1}]}]"#),
        ("push", &long),
        ("ack", ""),
        ("ack", "{}"),
        ("ack", r#"{"partitionId":"4"}"#),
        ("ack", r#"{"transactionId":"a","status":false}"#),
        ("ack/batch", r#"{"acknowledgments":[{}]}"#),
        ("ack/batch", r#"{"acknowledgments":{}}"#),
        ("configure", ""),
        ("configure", "[]"),
        ("lease/L/extend", "[]"),
    ] {
        let reply = node.post(&format!("/api/v1/{path}"), body).await;
        assert_eq!(reply.status, 400, "{path} {body:.80}");
        assert_eq!(reply.json()["code"], "bad_body", "{path} {body:.80}");
    }
}

#[tokio::test]
async fn configure_refuses_by_name() {
    let node = Node::start().await;
    for (body, error) in [
        ("{}", "queue is required"),
        (r#"{"queue":null}"#, "queue is required"),
        (r#"{"queue":""}"#, "queue is required"),
        (r#"{"queue":"q","options":{"leaseTime":"5"}}"#, "leaseTime must be an integer"),
        (r#"{"queue":"q","options":{"retentionEnabled":0}}"#, "retentionEnabled must be a boolean"),
    ] {
        let reply = node.post("/api/v1/configure", body).await;
        assert_eq!(reply.json(), json!({"error":error,"code":"bad_request"}), "{body}");
    }
    let reply = node.post("/api/v1/configure", r#"{"queue":"q","mode":"x"}"#).await;
    assert_eq!(reply.status, 400);
    let expected = json!({"error":"mode must be \"merge\" or \"replace\", got \"x\""});
    assert_eq!(reply.json(), expected);
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_connection_lives() {
    let node = Node::start().await;
    node.fake.pops.lock().unwrap().push_back(Pop::Panic);
    let reply = node.get("/api/v1/pop/queue/q").await;
    assert_eq!((reply.status, &reply.json()["code"]), (500, &json!("internal")));
    assert_eq!(node.get("/health").await.status, 200);
}

#[tokio::test]
async fn changes_are_not_taken_from_another_origin() {
    let node = Node::start().await;
    let foreign = "Origin: http://evil.example\r\nContent-Type: text/plain\r\n";
    for (method, path, body) in [
        ("POST", "/api/v1/push", PUSH),
        ("POST", "/api/v1/ack", "{}"),
        ("POST", "/api/v1/configure", r#"{"queue":"q"}"#),
        ("POST", "/api/v1/lease/L/extend", ""),
        ("GET", "/api/v1/pop/queue/q", ""),
        ("DELETE", "/api/v1/resources/queues/q", ""),
        ("DELETE", "/api/v1/consumer-groups/g", ""),
    ] {
        for origin in [foreign, "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
            let reply = send(node.address, method, path, origin, body).await;
            assert_eq!(reply.status, 403, "{method} {path} {origin}");
            assert!(!reply.head.contains("access-control"), "{reply:?}");
        }
    }
    let own = "Origin: http://queen\r\n";
    let reply = send(node.address, "POST", "/api/v1/push", own, PUSH).await;
    assert_eq!(reply.status, 201);
    assert!(!reply.head.contains("access-control"), "{reply:?}");
    assert_eq!(send(node.address, "GET", "/health", foreign, "").await.status, 200);
}
