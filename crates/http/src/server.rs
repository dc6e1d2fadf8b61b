//! The accept loop: connections counted, heads bounded, and a stop that ends.
//!
//! A stop goes in three steps: accept no more; tell every connection to finish what it has and close; after
//! `stop_timeout` drop what is left. Parked pops end at once because the broker answers them. A request that
//! has not arrived as a whole is not waited for: nothing of it was accepted.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use queen_broker::api::Api;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, warn};

use crate::app::App;
use crate::conn::{Activity, Deadlines, TimedStream};
use crate::options::ServeOptions;

/// Bytes of a request head at most; more is answered 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Streams of one HTTP/2 connection: the requests of a busy client, each of which may be a parked pop.
const HTTP2_STREAMS_MAX: u32 = 1024;
/// Window of a stream: a push body of this size comes without a pause.
const HTTP2_STREAM_WINDOW: u32 = 1 << 20;
/// Window of a connection.
const HTTP2_CONNECTION_WINDOW: u32 = 4 << 20;
/// How often a silent HTTP/2 connection is asked whether its client is still there.
const HTTP2_PING: Duration = Duration::from_secs(20);
/// How long to wait when the process has no file descriptor left for a connection.
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(100);

/// Paths of the requests that wait for messages.
const POPS: &str = "/api/v1/pop/";

/// What the connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Finishing,
    Dropping,
}

/// Serves until `shutdown` completes and the connections are finished or dropped.
pub async fn serve<A: Api>(
    listener: TcpListener,
    app: Arc<App<A>>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) {
    let permits = Arc::new(Semaphore::new(options.connections_max as usize));
    let (phase, watched) = watch::channel(Phase::Serving);
    let builder = Arc::new(builder());
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            // The semaphore is never closed; without it the connection would only be uncounted.
            let permit = Arc::clone(&permits).acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = Connection {
                    app: Arc::clone(&app),
                    builder: Arc::clone(&builder),
                    phase: watched.clone(),
                    options,
                    permit,
                };
                tokio::spawn(connection.run(stream));
            }
            Err(error) if is_of_one_connection(&error) => debug!(%error, "connection not accepted"),
            Err(error) => {
                warn!(%error, "cannot accept connections now");
                tokio::time::sleep(ACCEPT_BACK_OFF).await;
            }
        }
    }
    drop(listener);
    phase.send_replace(Phase::Finishing);
    let all_closed = permits.acquire_many(options.connections_max);
    if tokio::time::timeout(options.stop_timeout, all_closed).await.is_err() {
        let left = options.connections_max as usize - permits.available_permits();
        warn!(connections = left, "connections are dropped: their requests did not finish in time");
        phase.send_replace(Phase::Dropping);
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The timer is for HTTP/1 too: hyper panics when a default of its own needs one and there is none.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        // Without pipeline_flush: it keeps an answer back while bytes of another request are there, also
        // the answer to a head that was refused, which then never leaves.
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_header_list_size(64 * 1024)
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(HTTP2_PING);
    builder
}

/// Whether an accept failed for the connection at hand only, so that the next may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

struct Connection<A> {
    app: Arc<App<A>>,
    builder: Arc<auto::Builder<TokioExecutor>>,
    phase: watch::Receiver<Phase>,
    options: ServeOptions,
    permit: Option<OwnedSemaphorePermit>,
}

impl<A: Api> Connection<A> {
    async fn run(self, stream: TcpStream) {
        let Self { app, builder, mut phase, options, permit } = self;
        if let Err(error) = stream.set_nodelay(true) {
            // The client is gone already; the first read says so too.
            debug!(%error, "TCP_NODELAY not set");
        }
        let activity = Arc::new(Activity::default());
        let deadlines = Deadlines {
            linger_bytes: app.options.body_bytes_max,
            head: options.head_timeout,
            idle: options.idle_timeout,
        };
        let stream = TimedStream::new(stream, Arc::clone(&activity), deadlines);
        let (told, of_service) = (phase.clone(), Arc::clone(&activity));
        let service = service_fn(move |request: Request<Incoming>| {
            let waits = request.uri().path().starts_with(POPS);
            let running = of_service.start(request.version() == Version::HTTP_2, waits);
            let (app, mut told) = (Arc::clone(&app), told.clone());
            let activity = Arc::clone(&of_service);
            async move {
                let stopping = async move {
                    // A lost sender is a server that is gone: a stop too.
                    drop(told.wait_for(|phase| *phase != Phase::Serving).await);
                };
                let answer = app.handle(request, &activity.taker, stopping).await;
                if answer.headers().contains_key(CONNECTION) {
                    activity.leaves_unread.store(true, Ordering::Relaxed);
                }
                drop(running);
                Ok::<_, Infallible>(answer)
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        loop {
            tokio::select! {
                result = &mut connection => {
                    if let Err(error) = result {
                        debug!(error = %error, "connection ended");
                    }
                    break;
                }
                () = activity.taker.ended() => {
                    debug!("connection ended: its client takes no answer, and others wait for room");
                    break;
                }
                changed = phase.changed() => match (changed, *phase.borrow_and_update()) {
                    (Ok(()), Phase::Serving) => {}
                    (Ok(()), Phase::Finishing) if activity.is_receiving_head() => break,
                    (Ok(()), Phase::Finishing) => connection.as_mut().graceful_shutdown(),
                    // The sender goes away only when the server itself was dropped.
                    (Ok(()), Phase::Dropping) | (Err(_), _) => break,
                }
            }
        }
        drop(permit);
    }
}
