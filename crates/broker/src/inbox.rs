//! The way into the core thread: many senders, one receiver that sleeps when there is nothing to do.
//!
//! Nothing here waits for a timer while the node is idle. A lone request reaches the core as soon as its sender's
//! thread has nothing else ready; under load requests gather while the disk is busy. After a round of answers the core
//! gives the threads that were just woken the time to hand in what their clients send next, but no longer than its last
//! round took: one larger group costs one sync, two smaller ones cost two.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cycle::Input;
use crate::offload;

/// Requests that are handed over although the sender's thread is still busy.
const GATHER_COUNT: usize = 512;
/// The longest that a request waits for its sender's thread to run out of ready work.
const GATHER_MAX: Duration = Duration::from_micros(300);

/// The inbox.
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    len: AtomicUsize,
    max: usize,
    core: OnceLock<Thread>,
    sleeping: AtomicBool,
    /// How often a serving thread ran out of ready work; 0 for ever when none reports it.
    idles: AtomicU64,
}

struct Queue {
    inputs: Vec<Input>,
    oldest: Option<Instant>,
    /// Requests are refused: why. Answers from the logs still come in.
    refusing: Option<String>,
    closed: bool,
}

/// Why a request is not taken.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// The node takes nothing more.
    Closed(String),
    /// As many wait as may.
    Full,
}

impl Inbox {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            queue: Mutex::new(Queue {
                inputs: Vec::new(),
                oldest: None,
                refusing: None,
                closed: false,
            }),
            len: AtomicUsize::new(0),
            max,
            core: OnceLock::new(),
            sleeping: AtomicBool::new(false),
            idles: AtomicU64::new(0),
        }
    }

    /// Names the receiving thread: the caller's.
    pub(crate) fn receive_here(&self) {
        self.core.get_or_init(std::thread::current);
    }

    /// Hands in a request from a serving thread.
    pub(crate) fn send(&self, input: Input) -> Result<(), NotTaken> {
        let reports_idle = self.idles.load(Ordering::Relaxed) > 0 && !offload::has_left();
        let (len, waited) = self.put(input, true)?;
        if !reports_idle || len >= GATHER_COUNT || waited > GATHER_MAX {
            self.wake();
        }
        Ok(())
    }

    /// Hands in something from a thread that reports nothing.
    pub(crate) fn send_now(&self, input: Input) -> Result<(), NotTaken> {
        self.put(input, false)?;
        self.wake();
        Ok(())
    }

    fn put(&self, input: Input, request: bool) -> Result<(usize, Duration), NotTaken> {
        let mut queue = self.queue.lock();
        if let Some(reason) = &queue.refusing
            && (request || queue.closed)
        {
            return Err(NotTaken::Closed(reason.clone()));
        }
        // Pops that are given up must still be told: they only make room.
        let frees = matches!(input, Input::Abandon(_));
        if request && !frees && queue.inputs.len() >= self.max {
            return Err(NotTaken::Full);
        }
        queue.inputs.push(input);
        let now = Instant::now();
        let oldest = *queue.oldest.get_or_insert(now);
        let len = queue.inputs.len();
        self.len.store(len, Ordering::SeqCst);
        Ok((len, now.duration_since(oldest)))
    }

    /// A serving thread has no more ready work.
    pub(crate) fn idle(&self) {
        offload::is_serving();
        self.idles.fetch_add(1, Ordering::Relaxed);
        if self.len.load(Ordering::Acquire) > 0 {
            self.wake();
        }
    }

    pub(crate) fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(core) = self.core.get()
        {
            core.unpark();
        }
    }

    /// Takes everything that arrived.
    pub(crate) fn take(&self, into: &mut Vec<Input>) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queue = self.queue.lock();
        into.append(&mut queue.inputs);
        queue.oldest = None;
        self.len.store(0, Ordering::Release);
    }

    /// Sleeps until something arrives or `limit` is over.
    pub(crate) fn sleep(&self, limit: Option<Duration>) {
        self.sleeping.store(true, Ordering::SeqCst);
        // What arrived before the flag was up may have woken nobody.
        if self.len.load(Ordering::SeqCst) == 0 {
            match limit {
                Some(limit) => std::thread::park_timeout(limit),
                None => std::thread::park(),
            }
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Lets the threads that were just answered hand in what comes next.
    pub(crate) fn gather(&self, limit: Duration) {
        let before = self.idles.load(Ordering::SeqCst);
        if before == 0 || self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let until = Instant::now() + limit.min(GATHER_MAX);
        self.sleeping.store(true, Ordering::SeqCst);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let idled = self.idles.load(Ordering::SeqCst) != before;
            if left.is_zero() || idled || self.len.load(Ordering::Acquire) >= GATHER_COUNT {
                break;
            }
            std::thread::park_timeout(left);
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Refuses requests from now on; what is under way can still be finished.
    pub(crate) fn refuse(&self, reason: &str) {
        self.queue.lock().refusing.get_or_insert_with(|| reason.to_owned());
        self.rouse();
    }

    /// Wakes the core from this sleep or the next one: it may be about to begin one, and nothing will arrive.
    fn rouse(&self) {
        if let Some(core) = self.core.get() {
            core.unpark();
        }
    }

    /// Whether requests are refused.
    pub(crate) fn is_refusing(&self) -> bool {
        self.queue.lock().refusing.is_some()
    }

    /// Takes nothing more; what is waiting is dropped with its callers' answers.
    pub(crate) fn close(&self, reason: &str) {
        let mut queue = self.queue.lock();
        queue.refusing.get_or_insert_with(|| reason.to_owned());
        queue.closed = true;
        queue.inputs.clear();
        self.len.store(0, Ordering::Release);
        drop(queue);
        self.rouse();
    }

    pub(crate) fn depth(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wakes(inbox: &Inbox) -> bool {
        inbox.take(&mut Vec::new());
        inbox.sleeping.store(true, Ordering::SeqCst);
        inbox.send(Input::Abandon(1)).unwrap();
        !inbox.sleeping.load(Ordering::SeqCst)
    }

    /// A thread that serves wakes the core when it has no more to do, with all that it has handed in. One that left for a
    /// long computation does not come to that.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_thread_that_left_to_compute_wakes_the_core_itself() {
        tokio::spawn(async {
            let inbox = Inbox::new(10);
            inbox.idle();
            assert!(!wakes(&inbox));
            offload::offload(u64::MAX, || ());
            assert!(wakes(&inbox));
            inbox.idle();
            assert!(!wakes(&inbox));
        })
        .await
        .unwrap();
    }

    /// The core looks whether requests are refused, and then goes to sleep: what happens between the two must wake it.
    #[test]
    fn a_refusal_between_a_look_and_a_sleep_is_not_slept_through() {
        for ends in [Inbox::refuse as fn(&Inbox, &str), Inbox::close] {
            let inbox = Inbox::new(1);
            inbox.receive_here();
            assert!(!inbox.is_refusing());
            ends(&inbox, "it stops");
            // Without an end this waits for ever.
            inbox.sleep(None);
            assert!(inbox.is_refusing());
        }
    }
}
