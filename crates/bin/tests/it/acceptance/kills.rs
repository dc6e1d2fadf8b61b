//! Promise 3: a node that is killed 20 times under load, at random moments, has every write that was acknowledged.
//!
//! Each of four threads owns a partition and pushes numbers to it, one after the other. One without an answer is pushed
//! again under its id until it has one, so in the end a partition must hold each number once and in order. A consumer
//! takes and acknowledges meanwhile: what was acknowledged to it never comes again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

use crate::program::{Program, try_call_at};

const KILLS: u32 = 20;
const PUSHERS: usize = 4;
/// Acknowledged pushes between two kills, at most.
const ACKED_MAX: u64 = 60;
/// Files roll and checkpoints run all the time.
const SETTINGS: [(&str, &str); 3] = [
    ("QUEEN_RAFT_SEGMENT_BYTES", "65536"),
    ("QUEEN_RAFT_DURABLE_EVERY_MS", "50"),
    ("QUEEN_RAFT_QLOG_ZSTD_LEVEL", "0"),
];

#[derive(Default)]
struct Load {
    address: Mutex<String>,
    acked: AtomicU64,
    is_calm: AtomicBool,
}

impl Load {
    /// The answer, when a whole one came.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let address = self.address.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (status, body) = try_call_at(&address, "", (method, path, body)).ok()?;
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(&body).ok()? };
        Some((status, body))
    }

    /// Pushes until nobody kills any more; how many numbers were acknowledged.
    fn push(&self, partition: usize) -> u64 {
        let mut number = 0;
        while !self.is_calm.load(Ordering::SeqCst) {
            let text = "some text that makes files roll ".repeat(20);
            let item = json!({"queue": "q", "partition": format!("p{partition}"),
                "transactionId": format!("{partition}-{number}"),
                "payload": {"number": number, "text": text}});
            let body = json!({ "items": [item] }).to_string();
            // Stored or not: the same id is sent again.
            let Some((201, answer)) = self.ask("POST", "/api/v1/push", &body) else { continue };
            let status = answer[0]["status"].as_str().unwrap();
            assert!(["queued", "duplicate"].contains(&status), "{answer}");
            number += 1;
            self.acked.fetch_add(1, Ordering::SeqCst);
        }
        number
    }

    /// Consumes until nobody kills any more; per partition the number after the last that was acknowledged.
    fn consume(&self) -> BTreeMap<String, u64> {
        let mut settled: BTreeMap<String, u64> = BTreeMap::new();
        while !self.is_calm.load(Ordering::SeqCst) {
            let path = "/api/v1/pop/queue/q?batch=7&leaseSeconds=1&wait=true&timeout=50";
            let Some((200, answer)) = self.ask("GET", path, "") else { continue };
            let messages = answer["messages"].as_array().unwrap();
            for message in messages {
                let (partition, number) = place(message);
                let due = settled.get(&partition).copied().unwrap_or(0);
                assert!(number >= due, "{partition}: {number} came again, {due} was due");
            }
            let acks: Vec<Value> = messages
                .iter()
                .map(|message| {
                    json!({"transactionId": message["transactionId"],
                        "partitionId": message["partitionId"], "leaseId": message["leaseId"],
                        "status": "completed"})
                })
                .collect();
            let body = json!({ "acknowledgments": acks }).to_string();
            let Some((200, answer)) = self.ask("POST", "/api/v1/ack/batch", &body) else {
                continue;
            };
            let answers = answer.as_array().unwrap();
            for (message, answer) in messages.iter().zip(answers) {
                if answer["success"] == true {
                    let (partition, number) = place(message);
                    settled.insert(partition, number + 1);
                }
            }
        }
        settled
    }
}

fn place(message: &Value) -> (String, u64) {
    let partition = message["partition"].as_str().unwrap().to_owned();
    (partition, message["data"]["number"].as_u64().unwrap())
}

/// All numbers that a group gets, per partition in the order in which they came.
fn read_all(load: &Load, group: &str) -> BTreeMap<String, Vec<u64>> {
    let path = format!(
        "/api/v1/pop/queue/q?batch=1000&partitions=8&autoAck=true{}",
        if group.is_empty() {
            String::new()
        } else {
            format!("&consumerGroup={group}&subscriptionMode=all")
        }
    );
    let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    loop {
        let (status, answer) = load.ask("GET", &path, "").unwrap();
        if status == 204 {
            return all;
        }
        assert_eq!(status, 200, "{answer}");
        for message in answer["messages"].as_array().unwrap() {
            let (partition, number) = place(message);
            all.entry(partition).or_default().push(number);
        }
    }
}

#[test]
fn acceptance_3_twenty_kills_under_load_lose_nothing_that_was_acknowledged() {
    let seed = u64::from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos());
    println!("seed {seed}");
    let mut random = seed | 1;
    let mut below = move |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    let dir = tempfile::tempdir().unwrap();
    let load = Load::default();
    let start = || {
        let node = Program::start(dir.path(), &SETTINGS).unwrap();
        *load.address.lock().unwrap_or_else(PoisonError::into_inner) = node.address().to_owned();
        node
    };
    let mut node = Some(start());
    let (pushed, settled) = thread::scope(|scope| {
        let pushers: Vec<_> = (0..PUSHERS)
            .map(|partition| {
                let load = &load;
                scope.spawn(move || load.push(partition))
            })
            .collect();
        let consumer = scope.spawn(|| load.consume());
        for _ in 0..KILLS {
            let until = load.acked.load(Ordering::SeqCst) + below(ACKED_MAX) + 1;
            while load.acked.load(Ordering::SeqCst) < until {
                let has_failed = pushers.iter().any(thread::ScopedJoinHandle::is_finished);
                if has_failed || consumer.is_finished() {
                    // It met what must not be; its own words say what.
                    break;
                }
                thread::yield_now();
            }
            // Between two answers, too.
            (0..below(20_000)).for_each(|_| std::hint::spin_loop());
            node = None;
            node.replace(start());
        }
        load.is_calm.store(true, Ordering::SeqCst);
        let pushed: Vec<u64> = pushers.into_iter().map(|pusher| pusher.join().unwrap()).collect();
        (pushed, consumer.join().unwrap())
    });
    // At rest, a last one.
    drop(node);
    let node = start();
    let all = read_all(&load, "everything");
    for (partition, count) in pushed.iter().enumerate() {
        let name = format!("p{partition}");
        let found = all.get(&name).cloned().unwrap_or_default();
        // A last push may be there without an answer.
        let expected: Vec<u64> = (0..found.len() as u64).collect();
        assert_eq!(found, expected, "{name}, seed {seed}");
        assert!((*count..=count + 1).contains(&(found.len() as u64)), "{name}, seed {seed}");
        assert!(*count > 0, "{name}, seed {seed}");
    }
    assert!(settled.values().sum::<u64>() > 0, "nothing was consumed, seed {seed}");
    let (status, log) = node.stop();
    assert!(status.success(), "{log:?}");
}
