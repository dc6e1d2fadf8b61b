//! `queen queues`, `queen groups`, `queen dlq`.

use super::{Fresh, cells};

/// A name that would clear a screen.
const WILD: &str = "wild\u{1b}[2J\nname";

#[test]
fn queues_and_their_partitions() {
    let fresh = Fresh::new(&[]);
    assert_eq!(fresh.run(&["queues"]).printed(), "no queues\n");
    assert_eq!(fresh.run(&["queues", "--json"]).printed(), "[]\n");
    fresh.push("orders", "a", &["1", "2"]);
    fresh.push("orders", WILD, &["3"]);
    fresh.push(WILD, "p", &["1"]);
    assert_eq!(fresh.run(&["pop", "orders", "--partition", "a"]).code, Some(0));

    let table = fresh.run(&["queues"]);
    let lines: Vec<_> = table.printed().lines().collect();
    let head = ["QUEUE", "PARTITIONS", "MESSAGES", "PENDING", "PROCESSING", "COMPLETED", "DEAD"];
    assert_eq!(cells(lines[0]), head);
    assert_eq!(cells(lines[1]), ["orders", "2", "3", "2", "0", "1", "0"]);
    assert_eq!(cells(lines[2])[0], r"wild\u{1b}[2J\nname");
    assert_eq!(lines.len(), 3);
    let rows = fresh.run(&["queues", "--json"]).json();
    assert_eq!((&rows[0]["name"], &rows[1]["partitions"]), (&WILD.into(), &2.into()));

    let table = fresh.run(&["queues", "orders"]);
    let lines: Vec<_> = table.printed().lines().collect();
    assert!(lines[0].starts_with("PARTITION  ") && lines[0].ends_with("NEWEST"), "{table:?}");
    let row = lines.iter().find(|line| line.starts_with("a ")).unwrap();
    assert_eq!(cells(row)[..6], ["a", "2", "1", "0", "1", "0"]);
    assert!(lines.iter().any(|line| line.starts_with(r"wild\u{1b}[2J\nname  ")), "{table:?}");
    let rows = fresh.run(&["queues", "orders", "--json"]).json();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    assert!(fresh.run(&["queues", "other"]).failed().starts_with("there is no queue other: "));
}

#[test]
fn groups_and_their_cursors() {
    let fresh = Fresh::new(&[]);
    assert_eq!(fresh.run(&["groups"]).printed(), "no groups\n");
    assert_eq!(fresh.run(&["groups", "--json"]).printed(), "[]\n");
    fresh.push("orders", "a", &["1", "2", "3"]);
    for group in ["billing", WILD] {
        let arguments = ["pop", "orders", "--group", group, "--from", "start"];
        assert_eq!(fresh.run(&arguments).code, Some(0));
    }
    let table = fresh.run(&["groups"]);
    let lines: Vec<_> = table.printed().lines().collect();
    let head = ["GROUP", "QUEUE", "STATE", "LAG", "SECONDS", "PARTITIONS", "LAGGING", "MODE"];
    assert_eq!(cells(lines[0]), head);
    let row = cells(lines[1]);
    assert_eq!([row[0], row[1], row[2], row[3]], ["billing", "orders", "Stable", "2"]);
    assert_eq!([row[5], row[6], row[7]], ["1", "1", "all"]);
    assert!(lines[2].starts_with(r"wild\u{1b}[2J\nname  orders"), "{table:?}");
    let rows = fresh.run(&["groups", "--json"]).json();
    assert_eq!(rows.as_array().unwrap().len(), 2);

    assert_eq!(fresh.run(&["pop", "orders", "--group", "billing", "--keep"]).code, Some(0));
    let table = fresh.run(&["groups", "billing"]);
    let lines: Vec<_> = table.printed().lines().collect();
    let head = ["QUEUE", "PARTITION", "CONSUMED", "LAG", "SECONDS", "LEASED"];
    assert_eq!(cells(lines[0]), head);
    let row = cells(lines[1]);
    assert_eq!(
        [row[0], row[1], row[2], row[3], row[5]],
        ["orders", "a", "1", "2", "yes"],
        "{table:?}"
    );
    let rows = fresh.run(&["groups", WILD, "--json"]).json();
    assert_eq!((&rows[0]["queue"], &rows[0]["partition"]), (&"orders".into(), &"a".into()));
    assert_eq!((&rows[0]["offsetLag"], &rows[0]["leaseActive"]), (&2.into(), &false.into()));
    assert!(fresh.run(&["groups", "other"]).failed().starts_with("there is no group other: "));
}

