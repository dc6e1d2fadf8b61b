//! `queen pop`.

use serde_json::Value;

use super::relay::{Fate, Relay};
use super::{Fresh, Running, run};

#[test]
fn popped_messages_are_printed_and_settled() {
    let fresh = Fresh::new(&[]);
    fresh.push("q", "p", &["{\"a\" :\n1}", "\"\u{9b}31m\u{7f}\"", "3"]);
    let first = fresh.run(&["pop", "q"]);
    let fields: Vec<_> = first.printed().trim_end().split('\t').collect();
    assert_eq!((fields[0], fields[1], fields[3]), ("p", "0", "{\"a\" : 1}"));
    assert_eq!(fields[2].len(), 36);

    let second = fresh.run(&["pop", "q", "--json", "--batch", "9", "--partition", "p"]);
    let rows: Vec<Value> =
        second.printed().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["data"], &rows[0]["offset"]), (&"\u{9b}31m\u{7f}".into(), &1.into()));
    assert_eq!((&rows[1]["data"], &rows[1]["partition"]), (&3.into(), &"p".into()));
    assert!(second.out.contains(r"\u009b31m\u007f"), "{second:?}");

    let nothing = fresh.run(&["pop", "q"]);
    assert_eq!((nothing.code, &*nothing.out), (Some(0), ""));
    assert_eq!(nothing.said, "queen: no messages\n");
    let queues: Value =
        serde_json::from_str(&fresh.node.ask("GET", "/api/v1/resources/queues", "")).unwrap();
    let counts = &queues["queues"][0]["messages"];
    assert_eq!((&counts["completed"], &counts["processing"]), (&3.into(), &0.into()));
}

#[test]
fn a_kept_message_stays_leased_and_comes_again() {
    let fresh = Fresh::new(&[]);
    fresh.node.ask("POST", "/api/v1/configure", r#"{"queue":"q","options":{"leaseTime":1}}"#);
    fresh.push("q", "p", &["1"]);
    let kept = fresh.run(&["pop", "q", "--keep"]);
    assert!(kept.printed().ends_with("\t1\n"), "{kept:?}");
    // Its lease holds it back for a second, which the wait outlasts.
    let again = fresh.run(&["pop", "q", "--wait", "60", "--json"]).json();
    assert_eq!((&again["data"], &again["deliveryAttempt"]), (&1.into(), &2.into()));
    assert_eq!(fresh.run(&["pop", "q"]).out, "");
}

#[test]
fn a_group_starts_where_it_is_told_and_takes_any_partition() {
    let fresh = Fresh::new(&[]);
    for partition in ["a", "b", "c"] {
        fresh.push("q", partition, &["1"]);
    }
    let new = fresh.run(&["pop", "q", "--group", "new"]);
    assert_eq!(new.out, "");
    assert!(new.said.contains("--from start"), "{new:?}");
    let arguments = ["pop", "q", "--group", "old", "--from", "start", "--batch", "10"];
    let old = fresh.run(&arguments);
    assert_eq!(old.printed().lines().count(), 3);
    assert_eq!(fresh.run(&arguments).said, "queen: no messages\n");
    fresh.push("q", "d", &["4"]);
    for group in ["new", "old"] {
        let popped = fresh.run(&["pop", "q", "--group", group]);
        assert!(popped.printed().starts_with("d\t0\t"), "{popped:?}");
    }
}

#[test]
fn a_waiting_pop_takes_what_comes() {
    let fresh = Fresh::new(&[]);
    let pop = Running::start(&fresh.url(), &["pop", "q", "--wait", "60"]);
    // The wildcard pop of a missing queue makes it: then the pop is there.
    while !fresh.node.ask("GET", "/api/v1/resources/queues", "").contains(r#""name":"q""#) {
        std::thread::yield_now();
    }
    fresh.push("q", "p", &["1"]);
    let line = pop.line();
    assert!(line.starts_with("p\t0\t") && line.ends_with("\t1"), "{line}");
    assert!(pop.end().0.success());
}

#[test]
fn an_ack_that_is_refused_is_said() {
    let fresh = Fresh::new(&[]);
    fresh.push("q", "p", &["1"]);
    // The ack is carried out twice, and the node knows the second as a repeat.
    let relay = Relay::new(fresh.node.address(), &[Fate::Pass, Fate::Busy(503)]);
    let done = run(&relay.url(), &["pop", "q"], b"");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.said.contains("cannot do this now (503"), "{done:?}");
    assert_eq!(fresh.run(&["pop", "q"]).out, "");

    fresh.push("q", "p", &["2"]);
    let relay = Relay::new(fresh.node.address(), &[Fate::Pass, Fate::Page(500)]);
    let done = run(&relay.url(), &["pop", "q"], b"");
    assert!(done.out.ends_with("\t2\n"), "{done:?}");
    assert!(done.failed().contains("printed but not settled"), "{done:?}");
}
