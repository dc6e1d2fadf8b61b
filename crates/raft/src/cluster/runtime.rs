//! The runtime of the library and of a member's own tasks: tokio's.
//!
//! A member that runs alone has a runtime of its own. In a simulation all members share one thread, and each is a group
//! of [`Tasks`]: they end together, as when the power goes, take their chance from a seed, and block nobody.

mod watch;

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use openraft::rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioInstant, TokioMpsc, TokioMutex, TokioOneshot, TokioRuntime};
use parking_lot::Mutex;
use rand::{Rng, TryRng};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

tokio::task_local! {
    /// The group of the task that runs.
    static TASKS: Tasks;
}

/// Tasks that end together.
#[derive(Clone)]
pub struct Tasks(Arc<Group>);

struct Group {
    running: Mutex<Vec<AbortHandle>>,
    chance: Mutex<u64>,
    /// While the group stands still: who is to go on then.
    paused: Mutex<Option<Vec<Waker>>>,
    panicked: Mutex<Option<String>>,
    panic_told: Notify,
}

impl Tasks {
    /// No task yet; what the tasks draw comes from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Group {
            running: Mutex::default(),
            chance: Mutex::new(seed),
            paused: Mutex::default(),
            panicked: Mutex::default(),
            panic_told: Notify::new(),
        }))
    }

    /// Begins a task on the current runtime; whatever it begins belongs to the group too.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (group, mut future) = (self.clone(), Box::pin(TASKS.scope(self.clone(), future)));
        let task = tokio::spawn(poll_fn(move |cx| {
            if group.waits(cx) {
                return Poll::Pending;
            }
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))).unwrap_or_else(|panic| {
                group.0.panicked.lock().get_or_insert_with(|| text_of(&*panic));
                group.0.panic_told.notify_one();
                resume_unwind(panic)
            })
        }));
        let mut running = self.0.running.lock();
        if running.len() == running.capacity() {
            running.retain(|task| !task.is_finished());
        }
        running.push(task.abort_handle());
        task
    }

    /// Ends all of them where they wait.
    pub fn end(&self) {
        for task in std::mem::take(&mut *self.0.running.lock()) {
            task.abort();
        }
    }

    /// Lets none of them run until [`Tasks::go_on`].
    pub fn pause(&self) {
        self.0.paused.lock().get_or_insert_default();
    }

    /// Lets them run again.
    pub fn go_on(&self) {
        for task in self.0.paused.lock().take().into_iter().flatten() {
            task.wake();
        }
    }

    /// Waits until a task panics: the process of a real node ends with the first.
    pub async fn panic(&self) -> String {
        loop {
            let text = self.0.panicked.lock().clone();
            if let Some(text) = text {
                return text;
            }
            self.0.panic_told.notified().await;
        }
    }

    /// Whether the task has to wait; it is woken when it has not.
    fn waits(&self, cx: &Context<'_>) -> bool {
        let mut paused = self.0.paused.lock();
        let Some(waiting) = &mut *paused else { return false };
        waiting.push(cx.waker().clone());
        true
    }

    /// The next number of a splitmix64.
    fn draw(&self) -> u64 {
        let mut state = self.0.chance.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks", self.0.running.lock().len())
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Begins a task in the group of the calling one, if it has one.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match TASKS.try_with(Tasks::clone) {
        Ok(tasks) => tasks.spawn(future),
        Err(_) => tokio::spawn(future),
    }
}

/// Whether blocking work runs where it is: in a group nothing else may run meanwhile.
pub(crate) fn runs_inline() -> bool {
    TASKS.try_with(|_| ()).is_ok()
}

/// Does blocking work without holding up other tasks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    if runs_inline() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// Tokio, with these groups.
#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = tokio::time::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = Chance;
    type Mpsc = TokioMpsc;
    type Watch = watch::OrderedWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: TokioInstant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: TokioInstant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &JoinError) -> bool {
        error.is_panic()
    }

    fn thread_rng() -> Chance {
        Chance
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }

    fn spawn_blocking<F, T>(work: F) -> impl Future<Output = io::Result<T>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        blocking(work)
    }
}

/// Chance: the group's, or the system's.
pub(crate) struct Chance;

impl TryRng for Chance {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::try_from(self.next_u64() >> 32).unwrap_or_default())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(TASKS.try_with(Tasks::draw).unwrap_or_else(|_| rand::rng().next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(drawn.get(..chunk.len()).unwrap_or_default());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_one_thread<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap_or_else(|error| panic!("no runtime: {error}")).block_on(future)
    }

    #[test]
    fn a_group_draws_the_same_from_the_same_seed() {
        let draws = |seed| {
            on_one_thread(async move {
                let drawn = Tasks::new(seed).spawn(async { spawn(async { draw_some() }).await });
                drawn.await.ok().and_then(Result::ok)
            })
        };
        assert!(draws(1).is_some());
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
    }

    fn draw_some() -> ([u8; 11], u32) {
        let mut bytes = [0; 11];
        Runtime::thread_rng().fill_bytes(&mut bytes);
        (bytes, Runtime::thread_rng().next_u32())
    }

    #[test]
    fn a_paused_group_stands_still() {
        on_one_thread(async {
            let (tasks, (told, mut heard)) = (Tasks::new(0), tokio::sync::mpsc::channel(1));
            tasks.pause();
            tasks.spawn(async move { told.send(()).await });
            tokio::task::yield_now().await;
            assert!(heard.try_recv().is_err());
            tasks.go_on();
            assert_eq!(heard.recv().await, Some(()));
        });
    }

    #[test]
    fn a_panic_is_remembered() {
        on_one_thread(async {
            let tasks = Tasks::new(0);
            assert!(tasks.spawn(async { panic!("number {}", 7) }).await.is_err());
            assert_eq!(tasks.panic().await, "number 7");
        });
    }

    #[test]
    fn a_group_ends_with_all_that_its_tasks_began() {
        on_one_thread(async {
            let (tasks, (told, mut heard)) = (Tasks::new(0), tokio::sync::mpsc::channel::<()>(1));
            tasks.spawn(async move {
                spawn(async move {
                    std::future::pending::<()>().await;
                    drop(told);
                });
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            assert!(heard.try_recv().is_err());
            tasks.end();
            // The task inside lets go of its end when it is gone.
            assert_eq!(heard.recv().await, None);
        });
    }
}
