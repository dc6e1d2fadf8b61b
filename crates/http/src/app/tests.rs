//! Who is let through to which route: every route of the table, every role.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Method;
use hyper::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use jsonwebtoken::{EncodingKey, Header, encode};
use queen_broker::Broker;
use serde_json::json;

use super::*;
use crate::auth::tests::{SECRET, options};
use crate::auth::{AuthOptions, Authenticator, Role};
use crate::options::SubscribeDefault;
use crate::routes::TABLE;

/// Nothing is behind these routes: whoever is let through is answered something else than 401 and 403.
fn app(auth: Option<AuthOptions>) -> App<Broker> {
    let options = AppOptions {
        version: "1.2.3",
        body_bytes_max: 1 << 20,
        body_timeout: Duration::from_secs(30),
        default_timeout: Duration::from_secs(30),
        statement_timeout: Duration::from_secs(30),
        subscribe_default: SubscribeDefault::New,
        auth: auth.map(|options| Arc::new(Authenticator::new(options).unwrap().0)),
        tenancy_header: false,
        partitions_max: 10,
        stats: Arc::new(HttpStats::new()),
        prometheus: Arc::new(String::new),
        resident_bytes: Arc::new(|| 0),
    };
    App::new(Arc::new(Gate::new()), options)
}

fn token(role: Option<&str>) -> String {
    let claims = json!({"sub": "s", "role": role, "exp": 4_000_000_000_u64});
    let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    encode(&Header::default(), &claims, &key).unwrap()
}

async fn call(app: &App<Broker>, method: &str, path: &str, token: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let body = Full::<Bytes>::default().map_err(|never: Infallible| never);
    app.handle(request.body(body).unwrap(), &Arc::default(), std::future::pending()).await
}

async fn status(app: &App<Broker>, method: &str, path: &str, token: Option<&str>) -> u16 {
    call(app, method, path, token).await.status().as_u16()
}

/// The level of a route as the documentation has it, by rules and not row by row.
fn documented(method: &str, path: &str) -> Level {
    let below = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
    let is = |paths: &[&str]| paths.contains(&path);
    let is_public =
        is(&["/", "/health", "/metrics", "/metrics/prometheus", "/api/v1/openapi.json"])
            || is(&["/auth/me", "/auth/login", "/auth/logout"])
            || below(&["/assets/", "/favicon"]);
    let is_deleted = below(&["/api/v1/resources/queues/", "/api/v1/consumer-groups/"]);
    let is_read = is(&["/status"])
        || below(&["/api/v1/status", "/api/v1/analytics", "/api/v1/resources/"])
        || below(&["/api/v1/messages", "/api/v1/consumer-groups", "/api/v1/dlq"])
        || below(&["/api/v1/raft/"])
        || below(&["/api/v1/traces", "/api/v1/kv", "/api/v1/timers", "/api/v1/ephemeral/queues"]);
    let is_read_by_post = is(&["/api/v1/fetch", "/api/v1/fetch/offsets"])
        || is(&["/api/v1/partitions/changed", "/streams/v1/state/get"])
        || is(&["/api/v1/consumer-groups/positions"]);
    match method {
        _ if is_public => Level::Public,
        _ if below(&["/api/v1/system/", "/internal/"]) => Level::Admin,
        "DELETE" if is_deleted => Level::Admin,
        "POST" if is(&["/api/v1/stats/refresh", "/api/v1/backup"]) => Level::Admin,
        "GET" if is_read => Level::ReadOnly,
        "POST" if is_read_by_post => Level::ReadOnly,
        "POST" if is(&["/api/v1/push", "/api/v1/timers", "/api/v1/ephemeral/push"]) => {
            Level::WriteOnly
        }
        _ => Level::ReadWrite,
    }
}

/// The roles that reach a level, as the documentation has them.
fn reaches(role: Option<Role>, level: Level) -> bool {
    match role {
        _ if level == Level::Public => true,
        None => false,
        Some(Role::Admin) => true,
        Some(Role::ReadWrite) => level != Level::Admin,
        Some(Role::ReadOnly) => level == Level::ReadOnly,
        Some(Role::WriteOnly) => level == Level::WriteOnly,
    }
}

