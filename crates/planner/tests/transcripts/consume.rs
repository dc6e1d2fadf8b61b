//! Pops of a story: register, claim, read, grant; and what becomes of leases that are not acknowledged.

use queen_planner::catalog::{Catalog, GroupTerms};
use queen_planner::consume::{
    Claim, ClaimFrom, ClaimRequest, Delivered, EngineGroup, LeaseTerms, QUEUE_MODE, Start, Taken,
};
use queen_planner::draft::Draft;
use queen_planner::overlay::QueueView;
use queen_record::ids::{Micros, Tenant, Uuid};

use crate::names::{parse_time, time};
use crate::script::{Words, expand};
use crate::world::{Says, TENANT, Waiting, World, split};

/// A pop that is not answered.
#[derive(Clone)]
pub(crate) struct Pop {
    queue: String,
    partition: Option<String>,
    group: String,
    batch: u32,
    partitions: u32,
    lease_s: Option<i64>,
    commits: bool,
    conflates: bool,
    start: Start,
    /// When it came.
    since: Micros,
    waits: bool,
}

impl World {
    /// `pop queue[/partition] group [all|new|from=2s] [batch=] [partitions=] [lease=] [commit] [conflate] [waits]`:
    /// without a start as the server's default says, `new`; the group `-` is none.
    pub(crate) fn pop(&mut self, draft: &mut Draft<'_>, mut words: Words, says: &mut Says) {
        let place = words.next("place");
        let (queue, partition) = match place.split_once('/') {
            Some(_) => {
                let (queue, partition) = split(&place);
                (queue, Some(partition))
            }
            None => (expand(&place), None),
        };
        let group = group_name(&words.next("group"));
        let start = match (words.flag("all"), words.flag("new"), words.value("from")) {
            (true, false, None) => Start::All,
            (false, _, None) => Start::End,
            (false, false, Some(at)) => Start::From(parse_time(&at)),
            _ => panic!("a pop starts in one way"),
        };
        let pop = Pop {
            queue,
            partition,
            group,
            batch: words.number("batch").unwrap_or(200),
            partitions: words.number("partitions").unwrap_or(1),
            lease_s: words.number("lease"),
            commits: words.flag("commit"),
            conflates: words.flag("conflate"),
            start,
            since: draft.now(),
            waits: words.flag("waits"),
        };
        words.end();
        self.seen.start(&pop.start);
        self.enter(draft, pop, says);
    }

    fn enter(&mut self, draft: &mut Draft<'_>, pop: Pop, says: &mut Says) {
        if pop.partition.is_none() || pop.conflates {
            let is_entered = self.register(draft, &pop, says);
            if !is_entered {
                return;
            }
        }
        self.attempt(draft, pop, says);
    }

    fn register(&mut self, draft: &mut Draft<'_>, pop: &Pop, says: &mut Says) -> bool {
        let Pop { start, since, conflates: conflation, .. } = *pop;
        let plan = self.plan();
        let is_there = self.overlay.queue(&self.state, TENANT, &pop.queue).is_some();
        let known = self.overlay.registration(&self.state, TENANT, &pop.queue, &pop.group);
        let mut catalog = Catalog { state: &self.state, overlay: &mut self.overlay, plan };
        let terms = GroupTerms { start, since, conflation };
        match catalog.register(draft, (TENANT, &pop.queue), &pop.group, terms) {
            Ok(_) => {
                self.seen.note(match (is_there, known) {
                    (_, Some(_)) => "registers: known already",
                    (true, None) => "registers: a queue that is there",
                    (false, None) => "registers: makes the queue",
                });
                true
            }
            Err(refusal) => {
                self.seen.refusal(&refusal);
                self.seen.note("registers: refused");
                says.push(format!("refused: {refusal}"));
                false
            }
        }
    }

