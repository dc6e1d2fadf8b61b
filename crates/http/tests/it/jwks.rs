//! Published keys: read at start, again in time and for a key that is not known; never more than that.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use hyper::header::{AUTHORIZATION, HeaderMap};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use queen_http::{Accepted, AuthOptions, Authenticator, Denied, JwksOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::auth::auth_options;

const HOUR: Duration = Duration::from_hours(1);

/// What the provider answers.
#[derive(Clone)]
enum Answer {
    Keys(Value),
    Raw(Vec<u8>),
    /// Nothing; the connection stays open.
    Silence,
}

/// An identity provider on a free port.
#[derive(Clone)]
struct Provider {
    address: SocketAddr,
    hits: Arc<AtomicUsize>,
    answer: Arc<Mutex<Answer>>,
    /// Answers wait while this is false.
    is_open: watch::Sender<bool>,
    was_hit: Arc<Notify>,
}

impl Provider {
    async fn start(answer: Answer) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    fn serve(listener: TcpListener, answer: Answer) -> Self {
        let provider = Self {
            address: listener.local_addr().unwrap(),
            hits: Arc::default(),
            answer: Arc::new(Mutex::new(answer)),
            is_open: watch::Sender::new(true),
            was_hit: Arc::default(),
        };
        let own = provider.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(own.clone().answer(stream));
            }
        });
        provider
    }

    async fn answer(self, mut stream: TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        self.hits.fetch_add(1, Ordering::SeqCst);
        self.was_hit.notify_one();
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
        let answer = self.answer.lock().unwrap().clone();
        let bytes = match answer {
            Answer::Keys(keys) => {
                let body = json!({"keys": keys}).to_string();
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into()
            }
            Answer::Raw(bytes) => bytes,
            Answer::Silence => return std::future::pending().await,
        };
        // A reader that has seen too much closes.
        stream.write_all(&bytes).await.ok();
    }

    fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    fn publish(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn options(&self) -> JwksOptions {
        JwksOptions {
            url: format!("http://{}/keys", self.address),
            refresh: HOUR,
            timeout: Duration::from_secs(30),
            unknown_key_pause: Duration::ZERO,
        }
    }
}

/// An authenticator whose task runs.
fn start(jwks: JwksOptions, public_key: Option<&str>) -> Arc<Authenticator> {
    let options = AuthOptions {
        algorithm: Accepted::Auto,
        secret: None,
        public_key: public_key.map(str::to_owned),
        jwks: Some(jwks),
        ..auth_options()
    };
    let (authenticator, keeper) = Authenticator::new(options).unwrap();
    tokio::spawn(keeper.unwrap().run());
    Arc::new(authenticator)
}

fn private(name: &str) -> (EncodingKey, Algorithm) {
    match name {
        "ed" => {
            let pem = include_bytes!("../keys/ed.pem");
            (EncodingKey::from_ed_pem(pem).unwrap(), Algorithm::EdDSA)
        }
        "a" => {
            let pem = include_bytes!("../keys/rsa-a.pem");
            (EncodingKey::from_rsa_pem(pem).unwrap(), Algorithm::RS256)
        }
        _ => {
            let pem = include_bytes!("../keys/rsa-b.pem");
            (EncodingKey::from_rsa_pem(pem).unwrap(), Algorithm::RS256)
        }
    }
}

/// The public half under its own name.
fn public(name: &str) -> Value {
    let (key, algorithm) = private(name);
    let mut key = Jwk::from_encoding_key(&key, algorithm).unwrap();
    key.common.key_id = Some(name.to_owned());
    serde_json::to_value(key).unwrap()
}

fn keys(names: &[&str]) -> Answer {
    Answer::Keys(names.iter().copied().map(public).collect())
}

/// Headers with a token that the key `name` signed, and that names `id`.
fn request(name: &str, id: Option<&str>) -> HeaderMap {
    let (key, algorithm) = private(name);
    let header = Header { kid: id.map(str::to_owned), ..Header::new(algorithm) };
    let token = encode(&header, &json!({"sub": name}), &key).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    headers
}

async fn identify(authenticator: &Authenticator, headers: &HeaderMap) -> Result<(), Denied> {
    authenticator.identify(headers, SystemTime::now()).await.map(drop)
}

async fn check(
    authenticator: &Authenticator,
    name: &str,
    id: Option<&str>,
    expected: Result<(), Denied>,
) {
    assert_eq!(identify(authenticator, &request(name, id)).await, expected, "{name} {id:?}");
}

