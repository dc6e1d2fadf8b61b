//! A node without threads, disk or clock: plans a story's commands, applies each entry at once, and writes down both.
//!
//! What holds for every story is checked here: planning changes no state (P1), apply takes every entry (P2), an effect is
//! routed to the log it belongs to, and a second node that reads the entries from their bytes has the same rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use queen_model::{Effect, Entry};
use queen_planner::consume::{Claim, Engine, EngineGroup};
use queen_planner::draft::{Draft, Route, Stamp};
use queen_planner::filter::{Band, DuplicateFilter};
use queen_planner::limits::Limits;
use queen_planner::overlay::{Overlay, QueueView};
use queen_planner::push::IdOrder;
use queen_planner::retention::RetentionTerms;
use queen_record::hash::queue_id;
use queen_record::ids::{EntryIndex, Micros, PartitionId, Tenant};
use queen_state::State;

use crate::consume::Pop;
use crate::log::Log;
use crate::names::{Names, START, short, span, time};
use crate::script::{Command, Words, expand};
use crate::seen::Seen;

pub(crate) const TENANT: Tenant = Tenant::DEFAULT;

/// What is said to a command.
pub(crate) type Says = Vec<String>;

/// The rest of a command, once the log has answered.
type GoOn = Box<dyn FnOnce(&mut World, &mut Draft<'_>, &mut Says)>;

/// A command that waits for the log.
pub(crate) struct Waiting {
    pub(crate) go_on: GoOn,
    /// What a pop has reserved: its group, its token, its claims.
    pub(crate) reserved: Option<(EngineGroup, u64, Vec<Claim>)>,
}

pub(crate) struct World {
    pub(crate) state: State,
    follower: State,
    pub(crate) overlay: Overlay,
    pub(crate) engine: Engine,
    pub(crate) filter: DuplicateFilter,
    pub(crate) order: IdOrder,
    pub(crate) limits: Limits,
    pub(crate) terms: RetentionTerms,
    pub(crate) log: Log,
    pub(crate) names: Names,
    pub(crate) partitions: BTreeMap<PartitionId, String>,
    pub(crate) seen: Seen,
    pub(crate) now: Micros,
    drawn: u64,
    pub(crate) applied: u64,
    is_slow: bool,
    waiting: VecDeque<Waiting>,
    /// Pops that found nothing and wait for something.
    pub(crate) parked: VecDeque<Pop>,
    /// Entries up to which the log was complete when questions now out were asked.
    asked: BTreeMap<u64, u32>,
    tokens: u64,
    pub(crate) ids: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let state = State::new();
        Self {
            engine: Engine::new(&state),
            state,
            follower: State::new(),
            overlay: Overlay::default(),
            filter: DuplicateFilter::default(),
            order: IdOrder::new(START),
            limits: Limits::default(),
            terms: RetentionTerms { hash_window_min_s: 0, cleanup_s: None },
            log: Log::default(),
            names: Names::default(),
            partitions: BTreeMap::new(),
            seen: Seen::default(),
            now: START,
            drawn: 0,
            applied: 0,
            is_slow: false,
            waiting: VecDeque::new(),
            parked: VecDeque::new(),
            asked: BTreeMap::new(),
            tokens: 0,
            ids: 0,
        }
    }

    pub(crate) fn into_seen(self) -> Seen {
        self.seen
    }

    /// Number of the plan that is being made.
    pub(crate) fn plan(&self) -> u64 {
        self.applied + 1
    }

    /// Plans these commands into one entry, applies it, and returns what is said to each.
    pub(crate) fn run(&mut self, commands: &[&Command]) -> Vec<Says> {
        self.pass_time(commands[0].words.clone());
        let (now, mut drawn) = (self.now, self.drawn);
        let mut entropy = || {
            drawn += 1;
            drawn
        };
        let stamp = Stamp { now, entropy: &mut entropy };
        let bases = (self.state.next_partition(), self.state.kv_version_next());
        let mut draft = Draft::new(stamp, bases.0, bases.1);
        let before = self.state.digest();
        self.engine.fire_due(now);
        let mut said = Vec::new();
        for command in commands {
            let mut says = Vec::new();
            self.command(&mut draft, command, &mut says);
            said.push(says);
        }
        self.engine.flush(self.plan(), &mut draft);
        for (command, says) in commands.iter().zip(&mut said) {
            self.judge(&mut draft, command, says);
        }
        assert_eq!(self.state.digest(), before, "P1: a plan changed the state");
        let entry = (!draft.is_empty()).then(|| draft.finish());
        self.drawn = drawn;
        let last = said.last_mut().unwrap();
        if let Some((entry, routes)) = entry {
            self.tell_entry(&entry, last);
            self.check_routes(&entry, &routes);
            self.apply(&entry);
        }
        self.tell_woken(last);
        said
    }

    /// A plan is made a millisecond after the one before, or when a story says so.
    fn pass_time(&mut self, mut words: Words) {
        let step = match &*words.next("command") {
            "wait" => span(&words.next("time")),
            _ => 1000,
        };
        let least = self.state.last_now().max(self.state.max_created());
        self.now = Micros(self.now.0 + step).max(Micros(least.0 + 1));
    }

    fn command(&mut self, draft: &mut Draft<'_>, command: &Command, says: &mut Says) {
        let mut words = command.words.clone();
        let name = words.next("command");
        assert!(command.parts.is_empty() || name == "transaction", "only a transaction has parts");
        match &*name {
            "wait" => {
                words.next("time");
                words.end();
            }
            "push" => self.push(draft, words, says),
            "limit" => self.limits.command_bytes_max = words.number("bytes").unwrap(),
            "configure" => self.configure(draft, words, says),
            "pop" => self.pop(draft, words, says),
            "abandon" => self.abandon(says),
            "retry" => self.retry(draft, says),
            "give-up" => self.give_up(says),
            "revoke" => self.revoke(words),
            "extend" => self.extend(draft, words, says),
            "ack" => self.ack(draft, words, says),
            "transaction" => self.transaction(draft, &command.parts, says),
            "seek" => self.seek(draft, words, says),
            "delete-queue" => self.delete_queue(draft, words, says),
            "delete-group" => self.delete_group(draft, words, says),
            "delete-letter" => self.delete_letter(draft, words, says),
            "resubscribe" => self.resubscribe(draft, words, says),
            "sweep" => {
                let limit = words.number("rows").unwrap();
                draft.add(Effect::DeleteChunk { limit }, Route::System, 16);
            }
            // Judged when the plan is otherwise complete.
            "expire" | "remove" => {}
            "terms" => self.set_terms(words),
            "load" => self.load(words, says),
            "collect" => self.collect(says),
            "decide" => self.decide(words, says),
            "slow" => self.is_slow = true,
            "answer" => self.answer(draft, says),
            "restart" => self.restart(),
            other => panic!("no command {other:?}"),
        }
    }

    /// Goes on with what the log says: now, or when a story of a slow log says so.
    pub(crate) fn ask(&mut self, draft: &mut Draft<'_>, says: &mut Says, waiting: Waiting) {
        if self.is_slow {
            says.push("waits for the log".to_owned());
            self.waiting.push_back(waiting);
        } else {
            (waiting.go_on)(self, draft, says);
        }
    }

    /// The log answers the question that is out longest.
    fn answer(&mut self, draft: &mut Draft<'_>, says: &mut Says) {
        let waiting = self.waiting.pop_front().expect("a command waits for the log");
        self.is_slow = !self.waiting.is_empty();
        (waiting.go_on)(self, draft, says);
    }

    /// The caller of the pop that waits longest is gone.
    fn abandon(&mut self, says: &mut Says) {
        let waiting = self.waiting.pop_front().expect("a command waits for the log");
        let (group, token, claims) = waiting.reserved.expect("it is a pop");
        for claim in claims {
            self.engine.give_back(&self.state, group, token, &claim);
            says.push(format!("{} is given back", self.partition(claim.partition)));
        }
        self.is_slow = !self.waiting.is_empty();
    }

    /// A node that starts on the same logs and state.
    fn restart(&mut self) {
        assert!(self.waiting.is_empty(), "a restart forgets who waits");
        self.engine = Engine::new(&self.state);
        self.overlay = Overlay::default();
        self.order = IdOrder::new(self.state.last_now().max(self.state.max_created()));
        self.filter = DuplicateFilter::default();
        for (partition, hash, entry, created) in self.log.hashes() {
            self.filter.insert(partition, hash, Band { from: entry, to: entry }, created);
        }
    }

    fn apply(&mut self, entry: &Entry) {
        let index = EntryIndex(self.plan());
        self.state.apply(index, 1, entry).unwrap_or_else(|error| panic!("P2: {error}"));
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let read = Entry::decode(&bytes).unwrap();
        self.follower.apply(index, 1, &read).unwrap();
        assert_eq!(self.follower.digest(), self.state.digest(), "another node has other rows");
        self.applied = index.0;
        self.engine.applied(index.0);
        self.overlay.retire(index.0);
        for effect in &entry.effects {
            match effect {
                Effect::Append(append) => {
                    self.log.append(index, append);
                    self.engine.appended(&self.state, append.id);
                }
                Effect::Watermark(marks) => {
                    let below = self.state.reclaimable(marks.id).unwrap();
                    self.log.reclaim(marks.id, below);
                }
                _ => {}
            }
        }
        self.retire_hashes();
    }

    /// A question to the log about hashes is out; returns since when.
    pub(crate) fn note_question(&mut self, asked_at: Option<u64>) -> u64 {
        let asked_at = asked_at.unwrap_or_else(|| {
            *self.asked.entry(self.applied).or_default() += 1;
            self.applied
        });
        assert!(asked_at <= self.applied);
        asked_at
    }

    /// What asked is decided: hashes that were kept for it may go to the filter.
    pub(crate) fn decided(&mut self, asked_at: Option<u64>) {
        let Some(asked_at) = asked_at else { return };
        let count = self.asked.get_mut(&asked_at).unwrap();
        *count -= 1;
        if *count == 0 {
            self.asked.remove(&asked_at);
        }
        self.retire_hashes();
    }

    fn retire_hashes(&mut self) {
        let oldest = self.asked.first_key_value().map_or(u64::MAX, |(at, _)| *at);
        let (overlay, filter) = (&mut self.overlay, &mut self.filter);
        overlay.retire_hashes(self.applied.min(oldest), |plan, id, hash, created| {
            let at = EntryIndex(plan);
            filter.insert(id, hash, Band { from: at, to: at }, created);
        });
    }

    fn check_routes(&self, entry: &Entry, routes: &[Route]) {
        assert_eq!(entry.effects.len(), routes.len());
        let of_queue = |name: &str| queue_id(TENANT, name);
        for (effect, route) in entry.effects.iter().zip(routes) {
            let wanted = match effect {
                Effect::QueueUpsert { queue, .. }
                | Effect::QueueDelete { queue, .. }
                | Effect::GroupDelete { queue, .. }
                | Effect::DlqDelete { queue, .. } => Route::Queue(of_queue(queue)),
                Effect::GroupUpsert(group) => Route::Queue(of_queue(&group.queue)),
                Effect::DlqInsert(letter) => Route::Queue(of_queue(&letter.queue)),
                Effect::PartitionCreate(create) => {
                    Route::Partition(of_queue(&create.queue), create.id)
                }
                Effect::Append(append) => self.route_of(append.id),
                Effect::CursorSet(set) => self.route_of(set.id),
                Effect::CursorDelete { id, .. } | Effect::PartitionDelete { id } => {
                    self.route_of(*id)
                }
                Effect::DeleteChunk { .. } => Route::System,
                Effect::Watermark(marks) => self.route_of(marks.id),
                Effect::Noop => panic!("nobody plans {effect:?}"),
            };
            assert_eq!(*route, wanted, "the log of {effect:?}");
        }
    }

    fn route_of(&self, id: PartitionId) -> Route {
        let name = &self.partitions[&id];
        Route::Partition(queue_id(TENANT, name.split_once('/').unwrap().0), id)
    }

    fn tell_woken(&mut self, says: &mut Says) {
        let woken = self.engine.take_woken().into_iter().map(|(group, partition)| {
            let (_, queue, group) = self.engine.names(group);
            match partition {
                PartitionId(0) => format!("wakes {group} on {queue}"),
                partition => format!("wakes {group} on {}", self.partition(partition)),
            }
        });
        let woken: BTreeSet<String> = woken.collect();
        says.extend(woken.into_iter().map(|line| format!("~ {line}")));
    }

    pub(crate) fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// What a partition is called.
    pub(crate) fn partition(&self, id: PartitionId) -> String {
        match self.partitions.get(&id).and_then(|name| name.split_once('/')) {
            Some((queue, partition)) => format!("{}/{}", short(queue), short(partition)),
            None => format!("partition {id}"),
        }
    }

    /// The live partition that `queue/partition` names, with its queue as planned.
    pub(crate) fn live(&self, place: &str) -> Option<(PartitionId, QueueView)> {
        let (queue, partition) = split(place);
        let view =
            self.overlay.queue(&self.state, TENANT, &queue).filter(|view| !view.in_flight)?;
        let id = self.state.partition_named(self.state.queue(TENANT, &queue)?, &partition)?;
        Some((id, view))
    }

    /// Seconds at which the engine is due, as a story tells it.
    pub(crate) fn due(&self) -> Option<String> {
        self.engine.next_due().map(time)
    }
}

/// Queue and partition of `queue/partition`.
pub(crate) fn split(place: &str) -> (String, String) {
    let (queue, partition) =
        place.split_once('/').unwrap_or_else(|| panic!("{place:?}: queue/partition"));
    (expand(queue), expand(partition))
}
