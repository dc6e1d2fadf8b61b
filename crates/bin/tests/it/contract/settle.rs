//! Acknowledgments as commits, and dead letters.

use serde_json::{Value, json};

use super::{Rig, all_succeed, numbers};

#[test]
fn a_nack_or_retry_is_not_skipped_by_a_later_ack_of_the_same_call() {
    for status in ["failed", "retry"] {
        let mut rig = Rig::new();
        rig.push("q", "p", 0..5);
        let messages = rig.pop("q", "batch=5");
        let statuses = ["completed", status, "completed", "completed", "completed"];
        assert!(all_succeed(&rig.ack_each(None, &messages, &statuses)));
        assert_eq!(numbers(&rig.pop("q", "batch=5")), [1, 2, 3, 4]);
        assert!(rig.letters("q").is_empty());
    }
}

#[test]
fn below_the_cursor_a_nack_fails_and_an_ack_is_flagged_as_noop() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..3);
    let messages = rig.pop("q", "batch=3");
    let middle = rig.ack(None, &messages[1..2], "completed");
    assert_eq!((&middle[0]["success"], &middle[0]["noop"]), (&json!(true), &json!(false)));
    let nack = rig.ack(None, &messages[..1], "failed");
    assert_eq!(nack[0]["success"], false);
    assert!(nack[0]["error"].as_str().unwrap().contains("committed"));
    let below = rig.ack(None, &messages[..1], "completed");
    assert_eq!((&below[0]["success"], &below[0]["noop"]), (&json!(true), &json!(true)));
    let last = rig.ack(None, &messages[2..], "completed");
    assert_eq!((&last[0]["success"], &last[0]["noop"]), (&json!(true), &json!(false)));
    assert_eq!(last[0]["leaseReleased"], true);
}

#[test]
fn each_stops_a_batch_after_a_nack() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"retryLimit": 1}));
    rig.push("q", "p", 0..4);
    let mut delivered = Vec::new();
    loop {
        let messages = rig.pop("q", "batch=10");
        if messages.is_empty() {
            break;
        }
        for message in &messages {
            let one = std::slice::from_ref(message);
            delivered.extend(numbers(one));
            let poison = message["data"]["id"] == 1;
            rig.ack(None, one, if poison { "failed" } else { "completed" });
            if poison {
                break;
            }
        }
    }
    assert_eq!(delivered, [0, 1, 1, 2, 3]);
    assert_eq!(rig.letters("q").len(), 1);
}

#[test]
fn an_ack_of_an_unknown_transaction_must_fail() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    let messages = rig.pop("q", "");
    let mut unknown = messages[0].clone();
    unknown["transactionId"] = json!("never");
    for status in ["completed", "failed"] {
        let result = rig.ack(None, std::slice::from_ref(&unknown), status);
        assert_eq!(result[0]["success"], false);
        assert!(result[0]["error"].as_str().unwrap().contains("unresolv"));
    }
    assert!(all_succeed(&rig.ack(None, &messages, "completed")));
}

#[test]
fn a_batch_ack_under_a_stale_lease_reports_failure() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..2);
    let messages = rig.pop("q", "batch=2");
    let mut stale = messages.clone();
    for message in &mut stale {
        message["leaseId"] = json!("01a0fcc5-7656-7000-8144-b8981abf548a");
    }
    for result in rig.ack(None, &stale, "completed") {
        assert_eq!(result["success"], false);
        assert!(result["error"].as_str().unwrap().contains("lease"));
    }
    assert!(all_succeed(&rig.ack(None, &messages, "completed")));
}

#[test]
fn a_renew_of_a_released_lease_reports_failure() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    let messages = rig.pop("q", "");
    let path = format!("/api/v1/lease/{}/extend", messages[0]["leaseId"].as_str().unwrap());
    let live = rig.client.post(&path, &json!({"seconds": 30}));
    assert_eq!((&live["success"], &live["renewed"]), (&json!(true), &json!(1)));
    assert!(live["newExpiresAt"].is_string());
    rig.ack(None, &messages, "completed");
    let gone = rig.client.post(&path, &json!({"seconds": 30}));
    assert_eq!((&gone["success"], &gone["renewed"]), (&json!(false), &json!(0)));
    assert_eq!(gone["newExpiresAt"], Value::Null);
}

#[test]
fn dlq() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"retryLimit": 2}));
    rig.push("q", "p", 0..1);
    for _ in 0..3 {
        let messages = rig.pop("q", "");
        assert!(all_succeed(&rig.ack(None, &messages, "failed")));
    }
    assert!(rig.pop("q", "").is_empty());
    let letters = rig.letters("q");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0]["data"], json!({"id": 0}));
    assert!(letters[0]["errorMessage"].as_str().unwrap().contains("boom"));
}
