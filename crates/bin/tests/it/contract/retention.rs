//! Messages that go, as a caller of the HTTP API sees it. The program has the real clock: each test waits until something is
//! gone, and what must stay is looked at after something younger went.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Rig, all_succeed, numbers};

const DEADLINE: Duration = Duration::from_secs(30);

/// Looks ten times a second, and forgets hashes as soon as a queue's window is over.
const EAGER: [(&str, &str); 2] =
    [("RETENTION_INTERVAL", "100"), ("QUEEN_RAFT_TXN_WINDOW_MIN_S", "0")];
/// The same, and removes partitions as soon as nothing is in them.
const CLEANING: [(&str, &str); 3] = [EAGER[0], EAGER[1], ("PARTITION_CLEANUP_DAYS", "0")];

fn rig(more: &[(&str, &str)]) -> Rig {
    Rig::with(&[&EAGER, more].concat())
}

fn fetch(rig: &mut Rig, queue: &str, offset: u64) -> Value {
    let entry = json!({"queue": queue, "partition": "p", "offset": offset});
    rig.client.post("/api/v1/fetch", &json!({"entries": [entry], "minBytes": 0}))["entries"][0]
        .take()
}

fn start(rig: &mut Rig, queue: &str) -> u64 {
    fetch(rig, queue, 0)["logStartOffset"].as_u64().unwrap()
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

fn wait_start(rig: &mut Rig, queue: &str, expected: u64) {
    wait("the log starts elsewhere", || start(rig, queue) == expected);
}

/// A message that is pushed now is gone: what was due before it has been looked at.
fn let_one_pass(rig: &mut Rig) {
    rig.configure("probe", &json!({"maxWaitTimeSeconds": 1, "dedupWindowSeconds": 0}));
    rig.push("probe", "p", 0..1);
    let end = fetch(rig, "probe", 0)["highWatermark"].as_u64().unwrap();
    wait_start(rig, "probe", end);
}

fn counts(rig: &mut Rig, queue: &str) -> Value {
    let queue = rig.client.get(&format!("/api/v1/resources/queues/{queue}"));
    json!([queue["totals"]["total"], queue["totals"]["pending"]])
}

#[test]
fn retention_seconds_remove_messages_and_reads_below_say_so() {
    let mut rig = rig(&[]);
    let options = json!({"retentionEnabled": true, "retentionSeconds": 1});
    rig.configure("q", &options);
    rig.configure("off", &json!({"retentionEnabled": false, "retentionSeconds": 1}));
    rig.push("off", "p", 0..1);
    rig.push("q", "p", 0..3);
    wait_start(&mut rig, "q", 3);
    let below = fetch(&mut rig, "q", 2);
    assert_eq!(below["error"], "OFFSET_OUT_OF_RANGE");
    assert_eq!((&below["logStartOffset"], &below["highWatermark"]), (&json!(3), &json!(3)));
    assert_eq!(counts(&mut rig, "q"), json!([0, 0]));
    assert!(rig.pop("q", "consumerGroup=g&subscriptionMode=all").is_empty());
    let page = rig.client.get("/api/v1/messages?queue=q");
    assert_eq!(page["messages"], json!([]));
    // Its transactionIds are known for the window of an hour, and name the messages that were.
    let again = rig.push("q", "p", 2..4);
    assert_eq!((&again[0]["status"], &again[0]["offset"]), (&json!("duplicate"), &json!(2)));
    assert_eq!((&again[1]["status"], &again[1]["offset"]), (&json!("queued"), &json!(3)));
    assert_eq!(start(&mut rig, "off"), 0);
}

#[test]
fn completed_retention_removes_what_every_group_has_acknowledged() {
    let mut rig = rig(&[]);
    let options = json!({"retentionEnabled": true, "completedRetentionSeconds": 1});
    rig.configure("q", &options);
    rig.push("q", "p", 0..2);
    let first = rig.pop("q", "consumerGroup=a&subscriptionMode=all&batch=2");
    let second = rig.pop("q", "consumerGroup=b&subscriptionMode=all&batch=2");
    assert!(all_succeed(&rig.ack(Some("a"), &first, "completed")));
    let_one_pass(&mut rig);
    assert_eq!(start(&mut rig, "q"), 0, "one group has both messages yet to do");
    assert!(all_succeed(&rig.ack(Some("b"), &second[..1], "completed")));
    let_one_pass(&mut rig);
    assert_eq!(start(&mut rig, "q"), 0, "they were pushed together");
    assert!(all_succeed(&rig.ack(Some("b"), &second[1..], "completed")));
    wait_start(&mut rig, "q", 2);
}

#[test]
fn max_wait_time_needs_no_retention_and_a_late_consumer_goes_on_behind() {
    let mut rig = rig(&[]);
    let options = json!({"maxWaitTimeSeconds": 2, "dedupWindowSeconds": 0, "leaseTime": 60});
    rig.configure("q", &options);
    rig.push("q", "p", 0..2);
    let held = rig.pop("q", "consumerGroup=g&subscriptionMode=all&batch=1");
    assert_eq!(numbers(&held), [0]);
    wait_start(&mut rig, "q", 2);
    assert!(rig.pop("q", "consumerGroup=g&batch=9").is_empty());
    // The lease on what is gone can still be settled.
    assert!(all_succeed(&rig.ack(Some("g"), &held, "completed")));
    let again = rig.push("q", "p", 0..1);
    assert_eq!((&again[0]["status"], &again[0]["offset"]), (&json!("queued"), &json!(2)));
    let messages = rig.pop("q", "consumerGroup=g&batch=9");
    assert_eq!((numbers(&messages), &messages[0]["offset"]), (vec![0], &again[0]["offset"]));
}

fn changed(rig: &mut Rig, queue: &str) -> Vec<Value> {
    let body = json!({"entries": [{"queue": queue}]});
    let answer = rig.client.post("/api/v1/partitions/changed", &body);
    answer["entries"][0]["partitions"].as_array().unwrap().clone()
}

/// What is pushed now is gone, its bytes may be reclaimed, and its partition is removed: so would be what is older.
fn let_all_pass(rig: &mut Rig) {
    rig.configure("probe", &json!({"maxWaitTimeSeconds": 1, "dedupWindowSeconds": 1}));
    rig.push("probe", "p", 0..1);
    wait("the probe is there", || changed(rig, "probe").is_empty());
}

/// A message that retention has removed for readers while somebody holds it.
fn held_and_removed(rig: &mut Rig) -> Vec<Value> {
    let options = json!({"maxWaitTimeSeconds": 1, "dedupWindowSeconds": 1, "leaseTime": 600});
    rig.configure("q", &options);
    rig.push("q", "p", 0..3);
    let held = rig.pop("q", "consumerGroup=g&subscriptionMode=all&batch=3");
    assert_eq!(numbers(&held), [0, 1, 2]);
    wait_start(rig, "q", 3);
    let_all_pass(rig);
    held
}

#[test]
fn what_is_held_can_be_filed_whatever_retention_removed() {
    let mut rig = Rig::with(&CLEANING);
    let held = held_and_removed(&mut rig);
    let results = rig.ack(Some("g"), &held[..1], "dlq");
    assert_eq!((&results[0]["success"], &results[0]["dlq"]), (&json!(true), &json!(true)));
    let letters = rig.letters("q");
    assert_eq!((letters.len(), &letters[0]["data"]), (1, &json!({"id": 0})));
}

#[test]
fn what_is_held_can_be_acknowledged_after_a_restart_whatever_retention_removed() {
    let mut rig = Rig::with(&CLEANING);
    let held = held_and_removed(&mut rig);
    let mut rig = rig.restarted(&CLEANING);
    let results = rig.ack(Some("g"), &held, "completed");
    assert!(all_succeed(&results), "{results:?}");
    // Nobody holds it any more, so it goes as well.
    wait("the partition is there", || changed(&mut rig, "q").is_empty());
}

#[test]
fn a_group_that_asks_for_one_partition_only_keeps_its_place_in_it() {
    let mut rig = Rig::with(&CLEANING);
    rig.configure("q", &json!({"maxWaitTimeSeconds": 1, "dedupWindowSeconds": 0}));
    let pop = |rig: &mut Rig| rig.pop("q/partition/p", "consumerGroup=pinned");
    rig.push("q", "p", 0..1);
    assert!(pop(&mut rig).is_empty(), "it begins with what comes next");
    rig.push("q", "p", 1..2);
    let messages = pop(&mut rig);
    assert_eq!(numbers(&messages), [1]);
    assert!(all_succeed(&rig.ack(Some("pinned"), &messages, "completed")));
    wait_start(&mut rig, "q", 2);
    let_all_pass(&mut rig);
    rig.push("q", "p", 2..3);
    assert_eq!(numbers(&pop(&mut rig)), [2]);
}

#[test]
fn a_partition_that_is_empty_and_unused_is_removed_and_can_come_back() {
    let mut rig = Rig::with(&CLEANING);
    rig.configure("q", &json!({"maxWaitTimeSeconds": 1, "dedupWindowSeconds": 0}));
    rig.configure("kept", &json!({}));
    rig.push("kept", "p", 0..1);
    rig.push("q", "p", 0..2);
    let before = changed(&mut rig, "q");
    wait("the partition is there", || changed(&mut rig, "q").is_empty());
    assert_eq!(changed(&mut rig, "kept").len(), 1, "it holds a message");
    let again = rig.push("q", "p", 5..6);
    assert_eq!((&again[0]["status"], &again[0]["offset"]), (&json!("queued"), &json!(0)));
    assert_ne!(changed(&mut rig, "q").first().map(|row| &row["id"]), Some(&before[0]["id"]));
}
