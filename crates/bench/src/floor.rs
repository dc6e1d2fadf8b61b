//! The floor: the least that a durable push over HTTP can cost on this machine, as a server of its own.
//!
//! It reads a body, appends it to one file, syncs once for every request that is ready, and answers. No JSON is read
//! and nothing can be popped. The sync runs on the one serving thread, as soon as no further request is ready.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::{Notify, oneshot};

/// Turns of the runtime without a new request after which the group is closed: one lets the sockets be polled, the
/// next ones let the requests found there be read.
const QUIET_TURNS: usize = 3;

#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Floor {
    group: Mutex<Group>,
    arrived: Notify,
}

/// Serves until the process is killed.
pub(crate) async fn serve(port: u16, path: &Path) -> anyhow::Result<()> {
    let floor = Arc::new(Floor::default());
    tokio::spawn(commit(floor.clone(), File::create(path)?));
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let floor = floor.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(floor.clone(), request));
            // A client that goes away ends its connection.
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(
    floor: Arc<Floor>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_push = request.method() == Method::POST;
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let body = body.unwrap_or_default();
    if is_push {
        let (sender, receiver) = oneshot::channel();
        {
            let mut group = floor.group.lock().unwrap();
            group.bytes.extend_from_slice(&body);
            group.waiting.push(sender);
        }
        floor.arrived.notify_one();
        receiver.await.unwrap();
    }
    Ok(Response::new(Full::new(body)))
}

async fn commit(floor: Arc<Floor>, mut file: File) {
    loop {
        floor.arrived.notified().await;
        let mut count = 0;
        loop {
            for _ in 0..QUIET_TURNS {
                tokio::task::yield_now().await;
            }
            let now = floor.group.lock().unwrap().waiting.len();
            if now == count {
                break;
            }
            count = now;
        }
        let group = std::mem::take(&mut *floor.group.lock().unwrap());
        file.write_all(&group.bytes).unwrap();
        file.sync_data().unwrap();
        for waiting in group.waiting {
            // Nobody listens when the client has gone.
            let _gone = waiting.send(());
        }
    }
}
