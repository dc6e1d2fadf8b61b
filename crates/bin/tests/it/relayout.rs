//! `queen relayout` on real directories: users find everything as it was, and nothing of the old directory changes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::backup::{noise, to};
use crate::client::Client;
use crate::dirs::{files, settle};
use crate::program::Program;
use crate::{queen, text};

const KEY: (&str, &str) =
    ("QUEEN_ENCRYPTION_KEY", "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0");
/// The lowest that the program takes.
const SEGMENT: (&str, &str) = ("QUEEN_RAFT_SEGMENT_BYTES", "65536");
const QUEUES: [&str; 3] = ["orders", "mail", "secret"];

fn item(queue: &str, n: u32) -> Value {
    json!({"queue": queue, "partition": format!("p{}", n % 5), "transactionId": format!("id-{n}"),
        "payload": {"n": n, "text": noise(n, 3000)}})
}

/// What the node said of each.
fn push(client: &mut Client, queue: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    let items: Vec<Value> = numbers.map(|n| item(queue, n)).collect();
    let answer = client.post("/api/v1/push", &json!({ "items": items }));
    let status = |one: &Value| one["status"].as_str().unwrap().to_owned();
    answer.as_array().unwrap().iter().map(status).collect()
}

/// Every message of a queue, as a group that never was there gets them: partition, transactionId, payload.
fn all(client: &mut Client, queue: &str, group: &str) -> Vec<(String, String, Value)> {
    let path = format!(
        "/api/v1/pop/queue/{queue}?batch=500&partitions=64&consumerGroup={group}&subscriptionMode=all&commitOnDelivery=true"
    );
    let mut found = Vec::new();
    loop {
        let (status, answer) = client.send("GET", &path, "");
        if status == 204 {
            found.sort_by(|a: &(String, String, Value), b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
            return found;
        }
        assert_eq!(status, 200, "{answer}");
        for message in answer["messages"].as_array().unwrap() {
            let of = |name: &str| message[name].as_str().unwrap().to_owned();
            found.push((of("partitionId"), of("transactionId"), message["data"].clone()));
        }
    }
}

fn pop(client: &mut Client, queue: &str) -> Vec<Value> {
    let path = format!(
        "/api/v1/pop/queue/{queue}?batch=3&consumerGroup=workers&subscriptionMode=all&leaseSeconds=3600"
    );
    client.get(&path)["messages"].as_array().unwrap().clone()
}

/// Acknowledges what was popped, perhaps of a node that is gone.
fn ack(client: &mut Client, messages: &[Value]) {
    for message in messages {
        let ack = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
            "leaseId": message["leaseId"], "consumerGroup": "workers", "status": "completed"});
        let answer = client.post("/api/v1/ack", &ack);
        assert_eq!(answer[0]["success"], true, "{answer}");
    }
}

fn relayout(from: &Path, new: &Path, more: &[&str]) -> std::process::Output {
    let arguments = ["relayout", "--from", to(from), "--to", to(new)];
    queen(&[&arguments, more].concat(), &[KEY, SEGMENT])
}

fn switch(dir: &Path, new: &Path) {
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::rename(new, dir).unwrap();
}

fn logs(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir.join("qlog")).unwrap().map(|entry| entry.unwrap());
    let logs = names.filter(|entry| entry.path().is_dir());
    let mut logs: Vec<String> =
        logs.map(|entry| entry.file_name().into_string().unwrap()).collect();
    logs.sort();
    logs
}

