//! Three programs that are one broker.

mod alone;
mod identity;
mod members;
mod trio;

use std::collections::BTreeSet;

use serde_json::Value;
use trio::Trio;

/// Pushes a message through a node until it is taken; its payload is the number.
fn push(trio: &Trio, node: usize, number: u64) {
    trio.ask_until_taken(node, "POST", "/api/v1/push", &item(number));
}

/// A push of one message whose payload is the number.
fn item(number: u64) -> String {
    format!(r#"{{"items":[{{"queue":"q","transactionId":"t{number}","payload":{number}}}]}}"#)
}

/// Everything in the queue, in order, taken and acknowledged through the nodes in turn.
fn drain(trio: &Trio, nodes: &[usize]) -> Vec<u64> {
    let mut found = Vec::new();
    for turn in 0.. {
        let node = nodes[turn % nodes.len()];
        let path = "/api/v1/pop/queue/q?batch=7&autoAck=true";
        let answer = trio.ask_until_taken(node, "GET", path, "");
        if answer.is_empty() {
            return found;
        }
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let messages = answer["messages"].as_array().unwrap().clone();
        found.extend(messages.iter().map(|message| message["data"].as_u64().unwrap()));
    }
    unreachable!("a queue ends")
}

#[test]
fn a_message_goes_in_and_out_through_any_node() {
    let trio = Trio::start(&[]);
    trio.ask_until_taken(0, "POST", "/api/v1/push", r#"{"items":[{"queue":"q","payload":1}]}"#);
    let popped = trio.ask_until_taken(1, "GET", "/api/v1/pop/queue/q?batch=1", "");
    let popped: Value = serde_json::from_str(&popped).unwrap();
    let (message, lease) = (&popped["messages"][0], &popped["leaseId"]);
    assert_eq!(message["data"], 1);
    let ack = format!(
        r#"{{"transactionId":{},"partitionId":{},"leaseId":{lease},"status":"completed"}}"#,
        message["transactionId"], message["partitionId"]
    );
    let acked = trio.ask_until_taken(2, "POST", "/api/v1/ack", &ack);
    assert!(acked.contains("\"success\":true"), "{acked}");
    assert!(drain(&trio, &[0, 1, 2]).is_empty());
    trio.stop();
}

#[test]
fn a_leader_that_fails_is_followed_by_another_one() {
    let mut trio = Trio::start(&[("QUEEN_RAFT_SEGMENT_BYTES", "65536")]);
    push(&trio, 0, 0);
    let leader = trio.leader();
    // The next file of a log cannot be made there: what makes it ahead fails, and with it the node. Nothing is proposed
    // that could fail in the consensus library.
    for log in std::fs::read_dir(trio.dir(leader).join("qlog")).unwrap() {
        let log = log.unwrap().path();
        if log.is_dir() {
            std::fs::create_dir(log.join("r00000002.qlog")).unwrap();
        }
    }
    // More than half a file also when it is compressed.
    let mut text = String::new();
    for n in 0..6_000u64 {
        text.push_str(&n.wrapping_mul(2_654_435_761).to_string());
    }
    let body = format!(r#"{{"items":[{{"queue":"q","transactionId":"t1","payload":"{text}"}}]}}"#);
    let (status, answer) = trio.call(leader, "POST", "/api/v1/push", &body);
    assert_eq!(status, 201, "{answer}");
    trio::wait(|| trio.health(leader).1["raft"]["role"] == "stopped", || "it goes on".to_owned());
    let next = trio.leader();
    assert_ne!(next, leader);
    push(&trio, next, 2);
    push(&trio, 3 - next - leader, 3);
    trio.kill(leader);
    trio.stop();
}

#[test]
fn what_was_answered_outlives_each_node_in_turn() {
    let mut trio = Trio::start(&[("QUEEN_RAFT_SEGMENT_BYTES", "65536")]);
    let mut number = 0;
    for round in 0..3 {
        for _ in 0..20 {
            push(&trio, number % 3, number as u64);
            number += 1;
        }
        let leader = trio.leader();
        trio.kill(if round == 2 { (leader + 1) % 3 } else { leader });
        for _ in 0..20 {
            push(&trio, trio.any_running(number), number as u64);
            number += 1;
        }
        trio.restart_stopped();
        trio.wait_until_equal();
    }
    let all: Vec<u64> = (0..number as u64).collect();
    assert_eq!(drain(&trio, &[0, 1, 2]), all);
    trio.stop();
}

#[test]
fn a_node_that_was_away_reads_what_it_missed_from_the_logs_of_another() {
    let settings = [("QUEEN_RAFT_SEGMENT_BYTES", "65536"), ("QUEEN_RAFT_LOG_CACHE_MB", "1")];
    let mut trio = Trio::start(&settings);
    push(&trio, 0, 0);
    let away = (trio.leader() + 1) % 3;
    trio.kill(away);
    // More than memory keeps, over many files.
    let text = "x".repeat(40_000);
    for number in 0..60 {
        let body = format!(
            r#"{{"items":[{{"queue":"large{}","transactionId":"{number}","payload":"{number} {text}"}}]}}"#,
            number % 3
        );
        trio.ask_until_taken(trio.any_running(number), "POST", "/api/v1/push", &body);
    }
    trio.restart_stopped();
    trio.wait_until_equal();
    // It serves alone what it was sent, when the one that sent it is gone.
    let leader = trio.leader();
    trio.kill(leader);
    let mut found = BTreeSet::new();
    for queue in 0..3 {
        loop {
            let path = format!("/api/v1/pop/queue/large{queue}?batch=10&autoAck=true");
            let answer = trio.ask_until_taken(away, "GET", &path, "");
            if answer.is_empty() {
                break;
            }
            let answer: Value = serde_json::from_str(&answer).unwrap();
            for message in answer["messages"].as_array().unwrap() {
                let data = message["data"].as_str().unwrap();
                assert_eq!(data.len() - text.len(), data.find('x').unwrap());
                found.insert(data.split(' ').next().unwrap().parse::<u64>().unwrap());
            }
        }
    }
    assert_eq!(found, (0..60).collect());
    trio.stop();
}

/// Few entries are kept, for members that were heard of within two seconds.
const EAGER: [(&str, &str); 4] = [
    ("QUEEN_RAFT_LOG_KEEP", "8"),
    ("QUEEN_RAFT_PURGE_HOLD_S", "1"),
    ("QUEEN_RAFT_DURABLE_EVERY_MS", "50"),
    ("QUEEN_RAFT_SEGMENT_BYTES", "65536"),
];

#[test]
fn a_node_that_was_away_too_long_is_sent_a_snapshot_and_holds_everything() {
    let mut trio = Trio::start(&EAGER);
    for number in 0..10 {
        push(&trio, 0, number);
    }
    trio.wait_until_equal();
    let leader = trio.leader();
    let away = (leader + 1) % 3;
    let held = trio.applied(away);
    trio.kill(away);
    let mut number = 10;
    // Each push is an entry, so that there is something to purge.
    trio::wait(
        || {
            push(&trio, leader, number);
            number += 1;
            trio.purged(leader) > held
        },
        || "the leader keeps what the member lacks".to_owned(),
    );
    trio.restart(away);
    let (code, log) = trio.wait_for_end(away);
    assert_eq!(code, Some(75), "{log}");
    assert!(log.contains("snapshot staged: restarting to load it"), "{log}");
    assert!(!log.contains("FATAL"), "{log}");
    let output = crate::queen(&["doctor", trio.dir(away).to_str().unwrap()], &[]);
    let report = crate::text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(
        report.contains("snapshot.pending") && report.contains("a start loads it first"),
        "{report}"
    );
    push(&trio, leader, number);
    number += 1;
    trio.restart(away);
    trio.wait_until_equal();
    assert!(trio.purged(away) >= held);
    let names = std::fs::read_dir(trio.dir(away)).unwrap();
    let names: Vec<String> =
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.starts_with("snapshot")), "{names:?}");
    // It knows the messages' ids too, and serves alone what it was sent.
    let leader = trio.leader();
    trio.kill(if leader == away { (away + 1) % 3 } else { leader });
    push(&trio, away, 3);
    assert_eq!(drain(&trio, &[away]), (0..number).collect::<Vec<u64>>());
    trio.restart_stopped();
    trio.wait_until_equal();
    trio.stop();
}

#[test]
fn what_retention_removed_gives_its_space_back_on_every_node() {
    let more = [
        ("RETENTION_INTERVAL", "100"),
        ("QUEEN_RAFT_TXN_WINDOW_MIN_S", "0"),
        ("QUEEN_RAFT_QLOG_ZSTD_LEVEL", "0"),
        ("QUEEN_RAFT_QLOG_PREALLOC_KB", "0"),
    ];
    let trio = Trio::start(&[&EAGER[..], &more].concat());
    let options = r#"{"queue":"aging","options":{"retentionEnabled":true,"retentionSeconds":1,"dedupWindowSeconds":1}}"#;
    trio.ask_until_taken(0, "POST", "/api/v1/configure", options);
    let text = "x".repeat(20_000);
    for number in 0..60 {
        let body = format!(r#"{{"items":[{{"queue":"aging","payload":"{number} {text}"}}]}}"#);
        trio.ask_until_taken(number % 3, "POST", "/api/v1/push", &body);
    }
    let mut number = 0;
    trio::wait(
        || {
            // The floor follows what is written.
            push(&trio, 0, number);
            number += 1;
            (0..3).all(|node| trio.log_bytes(node) < 600_000)
        },
        || "the logs keep what is gone".to_owned(),
    );
    assert_eq!(drain(&trio, &[0, 1, 2]), (0..number).collect::<Vec<u64>>());
    trio.stop();
}

#[test]
fn without_a_majority_nothing_is_taken_and_the_next_write_is_when_it_is_back() {
    let mut trio = Trio::start(&[]);
    push(&trio, 0, 0);
    let left = trio.leader();
    trio.kill((left + 1) % 3);
    trio.kill((left + 2) % 3);
    trio.wait_for_health(left, 503);
    let body = r#"{"items":[{"queue":"q","payload":9}]}"#;
    let (status, answer) = trio.call(left, "POST", "/api/v1/push", body);
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("timeout"), "{answer}");
    trio.restart((left + 1) % 3);
    push(&trio, left, 1);
    push(&trio, (left + 1) % 3, 2);
    trio.wait_for_health(left, 200);
    trio.stop();
}

#[test]
fn a_leader_that_is_stopped_hands_over_first() {
    let mut trio = Trio::start(&[]);
    push(&trio, 0, 0);
    let leader = trio.leader();
    let log = trio.terminate(leader);
    assert!(log.contains("leadership handed off"), "{log}");
    push(&trio, trio.any_running(0), 1);
    assert_eq!(drain(&trio, &[trio.any_running(1)]), [0, 1]);
    trio.stop();
}

#[test]
fn a_node_with_another_token_is_refused() {
    let mut trio = Trio::start(&[]);
    push(&trio, 0, 0);
    let odd = (trio.leader() + 1) % 3;
    trio.kill(odd);
    trio.restart_with(odd, &[("QUEEN_RAFT_TOKEN", "another")]);
    trio.wait_for_health(odd, 503);
    push(&trio, trio.leader(), 1);
    trio.wait_for_line(odd, "refused this node's QUEEN_RAFT_TOKEN");
    trio.kill(odd);
    trio.restart_stopped();
    trio.wait_until_equal();
    trio.stop();
}

#[test]
fn a_directory_stays_with_the_replicator_that_made_it() {
    let trio = Trio::start(&[]);
    push(&trio, 0, 0);
    let dirs = trio.stop();
    let refused = trio::start_alone(&dirs[0], &[]).unwrap_err();
    assert!(refused.contains("written by the openraft replicator"), "{refused}");
    let other = [("QUEEN_RAFT_REPLICATOR", "openraft"), ("QUEEN_RAFT_NODE_ID", "7")];
    let refused = trio::start_alone(&dirs[0], &other).unwrap_err();
    assert!(refused.contains("used by node 1, this is node 7"), "{refused}");

    let to = dirs[0].with_file_name("anew");
    let (from, to) = (dirs[0].to_str().unwrap(), to.to_str().unwrap());
    let relayout = crate::queen(&["relayout", "--from", from, "--to", to, "--shards", "2"], &[]);
    let said = crate::text(&relayout.stderr);
    assert!(!relayout.status.success() && said.contains("a member's of a cluster"), "{said}");

    let local = tempfile::tempdir().unwrap();
    let node = trio::start_alone(local.path(), &[("QUEEN_RAFT_DURABLE_EVERY_MS", "1")]).unwrap();
    node.ask("POST", "/api/v1/push", r#"{"items":[{"queue":"q","payload":1}]}"#);
    node.stop();
    let member = [("QUEEN_RAFT_REPLICATOR", "openraft")];
    let refused = trio::start_alone(local.path(), &member).unwrap_err();
    assert!(refused.contains("written by the local replicator"), "{refused}");
}

/// Entries of the cluster's own are in its log, and files beside it.
#[test]
fn the_doctor_and_the_dumps_know_a_members_directory() {
    let trio = Trio::start(&[]);
    push(&trio, 0, 0);
    trio.wait_until_equal();
    for dir in trio.stop() {
        let doctor = crate::queen(&["doctor", dir.to_str().unwrap()], &[]);
        let said = crate::text(&doctor.stdout) + &crate::text(&doctor.stderr);
        assert!(doctor.status.success(), "{said}");
        assert!(!said.contains("not a file of this program"), "{said}");
        let file = dir.join("qlog/q0/r00000001.qlog");
        let dump = crate::queen(&["log", "dump", file.to_str().unwrap()], &[]);
        let said = crate::text(&dump.stdout);
        assert!(dump.status.success(), "{said} {}", crate::text(&dump.stderr));
        assert!(said.contains("blank") && said.contains("membership"), "{said}");
    }
}

#[test]
fn one_voter_without_a_network_is_a_cluster_too() {
    let dir = tempfile::tempdir().unwrap();
    let member = [("QUEEN_RAFT_REPLICATOR", "openraft")];
    for round in 0..3u64 {
        let node = trio::start_alone(dir.path(), &member).unwrap();
        trio::wait_healthy(node.address());
        let body = format!(r#"{{"items":[{{"queue":"q","payload":{round}}}]}}"#);
        node.ask("POST", "/api/v1/push", &body);
        let (status, log) = node.stop();
        assert!(status.success(), "{log:?}");
    }
    let node = trio::start_alone(dir.path(), &member).unwrap();
    trio::wait_healthy(node.address());
    let popped = node.ask("GET", "/api/v1/pop/queue/q?batch=10", "");
    let popped: Value = serde_json::from_str(&popped).unwrap();
    let data: Vec<u64> = popped["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["data"].as_u64().unwrap())
        .collect();
    assert_eq!(data, [0, 1, 2]);
}
