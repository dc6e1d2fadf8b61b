//! Connections that end, a server that stops, a broker that is not open yet.

use std::sync::Arc;
use std::time::Duration;

use queen_http::{Gate, ServeOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::fake::{Fake, Pop};
use crate::node::{Node, Reply, app_options, listen, send};

struct Parked {
    started: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
    gone: oneshot::Receiver<()>,
}

/// The node's next pop parks.
fn park(node: &Node) -> Parked {
    let (started, on_start) = oneshot::channel();
    let (release, on_release) = oneshot::channel();
    let (gone, on_gone) = oneshot::channel();
    let pop = Pop::Park { started, release: on_release, gone };
    node.fake.pops.lock().unwrap().push_back(pop);
    Parked { started: on_start, release, gone: on_gone }
}

const POP: &[u8] = b"GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: q\r\n\r\n";

#[tokio::test]
async fn a_parked_pop_is_dropped_with_its_client() {
    let node = Node::start().await;
    let parked = park(&node);
    let mut stream = node.connect().await;
    stream.write_all(POP).await.unwrap();
    parked.started.await.unwrap();
    drop(stream);
    // The sender's end is dropped with the call, although nobody released it.
    assert!(parked.gone.await.is_err());
    assert!(!parked.release.is_closed() || parked.release.send(()).is_err());
}

#[tokio::test]
async fn bytes_after_a_pop_do_not_hide_that_its_client_left() {
    // The last rest is more than hyper takes, so that bytes stay in the kernel.
    let many = String::from_utf8(POP.repeat(400)).unwrap();
    for rest in ["\r\n", "GET /status HTTP/1.1\r\nHost: q\r\n\r\n", &many] {
        let node = Node::start().await;
        let parked = park(&node);
        let mut stream = node.connect().await;
        stream.write_all(POP).await.unwrap();
        parked.started.await.unwrap();
        stream.write_all(rest.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(stream);
        let gone = tokio::time::timeout(Duration::from_secs(5), parked.gone).await;
        assert!(gone.unwrap().is_err());
        // Without the drop the pop would still hold its end.
        assert!(parked.release.is_closed(), "{rest:.20}");
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_requests_that_have_not_arrived() {
    let mut node = Node::start().await;
    let head = "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 37\r\n";
    let mut in_head = node.connect().await;
    in_head.write_all(head.as_bytes()).await.unwrap();
    let mut in_body = node.connect().await;
    in_body.write_all(format!("{head}\r\n{{").as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    node.stop.take().unwrap().send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), node.served).await.unwrap().unwrap();
    let mut answer = Vec::new();
    in_head.read_to_end(&mut answer).await.ok();
    assert!(answer.is_empty());
    in_body.read_to_end(&mut answer).await.ok();
    let reply = Reply::parse(&answer);
    assert_eq!((reply.status, &reply.json()["code"]), (503, &json!("retry")));
    assert!(node.fake.pushed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_stop_lets_requests_finish_and_closes_idle_connections() {
    let mut node = Node::start().await;
    let parked = park(&node);
    let mut idle = node.connect().await;
    idle.write_all(b"GET /status HTTP/1.1\r\nHost: q\r\n\r\n").await.unwrap();
    let mut first = [0];
    idle.read_exact(&mut first).await.unwrap();
    let mut busy = node.connect().await;
    busy.write_all(POP).await.unwrap();
    parked.started.await.unwrap();
    node.stop.take().unwrap().send(()).unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(!node.served.is_finished());
    parked.release.send(()).unwrap();
    let mut answer = Vec::new();
    busy.read_to_end(&mut answer).await.unwrap();
    assert_eq!(Reply::parse(&answer).status, 204);
    node.served.await.unwrap();
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let serving = ServeOptions { stop_timeout: Duration::from_millis(20), ..Default::default() };
    let mut node = Node::start_with(app_options(), serving).await;
    let parked = park(&node);
    let mut busy = node.connect().await;
    busy.write_all(POP).await.unwrap();
    parked.started.await.unwrap();
    node.stop.take().unwrap().send(()).unwrap();
    node.served.await.unwrap();
    let mut answer = Vec::new();
    busy.read_to_end(&mut answer).await.ok();
    assert!(answer.is_empty());
}

#[tokio::test]
async fn connections_over_the_limit_wait() {
    let serving = ServeOptions { connections_max: 1, ..Default::default() };
    let node = Node::start_with(app_options(), serving).await;
    let mut first = node.connect().await;
    first.write_all(b"GET /status HTTP/1.1\r\nHost: q\r\n\r\n").await.unwrap();
    let mut byte = [0];
    first.read_exact(&mut byte).await.unwrap();
    let mut second = node.connect().await;
    second
        .write_all(b"GET /status HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(30), second.read_exact(&mut byte));
    assert!(waiting.await.is_err());
    drop(first);
    let mut answer = Vec::new();
    second.read_to_end(&mut answer).await.unwrap();
    assert_eq!(Reply::parse(&answer).status, 200);
}

#[tokio::test]
async fn a_closed_gate_says_that_the_node_is_loading() {
    let gate = Arc::new(Gate::<Fake>::new());
    let (address, _stop, _served) =
        listen(Arc::clone(&gate), app_options(), ServeOptions::default()).await;
    let reply = send(address, "GET", "/health", "", "").await;
    assert_eq!((reply.status, &reply.json()["raft"]["role"]), (503, &json!("candidate")));
    assert_eq!(reply.json()["raft"]["leader"], false);
    let reply = send(address, "GET", "/api/v1/pop/queue/q?wait=true", "", "").await;
    assert_eq!((reply.status, &reply.json()["code"]), (503, &json!("retry")));
    assert!(reply.body.contains("timeout"), "{reply:?}");
    gate.open(Arc::new(Fake::default()));
    assert_eq!(send(address, "GET", "/health", "", "").await.status, 200);
    assert_eq!(send(address, "GET", "/api/v1/pop/queue/q", "", "").await.status, 204);
}

#[tokio::test]
async fn http2_works_by_prior_knowledge() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let node = Node::start().await;
    let io = TokioIo::new(node.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let driver = tokio::spawn(connection);
    let body = Full::new(bytes::Bytes::from_static(br#"{"items":[{"queue":"q","payload":1}]}"#));
    let uri = format!("http://{}/api/v1/push", node.address);
    let request = hyper::Request::post(uri).body(body).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 201);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"[{\"index\":0"));
    driver.abort();
}
