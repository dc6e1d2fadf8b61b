//! The network between nodes: streams over pipes that delay, stall, stop and break.
//!
//! What it does to a stream is what happens to one over TCP: bytes arrive late, in order, or not at all; a cut in one
//! direction holds back what goes that way until it is healed; a node that lost its power says nothing to those who are
//! connected with it, until it is back and breaks what it does not know; one that was killed closes its streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use queen_raft::{Link, Listen, Network};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use xxhash_rust::xxh3::xxh3_64;

use super::trace::Trace;
use crate::rng::Rng;

/// Bytes under way in one direction of a stream, at most.
const WINDOW_BYTES: usize = 256 << 10;

/// One life of a node as the others see it: it ends with the node's power, or when the node is killed.
pub(crate) type Life = Arc<AtomicBool>;

/// How fast bytes travel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// Most of them take up to this long, ms.
    pub usual_ms: u64,
    /// One in this many takes longer.
    pub odd_one_in: u64,
    /// Up to this long, ms.
    pub odd_ms: u64,
}

/// The network. Clones are handles of one.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<Inner>>);

/// Who listens, and where links to it go.
type Listener = (u64, Life, mpsc::UnboundedSender<Box<dyn Link>>);

struct Inner {
    rng: Rng,
    delays: Delays,
    trace: Trace,
    listeners: BTreeMap<String, Listener>,
    /// From whom to whom nothing passes.
    cuts: BTreeSet<(u64, u64)>,
    /// From whom to whom everything takes this much longer.
    slow: BTreeMap<(u64, u64), Duration>,
    pipes: Vec<Weak<Pipe>>,
    numbers: u64,
}

impl Net {
    /// Nobody listens yet.
    pub(crate) fn new(seed: u64, delays: Delays, trace: Trace) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            rng: Rng::new(seed),
            delays,
            trace,
            listeners: BTreeMap::new(),
            cuts: BTreeSet::new(),
            slow: BTreeMap::new(),
            pipes: Vec::new(),
            numbers: 0,
        })))
    }

    /// The network as one life of a node sees it.
    pub(crate) fn of(&self, node: u64, life: Life) -> NodeNet {
        NodeNet { net: self.clone(), node, life }
    }

    /// Lets nothing pass from one node to the other.
    pub(crate) fn cut(&self, from: u64, to: u64) {
        self.0.lock().cuts.insert((from, to));
    }

    /// Makes everything from one node to the other take longer.
    pub(crate) fn slow(&self, from: u64, to: u64, by: Duration) {
        self.0.lock().slow.insert((from, to), by);
    }

    /// Takes all cuts and slowness away, or those of one direction; what was held back comes a little later.
    pub(crate) fn heal(&self, which: impl Fn(u64, u64) -> bool) {
        let inner = &mut *self.0.lock();
        inner.slow.retain(|(from, to), _| !which(*from, *to));
        let healed: Vec<(u64, u64)> =
            inner.cuts.iter().copied().filter(|(from, to)| which(*from, *to)).collect();
        for way in &healed {
            inner.cuts.remove(way);
        }
        for pipe in inner.pipes.iter().filter_map(Weak::upgrade) {
            if healed.contains(&(pipe.from.0, pipe.to.0)) {
                // Whoever sends again waits longer each time.
                let again = Duration::from_millis(inner.rng.below(200));
                pipe.state.lock().open(Instant::now() + again);
            }
        }
    }

    /// Whether bytes pass from one node to the other.
    pub(crate) fn passes(&self, from: u64, to: u64) -> bool {
        !self.0.lock().cuts.contains(&(from, to))
    }

    /// A node is back: streams of its earlier lives break.
    pub(crate) fn reset(&self, node: u64) {
        let inner = &mut *self.0.lock();
        inner.pipes.retain(|pipe| pipe.strong_count() > 0);
        for pipe in inner.pipes.iter().filter_map(Weak::upgrade) {
            let is_past = |(of, life): &(u64, Life)| *of == node && !life.load(Ordering::SeqCst);
            if is_past(&pipe.from) || is_past(&pipe.to) {
                pipe.state.lock().break_off();
            }
        }
    }

    fn delay(&self, from: u64, to: u64) -> Duration {
        self.0.lock().delay(from, to)
    }
}

impl Inner {
    fn delay(&mut self, from: u64, to: u64) -> Duration {
        let Delays { usual_ms, odd_one_in, odd_ms } = self.delays;
        let mut ms = 1 + self.rng.below(usual_ms);
        if self.rng.below(odd_one_in) == 0 {
            ms += self.rng.below(odd_ms);
        }
        let slow = self.slow.get(&(from, to)).copied().unwrap_or_default();
        Duration::from_millis(ms) + slow
    }
}

/// The network as one life of a node sees it.
pub(crate) struct NodeNet {
    net: Net,
    node: u64,
    life: Life,
}