#[tokio::test]
async fn keys_of_both_kinds_by_id_or_alone() {
    let provider = Provider::start(keys(&["a", "ed"])).await;
    let authenticator = start(provider.options(), None);
    check(&authenticator, "a", Some("a"), Ok(())).await;
    check(&authenticator, "ed", Some("ed"), Ok(())).await;
    check(&authenticator, "a", None, Ok(())).await;
    check(&authenticator, "ed", None, Ok(())).await;
    assert_eq!(provider.hits(), 1);
    check(&authenticator, "b", Some("a"), Err(Denied::Signature)).await;
    check(&authenticator, "a", Some("ed"), Err(Denied::KeyId)).await;
}

#[tokio::test]
async fn keys_are_exchanged() {
    let provider = Provider::start(keys(&["a"])).await;
    let authenticator = start(provider.options(), None);
    check(&authenticator, "a", Some("a"), Ok(())).await;
    provider.publish(keys(&["b"]));
    check(&authenticator, "b", Some("b"), Ok(())).await;
    assert_eq!(provider.hits(), 2);
    check(&authenticator, "a", Some("a"), Err(Denied::KeyId)).await;
    check(&authenticator, "a", None, Err(Denied::Signature)).await;
    provider.publish(keys(&[]));
    check(&authenticator, "a", Some("a"), Err(Denied::KeyId)).await;
    check(&authenticator, "b", Some("b"), Err(Denied::KeyId)).await;
}

#[tokio::test]
async fn keys_are_read_again_in_time() {
    let provider = Provider::start(keys(&["a"])).await;
    let refresh = Duration::from_millis(5);
    let options = JwksOptions { refresh, unknown_key_pause: HOUR, ..provider.options() };
    let authenticator = start(options, None);
    check(&authenticator, "a", Some("a"), Ok(())).await;
    provider.publish(keys(&["b"]));
    let (old, new) = (request("a", Some("a")), request("b", Some("b")));
    while identify(&authenticator, &new).await.is_err() {
        provider.was_hit.notified().await;
    }
    assert_eq!(identify(&authenticator, &old).await, Err(Denied::KeyId));
}

#[tokio::test]
async fn a_storm_of_unknown_ids_is_one_fetch_in_a_pause() {
    let provider = Provider::start(keys(&["a"])).await;
    let options = JwksOptions { unknown_key_pause: HOUR, ..provider.options() };
    let authenticator = start(options, None);
    check(&authenticator, "a", Some("a"), Ok(())).await;
    for id in ["x", "../../etc/passwd", "' OR '1'='1", "http://127.0.0.1:1/", "\0", ""] {
        let headers = request("a", Some(id));
        for _ in 0..50 {
            assert_eq!(identify(&authenticator, &headers).await, Err(Denied::KeyId), "{id}");
        }
    }
    assert_eq!(provider.hits(), 1);
}

#[tokio::test]
async fn all_who_wait_share_one_fetch() {
    let provider = Provider::start(keys(&["a"])).await;
    let authenticator = start(provider.options(), None);
    check(&authenticator, "a", Some("a"), Ok(())).await;
    provider.was_hit.notified().await;
    provider.publish(keys(&["a", "b"]));
    provider.is_open.send_replace(false);
    let headers = Arc::new(request("b", Some("b")));
    let mut waiting = JoinSet::new();
    for _ in 0..50 {
        let (authenticator, headers) = (Arc::clone(&authenticator), Arc::clone(&headers));
        waiting.spawn(async move { identify(&authenticator, &headers).await });
    }
    provider.was_hit.notified().await;
    // A caller that leaves takes no fetch with it.
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    for _ in 0..50 {
        let (authenticator, headers) = (Arc::clone(&authenticator), Arc::clone(&headers));
        waiting.spawn(async move { identify(&authenticator, &headers).await });
    }
    // Who does not need the new key does not wait for it.
    check(&authenticator, "a", Some("a"), Ok(())).await;
    provider.is_open.send_replace(true);
    assert!(waiting.join_all().await.into_iter().all(|verdict| verdict == Ok(())));
    assert_eq!(provider.hits(), 2);
}

