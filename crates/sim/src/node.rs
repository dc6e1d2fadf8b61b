//! A node on a simulated disk, on one thread: nothing happens unless the script says so.
//!
//! The parts are the product's own: the checkpoint on a plain file, the logs, the recovery, the cycle, the local
//! replicator. Time stands still between rounds, entropy and ids come from the seed, so one seed is one trace.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use queen_archive::Pack;
use queen_broker::backup;
use queen_broker::cipher::Vault;
use queen_broker::cycle::{Cycle, CycleLimits, Input, hash_window_s};
use queen_broker::lookup::Reader;
use queen_broker::machine::Machine;
use queen_broker::prepare::MintIds;
use queen_broker::recover::{self, Kind, Opened};
use queen_broker::retention::{Scanner, ScannerOptions};
use queen_io::{Disk, ManualClock, SimDisk};
use queen_model::Entry;
use queen_qlog::{DurablePoint, Fault, Qlog};
use queen_raft::{LocalReplicator, Proposal, Replicator, Step};
use queen_reclaim::{Pass, Reclaimer, StateView};
use queen_record::ids::{EntryIndex, LogId, Micros, Uuid};
use queen_record::layout::Shards;
use queen_state::{State, StoredRow};
use queen_store::{Change, Checkpoint, DiskStore};

use crate::history::History;
use crate::rng::Rng;

/// The data directory.
pub const DATA: &str = "/data";
/// When the first node starts, µs.
pub const EPOCH: i64 = 1_700_000_000_000_000;
/// Walks after which retention must have come to rest.
const WALKS_MAX: usize = 64;
/// Time between two walks, µs: what was not done in one step is looked at again.
const AGAIN_US: i64 = 50_000;
/// Time between two rounds, µs.
const ROUND_US: i64 = 1_000;

/// How the logs of a node are laid out.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Bytes after which a file is sealed.
    pub segment_bytes: u64,
    /// Lanes of a new directory.
    pub lanes: u32,
    /// Shared logs of a new directory.
    pub shards: Shards,
    /// Zeros written ahead, KiB; 0 for none.
    pub prealloc_kb: u32,
    /// Whether the next file is made ahead.
    pub precreate: bool,
}

impl Setup {
    pub(crate) fn qlog(&self) -> queen_qlog::Options {
        queen_qlog::Options {
            segment_bytes: self.segment_bytes,
            lanes: self.lanes,
            shards: self.shards,
            prealloc_kb: self.prealloc_kb,
            prealloc_min_syncs: 2,
            precreate: self.precreate,
            fsync_threads: 0,
            ..queen_qlog::Options::new(Path::new(DATA).join("qlog"))
        }
    }
}

/// A new disk with an empty data directory.
pub fn new_disk() -> SimDisk {
    let disk = SimDisk::new();
    disk.set_contents(&Path::new(DATA).join("x"), b"");
    disk.remove(&Path::new(DATA).join("x"));
    disk
}

/// A directory that was opened, before anything serves from it.
pub struct Bare {
    /// The checkpoint.
    pub store: DiskStore,
    /// What recovery made of the logs.
    pub opened: Opened,
}

/// Opens the directory as a start of the node does.
///
/// # Errors
/// The refusal's text.
pub fn open(disk: &SimDisk, setup: &Setup) -> Result<Bare, String> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let dir = Path::new(DATA);
    let mut store =
        DiskStore::open(shared.clone(), &dir.join("store")).map_err(|error| error.to_string())?;
    let opened = recover::open(&shared, dir, &setup.qlog(), &mut store, Kind::Local)
        .map_err(|error| error.to_string())?;
    Ok(Bare { store, opened })
}

/// Ids that ascend from the start of the node.
struct SimIds(AtomicU64);

impl MintIds for SimIds {
    fn mint(&self, count: usize) -> Vec<Uuid> {
        let first = self.0.fetch_add(count as u64, Ordering::Relaxed);
        let id = |tick: u64| Uuid::v7(tick >> 12, u16::try_from(tick & 0xfff).unwrap_or(0), tick);
        (first..first + count as u64).map(id).collect()
    }
}

