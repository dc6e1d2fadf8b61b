//! Pushing and popping single messages.

use std::sync::mpsc::channel;

use serde_json::{Value, json};

use super::{Rig, all_succeed, numbers, pop};

fn statuses(answer: &Value) -> Vec<&str> {
    answer.as_array().unwrap().iter().map(|item| item["status"].as_str().unwrap()).collect()
}

#[test]
fn push_message() {
    assert_eq!(statuses(&Rig::new().push_payload("q", &json!({"message": "hello"}))), ["queued"]);
}

#[test]
fn push_duplicate_message() {
    for partition in [Value::Null, json!("p")] {
        let mut rig = Rig::new();
        let items = json!({"items": [{"queue": "q", "partition": partition, "payload": 1, "transactionId": "t"}]});
        assert_eq!(statuses(&rig.client.post("/api/v1/push", &items)), ["queued"]);
        assert_eq!(statuses(&rig.client.post("/api/v1/push", &items)), ["duplicate"]);
    }
}

#[test]
fn push_duplicate_message_on_different_partition() {
    let mut rig = Rig::new();
    for partition in ["a", "b"] {
        let items = json!({"items": [{"queue": "q", "partition": partition, "payload": 1, "transactionId": "t"}]});
        assert_eq!(statuses(&rig.client.post("/api/v1/push", &items)), ["queued"]);
    }
}

#[test]
fn push_message_with_transaction_id() {
    let items = json!({"items": [{"queue": "q", "payload": 1, "transactionId": "mine"}]});
    let answer = Rig::new().client.post("/api/v1/push", &items);
    assert_eq!(answer[0]["transaction_id"], "mine");
}

#[test]
fn push_buffered_message() {
    // A client's buffer is one push of all its messages: nothing before it, everything after it.
    let mut rig = Rig::new();
    rig.configure("q", &json!({}));
    assert!(rig.pop("q", "batch=10").is_empty());
    rig.push("q", "p", 0..3);
    assert_eq!(numbers(&rig.pop("q", "batch=10")), [0, 1, 2]);
}

#[test]
fn push_max_queue_size() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"maxSize": 10}));
    assert_eq!(statuses(&rig.push("q", "p", 0..20)), vec!["queued"; 20]);
}

#[test]
fn push_delayed_message() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"delayedProcessing": 2}));
    rig.push("q", "p", 0..1);
    assert!(rig.pop("q", "").is_empty());
    assert_eq!(numbers(&rig.pop("q", "wait=true&timeout=30000")), [0]);
}

#[test]
fn push_window_buffer() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"windowBuffer": 2}));
    for n in 0..3 {
        rig.push("q", "p", n..n + 1);
    }
    assert!(rig.pop("q", "batch=10").is_empty());
    assert_eq!(numbers(&rig.pop("q", "batch=10&wait=true&timeout=30000")), [0, 1, 2]);
}

#[test]
fn push_large_null_and_empty_payloads() {
    let rows: Vec<Value> = (0..20_000).map(|n| json!({"id": n, "text": "x".repeat(80)})).collect();
    for payload in [json!(rows), Value::Null, json!({}), json!([])] {
        let mut rig = Rig::new();
        rig.push_payload("q", &payload);
        let messages = rig.pop("q", "");
        assert_eq!(messages.len(), 1);
        assert!(messages[0]["data"] == payload);
    }
}

#[test]
fn push_encrypted_payload() {
    let key = "ab".repeat(32);
    for variables in [&[][..], &[("QUEEN_ENCRYPTION_KEY", &*key)][..]] {
        let mut rig = Rig::with(variables);
        rig.configure("q", &json!({"encryptionEnabled": true}));
        rig.push_payload("q", &json!({"secret": 1}));
        assert_eq!(rig.pop("q", "")[0]["data"], json!({"secret": 1}));
    }
}

#[test]
fn pop_empty_and_non_empty_queue() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({}));
    assert!(rig.pop("q", "wait=false").is_empty());
    rig.push("q", "p", 0..1);
    assert_eq!(numbers(&rig.pop("q", "")), [0]);
}

#[test]
fn pop_with_wait() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({}));
    let mut other = rig.another();
    let (sender, popped) = channel();
    let waiting = std::thread::spawn(move || {
        drop(sender.send(pop(&mut other, "q", "wait=true&timeout=30000")));
    });
    // Parked or not yet: either way it gets the message.
    rig.push("q", "p", 0..1);
    assert_eq!(numbers(&popped.recv().unwrap()), [0]);
    waiting.join().unwrap();
}

#[test]
fn pop_with_ack() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    let messages = rig.pop("q", "wait=false");
    assert!(all_succeed(&rig.ack(None, &messages, "completed")));
}

#[test]
fn pop_with_ack_reconsume() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"leaseTime": 1}));
    rig.push("q", "p", 0..2);
    for n in 0..2 {
        let messages = rig.pop("q", "batch=1");
        assert_eq!(numbers(&messages), [n]);
        rig.ack(None, &messages, "completed");
    }
    assert!(rig.pop("q", "batch=1").is_empty());
}

#[test]
fn pop_with_commit_on_delivery() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    let messages = rig.pop("q", "autoAck=true");
    assert_eq!(messages[0]["leaseId"], "");
    let path = format!("/api/v1/messages/{}/p-0", messages[0]["partitionId"].as_str().unwrap());
    let detail = rig.client.get(&path);
    let groups = detail["consumerGroups"].as_array().unwrap();
    assert_eq!(groups.len(), 1, "{detail}");
    assert_eq!(
        (&groups[0]["consumed"], &groups[0]["leaseExpiresAt"]),
        (&json!(true), &Value::Null)
    );
}

#[test]
fn producer_sub_ignored_from_body_without_auth() {
    let mut rig = Rig::new();
    let items = json!({"items": [{"queue": "q", "payload": 1, "producerSub": "mallory"}]});
    rig.client.post("/api/v1/push", &items);
    assert_eq!(rig.pop("q", "autoAck=true")[0]["producerSub"], Value::Null);
}
