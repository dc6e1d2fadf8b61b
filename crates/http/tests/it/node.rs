//! A listener on a free port with a scripted broker behind it, and a client that sends bytes as they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use queen_broker::api::Api;
use queen_http::{App, AppOptions, Gate, HttpStats, ServeOptions, SubscribeDefault, serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake::Fake;

/// Body limit of the test nodes: small, so that a test can pass it quickly.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

pub(crate) struct Node {
    pub(crate) fake: Arc<Fake>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) served: JoinHandle<()>,
}

pub(crate) fn app_options() -> AppOptions {
    AppOptions {
        version: "1.2.3",
        body_bytes_max: BODY_BYTES_MAX,
        body_timeout: Duration::from_secs(30),
        default_timeout: Duration::from_secs(30),
        statement_timeout: Duration::from_secs(30),
        subscribe_default: SubscribeDefault::New,
        auth: None,
        tenancy_header: false,
        partitions_max: 10,
        stats: Arc::new(HttpStats::new()),
        prometheus: Arc::new(|| "queen_up 1\n".to_owned()),
        resident_bytes: Arc::new(|| 4096),
    }
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(app_options(), ServeOptions::default()).await
    }

    pub(crate) async fn start_with(app: AppOptions, serving: ServeOptions) -> Self {
        let fake = Arc::new(Fake::default());
        let gate = Arc::new(Gate::new());
        gate.open(Arc::clone(&fake));
        let (address, stop, served) = listen(gate, app, serving).await;
        Self { fake, address, stop: Some(stop), served }
    }

    /// Sends the bytes and reads until the connection ends.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Reply {
        raw(self.address, bytes).await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        send(self.address, method, path, "", body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Reply {
        self.send("POST", path, body).await
    }
}

/// Serves what is behind `gate` on a free port.
pub(crate) async fn listen<A: Api>(
    gate: Arc<Gate<A>>,
    app: AppOptions,
    serving: ServeOptions,
) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let app = Arc::new(App::new(gate, app));
    let served = tokio::spawn(serve(listener, app, serving, async move {
        stopped.await.ok();
    }));
    (address, stop, served)
}

/// One request on a connection of its own; `headers` are whole lines.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Reply {
    let length = match (method, body) {
        ("GET" | "HEAD" | "DELETE", "") => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: queen\r\nConnection: close\r\n");
    raw(address, format!("{head}{headers}{length}\r\n{body}").as_bytes()).await
}

pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Reply {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    // The server may answer and close before it has read everything.
    let write = async {
        writer.write_all(bytes).await.ok();
    };
    let read = async {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).await.ok();
        all
    };
    let ((), all) = tokio::join!(write, read);
    Reply::parse(&all)
}

/// An answer; status 0 when the connection ended without one.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn has_header(&self, line: &str) -> bool {
        self.head.lines().any(|found| found == line)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
