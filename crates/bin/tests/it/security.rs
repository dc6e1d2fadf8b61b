//! What a hostile caller can send to a whole node, and what must not come of it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::client::Client;
use crate::program::Program;

fn start(dir: &Path, variables: &[(&str, &str)]) -> (Program, Client) {
    let node = Program::start(dir, variables).unwrap();
    let client = Client::new(node.address());
    (node, client)
}

fn item(queue: &str, partition: &str, id: &str, payload: &Value) -> Value {
    json!({"queue": queue, "partition": partition, "transactionId": id, "payload": payload})
}

fn push(client: &mut Client, items: &[Value]) -> Value {
    client.post("/api/v1/push", &json!({ "items": items }))
}

fn escaped(name: &str) -> String {
    name.bytes().fold(String::new(), |path, byte| path + &format!("%{byte:02X}"))
}

/// Every file below a directory, links followed nowhere.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path());
        }
    }
    found
}

#[test]
fn names_are_stored_and_returned_and_are_never_part_of_a_path() {
    let outside = tempfile::tempdir().unwrap();
    let dir = outside.path().join("node");
    let (node, mut client) = start(&dir, &[]);
    let long = "n".repeat(410);
    let names = [
        "../../etc/passwd",
        "..",
        ".",
        "/",
        "\\",
        "C:",
        "q0",
        "q/../../x",
        "a\r\nX-Injected: 1",
        "\u{0}",
        "\u{202e}evil",
        "a b+c%2Fd",
        "'; DROP TABLE queues; --",
        "{queue}",
        &long,
    ];
    for name in names {
        // Queue and partition share the budget of a name.
        let partition = if name.len() > 200 { "p" } else { name };
        push(&mut client, &[item(name, partition, name, &json!(name))]);
        let path =
            format!("/api/v1/pop/queue/{}?consumerGroup=g&subscriptionMode=all", escaped(name));
        let popped = client.get(&path);
        assert_eq!(popped["queue"], name);
        assert_eq!(popped["messages"][0]["partition"], partition);
        assert_eq!(popped["messages"][0]["data"], name);
        let detail = client.get(&format!("/api/v1/resources/queues/{}", escaped(name)));
        assert_eq!(detail["name"], name);
    }
    let listed = client.get("/api/v1/resources/queues");
    let listed: BTreeSet<&str> = listed["queues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(listed, names.into_iter().collect());
    let too_long = json!({"items": [item(&"n".repeat(411), "p", "t", &json!(1))]});
    let (status, body) = client.send("POST", "/api/v1/push", &too_long.to_string());
    assert_eq!((status, &body["code"]), (413, &json!("name_too_long")));
    let (status, _) = client.send("GET", "/api/v1/resources/queues/%FF%FE", "");
    assert_eq!(status, 400);
    node.stop();
    let above: Vec<_> = std::fs::read_dir(outside.path()).unwrap().collect();
    assert_eq!(above.len(), 1, "nothing stands beside the directory");
    for file in files(&dir) {
        let name = file.strip_prefix(&dir).unwrap().to_string_lossy().into_owned();
        assert!(
            !name.contains("passwd") && !name.contains("evil") && !name.contains("DROP"),
            "{name}"
        );
    }
}

#[test]
fn one_event_stays_one_line_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    for format in ["false", "true"] {
        let variables = [("RUST_LOG", "trace"), ("QUEEN_LOG_JSON", format)];
        let (node, mut client) = start(dir.path(), &variables);
        let evil = "x\n2026-01-01 FATAL: forged \u{1b}[31mred\u{1b}[0m\r\n";
        push(&mut client, &[item(evil, evil, evil, &json!(evil))]);
        client.send("GET", &format!("/{}", escaped(evil)), "");
        client.send("GET", &format!("/api/v1/messages/1/{}", escaped(evil)), "");
        client.send("POST", "/api/v1/ack", &json!({"transactionId": evil}).to_string());
        client.send("POST", "/api/v1/configure", &json!({"queue": evil, "mode": evil}).to_string());
        let (_, log) = node.stop();
        for line in &log {
            assert!(!line.contains('\u{1b}'), "{line:?}");
            assert!(!line.starts_with("2026-01-01 FATAL"), "{line:?}");
            if format == "true" {
                serde_json::from_str::<Value>(line)
                    .unwrap_or_else(|error| panic!("{error}: {line}"));
            }
        }
    }
}

/// Takes one message for a group; its partition, transactionId and lease.
fn take(client: &mut Client, queue: &str, group: &str) -> (String, String, String) {
    let path =
        format!("/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch=1");
    let message = client.get(&path)["messages"][0].clone();
    let text = |name: &str| message[name].as_str().unwrap().to_owned();
    (text("partitionId"), text("transactionId"), text("leaseId"))
}

