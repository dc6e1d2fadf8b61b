//! Pops in the cycle: register, claim, read, grant; or wait.

mod claims;

use std::sync::Arc;

use queen_model::Refusal;
use queen_planner::catalog::{Catalog, GroupTerms};
use queen_planner::consume::{EngineGroup, Start};
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_qlog::StoredRecord;
use queen_record::ids::{Micros, Offset, PartitionId, Uuid};
use queen_state::State;
use smallvec::SmallVec;

use super::waiters::Place;
use super::{Cycle, Ready, Reply};
use crate::api::{CallError, Chosen, PopRequest, PopTarget, Subscribe};
use crate::lookup::Reader;
use claims::{Attempt, PendingClaim};

/// A pop to be served.
#[derive(Debug)]
pub struct PopCommand {
    /// Ascends with arrival; the caller names the pop by it when it gives up.
    pub token: u64,
    /// What is asked.
    pub request: PopRequest,
    /// Where the answer goes.
    pub reply: Reply<PopGranted>,
}

/// What a pop was granted; no claim means nothing.
#[derive(Debug, Default)]
pub struct PopGranted {
    /// `None` with commit at delivery.
    pub lease: Option<Uuid>,
    /// One per partition.
    pub claims: Vec<ClaimData>,
    /// Whether records of it may hold encrypted payloads.
    pub sealed: bool,
    /// Whether the group's policy is to deliver only the newest message.
    pub conflates: bool,
    /// What the autopilot chose.
    pub chosen: Option<Chosen>,
}

impl PopGranted {
    /// Whether the records can be handed on whole: they may hold more than was granted, and it must be plain.
    pub fn can_be_framed(&self) -> bool {
        !self.conflates && !self.sealed
    }

    /// Bytes of its records.
    pub fn stored_bytes(&self) -> usize {
        let records = self.claims.iter().flat_map(|claim| &claim.records);
        records.map(|record| record.payload.len()).sum()
    }
}

/// The messages granted from one partition, still as records.
#[derive(Debug)]
pub struct ClaimData {
    /// The engine's number of the group.
    pub group: EngineGroup,
    /// The partition.
    pub partition: PartitionId,
    /// Its name.
    pub name: Arc<str>,
    /// Delivery attempt, from 1.
    pub attempt: u32,
    /// Offset of the first granted message.
    pub first: Offset,
    /// Messages granted.
    pub count: usize,
    /// Records that hold them, and possibly more.
    pub records: Vec<StoredRecord>,
}

/// A lease to be taken back.
pub(super) struct Revoke {
    group: EngineGroup,
    partition: PartitionId,
    lease: Uuid,
}

impl Revoke {
    /// What must be undone when the answer cannot be delivered.
    pub(super) fn of(granted: &PopGranted) -> Vec<Self> {
        let Some(lease) = granted.lease else { return Vec::new() };
        let revoke =
            |claim: &ClaimData| Self { group: claim.group, partition: claim.partition, lease };
        granted.claims.iter().map(revoke).collect()
    }
}

/// A pop that is not answered yet.
pub(super) struct PendingPop {
    request: PopRequest,
    reply: Reply<PopGranted>,
    /// Its group on each queue that it may take from; one but for a pop by labels.
    groups: SmallVec<[EngineGroup; 1]>,
    deadline: Micros,
    /// When it arrived: where it starts when it starts "now".
    since: Micros,
    /// The plan that registered its group: an empty answer must not come before it is applied.
    registered: u64,
    parked: bool,
    claims: Vec<PendingClaim>,
    chosen: Option<Chosen>,
}

impl PendingPop {
    /// Where it waits; a pop by labels does not.
    fn place(&self) -> Option<Place> {
        let group = *self.groups.first()?;
        match &self.request.target {
            PopTarget::Queue(_) => Some(Place::Group(group)),
            PopTarget::Partition { partition, .. } => {
                Some(Place::Partition(group, partition.as_str().into()))
            }
            PopTarget::Labels { .. } => None,
        }
    }

    /// How it registers its group.
    fn terms(&self) -> GroupTerms {
        terms_of(&self.request, self.since)
    }
}

fn terms_of(request: &PopRequest, since: Micros) -> GroupTerms {
    let start = start_of(&request.subscribe);
    GroupTerms { start, since, conflation: request.conflation.unwrap_or(false) }
}

