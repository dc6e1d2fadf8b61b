//! Figures of all queues at a bounded cost: small queues are walked at once, large ones in the background.
//!
//! One read visits at most [`EXACT_PARTITIONS`] partitions, smallest queues first. A queue beyond that shows what its
//! last walk found; until there was one, an estimate from some of its partitions. The first such read starts a walker
//! that goes round the large queues at its own pace and ends when nobody has asked for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use queen_record::ids::{Micros, PartitionId, Tenant, Uuid};

use super::figures::{self, Gathering, QueueFigures};
use super::walk::Target;
use crate::api::CallError;
use crate::core::Shared;

/// Partitions that one read visits at most.
pub(crate) const EXACT_PARTITIONS: u64 = 10_000;
/// Partitions that the walker visits in a second.
const WALKED_PER_S: u32 = 20_000;
/// Partitions that one estimate looks at, at most and at least.
const ESTIMATE_VISITS: (u64, u64) = (1024, 16);
/// The walker ends when nobody has asked for this long.
const UNREAD_MAX: Duration = Duration::from_mins(10);
/// Times that one read asks the logs, over all queues and groups.
const LOOKUPS_MAX: usize = 2048;

/// What the walker found.
#[derive(Default)]
pub(crate) struct Sampled(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Queues that were too large for a read, by id.
    queues: BTreeMap<Uuid, Large>,
    /// When somebody asked last.
    read: Micros,
    is_walking: bool,
}

struct Large {
    target: Target,
    /// Of its last walk.
    figures: Option<Arc<QueueFigures>>,
}

/// A queue with its figures.
pub(crate) struct Figured {
    pub(crate) target: Target,
    pub(crate) figures: Arc<QueueFigures>,
}

/// The figures of all queues of a tenant, by name.
pub(crate) fn all(shared: &Arc<Shared>, tenant: Tenant) -> Result<Vec<Figured>, CallError> {
    let mut queues: Vec<(u64, Uuid, Target)> = {
        let state = shared.state.read();
        let of =
            |queue: &queen_state::Queue| (queue.partition_count(), queue.id, Target::of(queue));
        state.queues(tenant).map(of).collect()
    };
    queues.sort_by_key(|(partitions, ..)| *partitions);
    let (mut visits, mut estimated, mut lookups) =
        (EXACT_PARTITIONS, EXACT_PARTITIONS, LOOKUPS_MAX);
    let mut figured = Vec::with_capacity(queues.len());
    for (partitions, id, target) in queues {
        let figures = if let Some(left) = visits.checked_sub(partitions) {
            visits = left;
            Arc::new(figures::exact(shared, &target, &mut lookups)?)
        } else if let Some(known) = remembered(shared, id, &target) {
            known
        } else {
            let (most, least) = ESTIMATE_VISITS;
            let visits = most.min(partitions).min(estimated).max(least);
            estimated = estimated.saturating_sub(visits);
            Arc::new(figures::estimate(shared, &target, visits, &mut lookups)?)
        };
        figured.push(Figured { target, figures });
    }
    figured.sort_by(|a, b| a.target.name.cmp(&b.target.name));
    Ok(figured)
}

/// What the last walk over a large queue found; sees to it that there will be one.
fn remembered(shared: &Arc<Shared>, id: Uuid, target: &Target) -> Option<Arc<QueueFigures>> {
    let (known, was_walking) = {
        let mut inner = shared.sampled.0.lock();
        inner.read = shared.clock.now();
        let new = || Large { target: target.clone(), figures: None };
        let known = inner.queues.entry(id).or_insert_with(new).figures.clone();
        (known, std::mem::replace(&mut inner.is_walking, true))
    };
    if !was_walking {
        tokio::spawn(walk(Walking(Arc::downgrade(shared))));
    }
    known
}

/// Says that nobody walks when it goes, however that comes about.
struct Walking(Weak<Shared>);

impl Drop for Walking {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.sampled.0.lock().is_walking = false;
        }
    }
}

/// Goes round the large queues of all tenants until nobody has asked for a while, or the node is gone.
async fn walk(walking: Walking) {
    while let Some(queues) = walking.0.upgrade().and_then(|shared| wanted(&shared)) {
        for (id, target) in queues {
            if walk_queue(&walking.0, id, &target).await.is_none() {
                return;
            }
        }
    }
}

/// The queues to walk, without those that are gone. `None`: nobody asks any more.
fn wanted(shared: &Shared) -> Option<Vec<(Uuid, Target)>> {
    let state = shared.state.read();
    let mut inner = shared.sampled.0.lock();
    inner.queues.retain(|_, large| large.target.queue(&state).is_some());
    let unread_us = shared.clock.now().0.saturating_sub(inner.read.0);
    if u128::try_from(unread_us).unwrap_or(0) >= UNREAD_MAX.as_micros() {
        inner.queues.clear();
    }
    let queues: Vec<(Uuid, Target)> =
        inner.queues.iter().map(|(id, large)| (*id, large.target.clone())).collect();
    (!queues.is_empty()).then_some(queues)
}

/// Walks one queue; `None` when the node is gone.
async fn walk_queue(shared: &Weak<Shared>, id: Uuid, target: &Target) -> Option<()> {
    let mut gathering = Gathering::new(shared.upgrade()?.clock.now());
    let mut from = Some(PartitionId(0));
    while let Some(next) = from {
        let before = gathering.visited();
        from = figures::visit_some(&*shared.upgrade()?, target, next, &mut gathering);
        let visited = u32::try_from(gathering.visited() - before).unwrap_or(u32::MAX).max(1);
        // A pace, not a wait for something: this walk must not be felt.
        tokio::time::sleep(Duration::from_secs(1) * visited / WALKED_PER_S).await;
    }
    let (node, target) = (shared.upgrade()?, target.clone());
    let finish = move || {
        let mut lookups = LOOKUPS_MAX;
        let figures = gathering.finish(&node, &target, &mut lookups);
        // What it met is noted where it was met; the last good figures stay.
        if let (Ok(figures), Some(large)) = (figures, node.sampled.0.lock().queues.get_mut(&id)) {
            large.figures = Some(Arc::new(figures));
        }
    };
    tokio::task::spawn_blocking(finish).await.ok()
}

/// Age in seconds of the oldest of these figures.
pub(crate) fn age_seconds(figured: &[Figured], now: Micros) -> u64 {
    let taken = figured.iter().map(|queue| queue.figures.taken).min();
    taken.map_or(0, |taken| super::oldest::seconds_since(taken, now))
}
