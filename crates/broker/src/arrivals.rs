//! Who waits for messages by offset: nobody is asked again before something arrived for it.
//!
//! The core shows every applied entry here. While nobody waits that is one load of a counter; else one look-up per
//! append, and only those who wait for its partition wake.
//!
//! A1. Whoever registers and then reads the state misses nothing: the counter goes up before the read, and the core
//!     looks at it after it gave the state's lock back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use queen_model::{Effect, Entry};
use queen_record::hash::queue_id;
use queen_record::ids::{PartitionId, QueueId};
use tokio::sync::Notify;

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watched {
    /// A message in this partition.
    Partition(PartitionId),
    /// A partition of this name.
    Name(QueueId, Arc<str>),
}

/// Registrations at most, over all who wait; one that does not fit is answered at once.
const WATCHED_MAX: usize = 1 << 20;

/// Everybody who waits.
#[derive(Default)]
pub(crate) struct Arrivals {
    waiting: AtomicUsize,
    stopped: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By what is waited for and by who waits.
    waiters: BTreeMap<(Watched, u64), Arc<Notify>>,
}

/// One registration; ends when it is dropped.
pub(crate) struct Waiter {
    arrivals: Arc<Arrivals>,
    number: u64,
    watched: Vec<Watched>,
    notify: Arc<Notify>,
}

impl Arrivals {
    /// Registers for all of `watched`. `None`: do not wait, the node stops or too many wait.
    pub(crate) fn wait_for(self: &Arc<Self>, watched: Vec<Watched>) -> Option<Waiter> {
        let mut table = self.table.lock();
        let room = WATCHED_MAX.saturating_sub(table.waiters.len());
        if self.stopped.load(Ordering::SeqCst) || watched.len() > room {
            return None;
        }
        table.next += 1;
        let (number, notify) = (table.next, Arc::new(Notify::new()));
        for key in &watched {
            table.waiters.insert((key.clone(), number), notify.clone());
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Some(Waiter { arrivals: self.clone(), number, watched, notify })
    }

    /// Wakes whom an applied entry concerns.
    pub(crate) fn applied(&self, entry: &Entry) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let table = self.table.lock();
        for effect in &entry.effects {
            match effect {
                Effect::Append(append) => table.wake(&Watched::Partition(append.id)),
                Effect::PartitionCreate(create) => {
                    let queue = queue_id(create.tenant, &create.queue);
                    table.wake(&Watched::Name(queue, (&*create.partition).into()));
                }
                // What was waited for may never come.
                Effect::QueueDelete { .. } | Effect::PartitionDelete { .. } => table.wake_all(),
                _ => {}
            }
        }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether nobody may wait any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Wakes everybody, and lets nobody wait any more.
    pub(crate) fn stop(&self) {
        let table = self.table.lock();
        self.stopped.store(true, Ordering::SeqCst);
        table.wake_all();
    }
}

impl Table {
    fn wake(&self, key: &Watched) {
        let all = (key.clone(), 0)..=(key.clone(), u64::MAX);
        for waiter in self.waiters.range(all) {
            waiter.1.notify_one();
        }
    }

    fn wake_all(&self) {
        self.waiters.values().for_each(|waiter| waiter.notify_one());
    }
}

impl Waiter {
    /// Completes once something arrived since the registration or the last call.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// What it waits for.
    pub(crate) fn watched(&self) -> &[Watched] {
        &self.watched
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut table = self.arrivals.table.lock();
        for key in self.watched.drain(..) {
            table.waiters.remove(&(key, self.number));
        }
        self.arrivals.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use queen_model::PartitionCreate;
    use queen_record::ids::{Micros, Tenant, Uuid};

    use super::*;

    fn entry(effects: Vec<Effect>) -> Entry {
        Entry {
            now: Micros(1),
            pid_base: PartitionId(1),
            kv_version_base: 1,
            commands: Vec::new(),
            effects,
        }
    }

    fn made(queue: &str, partition: &str) -> Effect {
        Effect::PartitionCreate(PartitionCreate {
            id: PartitionId(1),
            uuid: Uuid([0; 16]),
            tenant: Tenant::DEFAULT,
            queue: queue.to_owned(),
            partition: partition.to_owned(),
            created: Micros(1),
        })
    }

    fn is_woken(waiter: &Waiter) -> bool {
        let mut woken = pin!(waiter.woken());
        woken.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn only_whom_it_concerns_wakes_and_once() {
        let arrivals = Arc::new(Arrivals::default());
        let queue = queue_id(Tenant::DEFAULT, "q");
        let waits = |key| arrivals.wait_for(vec![key]).unwrap();
        let named = waits(Watched::Name(queue, "p".into()));
        let other = waits(Watched::Name(queue, "other".into()));
        arrivals.applied(&entry(vec![made("q", "p"), made("elsewhere", "other")]));
        assert!(is_woken(&named) && !is_woken(&named) && !is_woken(&other));
        let gone = Effect::QueueDelete { tenant: Tenant::DEFAULT, queue: "x".to_owned() };
        arrivals.applied(&entry(vec![gone]));
        assert!(is_woken(&named) && is_woken(&other));
    }

    #[test]
    fn what_is_dropped_leaves_nothing() {
        let arrivals = Arc::new(Arrivals::default());
        let keys: Vec<Watched> = (1..9).map(|id| Watched::Partition(PartitionId(id))).collect();
        let first = arrivals.wait_for(keys.clone()).unwrap();
        let second = arrivals.wait_for(keys).unwrap();
        drop(first);
        assert_eq!(arrivals.table.lock().waiters.len(), 8);
        drop(second);
        assert!(arrivals.table.lock().waiters.is_empty());
        assert_eq!(arrivals.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_stop_wakes_everybody_and_nobody_waits_after_it() {
        let arrivals = Arc::new(Arrivals::default());
        let waiter = arrivals.wait_for(vec![Watched::Partition(PartitionId(1))]).unwrap();
        arrivals.stop();
        assert!(is_woken(&waiter));
        assert!(arrivals.wait_for(Vec::new()).is_none());
    }
}
