//! `queen push`.

use serde_json::Value;

use super::relay::{Fate, Relay};
use super::{Fresh, Running, run};
use crate::program::Program;

fn payloads(fresh: &Fresh, queue: &str) -> Vec<String> {
    let path = format!("/api/v1/pop/queue/{queue}?batch=10000&partitions=64&autoAck=true");
    let answer = fresh.node.ask("GET", &path, "");
    if answer.is_empty() {
        return Vec::new();
    }
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let messages = answer["messages"].as_array().unwrap();
    messages.iter().map(|message| message["data"].to_string()).collect()
}

fn ids(body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap();
    let items = body["items"].as_array().unwrap();
    items.iter().map(|item| item["transactionId"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_message_from_the_command_line() {
    let fresh = Fresh::new(&[]);
    let push = |more: &[&str]| fresh.run(&[&["push", "a/b ü"], more].concat());
    let with_id = ["{\"n\": 1e400}", "--partition", "p/1", "--id", "order-1"];
    assert_eq!(push(&with_id).printed(), "pushed 1, duplicates 0\n");
    assert_eq!(push(&with_id).printed(), "pushed 0, duplicates 1\n");
    let path = "/api/v1/pop/queue/a%2Fb%20%C3%BC/partition/p%2F1";
    let popped = fresh.node.ask("GET", path, "");
    assert!(popped.contains(r#""transactionId":"order-1""#), "{popped}");
    assert!(popped.contains(r#""data":{"n": 1e400}"#), "{popped}");

    for (arguments, stored) in
        [(&["-5"][..], "-5"), (&["--text", "a \"b\""], r#""a \"b\"""#), (&["null"], "null")]
    {
        assert_eq!(push(arguments).printed(), "pushed 1, duplicates 0\n");
        assert_eq!(payloads(&fresh, "a%2Fb%20%C3%BC"), [stored]);
    }
    let refused = push(&["hello"]);
    assert_eq!(refused.out, "");
    assert!(refused.failed().contains("no JSON") && refused.failed().contains("--text"));
}

#[test]
fn lines_go_out_in_batches_and_stay_in_order() {
    let fresh = Fresh::new(&[]);
    let relay = Relay::new(fresh.node.address(), &[]);
    let input: Vec<String> = (0..250).map(|n| format!("{{\"n\": {n}}}\r\n")).collect();
    let input = input.join("\n");
    let done = run(&relay.url(), &["push", "q"], input.trim_end().as_bytes());
    assert_eq!(done.printed(), "pushed 250, duplicates 0\n");
    let mut sent = Vec::new();
    while sent.len() < 250 {
        let batch = ids(&relay.next().body);
        assert!(batch.len() <= 100, "{}", batch.len());
        sent.extend(batch);
    }
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), 250);
    let expected: Vec<String> = (0..250).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(payloads(&fresh, "q"), expected);

    let done = run(&fresh.url(), &["push", "q", "--text"], "a\n\n[1\t2]".as_bytes());
    assert_eq!(done.printed(), "pushed 3, duplicates 0\n");
    assert_eq!(payloads(&fresh, "q"), [r#""a""#, r#""""#, r#""[1\t2]""#]);
    assert_eq!(run(&fresh.url(), &["push", "q"], b"").printed(), "pushed 0, duplicates 0\n");
}

#[test]
fn a_bad_line_stops_with_its_number() {
    let fresh = Fresh::new(&[]);
    let check = |input: &[u8], expected: &str| {
        let done = run(&fresh.url(), &["push", "q"], input);
        assert_eq!(done.out, "pushed 2, duplicates 0\n");
        assert!(done.failed().starts_with(expected), "{done:?}");
        assert_eq!(payloads(&fresh, "q"), ["1", "2"]);
    };
    check(b"1\n2\n{\"a\"\n4\n", "line 3 is no JSON (EOF while parsing an object at column 4)");
    check(b"1\n\n2\n\xff\n4\n", "line 4 is not UTF-8");
}

#[test]
fn what_is_sent_again_has_the_same_ids_and_is_stored_once() {
    for fate in [Fate::Busy(429), Fate::Busy(503), Fate::Lost] {
        let fresh = Fresh::new(&[]);
        let relay = Relay::new(fresh.node.address(), &[Fate::Pass, fate]);
        let mut push = Running::start(&relay.url(), &["push", "q"]);
        push.write("1\n");
        assert_eq!(ids(&relay.next().body).len(), 1);
        push.write("2\n3\n");
        let first = relay.next().body;
        let remark = push.remark();
        assert!(remark.contains("trying for 120 seconds"), "{remark}");
        assert_eq!(ids(&first), ids(&relay.next().body));
        let (status, out) = push.end();
        assert!(status.success(), "{fate:?}");
        assert_eq!(out, ["pushed 1, duplicates 2"]);
        assert_eq!(payloads(&fresh, "q"), ["1", "2", "3"]);
    }
}

#[test]
fn a_push_goes_on_when_its_node_was_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(dir.path(), &[]).unwrap();
    let relay = Relay::new(node.address(), &[]);
    let mut push = Running::start(&relay.url(), &["push", "q"]);
    push.write("1\n2\n");
    assert_eq!(ids(&relay.next().body).len(), 2);
    relay.point_to(None);
    assert!(node.stop().0.success());
    push.write("3\n");
    let remark = push.remark();
    assert!(remark.contains("does not answer any more"), "{remark}");
    let node = Program::start(dir.path(), &[]).unwrap();
    relay.point_to(Some(node.address()));
    push.write("4\n");
    let (status, out) = push.end();
    assert!(status.success());
    assert_eq!(out, ["pushed 4, duplicates 0"]);
    let popped: Value = serde_json::from_str(&node.ask("GET", "/api/v1/pop/queue/q", "")).unwrap();
    let data: Vec<_> = popped["messages"].as_array().unwrap().iter().map(|m| &m["data"]).collect();
    assert_eq!(data, [1, 2, 3, 4]);
}

#[test]
fn messages_that_the_node_refuses_are_a_failure() {
    let fresh = Fresh::new(&[("QUEEN_RAFT_ENTRY_MAX_BYTES", "65536")]);
    let large = format!("\"{}\"", "x".repeat(100_000));
    let done = run(&fresh.url(), &["push", "q"], format!("{large}\n").as_bytes());
    assert_eq!(done.out, "pushed 0, duplicates 0\n");
    assert!(done.failed().starts_with("refused 1, not in the queue: "), "{done:?}");
    assert_eq!(payloads(&fresh, "q"), Vec::<String>::new());

    let long = "n".repeat(500);
    let done = run(&fresh.url(), &["push", &long], b"1\n");
    assert_eq!(done.out, "pushed 0, duplicates 0\n");
    assert!(
        done.failed().contains("(413: ") && done.failed().contains("lines from 1 on"),
        "{done:?}"
    );

    // Refused before it was read, in the middle of being sent.
    let fresh = Fresh::new(&[("QUEEN_MAX_BODY_BYTES", "100000")]);
    let done = run(&fresh.url(), &["push", "q"], "1".repeat(20_000_000).as_bytes());
    assert!(done.failed().contains("(413: the request body is larger"), "{done:?}");
}
