//! The nodes of a run, and what can be done to each: begin it, end it, take its power.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use queen_io::SimDisk;
use queen_io::sim::Choice;
use queen_raft::Tasks;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::clock::NodeClock;
use super::net::Life;
use super::node::{Birth, LiveNode, Sizes, Watchers, start};
use super::power::{Power, PoweredDisk};
use crate::node::new_disk;
use crate::rng::Rng;

/// A cluster. Clones are handles of one.
#[derive(Clone)]
pub(crate) struct World {
    /// What nodes report to.
    pub watchers: Watchers,
    /// Sizes that all nodes have.
    pub sizes: Sizes,
    inner: Arc<Mutex<Inner>>,
    is_over: Arc<AtomicBool>,
}

struct Inner {
    rng: Rng,
    seats: BTreeMap<u64, Seat>,
    founders: Vec<u64>,
    /// The most that a clock was ever wrong.
    skew_us: u64,
    /// Syncs that do nothing.
    dropped: Vec<String>,
}

/// A disk as the nodes of a run have it: syncs of some sites do nothing.
fn fitted(disk: SimDisk, dropped: &[String]) -> SimDisk {
    disk.forget_journal();
    for site in dropped {
        disk.drop_sync(site);
    }
    disk
}

/// A place for a node: what outlives its lives.
struct Seat {
    disk: SimDisk,
    clock: Arc<NodeClock>,
    lives: u64,
    slow_ms: Arc<AtomicU64>,
    now: Option<Running>,
    /// Whether something was done to it after which it may stop by itself.
    is_excused: bool,
    /// Whether it begins empty and waits to be added.
    joins: bool,
}

struct Running {
    tasks: Tasks,
    life: Life,
    power: Arc<Power>,
    node: Option<Arc<LiveNode>>,
    /// Told when somebody ends it.
    ended: Arc<Notify>,
}

/// How a node ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process is killed: what it wrote is there.
    Kill,
    /// The power goes: what it did not sync may be gone.
    Power(Choice),
}

impl World {
    /// Nodes 1 to `count`, none of which runs.
    pub(crate) fn new(
        watchers: Watchers,
        sizes: Sizes,
        count: u64,
        seed: u64,
        dropped: &[String],
    ) -> Self {
        let begin = Instant::now();
        let mut rng = Rng::new(seed);
        let founders: Vec<u64> = (1..=count).collect();
        let seat = |rng: &mut Rng| {
            let skew_us = i64::try_from(rng.below(20_000)).unwrap_or(0) - 10_000;
            Seat {
                disk: fitted(new_disk(), dropped),
                clock: Arc::new(NodeClock::new(begin, skew_us)),
                lives: 0,
                slow_ms: Arc::default(),
                now: None,
                is_excused: false,
                joins: false,
            }
        };
        let seats = founders.iter().map(|node| (*node, seat(&mut rng))).collect();
        let inner = Arc::new(Mutex::new(Inner {
            rng,
            seats,
            founders,
            skew_us: 10_000,
            dropped: dropped.to_vec(),
        }));
        Self { watchers, sizes, inner, is_over: Arc::default() }
    }

    /// Whether clients are to end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Lets clients end.
    pub(crate) fn end_clients(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        self.inner.lock().seats.keys().copied().collect()
    }

    /// A node that runs.
    pub(crate) fn node(&self, node: u64) -> Option<Arc<LiveNode>> {
        let inner = self.inner.lock();
        let running = inner.seats.get(&node)?.now.as_ref()?;
        running.node.clone().filter(|node| node.is_well())
    }

    /// The node that a call reaches: a random one hands it on to the one that it knows to lead.
    pub(crate) fn leader(&self) -> Option<Arc<LiveNode>> {
        let nodes = self.nodes();
        let drawn = self.inner.lock().rng.below(nodes.len() as u64);
        let asked = nodes.get(usize::try_from(drawn).unwrap_or(0))?;
        let asked = self.node(*asked)?;
        if asked.leads() {
            return Some(asked);
        }
        let leader = asked.cluster.view().leader?;
        self.node(leader).filter(|node| node.leads())
    }

    /// A number below `bound`, from the chance of what is done to nodes.
    pub(crate) fn draw(&self, bound: u64) -> u64 {
        self.inner.lock().rng.below(bound)
    }

    /// From here on the node may stop by itself: it met a fault.
    pub(crate) fn excuse(&self, node: u64) {
        if let Some(seat) = self.inner.lock().seats.get_mut(&node) {
            seat.is_excused = true;
        }
    }

