//! The node that ages: the product's own parts on real files, on one thread, by a clock that only moves when it is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use queen_broker::api::{CallError, PopRequest, PopTarget, PushBatch, PushItem, Subscribe};
use queen_broker::cipher::{Sealing, Vault};
use queen_broker::cycle::{
    ConfigureCommand, Cycle, CycleLimits, DeleteQueueCommand, Input, PopCommand, PushCommand,
    hash_window_s,
};
use queen_broker::lookup::Reader;
use queen_broker::machine::Machine;
use queen_broker::prepare::{MintIds, prepare};
use queen_broker::recover::{self, Kind};
use queen_broker::retention::{Scanner, ScannerOptions};
use queen_io::{Disk, ManualClock, RealDisk};
use queen_model::OptionsPatch;
use queen_planner::push::PushVerdict;
use queen_qlog::{Qlog, ReadLimit, Stats};
use queen_raft::LocalReplicator;
use queen_reclaim::{Reclaimer, StateView};
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};
use queen_record::layout::Shards;
use queen_state::State;
use queen_store::{LmdbOptions, LmdbStore};
use tokio::sync::oneshot::{Receiver, channel};

use super::model::Model;
use super::traffic::Life;
use crate::history::Digest;
use crate::node::Cutting;
use crate::oracle::messages_of;
use crate::rng::Rng;

/// When the first node starts, µs.
pub(super) const EPOCH: i64 = crate::node::EPOCH;
/// Time between two rounds, µs.
const ROUND_US: i64 = 1_000;
/// Time between two walks of retention in one step, µs.
const AGAIN_US: i64 = 50_000;
/// Walks after which retention must have come to rest.
const WALKS_MAX: usize = 64;
/// Passes of reclaim in one step: what one plans, the next carries out, and what that uncovers goes with the one after.
const PASSES: usize = 4;
/// Partitions without messages are removed after three days.
const CLEANUP_S: i64 = 3 * 86_400;
const READ: ReadLimit = ReadLimit { messages: 10_000, bytes: 64 << 20 };

/// One message to push.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) queue: &'static str,
    pub(super) life: Life,
    pub(super) partition: String,
    pub(super) transaction_id: String,
    pub(super) payload: Vec<u8>,
}

struct Ids(AtomicU64);

impl MintIds for Ids {
    fn mint(&self, count: usize) -> Vec<Uuid> {
        let first = self.0.fetch_add(count as u64, Ordering::Relaxed);
        let id = |tick: u64| Uuid::v7(tick >> 12, u16::try_from(tick & 0xfff).unwrap_or(0), tick);
        (first..first + count as u64).map(id).collect()
    }
}

/// The node.
pub(super) struct Aging {
    dir: PathBuf,
    machine: Machine,
    store: LmdbStore,
    reclaimer: Reclaimer,
    scanner: Scanner,
    clock: Arc<ManualClock>,
    now: i64,
    rng: Rng,
    ids: Ids,
    inputs: Vec<Input>,
    tokens: u64,
    reclaimed: [u64; 4],
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn limits() -> CycleLimits {
    CycleLimits { cleanup_s: Some(CLEANUP_S), ..CycleLimits::default() }
}

impl Aging {
    /// Opens the directory as a start does.
    pub(super) fn open(
        dir: &Path,
        shards: Shards,
        segment_bytes: u64,
        now: i64,
    ) -> Result<Self, String> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let lmdb = LmdbOptions { map_bytes: 1 << 30, headroom_bytes: 64 << 20 };
        let mut store = LmdbStore::open(&dir.join("store"), lmdb).map_err(text)?;
        let qlog = queen_qlog::Options {
            segment_bytes,
            shards,
            prealloc_kb: 0,
            fsync_threads: 0,
            ..queen_qlog::Options::new(dir.join("qlog"))
        };
        let opened = recover::open(&disk, dir, &qlog, &mut store, Kind::Local).map_err(text)?;
        let window_s = hash_window_s(&opened.state, limits().hash_window_min_s);
        let since = Micros(now).plus_seconds(-window_s);
        let filter = recover::warm_filter(&opened.qlog, since).map_err(text)?;
        let cycle = Cycle::new(&opened.state, filter, limits());
        let replicator = LocalReplicator::new(opened.qlog.clone(), opened.state.applied());
        let reader = Reader::new(opened.qlog, Arc::new(Vault::without_key()));
        let state = Arc::new(RwLock::new(opened.state));
        let clock = Arc::new(ManualClock::new(now));
        let view = StateView::new(state.clone(), reader.qlog().layout());
        let reclaimer = Reclaimer::new(
            reader.qlog().clone(),
            Box::new(view),
            clock.clone(),
            queen_reclaim::Options::new(segment_bytes),
        );
        let scanner = Scanner::new(ScannerOptions {
            interval_us: 0,
            partitions_per_s: 1_000_000_000,
            appends_max: 1000,
            terms: limits().retention_terms(),
        });
        let tick = u64::try_from(now / 1000).unwrap_or(0) << 12;
        Ok(Self {
            dir: dir.to_owned(),
            machine: Machine::new(state, reader, cycle, Box::new(replicator)),
            store,
            reclaimer,
            scanner,
            clock,
            now,
            rng: Rng::new(u64::try_from(now).unwrap_or(0)),
            ids: Ids(AtomicU64::new(tick)),
            inputs: Vec::new(),
            tokens: 0,
            reclaimed: [0; 4],
        })
    }