/// Entries as they were proposed, and the number of disk calls before each.
#[derive(Default)]
pub struct Sent {
    /// Calls before the proposal.
    pub calls: Vec<u64>,
    /// The entry and the log of each of its effects.
    pub entries: Vec<(Entry, Vec<LogId>)>,
}

/// The local replicator, with a note of everything that passes.
struct Noting {
    inner: LocalReplicator,
    disk: SimDisk,
    sent: Arc<Mutex<Sent>>,
}

impl Replicator for Noting {
    fn leads_at_start(&self) -> bool {
        self.inner.leads_at_start()
    }

    fn propose(&mut self, proposal: Proposal) -> Result<(), Fault> {
        let mut sent = self.sent.lock();
        sent.calls.push(self.disk.calls());
        sent.entries.push((proposal.entry.clone(), proposal.logs.clone()));
        drop(sent);
        self.inner.propose(proposal)
    }

    fn commit(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
        self.inner.commit(steps)
    }

    fn begin_round(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
        self.inner.begin_round(steps)
    }

    fn end_round(&mut self) {
        self.inner.end_round();
    }

    fn applied(&mut self, index: EntryIndex) {
        self.inner.applied(index);
    }
}

/// A reclaimer that looks at everything in each pass, and rewrites early.
pub fn reclaimer(qlog: &Qlog, state: &Arc<RwLock<State>>) -> Reclaimer {
    let options = queen_reclaim::Options {
        dead_pct_min: Some(5),
        seal_age_us: 20_000,
        look_again_us: 0,
        segment_bytes: 1 << 20,
    };
    let view = StateView::new(state.clone(), qlog.layout());
    Reclaimer::new(qlog.clone(), Box::new(view), Arc::new(ManualClock::new(EPOCH)), options)
}

/// Small enough that a script reaches every limit.
fn limits() -> CycleLimits {
    CycleLimits {
        sweep_rows_max: 3,
        hash_window_min_s: 0,
        cleanup_s: Some(60),
        proposals_max: 3,
        ..CycleLimits::default()
    }
}

/// Where a node's time and chance begin.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The clock, µs.
    pub now: i64,
    /// The seed of entropy.
    pub seed: u64,
}

/// A checkpoint between its cut and its write.
pub struct Cutting {
    point: DurablePoint,
    rows: Vec<StoredRow>,
}

impl Cutting {
    /// Takes the cut.
    pub fn begin(state: &mut State, qlog: &Qlog) -> Self {
        let index = state.applied();
        let point = qlog.durable_point(index);
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        Self { rows: state.begin_cut(&bytes), point }
    }

    /// Encodes up to `max` more rows; what is left is encoded while it is written.
    pub fn pull(&mut self, state: &mut State, max: usize) {
        self.rows.extend(state.next_of_cut(max));
    }

    /// Writes the cut; returns the point that the store has now.
    ///
    /// # Errors
    /// The store's; the node must stop.
    pub fn write(
        self,
        state: &mut State,
        store: &mut dyn Checkpoint,
        qlog: &Qlog,
    ) -> Result<DurablePoint, String> {
        let change =
            |row: StoredRow| Change { keyspace: row.keyspace, key: row.key, value: row.value };
        let mut early = self.rows.into_iter().map(change);
        let later = &mut *state;
        let mut late = std::iter::from_fn(move || later.next_of_cut(1).pop().map(change));
        let mut rows = early.by_ref().chain(&mut late);
        store.write(&mut rows).map_err(|error| error.to_string())?;
        state.finish_cut();
        qlog.point_written(&self.point);
        Ok(self.point)
    }
}