    /// Sets the wall clock of a node that much ahead of the time, or behind it.
    pub(crate) fn set_clock(&self, node: u64, ahead_us: i64) {
        let inner = &mut *self.inner.lock();
        inner.skew_us = inner.skew_us.max(ahead_us.unsigned_abs());
        if let Some(seat) = inner.seats.get(&node) {
            seat.clock.set_ahead_us(ahead_us);
        }
    }

    /// The most that two clocks ever differed.
    pub(crate) fn clocks_apart(&self) -> Duration {
        Duration::from_micros(2 * self.inner.lock().skew_us)
    }

    /// Makes the disk of a node slower by this much.
    pub(crate) fn slow_disk(&self, node: u64, by_ms: u64) {
        if let Some(seat) = self.inner.lock().seats.get(&node) {
            seat.slow_ms.store(by_ms, Ordering::SeqCst);
        }
    }

    /// Lets a node stand still, or go on.
    pub(crate) fn pause(&self, node: u64, is_paused: bool) {
        let inner = self.inner.lock();
        if let Some(running) = inner.seats.get(&node).and_then(|seat| seat.now.as_ref()) {
            if is_paused { running.tasks.pause() } else { running.tasks.go_on() }
        }
    }

    /// Gives a node that does not run, and is no member any more, an empty disk; it waits to be added.
    pub(crate) fn wipe(&self, node: u64) {
        self.watchers.trace.note(format_args!("node {node} is wiped"));
        let inner = &mut *self.inner.lock();
        if let Some(seat) = inner.seats.get_mut(&node) {
            seat.disk = fitted(new_disk(), &inner.dropped);
            seat.is_excused = false;
            seat.joins = true;
        }
    }

    /// The disk of a node.
    pub(crate) fn disk(&self, node: u64) -> Option<SimDisk> {
        self.inner.lock().seats.get(&node).map(|seat| seat.disk.clone())
    }

    /// The power of a node that runs.
    pub(crate) fn power(&self, node: u64) -> Option<Arc<Power>> {
        let inner = self.inner.lock();
        inner.seats.get(&node)?.now.as_ref().map(|running| running.power.clone())
    }

    /// Begins a node that does not run, and keeps it going until somebody ends it: one that stops by itself is begun again.
    pub(crate) fn begin(&self, node: u64) {
        let ended = Arc::<Notify>::default();
        let Some((birth, tasks, life)) = self.birth(node, ended.clone()) else { return };
        let (world, power, number) = (self.clone(), birth.power.clone(), birth.life);
        self.watchers.trace.note(format_args!("node {node} begins life {number}"));
        self.watchers.net.reset(node);
        let watchers = self.watchers.clone();
        let starting = tasks.spawn(start(birth, tasks.clone(), life, watchers));
        tokio::spawn(async move {
            let started = tokio::select! {
                biased;
                text = tasks.panic() => return world.panicked(node, number, &text),
                () = power.went_off.notified() => return world.lost_power(node, number),
                started = starting => started,
            };
            match started {
                Ok(Ok(live)) => {
                    let live = Arc::new(live);
                    world.is_up(node, number, live.clone());
                    tokio::select! {
                        biased;
                        () = ended.notified() => {}
                        text = tasks.panic() => world.panicked(node, number, &text),
                        () = power.went_off.notified() => world.lost_power(node, number),
                        () = live.stopped.told.notified() => world.stopped(&live, number).await,
                    }
                }
                Ok(Err(reason)) => world.refused(node, number, &reason).await,
                // It was ended, or panicked, which is noted elsewhere.
                Err(_) => {}
            }
        });
    }

    fn birth(&self, node: u64, ended: Arc<Notify>) -> Option<(Birth, Tasks, Life)> {
        let inner = &mut *self.inner.lock();
        let seed = inner.rng.draw();
        let seat = inner.seats.get_mut(&node)?;
        if seat.now.is_some() {
            return None;
        }
        seat.lives += 1;
        let (power, life) = (Arc::<Power>::default(), Arc::new(AtomicBool::new(true)));
        let tasks = Tasks::new(seed);
        let birth = Birth {
            node,
            life: seat.lives,
            peers: inner.founders.clone(),
            join: seat.joins,
            disk: PoweredDisk::new(seat.disk.clone(), power.clone()),
            power: power.clone(),
            clock: seat.clock.clone(),
            seed,
            sizes: self.sizes.clone(),
            slow_ms: seat.slow_ms.clone(),
        };
        seat.now =
            Some(Running { tasks: tasks.clone(), life: life.clone(), power, node: None, ended });
        Some((birth, tasks, life))
    }

    fn is_up(&self, node: u64, life: u64, live: Arc<LiveNode>) {
        let mut inner = self.inner.lock();
        if let Some(seat) = inner.seats.get_mut(&node).filter(|seat| seat.lives == life)
            && let Some(running) = &mut seat.now
        {
            running.node = Some(live);
        }
    }

