//! The runtime that serves HTTP, and the word to the core that no more requests are at hand.

use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Runtime};

/// Something to call; it must return at once.
pub(crate) type Hook = Arc<dyn Fn() + Send + Sync>;

/// Called by the threads of the runtime when they fall asleep and when they wake.
///
/// A thread that falls asleep has passed on every request that was ready: the core need not wait for more
/// before it closes a batch. Empty until the broker is open.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    park: Arc<OnceLock<Hook>>,
    unpark: Arc<OnceLock<Hook>>,
}

impl Hooks {
    /// Sets both hooks, once.
    pub(crate) fn set(&self, park: Hook, unpark: Hook) {
        // There is one broker per process, so the first hooks stay.
        self.park.get_or_init(|| park);
        self.unpark.get_or_init(|| unpark);
    }
}

/// Makes the runtime.
///
/// # Errors
/// The system gives no threads.
pub(crate) fn build(threads: u64, hooks: &Hooks) -> std::io::Result<Runtime> {
    let call = |cell: &Arc<OnceLock<Hook>>| {
        let cell = Arc::clone(cell);
        move || {
            if let Some(hook) = cell.get() {
                hook();
            }
        }
    };
    Builder::new_multi_thread()
        .worker_threads(usize::try_from(threads).unwrap_or(1).max(1))
        .thread_name("queen-http")
        .enable_all()
        .on_thread_park(call(&hooks.park))
        .on_thread_unpark(call(&hooks.unpark))
        .build()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_falls_asleep_calls_the_hook() {
        let hooks = Hooks::default();
        let runtime = build(1, &hooks).unwrap();
        let (sender, receiver) = mpsc::channel();
        let park = move || sender.send(()).unwrap_or_default();
        hooks.set(Arc::new(park), Arc::new(|| {}));
        runtime.spawn(async {});
        receiver.recv().unwrap();
        runtime.shutdown_background();
    }
}
