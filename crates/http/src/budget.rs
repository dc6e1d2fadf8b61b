//! What answers hold in memory until their clients took them: one budget for all.
//!
//! Room is reserved before an answer is rendered, and given back when its last byte was taken or given up. A small answer
//! needs none. One connection holds a quarter of the budget, or one answer. When there is no room, connections that do
//! not take what waits for them are ended, and whoever asked waits until that is done.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::ApiError;

/// An answer of at most these bytes fits the socket's own buffers and is not counted.
pub(crate) const FREE_BYTES: u64 = 64 << 10;
/// How often those who wait look for connections that do not take their answers.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A connection that takes as much within the stall time is at work.
const PROGRESS_BYTES: u64 = 256 << 10;

/// The bounds of a budget.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes_max: u64,
    /// How long an answer waits for room.
    room_wait: Duration,
    /// How long a connection may take nothing while others wait.
    stall: Duration,
}

const LIMITS: Limits = Limits {
    bytes_max: 256 << 20,
    room_wait: Duration::from_secs(5),
    stall: Duration::from_secs(2),
};

/// Bytes of an answer that mirrors its request at most: one connection's share.
pub(crate) const MIRROR_BYTES_MAX: u64 = LIMITS.bytes_max / SHARES;
/// Connections that fill the budget with a whole share each; answers of one more share may wait for room.
const SHARES: u64 = 4;

/// One connection as the budget sees it.
#[derive(Debug, Default)]
pub(crate) struct Taker {
    taken: AtomicU64,
    ended: Notify,
}

impl Taker {
    /// The socket took bytes.
    pub(crate) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Completes when the connection is to be ended.
    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// The budget.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ledger: Mutex<Ledger>,
    /// Told whenever there may be more room.
    freed: Notify,
    limits: Limits,
}

#[derive(Debug, Default)]
struct Ledger {
    held: u64,
    /// Bytes of answers that may be refused and wait for room.
    waiting: u64,
    last: u64,
    /// The oldest first.
    rooms: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    taker: Arc<Taker>,
    bytes: u64,
    /// Where its connection stood when it was last seen to make progress; none while the answer is rendered.
    seen: Option<(Instant, u64)>,
    is_ended: bool,
}

impl Holder {
    /// Whether its connection has taken next to nothing for this long.
    fn is_stalled(&mut self, now: Instant, stall: Duration) -> bool {
        let Some((since, before)) = self.seen else { return false };
        let taken = self.taker.taken.load(Ordering::Relaxed);
        if taken.saturating_sub(before) >= PROGRESS_BYTES {
            self.seen = Some((now, taken));
            return false;
        }
        now.saturating_duration_since(since) >= stall
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing that holds the lock can leave the figures half changed.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AnswerBudget {
    fn default() -> Self {
        Self::of(LIMITS)
    }
}

impl AnswerBudget {
    fn of(limits: Limits) -> Self {
        Self(Arc::new(Shared { ledger: Mutex::default(), freed: Notify::new(), limits }))
    }

    /// Room for an answer, waited for.
    ///
    /// # Errors
    /// 429 when there is none in time, or too many wait already.
    pub(crate) async fn reserve(
        &self,
        taker: &Arc<Taker>,
        bytes: u64,
    ) -> Result<Option<Room>, ApiError> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        if let Some(room) = self.try_take(taker, bytes) {
            return Ok(Some(room));
        }
        let _waiting = self.queue(bytes).ok_or_else(ApiError::answers_overloaded)?;
        let room = self.wait(taker, bytes).await;
        room.map(Some).ok_or_else(ApiError::answers_overloaded)
    }

    /// Room for an answer that cannot be refused any more: waited for, and then taken in any case.
    pub(crate) async fn insist(&self, taker: &Arc<Taker>, bytes: u64) -> Option<Room> {
        if bytes <= FREE_BYTES {
            return None;
        }
        let room = self.wait(taker, bytes).await;
        Some(room.unwrap_or_else(|| self.take(&mut self.0.ledger(), taker, bytes)))
    }

    /// Room for an answer that is there already.
    pub(crate) fn force(&self, taker: &Arc<Taker>, bytes: u64) -> Room {
        self.take(&mut self.0.ledger(), taker, bytes)
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.0.ledger().held
    }

    async fn wait(&self, taker: &Arc<Taker>, bytes: u64) -> Option<Room> {
        let until = Instant::now() + self.0.limits.room_wait;
        loop {
            // Listened to before it is looked, so that nothing freed in between is missed.
            let mut freed = pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if let Some(room) = self.try_take(taker, bytes) {
                return Some(room);
            }
            let now = Instant::now();
            if now >= until {
                return None;
            }
            self.end_stalled(bytes, now);
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep_until(until.min(now + LOOK_EVERY)) => {}
            }
        }
    }

    fn try_take(&self, taker: &Arc<Taker>, bytes: u64) -> Option<Room> {
        let Limits { bytes_max, .. } = self.0.limits;
        let mut ledger = self.0.ledger();
        let own = ledger.rooms.values().filter(|room| Arc::ptr_eq(&room.taker, taker));
        let own: u64 = own.map(|room| room.bytes).sum();
        let is_fair = own == 0 || own.saturating_add(bytes) <= bytes_max / SHARES;
        // One that is larger than all of it is made alone.
        let fits = ledger.held == 0 || ledger.held.saturating_add(bytes) <= bytes_max;
        (is_fair && fits).then(|| self.take(&mut ledger, taker, bytes))
    }

    fn take(&self, ledger: &mut Ledger, taker: &Arc<Taker>, bytes: u64) -> Room {
        ledger.last += 1;
        ledger.held += bytes;
        let holder = Holder { taker: Arc::clone(taker), bytes, seen: None, is_ended: false };
        ledger.rooms.insert(ledger.last, holder);
        Room { shared: Arc::clone(&self.0), id: ledger.last }
    }