/// The node.
pub struct SimNode {
    /// Its disk.
    pub disk: SimDisk,
    /// What happened so far.
    pub history: History,
    machine: Machine,
    store: DiskStore,
    cutting: Option<Cutting>,
    reclaimer: Reclaimer,
    sent: Arc<Mutex<Sent>>,
    now: i64,
    rng: Rng,
    ids: SimIds,
    inputs: Vec<Input>,
    tokens: u64,
}

impl SimNode {
    /// A node over an opened directory; `history` is what the directory holds.
    ///
    /// # Errors
    /// When the logs cannot be read.
    pub fn start(
        disk: &SimDisk,
        bare: Bare,
        start: Start,
        history: History,
    ) -> Result<Self, String> {
        let Bare { store, opened: Opened { state, qlog, .. } } = bare;
        let limits = limits();
        let window_s = hash_window_s(&state, limits.hash_window_min_s);
        let since = Micros(start.now).plus_seconds(-window_s);
        let filter = recover::warm_filter(&qlog, since).map_err(|error| error.to_string())?;
        let cycle = Cycle::new(&state, filter, limits);
        let sent = Arc::new(Mutex::new(Sent::default()));
        let inner = LocalReplicator::new(qlog.clone(), state.applied());
        let reader = Reader::new(qlog, Arc::new(Vault::without_key()));
        let replicator = Noting { inner, disk: disk.clone(), sent: sent.clone() };
        let state = Arc::new(RwLock::new(state));
        let reclaimer = reclaimer(reader.qlog(), &state);
        let tick = u64::try_from(start.now / 1000).unwrap_or(0) << 12;
        Ok(Self {
            disk: disk.clone(),
            history,
            machine: Machine::new(state, reader, cycle, Box::new(replicator)),
            store,
            cutting: None,
            reclaimer,
            sent,
            now: start.now,
            rng: Rng::new(start.seed),
            ids: SimIds(AtomicU64::new(tick)),
            inputs: Vec::new(),
            tokens: 0,
        })
    }

    /// Its message ids.
    pub fn ids(&self) -> &dyn MintIds {
        &self.ids
    }

    /// A number for the next pop.
    pub fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// Hands it a command for the next round.
    pub fn send(&mut self, input: Input) {
        self.inputs.push(input);
    }

    /// Its clock.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Moves its clock.
    pub fn advance_us(&mut self, us: i64) {
        self.now += us;
    }