impl Cycle {
    pub(super) fn pop(
        &mut self,
        state: &State,
        reader: &Reader,
        draft: &mut Draft<'_>,
        command: PopCommand,
    ) {
        let PopCommand { token, request, reply } = command;
        if reply.is_closed() {
            return;
        }
        let before = draft.is_empty();
        let since = draft.now();
        let groups = match self.enter(state, draft, &request) {
            Ok(groups) => groups,
            Err(refusal) => {
                return self.after_plan(draft, Ready::Done(refuse(reply, refusal.into())));
            }
        };
        let registered = if before && draft.is_empty() { self.proposed } else { self.proposed + 1 };
        let timeout_us = i64::try_from(request.timeout.as_micros()).unwrap_or(i64::MAX);
        let margin = self.limits.pop_margin_us.min(timeout_us / 4);
        let deadline = Micros(draft.now().0.saturating_add(timeout_us - margin));
        for group in &groups {
            *self.popping.entry(*group).or_default() += 1;
        }
        let pop = PendingPop {
            request,
            reply,
            groups,
            deadline,
            since,
            registered,
            parked: false,
            claims: Vec::new(),
            chosen: None,
        };
        self.pops.insert(token, pop);
        if matches!(self.attempt(state, reader, draft, token), Attempt::Nothing) {
            self.park_or_answer(state, draft.now(), token);
        }
    }

    /// Checks a pop's names and registers its group where it does that; returns the group on each queue.
    fn enter(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        request: &PopRequest,
    ) -> Result<SmallVec<[EngineGroup; 1]>, Refusal> {
        let tenant = request.tenant;
        let queues: SmallVec<[String; 1]> = match &request.target {
            PopTarget::Queue(queue) => [queue.clone()].into(),
            PopTarget::Partition { queue, partition } => {
                check_names(queue, partition)?;
                [queue.clone()].into()
            }
            PopTarget::Labels { namespace, task } => {
                self.labelled(state, tenant, (namespace.as_deref(), task.as_deref()))
            }
        };
        // A pinned pop does not register its group, unless the policy must be kept.
        let is_pinned = matches!(request.target, PopTarget::Partition { .. });
        let registers = !is_pinned || request.conflation == Some(true);
        let mut groups = SmallVec::new();
        for queue in &queues {
            check_names(queue, &request.group)?;
            let missing = self.overlay.queue(state, tenant, queue).is_none();
            if registers && !(is_pinned && missing) {
                let terms = terms_of(request, draft.now());
                let plan = self.proposed + 1;
                let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
                catalog.register(draft, (tenant, queue), &request.group, terms)?;
            }
            groups.push(self.engine.group(tenant, queue, &request.group));
        }
        Ok(groups)
    }

    /// The names of the applied queues with these labels.
    fn labelled(
        &self,
        state: &State,
        tenant: queen_record::ids::Tenant,
        (namespace, task): (Option<&str>, Option<&str>),
    ) -> SmallVec<[String; 1]> {
        let matches = |queue: &&queen_state::Queue| {
            namespace.is_none_or(|label| queue.options.namespace == label)
                && task.is_none_or(|label| queue.options.task == label)
        };
        let live = |queue: &&queen_state::Queue| {
            self.overlay.queue(state, tenant, &queue.name).is_some_and(|view| !view.in_flight)
        };
        let queues = state.queues(tenant).filter(matches).filter(live);
        queues.map(|queue| queue.name.to_string()).collect()
    }

    /// Parks a pop that found nothing, or answers it empty.
    fn park_or_answer(&mut self, state: &State, now: Micros, token: u64) {
        let stopping = self.stopping;
        let Some(pop) = self.pops.get_mut(&token) else { return };
        if pop.request.wait
            && pop.deadline > now
            && !stopping
            && let Some(place) = pop.place()
        {
            let first = !pop.parked;
            pop.parked = true;
            let deadline = pop.deadline;
            self.waiters.park(place, token);
            if first {
                self.deadlines.insert((deadline, token));
            }
            return;
        }
        self.answer_empty(state, token);
    }