impl Network for NodeNet {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>> {
        Box::pin(async move {
            let target = address_node(address)?;
            let there_and_back =
                self.net.delay(self.node, target) + self.net.delay(target, self.node);
            sleep(there_and_back).await;
            if !self.net.passes(self.node, target) || !self.net.passes(target, self.node) {
                std::future::pending::<()>().await;
            }
            let inner = &mut *self.net.0.lock();
            let found = inner.listeners.get(address).cloned();
            let Some((node, life, to)) = found.filter(|(_, life, _)| life.load(Ordering::SeqCst))
            else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            inner.numbers += 1;
            let number = inner.numbers;
            inner.trace.note(format_args!("net {}>{node} #{number} connects", self.node));
            let mut pipe = |from: (u64, Life), to: (u64, Life)| {
                let pipe = Arc::new(Pipe {
                    net: self.net.clone(),
                    number,
                    from,
                    to,
                    state: Mutex::default(),
                });
                inner.pipes.push(Arc::downgrade(&pipe));
                pipe
            };
            let (here, there) = ((self.node, self.life.clone()), (node, life));
            let (out, back) = (pipe(here.clone(), there.clone()), pipe(there, here));
            let far = SimLink { reads: out.clone(), writes: back.clone(), due: None };
            let near: Box<dyn Link> = Box::new(SimLink { reads: back, writes: out, due: None });
            to.send(Box::new(far)).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(near)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listen>>> {
        Box::pin(async move {
            let (sender, waiting) = mpsc::unbounded_channel();
            let listener = (self.node, self.life.clone(), sender);
            self.net.0.lock().listeners.insert(address.to_string(), listener);
            let waiting: Box<dyn Listen> = Box::new(Waiting(waiting));
            Ok(waiting)
        })
    }
}

/// Where a node listens.
pub(crate) fn address_of(node: u64) -> SocketAddr {
    let port = u16::try_from(node).unwrap_or(u16::MAX);
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn address_node(address: &str) -> io::Result<u64> {
    let parsed: SocketAddr = address.parse().map_err(io::Error::other)?;
    Ok(parsed.port().into())
}

struct Waiting(mpsc::UnboundedReceiver<Box<dyn Link>>);

impl Listen for Waiting {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>> {
        Box::pin(async move {
            match self.0.recv().await {
                Some(link) => Ok(link),
                None => std::future::pending().await,
            }
        })
    }
}

/// One direction of a stream.
struct Pipe {
    net: Net,
    number: u64,
    from: (u64, Life),
    to: (u64, Life),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes under way, and when they are there.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// When the last of them is there.
    last_at: Option<Instant>,
    /// Nothing arrives before that.
    not_before: Option<Instant>,
    /// Whether the writer has ended.
    is_closed: bool,
    is_broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn break_off(&mut self) {
        self.is_broken = true;
        self.wake();
    }

    fn open(&mut self, at: Instant) {
        self.not_before = Some(at);
        self.wake();
    }
}

/// One end of a stream.
struct SimLink {
    reads: Arc<Pipe>,
    writes: Arc<Pipe>,
    /// Wakes the reader when bytes are there.
    due: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for SimLink {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = self.reads.clone();
        let passes = pipe.net.passes(pipe.from.0, pipe.to.0);
        let mut state = pipe.state.lock();
        if state.is_broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let head = state.chunks.front().map(|(at, _)| *at);
        if head.is_none() && state.is_closed {
            return Poll::Ready(Ok(()));
        }
        state.reader = Some(cx.waker().clone());
        let Some(at) = head.filter(|_| passes) else { return Poll::Pending };
        let at = state.not_before.map_or(at, |least| least.max(at));
        if at > Instant::now() {
            let mut due = Box::pin(sleep_until(at));
            let is_due = due.as_mut().poll(cx).is_ready();
            self.due = Some(due);
            if !is_due {
                return Poll::Pending;
            }
        }
        if let Some((_, chunk)) = state.chunks.front_mut() {
            let count = buf.remaining().min(chunk.len());
            let rest = chunk.split_off(count);
            buf.put_slice(chunk);
            *chunk = rest;
            state.bytes -= count;
            if state.chunks.front().is_some_and(|(_, rest)| rest.is_empty()) {
                state.chunks.pop_front();
            }
        }
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimLink {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let pipe = &self.writes;
        if !pipe.from.1.load(Ordering::SeqCst) {
            // Without power nothing leaves; the task ends in a moment.
            return Poll::Pending;
        }
        let delay = pipe.net.delay(pipe.from.0, pipe.to.0);
        let mut state = pipe.state.lock();
        if state.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.bytes >= WINDOW_BYTES {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = bytes.len().min(WINDOW_BYTES);
        let bytes = bytes.get(..count).unwrap_or_default();
        let at = Instant::now() + delay;
        let at = state.last_at.map_or(at, |last| last.max(at));
        state.last_at = Some(at);
        state.bytes += count;
        state.chunks.push_back((at, bytes.to_vec()));
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        drop(state);
        let trace = pipe.net.0.lock().trace.clone();
        trace.note(format_args!(
            "net {}>{} #{} {count} bytes {:016x} in {} ms",
            pipe.from.0,
            pipe.to.0,
            pipe.number,
            xxh3_64(bytes),
            delay.as_millis()
        ));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.writes.state.lock();
        state.is_closed = true;
        state.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        if !self.writes.from.1.load(Ordering::SeqCst) {
            // Nobody is left to say that the stream ends.
            return;
        }
        for pipe in [&self.writes, &self.reads] {
            let mut state = pipe.state.lock();
            state.is_closed = true;
            state.is_broken |= Arc::ptr_eq(pipe, &self.reads);
            state.wake();
        }
    }
}