    /// The state, as of the last applied entry.
    pub fn with_state<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.machine.state().read())
    }

    /// The last applied entry.
    pub fn applied(&self) -> u64 {
        self.with_state(|state| state.applied().0)
    }

    /// The logs.
    pub fn qlog(&self) -> &Qlog {
        self.machine.reader().qlog()
    }

    /// Takes the proposals noted so far.
    pub fn take_sent(&self) -> Sent {
        std::mem::take(&mut *self.sent.lock())
    }

    /// One round.
    ///
    /// # Errors
    /// Why the node stopped, or what it found damaged.
    pub fn round(&mut self) -> Result<(), String> {
        self.now += ROUND_US;
        let rng = &mut self.rng;
        let before = self.sent.lock().calls.len();
        let applied = self.machine.state().read().applied().0;
        let round = self.machine.round(Micros(self.now), &mut || rng.draw(), &mut self.inputs);
        for (at, calls) in (1..).zip(self.sent.lock().calls.iter().skip(before)) {
            self.history.sent.push((*calls, applied + at));
        }
        let round = round?;
        if let Some(damage) = round.damage {
            return Err(format!("damage met while serving: {damage}"));
        }
        if round.applied > 0 {
            self.history.note_applied(&self.machine.state().read());
        }
        self.history.answered.push((self.disk.calls(), self.applied()));
        for lookup in round.lookups {
            let found = self.machine.reader().answer(lookup);
            self.inputs.push(Input::Found(found));
        }
        Ok(())
    }

    /// Rounds until nothing is under way.
    ///
    /// # Errors
    /// As [`SimNode::round`].
    pub fn settle(&mut self) -> Result<(), String> {
        while !self.inputs.is_empty() || self.machine.has_work() {
            self.round()?;
        }
        Ok(())
    }

    /// One step of background work; whether there was one.
    ///
    /// # Errors
    /// The logs' fault.
    pub fn background(&mut self) -> Result<bool, String> {
        self.qlog().background().map_err(|fault| fault.to_string())
    }

    /// One pass of reclaim, as its thread makes it.
    ///
    /// # Errors
    /// The logs' fault, or damage.
    pub fn reclaim(&mut self) -> Result<Pass, String> {
        let pass = self.reclaimer.pass(Micros(self.now)).map_err(|fault| fault.to_string())?;
        match &pass.damage {
            Some(damage) => Err(format!("damage met while reclaiming: {damage}")),
            None => Ok(pass),
        }
    }

    /// Walks over all partitions, and again, until nothing is proposed any more.
    ///
    /// # Errors
    /// As [`SimNode::round`]; and when something is proposed for ever.
    pub fn retain(&mut self) -> Result<(), String> {
        let options = ScannerOptions {
            interval_us: 0,
            partitions_per_s: 1_000_000_000,
            appends_max: 2,
            terms: limits().retention_terms(),
        };
        let mut scanner = Scanner::new(options);
        for _ in 0..WALKS_MAX {
            let now = Micros(self.now);
            let visits = scanner.walk(&self.machine.state().read(), now, usize::MAX);
            let mut proposals = Vec::new();
            for visit in visits {
                let found = scanner.look(self.qlog(), &visit, now);
                proposals.extend(found.map_err(|error| error.to_string())?);
            }
            if proposals.is_empty() {
                return Ok(());
            }
            self.send(Input::Retention(proposals));
            self.settle()?;
            self.now += AGAIN_US;
        }
        Err("what retention proposes is never done with".to_owned())
    }

    /// Begins a checkpoint.
    pub fn begin_checkpoint(&mut self) {
        let mut state = self.machine.state().write();
        self.cutting = Some(Cutting::begin(&mut state, self.machine.reader().qlog()));
    }

    /// Encodes some of its rows.
    pub fn pull_rows(&mut self, max: usize) {
        if let Some(cutting) = &mut self.cutting {
            cutting.pull(&mut self.machine.state().write(), max);
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// The store's.
    pub fn write_checkpoint(&mut self) -> Result<(), String> {
        let Some(cutting) = self.cutting.take() else { return Ok(()) };
        let qlog = self.machine.reader().qlog();
        let point = cutting.write(&mut self.machine.state().write(), &mut self.store, qlog)?;
        self.history.durable.push((self.disk.calls(), point.index.0));
        Ok(())
    }

    /// Writes a checkpoint and stages a backup of it, as the checkpoint thread does.
    ///
    /// # Errors
    /// The store's, or the staging's.
    pub fn stage_backup(&mut self) -> Result<Pack, String> {
        let qlog = self.machine.reader().qlog();
        let cutting = Cutting::begin(&mut self.machine.state().write(), qlog);
        let point = cutting.write(&mut self.machine.state().write(), &mut self.store, qlog)?;
        self.history.durable.push((self.disk.calls(), point.index.0));
        let staged =
            backup::stage(&self.disk, Path::new(DATA), (qlog, &point), &mut self.store, self.now);
        staged.map_err(|error| error.to_string())
    }

    /// Packs what is staged and removes the staging.
    ///
    /// # Errors
    /// A file is not what it was.
    pub fn pack_backup(&mut self, pack: &Pack) -> Result<Vec<u8>, String> {
        let mut archive = Vec::new();
        let mut take = |piece: Vec<u8>| {
            archive.extend(piece);
            Ok(())
        };
        pack.write(&self.disk, &mut take).map_err(|error| error.to_string())?;
        backup::clear(&self.disk, Path::new(DATA)).map_err(|error| error.to_string())?;
        Ok(archive)
    }
}
