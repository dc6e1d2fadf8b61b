//! Queues and groups: made, changed, deleted, begun.

use serde_json::json;

use super::{Rig, numbers};

#[test]
fn create_queue() {
    assert_eq!(Rig::new().configure("q", &json!({}))["configured"], true);
}

#[test]
fn delete_queue() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({}));
    let (status, answer) = rig.client.send("DELETE", "/api/v1/resources/queues/q", "");
    assert_eq!((status, &answer["deleted"]), (200, &json!(true)));
}

#[test]
fn configure_queue() {
    let options =
        json!({"leaseTime": 60, "retryLimit": 5, "priority": 7, "maxSize": 1000, "unknown": 1});
    let answer = Rig::new().configure("q", &options)["options"].clone();
    for name in ["leaseTime", "retryLimit", "priority", "maxSize"] {
        assert_eq!(answer[name], options[name], "{name}");
    }
}

#[test]
fn a_group_that_is_not_there_is_deleted_too() {
    let mut rig = Rig::new();
    let path = "/api/v1/consumer-groups/none?deleteMetadata=true";
    let (status, answer) = rig.client.send("DELETE", path, "");
    assert_eq!((status, &answer["success"]), (200, &json!(true)));
}

#[test]
fn mode_new_skips_the_backlog_and_mode_all_takes_it() {
    for repeated in ["", "&subscriptionMode=new-only"] {
        let mut rig = Rig::new();
        rig.push("q", "p", 0..5);
        assert_eq!(rig.pop("q", "consumerGroup=all&subscriptionMode=all&batch=10").len(), 5);
        assert!(rig.pop("q", "consumerGroup=new&subscriptionMode=new").is_empty());
        rig.push("q", "p", 5..8);
        let later = rig.pop("q", &format!("consumerGroup=new&batch=10{repeated}"));
        assert_eq!(numbers(&later), [5, 6, 7]);
    }
}

#[test]
fn from_now_skips_the_backlog() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..5);
    assert!(rig.pop("q", "consumerGroup=g&subscriptionFrom=now").is_empty());
    rig.push("q", "r", 5..6);
    assert_eq!(numbers(&rig.pop("q", "consumerGroup=g")), [5]);
}

#[test]
fn from_a_timestamp_takes_what_came_at_or_after_it() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..2);
    let body = json!({"entries": [{"queue": "q"}]});
    let changed = rig.client.post("/api/v1/partitions/changed", &body);
    let safe = changed["safeTime"].as_str().unwrap().to_owned();
    rig.push("q", "p", 2..4);
    // The time with microseconds of the newest message before; that message is at it.
    let messages = rig.pop("q", &format!("consumerGroup=g&batch=10&subscriptionFrom={safe}"));
    assert_eq!(numbers(&messages), [0, 1, 2, 3]);
}

#[test]
fn mode_all_serves_two_groups() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..3);
    for group in ["a", "b"] {
        let query = format!("consumerGroup={group}&subscriptionMode=all&batch=10");
        assert_eq!(numbers(&rig.pop("q", &query)), [0, 1, 2]);
    }
}

#[test]
fn the_server_default_is_new_and_a_stored_mode_stays() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..2);
    let taken = rig.pop("q", "consumerGroup=all&subscriptionMode=all&batch=10");
    rig.ack(Some("all"), &taken, "completed");
    assert!(rig.pop("q", "consumerGroup=new").is_empty());
    rig.push("q", "p", 2..3);
    assert_eq!(numbers(&rig.pop("q", "consumerGroup=all")), [2]);
    assert_eq!(numbers(&rig.pop("q", "consumerGroup=new")), [2]);
}

#[test]
fn docs_examples() {
    let mut rig = Rig::new();
    let item = json!({"items": [{"queue": "orders", "partition": "customer-42",
        "transactionId": "order-9137-paid", "payload": {"orderId": 9137}}]});
    let first = rig.client.post("/api/v1/push", &item);
    let again = rig.client.post("/api/v1/push", &item);
    assert_eq!((&first[0]["status"], &again[0]["status"]), (&json!("queued"), &json!("duplicate")));
    assert_eq!(first[0]["message_id"], again[0]["message_id"]);
    let drained = rig.pop("orders", "consumerGroup=billing&subscriptionMode=all");
    assert_eq!(drained[0]["data"]["orderId"], 9137);
    rig.ack(Some("billing"), &drained, "completed");
    assert_eq!(rig.pop("orders", "")[0]["transactionId"], "order-9137-paid");
}