    fn answer_empty(&mut self, state: &State, token: u64) {
        if let Some(pop) = self.forget_pop(token) {
            let conflates = match (&pop.request.target, pop.groups.first()) {
                (PopTarget::Labels { .. }, _) | (_, None) => pop.request.conflation == Some(true),
                (_, Some(group)) => self.conflates(state, *group),
            };
            let (registered, reply, chosen) = (pop.registered, pop.reply, pop.chosen);
            let granted = PopGranted { conflates, chosen, ..PopGranted::default() };
            let answer = Box::new(move || drop(reply.send(Ok(granted))));
            // Behind its own registration, and behind everything queued before it.
            self.after_number(registered.max(self.applied), Ready::Done(answer));
        }
    }

    /// Offers what became ready to those who wait, longest first.
    pub(super) fn serve_woken(&mut self, state: &State, reader: &Reader, draft: &mut Draft<'_>) {
        self.waiters.wake(&mut self.engine);
        while draft.bytes() < self.limits.plan_bytes_max
            && let Some((group, partition)) = self.waiters.next_woken()
        {
            let name = state.partition(partition).map(|row| state.partition_name(row));
            let pinned = name.map(|name| Place::Partition(group, name.into()));
            let places = pinned.into_iter().chain([Place::Group(group)]);
            for place in places {
                let Some(token) = self.waiters.first(&place) else { continue };
                match self.attempt(state, reader, draft, token) {
                    Attempt::Taken => {}
                    Attempt::Nothing => self.park_or_answer(state, draft.now(), token),
                }
            }
        }
    }

    /// Whether a group's policy is to deliver only the newest message.
    fn conflates(&self, state: &State, group: EngineGroup) -> bool {
        let (tenant, queue, name) = self.engine.names(group);
        let known = self.overlay.registration(state, tenant, &queue, &name);
        known.is_some_and(|registration| registration.conflation)
    }

    /// Answers the parked pops whose time is up.
    pub(super) fn time_out_pops(&mut self, state: &State, now: Micros) {
        while let Some((at, token)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if self.pops.get(&token).is_some_and(|pop| pop.parked) {
                self.answer_empty(state, token);
            }
        }
    }

    /// A pop's caller is gone.
    pub(super) fn abandon(&mut self, state: &State, token: u64) {
        let Some(pop) = self.forget_pop(token) else {
            // It was answered, and its caller left before it took the answer.
            let handed = self.handed_out.iter().rposition(|(of, _)| *of == token);
            if let Some((_, undo)) = handed.and_then(|at| self.handed_out.remove(at)) {
                self.revoke.extend(undo);
            }
            return;
        };
        for held in &pop.claims {
            self.engine.give_back(state, held.group, token, &held.claim);
        }
    }

    /// Answers all parked pops empty, and from now on every pop that would park.
    pub(super) fn stop_pops(&mut self, state: &State) {
        self.stopping = true;
        let mut parked: Vec<u64> =
            self.pops.iter().filter(|(_, pop)| pop.parked).map(|(token, _)| *token).collect();
        parked.sort_unstable();
        for token in parked {
            self.answer_empty(state, token);
        }
    }

    /// Takes back what was granted to callers that were gone when it was answered.
    pub(super) fn revoke_undelivered(&mut self, state: &State) {
        for Revoke { group, partition, lease } in std::mem::take(&mut self.revoke) {
            self.engine.revoke(state, group, partition, lease);
        }
    }

    fn unpark(&mut self, token: u64) {
        if let Some(pop) = self.pops.get_mut(&token)
            && std::mem::take(&mut pop.parked)
            && let Some(place) = pop.place()
        {
            self.waiters.remove(&place, token);
        }
    }

    fn forget_pop(&mut self, token: u64) -> Option<PendingPop> {
        let pop = self.pops.remove(&token)?;
        self.deadlines.remove(&(pop.deadline, token));
        if pop.parked
            && let Some(place) = pop.place()
        {
            self.waiters.remove(&place, token);
        }
        for group in &pop.groups {
            if let Some(count) = self.popping.get_mut(group) {
                *count -= 1;
                if *count == 0 {
                    self.popping.remove(group);
                }
            }
        }
        Some(pop)
    }
}

pub(super) fn start_of(subscribe: &Subscribe) -> Start {
    match subscribe {
        Subscribe::All => Start::All,
        Subscribe::New => Start::End,
        Subscribe::At(time) => Start::From(*time),
    }
}

/// An answer that refuses.
pub(super) fn refuse<T: Send + 'static>(
    reply: Reply<T>,
    error: CallError,
) -> Box<dyn FnOnce() + Send> {
    Box::new(move || drop(reply.send(Err(error))))
}
