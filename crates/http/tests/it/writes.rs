//! Configure, push, pop, ack, extend, deletes: what goes in, what comes out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queen_broker::api::{
    AckAnswer, AckDone, AckStatus, Chosen, Claim, Extended, Message, PopAnswer, PopRequest,
    PopTarget, PushAnswer, PushStatus, QUEUE_MODE, Subscribe,
};
use queen_model::{Patch, Refusal};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant};
use serde_json::json;

use crate::fake::{ID, Pop, Pushed};
use crate::node::Node;

const ID_TEXT: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";

fn pushed(queue: &str, partition: &str, id: Option<&str>, payload: &str) -> Pushed {
    Pushed {
        queue: queue.into(),
        partition: partition.into(),
        transaction_id: id.map(Into::into),
        payload: payload.into(),
        tenant: Tenant::DEFAULT,
        producer_sub: None,
    }
}

#[tokio::test]
async fn a_push_passes_payloads_on_byte_for_byte() {
    let node = Node::start().await;
    let body = r#"{"items":[
        {"queue":"orders","partition":"c-42","transactionId":"t1","payload":{ "b" : 1e400, "a":[] }},
        {"queue":"or\"ders","payload":null,"producerSub":"x","traceId":"y"}]}"#;
    let reply = node.post("/api/v1/push", body).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    assert!(reply.has_header("content-type: application/json"), "{reply:?}");
    assert_eq!(
        reply.json(),
        json!([
            {"index":0,"message_id":ID_TEXT,"transaction_id":"t1","queueName":"orders",
             "status":"queued","offset":0},
            {"index":1,"message_id":ID_TEXT,"transaction_id":ID_TEXT,"queueName":"or\"ders",
             "status":"queued","offset":1}])
    );
    let expected = vec![
        pushed("orders", "c-42", Some("t1"), r#"{ "b" : 1e400, "a":[] }"#),
        pushed("or\"ders", "Default", None, "null"),
    ];
    assert_eq!(*node.fake.pushed.lock().unwrap(), expected);
}

#[tokio::test]
async fn push_verdicts() {
    let node = Node::start().await;
    node.fake.pushes.lock().unwrap().push_back(Ok(vec![
        PushAnswer { message_id: ID, status: PushStatus::Duplicate(Offset(3)) },
        PushAnswer {
            message_id: ID,
            status: PushStatus::Refused(Refusal::TooLarge { bytes: 9, max: 8 }),
        },
    ]));
    let body = r#"{"items":[{"queue":"q","payload":1},{"queue":"q","payload":2}]}"#;
    let answer = node.post("/api/v1/push", body).await.json();
    assert_eq!(answer[0]["status"], "duplicate");
    assert_eq!(answer[0]["offset"], 3);
    assert_eq!(answer[1]["status"], "error");
    assert_eq!(answer[1].get("offset"), None);
    assert!(answer[1]["error"].as_str().unwrap().contains("too large"), "{answer}");
}

