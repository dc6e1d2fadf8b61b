//! Promise 4: damage of a directory is refused with a line that names it and exit code 1, or does no harm; nothing wrong is
//! ever served.
//!
//! Of the rows of the promise those about a cluster's files have no counterpart here: this build has one replicator. Whatever
//! can be wrong with a directory's bytes is the business of `cargo xtask damage`; this is the real program on the named ones.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::dirs::{files, settle};
use crate::program::Program;
use crate::{queen, text};

const SMALL: [(&str, &str); 3] = [
    ("QUEEN_RAFT_SEGMENT_BYTES", "65536"),
    ("QUEEN_RAFT_QLOG_ZSTD_LEVEL", "0"),
    ("QUEEN_RAFT_QLOG_PREALLOC_KB", "0"),
];
/// With it a node that is killed leaves everything above its last durable point.
const NO_POINT: (&str, &str) = ("QUEEN_RAFT_DURABLE_EVERY_MS", "3600000");
/// Messages of each queue: three files.
const MESSAGES: u64 = 24;
/// Where the first record of a log file begins.
const HEADER: usize = 32;

fn settings(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    SMALL.iter().chain(more).copied().collect()
}

fn payload(number: u64) -> Value {
    // Each is different in every byte that is damaged below.
    let text: String = (0..6000_u64)
        .map(|at| {
            let mixed = (number * 6000 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            char::from(b'a' + u8::try_from(mixed % 26).unwrap())
        })
        .collect();
    json!({"number": number, "text": text})
}

fn fill(node: &Program, queues: &[&str], from: u64, count: u64) {
    for number in from..from + count {
        let items: Vec<Value> = queues
            .iter()
            .map(|queue| {
                json!({"queue": queue, "partition": "p",
                    "transactionId": format!("{queue}-{number}"), "payload": payload(number)})
            })
            .collect();
        let answer = node.ask("POST", "/api/v1/push", &json!({ "items": items }).to_string());
        assert_eq!(answer.matches("\"queued\"").count(), queues.len(), "{answer}");
    }
}

/// A directory that was stopped in order: everything is below the durable point.
fn stopped() -> tempfile::TempDir {
    stopped_with(&[])
}

fn stopped_with(layout: &[(&'static str, &'static str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(dir.path(), &settings(layout)).unwrap();
    fill(&node, &["one", "two"], 0, MESSAGES);
    settle(&node, dir.path());
    let (status, log) = node.stop();
    assert!(status.success(), "{log:?}");
    dir
}

/// A directory whose node was killed: everything is above the durable point.
fn killed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(dir.path(), &settings(&[NO_POINT])).unwrap();
    fill(&node, &["one", "two"], 0, MESSAGES);
    drop(node);
    dir
}

/// The record files of a log in order; those without a record left out.
fn log_files(dir: &Path, log: &str) -> Vec<PathBuf> {
    let all = files(&dir.join("qlog").join(log));
    let is_log = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "qlog");
    all.into_iter()
        .filter(|(path, bytes)| is_log(path) && bytes.len() > HEADER)
        .map(|at| at.0)
        .collect()
}

/// Logs of queues, in the order in which they were made.
fn queue_logs(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("qlog")).unwrap().map(Result::unwrap);
    let dirs = entries.filter(|entry| entry.path().is_dir());
    let names = dirs.map(|entry| entry.file_name().into_string().unwrap());
    let mut logs: Vec<String> = names.filter(|name| name != "q0").collect();
    logs.sort_by_key(|name| name[1..].parse::<u64>().unwrap());
    logs
}

