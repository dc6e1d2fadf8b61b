//! The cycle: takes commands, plans them into one entry, and answers them once that entry is applied.
//!
//! No thread, no clock, no disk but the reader it is handed: the shell calls [`Cycle::plan`] with what arrived,
//! proposes the entry, applies it when it has committed, and calls [`Cycle::applied`]. The simulator is another shell.
//!
//! C1. An answer leaves only after every entry that it depends on, or saw, is applied.
//! C2. A claim is granted only after its messages were read and verified.
//! C3. A granted claim whose caller is gone is revoked in the next plan.

mod acks;
mod admin;
mod pops;
mod pushes;
mod retention;
mod transactions;
mod waiters;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_model::{Effect, Entry};
use queen_planner::consume::{Engine, EngineGroup, EngineStats};
use queen_planner::draft::{Draft, Route, Stamp};
use queen_planner::filter::{Band, DuplicateFilter};
use queen_planner::limits::Limits;
use queen_planner::overlay::Overlay;
use queen_planner::push::IdOrder;
use queen_planner::retention::{Proposal, RetentionTerms};
use queen_record::ids::{EntryIndex, Micros};
use queen_state::State;
use tokio::sync::oneshot;

use crate::api::CallError;
use crate::lookup::{Found, Lookup, Reader};
use acks::PendingAck;
pub use acks::{AckCommand, AckDoneItem};
pub use admin::{
    ConfigureCommand, DeleteGroupCommand, DeleteLettersCommand, DeleteQueueCommand, ExtendCommand,
    ResubscribeCommand, SeekCommand,
};
use pops::PendingPop;
pub use pops::{ClaimData, PopCommand, PopGranted};
use pushes::PendingPush;
pub use pushes::{PartAnswer, PushCommand};
pub use retention::RetentionDone;
use transactions::PendingTransaction;
pub use transactions::{TransactionCommand, TransactionOutcome};
use waiters::Waiters;

/// A map without iteration order.
type Table<K, V> = HashMap<K, V, FixedState>;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// What arrives at the cycle.
#[derive(Debug)]
pub enum Input {
    /// A push.
    Push(PushCommand),
    /// A pop.
    Pop(PopCommand),
    /// A pop's caller is gone.
    Abandon(u64),
    /// An acknowledgment call.
    Ack(AckCommand),
    /// A transaction.
    Transaction(Box<TransactionCommand>),
    /// A lease extension.
    Extend(ExtendCommand),
    /// A queue to be made or changed.
    Configure(ConfigureCommand),
    /// A queue to be deleted.
    DeleteQueue(DeleteQueueCommand),
    /// A group to be deleted.
    DeleteGroup(DeleteGroupCommand),
    /// Dead letters to be removed.
    DeleteLetters(DeleteLettersCommand),
    /// A group's start to be set.
    Resubscribe(ResubscribeCommand),
    /// A group's cursors to be moved.
    Seek(SeekCommand),
    /// What retention may remove.
    Retention(Vec<Proposal>),
    /// An answer from the logs.
    Found(Found),
    /// The node stops: parked pops are answered empty, and later ones at once.
    Stop,
    /// The replicator has something for the core.
    Progress,
}

/// Answered pops that can still be taken back.
const HANDED_OUT_MAX: usize = 4096;

/// Limits of one plan.
#[derive(Clone, Copy, Debug)]
pub struct CycleLimits {
    /// Limits of planning.
    pub planning: Limits,
    /// Bytes of effects after which a plan takes no further command.
    pub plan_bytes_max: usize,
    /// Commands that one plan takes.
    pub plan_commands_max: usize,
    /// Rows of deleted queues and groups removed per plan.
    pub sweep_rows_max: u32,
    /// A pop with less time left is answered empty, never claimed.
    pub pop_margin_us: i64,
    /// Seconds after which an unused group leaves memory; 0 never.
    pub idle_unload_s: i64,
    /// Seconds for which a hash is kept whatever the queues' windows say.
    pub hash_window_min_s: i64,
    /// Seconds after which a partition that nobody uses is removed; `None` never.
    pub cleanup_s: Option<i64>,
    /// Proposals of retention that one plan judges.
    pub proposals_max: usize,
}

impl CycleLimits {
    /// What retention goes by.
    pub fn retention_terms(&self) -> RetentionTerms {
        RetentionTerms { hash_window_min_s: self.hash_window_min_s, cleanup_s: self.cleanup_s }
    }
}