    /// The power went off behind a call of the disk.
    fn lost_power(&self, node: u64, life: u64) {
        let is_current = self.inner.lock().seats.get(&node).is_some_and(|seat| seat.lives == life);
        if is_current {
            // Or the process ended in the middle of what it did.
            let is_kill = self.draw(2) == 0;
            let how = if is_kill { End::Kill } else { End::Power(self.draw_choice(node)) };
            self.end(node, &how);
            self.begin_later(node);
        }
    }

    /// A task of a node panicked.
    fn panicked(&self, node: u64, life: u64, text: &str) {
        self.watchers.judge.violated(format!("J10 node {node} panicked: {text}"));
        self.end_life(node, life);
        self.begin_later(node);
    }

    /// A node has stopped by itself.
    async fn stopped(&self, live: &LiveNode, life: u64) {
        let (node, reason) = (live.node, live.stopped.reason().unwrap_or_default());
        let for_restart = live.stopped.for_restart.load(Ordering::SeqCst);
        self.watchers.trace.note(format_args!("node {node} stops: {reason}"));
        self.watchers.judge.count(if for_restart {
            "snapshot staged"
        } else {
            "stopped by itself"
        });
        if !for_restart && !self.is_excused(node, life) && !live.power.is_off() {
            self.watchers.judge.violated(format!("J10 node {node} stopped: {reason}"));
        }
        // What it says last.
        sleep(Duration::from_millis(5)).await;
        self.end_life(node, life);
        self.begin_later(node);
    }

    /// A node does not start.
    async fn refused(&self, node: u64, life: u64, reason: &str) {
        self.watchers.trace.note(format_args!("node {node} does not start: {reason}"));
        let power_is_off = self.power(node).is_some_and(|power| power.is_off());
        if !self.is_excused(node, life) && !power_is_off {
            self.watchers.judge.violated(format!("J10 node {node} does not start: {reason}"));
            return;
        }
        sleep(Duration::from_millis(5)).await;
        self.end_life(node, life);
        self.begin_later(node);
    }

    fn is_excused(&self, node: u64, life: u64) -> bool {
        let inner = self.inner.lock();
        inner.seats.get(&node).is_some_and(|seat| seat.lives != life || seat.is_excused)
    }

    fn end_life(&self, node: u64, life: u64) {
        let is_current = self.inner.lock().seats.get(&node).is_some_and(|seat| seat.lives == life);
        if is_current {
            self.end(node, &End::Kill);
        }
    }

    fn begin_later(&self, node: u64) {
        let (world, after) = (self.clone(), Duration::from_millis(100 + self.draw(1500)));
        tokio::spawn(async move {
            sleep(after).await;
            world.begin(node);
        });
    }

    /// Ends a node that runs.
    pub(crate) fn end(&self, node: u64, how: &End) {
        let running = {
            let inner = &mut *self.inner.lock();
            let Some(seat) = inner.seats.get_mut(&node) else { return };
            let Some(running) = seat.now.take() else { return };
            running.power.cut();
            // The disk that takes its place has no call to fail.
            seat.is_excused = false;
            if let End::Power(choice) = how {
                seat.disk = fitted(seat.disk.crash_now(choice), &inner.dropped);
            } else {
                // What it wrote is there, synced or not, and may still go with the power.
                seat.disk = fitted(seat.disk.fork(), &inner.dropped);
            }
            running
        };
        self.watchers.trace.note(format_args!("node {node} ends: {how:?}"));
        if matches!(how, End::Power(_)) {
            running.life.store(false, Ordering::SeqCst);
        }
        running.tasks.end();
        running.ended.notify_one();
        let life = running.life.clone();
        drop(running);
        tokio::spawn(async move {
            // A killed one closes its streams while its tasks go.
            sleep(Duration::from_millis(1)).await;
            life.store(false, Ordering::SeqCst);
        });
    }

    /// What a power cut of a node now may leave.
    pub(crate) fn draw_choice(&self, node: u64) -> Choice {
        let inner = &mut *self.inner.lock();
        let choices = inner
            .seats
            .get(&node)
            .map_or_else(Vec::new, |seat| seat.disk.choices(inner.rng.draw()));
        let seed = inner.rng.draw();
        match inner.rng.below(3) {
            0 => Choice::AllLost,
            1 => Choice::Scattered(seed),
            _ => {
                let at = usize::try_from(inner.rng.below(choices.len() as u64)).unwrap_or(0);
                choices.get(at).cloned().unwrap_or(Choice::AllLost)
            }
        }
    }
}