    pub(super) fn now(&self) -> i64 {
        self.now
    }

    pub(super) fn pass_time(&mut self, us: i64) {
        self.now += us;
        self.clock.set_us(self.now);
    }

    fn qlog(&self) -> &Qlog {
        self.machine.reader().qlog()
    }

    fn with_state<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.machine.state().read())
    }

    pub(super) fn digest(&self) -> Digest {
        self.with_state(State::digest)
    }

    pub(super) fn partitions(&self) -> u64 {
        self.with_state(|state| state.partitions().count() as u64)
    }

    pub(super) fn log_stats(&self) -> Stats {
        self.qlog().stats()
    }

    pub(super) fn reclaimed(&self) -> [u64; 4] {
        self.reclaimed
    }

    pub(super) fn store_bytes(&self) -> Result<u64, String> {
        let file = RealDisk.open(&self.dir.join("store/data.mdb"), queen_io::OpenMode::Read);
        file.and_then(|file| file.len()).map_err(text)
    }

    /// Rounds until nothing is under way.
    fn settle(&mut self) -> Result<(), String> {
        while !self.inputs.is_empty() || self.machine.has_work() {
            self.now += ROUND_US;
            let rng = &mut self.rng;
            let round =
                self.machine.round(Micros(self.now), &mut || rng.draw(), &mut self.inputs)?;
            if let Some(damage) = round.damage {
                return Err(format!("damage met while serving: {damage}"));
            }
            for lookup in round.lookups {
                let found = self.machine.reader().answer(lookup);
                self.inputs.push(Input::Found(found));
            }
        }
        self.clock.set_us(self.now);
        Ok(())
    }

    fn ask<T>(
        &mut self,
        input: Input,
        answer: Receiver<Result<T, CallError>>,
    ) -> Result<T, String> {
        self.inputs.push(input);
        self.settle()?;
        let mut answer = answer;
        match answer.try_recv() {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(format!("a call failed: {error}")),
            Err(error) => Err(format!("a call was not answered: {error}")),
        }
    }

    pub(super) fn configure(&mut self, queue: &str, patch: OptionsPatch) -> Result<(), String> {
        let (reply, answer) = channel();
        let (tenant, queue, replace) = (Tenant::DEFAULT, queue.to_owned(), false);
        let command = ConfigureCommand { tenant, queue, patch, replace, reply };
        self.ask(Input::Configure(command), answer).map(drop)
    }

    pub(super) fn delete_queue(&mut self, queue: &str) -> Result<(), String> {
        let (reply, answer) = channel();
        let name = (Tenant::DEFAULT, queue.to_owned());
        self.ask(Input::DeleteQueue(DeleteQueueCommand(name, reply)), answer).map(drop)
    }

    /// Pushes, and tells the model.
    pub(super) fn push(&mut self, items: &[Item], model: &mut Model) -> Result<(), String> {
        let refs: Vec<PushItem<'_>> = items
            .iter()
            .map(|item| PushItem {
                queue: item.queue,
                partition: &item.partition,
                transaction_id: Some(&item.transaction_id),
                payload: &item.payload,
                producer_sub: None,
                trace_id: None,
            })
            .collect();
        let batch = PushBatch::Items(&refs);
        let prepared =
            prepare(Tenant::DEFAULT, batch, &self.ids, 1, Sealing::PLAIN).map_err(text)?;
        let (reply, answer) = channel();
        let answers =
            self.ask(Input::Push(PushCommand { parts: prepared.parts, reply }), answer)?;
        for (item, (part, at)) in items.iter().zip(&prepared.places) {
            let verdicts = answers.get(*part as usize).ok_or("a part has no answer")?;
            let verdicts = verdicts.as_ref().map_err(text)?;
            let Some(PushVerdict::Queued { offset, .. }) = verdicts.get(*at as usize) else {
                return Err(format!("{} was not stored", item.transaction_id));
            };
            let id = self.with_state(|state| {
                let queue = state.queue(Tenant::DEFAULT, item.queue)?;
                state.partition_named(queue, &item.partition)
            });
            let id = id.ok_or("a stored message has no partition")?;
            let created = self.with_state(|state| state.max_created().0);
            model.pushed(id, offset.0, item, created);
        }
        Ok(())
    }

    /// A group takes messages and is done with them.
    pub(super) fn take(
        &mut self,
        queue: &'static str,
        group: &'static str,
        batch: u32,
        model: &mut Model,
    ) -> Result<(), String> {
        self.tokens += 1;
        let request = PopRequest {
            tenant: Tenant::DEFAULT,
            target: PopTarget::Queue(queue.to_owned()),
            group: group.to_owned(),
            batch: Some(batch),
            partitions: Some(64),
            autopilot: false,
            wait: false,
            timeout: Duration::ZERO,
            lease_seconds: None,
            commit_on_delivery: true,
            subscribe: Subscribe::All,
            conflation: None,
            frames: false,
        };
        let (reply, answer) = channel();
        let token = self.tokens;
        let granted = self.ask(Input::Pop(PopCommand { token, request, reply }), answer)?;
        for claim in granted.claims {
            let end = claim.first.0 + claim.count as u64;
            for (offset, found) in messages_of(&claim.records)? {
                let is_delivered = (claim.first.0..end).contains(&offset);
                if is_delivered && !model.is_stored(claim.partition, offset, &found.payload) {
                    return Err(format!(
                        "a pop delivered a wrong message {}/{offset}",
                        claim.partition
                    ));
                }
            }
            model.taken(claim.partition, group, end, self.now);
        }
        Ok(())
    }

    /// What a running node does by itself: retention, side files, checkpoints, reclaim.
    pub(super) fn look_after_itself(&mut self) -> Result<(), String> {
        self.retain()?;
        for _ in 0..PASSES {
            while self.qlog().background().map_err(text)? {}
            self.checkpoint()?;
            let pass = self.reclaimer.pass(Micros(self.now)).map_err(text)?;
            if let Some(damage) = pass.damage {
                return Err(format!("damage met while reclaiming: {damage}"));
            }
            let done = &pass.reclaimed;
            let counts = [done.files, done.rewrites, done.logs, pass.sealed];
            for (sum, count) in self.reclaimed.iter_mut().zip(counts) {
                *sum += count;
            }
            if let Some(failed) = &done.failed {
                return Err(format!("a removal failed: {failed}"));
            }
            if counts == [0; 4] && pass.planned == 0 {
                break;
            }
        }
        Ok(())
    }

    fn retain(&mut self) -> Result<(), String> {
        for _ in 0..WALKS_MAX {
            let now = Micros(self.now);
            let visits = self.scanner.walk(&self.machine.state().read(), now, usize::MAX);
            let mut proposals = Vec::new();
            for visit in visits {
                let found = self.scanner.look(self.machine.reader().qlog(), &visit, now);
                proposals.extend(found.map_err(text)?);
            }
            if proposals.is_empty() {
                return Ok(());
            }
            self.inputs.push(Input::Retention(proposals));
            self.settle()?;
            self.now += AGAIN_US;
        }
        Err("what retention proposes is never done with".to_owned())
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        let qlog = self.machine.reader().qlog();
        let cutting = Cutting::begin(&mut self.machine.state().write(), qlog);
        cutting.write(&mut self.machine.state().write(), &mut self.store, qlog)?;
        Ok(())
    }

    /// Every message of a partition that a reader can have; `None` without the partition.
    pub(super) fn readable(
        &self,
        queue: &str,
        id: PartitionId,
    ) -> Result<Option<BTreeMap<u64, Vec<u8>>>, String> {
        let range = self.with_state(|state| {
            let row = state.partition(id)?;
            Some((row.log_start().0, row.next_offset().0))
        });
        let Some((start, end)) = range else { return Ok(None) };
        let log = self.qlog().log_of(queue_id(Tenant::DEFAULT, queue), Some(id));
        let mut found = BTreeMap::new();
        let mut at = start;
        while at < end {
            let records = self.qlog().read(log, id, Offset(at), READ).map_err(text)?;
            let messages = messages_of(&records)?;
            let Some(last) = messages.last().map(|(offset, _)| *offset) else { break };
            let readable = messages.into_iter().filter(|(offset, _)| *offset >= start);
            found.extend(readable.map(|(offset, message)| (offset, message.payload)));
            at = last + 1;
        }
        Ok(Some(found))
    }
}
