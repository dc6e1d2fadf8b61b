//! Not of the clients' tests: what an answer and the node's memory hold at most, whatever is asked for.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::{Rig, all_succeed};
use crate::client::Client;
use crate::program::Program;

const MIB: usize = 1 << 20;

/// Pushes a payload of this many bytes that compresses to next to nothing.
fn push_large(rig: &mut Rig, partition: &str, id: usize, bytes: usize) {
    let items = json!([{"queue": "q", "partition": partition, "transactionId": format!("{partition}-{id}"),
        "payload": {"id": id, "text": "x".repeat(bytes)}}]);
    let answer = rig.client.post("/api/v1/push", &json!({ "items": items }));
    assert_eq!(answer[0]["status"], "queued", "{answer}");
}

fn bytes_of(messages: &[Value]) -> usize {
    messages.iter().map(|message| message["data"].to_string().len()).sum()
}

/// All messages of a queue come, in order, in answers of a bounded size; returns the number of answers.
fn drain_bounded(rig: &mut Rig, query: &str, partitions: usize, of_each: usize) -> usize {
    let mut answers = 0;
    let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    loop {
        let messages = rig.pop("q", query);
        if messages.is_empty() {
            break;
        }
        answers += 1;
        assert!(bytes_of(&messages) <= 10 * MIB, "{}", bytes_of(&messages));
        assert!(all_succeed(&rig.ack(None, &messages, "completed")));
        for message in messages {
            let partition = message["partition"].as_str().unwrap().to_owned();
            seen.entry(partition).or_default().push(message["data"]["id"].as_u64().unwrap());
        }
    }
    assert_eq!(seen.len(), partitions);
    for (partition, ids) in seen {
        assert_eq!(ids, (0..of_each as u64).collect::<Vec<_>>(), "{partition}");
    }
    answers
}

#[test]
fn a_pop_of_many_large_messages_is_several() {
    let mut rig = Rig::new();
    for partition in 0..16 {
        for id in 0..2 {
            push_large(&mut rig, &format!("p{partition}"), id, MIB);
        }
    }
    let answers = drain_bounded(&mut rig, "batch=10000&partitions=64", 16, 2);
    assert!(answers >= 3, "{answers}");
}

#[test]
fn a_pop_of_one_partition_counts_what_is_decompressed() {
    let mut rig = Rig::new();
    let payload = "x".repeat(MIB / 10);
    let items: Vec<Value> = (0..300)
        .map(|id| json!({"queue": "q", "partition": "p", "payload": {"id": id, "text": payload}}))
        .collect();
    rig.client.post("/api/v1/push", &json!({ "items": items }));
    let answers = drain_bounded(&mut rig, "batch=10000", 1, 300);
    assert!(answers >= 3, "{answers}");
}

#[test]
fn a_conflating_pop_of_many_large_messages_is_several() {
    let mut rig = Rig::new();
    for partition in 0..12 {
        push_large(&mut rig, &format!("p{partition}"), 0, MIB);
    }
    let query = "consumerGroup=g&subscriptionMode=all&conflation=true&batch=1000";
    let mut seen = 0;
    let mut answers = 0;
    loop {
        let messages = rig.pop("q", query);
        if messages.is_empty() {
            break;
        }
        answers += 1;
        seen += messages.len();
        assert!(bytes_of(&messages) <= 10 * MIB);
        assert!(all_succeed(&rig.ack(Some("g"), &messages, "completed")));
    }
    assert_eq!(seen, 12);
    assert!(answers >= 2, "{answers}");
}

#[test]
fn a_conflating_group_takes_the_newest_also_without_a_lease() {
    let mut rig = Rig::new();
    let registering = "consumerGroup=g&subscriptionMode=all&conflation=true";
    rig.push("q", "p", 0..1);
    let first = rig.pop("q", registering);
    assert!(all_succeed(&rig.ack(Some("g"), &first, "completed")));
    rig.push("q", "p", 1..10);
    let answer = rig.client.get("/api/v1/pop/queue/q?consumerGroup=g&autoAck=true&batch=100");
    assert_eq!(answer["conflation"], true, "{answer}");
    let ids: Vec<&Value> = answer["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["data"]["id"])
        .collect();
    assert_eq!(ids, [9]);
    let depth = rig.client.get("/api/v1/resources/queues/q/depth?group=g");
    assert_eq!(depth["pending"], 0, "{depth}");
}

#[test]
fn a_page_of_large_dead_letters_is_short_and_the_next_goes_on() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"deadLetterQueue": true}));
    for id in 0..12 {
        push_large(&mut rig, "p", id, MIB);
    }
    let mut settled = 0;
    while settled < 12 {
        let messages = rig.pop("q", "batch=100");
        assert!(all_succeed(&rig.ack(None, &messages, "dlq")));
        settled += messages.len();
    }
    let mut shown = Vec::new();
    while shown.len() < 12 {
        let page =
            rig.client.get(&format!("/api/v1/dlq?queue=q&limit=1000&offset={}", shown.len()));
        assert_eq!(page["total"], 12);
        let rows = page["messages"].as_array().unwrap();
        assert!(!rows.is_empty() && bytes_of(rows) <= 9 * MIB);
        shown.extend(rows.iter().map(|row| row["data"]["id"].as_u64().unwrap()));
    }
    shown.sort_unstable();
    assert_eq!(shown, (0..12).collect::<Vec<_>>());
}

