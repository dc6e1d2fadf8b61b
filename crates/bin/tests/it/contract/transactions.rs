//! Transactions as the clients make them.

use serde_json::{Value, json};

use super::{Rig, numbers};

fn ack(message: &Value, group: Option<&str>, status: &str) -> Value {
    json!({"type": "ack", "transactionId": message["transactionId"], "status": status,
        "partitionId": message["partitionId"], "leaseId": message["leaseId"], "consumerGroup": group})
}

fn push(queue: &str, id: u64) -> Value {
    json!({"type": "push", "items": [{"queue": queue, "payload": {"id": id}}]})
}

fn commit(rig: &mut Rig, operations: &[Value]) -> Value {
    let leases: Vec<&Value> = operations
        .iter()
        .map(|operation| &operation["leaseId"])
        .filter(|id| !id.is_null())
        .collect();
    let body = json!({"operations": operations, "requiredLeases": leases});
    rig.client.post("/api/v1/transaction", &body)
}

fn committed(rig: &mut Rig, operations: &[Value]) {
    let answer = commit(rig, operations);
    assert_eq!(answer["success"], true, "{answer}");
}

#[test]
fn basic_push_ack() {
    let mut rig = Rig::new();
    rig.push("a", "p", 0..1);
    let taken = rig.pop("a", "");
    committed(&mut rig, &[ack(&taken[0], None, "completed"), push("b", 7)]);
    assert_eq!(numbers(&rig.pop("b", "")), [7]);
    assert!(rig.pop("a", "").is_empty());
}

#[test]
fn complete_through_three_queues() {
    let mut rig = Rig::new();
    rig.push("a", "p", 0..1);
    for (from, to) in [("a", "b"), ("b", "c")] {
        let taken = rig.pop(from, "");
        committed(&mut rig, &[push(to, 0), ack(&taken[0], None, "completed")]);
        assert!(rig.pop(from, "").is_empty());
    }
    assert_eq!(numbers(&rig.pop("c", "")), [0]);
}

#[test]
fn multiple_pushes_and_queues() {
    let mut rig = Rig::new();
    for queue in ["a", "b", "c"] {
        rig.push(queue, "p", 0..1);
    }
    let mut operations = Vec::new();
    for (n, queue) in (0..).zip(["a", "b", "c"]) {
        let taken = rig.pop(queue, "");
        operations.extend([ack(&taken[0], None, "completed"), push("out", n)]);
    }
    committed(&mut rig, &operations);
    assert_eq!(numbers(&rig.pop("out", "batch=10")), [0, 1, 2]);
}

#[test]
fn multiple_acks_of_one_lease_are_one_decision() {
    let mut rig = Rig::new();
    rig.push("a", "p", 0..3);
    let taken = rig.pop("a", "batch=3");
    let operations: Vec<Value> =
        taken.iter().map(|message| ack(message, None, "completed")).collect();
    committed(&mut rig, &operations);
    assert!(rig.pop("a", "").is_empty());
}

#[test]
fn ack_with_status() {
    let mut rig = Rig::new();
    rig.configure("a", &json!({"retryLimit": 0}));
    rig.push("a", "p", 0..1);
    let taken = rig.pop("a", "");
    committed(&mut rig, &[ack(&taken[0], None, "failed"), push("b", 1)]);
    assert!(rig.pop("a", "").is_empty());
}

#[test]
fn batch_push() {
    let mut rig = Rig::new();
    let items: Vec<Value> = (0..5).map(|n| json!({"queue": "b", "payload": {"id": n}})).collect();
    committed(&mut rig, &[json!({"type": "push", "items": items})]);
    assert_eq!(numbers(&rig.pop("b", "batch=10")), [0, 1, 2, 3, 4]);
}

#[test]
fn with_partitions() {
    let mut rig = Rig::new();
    let mut operations = vec![push("b", 1)];
    for partition in ["x", "y"] {
        rig.push("a", partition, 0..1);
        let taken = rig.pop("a", "");
        operations.push(ack(&taken[0], None, "completed"));
    }
    committed(&mut rig, &operations);
    assert!(rig.pop("a", "partitions=10").is_empty());
}