#[tokio::test]
async fn an_empty_push_is_made() {
    let node = Node::start().await;
    let reply = node.post("/api/v1/push", r#"{"items":[]}"#).await;
    assert_eq!((reply.status, &*reply.body), (201, "[]"));
    assert!(node.fake.pushed.lock().unwrap().is_empty());
}

fn message(offset: u64, data: &'static str) -> Message {
    Message {
        offset: Offset(offset),
        id: ID,
        transaction_id: Bytes::from_static(b"t\"1"),
        trace_id: None,
        producer_sub: None,
        data: Bytes::from_static(data.as_bytes()),
        created: Micros(1_790_932_443_512_887),
    }
}

fn claim(id: u64, partition: &str, messages: Vec<Message>) -> Claim {
    Claim { partition_id: PartitionId(id), partition: partition.into(), attempt: 2, messages }
}

#[tokio::test]
async fn a_pop_answer_holds_payloads_byte_for_byte() {
    let node = Node::start().await;
    let claims = vec![
        claim(4, "c/42", vec![message(0, r#"{ "a" : 1.0 }"#), message(1, "")]),
        claim(5, "p", vec![message(9, "7")]),
    ];
    let answer = PopAnswer { lease: Some(ID), claims, ..PopAnswer::default() };
    node.fake.pops.lock().unwrap().push_back(Pop::Answer(Ok(answer)));
    let reply = node.get("/api/v1/pop/queue/orders?consumerGroup=b+1&batch=10").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.body.contains(r#""data":{ "a" : 1.0 },"#), "{reply:?}");
    let element = |offset: u64, data: serde_json::Value, id: &str, partition: &str| {
        json!({"id":ID_TEXT,"transactionId":"t\"1","traceId":null,"data":data,"producerSub":null,
            "createdAt":"2026-10-02T09:14:03.512Z","partitionId":id,"partition":partition,
            "leaseId":ID_TEXT,"consumerGroup":"b 1","deliveryAttempt":2,"offset":offset})
    };
    assert_eq!(
        reply.json(),
        json!({"success":true,"queue":"orders","partition":"c/42","partitionId":"4",
            "leaseId":ID_TEXT,"consumerGroup":"b 1","messages":[
                element(0, json!({"a":1.0}), "4", "c/42"),
                element(1, json!(null), "4", "c/42"),
                element(9, json!(7), "5", "p")],
            "partitionsClaimed":2})
    );
}

#[tokio::test]
async fn a_pop_without_a_lease_and_with_autopilot() {
    let node = Node::start().await;
    let answer = PopAnswer {
        claims: vec![claim(4, "p", vec![message(0, "1")])],
        chosen: Some(Chosen { batch: 7, partitions: 64 }),
        ..PopAnswer::default()
    };
    node.fake.pops.lock().unwrap().push_back(Pop::Answer(Ok(answer)));
    let path = "/api/v1/pop/queue/q?autoAck=true&autopilot=true&batch=7";
    let answer = node.get(path).await.json();
    assert_eq!(answer["leaseId"], "");
    assert_eq!(answer["messages"][0]["leaseId"], "");
    assert_eq!(answer["consumerGroup"], QUEUE_MODE);
    assert_eq!(answer["autopilot"], json!({"partitions":64,"batch":7}));
    let request = node.fake.popped.lock().unwrap().pop().unwrap();
    assert!(request.commit_on_delivery);
    assert!(request.autopilot);
    assert_eq!((request.batch, request.partitions), (Some(7), None));
}

#[tokio::test]
async fn a_policy_of_newest_only_is_echoed_also_when_nothing_is_there() {
    let node = Node::start().await;
    let rows = [
        ("conflation=true", true, Some(json!(true)), None),
        ("conflation=true", false, None, Some(json!(true))),
        ("conflation=false", true, Some(json!(true)), Some(json!(true))),
        ("", true, Some(json!(true)), None),
    ];
    for (query, conflates, conflation, conflict) in rows {
        let answer = PopAnswer { conflates, ..PopAnswer::default() };
        node.fake.pops.lock().unwrap().push_back(Pop::Answer(Ok(answer)));
        let reply = node.get(&format!("/api/v1/pop/queue/q?consumerGroup=g&{query}")).await;
        assert_eq!(reply.status, 200, "{query}");
        let body = reply.json();
        assert_eq!(body.get("conflation").cloned(), conflation, "{query}");
        assert_eq!(body.get("conflationConflict").cloned(), conflict, "{query}");
        assert_eq!((&body["messages"], &body["partitionsClaimed"]), (&json!([]), &json!(0)));
    }
    assert_eq!(node.get("/api/v1/pop/queue/q?consumerGroup=g&conflation=false").await.status, 204);
}

#[tokio::test]
async fn a_pop_by_labels_names_one_and_does_not_wait() {
    let node = Node::start().await;
    let request = popped(&node, "/api/v1/pop?namespace=billing&task=&wait=true").await;
    let target = PopTarget::Labels { namespace: Some("billing".into()), task: None };
    assert_eq!((request.target, request.wait), (target, false));
    let reply = node.get("/api/v1/pop?task=").await;
    let expected = json!({"success":false,"error":"namespace or task is required","messages":[]});
    assert_eq!((reply.status, reply.json()), (400, expected));
}

#[tokio::test]
async fn an_empty_pop_has_no_body_at_all() {
    let node = Node::start().await;
    let reply = node.get("/api/v1/pop/queue/q").await;
    assert_eq!((reply.status, &*reply.body), (204, ""));
    assert!(!reply.head.contains("content-"), "{reply:?}");
}

async fn popped(node: &Node, path: &str) -> PopRequest {
    assert_eq!(node.get(path).await.status, 204, "{path}");
    node.fake.popped.lock().unwrap().pop().unwrap()
}

#[tokio::test]
async fn pop_parameters_and_their_clamps() {
    let node = Node::start().await;
    let plain = PopRequest {
        tenant: Tenant::DEFAULT,
        target: PopTarget::Queue("q".into()),
        group: QUEUE_MODE.into(),
        batch: None,
        partitions: None,
        autopilot: false,
        wait: false,
        timeout: Duration::from_secs(30),
        lease_seconds: None,
        commit_on_delivery: false,
        subscribe: Subscribe::All,
        conflation: None,
        frames: false,
    };
    assert_eq!(popped(&node, "/api/v1/pop/queue/q?x=1&frames=false&task=t").await, plain);
    let path = "/api/v1/pop/queue/q/partition/a%2Fb?consumerGroup=g&wait=true&timeout=1500\
                &leaseSeconds=9&subscriptionMode=from_beginning&commitOnDelivery=false\
                &autopilot=true&conflation=false";
    let expected = PopRequest {
        target: PopTarget::Partition { queue: "q".into(), partition: "a/b".into() },
        group: "g".into(),
        wait: true,
        timeout: Duration::from_millis(1500),
        lease_seconds: Some(9),
        autopilot: true,
        conflation: Some(false),
        ..plain.clone()
    };
    assert_eq!(popped(&node, path).await, expected);
    let path = "/api/v1/pop/queue/q?batch=9223372036854775808&partitions=0&timeout=-1\
                &leaseSeconds=99999999999999999999";
    let expected = PopRequest {
        batch: Some(10_000),
        partitions: Some(1),
        timeout: Duration::from_millis(1),
        lease_seconds: Some(i32::MAX),
        ..plain.clone()
    };
    assert_eq!(popped(&node, path).await, expected);
    let path = "/api/v1/pop/queue/q?batch=-4&partitions=65&timeout=999999999&leaseSeconds=0";
    let expected = PopRequest {
        batch: Some(1),
        partitions: Some(64),
        timeout: Duration::from_mins(1),
        ..plain.clone()
    };
    assert_eq!(popped(&node, path).await, expected);
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionFrom=1970-01-01T00:00:01Z";
    let expected =
        PopRequest { group: "g".into(), subscribe: Subscribe::At(Micros(1_000_000)), ..plain };
    assert_eq!(popped(&node, path).await, expected);
}

#[tokio::test]
async fn acks_of_both_shapes_on_both_routes() {
    let node = Node::start().await;
    let done = AckDone { lease_released: true, dead_lettered: false, noop: false };
    let answers =
        vec![AckAnswer { result: Ok(done) }, AckAnswer { result: Err("no partition 4".into()) }];
    node.fake.acks.lock().unwrap().push_back(Ok(answers));
    let body = r#"{"acknowledgments":[
        {"transactionId":"a","partitionId":"4","leaseId":"L","status":"FAILED","error":"boom"},
        {"transactionId":"b","partitionId":"x","leaseId":"","status":"odd","error":null}],
        "consumerGroup":"g"}"#;
    let reply = node.post("/api/v1/ack", body).await;
    assert_eq!(
        reply.json(),
        json!([
            {"index":0,"transactionId":"a","success":true,"error":null,"leaseReleased":true,
             "dlq":false,"noop":false},
            {"index":1,"transactionId":"b","success":false,"error":"no partition 4",
             "leaseReleased":false,"dlq":false,"noop":false}])
    );
    let (group, items) = node.fake.acked.lock().unwrap().pop().unwrap();
    assert_eq!(group, "g");
    assert_eq!(items[0].partition_id, Some(PartitionId(4)));
    assert_eq!(items[0].lease.as_deref(), Some("L"));
    assert_eq!((items[0].status, items[0].error.as_deref()), (AckStatus::Failed, Some("boom")));
    assert_eq!((items[1].partition_id, &items[1].lease), (None, &None));
    assert_eq!((items[1].status, &items[1].error), (AckStatus::Completed, &None));

    let body = r#"{"transactionId":"a","partitionId":"4","consumerGroup":null,"error":{"x":1}}"#;
    assert_eq!(node.post("/api/v1/ack/batch", body).await.status, 200);
    let (group, items) = node.fake.acked.lock().unwrap().pop().unwrap();
    assert_eq!((&*group, items.len()), (QUEUE_MODE, 1));
    assert_eq!(items[0].error.as_deref(), Some(r#"{"x":1}"#));

    let reply = node.post("/api/v1/ack/batch", r#"{"acknowledgments":[]}"#).await;
    assert_eq!((reply.status, &*reply.body), (200, "[]"));
}

#[tokio::test]
async fn extend_takes_an_empty_body() {
    let node = Node::start().await;
    let expires = Some(Micros(1_790_932_443_512_887));
    node.fake.extends.lock().unwrap().push_back(Extended { renewed: 2, expires });
    let answer = node.post("/api/v1/lease/L/extend", "").await.json();
    let at = "2026-10-02T09:14:03.512Z";
    assert_eq!(
        answer,
        json!({"leaseId":"L","success":true,"renewed":2,"newExpiresAt":at,"expiresAt":at,
            "lease_expires_at":at})
    );
    let answer = node.post("/api/v1/lease/L/extend", r#"{"seconds":-5}"#).await.json();
    assert_eq!((&answer["success"], &answer["renewed"]), (&json!(false), &json!(0)));
    assert_eq!(answer["lease_expires_at"], json!(null));
    assert_eq!(node.post("/api/v1/lease/L/extend", r#"{"seconds":null}"#).await.status, 200);
    assert_eq!(node.post("/api/v1/lease/L/extend", r#"{"seconds":"5"}"#).await.status, 400);
    let calls: Vec<i64> = node.fake.extended.lock().unwrap().iter().map(|call| call.1).collect();
    assert_eq!(calls, [60, 1, 60]);
}

#[tokio::test]
async fn configure_merges_or_replaces() {
    let node = Node::start().await;
    let body = r#"{"queue":"orders","namespace":"n","task":null,
        "options":{"leaseTime":30,"retryLimit":5,"maxSize":7,"unknown":[]}}"#;
    let answer = node.post("/api/v1/configure", body).await.json();
    assert_eq!(
        answer,
        json!({"configured":true,"queueId":ID_TEXT,"partitionId":null,"queue":"orders",
            "namespace":"n","task":"","storage":"segments","options":{
            "priority":0,"leaseTime":30,"retryLimit":5,"retryDelay":1000,"maxSize":7,
            "maxQueueSize":7,"ttl":3600,"deadLetterQueue":true,"dlqAfterMaxRetries":true,
            "delayedProcessing":0,"windowBuffer":0,"retentionSeconds":0,
            "completedRetentionSeconds":0,"retentionEnabled":false,"encryptionEnabled":false,
            "maxWaitTimeSeconds":0,"minPopWaitTime":0,"dedupWindowSeconds":3600,
            "retentionSinkHold":"","retentionSinkHoldMaxSeconds":604_800}})
    );
    let body = r#"{"queue":"orders","mode":"replace","ttl":null}"#;
    assert_eq!(node.post("/api/v1/configure", body).await.status, 200);
    let calls = node.fake.configured.lock().unwrap();
    assert_eq!((calls[0].2, calls[1].2), (false, true));
    assert_eq!(calls[1].1.ttl, Patch::Reset);
}

#[tokio::test]
async fn deletes() {
    let node = Node::start().await;
    let path = "/api/v1/resources/queues/a%2Fb";
    let answer = node.send("DELETE", path, "").await.json();
    assert_eq!(answer, json!({"deleted":true,"existed":true,"queue":"a/b"}));
    let answer = node.send("DELETE", "/api/v1/resources/queues/missing", "").await.json();
    assert_eq!(answer["existed"], false);
    assert_eq!(answer["message"], "Queue not found, nothing was deleted");
    let answer = node.send("DELETE", "/api/v1/consumer-groups/g%20h", "").await.json();
    assert_eq!(
        answer,
        json!({"success":true,"consumerGroup":"g h","queueName":null,"deletedPartitions":2,
            "metadataDeleted":true,"queues":[]})
    );
    let path = "/api/v1/consumer-groups/g/queues/q?deleteMetadata=false";
    let answer = node.send("DELETE", path, "").await.json();
    assert_eq!((&answer["queueName"], &answer["queues"]), (&json!("q"), &json!(["q"])));
    assert_eq!(answer["metadataDeleted"], false);
    let path = "/api/v1/consumer-groups/g?deleteMetadata=1";
    assert_eq!(node.send("DELETE", path, "").await.status, 400);
}

#[tokio::test]
async fn requests_and_messages_are_counted() {
    let node = Node::start().await;
    let body = r#"{"items":[{"queue":"q","payload":1},{"queue":"q","payload":2}]}"#;
    node.post("/api/v1/push", body).await;
    let answer = PopAnswer {
        claims: vec![claim(4, "p", vec![message(0, "1")])],
        chosen: Some(Chosen { batch: 7, partitions: 64 }),
        ..PopAnswer::default()
    };
    node.fake.pops.lock().unwrap().push_back(Pop::Answer(Ok(answer)));
    node.get("/api/v1/pop/queue/q").await;
    node.post("/api/v1/ack", r#"{"transactionId":"a","partitionId":"4"}"#).await;
    let metrics = node.get("/metrics").await.json();
    assert_eq!(metrics["requests"], json!({"total":3,"rate":0}));
    assert_eq!(metrics["messages"], json!({"total":4,"rate":0}));
    assert_eq!(metrics["memory"]["rss"], 4096);
    assert_eq!(metrics["raft"]["applied"], 7);
    assert!(Arc::strong_count(&node.fake) > 1);
}