    /// Claims, and goes on once the messages were read.
    fn attempt(&mut self, draft: &mut Draft<'_>, pop: Pop, says: &mut Says) {
        let group = self.engine.group(TENANT, &pop.queue, &pop.group);
        let token = self.token();
        let before = self.engine.next_due();
        let claims = self.claim(draft.now(), group, token, &pop);
        if claims.is_empty() {
            let later = self.engine.next_due().filter(|due| Some(*due) != before);
            self.seen.note(if later.is_some() { "readiness: later" } else { "readiness: idle" });
            let later = later.map(|due| format!(" before {}", time(due))).unwrap_or_default();
            let waits = if pop.waits { ", waits" } else { "" };
            says.push(format!("nothing{later}{waits}"));
            if pop.waits {
                self.parked.push_back(pop);
            }
            return;
        }
        self.seen.note("readiness: ready");
        for claim in &claims {
            self.seen.claim_from(&claim.from);
            let line = self.claim_line(claim);
            says.push(line);
        }
        let reserved = Some((group, token, claims.clone()));
        let go_on = move |world: &mut Self, draft: &mut Draft<'_>, says: &mut Says| {
            let is_granted = world.grant(draft, (group, token, &claims), &pop, says);
            if !is_granted {
                world.attempt(draft, pop, says);
            }
        };
        self.ask(draft, says, Waiting { go_on: Box::new(go_on), reserved });
    }

    /// The applied queue with its options as planned.
    fn view(&self, queue: &str) -> Option<QueueView> {
        self.overlay.queue(&self.state, TENANT, queue).filter(|view| !view.in_flight)
    }

    fn claim(&mut self, now: Micros, group: EngineGroup, token: u64, pop: &Pop) -> Vec<Claim> {
        let Some(queue) = self.view(&pop.queue) else { return Vec::new() };
        let known = self.overlay.registration(&self.state, TENANT, &pop.queue, &pop.group);
        let request = ClaimRequest {
            token,
            messages_max: pop.batch,
            partitions_max: pop.partitions,
            queue,
            now,
            pinned_start: match pop.start {
                Start::End => Start::From(pop.since),
                other => other,
            },
            conflates: known.is_some_and(|known| known.conflation) && !pop.commits,
        };
        let Some(partition) = &pop.partition else {
            return self.engine.claim(&self.state, &self.overlay, group, &request);
        };
        let id = self.live(&format!("{}/{partition}", pop.queue)).map(|(id, _)| id);
        let claim = id.and_then(|id| {
            self.engine.claim_pinned(&self.state, &self.overlay, group, id, &request)
        });
        claim.into_iter().collect()
    }

    fn claim_line(&self, claim: &Claim) -> String {
        let from = match claim.from {
            ClaimFrom::Offset(offset) => format!("from offset {offset}"),
            ClaimFrom::Time(at) => format!("from the first of {} or later", time(at)),
            ClaimFrom::Newest { wanted, last, since } => {
                let since = since.map(|at| format!(", of {} or later", time(at)));
                format!("the newest of {wanted}..{last}{}", since.unwrap_or_default())
            }
        };
        let until = claim.deliver_until.map(|at| format!(", none after {}", time(at)));
        let (partition, max) = (self.partition(claim.partition), claim.messages_max);
        format!("reads {partition} {from}, at most {max}{}", until.unwrap_or_default())
    }

    /// Turns what was read into leases; whether anything was granted.
    fn grant(
        &mut self,
        draft: &mut Draft<'_>,
        (group, token, claims): (EngineGroup, u64, &[Claim]),
        pop: &Pop,
        says: &mut Says,
    ) -> bool {
        let now = draft.now();
        let lease = (!pop.commits).then(|| draft.mint());
        let view = self.view(&pop.queue);
        let (delay_us, own_s) = view.map_or((0, 1), |view| (view.delay_us, view.lease_time_s));
        let seconds = pop.lease_s.unwrap_or(own_s.into()).max(1);
        let terms = match lease {
            Some(id) => LeaseTerms::Lease { id, expires: now.plus_seconds(seconds) },
            None => LeaseTerms::Commit,
        };
        self.seen.terms(&terms);
        let mut is_granted = false;
        for claim in claims {
            let read = self.log.read(claim);
            let terms = (now, delay_us, terms);
            let taken = self.engine.grant(&self.state, group, token, claim, &read, terms);
            self.seen.taken(&taken);
            is_granted |= matches!(taken, Taken::Granted(_));
            let line = self.taken_line(claim, &read, taken, lease);
            says.push(line);
        }
        is_granted
    }

    fn taken_line(
        &mut self,
        claim: &Claim,
        read: &Delivered,
        taken: Taken,
        lease: Option<Uuid>,
    ) -> String {
        let partition = self.partition(claim.partition);
        match taken {
            Taken::Granted(grant) => {
                let last = read.first.0 + read.hashes.len() as u64 - 1;
                let terms = match lease {
                    Some(id) => format!("under {}", self.names.of('L', id)),
                    None => "and committed".to_owned(),
                };
                let (first, names) = (read.first, self.names.list(&read.hashes));
                let attempt = grant.attempt;
                format!("{partition} {first}..{last} {terms}, attempt {attempt}: {names}")
            }
            Taken::Nothing => match read.too_young {
                Some(created) => format!("{partition}: too young, of {}", time(created)),
                None => format!("{partition}: nothing"),
            },
            Taken::Lost => format!("{partition}: the reservation is lost"),
        }
    }

    /// `retry`: the pop that waits longest looks again.
    pub(crate) fn retry(&mut self, draft: &mut Draft<'_>, says: &mut Says) {
        let pop = self.parked.pop_front().expect("a pop waits");
        self.enter(draft, pop, says);
    }

    /// `give-up`: the time of the pop that waits longest is up.
    pub(crate) fn give_up(&mut self, says: &mut Says) {
        self.parked.pop_front().expect("a pop waits");
        says.push("nothing".to_owned());
    }

    /// `revoke queue/partition group L1`: the pop's answer could not be delivered.
    pub(crate) fn revoke(&mut self, mut words: Words) {
        let (id, _) = self.live(&words.next("place")).expect("a live partition");
        let group = self.group_of(id, &words.next("group"));
        let lease = self.names.id(&words.next("lease"));
        words.end();
        self.engine.revoke(&self.state, group, id, lease);
    }

    /// `extend L1 seconds [foreign]`; `foreign` is another tenant.
    pub(crate) fn extend(&mut self, draft: &mut Draft<'_>, mut words: Words, says: &mut Says) {
        let lease = self.names.id(&words.next("lease"));
        let seconds: i64 = words.next("seconds").parse().unwrap();
        let tenant = if words.flag("foreign") { Tenant(Uuid([2; 16])) } else { TENANT };
        words.end();
        let times = (draft.now(), seconds);
        let (renewed, expires) = self.engine.extend(&self.state, tenant, lease, times);
        self.seen.note(if renewed > 0 { "extended" } else { "not extended" });
        says.push(match expires {
            Some(expires) => format!("{renewed} renewed until {}", time(expires)),
            None => "nothing renewed".to_owned(),
        });
    }

    /// `load queue group`: what an autopilot goes by.
    pub(crate) fn load(&mut self, mut words: Words, says: &mut Says) {
        let (queue, group) = (words.next("queue"), group_name(&words.next("group")));
        words.end();
        let group = self.engine.group(TENANT, &queue, &group);
        let load = self.engine.load(&self.state, &self.overlay, group);
        let (ready, holders, rate) = (load.ready, load.holders, load.drain_rate);
        says.push(format!("{ready} ready, {holders} holders, {rate} settled a second of lease"));
    }

    /// `collect`: groups that nobody used since the last time are forgotten.
    pub(crate) fn collect(&mut self, says: &mut Says) {
        self.engine.collect(|_| false);
        let stats = self.engine.stats();
        let due = self.due().map(|due| format!(", due at {due}")).unwrap_or_default();
        let (groups, parts, leases) = (stats.groups, stats.parts, stats.leases);
        says.push(format!("{groups} groups, {parts} parts, {leases} leases{due}"));
    }
}

/// A group as the API names it.
pub(crate) fn group_name(word: &str) -> String {
    if word == "-" { QUEUE_MODE.to_owned() } else { expand(word) }
}