impl Default for CycleLimits {
    fn default() -> Self {
        Self {
            planning: Limits::default(),
            plan_bytes_max: 4 * 1024 * 1024,
            plan_commands_max: 4096,
            sweep_rows_max: 4096,
            pop_margin_us: 50_000,
            idle_unload_s: 600,
            hash_window_min_s: 900,
            cleanup_s: Some(30 * 86_400),
            proposals_max: 1024,
        }
    }
}

/// What a plan wants done.
#[derive(Default)]
pub struct Planned {
    /// The entry to propose, with the route of each effect; its index must be the one that [`Cycle`] expects.
    pub entry: Option<(Entry, Vec<Route>)>,
    /// Questions to the logs; each answer comes back as [`Input::Found`].
    pub lookups: Vec<Lookup>,
    /// What retention did.
    pub retention: RetentionDone,
}

/// An answer that waits for its entry.
enum Ready {
    Push(PendingPush),
    Pop(u64, Box<PopGranted>, Reply<PopGranted>),
    Done(Box<dyn FnOnce() + Send>),
}

/// The cycle.
pub struct Cycle {
    limits: CycleLimits,
    overlay: Overlay,
    filter: DuplicateFilter,
    order: IdOrder,
    engine: Engine,
    /// Number of the last plan that became an entry: plans and entries are numbered alike.
    proposed: u64,
    applied: u64,
    pushes: Table<u64, PendingPush>,
    acks: Table<u64, PendingAck>,
    transactions: Table<u64, PendingTransaction>,
    pops: Table<u64, PendingPop>,
    /// Pops of each group that are waiting or under way.
    popping: Table<EngineGroup, u32>,
    tickets: u64,
    waiters: Waiters,
    /// Ends of parked pops.
    deadlines: BTreeSet<(Micros, u64)>,
    after: VecDeque<(u64, Vec<Ready>)>,
    /// Commands that did not fit the last plan.
    left_over: VecDeque<Input>,
    /// What retention may remove, to be judged.
    proposed_retention: VecDeque<Proposal>,
    /// Plans up to which the log was complete when the questions now under way were asked.
    asked: BTreeMap<u64, u32>,
    revoke: Vec<pops::Revoke>,
    /// The last pops that were answered: a caller that leaves just then says so a moment later.
    handed_out: VecDeque<(u64, Vec<pops::Revoke>)>,
    lookups: Vec<Lookup>,
    stopping: bool,
    filter_expires: Micros,
    collects: Micros,
    damage: Option<String>,
}

impl Cycle {
    /// The cycle of a node that starts on this state. The filter is fed from the logs before.
    pub fn new(state: &State, filter: DuplicateFilter, limits: CycleLimits) -> Self {
        Self {
            limits,
            overlay: Overlay::default(),
            filter,
            order: IdOrder::new(state.last_now().max(state.max_created())),
            engine: Engine::new(state),
            proposed: state.applied().0,
            applied: state.applied().0,
            pushes: Table::default(),
            acks: Table::default(),
            transactions: Table::default(),
            pops: Table::default(),
            popping: Table::default(),
            tickets: 0,
            waiters: Waiters::default(),
            deadlines: BTreeSet::new(),
            after: VecDeque::new(),
            left_over: VecDeque::new(),
            proposed_retention: VecDeque::new(),
            asked: BTreeMap::new(),
            revoke: Vec::new(),
            handed_out: VecDeque::new(),
            lookups: Vec::new(),
            stopping: false,
            filter_expires: Micros(0),
            collects: Micros(0),
            damage: None,
        }
    }

    /// Plans what arrived. Call again, with nothing, while [`Cycle::has_work`] says so.
    pub fn plan(
        &mut self,
        state: &State,
        reader: &Reader,
        stamp: Stamp<'_>,
        inputs: impl Iterator<Item = Input>,
    ) -> Planned {
        let now = stamp.now;
        let mut draft = Draft::new(stamp, state.next_partition(), state.kv_version_next());
        self.engine.fire_due(now);
        self.expire_filter(state, now);
        self.collect_groups(now);
        self.revoke_undelivered(state);
        self.left_over.extend(inputs);
        for _ in 0..self.limits.plan_commands_max {
            let Some(input) = self.left_over.pop_front() else { break };
            self.take(state, reader, &mut draft, input);
            if draft.bytes() >= self.limits.plan_bytes_max {
                break;
            }
        }
        self.serve_woken(state, reader, &mut draft);
        self.time_out_pops(state, now);
        self.engine.flush(self.proposed + 1, &mut draft);
        let retention = self.judge_retention(state, &mut draft);
        if state.has_garbage() {
            let limit = self.limits.sweep_rows_max;
            draft.add(Effect::DeleteChunk { limit }, Route::System, 16);
        }
        let entry = (!draft.is_empty()).then(|| draft.finish());
        match &entry {
            Some(_) => self.proposed += 1,
            // Nothing changed: what waits for this plan waits for the one before.
            None => {
                if let Some((plan, _)) = self.after.back_mut() {
                    *plan = (*plan).min(self.proposed);
                }
            }
        }
        Planned { entry, lookups: std::mem::take(&mut self.lookups), retention }
    }

