//! Tokens and tenants over a real listener, and what of them reaches the broker.

use std::sync::Arc;

use jsonwebtoken::{EncodingKey, Header, encode};
use queen_http::{AppOptions, AuthOptions, Authenticator, ServeOptions};
use queen_record::ids::Tenant;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::binary::{GROUP, PLAIN, hex};
use crate::fake::Pushed;
use crate::node::{Node, Reply, app_options, raw, send};

const SECRET: &str = "a secret of the tests, 32 bytes long or more";
const PUSH: &str = r#"{"items":[{"queue":"q","payload":1,"producerSub":"spoofed"}]}"#;

pub(crate) fn auth_options() -> AuthOptions {
    AuthOptions {
        secret: Some(SECRET.to_owned()),
        skip_paths: vec!["/health".to_owned()],
        ..AuthOptions::default()
    }
}

async fn start(is_on: bool, tenancy_header: bool) -> Node {
    let auth = is_on.then(|| Arc::new(Authenticator::new(auth_options()).unwrap().0));
    let app = AppOptions { auth, tenancy_header, ..app_options() };
    Node::start_with(app, ServeOptions::default()).await
}

fn bearer(claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    let token = encode(&Header::default(), claims, &key).unwrap();
    format!("Authorization: Bearer {token}\r\n")
}

async fn push(node: &Node, headers: &str) -> Reply {
    send(node.address, "POST", "/api/v1/push", headers, PUSH).await
}

fn pushed(node: &Node) -> Vec<Pushed> {
    std::mem::take(&mut *node.fake.pushed.lock().unwrap())
}

fn subs(node: &Node) -> Vec<Option<String>> {
    pushed(node).into_iter().map(|item| item.producer_sub).collect()
}

#[tokio::test]
async fn the_subject_of_the_token_is_stamped_and_the_bodys_is_not() {
    let node = start(true, false).await;
    for (claims, expected) in [
        (json!({"role": "write-only", "sub": "alice"}), Some("alice".to_owned())),
        (json!({"roles": ["read-write"], "sub": "é\n\"b"}), Some("é\n\"b".to_owned())),
        (json!({"role": "admin", "sub": ""}), None),
        (json!({"role": "admin"}), None),
    ] {
        assert_eq!(push(&node, &bearer(&claims)).await.status, 201, "{claims}");
        assert_eq!(subs(&node), [expected], "{claims}");
    }
}

#[tokio::test]
async fn the_messages_of_a_transaction_are_stamped_too() {
    let body = r#"{"operations":[
        {"type":"push","queue":"q","payload":1,"producerSub":"spoofed"},
        {"type":"push","items":[{"queue":"q","payload":2,"producerSub":"spoofed"}]}]}"#;
    for (is_on, expected) in [(true, Some("alice".to_owned())), (false, None)] {
        let node = start(is_on, false).await;
        let headers = bearer(&json!({"role": "read-write", "sub": "alice"}));
        let reply = send(node.address, "POST", "/api/v1/transaction", &headers, body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let asked = node.fake.transactions.lock().unwrap().pop().unwrap();
        assert_eq!(asked.producers, [expected.clone(), expected]);
    }
}

#[tokio::test]
async fn the_binary_forms_are_stamped_too() {
    let framed = hex(&format!("51504231 08 01000000 {GROUP}"));
    let bundle = hex(&format!("51544231 00 00000000 01000000 {GROUP}"));
    for (is_on, expected) in [(true, Some("alice".to_owned())), (false, None)] {
        let node = start(is_on, false).await;
        let headers = bearer(&json!({"role": "read-write", "sub": "alice"}));
        for (path, body) in [("push", &hex(PLAIN)), ("push", &framed), ("transaction", &bundle)] {
            let head = format!("POST /api/v1/{path} HTTP/1.1\r\nHost: q\r\nConnection: close\r\n");
            let head = format!("{head}{headers}Content-Length: {}\r\n\r\n", body.len());
            let reply = raw(node.address, &[head.as_bytes(), body].concat()).await;
            assert!([200, 201].contains(&reply.status), "{reply:?}");
        }
        assert_eq!(subs(&node), [expected.clone(), expected.clone()]);
        let framed_by = std::mem::take(&mut *node.fake.framed_by.lock().unwrap());
        assert_eq!(framed_by, [expected.clone(), expected]);
    }
}