/// Bytes of an answer's body, and the body.
fn measured(rig: &Rig, method: &str, path: &str, body: &str) -> (usize, Value) {
    let mut stream = std::net::TcpStream::connect(rig.node.address()).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: q\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 2") || head.starts_with("HTTP/1.1 4"), "{head}");
    (body.len(), serde_json::from_str(body).unwrap_or_default())
}

/// A name of control characters, which take six bytes each in JSON.
fn hostile_name() -> String {
    "\u{1}".repeat(190)
}

#[test]
fn a_pop_counts_names_and_ids_as_they_are_written() {
    let mut rig = Rig::new();
    let name = hostile_name();
    let items: Vec<Value> = (0..10_000)
        .map(|id| {
            json!({"queue": "q", "partition": name, "payload": id,
                "transactionId": format!("{id}{}", "\u{2}".repeat(300))})
        })
        .collect();
    rig.client.post("/api/v1/push", &json!({ "items": items }));
    let group = "%02".repeat(190);
    let path = format!(
        "/api/v1/pop/queue/q?consumerGroup={group}&subscriptionMode=all&batch=1000000&autoAck=true"
    );
    let mut seen = 0;
    loop {
        let (bytes, answer) = measured(&rig, "GET", &path, "");
        let Some(messages) = answer["messages"].as_array() else { break };
        assert!(!messages.is_empty() && bytes <= 8 * MIB, "{bytes} {}", messages.len());
        for message in messages {
            assert_eq!(message["data"], seen);
            seen += 1;
        }
    }
    assert_eq!(seen, 10_000);
}

#[test]
fn a_page_of_letters_counts_reasons_as_they_are_written() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"deadLetterQueue": true}));
    rig.push("q", "p", 0..500);
    let messages = rig.pop("q", "batch=500");
    let acks: Vec<Value> = messages
        .iter()
        .map(|message| {
            json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
                "leaseId": message["leaseId"], "status": "dlq", "error": "\u{1}".repeat(8000)})
        })
        .collect();
    rig.client.post("/api/v1/ack/batch", &json!({ "acknowledgments": acks }));
    let mut shown = 0;
    while shown < 500 {
        let path = format!("/api/v1/dlq?queue=q&limit=1000&offset={shown}");
        let (bytes, page) = measured(&rig, "GET", &path, "");
        let rows = page["messages"].as_array().unwrap().len();
        assert!(rows > 0 && bytes <= 16 * MIB, "{bytes}");
        shown += rows;
    }
    assert_eq!(shown, 500);
}

#[test]
fn positions_that_would_be_too_much_are_refused() {
    let mut rig = Rig::new();
    rig.push("q", "p", 0..1);
    let position = json!({"queue": "q", "partition": "p", "consumerGroup": "g", "offset": 0,
        "metadata": "\u{1}".repeat(4096)});
    let done = rig.client.post("/api/v1/transaction", &json!({ "positions": [position] }));
    assert_eq!(done["success"], true, "{done}");
    let ask = |count: usize| {
        let entry = json!({"queue": "q", "partition": "p"});
        json!({"consumerGroup": "g", "entries": vec![entry; count]}).to_string()
    };
    let path = "/api/v1/consumer-groups/positions";
    let (_, answer) = measured(&rig, "POST", path, &ask(5000));
    assert!(answer["error"].as_str().unwrap().contains("fewer than"), "{answer}");
    let (bytes, answer) = measured(&rig, "POST", path, &ask(500));
    assert_eq!(answer["entries"].as_array().map(Vec::len), Some(500));
    assert!(bytes <= 16 * MIB, "{bytes}");
}

#[test]
fn changed_partitions_with_long_names_come_page_by_page() {
    let mut rig = Rig::new();
    let items: Vec<Value> = (0..1000)
        .map(|at| json!({"queue": "q", "partition": format!("{}{at}", hostile_name()), "payload": 1}))
        .collect();
    rig.client.post("/api/v1/push", &json!({ "items": items }));
    let entries = vec![json!({"queue": "q"}); 64];
    let body = json!({ "entries": entries }).to_string();
    let (bytes, answer) = measured(&rig, "POST", "/api/v1/partitions/changed", &body);
    assert!(bytes <= 9 * MIB, "{bytes}");
    for entry in answer["entries"].as_array().unwrap() {
        assert!(!entry["partitions"].as_array().unwrap().is_empty() && entry["next"].is_string());
    }
}

