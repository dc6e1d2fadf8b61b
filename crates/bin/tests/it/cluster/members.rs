//! Members come and go while the cluster serves; every call goes through a node that does not lead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::trio::{Trio, until_taken, wait};
use super::{drain, push};

const PATH: &str = "/api/v1/system/raft/membership";

/// Pushes one message after the other through two nodes in turn, until it is told to stop.
struct Pusher {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Pusher {
    fn start(addresses: [String; 2], first: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut number = first;
            for address in addresses.iter().cycle() {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let body = super::item(number);
                until_taken(address, "POST", "/api/v1/push", &body);
                number += 1;
            }
            number
        });
        Self { is_over, thread }
    }

    /// The number after the last that was taken.
    fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn membership(trio: &Trio, node: usize) -> Value {
    let (status, answer) = trio.call(node, "GET", PATH, "");
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["membership"].clone()
}

/// A change; its status and answer.
pub(super) fn change(
    trio: &Trio,
    node: usize,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, answer) = trio.call(node, method, &format!("{PATH}{path}"), &body);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["ok"], status == 200, "{method} {path}: {status} {answer}");
    (status, answer)
}

/// A change that is made; the membership after it.
pub(super) fn changed(trio: &Trio, node: usize, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = change(trio, node, method, path, body);
    assert_eq!(status, 200, "{method} {path}: {answer}");
    answer["membership"].clone()
}

pub(super) fn at(trio: &Trio, node: usize) -> Value {
    json!({"id": node + 1, "raft": trio.raft(node), "http": trio.http(node)})
}

/// Waits until all of these vote, answer and have everything.
/// Adds a node as a learner, and makes it a voter when it has caught up; what was said of the first.
pub(super) fn add_voter(trio: &Trio, through: usize, node: usize) -> Value {
    let added = changed(trio, through, "POST", "/learners", &at(trio, node));
    wait(
        || {
            let ids = json!({"ids": [node + 1]});
            let (status, answer) = change(trio, through, "POST", "/promote", &ids);
            assert!(status == 200 || answer["code"] == "learner_behind", "{answer}");
            status == 200
        },
        || "the learner does not catch up".to_owned(),
    );
    added
}

pub(super) fn wait_for_voters(trio: &Trio, node: usize, voters: &[u64]) {
    wait(
        || {
            let shown = membership(trio, node);
            let members = shown["members"].as_array().unwrap();
            shown["voters"] == json!(voters)
                && members.iter().all(|member| member["live"] == true && member["lag"] == 0)
        },
        || "the voters do not come to the same entry".to_owned(),
    );
}

#[test]
fn a_node_that_lost_its_disk_is_replaced_and_can_stand_alone() {
    let mut trio = Trio::start(&[("QUEEN_RAFT_SEGMENT_BYTES", "65536")]);
    for number in 0..100 {
        push(&trio, (number % 3) as usize, number);
    }
    let leader = trio.leader();
    let (lost, through) = ((leader + 1) % 3, (leader + 2) % 3);
    let pusher = Pusher::start([trio.http(leader), trio.http(through)], 100);

    let left = changed(&trio, through, "DELETE", &format!("/members/{}", lost + 1), &Value::Null);
    let others: BTreeSet<usize> = [leader + 1, through + 1].into();
    assert_eq!(left["voters"], json!(others));
    trio.kill(lost);
    std::fs::remove_dir_all(trio.dir(lost)).unwrap();
    trio.restart_with(lost, &[("QUEEN_RAFT_JOIN", "true")]);
    trio.wait_for_line(lost, "this fresh node joins an existing cluster");
    let (status, health) = trio.health(lost);
    assert_eq!((status, &health["raft"]["role"]), (503, &json!("learner")), "{health}");
    assert_eq!(health["raft"]["term"], 0);

    let added = add_voter(&trio, through, lost);
    assert_eq!(added["learners"], json!([lost + 1]));
    let end = pusher.stop();
    assert!(end > 100);
    wait_for_voters(&trio, through, &[1, 2, 3]);
    push(&trio, lost, end);

    // The others leave, the leader too, and go.
    let alone = changed(&trio, through, "PUT", "/voters", &json!({"voters": [lost + 1]}));
    assert_eq!(alone["voters"], json!([lost + 1]));
    trio.kill(leader);
    trio.kill(through);
    push(&trio, lost, end + 1);
    let all: Vec<u64> = (0..=end + 1).collect();
    assert_eq!(drain(&trio, &[lost]), all);
    trio.stop();
}

#[test]
fn the_leader_can_be_removed_and_comes_back_as_a_learner_of_the_next() {
    let trio = Trio::start(&[]);
    push(&trio, 0, 0);
    let first = trio.leader();
    let through = (first + 1) % 3;
    let left = changed(&trio, through, "DELETE", &format!("/members/{}", first + 1), &Value::Null);
    assert!(!left["voters"].as_array().unwrap().contains(&json!(first + 1)), "{left}");
    push(&trio, through, 1);
    trio.wait_for_health(first, 503);
    wait(
        || membership(&trio, through)["source"] == "leader",
        || "the others have not elected".to_owned(),
    );
    changed(&trio, through, "POST", "/learners", &at(&trio, first));
    wait(
        || change(&trio, through, "POST", "/promote", &json!({"id": first + 1})).0 == 200,
        || "the learner does not catch up".to_owned(),
    );
    wait_for_voters(&trio, through, &[1, 2, 3]);
    push(&trio, first, 2);
    assert_eq!(drain(&trio, &[0, 1, 2]), [0, 1, 2]);
    trio.stop();
}