#[tokio::test]
async fn a_failure_keeps_the_keys() {
    let raw = |text: &str| Answer::Raw(text.as_bytes().to_vec());
    // Good keys, behind more blanks than are read.
    let long = " ".repeat(2_000_000) + &json!({"keys": [public("b")]}).to_string();
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{long}", long.len());
    let provider = Provider::start(keys(&["a"])).await;
    let authenticator = start(provider.options(), None);
    check(&authenticator, "a", Some("a"), Ok(())).await;
    for answer in [
        raw("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"),
        raw("HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\n\r\n{\"keys\":[]}"),
        raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"keys\":[]}"),
        raw("nonsense"),
        raw(""),
        raw(&long),
    ] {
        let before = provider.hits();
        provider.publish(answer);
        check(&authenticator, "b", Some("b"), Err(Denied::KeyId)).await;
        assert_eq!(provider.hits(), before + 1);
        check(&authenticator, "a", Some("a"), Ok(())).await;
    }
    provider.publish(keys(&["b"]));
    check(&authenticator, "b", Some("b"), Ok(())).await;
}

#[tokio::test]
async fn silence_is_given_up() {
    let provider = Provider::start(Answer::Silence).await;
    let timeout = Duration::from_millis(20);
    let authenticator = start(JwksOptions { timeout, ..provider.options() }, None);
    check(&authenticator, "b", Some("b"), Err(Denied::KeyId)).await;
    assert!(provider.hits() > 0);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Provider::start(keys(&["a"])).await;
    let location = format!("Location: http://{}/keys\r\n", elsewhere.address);
    let answer = format!("HTTP/1.1 302 Found\r\n{location}Content-Length: 0\r\n\r\n");
    let provider = Provider::start(Answer::Raw(answer.into_bytes())).await;
    let authenticator = start(provider.options(), None);
    check(&authenticator, "a", Some("a"), Err(Denied::KeyId)).await;
    assert!(provider.hits() > 0);
    assert_eq!(elsewhere.hits(), 0);
}

#[tokio::test]
async fn a_provider_may_come_later_than_the_node() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let options = JwksOptions {
        url: format!("http://{address}/keys"),
        refresh: HOUR,
        timeout: Duration::from_secs(30),
        unknown_key_pause: Duration::ZERO,
    };
    let authenticator = start(options, None);
    check(&authenticator, "a", Some("a"), Err(Denied::KeyId)).await;
    check(&authenticator, "a", None, Err(Denied::KeyId)).await;
    let provider = Provider::serve(TcpListener::bind(address).await.unwrap(), keys(&["a"]));
    check(&authenticator, "a", None, Ok(())).await;
    assert_eq!(provider.hits(), 1);
}

#[tokio::test]
async fn the_key_of_the_settings_stands_beside_the_published_ones() {
    let provider = Provider::start(keys(&["b", "ed"])).await;
    let own = include_str!("../keys/rsa-a.pub.pem");
    let authenticator = start(provider.options(), Some(own));
    check(&authenticator, "a", None, Ok(())).await;
    check(&authenticator, "a", Some("not published"), Ok(())).await;
    check(&authenticator, "b", Some("b"), Ok(())).await;
    check(&authenticator, "ed", None, Ok(())).await;
    check(&authenticator, "b", None, Err(Denied::Signature)).await;
    check(&authenticator, "a", Some("b"), Err(Denied::Signature)).await;
}

#[tokio::test]
async fn an_address_in_a_token_is_not_visited() {
    let provider = Provider::start(keys(&["b"])).await;
    let known = Provider::start(keys(&["a"])).await;
    let authenticator = start(known.options(), None);
    let (key, algorithm) = private("b");
    let url = format!("http://{}/keys", provider.address);
    let header = Header { jku: Some(url.clone()), x5u: Some(url), ..Header::new(algorithm) };
    let token = encode(&header, &json!({}), &key).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, token.parse().unwrap());
    assert_eq!(identify(&authenticator, &headers).await, Err(Denied::Header));
    check(&authenticator, "a", None, Ok(())).await;
    assert_eq!(provider.hits(), 0);
}

#[tokio::test]
async fn without_its_task_nobody_waits() {
    let options = AuthOptions {
        algorithm: Accepted::Auto,
        secret: None,
        jwks: Some(Provider::start(keys(&["a"])).await.options()),
        ..auth_options()
    };
    let (authenticator, keeper) = Authenticator::new(options).unwrap();
    drop(keeper);
    check(&authenticator, "a", Some("a"), Err(Denied::KeyId)).await;
}