/// Changes one bit of a file's byte.
fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// A start ends with exit code 1 and one FATAL line with these words, and changes no byte that it could read before.
fn refuses(dir: &Path, words: &[&str]) {
    let before = files(dir);
    let path = dir.to_str().unwrap();
    let variables = [("QUEEN_RAFT_DIR", path), ("PORT", "0"), ("QUEEN_BIND_ADDR", "127.0.0.1")];
    let mut log = String::new();
    // A supervisor starts it again: what the first one left behind must not turn the refusal into a start.
    for time in ["first", "second"] {
        let output = queen(&[], &[&variables[..], &SMALL].concat());
        log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{time} {words:?}: {log}");
        let fatal: Vec<&str> = log.lines().filter(|line| line.contains("FATAL: ")).collect();
        assert_eq!(fatal.len(), 1, "{time} {words:?}: {log}");
        for word in words {
            assert!(fatal[0].contains(word), "{time} {word:?} in {}", fatal[0]);
        }
    }
    let after = files(dir);
    // What waited for its place and is named by nothing may go.
    let is_waiting = |path: &Path| path.extension().is_some_and(|ext| ext == "tmp");
    for (path, bytes) in before.iter().filter(|(path, _)| !is_waiting(path)) {
        assert!(after.get(path) == Some(bytes), "{} was changed: {log}", path.display());
    }
    let output = queen(&["doctor", path], &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Pops everything of a queue by ones; the numbers, and the status that ended it.
fn drain(node: &Program, queue: &str) -> (Vec<u64>, u16, String) {
    let mut numbers = Vec::new();
    loop {
        let path = format!(
            "/api/v1/pop/queue/{queue}?batch=1&autoAck=true&consumerGroup=g&subscriptionMode=all"
        );
        let (status, body) = node.call("GET", &path, "");
        if status != 200 {
            return (numbers, status, body);
        }
        let answer: Value = serde_json::from_str(&body).unwrap();
        let Some(message) = answer["messages"].get(0) else { return (numbers, status, body) };
        let number = message["data"]["number"].as_u64().unwrap();
        assert_eq!(message["data"], payload(number), "something else was served");
        assert_eq!(message["transactionId"], format!("{queue}-{number}"));
        numbers.push(number);
    }
}

#[test]
fn acceptance_4_a_damaged_record_of_a_sealed_file() {
    // Above the durable point the start reads it.
    let dir = killed();
    let logs = queue_logs(dir.path());
    let sealed = log_files(dir.path(), &logs[0]).remove(0);
    flip(&sealed, 3000);
    refuses(dir.path(), &["damaged record at byte", sealed.to_str().unwrap()]);

    // Below it does not: everything else is served as it is, the place is named when it is read.
    let dir = stopped();
    let logs = queue_logs(dir.path());
    let sealed = log_files(dir.path(), &logs[0]).remove(0);
    let at = std::fs::read(&sealed).unwrap().len() / 2;
    flip(&sealed, at);
    let node =
        Program::start(dir.path(), &settings(&[("QUEEN_QLOG_SCRUB_KB_PER_S", "0")])).unwrap();
    let (two, status, _) = drain(&node, "two");
    assert_eq!((two, status), ((0..MESSAGES).collect(), 204));
    let (one, status, answer) = drain(&node, "one");
    assert_eq!(one, (0..one.len() as u64).collect::<Vec<_>>());
    assert!(one.len() < 10, "{one:?}");
    assert!((500..600).contains(&status), "{status} {answer}");
    let (status, health) = node.call("GET", "/health", "");
    assert_eq!(status, 503, "{health}, after a read was answered {answer}");
    let series = node.ask("GET", "/metrics/prometheus", "");
    assert!(!series.contains("queen_raft_checksum_failures_total 0\n"), "{series}");
    let (_, log) = node.stop();
    let name = sealed.to_str().unwrap();
    let said = |line: &&String| line.contains("damaged record at byte") && line.contains(name);
    assert!(log.iter().any(|line| said(&line) && line.contains("ERROR")), "{log:#?}");
}

#[test]
fn acceptance_4_a_damaged_record_of_an_active_file_before_a_durable_one() {
    let dir = stopped();
    let logs = queue_logs(dir.path());
    let active = log_files(dir.path(), &logs[0]).pop().unwrap();
    assert!(std::fs::metadata(&active).unwrap().len() > 6000, "it has records behind the damage");
    flip(&active, HEADER + 70);
    refuses(dir.path(), &["corruption inside acknowledged data", active.to_str().unwrap()]);
}

#[test]
fn acceptance_4_logs_that_end_before_the_durable_point() {
    for (name, damage) in [
        (
            "shorter by a byte",
            Box::new(|active: &Path| {
                truncate(active, std::fs::metadata(active).unwrap().len() - 1);
            }) as Box<dyn Fn(&Path)>,
        ),
        ("without records", Box::new(|active| truncate(active, HEADER as u64))),
        ("gone", Box::new(|active| std::fs::remove_file(active).unwrap())),
        (
            "its log gone",
            Box::new(|active| {
                std::fs::remove_dir_all(active.parent().unwrap()).unwrap();
            }),
        ),
    ] {
        println!("{name}");
        let dir = stopped();
        let logs = queue_logs(dir.path());
        damage(&log_files(dir.path(), &logs[1]).pop().unwrap());
        refuses(dir.path(), &["acknowledged records are missing", &logs[1]]);
    }
}

#[test]
fn acceptance_4_a_sealed_file_or_a_layout_file_that_is_gone() {
    let dir = stopped();
    let logs = queue_logs(dir.path());
    let sealed = log_files(dir.path(), &logs[0]).remove(0);
    std::fs::remove_file(&sealed).unwrap();
    refuses(dir.path(), &["acknowledged records are missing", sealed.to_str().unwrap(), "is gone"]);

    let layouts: [(&str, &[_]); 2] = [("LANES", &[]), ("SHARDS", &[("QUEEN_QLOG_SHARDS", "2")])];
    for (name, layout) in layouts {
        let dir = stopped_with(layout);
        std::fs::remove_file(dir.path().join("qlog").join(name)).unwrap();
        refuses(dir.path(), &[name, "is missing although logs exist"]);
    }
}

#[test]
fn acceptance_4_a_missing_store_beside_other_missing_files() {
    for is_recorded in [true, false] {
        let dir = stopped();
        let logs = queue_logs(dir.path());
        std::fs::remove_file(log_files(dir.path(), &logs[0]).remove(0)).unwrap();
        std::fs::remove_dir_all(dir.path().join("store")).unwrap();
        if !is_recorded {
            std::fs::remove_file(dir.path().join("qlog/FILES")).unwrap();
        }
        refuses(dir.path(), &["annot re-apply logs", "begins with r00000002.qlog"]);
    }
    let dir = stopped_with(&[("QUEEN_QLOG_LANES", "2")]);
    std::fs::remove_file(dir.path().join("qlog/LANES")).unwrap();
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    refuses(dir.path(), &["LANES", "is missing although logs exist"]);
}

#[test]
fn acceptance_4_copies_of_one_entry_that_disagree() {
    // Two lives that go on from one moment: an entry over both queues has the same number in each and is another one.
    let base = stopped();
    let lives = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (life, more) in lives.iter().zip([1, 3]) {
        for (path, bytes) in files(base.path()) {
            let target = life.path().join(path.strip_prefix(base.path()).unwrap());
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::write(target, bytes).unwrap();
        }
        let node = Program::start(life.path(), &settings(&[NO_POINT])).unwrap();
        let item = |queue: &str, number: u64| {
            json!({"queue": queue, "partition": "p", "transactionId": format!("new-{more}-{number}"),
                "payload": number})
        };
        let items: Vec<Value> = ["one", "two"]
            .iter()
            .flat_map(|queue| (0..more).map(move |number| item(queue, number)))
            .collect();
        node.ask("POST", "/api/v1/push", &json!({ "items": items }).to_string());
        drop(node);
    }
    let logs = queue_logs(base.path());
    let [from, to] =
        [&lives[1], &lives[0]].map(|life| log_files(life.path(), &logs[1]).pop().unwrap());
    std::fs::copy(from, to).unwrap();
    refuses(lives[0].path(), &["the parts of entry", "disagree"]);
}

#[test]
fn acceptance_4_a_damaged_store() {
    let dir = stopped();
    let store = dir.path().join("store/data.mdb");
    let whole = std::fs::read(&store).unwrap();
    // A value: the name of a queue stands in its row.
    let places = whole.windows(3).enumerate().filter(|(_, at)| at == b"two").map(|at| at.0);
    let places: Vec<usize> = places.collect();
    assert!(!places.is_empty());
    for at in places {
        flip(&store, at);
    }
    refuses(dir.path(), &["data.mdb"]);
    std::fs::write(&store, &whole).unwrap();
    // LMDB would map it and end with a signal.
    for len in [whole.len() - 4096, whole.len() / 2, 4096, 1] {
        truncate(&store, len as u64);
        refuses(dir.path(), &["data.mdb"]);
        std::fs::write(&store, &whole).unwrap();
    }
    let node = Program::start(dir.path(), &settings(&[])).unwrap();
    assert_eq!(drain(&node, "two").0.len() as u64, MESSAGES);
}

#[test]
fn acceptance_4_a_missing_store_beside_logs_that_gave_files_back() {
    let dir = tempfile::tempdir().unwrap();
    let often = settings(&[("QUEEN_RAFT_DURABLE_EVERY_MS", "20")]);
    let node = Program::start(dir.path(), &often).unwrap();
    fill(&node, &["one", "two"], 0, MESSAGES);
    let first = log_files(dir.path(), &queue_logs(dir.path())[0]).remove(0);
    node.ask("DELETE", "/api/v1/resources/queues/one", "");
    while first.exists() {
        node.ask("GET", "/health", "");
    }
    assert!(node.stop().0.success());
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    refuses(dir.path(), &["annot re-apply logs"]);
}

#[test]
fn acceptance_4_a_directory_of_another_replicator_or_a_newer_build() {
    let dir = stopped();
    std::fs::create_dir(dir.path().join("raft")).unwrap();
    std::fs::write(dir.path().join("raft/state.json"), "{}").unwrap();
    refuses(dir.path(), &["written by the openraft replicator"]);

    let dir = stopped();
    let logs = queue_logs(dir.path());
    let file = log_files(dir.path(), &logs[0]).remove(0);
    // The digit in the magic is the version.
    flip(&file, 6);
    refuses(dir.path(), &["the header of", file.to_str().unwrap()]);
}

/// What no start needs may be anything.
#[test]
fn acceptance_4_what_is_tolerated() {
    let dir = stopped();
    let sides = files(&dir.path().join("qlog"));
    let sides = sides
        .keys()
        .filter(|path| path.extension().is_some_and(|ext| ext == "qidx" || ext == "qhsh"));
    let mut count = 0;
    for side in sides {
        std::fs::write(side, "garbage").unwrap();
        count += 1;
    }
    assert!(count > 0);
    for name in ["local.db", "dash.db"] {
        std::fs::write(dir.path().join(name), "garbage").unwrap();
    }
    std::fs::remove_file(dir.path().join("store/lock.mdb")).unwrap();
    let node = Program::start(dir.path(), &settings(&[])).unwrap();
    for queue in ["one", "two"] {
        let (numbers, status, answer) = drain(&node, queue);
        assert_eq!((numbers, status), ((0..MESSAGES).collect(), 204), "{answer}");
    }
    assert_eq!(node.call("GET", "/health", "").0, 200);
    assert!(node.stop().0.success());
}