#[test]
fn with_consumer_one_bundle_per_message() {
    let mut rig = Rig::new();
    rig.push("a", "p", 0..3);
    let taken = rig.pop("a", "batch=3");
    for message in &taken {
        let id = message["data"]["id"].as_u64().unwrap();
        committed(&mut rig, &[ack(message, None, "completed"), push("b", id)]);
    }
    assert_eq!(numbers(&rig.pop("b", "batch=10")), [0, 1, 2]);
}

#[test]
fn empty_commit() {
    let answer = commit(&mut Rig::new(), &[]);
    assert_eq!((&answer["success"], &answer["reason"]), (&json!(false), &json!("bad_request")));
}

#[test]
fn large_payload() {
    let rows: Vec<Value> = (0..1000).map(|n| json!({"id": n, "data": "item"})).collect();
    let mut rig = Rig::new();
    committed(&mut rig, &[json!({"type": "push", "queue": "b", "payload": rows})]);
    assert_eq!(rig.pop("b", "")[0]["data"], json!(rows));
}

#[test]
fn ack_with_consumer_group_moves_that_group_only() {
    let mut rig = Rig::new();
    rig.push("a", "p", 0..2);
    let mine = "consumerGroup=mine&subscriptionMode=all&batch=2";
    let taken = rig.pop("a", mine);
    let operations: Vec<Value> =
        taken.iter().map(|message| ack(message, Some("mine"), "completed")).collect();
    committed(&mut rig, &operations);
    assert!(rig.pop("a", mine).is_empty());
    assert_eq!(rig.pop("a", "consumerGroup=other&subscriptionMode=all&batch=2").len(), 2);
}

#[test]
fn a_bundle_with_an_ack_under_an_expired_lease_is_refused_whole() {
    let mut rig = Rig::new();
    rig.push("a", "x", 0..1);
    rig.push("a", "y", 0..1);
    let stale = rig.pop("a", "leaseSeconds=1");
    let live = rig.pop("a", "leaseSeconds=60");
    let again = rig.pop("a", "leaseSeconds=60&wait=true&timeout=30000");
    assert_eq!(again[0]["transactionId"], stale[0]["transactionId"]);
    assert_ne!(again[0]["leaseId"], stale[0]["leaseId"]);
    let operations =
        [ack(&stale[0], None, "completed"), ack(&live[0], None, "completed"), push("b", 1)];
    let answer = commit(&mut rig, &operations);
    assert_eq!(answer["success"], false);
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("rolled back") && error.contains("lease"), "{error}");
    assert!(rig.pop("b", "").is_empty());
    for holder in [again, live] {
        assert_eq!(rig.ack(None, &holder, "completed")[0]["success"], true);
    }
}

#[test]
fn a_bundle_of_two_live_leases_completes_both() {
    let mut rig = Rig::new();
    let mut operations = Vec::new();
    for queue in ["a", "b"] {
        rig.push(queue, "p", 0..1);
        let taken = rig.pop(queue, "");
        operations.push(ack(&taken[0], None, "completed"));
    }
    committed(&mut rig, &operations);
    for queue in ["a", "b"] {
        assert!(rig.pop(queue, "").is_empty());
    }
}

#[test]
fn atomicity_and_rollback() {
    let mut rig = Rig::new();
    rig.push("a", "p", 0..1);
    let taken = rig.pop("a", "");
    let item = json!({"type": "push", "items": [
        {"queue": "b", "payload": {"id": 1}, "transactionId": "t"}]});
    committed(&mut rig, std::slice::from_ref(&item));
    let answer = commit(&mut rig, &[ack(&taken[0], None, "completed"), push("c", 2), item]);
    assert_eq!((&answer["success"], &answer["reason"]), (&json!(false), &json!("duplicate")));
    let (status, _) = rig.client.send("GET", "/api/v1/resources/queues/c", "");
    assert_eq!(status, 404, "nothing of it is there");
    committed(&mut rig, &[ack(&taken[0], None, "completed"), push("c", 2)]);
}