#[test]
fn what_must_not_be_done_is_refused_with_its_code() {
    let mut trio = Trio::start(&[]);
    push(&trio, 0, 0);
    let leader = trio.leader();
    let (through, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let refuse = |trio: &Trio, method: &str, path: &str, body: Value, status: u16, code: &str| {
        let (found, answer) = change(trio, through, method, path, &body);
        assert_eq!((found, &answer["code"]), (status, &json!(code)), "{method} {path}: {answer}");
    };
    let before = membership(&trio, through)["membershipIndex"].clone();
    let other = |raft: &str| json!({"id": 4, "raft": raft, "http": "127.0.0.1:1"});

    refuse(&trio, "POST", "/learners", json!({"id": 0}), 400, "bad_request");
    refuse(&trio, "POST", "/promote", json!({"ids": []}), 400, "bad_request");
    refuse(&trio, "POST", "/learners", at(&trio, third), 409, "already_voter");
    refuse(&trio, "POST", "/promote", json!({"ids": [4]}), 409, "not_a_learner");
    refuse(&trio, "PUT", "/voters", json!({"voters": [1, 2, 4]}), 409, "not_a_member");
    refuse(&trio, "PUT", "/voters", json!({"voters": []}), 409, "last_voter");
    // What is so already.
    for (method, path, body) in [
        ("PUT", "/voters", json!({"voters": [3, 2, 1]})),
        ("POST", "/promote", json!({"ids": [1, 2]})),
        ("DELETE", "/members/4", Value::Null),
    ] {
        let same = changed(&trio, through, method, path, &body);
        assert_eq!(same["membershipIndex"], before, "{method} {path}");
    }
    // Nobody is there, so it never holds anything.
    let added = changed(&trio, through, "POST", "/learners", &other("127.0.0.1:1"));
    assert_eq!((&added["learners"], &added["voters"]), (&json!([4]), &json!([1, 2, 3])));
    let again = changed(&trio, through, "POST", "/learners", &other("127.0.0.1:1"));
    assert_eq!(again["membershipIndex"], added["membershipIndex"]);
    refuse(&trio, "POST", "/learners", other("127.0.0.1:2"), 409, "address_mismatch");
    refuse(&trio, "POST", "/promote", json!({"ids": [4]}), 409, "learner_behind");
    refuse(&trio, "PUT", "/voters", json!({"voters": [1, 2, 4]}), 409, "learner_behind");

    trio.kill(third);
    let is_live = |trio: &Trio, node: usize| {
        let shown = membership(trio, through);
        let rows = shown["members"].as_array().unwrap().clone();
        rows.iter().any(|row| row["nodeId"] == node + 1 && row["live"] == true)
    };
    wait(|| !is_live(&trio, third), || "a node that is gone stays live".to_owned());
    let remove = format!("/members/{}", through + 1);
    refuse(&trio, "DELETE", &remove, Value::Null, 409, "no_quorum");
    refuse(&trio, "POST", "/promote?force=true", json!({"ids": [4]}), 409, "no_quorum");
    let rows = trio.call(through, "GET", "/api/v1/raft/members", "").1;
    let rows: Value = serde_json::from_str(&rows).unwrap();
    for row in rows["members"].as_array().unwrap() {
        let is_gone = [json!(4), json!(third + 1)].contains(&row["nodeId"]);
        assert_eq!(row["reachable"], !is_gone, "{row}");
        assert_eq!(row["state"] == "unreachable", is_gone, "{row}");
    }
    let gone = changed(&trio, through, "DELETE", "/members/4", &Value::Null);
    assert_eq!(gone["learners"], json!([]));

    // Nobody leads: the node that is asked says what it knows.
    trio.kill(leader);
    wait(
        || membership(&trio, through)["source"] == "follower",
        || "it still has a leader".to_owned(),
    );
    let shown = membership(&trio, through);
    assert_eq!(shown["voters"], json!([1, 2, 3]));
    assert!(shown["members"].as_array().unwrap().iter().all(|row| row["live"] == false), "{shown}");
    let age = shown["viewAgeMs"].as_u64().unwrap();
    wait(
        || membership(&trio, through)["viewAgeMs"].as_u64().unwrap() > age,
        || "its age does not grow".to_owned(),
    );
    // Nobody was elected since, so the last one is still tried.
    let path = format!("{remove}?timeoutMs=1");
    refuse(&trio, "DELETE", &path, Value::Null, 503, "leader_unreachable");
    wait(
        || membership(&trio, through)["leader"].is_null(),
        || "who calls nobody still leads".to_owned(),
    );
    trio.restart_stopped();
    wait_for_voters(&trio, through, &[1, 2, 3]);
    trio.stop();
}

/// What the lines of the recovery page read, field by field.
#[test]
fn the_lines_of_the_recovery_page_find_what_they_read() {
    let trio = Trio::start(&[]);
    push(&trio, 0, 0);
    trio.wait_until_equal();
    let leader = trio.leader() + 1;
    let mut terms = BTreeSet::new();
    for node in 0..3 {
        let (status, health) = trio.health(node);
        assert_eq!((status, &health["status"]), (200, &json!("healthy")));
        let raft = &health["raft"];
        let role = if node + 1 == leader { "leader" } else { "follower" };
        assert_eq!(raft["role"], role);
        assert_eq!(raft["applied"], raft["commit"]);
        terms.insert(raft["term"].as_u64().unwrap());
    }
    assert_eq!(terms.len(), 1);
    wait_for_voters(&trio, 0, &[1, 2, 3]);
    for node in 0..3 {
        let shown = membership(&trio, node);
        let row = |node: u64| json!({"nodeId": node, "live": true, "lag": 0});
        let read: Vec<Value> = shown["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| json!({"nodeId": m["nodeId"], "live": m["live"], "lag": m["lag"]}))
            .collect();
        assert_eq!(shown["leader"], leader);
        assert_eq!(read, [row(1), row(2), row(3)]);
    }
    trio.stop();
}
