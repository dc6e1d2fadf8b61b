//! Consumers: order, batches, groups, retries, several partitions at once.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use super::{Rig, all_succeed, numbers, pop};

/// Pops and acknowledges until nothing is left; what was handled, in order.
fn drain(rig: &mut Rig, queue: &str, group: Option<&str>, query: &str) -> Vec<u64> {
    let mut handled = Vec::new();
    loop {
        let messages = rig.pop(queue, query);
        if messages.is_empty() {
            return handled;
        }
        assert!(all_succeed(&rig.ack(group, &messages, "completed")));
        handled.extend(numbers(&messages));
    }
}

fn up_to(end: u64) -> Vec<u64> {
    (0..end).collect()
}

#[test]
fn consumer_pops_and_acks() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    assert_eq!(drain(&mut rig, "q", None, ""), [0]);
}

#[test]
fn consumer_with_partition() {
    let mut rig = Rig::new();
    for partition in ["a", "b"] {
        rig.push("q", partition, 0..100);
        let path = format!("/api/v1/pop/queue/q/partition/{partition}?batch=100");
        let messages = rig.client.get(&path)["messages"].as_array().unwrap().clone();
        assert_eq!(numbers(&messages), up_to(100));
    }
}

#[test]
fn consumer_batch_consume() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..3);
    assert_eq!(numbers(&rig.pop("q", "batch=10")), [0, 1, 2]);
}

#[test]
fn consumer_ordering_one_by_one_and_in_a_batch() {
    let mut rig = Rig::new();
    for n in 0..100 {
        rig.push("q", "p", n..n + 1);
    }
    assert_eq!(drain(&mut rig, "q", None, "batch=1"), up_to(100));
    let query = "consumerGroup=g&subscriptionMode=all&batch=100";
    assert_eq!(drain(&mut rig, "q", Some("g"), query), up_to(100));
}

#[test]
fn consumer_ordering_concurrency() {
    for batch in [1, 10] {
        let mut rig = Rig::new();
        rig.push("q", "p", 0..100);
        let (sender, handled) = std::sync::mpsc::channel();
        let workers: Vec<_> = (0..10)
            .map(|_| {
                let (mut client, sender) = (rig.another(), sender.clone());
                thread::spawn(move || {
                    let query = format!("batch={batch}&wait=true&timeout=3000");
                    loop {
                        let messages = pop(&mut client, "q", &query);
                        if messages.is_empty() {
                            return;
                        }
                        for message in &messages {
                            sender.send(message["data"]["id"].as_u64().unwrap()).unwrap();
                            let ack = json!({"transactionId": message["transactionId"],
                                "partitionId": message["partitionId"], "leaseId": message["leaseId"]});
                            assert_eq!(client.post("/api/v1/ack", &ack)[0]["success"], true);
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        let handled: Vec<u64> = handled.iter().collect();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(handled, up_to(100), "one lease per partition keeps the order");
    }
}

#[test]
fn consumer_group() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..100);
    for group in ["a", "b"] {
        let query = format!("consumerGroup={group}&subscriptionMode=from_beginning&batch=30");
        assert_eq!(drain(&mut rig, "q", Some(group), &query), up_to(100));
    }
}

#[test]
fn consumer_group_with_partition() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..100);
    for group in ["a", "b"] {
        let path = format!(
            "/api/v1/pop/queue/q/partition/p?consumerGroup={group}&subscriptionMode=from_beginning&batch=100"
        );
        let messages = rig.client.get(&path)["messages"].as_array().unwrap().clone();
        assert_eq!(numbers(&messages), up_to(100));
    }
}

#[test]
fn batch_consume_of_ten_thousand() {
    let mut rig = Rig::new();
    for batch in 0..10 {
        rig.push("q", "p", batch * 1000..(batch + 1) * 1000);
    }
    assert_eq!(drain(&mut rig, "q", None, "batch=1000"), up_to(10_000));
}

#[test]
fn retries_charge_a_call_once_and_a_group_alone() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"retryLimit": 3}));
    rig.push("q", "p", 0..100);
    let query = "consumerGroup=a&subscriptionMode=all&batch=100";
    for attempt in 1..=2 {
        let messages = rig.pop("q", query);
        assert_eq!(messages[0]["deliveryAttempt"], attempt);
        assert!(all_succeed(&rig.ack(Some("a"), &messages, "failed")));
    }
    let messages = rig.pop("q", query);
    assert_eq!((messages.len(), &messages[0]["deliveryAttempt"]), (100, &json!(3)));
    assert!(all_succeed(&rig.ack(Some("a"), &messages, "completed")));
    assert!(rig.letters("q").is_empty());
    let other = rig.pop("q", "consumerGroup=b&subscriptionMode=all&batch=100");
    assert_eq!((other.len(), &other[0]["deliveryAttempt"]), (100, &json!(1)));
}

#[test]
fn auto_renew_lease() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"leaseTime": 2}));
    rig.push("q", "p", 0..1);
    let messages = rig.pop("q", "");
    let lease = messages[0]["leaseId"].as_str().unwrap();
    let (status, answer) = rig.client.send("POST", &format!("/api/v1/lease/{lease}/extend"), "");
    assert_eq!((status, &answer["success"], &answer["renewed"]), (200, &json!(true), &json!(1)));
    // Longer than the first lease: nobody else gets it meanwhile.
    assert!(rig.pop("q", "wait=true&timeout=3000").is_empty());
    assert!(all_succeed(&rig.ack(None, &messages, "completed")));
}

fn three_partitions(rig: &mut Rig) {
    for partition in ["a", "b", "c"] {
        rig.push("q", partition, 0..2);
    }
}

#[test]
fn consumer_multi_partition_basic() {
    let mut rig = Rig::new();
    three_partitions(&mut rig);
    let messages = rig.pop("q", "batch=10&partitions=3");
    assert_eq!(messages.len(), 6);
    let distinct = |name: &str| -> BTreeSet<String> {
        messages.iter().map(|message: &Value| message[name].to_string()).collect()
    };
    assert_eq!((distinct("partitionId").len(), distinct("leaseId").len()), (3, 1));
}

#[test]
fn consumer_multi_partition_global_cap() {
    let mut rig = Rig::new();
    for partition in ["a", "b", "c", "d", "e"] {
        rig.push("q", partition, 0..100);
    }
    assert_eq!(rig.pop("q", "batch=10&partitions=5").len(), 10);
}

#[test]
fn consumer_multi_partition_default_one() {
    let mut rig = Rig::new();
    three_partitions(&mut rig);
    assert_eq!(rig.pop("q", "batch=10").len(), 2);
}

#[test]
fn consumer_trace_errors_do_no_harm() {
    // Clients swallow what a trace answers; it must not end their connection.
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    let (status, _) = rig.client.send("POST", "/api/v1/traces", r#"{"transactionId":"p-0"}"#);
    assert!((200..500).contains(&status));
    assert_eq!(numbers(&rig.pop("q", "")), [0]);
}
