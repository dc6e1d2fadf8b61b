//! `queen tail`.

use std::collections::BTreeMap;
use std::sync::mpsc::TryRecvError;

use serde_json::Value;

use super::relay::Relay;
use super::{Fresh, Running};
use crate::program::Program;

/// Partition, offset and payload of a printed message.
fn fields(line: &str) -> (&str, u64, &str) {
    let fields: Vec<&str> = line.split('\t').collect();
    (fields[0], fields[1].parse().unwrap(), fields[3])
}

#[test]
fn a_tail_from_the_start_prints_everything_once_and_then_what_comes() {
    let fresh = Fresh::new(&[]);
    for partition in ["a", "b"] {
        fresh.push("q", partition, &["0", "1"]);
    }
    let tail = Running::start(&fresh.url(), &["tail", "q", "--from", "start", "--count", "9"]);
    let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut take = |line: &str| {
        let (partition, offset, payload) = fields(line);
        assert_eq!(payload, offset.to_string());
        seen.entry(partition.to_owned()).or_default().push(offset);
    };
    for _ in 0..4 {
        take(&tail.line());
    }
    fresh.push("q", "a", &["2"]);
    take(&tail.line());
    // A partition that was not there.
    fresh.push("q", "c", &["0", "1"]);
    take(&tail.line());
    take(&tail.line());
    fresh.push("q", "b", &["2", "3", "4"]);
    let (status, rest) = tail.end();
    assert!(status.success());
    assert_eq!(rest.len(), 2);
    for line in &rest {
        take(line);
    }
    let seen: Vec<_> = seen.values().map(|offsets| &offsets[..]).collect();
    assert_eq!(seen, [&[0, 1, 2][..], &[0, 1, 2, 3], &[0, 1]]);
    // Nobody's cursor moved.
    assert!(fresh.run(&["pop", "q", "--partition", "a"]).printed().starts_with("a\t0\t"));
}

#[test]
fn a_tail_from_the_end_prints_what_comes_only() {
    for pinned in [&[][..], &["--partition", "p"]] {
        let fresh = Fresh::new(&[]);
        fresh.push("q", "p", &["\"old\"", "\"old\""]);
        let arguments = [&["tail", "q", "--json", "--count", "5"], pinned].concat();
        let tail = Running::start(&fresh.url(), &arguments);
        // It does not say when it has begun: messages come until it has seen one.
        let first = loop {
            fresh.push("q", "p", &["\"new\""]);
            match tail.out.try_recv() {
                Ok(line) => break line,
                Err(end) => assert_eq!(end, TryRecvError::Empty),
            }
        };
        fresh.push("q", "p", &["\"new\"", "\"new\"", "\"new\"", "\"new\""]);
        let (status, rest) = tail.end();
        assert!(status.success());
        let rows: Vec<Value> = std::iter::once(&first)
            .chain(&rest)
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let begin = rows[0]["offset"].as_u64().unwrap();
        assert!(begin >= 2);
        for (row, offset) in rows.iter().zip(begin..) {
            assert_eq!((&row["offset"], &row["payload"]), (&offset.into(), &"new".into()));
            assert_eq!((&row["partition"], row["ts"].is_string()), (&"p".into(), true));
            assert_eq!(row["transactionId"].as_str().unwrap().len(), 36);
        }
        assert_eq!(rows.len(), 5);
    }
}

