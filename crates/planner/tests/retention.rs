//! Retention against a naive model: pushes, cursors, seeks, groups and restarts in any order, some in one plan.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use queen_model::{
    Append, AppendPayload, Effect, Entry, GroupUpsert, PartitionCreate, QueueOptions,
    SubscriptionMode,
};
use queen_planner::consume::{
    ClaimRequest, Delivered, Engine, LeaseTerms, Place, QUEUE_MODE, Start, Taken,
};
use queen_planner::draft::{Draft, Route, Stamp};
use queen_planner::overlay::{Overlay, QueueView, Registration, Subscription, Tip};
use queen_planner::retention::{
    Boundary, Dropped, Expiry, Judged, Proposal, RetentionContext, RetentionTerms,
};
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId, Tenant, TxHash, Uuid};
use queen_state::State;

const T: Tenant = Tenant::DEFAULT;
const QUEUE: &str = "q";
const GROUPS: [&str; 3] = ["registered", "pinned", QUEUE_MODE];
const PARTITIONS: u64 = 2;
const SECOND: i64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
enum Op {
    Push {
        partition: u64,
        count: u32,
    },
    /// Takes up to so many messages and is done with them.
    Take {
        partition: u64,
        group: usize,
        count: u32,
    },
    Seek {
        partition: u64,
        group: usize,
        to: u64,
    },
    Register {
        from: Option<i64>,
    },
    DeleteGroup(usize),
    Expire(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Plan(Vec<Op>),
    Wait(i64),
    Options(QueueOptions),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let (partition, group) = (1..=PARTITIONS, 0..GROUPS.len());
    prop_oneof![
        6 => (partition.clone(), 1u32..4).prop_map(|(partition, count)| Op::Push { partition, count }),
        5 => (partition.clone(), group.clone(), 1u32..6)
            .prop_map(|(partition, group, count)| Op::Take { partition, group, count }),
        2 => (partition.clone(), group.clone(), 0u64..12)
            .prop_map(|(partition, group, to)| Op::Seek { partition, group, to }),
        1 => proptest::option::of(0i64..60).prop_map(|from| Op::Register { from }),
        1 => group.prop_map(Op::DeleteGroup),
        8 => partition.prop_map(Op::Expire),
    ]
}

fn options() -> impl Strategy<Value = QueueOptions> {
    let seconds = || prop_oneof![Just(0), 1i32..30];
    let fields = (seconds(), seconds(), seconds(), seconds(), any::<bool>(), 0u8..4);
    fields.prop_map(|(all, completed, wait, dedup, enabled, hold)| QueueOptions {
        retention_enabled: enabled,
        retention_seconds: all,
        completed_retention_seconds: completed,
        max_wait_time_seconds: wait,
        dedup_window_seconds: dedup,
        retention_sink_hold: if hold == 0 { "sink".to_owned() } else { String::new() },
        retention_sink_hold_max_seconds: 20,
        ..QueueOptions::configured()
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => proptest::collection::vec(op(), 1..4).prop_map(Step::Plan),
        5 => (1i64..12).prop_map(Step::Wait),
        1 => options().prop_map(Step::Options),
        1 => Just(Step::Restart),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Made {
    base: u64,
    end: u64,
    created: Micros,
    retained: u64,
}

/// What somebody knows who writes everything down.
#[derive(Default)]
struct Model {
    appends: BTreeMap<u64, Vec<Made>>,
    /// The offset that each group has yet to do, where it has a cursor.
    wanted: BTreeMap<(u64, usize), u64>,
    /// Where the first group starts, once it is registered.
    registered: Option<Subscription>,
    log_start: BTreeMap<u64, u64>,
    txns_start: BTreeMap<u64, u64>,
}

impl Model {
    fn made(&self, partition: u64) -> &[Made] {
        self.appends.get(&partition).map_or(&[], Vec::as_slice)
    }

    fn start(&self, partition: u64) -> u64 {
        self.log_start.get(&partition).copied().unwrap_or(0)
    }

    fn end(&self, partition: u64) -> u64 {
        self.made(partition).last().map_or(0, |made| made.end)
    }

    /// Whether every group has done what was appended so.
    fn is_done(&self, partition: u64, made: &Made) -> bool {
        let places = |group: usize| self.wanted.get(&(partition, group));
        let any =
            (0..GROUPS.len()).any(|group| places(group).is_some()) || self.registered.is_some();
        let passed = (0..GROUPS.len()).all(|group| places(group).is_none_or(|at| made.end <= *at));
        let unseen = places(0).is_some()
            || match self.registered {
                None => true,
                Some(Subscription::All) => false,
                Some(Subscription::From(from)) => made.created < from,
            };
        any && passed && unseen
    }

    /// Where the log of a partition starts after retention came by, and where its hashes.
    fn expire(&self, partition: u64, options: &QueueOptions, now: Micros) -> (u64, u64) {
        let age = |made: &Made| now.0 - made.created.0;
        let older = |made: &Made, seconds: i32, hold: bool| {
            let held = hold && !options.retention_sink_hold.is_empty();
            let seconds = if held { seconds.max(20) } else { seconds };
            age(made) > i64::from(seconds) * SECOND
        };
        let goes = |made: &Made| {
            let all = options.retention_seconds;
            let wait = options.max_wait_time_seconds;
            options.retention_enabled && all > 0 && older(made, all, true)
                || wait > 0 && older(made, wait, false)
        };
        let goes_done = |made: &Made| {
            let completed = options.completed_retention_seconds;
            options.retention_enabled
                && completed > 0
                && older(made, completed, true)
                && self.is_done(partition, made)
        };
        let left = || self.made(partition).iter().filter(|made| made.end > self.start(partition));
        let any = left().take_while(|made| goes(made)).last();
        let done = left().take_while(|made| goes_done(made)).last();
        let start = any.into_iter().chain(done).map(|made| made.end).max();
        let start = start.unwrap_or(self.start(partition));
        let window = options.dedup_window_seconds.max(options.completed_retention_seconds);
        let rows = self
            .made(partition)
            .iter()
            .take_while(|made| made.end <= start && age(made) > i64::from(window.max(0)) * SECOND);
        let before = self.txns_start.get(&partition).copied().unwrap_or(0);
        (start, rows.last().map_or(0, |made| made.end).max(before))
    }
}

struct World {
    state: State,
    engine: Engine,
    overlay: Overlay,
    model: Model,
    now: Micros,
    drawn: u64,
    tokens: u64,
}

const TERMS: RetentionTerms = RetentionTerms { hash_window_min_s: 0, cleanup_s: None };

impl World {
    fn new() -> Self {
        let state = State::new();
        let (engine, overlay) = (Engine::new(&state), Overlay::default());
        let mut world = Self {
            state,
            engine,
            overlay,
            model: Model::default(),
            now: Micros(1_000 * SECOND),
            drawn: 0,
            tokens: 0,
        };
        world.plan(&[], &QueueOptions::configured(), true);
        world
    }

    fn options(&self) -> QueueOptions {
        self.state.queue(T, QUEUE).unwrap().options.clone()
    }

    fn view(&self) -> QueueView {
        self.overlay.queue(&self.state, T, QUEUE).unwrap()
    }

    /// Plans these operations into one entry and applies it.
    fn plan(&mut self, ops: &[Op], options: &QueueOptions, configures: bool) {
        self.now = Micros(self.now.0 + 1000);
        let now = self.now;
        let mut drawn = self.drawn;
        let mut entropy = || {
            drawn += 1;
            drawn
        };
        let stamp = Stamp { now, entropy: &mut entropy };
        let base = self.state.next_partition();
        let mut draft = Draft::new(stamp, base, 1);
        if configures {
            self.configure(&mut draft, options);
        }
        // What somebody who reads the logs saw, before this plan was made.
        let seen: Vec<Expiry> = (1..=PARTITIONS).map(|id| self.seen(id, options)).collect();
        let mut pushed: BTreeMap<u64, Vec<Made>> = BTreeMap::new();
        for op in ops {
            self.op(&mut draft, *op, &mut pushed);
        }
        let plan = self.state.applied().0 + 1;
        self.engine.flush(plan, &mut draft);
        for op in ops {
            if let Op::Expire(id) = op {
                self.judge(&mut draft, &seen, *id, (options, &pushed));
            }
        }
        let entry = (!draft.is_empty()).then(|| draft.finish().0);
        self.drawn = drawn;
        if let Some(entry) = entry {
            self.apply(&entry);
        }
        for (id, made) in pushed {
            self.model.appends.entry(id).or_default().extend(made);
        }
        self.check();
    }

    fn configure(&self, draft: &mut Draft<'_>, options: &QueueOptions) {
        let view = QueueView::new((T, QUEUE), Uuid([1; 16]), self.now, options, true);
        let queue = Effect::QueueUpsert {
            tenant: T,
            queue: QUEUE.to_owned(),
            id: Uuid([1; 16]),
            options: options.clone(),
            created: self.now,
        };
        draft.add(queue, Route::Queue(view.route), 0);
        while self.state.partition_count() == 0 && draft.new_partition().0 <= PARTITIONS {
            let id = PartitionId(draft.bytes() as u64 + 1);
            let create = PartitionCreate {
                id,
                uuid: Uuid([2; 16]),
                tenant: T,
                queue: QUEUE.to_owned(),
                partition: format!("p{id}"),
                created: self.now,
            };
            draft.add(Effect::PartitionCreate(create), Route::Partition(view.route, id), 1);
        }
    }

    fn op(&mut self, draft: &mut Draft<'_>, op: Op, pushed: &mut BTreeMap<u64, Vec<Made>>) {
        let plan = self.state.applied().0 + 1;
        match op {
            Op::Push { partition, count } => {
                let made = self.push(draft, partition, count, plan);
                pushed.entry(partition).or_default().push(made);
            }
            Op::Take { partition, group, count } => self.take(partition, group, count),
            Op::Seek { partition, group, to } => {
                let id = PartitionId(partition);
                let key = (id, self.engine.group(T, QUEUE, GROUPS[group]));
                let to = to.min(self.model.end(partition));
                let place = (Place::Next(Offset(to)), None);
                let route = self.view().route;
                self.engine.move_cursor(&self.state, key, route, place, self.now);
                let start = self.state.partition(id).unwrap().log_start().0;
                self.model.wanted.insert((partition, group), to.max(start));
            }
            Op::Register { from } => self.register(draft, from, plan),
            Op::DeleteGroup(group) => {
                let name = GROUPS[group];
                let mut catalog = queen_planner::catalog::Catalog {
                    state: &self.state,
                    overlay: &mut self.overlay,
                    plan,
                };
                if catalog.delete_group(draft, (T, QUEUE), name, true).is_some() {
                    self.engine.drop_group(plan, T, QUEUE, name);
                    self.model.wanted.retain(|(_, of), _| *of != group);
                    if group == 0 {
                        self.model.registered = None;
                    }
                }
            }
            Op::Expire(_) => {}
        }
    }

    fn push(&mut self, draft: &mut Draft<'_>, partition: u64, count: u32, plan: u64) -> Made {
        let id = PartitionId(partition);
        let tip = self.overlay.tip(&self.state, id).unwrap();
        let base = u64::try_from(tip.last_offset + 1).unwrap();
        let created = self.now.max(Micros(tip.last_created.0 + 1));
        let retained = 50 + count;
        let hashes = vec![TxHash([7; 16]); count as usize];
        let payload = AppendPayload::Elsewhere { retained };
        let append = Append { id, bucket: 0, base: Offset(base), created, hashes, payload };
        draft.add(Effect::Append(append), Route::Partition(self.view().route, id), 0);
        let last_offset = tip.last_offset + i64::from(count);
        self.overlay.put_tip(plan, id, Tip { last_offset, last_created: created });
        Made { base, end: base + u64::from(count), created, retained: retained.into() }
    }

    fn take(&mut self, partition: u64, group: usize, count: u32) {
        self.tokens += 1;
        let id = PartitionId(partition);
        let engine_group = self.engine.group(T, QUEUE, GROUPS[group]);
        let request = ClaimRequest {
            token: self.tokens,
            messages_max: count,
            partitions_max: 1,
            queue: self.view(),
            now: self.now,
            pinned_start: Start::All,
            conflates: false,
        };
        let wanted = self.model.wanted.get(&(partition, group)).copied();
        let start = self.model.start(partition);
        let end = self.model.end(partition);
        let claim =
            self.engine.claim_pinned(&self.state, &self.overlay, engine_group, id, &request);
        let Some(claim) = claim else {
            if let Some(wanted) = wanted {
                assert!(wanted.max(start) >= end, "nothing was claimed of {wanted}..{end}");
                self.model.wanted.insert((partition, group), wanted.max(start));
            }
            return;
        };
        let first = match claim.from {
            queen_planner::consume::ClaimFrom::Offset(offset) => offset.0,
            queen_planner::consume::ClaimFrom::Time(time) => {
                let mut made = self.model.made(partition).iter();
                made.find(|made| made.created >= time).unwrap().base.max(claim.start.0)
            }
            queen_planner::consume::ClaimFrom::Newest { .. } => unreachable!("none conflates"),
        };
        assert!(first >= start && claim.start.0 == start);
        if let Some(wanted) = wanted {
            assert_eq!(first, wanted.max(start));
        }
        let last = end.min(first + u64::from(claim.messages_max));
        let hashes = (first..last).map(|_| TxHash([7; 16])).collect();
        let delivered = Delivered { first: Offset(first), hashes, too_young: None };
        let terms = (self.now, 0, LeaseTerms::Commit);
        let token = self.tokens;
        let taken = self.engine.grant(&self.state, engine_group, token, &claim, &delivered, terms);
        assert!(matches!(taken, Taken::Granted(_)));
        self.model.wanted.insert((partition, group), last);
    }

    fn register(&mut self, draft: &mut Draft<'_>, from: Option<i64>, plan: u64) {
        let from = from.map(|ago| self.now.plus_seconds(-ago));
        let (mode, at) = match from {
            Some(at) => (SubscriptionMode::Timestamp, at),
            None => (SubscriptionMode::All, Micros(0)),
        };
        let start = from.map_or(Subscription::All, Subscription::From);
        let registration = Registration { start, conflation: false };
        self.overlay.put_registration(plan, T, QUEUE, GROUPS[0], Some(registration));
        // A group that asks is known to the engine.
        self.engine.start_changed(T, QUEUE, GROUPS[0]);
        let group = GroupUpsert {
            tenant: T,
            queue: QUEUE.to_owned(),
            group: GROUPS[0].to_owned(),
            id: Uuid([4; 16]),
            mode,
            subscribe_at: at,
            conflation: false,
            registered: self.now,
        };
        draft.add(Effect::GroupUpsert(group), Route::Queue(self.view().route), 0);
        self.model.registered = Some(start);
    }

    /// All boundaries from where the log starts, and the furthest that the hashes may leave up to.
    fn seen(&self, partition: u64, options: &QueueOptions) -> Expiry {
        let from = self.model.start(partition);
        let made = self.model.made(partition);
        let left: Vec<&Made> = made.iter().filter(|made| made.end > from).collect();
        let mut freed = 0;
        let boundary = |(at, made): (usize, &&Made)| {
            freed += made.retained;
            let next = left.get(at + 1).map(|next| next.created);
            Boundary { at: Offset(made.end), newest: made.created, next, freed }
        };
        let boundaries = left.iter().enumerate().map(boundary).collect();
        let window = options.dedup_window_seconds.max(options.completed_retention_seconds);
        let before = self.now.plus_seconds(-i64::from(window.max(0)));
        let rows = made.iter().take_while(|made| made.created < before).last();
        let rows = rows.map(|made| (Offset(made.end), made.created));
        Expiry { partition: PartitionId(partition), from: Offset(from), boundaries, rows }
    }

    fn judge(
        &mut self,
        draft: &mut Draft<'_>,
        seen: &[Expiry],
        partition: u64,
        (options, pushed): (&QueueOptions, &BTreeMap<u64, Vec<Made>>),
    ) {
        let expiry = &seen[usize::try_from(partition - 1).unwrap()];
        let before = self.model.start(partition);
        let is_first = expiry.from.0 == before && !self.overlay.has_retention(expiry.partition);
        let (log, txns) = self.model.expire(partition, options, self.now);
        let mut context = RetentionContext {
            state: &self.state,
            overlay: &mut self.overlay,
            engine: &self.engine,
            terms: &TERMS,
            plan: self.state.applied().0 + 1,
        };
        let judged = context.judge(draft, &Proposal::Expire(expiry.clone()));
        if !is_first {
            assert_eq!(judged, Judged::Dropped(Dropped::InFlight), "one effect a plan");
            return;
        }
        let appended = pushed.contains_key(&partition);
        if appended && log > before && log == self.model.end(partition) {
            assert_eq!(judged, Judged::Dropped(Dropped::InFlight));
            return;
        }
        let moved =
            log > before || txns > self.model.txns_start.get(&partition).copied().unwrap_or(0);
        match judged {
            Judged::Moved { messages, .. } => assert_eq!(messages, log - before),
            other => assert_eq!((other, moved), (Judged::Dropped(Dropped::NotDue), false)),
        }
        self.model.log_start.insert(partition, log);
        self.model.txns_start.insert(partition, txns);
    }

    fn apply(&mut self, entry: &Entry) {
        let index = EntryIndex(self.state.applied().0 + 1);
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        self.state.apply(index, 1, &Entry::decode(&bytes).unwrap()).unwrap();
        self.engine.applied(index.0);
        self.overlay.retire(index.0);
        for effect in &entry.effects {
            if let Effect::Append(append) = effect {
                self.engine.appended(&self.state, append.id);
            }
        }
    }

    fn check(&self) {
        for partition in 1..=PARTITIONS {
            let row = self.state.partition(PartitionId(partition)).unwrap();
            let start = self.model.start(partition);
            let txns = self.model.txns_start.get(&partition).copied().unwrap_or(0);
            assert_eq!((row.log_start().0, row.txns_start().0), (start, txns));
            let left: Vec<&Made> =
                self.model.made(partition).iter().filter(|made| made.end > start).collect();
            let retained: u64 = left.iter().map(|made| made.retained).sum();
            assert_eq!(row.retained_bytes, i64::try_from(retained).unwrap());
            if let Some(marks) = row.marks.as_deref().filter(|marks| marks.log_start > 0) {
                assert_eq!(marks.oldest, left.first().map(|made| made.created));
            }
            let queue = self.state.queue(T, QUEUE).unwrap();
            for (group, name) in GROUPS.iter().enumerate() {
                let number = queue.group(name).map(|group| group.number);
                let cursor =
                    number.and_then(|number| self.state.cursor(PartitionId(partition), number));
                let wanted = cursor.map(|cursor| cursor.wanted().0);
                assert_eq!(wanted, self.model.wanted.get(&(partition, group)).copied(), "{name}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_is_what_a_naive_model_says(
        first in options(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        world.plan(&[], &first, true);
        for step in steps {
            let options = world.options();
            match step {
                Step::Plan(ops) => world.plan(&ops, &options, false),
                Step::Wait(seconds) => world.now = world.now.plus_seconds(seconds),
                Step::Options(options) => world.plan(&[], &options, true),
                Step::Restart => {
                    world.engine = Engine::new(&world.state);
                    world.overlay = Overlay::default();
                }
            }
        }
    }
}
