//! What one tenant has is to another tenant as if it were not there.

use std::path::Path;

use serde_json::{Value, json};

use crate::program::Program;

const OTHER: &str = "X-Queen-Tenant: 7f1c0f6e-2d1b-4c7e-9a53-0b6f3e5d8c21\r\n";
const NO_UUID: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";

/// Things of a tenant, or names of things that nobody has.
struct Things {
    queue: String,
    partition: String,
    transaction: String,
    lease: String,
    letter: String,
}

impl Things {
    fn missing() -> Self {
        Self {
            queue: "nobodys-queue".to_owned(),
            partition: "987654".to_owned(),
            transaction: "nobodys-id".to_owned(),
            lease: NO_UUID.to_owned(),
            letter: NO_UUID.replace('0', "1"),
        }
    }

    /// What another tenant is answered about them, with their names taken out.
    fn asked_for(&self, node: &Program) -> Vec<(u16, String)> {
        let Self { queue, partition, transaction, lease, letter } = self;
        let unfenced = json!({"transactionId": transaction, "partitionId": partition,
            "consumerGroup": "g"});
        let mut ack = unfenced.clone();
        ack["leaseId"] = json!(lease);
        let mut operation = ack.clone();
        operation["type"] = json!("ack");
        let bundle = json!({"operations": [operation,
            {"type": "push", "queue": "own", "payload": 1},
        ]});
        let message = format!("/api/v1/messages/{partition}/{transaction}");
        let seek = format!("/api/v1/consumer-groups/g/queues/{queue}");
        let requests = [
            ("GET", format!("/api/v1/resources/queues/{queue}"), Value::Null),
            ("GET", format!("/api/v1/dlq?queue={queue}"), Value::Null),
            ("GET", message.clone(), Value::Null),
            ("POST", format!("{message}/retry"), Value::Null),
            ("DELETE", message, Value::Null),
            ("POST", format!("/api/v1/dlq/{letter}/replay"), Value::Null),
            ("DELETE", format!("/api/v1/dlq?queue={queue}"), Value::Null),
            ("POST", "/api/v1/ack".to_owned(), ack),
            ("POST", "/api/v1/ack".to_owned(), unfenced),
            ("POST", format!("/api/v1/lease/{lease}/extend"), Value::Null),
            ("POST", "/api/v1/transaction".to_owned(), bundle),
            ("POST", format!("{seek}/seek"), json!({"toEnd": true})),
            ("POST", format!("{seek}/partitions/Default/seek"), json!({"toEnd": true})),
            ("DELETE", seek, Value::Null),
            ("DELETE", format!("/api/v1/resources/queues/{queue}"), Value::Null),
        ];
        requests
            .iter()
            .map(|(method, path, body)| {
                let body = if body.is_null() { String::new() } else { body.to_string() };
                let (status, body) = node.call_as(OTHER, method, path, &body);
                (status, self.without_names(&body))
            })
            .collect()
    }

    fn without_names(&self, body: &str) -> String {
        let mut body = body.to_owned();
        for (name, mark) in [
            (&self.queue, "<queue>"),
            (&self.transaction, "<transaction>"),
            (&self.lease, "<lease>"),
            (&self.letter, "<letter>"),
        ] {
            body = body.replace(&**name, mark);
        }
        body = body.replace(&format!("\"{}\"", self.partition), "\"<partition>\"");
        body = body.replace(&format!("partition {}", self.partition), "partition <partition>");
        // A call has an id of its own.
        let call = body.find("\"transactionId\":\"01").map(|at| at + 17..at + 53);
        if let Some(call) = call {
            body.replace_range(call, "<call>");
        }
        body
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Makes a queue of the default tenant with a lease and a dead letter.
fn things(node: &Program) -> Things {
    let push = r#"{"items":[{"queue":"secret-queue","payload":"secret","transactionId":"dead"},
        {"queue":"secret-queue","payload":"secret","transactionId":"alive"}]}"#;
    node.ask("POST", "/api/v1/push", push);
    let pop = || {
        let path = "/api/v1/pop/queue/secret-queue?batch=1&consumerGroup=g&subscriptionMode=all";
        json_of(&node.ask("GET", path, ""))["messages"][0].clone()
    };
    let dead = pop();
    let refuse = json!({"transactionId": "dead", "partitionId": dead["partitionId"],
        "leaseId": dead["leaseId"], "consumerGroup": "g", "status": "dlq"});
    let acked = json_of(&node.ask("POST", "/api/v1/ack", &refuse.to_string()));
    assert_eq!(acked[0]["dlq"], true, "{acked}");
    let alive = pop();
    assert_eq!(alive["transactionId"], "alive");
    let letters = json_of(&node.ask("GET", "/api/v1/dlq?queue=secret-queue", ""));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Things {
        queue: "secret-queue".to_owned(),
        partition: text(&alive["partitionId"]),
        transaction: "alive".to_owned(),
        lease: text(&alive["leaseId"]),
        letter: text(&letters["messages"][0]["id"]),
    }
}

fn start(dir: &Path) -> Program {
    let variables = [("QUEEN_TENANCY_HEADER", "1"), ("QUEEN_KV_TRUSTED_PROXY", "true")];
    Program::start(dir, &variables).unwrap()
}

#[test]
fn another_tenants_things_are_as_good_as_missing() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path());
    let things = things(&node);
    let (found, missing) = (things.asked_for(&node), Things::missing().asked_for(&node));
    for (found, missing) in found.iter().zip(&missing) {
        assert_eq!(found, missing);
    }
    let dead = Things { transaction: "dead".to_owned(), ..things };
    assert_eq!(dead.asked_for(&node), missing);
    for path in ["/api/v1/resources/queues", "/api/v1/dlq", "/api/v1/pop/queue/secret-queue"] {
        let (_, body) = node.call_as(OTHER, "GET", path, "");
        assert!(!body.contains("secret"), "{path}: {body}");
    }
    // Nothing of it had an effect: the lease holds, the letter and the queue are there.
    let extend = format!("/api/v1/lease/{}/extend", dead.lease);
    let extended = json_of(&node.ask("POST", &extend, ""));
    assert_eq!(extended["renewed"], 1, "{extended}");
    let letters = json_of(&node.ask("GET", "/api/v1/dlq?queue=secret-queue", ""));
    assert_eq!(letters["total"], 1, "{letters}");
    let ack = json!({"transactionId": "alive", "partitionId": dead.partition,
        "leaseId": dead.lease, "consumerGroup": "g"});
    let acked = json_of(&node.ask("POST", "/api/v1/ack", &ack.to_string()));
    assert_eq!(acked[0]["success"], true, "{acked}");
}

#[test]
fn two_tenants_have_one_name_apart() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path());
    for (headers, payload) in [("", 1), (OTHER, 2)] {
        let item = json!({"queue": "q", "payload": payload, "transactionId": "t"});
        let push = json!({"items": [item]}).to_string();
        let (_, pushed) = node.call_as(headers, "POST", "/api/v1/push", &push);
        assert_eq!(json_of(&pushed)[0]["status"], "queued", "{pushed}");
    }
    let pop = "/api/v1/pop/queue/q?autoAck=true&subscriptionMode=all";
    for (headers, payload) in [(OTHER, 2), ("", 1)] {
        let (_, popped) = node.call_as(headers, "GET", pop, "");
        assert_eq!(json_of(&popped)["messages"][0]["data"], payload, "{popped}");
        assert_eq!(node.call_as(headers, "GET", pop, "").0, 204);
    }
}