#[test]
fn a_tail_from_a_time() {
    let fresh = Fresh::new(&[]);
    fresh.push("q", "a", &["0"]);
    fresh.push("q", "b", &["0"]);
    fresh.push("q", "a", &["1"]);
    let all = fresh.run(&["tail", "q", "--from", "2001-01-01", "--json", "--count", "3"]);
    let rows = all.printed().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut times: Vec<_> = rows.map(|row| row["ts"].as_str().unwrap().to_owned()).collect();
    times.sort();
    for (partition, count, expected) in [
        (&[][..], "2", &[("a", 1, "1"), ("b", 0, "0")][..]),
        (&["--partition", "a"], "1", &[("a", 1, "1")]),
    ] {
        let arguments = [&["tail", "q", "--from", &times[1], "--count", count], partition].concat();
        let done = fresh.run(&arguments);
        let mut found: Vec<_> = done.printed().lines().map(fields).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
    let refused = fresh.run(&["tail", "q", "--from", "2026-13-45"]);
    assert!(refused.failed().starts_with("--from 2026-13-45: "), "{refused:?}");
    assert_eq!(fresh.run(&["tail", "q", "--from", "now"]).code, Some(2));
    assert!(fresh.run(&["tail", "r"]).failed().starts_with("there is no queue r: "));
    let pinned = fresh.run(&["tail", "r", "--partition", "a"]);
    assert!(pinned.failed().starts_with("there is no queue r: "), "{pinned:?}");
}

#[test]
fn a_tail_waits_in_the_fetch_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(dir.path(), &[]).unwrap();
    let push = |node: &Program, payload: &str| {
        let item = format!(r#"{{"items":[{{"queue":"q","partition":"p","payload":{payload}}}]}}"#);
        node.ask("POST", "/api/v1/push", &item);
    };
    push(&node, "0");
    let relay = Relay::new(node.address(), &[]);
    let arguments = ["tail", "q", "--partition", "p", "--from", "start", "--count", "3"];
    let tail = Running::start(&relay.url(), &arguments);
    assert_eq!(fields(&tail.line()), ("p", 0, "0"));
    push(&node, "1");
    assert_eq!(fields(&tail.line()), ("p", 1, "1"));
    // Where it begins, one message, one message: each fetch was a wait.
    let fetches: Vec<_> = (0..3).map(|_| relay.next()).collect();
    assert!(fetches[0].head.starts_with("POST /api/v1/fetch/offsets "), "{fetches:?}");
    for (fetch, offset) in fetches[1..].iter().zip(0..) {
        assert!(fetch.head.starts_with("POST /api/v1/fetch "), "{fetch:?}");
        let body: Value = serde_json::from_str(&fetch.body).unwrap();
        assert_eq!(
            (&body["maxWaitMs"], &body["entries"][0]["offset"]),
            (&20_000.into(), &offset.into())
        );
    }
    relay.point_to(None);
    assert!(node.stop().0.success());
    let remark = tail.remark();
    assert!(remark.contains("trying for 120 seconds"), "{remark}");
    let node = Program::start(dir.path(), &[]).unwrap();
    relay.point_to(Some(node.address()));
    push(&node, "\"\u{9b}2J\"");
    let (status, rest) = tail.end();
    assert!(status.success());
    assert_eq!(
        rest.iter().map(|line| fields(line)).collect::<Vec<_>>(),
        [("p", 2, r#""\u009b2J""#)]
    );
}

#[test]
fn a_tail_of_a_queue_that_was_made_again_begins_again() {
    let fresh = Fresh::new(&[]);
    let relay = Relay::new(fresh.node.address(), &[]);
    fresh.push("q", "p", &["0", "1", "2"]);
    let tail = Running::start(&relay.url(), &["tail", "q", "--from", "start", "--count", "5"]);
    for offset in 0..3 {
        assert_eq!(fields(&tail.line()).1, offset);
    }
    // It must not meet the moment between: then the queue is not there.
    relay.point_to(None);
    assert!(tail.remark().contains("does not answer any more"));
    fresh.node.ask("DELETE", "/api/v1/resources/queues/q", "");
    fresh.push("q", "p", &["\"a\"", "\"b\""]);
    relay.point_to(Some(fresh.node.address()));
    let (status, rest) = tail.end();
    assert!(status.success());
    let found: Vec<_> = rest.iter().map(|line| fields(line)).collect();
    assert_eq!(found, [("p", 0, "\"a\""), ("p", 1, "\"b\"")]);
}

#[test]
fn a_tail_reads_many_partitions_and_large_messages() {
    let fresh = Fresh::new(&[]);
    let names: Vec<String> = (0..1100).map(|n| format!("p-{n}")).collect();
    let item = |name: &String| format!(r#"{{"queue":"q","partition":"{name}","payload":1}}"#);
    let items: Vec<String> = names.iter().map(item).collect();
    fresh.node.ask("POST", "/api/v1/push", &format!(r#"{{"items":[{}]}}"#, items.join(",")));
    let done = fresh.run(&["tail", "q", "--from", "start", "--count", "1100"]);
    let mut seen: Vec<_> = done.printed().lines().map(|line| fields(line).0).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 1100);

    // More than one answer holds, in one partition and over all.
    let large = format!("\"{}\"", "x".repeat(700_000));
    for name in &names[..9] {
        fresh.push("large", name, &[&large, &large]);
    }
    let done = fresh.run(&["tail", "large", "--from", "start", "--count", "18"]);
    let mut seen: Vec<_> = done.printed().lines().map(fields).collect();
    assert!(seen.iter().all(|(_, _, payload)| payload.len() == large.len()));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 18);
}