    fn take(&mut self, state: &State, reader: &Reader, draft: &mut Draft<'_>, input: Input) {
        match input {
            Input::Push(command) => self.push(state, draft, command),
            Input::Pop(command) => self.pop(state, reader, draft, command),
            Input::Abandon(token) => self.abandon(state, token),
            Input::Ack(command) => self.ack(state, draft, command),
            Input::Transaction(command) => self.transaction(state, draft, *command),
            Input::Extend(command) => self.extend(state, draft, command),
            Input::Configure(command) => self.configure(state, draft, command),
            Input::DeleteQueue(command) => self.delete_queue(state, draft, &command.0, command.1),
            Input::DeleteGroup(command) => self.delete_group(state, draft, command),
            Input::DeleteLetters(command) => self.delete_letters(state, draft, command),
            Input::Resubscribe(command) => self.resubscribe(state, draft, command),
            Input::Seek(command) => self.seek(state, draft, command),
            Input::Retention(proposals) => self.propose_retention(proposals),
            Input::Found(found) => self.found(state, reader, draft, found),
            Input::Stop => self.stop_pops(state),
            Input::Progress => {}
        }
    }

    fn found(&mut self, state: &State, reader: &Reader, draft: &mut Draft<'_>, found: Found) {
        match found {
            Found::Originals { push, of, facts } => {
                let facts = of.unless_overtaken(state, facts);
                self.originals_found(state, draft, push, facts);
            }
            Found::Claims { pop, reads } => self.claims_read(state, reader, draft, pop, reads),
            Found::Offsets { ack, of, offsets } => {
                let offsets = of.unless_overtaken(state, offsets);
                self.offsets_found(state, draft, ack, offsets);
            }
            Found::Messages { ack, of, messages } => {
                let messages = of.unless_overtaken(state, messages);
                self.messages_found(state, draft, ack, messages);
            }
        }
    }

    /// The entry of a plan is applied to `state`.
    pub fn applied(&mut self, state: &State, index: EntryIndex, entry: &Entry) {
        assert!(index.0 == self.applied + 1, "entry {index} is applied after {}", self.applied);
        self.applied = index.0;
        self.engine.applied(index.0);
        self.overlay.retire(index.0);
        self.retire_hashes();
        for effect in &entry.effects {
            if let Effect::Append(append) = effect {
                self.engine.appended(state, append.id);
            }
        }
    }

    /// An entry of another node is applied: only its hashes are of use here.
    pub fn followed(&mut self, index: EntryIndex, entry: &Entry) {
        self.passed(index);
        let band = Band { from: index, to: index };
        for effect in &entry.effects {
            let Effect::Append(append) = effect else { continue };
            for hash in &append.hashes {
                self.filter.insert(append.id, *hash, band, append.created);
            }
        }
    }

    /// An entry that changes no state has this place: no plan has its number.
    pub fn passed(&mut self, index: EntryIndex) {
        self.applied = index.0;
        self.proposed = self.proposed.max(index.0);
    }

    /// Begins anew on this state, as a node that starts does, with what the filter knows. Whoever waits for an answer
    /// gets none.
    pub fn begin(&mut self, state: &State) {
        let filter = std::mem::take(&mut self.filter);
        // The log is still answering questions of the old plan: no ticket may be somebody else's now.
        let (is_stopping, tickets) = (self.stopping, self.tickets);
        *self = Self::new(state, filter, self.limits);
        (self.stopping, self.tickets) = (is_stopping, tickets);
    }

    /// Hands out every answer whose entries are applied; returns how many.
    pub fn release(&mut self) -> usize {
        let mut released = 0;
        while let Some((plan, _)) = self.after.front()
            && *plan <= self.applied
            && let Some((_, answers)) = self.after.pop_front()
        {
            released += answers.len();
            for answer in answers {
                self.hand_out(answer);
            }
        }
        released
    }

    fn hand_out(&mut self, answer: Ready) {
        match answer {
            Ready::Push(push) => push.answer(),
            Ready::Done(answer) => answer(),
            Ready::Pop(token, granted, reply) => {
                let undo = pops::Revoke::of(&granted);
                if reply.send(Ok(*granted)).is_err() {
                    self.revoke.extend(undo);
                } else if !undo.is_empty() {
                    if self.handed_out.len() >= HANDED_OUT_MAX {
                        self.handed_out.pop_front();
                    }
                    self.handed_out.push_back((token, undo));
                }
            }
        }
    }

