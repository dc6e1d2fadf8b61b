//! A real node on a real disk, with LMDB and over HTTP: no byte of a payload at rest, and only its own key serves.

use std::path::{Path, PathBuf};

use crate::program::{Program, field};

const MARKER: &str = "attack-at-dawn";

/// Every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// The files that hold a text.
fn holders(dir: &Path, text: &str) -> Vec<PathBuf> {
    let has = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    files(dir).into_iter().filter(has).collect()
}

fn push(node: &Program, id: &str, payload: &str) {
    let item = format!(
        r#"{{"items":[{{"queue":"q","partition":"p","transactionId":"{id}","payload":{payload}}}]}}"#
    );
    assert!(node.ask("POST", "/api/v1/push", &item).contains("queued"));
}

fn encryption_counts(node: &Program) -> Vec<String> {
    let page = node.ask("GET", "/metrics/prometheus", "");
    page.lines()
        .filter(|line| line.starts_with("queen_encryption_total{"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn an_encrypted_queue_keeps_its_payloads_from_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let key = "00112233445566778899AABBCCDDEEFF".repeat(2);
    let with_key = [("QUEEN_ENCRYPTION_KEY", &*key)];
    let node = Program::start(dir, &with_key).unwrap();
    let options = r#"{"queue":"q","options":{"encryptionEnabled":true,"retryLimit":0}}"#;
    node.ask("POST", "/api/v1/configure", options);
    let short = format!(r#"{{"order":"{MARKER}"}}"#);
    let large = format!(r#"{{"orders":"{}"}}"#, MARKER.repeat(30_000));
    push(&node, "dead", &short);
    push(&node, "live", &large);
    let popped = node.ask("GET", "/api/v1/pop/queue/q?batch=1", "");
    assert!(popped.contains(&short), "{popped}");
    let partition = field(&popped, "partitionId");
    let ack = format!(
        r#"{{"transactionId":"dead","partitionId":"{partition}","leaseId":"{}","status":"failed"}}"#,
        field(&popped, "leaseId")
    );
    node.ask("POST", "/api/v1/ack", &ack);
    assert!(node.ask("GET", "/api/v1/dlq", "").contains(&short));
    let counts = encryption_counts(&node).join("\n");
    for outcome in ["sealed\"} 2", "opened\"} 2", "failed\"} 0"] {
        assert!(counts.contains(outcome), "{outcome}: {counts}");
    }
    let (status, log) = node.stop();
    assert!(status.success());
    let log = log.join("\n");
    assert!(log.contains("QUEEN_ENCRYPTION_KEY=<set:64 chars>"), "{log}");
    assert!(!log.contains(&key[..16]) && !log.contains(MARKER), "{log}");
    assert_eq!(holders(dir, MARKER), Vec::<PathBuf>::new());
    let envelopes = holders(dir, "authTag");
    assert!(envelopes.iter().any(|path| path.ends_with("store/data.mdb")), "{envelopes:?}");

    let other = key.replace('0', "f");
    for variables in [&[("QUEEN_ENCRYPTION_KEY", &*other)][..], &[]] {
        let log = Program::start(dir, variables).expect_err("it serves");
        let line = log.lines().last().unwrap();
        assert!(line.contains("FATAL: QUEEN_ENCRYPTION_KEY is not"), "{log}");
        assert!(!log.contains(&other[..16]), "{log}");
    }

    let node = Program::start(dir, &with_key).unwrap();
    assert!(node.ask("GET", "/api/v1/dlq", "").contains(&short));
    let path = format!("/api/v1/messages/{partition}/live");
    let detail = node.ask("GET", &path, "");
    assert!(detail.contains(&large) && detail.contains(r#""isEncrypted":true"#));
    assert!(node.ask("GET", "/api/v1/pop/queue/q?batch=10", "").contains(&large));
    assert!(node.stop().0.success());

    // Somebody removed the mark: the messages do not open, and that is said.
    std::fs::remove_file(dir.join("ENCRYPTION")).unwrap();
    let node = Program::start(dir, &[("QUEEN_ENCRYPTION_KEY", &*other)]).unwrap();
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all";
    let (status, answer) = node.call("GET", path, "");
    assert_eq!(status, 500, "{answer}");
    assert!(answer.contains("queue q, partition p: the message at offset 0"), "{answer}");
    assert!(!answer.contains("authTag"), "{answer}");
    while node.call("GET", "/health", "").0 != 503 {
        std::thread::yield_now();
    }
    let counts = encryption_counts(&node).join("\n");
    assert!(!counts.contains("failed\"} 0"), "{counts}");
    let (_, log) = node.stop();
    let errors: Vec<_> = log.iter().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("partition p: the message at offset 0"), "{errors:?}");
}

#[test]
fn a_node_without_a_key_says_that_it_stores_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let warnings = |log: &[String]| log.iter().filter(|line| line.contains("plain text")).count();
    let node = Program::start(dir.path(), &[]).unwrap();
    for queue in ["q", "r"] {
        let options = format!(r#"{{"queue":"{queue}","options":{{"encryptionEnabled":true}}}}"#);
        node.ask("POST", "/api/v1/configure", &options);
    }
    push(&node, "1", &format!("\"{MARKER}\""));
    let (_, log) = node.stop();
    assert_eq!(warnings(&log), 1, "{log:?}");
    assert!(!holders(dir.path(), MARKER).is_empty());
    let node = Program::start(dir.path(), &[]).unwrap();
    assert!(node.ask("GET", "/api/v1/pop/queue/q", "").contains(MARKER));
    let (_, log) = node.stop();
    assert_eq!(warnings(&log), 1, "{log:?}");
}