#[test]
fn only_the_holder_of_a_lease_can_settle_or_extend_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_node, mut client) = start(dir.path(), &[]);
    push(&mut client, &[item("q", "p", "1", &json!(1)), item("q", "p", "2", &json!(2))]);
    let (partition, id, lease) = take(&mut client, "q", "g");
    let (_, _, others) = take(&mut client, "q", "h");
    assert_ne!(lease, others);
    let mut guessed = lease.clone().into_bytes();
    let last = guessed.last_mut().unwrap();
    *last = if *last == b'0' { b'1' } else { b'0' };
    let guessed = String::from_utf8(guessed).unwrap();
    for stolen in [&guessed, &others, "00000000-0000-7000-8000-000000000000", "nonsense"] {
        for status in ["completed", "failed", "retry", "dlq"] {
            let ack = json!({"transactionId": id, "partitionId": partition, "leaseId": stolen,
                "consumerGroup": "g", "status": status});
            let answer = client.post("/api/v1/ack", &ack);
            assert_eq!(answer[0]["success"], false, "{stolen} {status}");
            assert!(answer[0]["error"].as_str().unwrap().contains("lease"), "{answer}");
            let mut operation = ack;
            operation["type"] = json!("ack");
            let push = json!({"type": "push", "queue": "out", "payload": 1});
            let bundle = json!({"operations": [operation, push]});
            let answer = client.post("/api/v1/transaction", &bundle);
            assert_eq!(
                (&answer["success"], &answer["reason"]),
                (&json!(false), &json!("rejected_ack"))
            );
        }
    }
    for stolen in [&guessed, "nonsense"] {
        let answer =
            client.post(&format!("/api/v1/lease/{stolen}/extend"), &json!({"seconds": 600}));
        assert_eq!((&answer["success"], &answer["renewed"]), (&json!(false), &json!(0)));
    }
    let (status, _) = client.send("GET", "/api/v1/resources/queues/out", "");
    assert_eq!(status, 404, "no bundle left anything");
    let ack = json!({"transactionId": id, "partitionId": partition, "leaseId": lease,
        "consumerGroup": "g"});
    assert_eq!(client.post("/api/v1/ack", &ack)[0]["success"], true, "the lease was not touched");
    // Lease ids differ in bits that a caller cannot foresee.
    let tails: BTreeSet<String> = (0..50)
        .map(|n| {
            push(&mut client, &[item("r", &format!("p{n}"), "1", &json!(1))]);
            take(&mut client, "r", "g").2[19..].to_owned()
        })
        .collect();
    assert_eq!(tails.len(), 50);
}

#[test]
fn parameters_beyond_their_range_are_clamped() {
    let dir = tempfile::tempdir().unwrap();
    let (_node, mut client) = start(dir.path(), &[]);
    push(&mut client, &[item("q", "p", "1", &json!(1))]);
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&wait=true";
    for query in [
        "timeout=-1&batch=9223372036854775808",
        "timeout=-1&partitions=0&leaseSeconds=99999999999999999999",
        "timeout=0&batch=-5&partitions=-9223372036854775809",
    ] {
        let (status, _) = client.send("GET", &format!("{path}&{query}"), "");
        assert!(status == 200 || status == 204, "{query}: {status}");
    }
    for query in ["timeout=1e18", "batch=1.0", "partitions=", "leaseSeconds=0x1"] {
        let (status, body) = client.send("GET", &format!("{path}&{query}"), "");
        assert_eq!((status, &body["success"]), (400, &json!(false)), "{query}");
    }
}

#[test]
fn a_client_that_left_holds_nothing_and_the_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let (node, mut client) = start(dir.path(), &[]);
    let wait = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&wait=true&timeout=60000";
    let head = format!("GET {wait} HTTP/1.1\r\nHost: q\r\n\r\n");
    let parked: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(node.address()).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    // Half a head, and a body that does not come: neither is in anybody's way.
    let stuck: Vec<TcpStream> =
        ["GET /health HT", "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 9\r\n\r\n{"]
            .iter()
            .cycle()
            .take(100)
            .map(|sent| {
                let mut stream = TcpStream::connect(node.address()).unwrap();
                stream.write_all(sent.as_bytes()).unwrap();
                stream
            })
            .collect();
    drop(parked);
    push(&mut client, &[item("q", "p", "1", &json!(1))]);
    // None of those who left may have taken it; one that was not noticed yet gives it back.
    let message = client.get(wait);
    assert_eq!(message["messages"][0]["transactionId"], "1");
    assert_eq!(message["messages"][0]["deliveryAttempt"], 1);
    drop(stuck);
    // A connection whose framing is wrong is answered and closed, and its rest is not read as a request.
    let mut stream = TcpStream::connect(node.address()).unwrap();
    let smuggled = "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nDELETE /api/v1/resources/queues/q HTTP/1.1\r\nHost: q\r\n\r\n";
    stream.write_all(smuggled.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert_eq!(client.get("/api/v1/resources/queues/q")["name"], "q");
}

#[test]
fn a_body_that_does_not_come_keeps_no_other_write_out() {
    let dir = tempfile::tempdir().unwrap();
    let (node, mut client) = start(dir.path(), &[("QUEEN_RAFT_ADMIT_MAX_MB", "1")]);
    let mut open = Vec::new();
    for path in ["/api/v1/push", "/api/v1/transaction"] {
        // More than all of the room together, and one alone.
        for bytes in [200_000, 200_000, 200_000, 200_000, 2_000_000] {
            let mut stream = TcpStream::connect(node.address()).unwrap();
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: q\r\nContent-Length: {bytes}\r\n\r\n{{");
            stream.write_all(head.as_bytes()).unwrap();
            open.push(stream);
        }
    }
    for id in 0..20 {
        let answer = push(&mut client, &[item("q", "p", &id.to_string(), &json!(1))]);
        assert_eq!(answer[0]["status"], "queued", "{answer}");
    }
    // They hold on until the end of the test.
    assert_eq!(open.len(), 10);
}
