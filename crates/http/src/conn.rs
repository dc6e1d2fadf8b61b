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
//!
//! The socket also tells of a client that left while its pop waits: hyper reads no more once it holds a byte
//! that follows the request, and would not see the end. And it reads what a client still sends to a closed
//! connection for a moment, because the kernel answers unread bytes with a reset, which overtakes the answer.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::budget::Taker;

/// How often the end of a client is looked for while unread bytes of it hide the event.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a closed connection is read so that its last answer arrives.
const LINGER: Duration = Duration::from_secs(1);
/// For how many bytes it is at least.
const LINGER_BYTES_MIN: usize = 4 << 20;

/// What the handlers and the socket of one connection tell each other, and the server.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    running: AtomicU32,
    /// Those of `running` that wait for something on behalf of their client.
    waiting: AtomicU32,
    /// Handlers that ended; wraps.
    ended: AtomicU32,
    is_http2: AtomicBool,
    /// Bytes of a head have come, and its handler has not ended.
    in_head: AtomicBool,
    /// The client takes no more of an answer now.
    is_write_blocked: AtomicBool,
    /// The last answer left a part of its request unread.
    pub(crate) leaves_unread: AtomicBool,
    /// What the client takes.
    pub(crate) taker: Arc<Taker>,
}

impl Activity {
    /// A handler runs until the guard is dropped; one that `waits` is of no use once the client left.
    pub(crate) fn start(self: &Arc<Self>, is_http2: bool, waits: bool) -> Running {
        if is_http2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        // HTTP/2 reads all the time and sees the end itself.
        let waits = waits && !is_http2;
        self.waiting.fetch_add(u32::from(waits), Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        Running { activity: Arc::clone(self), waits }
    }

    /// Whether all there is on the connection is a part of a head.
    pub(crate) fn is_receiving_head(&self) -> bool {
        self.in_head.load(Ordering::Relaxed)
            && !self.is_exempt()
            && !self.is_write_blocked.load(Ordering::Relaxed)
    }

    fn is_exempt(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0 || self.is_http2.load(Ordering::Relaxed)
    }
}

/// A running handler.
#[derive(Debug)]
pub(crate) struct Running {
    activity: Arc<Activity>,
    waits: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.activity.in_head.store(false, Ordering::Relaxed);
        self.activity.ended.fetch_add(1, Ordering::Relaxed);
        self.activity.waiting.fetch_sub(u32::from(self.waits), Ordering::Relaxed);
        self.activity.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Bytes of a refused body that are still read, and thrown away: clients that send all of it first see the answer.
    pub(crate) linger_bytes: usize,
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
    /// Handlers that had ended at the last look: a quick one starts and ends between two looks.
    ended_seen: u32,
    /// Fires at or before `at`.
    timer: Pin<Box<Sleep>>,
    /// Set while a closed connection is still read.
    linger: Option<Linger>,
}

#[derive(Clone, Copy, Debug)]
struct Linger {
    until: Instant,
    bytes: usize,
}

impl TimedStream {
    pub(crate) fn new(stream: TcpStream, activity: Arc<Activity>, deadlines: Deadlines) -> Self {
        let at = Instant::now() + deadlines.head;
        let timer = Box::pin(tokio::time::sleep_until(at));
        Self { stream, activity, deadlines, at, ended_seen: 0, timer, linger: None }
    }

    /// Takes note of ended handlers; whether there is no deadline now.
    fn look(&mut self) -> bool {
        let ended = self.activity.ended.load(Ordering::Relaxed);
        if self.ended_seen != ended {
            self.ended_seen = ended;
            self.at = Instant::now() + self.deadlines.idle;
        }
        self.activity.is_exempt()
    }

    fn has_read(&mut self) {
        if !self.look() && !self.activity.in_head.swap(true, Ordering::Relaxed) {
            self.at = Instant::now() + self.deadlines.head;
        }
    }

    /// An answer that a slow client takes piece by piece is not idleness.
    fn has_written(&mut self) {
        if !self.look() && !self.activity.in_head.load(Ordering::Relaxed) {
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

    fn has_tried_to_write(&mut self, poll: &Poll<io::Result<usize>>) {
        self.activity.is_write_blocked.store(poll.is_pending(), Ordering::Relaxed);
        if let Poll::Ready(Ok(bytes)) = poll {
            self.activity.taker.took(*bytes);
            self.has_written();
        }
    }

    /// Ready when a handler waits for a client that has left; otherwise the task is woken to look again.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.activity.waiting.load(Ordering::Relaxed) == 0 {
            return Poll::Pending;
        }
        // Pending here means that the next event of the socket wakes the task.
        if self.stream.poll_read_ready(context).is_pending() {
            return Poll::Pending;
        }
        // There are unread bytes, or the end. Priority data is not asked for, so this is about the end only.
        let mut look = Context::from_waker(Waker::noop());
        match pin!(self.stream.ready(Interest::PRIORITY)).poll(&mut look) {
            Poll::Ready(Ok(found)) if !found.is_read_closed() => {}
            Poll::Ready(_) => return Poll::Ready(()),
            Poll::Pending => {}
        }
        // The timer may fire early for `poll_deadline`.
        self.timer.as_mut().reset(Instant::now() + LOOK_EVERY);
        if self.timer.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Reads and discards until the client ends too, when there is something to discard at all, or more is to come.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.linger.is_none() && self.activity.leaves_unread.load(Ordering::Relaxed) {
            self.linger = Some(Linger { until: Instant::now() + LINGER, bytes: 0 });
        }
        let mut space = [MaybeUninit::uninit(); 8192];
        loop {
            let mut buffer = ReadBuf::uninit(&mut space);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let until = Instant::now() + LINGER;
                    let linger = self.linger.get_or_insert(Linger { until, bytes: 0 });
                    linger.bytes += buffer.filled().len();
                    if linger.bytes > self.deadlines.linger_bytes.max(LINGER_BYTES_MIN) {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        let Some(linger) = self.linger else { return Poll::Ready(()) };
        self.timer.as_mut().reset(linger.until);
        self.timer.as_mut().poll(context)
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
        self.has_tried_to_write(&poll);
        poll
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.has_tried_to_write(&poll);
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes whenever it is woken, also while it reads nothing.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.poll_gone(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        self.poll_linger(context).map(Ok)
    }
}