#[test]
fn a_long_reason_is_cut_and_a_long_note_refused() {
    let mut rig = Rig::new();
    rig.configure("q", &json!({"deadLetterQueue": true}));
    rig.push("q", "p", 0..1);
    let message = rig.pop("q", "").remove(0);
    let ack = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
        "leaseId": message["leaseId"], "status": "dlq", "error": "long ".repeat(MIB)});
    assert_eq!(rig.client.post("/api/v1/ack", &ack)[0]["dlq"], true);
    let letters = rig.letters("q");
    let reason = letters[0]["errorMessage"].as_str().unwrap();
    assert!(reason.starts_with("long long ") && reason.ends_with('…') && reason.len() <= 8192);

    let position = json!({"queue": "q", "partition": "p", "consumerGroup": "g", "offset": 1,
        "metadata": "m".repeat(5000)});
    let answer =
        rig.client.post("/api/v1/transaction", &json!({"operations": [], "positions": [position]}));
    assert_eq!(answer["success"], false, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("metadata of 5000 bytes"), "{answer}");
}

/// Waits until the node answers a push with this status.
fn push_until(client: &mut Client, wanted: u16) -> Value {
    for id in 0.. {
        let body = format!(
            "{{\"items\":[{{\"queue\":\"q\",\"partition\":\"extra\",\"transactionId\":\"{wanted}-{id}\",\"payload\":1}}]}}"
        );
        let (status, answer) = client.send("POST", "/api/v1/push", &body);
        if status == wanted {
            return answer;
        }
    }
    unreachable!("the numbers do not end")
}

#[test]
fn a_full_disk_refuses_what_grows_and_serves_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(Path::new(dir.path()), &[]).unwrap();
    let mut client = Client::new(node.address());
    let items: Vec<Value> =
        (0..3).map(|id| json!({"queue": "q", "partition": "p", "payload": {"id": id}})).collect();
    client.post("/api/v1/push", &json!({ "items": items }));
    assert!(node.stop().0.success());

    // Every volume is fuller than this.
    let full = [("QUEEN_RAFT_DISK_HIGH_PCT", "1"), ("QUEEN_RAFT_DISK_CHECK_MS", "10")];
    let node = Program::start(Path::new(dir.path()), &full).unwrap();
    let mut client = Client::new(node.address());
    let refusal = push_until(&mut client, 507);
    assert_eq!(refusal["code"], "storage_full", "{refusal}");
    let operation = json!({"type": "push", "items": [{"queue": "q", "payload": 1}]});
    let body = json!({"operations": [operation]}).to_string();
    assert_eq!(client.send("POST", "/api/v1/transaction", &body).0, 507);

    let popped = client.get("/api/v1/pop/queue/q/partition/p?batch=2");
    let ack = |message: &Value| {
        json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
            "leaseId": message["leaseId"]})
    };
    assert_eq!(client.post("/api/v1/ack", &ack(&popped["messages"][0]))[0]["success"], true);
    let mut operation = ack(&popped["messages"][1]);
    operation["type"] = json!("ack");
    let done = client.post("/api/v1/transaction", &json!({"operations": [operation]}));
    assert_eq!(done["success"], true, "{done}");
    let (status, health) = client.send("GET", "/health", "");
    assert_eq!(status, 200, "{health}");
    let series = node.ask("GET", "/metrics/prometheus", "");
    assert!(series.contains("queen_raft_storage_full 1"));
    assert_eq!(client.send("DELETE", "/api/v1/resources/queues/q", "").0, 200);
    assert!(node.stop().0.success());
}

#[test]
fn damage_that_nobody_reads_is_found_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let small = [("QUEEN_RAFT_SEGMENT_BYTES", "65536"), ("QUEEN_RAFT_QLOG_ZSTD_LEVEL", "0")];
    let node = Program::start(Path::new(dir.path()), &small).unwrap();
    let mut client = Client::new(node.address());
    for id in 0..4 {
        let text = "x".repeat(50_000);
        let item = json!({"queue": "q", "payload": {"id": id, "text": text}});
        client.post("/api/v1/push", &json!({ "items": [item] }));
    }
    let log = std::fs::read_dir(dir.path().join("qlog"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("r00000001.qlog"))
        .find(|path| std::fs::metadata(path).is_ok_and(|file| file.len() > 60_000))
        .unwrap();
    // Without its side files the next start would read the file, and refuse.
    while ["qidx", "qhsh"].iter().any(|side| !log.with_extension(side).exists()) {
        client.get("/health");
    }
    assert!(node.stop().0.success());

    let mut bytes = std::fs::read(&log).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&log, &bytes).unwrap();

    let node = Program::start(Path::new(dir.path()), &small).unwrap();
    let mut client = Client::new(node.address());
    let health = loop {
        let (status, health) = client.send("GET", "/health", "");
        if status == 503 {
            break health;
        }
    };
    let text = health.to_string();
    assert!(text.contains("r00000001.qlog, byte 32: "), "{text}");
    // The rest is served.
    assert_eq!(push_until(&mut client, 201)[0]["status"], "queued");
    assert!(node.stop().0.success());
}