#[test]
fn users_find_everything_under_any_layout() {
    let root = tempfile::tempdir().unwrap();
    let (dir, new) = (root.path().join("data"), root.path().join("data.new"));
    let node = Program::start(&dir, &[KEY, SEGMENT]).unwrap();
    let mut client = Client::new(node.address());
    let options = json!({"queue": "secret", "options": {"encryptionEnabled": true}});
    client.post("/api/v1/configure", &options);
    for queue in QUEUES.into_iter().chain(["gone"]) {
        push(&mut client, queue, 0..90);
    }
    client.send("DELETE", "/api/v1/resources/queues/gone", "");
    let mut held = pop(&mut client, "orders");
    assert_eq!(held.len(), 3);
    drop(client);
    assert!(node.stop().0.success());
    let mut next = 90;
    for (shards, of_layout) in
        [("4", "4 shared logs"), ("1", "1 shared log"), ("0", "a log per queue")]
    {
        let before = files(&dir);
        let output = relayout(&dir, &new, &["--shards", shards]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = text(&output.stdout);
        for part in [of_layout, "compared: entry", "a node would start", "To switch", "mv "] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(files(&dir) == before, "the old directory was changed");
        assert!(!root.path().join("data.new.partial").exists());
        let shared = logs(&new).iter().filter(|log| log.len() < 6).count();
        assert_eq!(shared > 0, shards != "0", "{:?}", logs(&new));
        // Once more: it is there, and compared again.
        let made = files(&new);
        let again = relayout(&dir, &new, &["--shards", shards, "--json"]);
        assert_eq!(again.status.code(), Some(0), "{again:?}");
        let document: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(document["made"], false, "{document}");
        assert_eq!(document["newLayout"]["shards"].to_string(), shards, "{document}");
        assert_eq!(document["messages"], next * 3, "{document}");
        assert_eq!(document["doctor"]["clean"], true, "{document}");
        assert!(files(&new) == made);

        switch(&dir, &new);
        let doctor = queen(&["doctor", to(&dir)], &[KEY]);
        assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
        assert!(!text(&doctor.stdout).contains("FINDING"), "{doctor:?}");
        let node = Program::start(&dir, &[KEY, SEGMENT]).unwrap();
        let complaints: Vec<_> = node
            .log
            .iter()
            .filter(|line| line.contains("WARN") || line.contains("ERROR"))
            .collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
        let mut client = Client::new(node.address());
        ack(&mut client, &held);
        for queue in QUEUES {
            let found = all(&mut client, queue, &format!("after-{shards}"));
            let ids: std::collections::BTreeSet<&str> =
                found.iter().map(|(_, id, _)| &**id).collect();
            assert_eq!((found.len(), ids.len()), (next as usize, next as usize), "{queue}");
            for (_, id, data) in &found {
                let n: u32 = id.strip_prefix("id-").unwrap().parse().unwrap();
                assert_eq!(*data, json!({"n": n, "text": noise(n, 3000)}), "{queue} {id}");
            }
            assert!(push(&mut client, queue, 0..next).iter().all(|status| status == "duplicate"));
            let more = push(&mut client, queue, next..next + 30);
            assert!(more.iter().all(|status| status == "queued"), "{more:?}");
        }
        let (status, answer) = client.send("GET", "/api/v1/resources/queues/gone", "");
        assert_eq!(status, 404, "{answer}");
        held = pop(&mut client, "orders");
        assert_eq!(held.len(), 3);
        next += 30;
        drop(client);
        assert!(node.stop().0.success());
    }
}

/// A stopped node's directory with a few megabytes.
fn directory(dir: &Path) {
    let node = Program::start(dir, &[KEY, SEGMENT]).unwrap();
    let mut client = Client::new(node.address());
    for round in 0..10 {
        for queue in QUEUES {
            push(&mut client, queue, round * 50..round * 50 + 50);
        }
    }
    drop(client);
    settle(&node, dir);
    assert!(node.stop().0.success());
}

#[test]
fn a_killed_run_leaves_nothing_that_the_next_one_does_not_finish() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    directory(&dir);
    let before = files(&dir);
    // Each is killed as soon as there is a file of this name: at another moment of its work.
    for (number, name) in ["RELAYOUT", "qlog/RECLAIMED", "qlog/q2/r00000003.qlog", "store/data.mdb"]
        .into_iter()
        .enumerate()
    {
        let new = root.path().join(format!("new-{number}"));
        let partial = root.path().join(format!("new-{number}.partial"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_queen"))
            .args(["relayout", "--from", to(&dir), "--to", to(&new), "--shards", "1"])
            .env_clear()
            .envs([KEY, SEGMENT])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !partial.join(name).exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let output = relayout(&dir, &new, &["--shards", "1"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
        assert!(new.join("store/data.mdb").exists() && !partial.exists(), "{name}");
        assert!(!new.join("RELAYOUT").exists(), "{name}");
        assert!(files(&dir) == before, "{name}: the old directory was changed");
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    directory(&dir);
    let taken = root.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("mine"), b"x").unwrap();
    let before = files(root.path());
    let new = root.path().join("new");
    let refused = |from: &Path, new: &Path, said: &str| {
        let output = relayout(from, new, &["--shards", "2"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(said), "{said} in {output:?}");
        assert!(files(root.path()) == before);
        let left = std::fs::read_dir(root.path()).unwrap().count();
        assert_eq!(left, 2, "{said}");
    };
    refused(&dir, &taken, "is not empty");
    refused(&dir, &dir.join("inside"), "lies in");
    refused(&dir, &dir, "lies in");
    refused(&root.path().join("nowhere"), &new, "is not a directory");
    refused(&dir, &root.path().join("missing/new"), "does not exist");
    refused(&taken, &new, "holds no node's data");
    refused(&dir.join("qlog"), &new, "holds no node's data");
    let other_key = [("QUEEN_ENCRYPTION_KEY", &*"ab".repeat(32)), SEGMENT];
    let arguments = ["relayout", "--from", to(&dir), "--to", to(&new), "--shards", "2"];
    let output = queen(&arguments, &other_key);
    assert!(text(&output.stderr).contains("is not the key"), "{output:?}");
    assert_eq!(relayout(&dir, &new, &["--shards", "4097"]).status.code(), Some(2));
    assert_eq!(relayout(&dir, &new, &["--shards", "0", "--lanes", "65"]).status.code(), Some(2));
    assert_eq!(relayout(&dir, &new, &[]).status.code(), Some(2));
    assert!(files(root.path()) == before);

    // A record that no start reads.
    let sealed: PathBuf = before
        .keys()
        .find(|path| path.extension().is_some_and(|end| end == "qhsh"))
        .unwrap()
        .with_extension("qlog");
    let mut bad = before[&sealed].clone();
    bad[1000] ^= 4;
    std::fs::write(&sealed, &bad).unwrap();
    let output = relayout(&dir, &new, &["--shards", "2"]);
    let said = text(&output.stderr);
    assert!(said.contains(to(&sealed)) && said.contains("damaged record at byte 32 "), "{said}");
    std::fs::write(&sealed, &before[&sealed]).unwrap();
    assert!(files(root.path()) == before);

    // A node at work.
    let node = Program::start(&dir, &[KEY, SEGMENT]).unwrap();
    let output = relayout(&dir, &new, &["--shards", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is in use by another process"), "{output:?}");
    assert!(!new.exists() && node.stop().0.success());
}