const ROLES: [(Option<Role>, Option<&str>); 6] = [
    (None, None),
    (None, Some("nobody")),
    (Some(Role::ReadOnly), Some("read-only")),
    (Some(Role::WriteOnly), Some("write-only")),
    (Some(Role::ReadWrite), Some("read-write")),
    (Some(Role::Admin), Some("admin")),
];

#[tokio::test]
async fn every_route_for_every_role() {
    let app = app(Some(options()));
    for spec in TABLE {
        let path = spec.path.replace(['{', '}'], "");
        let (method, level) = (spec.method, documented(spec.method, &path));
        assert_eq!(spec.level, level, "{method} {path}");
        let without = status(&app, method, &path, None).await;
        assert_eq!(without == 401, level != Level::Public, "{method} {path}: {without}");
        for (role, name) in ROLES {
            let found = status(&app, method, &path, Some(&token(name))).await;
            assert_ne!(found, 401, "{method} {path} {name:?}");
            assert_eq!(found != 403, reaches(role, level), "{method} {path} {name:?}: {found}");
            let bad = status(&app, method, &path, Some("a.b.c")).await;
            assert_eq!(bad == 401, level != Level::Public, "{method} {path}: {bad}");
        }
    }
}

#[tokio::test]
async fn what_is_no_route_is_not_public() {
    let app = app(Some(options()));
    for (method, path, missing) in [
        ("GET", "/api/v1/nothing", 404),
        ("POST", "/api/v1/push/", 404),
        ("POST", "//health", 404),
        ("GET", "/api/v1/resources/queues/%FF", 400),
        ("PUT", "/api/v1/push", 405),
        ("POST", "/health", 405),
        ("HEAD", "/api/v1/pop/queue/q", 405),
    ] {
        assert_eq!(status(&app, method, path, None).await, 401, "{method} {path}");
        for (role, name) in ROLES {
            let found = status(&app, method, path, Some(&token(name))).await;
            let expected = if reaches(role, Level::ReadWrite) { missing } else { 403 };
            assert_eq!(found, expected, "{method} {path} {name:?}");
        }
    }
}

#[tokio::test]
async fn head_asks_for_as_much_as_get() {
    let app = app(Some(options()));
    let path = "/api/v1/resources/queues";
    assert_eq!(status(&app, "HEAD", path, None).await, 401);
    assert_eq!(status(&app, "HEAD", path, Some(&token(Some("write-only")))).await, 403);
    assert_eq!(status(&app, "HEAD", path, Some(&token(Some("read-only")))).await, 503);
    assert_eq!(status(&app, "HEAD", "/metrics", None).await, 200);
}

#[tokio::test]
async fn without_authentication_everything_is_open() {
    let app = app(None);
    for spec in TABLE {
        let path = spec.path.replace(['{', '}'], "");
        for token in [None, Some("nonsense")] {
            let found = status(&app, spec.method, &path, token).await;
            assert!(found != 401 && found != 403, "{} {path}: {found}", spec.method);
        }
    }
    assert_eq!(status(&app, "GET", "/api/v1/nothing", None).await, 404);
}

#[tokio::test]
async fn paths_that_are_left_open() {
    let skip_paths = ["/status", "/api/v1/pop/"].map(str::to_owned).to_vec();
    let app = app(Some(AuthOptions { skip_paths, ..options() }));
    for (path, expected) in [
        ("/status", 200),
        ("/api/v1/pop/queue/q?wait=false", 503),
        ("/api/v1/pop", 401),
        ("/api/v1/dlq", 401),
        ("/api/v1/dlq?x=/status", 401),
    ] {
        assert_eq!(status(&app, "GET", path, None).await, expected, "{path}");
    }
}

#[tokio::test]
async fn the_shape_of_a_refusal() {
    let app = app(Some(options()));
    for (token, status, text) in [
        (None, 401, "Authentication required"),
        (Some("a.b".to_owned()), 401, "Bad token header"),
        (Some(token(None)), 403, "Insufficient permissions"),
    ] {
        let answer = call(&app, Method::POST.as_str(), "/api/v1/push", token.as_deref()).await;
        assert_eq!(answer.status().as_u16(), status);
        let scheme = answer.headers().get(WWW_AUTHENTICATE).map(|value| value.as_bytes().to_vec());
        assert_eq!(scheme, (status == 401).then(|| b"Bearer".to_vec()));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, format!(r#"{{"error":"{text}"}}"#));
    }
}