#[tokio::test]
async fn without_authentication_nobody_is_stamped() {
    let node = start(false, false).await;
    for headers in ["", &bearer(&json!({"sub": "alice"})), "Authorization: Bearer nonsense\r\n"] {
        assert_eq!(push(&node, headers).await.status, 201, "{headers}");
        assert_eq!(subs(&node), [None], "{headers}");
    }
}

#[tokio::test]
async fn who_is_not_let_in_reaches_no_broker() {
    let node = start(true, false).await;
    let reader = bearer(&json!({"role": "read-only", "sub": "alice"}));
    for (headers, status, text) in [
        ("", 401, "Authentication required"),
        ("Authorization: Basic YTpi\r\n", 401, "Authentication required"),
        ("Authorization: Bearer nonsense\r\n", 401, "Bad token header"),
        ("X-Queen-Raft-Token: a\r\n", 401, "Authentication required"),
        (&bearer(&json!({"role": "admin", "exp": 1})), 401, "Token has expired"),
        (&reader, 403, "Insufficient permissions"),
    ] {
        let reply = push(&node, headers).await;
        assert_eq!((reply.status, reply.json()), (status, json!({"error": text})), "{headers}");
        assert_eq!(reply.has_header("www-authenticate: bearer"), status == 401, "{reply:?}");
    }
    assert_eq!(pushed(&node), []);
    assert_eq!(node.get("/health").await.status, 200);
    let bare = bearer(&json!({"role": "admin"})).replace("Bearer ", "");
    assert_eq!(push(&node, &bare).await.status, 201);
}

#[tokio::test]
async fn a_stranger_is_refused_before_the_body_is_read() {
    let node = start(true, false).await;
    let mut stream = node.connect().await;
    let head = "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn a_token_longer_than_a_head_may_be_is_refused() {
    let node = start(true, false).await;
    let long = |bytes| format!("Authorization: Bearer a.{}.c\r\n", "b".repeat(bytes));
    let reply = push(&node, &long(20_000)).await;
    assert_eq!((reply.status, reply.json()), (401, json!({"error": "Bad token header"})));
    assert_eq!(push(&node, &long(1 << 20)).await.status, 431);
    assert_eq!(pushed(&node), []);
}

#[tokio::test]
async fn the_tenant_is_the_headers_where_it_counts() {
    let tenant = "7f1c0f6e-2d1b-4c7e-9a53-0b6f3e5d8c21";
    let header = format!("X-Queen-Tenant: {tenant}\r\n");
    let malformed = json!({"error": "invalid x-queen-tenant header (must be a UUID)"});
    for is_on in [true, false] {
        let node = start(false, is_on).await;
        assert_eq!(push(&node, "").await.status, 201);
        assert_eq!(push(&node, &header).await.status, 201);
        let tenants: Vec<_> = pushed(&node).iter().map(|item| item.tenant.to_string()).collect();
        let default = Tenant::DEFAULT.to_string();
        assert_eq!(tenants, [&*default, if is_on { tenant } else { &default }]);
        let reply = push(&node, "X-Queen-Tenant: acme\r\n").await;
        if is_on {
            assert_eq!((reply.status, reply.json()), (400, malformed.clone()));
            assert_eq!(pushed(&node), []);
        } else {
            assert_eq!(reply.status, 201);
        }
    }
}

#[tokio::test]
async fn a_stranger_is_told_nothing_about_tenants() {
    let node = start(true, true).await;
    assert_eq!(push(&node, "X-Queen-Tenant: acme\r\n").await.status, 401);
    let both = format!("X-Queen-Tenant: acme\r\n{}", bearer(&json!({"role": "admin"})));
    assert_eq!(push(&node, &both).await.status, 400);
}
