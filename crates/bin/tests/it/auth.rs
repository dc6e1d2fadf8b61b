//! A node that asks for tokens: what it lets through, and what of it reaches the log.

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::program::Program;

const SECRET: &str = "never-to-be-seen-in-any-log-or-answer";
const PUSH: &str = r#"{"items":[{"queue":"q","payload":1,"producerSub":"spoofed"}]}"#;

fn token(secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
    encode(&Header::default(), claims, &key).unwrap()
}

#[test]
fn a_message_carries_its_producer_and_the_log_carries_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("RUST_LOG", "trace"), ("JWT_ENABLED", "on"), ("JWT_SECRET", SECRET)];
    let node = Program::start(dir.path(), &variables).unwrap();
    let good = token(SECRET, &json!({"sub": "alice", "role": "read-write"}));
    let forged = token("a guess", &json!({"sub": "mallory", "role": "admin"}));
    let send = |method, path, token: &str, body| {
        node.call_as(&format!("Authorization: Bearer {token}\r\n"), method, path, body)
    };
    let mut replies = vec![
        send("POST", "/api/v1/push", &forged, PUSH),
        send("POST", "/api/v1/push", &good, PUSH),
        send("GET", "/api/v1/pop/queue/q?subscriptionMode=all", &good, ""),
        send("DELETE", "/api/v1/resources/queues/q", &good, ""),
    ];
    for path in ["/health", "/metrics", "/metrics/prometheus", "/status", "/nowhere"] {
        replies.push(send("GET", path, &good, ""));
    }
    let statuses: Vec<_> = replies.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [401, 201, 200, 403, 200, 200, 200, 200, 404], "{replies:?}");
    let popped: Value = serde_json::from_str(&replies[2].1).unwrap();
    assert_eq!(popped["messages"][0]["producerSub"], "alice", "{popped}");
    let (status, log) = node.stop();
    let log = log.join("\n");
    assert!(status.success(), "{log}");
    assert!(log.contains("JWT_SECRET=<set:37 chars>"), "{log}");
    assert_eq!(log.matches("a token without exp").count(), 1, "{log}");
    let signature = good.rsplit('.').next().unwrap();
    for text in replies.iter().map(|(_, body)| body).chain([&log]) {
        for secret in [SECRET, &good, &forged, signature, "mallory", "spoofed"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
