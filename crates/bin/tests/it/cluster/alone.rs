//! A member that goes on without the others, and a node alone that becomes one.

use serde_json::{Value, json};

use super::members::{add_voter, at, changed, wait_for_voters};
use super::trio::Trio;
use super::{drain, item, push};
use crate::dirs::copy;
use crate::program::Program;
use crate::{queen, text};

const FORCE: (&str, &str) = ("QUEEN_RAFT_FORCE_RECOVER", "1");
const JOIN: (&str, &str) = ("QUEEN_RAFT_JOIN", "true");

/// Nodes 2 and 3 join node 1 on empty directories; with a log that begins too late they are sent a snapshot first.
fn grow(trio: &mut Trio, is_snapshot: bool) {
    for node in [1, 2] {
        trio.restart_with(node, &[JOIN]);
        if is_snapshot {
            changed(trio, 0, "POST", "/learners", &at(trio, node));
            let (code, log) = trio.wait_for_end(node);
            assert_eq!(code, Some(75), "{log}");
            trio.restart(node);
        }
        add_voter(trio, 0, node);
    }
    wait_for_voters(trio, 0, &[1, 2, 3]);
    trio.wait_until_equal();
}

fn marker(trio: &Trio) -> Value {
    let text = std::fs::read_to_string(trio.dir(0).join("raft/force_recovered.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_last_disk_of_three_is_forced_to_go_on_and_the_cluster_grows_again() {
    let mut trio = Trio::start(&[]);
    for number in 0..30 {
        push(&trio, (number % 3) as usize, number);
    }
    trio.wait_until_equal();
    for node in 0..3 {
        trio.kill(node);
    }
    for node in [1, 2] {
        std::fs::remove_dir_all(trio.dir(node)).unwrap();
    }
    for (value, words) in [("2", "this is node 1"), ("one", "is no node's number")] {
        let log = trio.try_start(0, &[(FORCE.0, value)]).unwrap_err();
        assert!(log.contains("FATAL: ") && log.contains(words), "{log}");
    }
    let log = trio.try_start(1, &[(FORCE.0, "2")]).unwrap_err();
    assert!(log.contains("FATAL: ") && log.contains("its log is empty"), "{log}");
    std::fs::remove_dir_all(trio.dir(1)).unwrap();

    trio.restart_with(0, &[FORCE]);
    trio.wait_for_health(0, 200);
    let forced = marker(&trio);
    assert_eq!((&forced["nodeId"], &forced["previousVoters"]), (&json!(1), &json!([1, 2, 3])));
    assert_eq!(forced["previousNodes"]["2"]["raft"], trio.raft(1));
    push(&trio, 0, 30);
    // Once more changes nothing.
    trio.kill(0);
    trio.restart_with(0, &[FORCE]);
    trio.wait_for_line(0, "is the only member already");
    trio.wait_for_health(0, 200);
    assert_eq!(marker(&trio), forced);
    push(&trio, 0, 31);

    trio.kill(0);
    trio.restart(0);
    grow(&mut trio, false);
    push(&trio, 2, 32);
    trio.kill(0);
    let log = trio.try_start(0, &[FORCE]).unwrap_err();
    assert!(
        log.contains("this node already recovered") && log.contains("force_recovered.json"),
        "{log}"
    );
    trio.restart(0);
    trio.wait_until_equal();
    assert_eq!(drain(&trio, &[0, 1, 2]), (0..=32).collect::<Vec<u64>>());
    trio.stop();
}

#[test]
fn a_cluster_is_restored_from_a_copy_of_any_of_its_nodes() {
    let mut trio = Trio::start(&[]);
    for number in 0..30 {
        push(&trio, (number % 3) as usize, number);
    }
    trio.wait_until_equal();
    let kept = tempfile::tempdir().unwrap();
    trio.terminate(1);
    copy(&trio.dir(1), kept.path());
    for node in [0, 2] {
        trio.kill(node);
    }
    for node in 0..3 {
        std::fs::remove_dir_all(trio.dir(node)).unwrap();
    }
    copy(kept.path(), &trio.dir(0));
    let log = trio.try_start(0, &[]).unwrap_err();
    assert!(log.contains("the directory was used by node 2, this is node 1"), "{log}");
    trio.restart_with(0, &[FORCE]);
    trio.wait_for_health(0, 200);
    trio.kill(0);
    trio.restart(0);
    grow(&mut trio, false);
    push(&trio, 1, 30);
    assert_eq!(drain(&trio, &[2, 0, 1]), (0..=30).collect::<Vec<u64>>());
    trio.stop();
}

#[test]
fn the_directory_of_a_node_alone_becomes_a_clusters() {
    let mut trio = Trio::new(&[]);
    let dir = trio.dir(0);
    let (raft, http) = (trio.raft(0), trio.http(0));
    let promote = || {
        let path = dir.to_str().unwrap();
        let words = ["promote-dir", path, "--node", "1", "--raft", &raft, "--http", &http];
        let output = queen(&words, &[]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    std::fs::create_dir_all(&dir).unwrap();
    let (code, said) = promote();
    assert!(code == Some(1) && said.contains("nothing to promote"), "{said}");

    let node = Program::start(&dir, &[]).unwrap();
    let mut number = 0;
    while number < 20 {
        node.ask("POST", "/api/v1/push", &item(number));
        number += 1;
    }
    let (code, said) = promote();
    assert!(code == Some(1) && said.contains("in use by another process"), "{said}");
    // What is above the checkpoint is part of it.
    node.kill();
    let (code, said) = promote();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("its only member"), "{said}");
    let (code, said) = promote();
    assert!(code == Some(1) && said.contains("a cluster's already"), "{said}");

    trio.restart(0);
    trio.wait_for_health(0, 200);
    push(&trio, 0, 20);
    // It knows the ids of before.
    push(&trio, 0, 7);
    grow(&mut trio, true);
    push(&trio, 2, 21);
    assert_eq!(drain(&trio, &[1, 2]), (0..=21).collect::<Vec<u64>>());
    trio.stop();
}