#[test]
fn dead_letters_are_listed_replayed_and_purged() {
    let fresh = Fresh::new(&[]);
    assert_eq!(fresh.run(&["dlq"]).printed(), "no dead letters\n");
    assert_eq!(fresh.run(&["dlq", "--json"]).printed(), "[]\n");
    fresh.kill_message("orders", "first", "{\"n\":1}");
    fresh.kill_message("orders", "second", "{\"n\":2}");
    fresh.kill_message("other", "third", "{\"n\":3}");

    let table = fresh.run(&["dlq", "orders", "--group", "g"]);
    let lines: Vec<_> = table.printed().lines().collect();
    let head = [
        "ID",
        "FAILED",
        "QUEUE",
        "PARTITION",
        "GROUP",
        "OFFSET",
        "RETRIES",
        "TRANSACTION",
        "ERROR",
    ];
    assert_eq!(cells(lines[0]), head);
    let row = cells(lines[1]);
    assert_eq!(row[2..], ["orders", "Default", "g", "1", "0", "second", r"bad \u{1b}[31mluck"]);
    let id = cells(lines[2])[0].to_owned();
    let page = fresh.run(&["dlq", "--limit", "1"]);
    assert!(page.said.starts_with("queen: 1 of 3 shown; "), "{page:?}");
    assert!(page.out.contains(" third "), "{page:?}");
    let rows = fresh.run(&["dlq", "orders", "--json"]).json();
    assert_eq!((&rows[1]["id"], &rows[1]["data"]["n"]), (&id.as_str().into(), &1.into()));
    assert_eq!(fresh.run(&["dlq", "orders", "--group", "h"]).printed(), "no dead letters\n");

    let replayed = fresh.run(&["dlq", "replay", &id, "--partition", "again"]);
    let expected = "replayed to queue orders, partition again, offset 0, transactionId dlq:";
    assert_eq!(replayed.printed(), format!("{expected}{id}\n"));
    let gone = fresh.run(&["dlq", "replay", &id]);
    assert!(gone.failed().starts_with(&format!("there is no dead letter {id}: ")), "{gone:?}");
    let elsewhere = fresh.run(&["dlq", "--json", "other"]).json();
    let id = elsewhere[0]["id"].as_str().unwrap();
    let replayed = fresh.run(&["dlq", "replay", id, "--queue", "orders"]);
    assert!(
        replayed.printed().starts_with("replayed to queue orders, partition Default, offset 2")
    );

    let asked = fresh.run(&["dlq", "purge", "orders"]);
    assert!(asked.failed().starts_with("1 dead letter of queue orders would be deleted"));
    let other = fresh.run(&["dlq", "purge", "orders", "--group", "h", "--yes"]);
    assert_eq!(other.printed(), "deleted 0\n");
    assert_eq!(fresh.run(&["dlq", "purge", "orders", "--yes"]).printed(), "deleted 1\n");
    assert_eq!(fresh.run(&["dlq"]).printed(), "no dead letters\n");
}

#[test]
fn a_copy_that_lies_there_already_is_not_made_again() {
    let fresh = Fresh::new(&[]);
    fresh.kill_message("orders", "first", "1");
    let letter = fresh.run(&["dlq", "--json"]).json();
    let id = letter[0]["id"].as_str().unwrap();
    let copy = format!("dlq:{id}");
    assert_eq!(fresh.run(&["push", "orders", "1", "--id", &copy]).code, Some(0));
    let replayed = fresh.run(&["dlq", "replay", id]);
    assert!(
        replayed.failed().starts_with("a copy lies there already (queue orders"),
        "{replayed:?}"
    );
    assert_eq!(fresh.run(&["dlq", "--json"]).json().as_array().unwrap().len(), 1);
}
