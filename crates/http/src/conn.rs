//! A connection's socket with two deadlines that hyper does not keep apart.
//!
//! hyper starts its header timer when it waits for a request, so a short one ends idle connections too, and
//! nothing bounds the bytes by which the protocol version is told. Here the socket itself keeps both:
//!
//! ```text
//!   opened, idle --first byte--> head --handler starts--> busy --handler ends--> idle
//!   deadline: head (opened)      head                     none                   idle
//! ```
//!
//! A passed deadline is a read error, and hyper closes the connection. While a handler runs, the handler has
//! its own deadlines. HTTP/2 connections are left to HTTP/2's pings once a request was seen.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// What the handlers tell the socket of their connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    running: AtomicU32,
    /// Handlers that ended; wraps.
    ended: AtomicU32,
    is_http2: AtomicBool,
}

impl Activity {
    /// A handler runs until the guard is dropped.
    pub(crate) fn start(self: &Arc<Self>, is_http2: bool) -> Running {
        if is_http2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(self))
    }

    fn is_exempt(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0 || self.is_http2.load(Ordering::Relaxed)
    }
}

/// A running handler.
#[derive(Debug)]
pub(crate) struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The deadlines of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub(crate) head: Duration,
    pub(crate) idle: Duration,
}

/// The socket.
pub(crate) struct TimedStream {
    stream: TcpStream,
    activity: Arc<Activity>,
    deadlines: Deadlines,
    /// When the running deadline passes.
    at: Instant,
    /// Bytes of a head have come, so that later bytes do not move the deadline.
    in_head: bool,
    /// Handlers that had ended at the last look: a quick one starts and ends between two looks.
    ended_seen: u32,
    /// Fires at or before `at`.
    timer: Pin<Box<Sleep>>,
}

impl TimedStream {
    pub(crate) fn new(stream: TcpStream, activity: Arc<Activity>, deadlines: Deadlines) -> Self {
        let at = Instant::now() + deadlines.head;
        let timer = Box::pin(tokio::time::sleep_until(at));
        Self { stream, activity, deadlines, at, in_head: false, ended_seen: 0, timer }
    }

    /// Takes note of ended handlers; whether there is no deadline now.
    fn look(&mut self) -> bool {
        let ended = self.activity.ended.load(Ordering::Relaxed);
        if self.ended_seen != ended {
            self.ended_seen = ended;
            self.in_head = false;
            self.at = Instant::now() + self.deadlines.idle;
        }
        self.activity.is_exempt()
    }

    fn has_read(&mut self) {
        if !self.look() && !self.in_head {
            self.in_head = true;
            self.at = Instant::now() + self.deadlines.head;
        }
    }

    /// An answer that a slow client takes piece by piece is not idleness.
    fn has_written(&mut self) {
        if !self.look() && !self.in_head {
            self.at = Instant::now() + self.deadlines.idle;
        }
    }

    /// Ready when the deadline has passed; otherwise the task is woken to look again.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_exempt = self.look();
            let now = Instant::now();
            if !is_exempt && now >= self.at {
                return Poll::Ready(());
            }
            // While a handler runs, no deadline is known; the timer then only has to fire soon enough for
            // the idle deadline that follows.
            let wanted = if is_exempt { now + self.deadlines.idle } else { self.at };
            if self.timer.deadline() > wanted || self.timer.is_elapsed() {
                self.timer.as_mut().reset(wanted);
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            if buffer.filled().len() > before {
                self.has_read();
            }
            return Poll::Ready(result);
        }
        self.poll_deadline(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(poll, Poll::Ready(Ok(_))) {
            self.has_written();
        }
        poll
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if matches!(poll, Poll::Ready(Ok(_))) {
            self.has_written();
        }
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