    /// Queues an answer behind everything planned so far, this plan included when it has effects.
    fn after_plan(&mut self, draft: &Draft<'_>, answer: Ready) {
        let plan = self.proposed + u64::from(!draft.is_empty());
        self.after_number(plan, answer);
    }

    /// Queues an answer behind this plan whatever it has now: rows may join it when it is finished.
    fn after_this(&mut self, answer: Ready) {
        self.after_number(self.proposed + 1, answer);
    }

    fn after_number(&mut self, plan: u64, answer: Ready) {
        match self.after.back_mut() {
            Some((last, answers)) if *last >= plan => answers.push(answer),
            _ => self.after.push_back((plan, vec![answer])),
        }
    }

    /// Whether another plan should follow at once.
    pub fn has_work(&self, state: &State) -> bool {
        !self.left_over.is_empty()
            || !self.proposed_retention.is_empty()
            || !self.revoke.is_empty()
            || self.waiters.any_woken(&self.engine)
            || state.has_garbage()
    }

    /// When the next plan is due although nothing arrives.
    pub fn next_due(&self) -> Option<Micros> {
        let pop = self.deadlines.first().map(|(at, _)| *at);
        match (self.engine.next_due(), pop) {
            (Some(engine), Some(pop)) => Some(engine.min(pop)),
            (engine, pop) => engine.or(pop),
        }
    }

    /// Damage met since the last call.
    pub fn take_damage(&mut self) -> Option<String> {
        self.damage.take()
    }

    /// Pops that wait for a message.
    pub fn parked(&self) -> usize {
        self.waiters.len()
    }

    /// What the engine holds.
    pub fn engine_stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// Bytes of the duplicate filter.
    pub fn filter_bytes(&self) -> usize {
        self.filter.bytes()
    }

    /// Moves hashes that can be read from the log, and that no question under way could miss, to the filter.
    fn retire_hashes(&mut self) {
        let oldest_question = self.asked.first_key_value().map_or(u64::MAX, |(plan, _)| *plan);
        let (filter, overlay) = (&mut self.filter, &mut self.overlay);
        overlay.retire_hashes(self.applied.min(oldest_question), |plan, id, hash, created| {
            let at = EntryIndex(plan);
            filter.insert(id, hash, Band { from: at, to: at }, created);
        });
    }

    fn expire_filter(&mut self, state: &State, now: Micros) {
        const EVERY_US: i64 = 10_000_000;
        if now < self.filter_expires {
            return;
        }
        self.filter_expires = Micros(now.0 + EVERY_US);
        let window_s = hash_window_s(state, self.limits.hash_window_min_s);
        let keep_since = now.plus_seconds(-window_s);
        self.filter.expire(keep_since, now.plus_seconds(-window_s / 4));
    }

    /// Forgets groups that nobody used for a while.
    fn collect_groups(&mut self, now: Micros) {
        if now < self.collects || !self.after.is_empty() || !self.revoke.is_empty() {
            return;
        }
        if self.collects > Micros(0) && self.limits.idle_unload_s > 0 {
            let popping = &self.popping;
            self.engine.collect(|group| popping.contains_key(&group));
        }
        self.collects = now.plus_seconds(self.limits.idle_unload_s.max(1));
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

/// Seconds for which a hash may be asked for: the longest window of any queue.
pub fn hash_window_s(state: &State, least: i64) -> i64 {
    let of = |options: &queen_model::QueueOptions| {
        i64::from(options.dedup_window_seconds.max(options.completed_retention_seconds))
    };
    state.all_queues().map(|queue| of(&queue.options)).max().unwrap_or(0).max(least)
}

impl Cycle {
    /// Whether anything is under way: an answer is owed, or a question is out.
    pub fn is_busy(&self) -> bool {
        !self.pushes.is_empty()
            || !self.acks.is_empty()
            || !self.transactions.is_empty()
            || !self.pops.is_empty()
            || self.has_answers()
    }

    /// Whether answers or inputs wait for the next call.
    pub fn has_answers(&self) -> bool {
        !self.after.is_empty() || !self.left_over.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_for_a_plan_that_ended_is_nobodys() {
        let state = State::new();
        let mut cycle = Cycle::new(&state, DuplicateFilter::default(), CycleLimits::default());
        let asked = [cycle.ticket(), cycle.ticket()];
        cycle.begin(&state);
        assert!(!asked.contains(&cycle.ticket()), "the log may still answer what was asked");
    }
}
