//! A disk that was lost, and a disk that was put back: neither counts as the node it was, and both say what to do.

use serde_json::{Value, json};

use super::members::{add_voter, changed, wait_for_voters};
use super::trio::{Trio, wait};
use super::{drain, push};
use crate::dirs::copy;

/// Waits until a node knows that it has no place, and says so; asks it what clients ask.
fn wait_until_refused(trio: &Trio, node: usize, words: &[&str]) {
    let reason = || trio.health(node).1["reason"].as_str().unwrap_or_default().to_owned();
    wait(|| words.iter().all(|word| reason().contains(word)), || format!("it says {}", reason()));
    assert_eq!(trio.health(node).0, 503);
    let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
    let (status, answer) = trio.call(node, "POST", "/api/v1/push", body);
    assert_eq!(status, 503, "{answer}");
}

/// Two of three run, and the third must not make up for one of them: nothing is taken until that one is back.
fn counts_for_nobody(trio: &mut Trio, lost: usize, number: u64) {
    let leader = trio.leader();
    let other = (0..3).find(|node| *node != lost && *node != leader).unwrap();
    trio.kill(leader);
    trio.wait_for_health(other, 503);
    let (status, answer) = trio.call(other, "POST", "/api/v1/push", &super::item(number));
    assert_eq!(status, 503, "{answer}");
    trio.restart(leader);
    push(trio, other, number);
}

/// The procedure, begun with a node that runs on the wrong directory already.
fn replaced(trio: &Trio, lost: usize, through: usize) {
    changed(trio, through, "DELETE", &format!("/members/{}", lost + 1), &Value::Null);
    add_voter(trio, through, lost);
    wait_for_voters(trio, through, &[1, 2, 3]);
    trio.wait_for_health(lost, 200);
}

#[test]
fn an_empty_directory_under_an_old_number_serves_nobody_and_never_counts() {
    let mut trio = Trio::start(&[]);
    for number in 0..20 {
        push(&trio, (number % 3) as usize, number);
    }
    let leader = trio.leader();
    let lost = (leader + 1) % 3;
    trio.kill(lost);
    std::fs::remove_dir_all(trio.dir(lost)).unwrap();
    trio.restart(lost);
    let advice = format!("DELETE /api/v1/system/raft/membership/members/{}", lost + 1);
    wait_until_refused(&trio, lost, &["does not hold what", &advice]);
    trio.wait_for_line(lost, &advice);
    push(&trio, leader, 20);
    counts_for_nobody(&mut trio, lost, 21);
    wait_until_refused(&trio, lost, &[&advice]);

    // The wrong order, put right: nothing of it has done harm.
    replaced(&trio, lost, leader);
    push(&trio, lost, 22);
    assert_eq!(drain(&trio, &[lost]), (0..=22).collect::<Vec<u64>>());
    trio.stop();
}

#[test]
fn an_older_copy_of_a_directory_serves_nobody_and_never_counts() {
    for is_running in [false, true] {
        // The copy of a node at work must not fall into a checkpoint.
        let mut trio = Trio::start(&[("QUEEN_RAFT_DURABLE_EVERY_MS", "3600000")]);
        for number in 0..10 {
            push(&trio, 0, number);
        }
        let leader = trio.leader();
        let lost = (leader + 1) % 3;
        trio.wait_until_equal();
        let kept = tempfile::tempdir().unwrap();
        if is_running {
            // It counts no start less than the one that goes on.
            copy(&trio.dir(lost), kept.path());
        } else {
            trio.kill(lost);
            copy(&trio.dir(lost), kept.path());
            trio.restart(lost);
            trio.wait_for_health(lost, 200);
        }
        for number in 10..20 {
            push(&trio, 0, number);
        }
        trio.wait_until_equal();
        trio.kill(lost);
        std::fs::remove_dir_all(trio.dir(lost)).unwrap();
        copy(kept.path(), &trio.dir(lost));
        trio.restart(lost);
        let advice = format!("DELETE /api/v1/system/raft/membership/members/{}", lost + 1);
        wait_until_refused(&trio, lost, &["older copy", &advice]);
        push(&trio, leader, 20);
        counts_for_nobody(&mut trio, lost, 21);

        trio.kill(lost);
        std::fs::remove_dir_all(trio.dir(lost)).unwrap();
        trio.restart_with(lost, &[("QUEEN_RAFT_JOIN", "true")]);
        replaced(&trio, lost, leader);
        push(&trio, lost, 22);
        assert_eq!(drain(&trio, &[lost]), (0..=22).collect::<Vec<u64>>());
        trio.stop();
    }
}

#[test]
fn a_cluster_is_founded_when_every_listed_node_has_answered() {
    let mut trio = Trio::new(&[]);
    trio.restart(0);
    trio.restart(1);
    for node in [0, 1] {
        let (status, health) = trio.health(node);
        assert_eq!((status, &health["raft"]["term"]), (503, &json!(0)), "{health}");
        assert!(health["reason"].as_str().unwrap().contains("every node of QUEEN_RAFT_PEERS"));
    }
    trio.wait_for_line(0, "still silent: [3]");
    assert_eq!(trio.health(0).0, 503);
    trio.restart(2);
    trio.leader();
    for (node, number) in (0..3).zip(0..) {
        push(&trio, node, number);
    }
    trio.stop();
}