    /// A place among those who wait; given back when dropped.
    fn queue(&self, bytes: u64) -> Option<Waiting<'_>> {
        let mut ledger = self.0.ledger();
        let most = self.0.limits.bytes_max / SHARES;
        if ledger.waiting > 0 && ledger.waiting.saturating_add(bytes) > most {
            return None;
        }
        ledger.waiting += bytes;
        Some(Waiting { shared: &self.0, bytes })
    }

    /// Ends connections that do not take their answers, the oldest answer first, until what they hold is enough.
    fn end_stalled(&self, bytes: u64, now: Instant) {
        let Limits { bytes_max, stall, .. } = self.0.limits;
        let mut ledger = self.0.ledger();
        let mut coming = bytes_max.saturating_sub(ledger.held);
        coming +=
            ledger.rooms.values().filter(|room| room.is_ended).map(|room| room.bytes).sum::<u64>();
        for room in ledger.rooms.values_mut().filter(|room| !room.is_ended) {
            if room.is_stalled(now, stall) && coming < bytes {
                room.is_ended = true;
                room.taker.ended.notify_one();
                coming += room.bytes;
            }
        }
    }
}

struct Waiting<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.ledger().waiting -= self.bytes;
    }
}

/// A part of the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    shared: Arc<Shared>,
    id: u64,
}

impl Room {
    /// The answer is there: it has this many bytes, and its client can take them.
    pub(crate) fn settle(&self, bytes: u64) {
        let mut ledger = self.shared.ledger();
        let Some(holder) = ledger.rooms.get_mut(&self.id) else { return };
        holder.seen = Some((Instant::now(), holder.taker.taken.load(Ordering::Relaxed)));
        let before = std::mem::replace(&mut holder.bytes, bytes);
        ledger.held = ledger.held.saturating_sub(before) + bytes;
        drop(ledger);
        self.shared.freed.notify_waiters();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut ledger = self.shared.ledger();
        if let Some(holder) = ledger.rooms.remove(&self.id) {
            ledger.held -= holder.bytes;
        }
        drop(ledger);
        self.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Nothing waits for long, and a connection that takes nothing is at fault at once.
    fn budget(stall: Duration) -> AnswerBudget {
        let room_wait = Duration::from_millis(50);
        AnswerBudget::of(Limits { bytes_max: 800 * KIB, room_wait, stall })
    }

    fn taker() -> Arc<Taker> {
        Arc::default()
    }

    #[tokio::test]
    async fn small_answers_need_no_room() {
        let budget = budget(Duration::MAX);
        let _all = budget.force(&taker(), 800 * KIB);
        assert!(budget.reserve(&taker(), FREE_BYTES).await.unwrap().is_none());
        assert!(budget.reserve(&taker(), FREE_BYTES + 1).await.is_err());
        // What cannot be refused goes beyond.
        let beyond = budget.insist(&taker(), 100 * KIB).await.unwrap();
        assert_eq!(budget.held(), 900 * KIB);
        drop(beyond);
        assert_eq!(budget.held(), 800 * KIB);
    }

    #[tokio::test]
    async fn a_connection_has_one_answer_or_its_share() {
        let budget = budget(Duration::MAX);
        let (one, other) = (taker(), taker());
        let first = budget.reserve(&one, 100 * KIB).await.unwrap();
        let second = budget.reserve(&one, 100 * KIB).await.unwrap();
        assert!(budget.reserve(&one, 100 * KIB).await.is_err());
        let large = budget.reserve(&other, 500 * KIB).await.unwrap();
        drop((first, second));
        assert!(budget.reserve(&one, 300 * KIB).await.unwrap().is_some());
        drop(large);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn who_waits_gets_what_is_given_back() {
        let budget = budget(Duration::MAX);
        let budget =
            AnswerBudget::of(Limits { room_wait: Duration::from_hours(1), ..budget.0.limits });
        let all = budget.force(&taker(), 800 * KIB);
        let (of_waiter, asking) = (budget.clone(), taker());
        let waiter =
            tokio::spawn(
                async move { of_waiter.reserve(&asking, 100 * KIB).await.unwrap().is_some() },
            );
        while budget.0.ledger().waiting == 0 {
            tokio::task::yield_now().await;
        }
        // More than may wait.
        assert!(budget.reserve(&taker(), 200 * KIB).await.is_err());
        // Less than was reserved is enough for others.
        all.settle(700 * KIB);
        assert!(waiter.await.unwrap());
        assert_eq!((budget.held(), budget.0.ledger().waiting), (700 * KIB, 0));
    }

    #[tokio::test]
    async fn who_does_not_take_its_answer_makes_way_and_who_does_stays() {
        let budget = budget(Duration::ZERO);
        let (idle, busy) = (taker(), taker());
        let rendering = budget.force(&taker(), 100 * KIB);
        let (of_idle, of_busy) = (budget.force(&idle, 300 * KIB), budget.force(&busy, 400 * KIB));
        of_idle.settle(300 * KIB);
        of_busy.settle(400 * KIB);
        busy.took(usize::try_from(PROGRESS_BYTES).unwrap());
        let ending = async {
            idle.ended().await;
            drop(of_idle);
        };
        let asking = taker();
        let (room, ()) = tokio::join!(budget.insist(&asking, 300 * KIB), ending);
        assert_eq!(budget.held(), 800 * KIB);
        let ended = |of: &Room| budget.0.ledger().rooms[&of.id].is_ended;
        assert!(!ended(&rendering) && !ended(&of_busy) && !ended(&room.unwrap()));
    }
}
