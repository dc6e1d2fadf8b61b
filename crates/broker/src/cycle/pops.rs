//! Pops in the cycle: register, claim, read, grant; or wait.

use std::sync::Arc;

use queen_planner::catalog::Catalog;
use queen_planner::consume::{
    Claim, ClaimRequest, Delivered, EngineGroup, LeaseTerms, Start, Taken,
};
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_planner::overlay::QueueView;
use queen_qlog::StoredRecord;
use queen_record::ids::{Micros, Offset, PartitionId, Uuid};
use queen_state::State;

use super::waiters::Place;
use super::{Cycle, Ready, Reply};
use crate::api::{CallError, PopRequest, PopTarget, Subscribe};
use crate::lookup::{ClaimRead, Lookup, LookupError, Reader};

/// Bytes of records that one pop reads at most; a single larger message is still read. Reading them takes the core a few
/// milliseconds.
const POP_BYTES_MAX: u64 = 8 * 1024 * 1024;

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
    /// The engine's number of the group.
    pub group: Option<EngineGroup>,
    /// `None` with commit at delivery.
    pub lease: Option<Uuid>,
    /// One per partition.
    pub claims: Vec<ClaimData>,
}

/// The messages granted from one partition, still as records.
#[derive(Debug)]
pub struct ClaimData {
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
        let (Some(group), Some(lease)) = (granted.group, granted.lease) else { return Vec::new() };
        let revoke = |claim: &ClaimData| Self { group, partition: claim.partition, lease };
        granted.claims.iter().map(revoke).collect()
    }
}

/// A pop that is not answered yet.
pub(super) struct PendingPop {
    request: PopRequest,
    reply: Reply<PopGranted>,
    group: EngineGroup,
    deadline: Micros,
    /// When it arrived: where it starts when it starts "now".
    since: Micros,
    /// The plan that registered its group: an empty answer must not come before it is applied.
    registered: u64,
    place: Place,
    parked: bool,
    claims: Vec<(Claim, Option<Result<ClaimRead, LookupError>>)>,
}

impl PendingPop {
    pub(super) fn group(&self) -> EngineGroup {
        self.group
    }
}

enum Attempt {
    /// Answered, or waiting for the disk.
    Taken,
    /// Nothing was there.
    Nothing,
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
        let (queue, pin) = match &request.target {
            PopTarget::Queue(queue) => (queue.clone(), None),
            PopTarget::Partition { queue, partition } => (queue.clone(), Some(partition.clone())),
        };
        let before = draft.is_empty();
        let since = draft.now();
        if let Err(refusal) = self.enter(state, draft, &request, &queue, pin.as_deref()) {
            return self.after_plan(draft, Ready::Done(refuse(reply, refusal.into())));
        }
        let registered = if before && draft.is_empty() { self.proposed } else { self.proposed + 1 };
        let group = self.engine.group(request.tenant, &queue, &request.group);
        let place = match pin {
            Some(partition) => Place::Partition(group, partition.into()),
            None => Place::Group(group),
        };
        let timeout_us = i64::try_from(request.timeout.as_micros()).unwrap_or(i64::MAX);
        let margin = self.limits.pop_margin_us.min(timeout_us / 4);
        let deadline = Micros(draft.now().0.saturating_add(timeout_us - margin));
        let claims = Vec::new();
        let pop = PendingPop {
            request,
            reply,
            group,
            deadline,
            since,
            registered,
            place,
            parked: false,
            claims,
        };
        self.pops.insert(token, pop);
        if matches!(self.attempt(state, reader, draft, token), Attempt::Nothing) {
            self.park_or_answer(draft.now(), token);
        }
    }

    /// Registers the group of a wildcard pop; a pinned one only has its names checked.
    fn enter(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        request: &PopRequest,
        queue: &str,
        pin: Option<&str>,
    ) -> Result<(), queen_model::Refusal> {
        check_names(queue, &request.group)?;
        if let Some(partition) = pin {
            return check_names(queue, partition);
        }
        let plan = self.proposed + 1;
        let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
        let names = (request.tenant, queue);
        let start = (start_of(&request.subscribe), draft.now());
        catalog.register(draft, names, &request.group, start).map(|_| ())
    }

    /// Tries to claim for a pop.
    fn attempt(
        &mut self,
        state: &State,
        reader: &Reader,
        draft: &mut Draft<'_>,
        token: u64,
    ) -> Attempt {
        let Some(pop) = self.pops.get(&token) else { return Attempt::Taken };
        if pop.reply.is_closed() {
            self.forget_pop(token);
            return Attempt::Taken;
        }
        if let PopTarget::Queue(queue) = &pop.request.target {
            // The group may have been deleted, with its queue or alone, while the pop was parked.
            let plan = self.proposed + 1;
            let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
            let start = (start_of(&pop.request.subscribe), pop.since);
            let entered =
                catalog.register(draft, (pop.request.tenant, queue), &pop.request.group, start);
            debug_assert!(entered.is_ok(), "its names were checked when it arrived");
        }
        let Some(view) = self.queue_of(state, pop) else { return Attempt::Nothing };
        let request = ClaimRequest {
            token,
            messages_max: pop.request.batch,
            partitions_max: pop.request.partitions,
            queue: view,
            now: draft.now(),
            pinned_start: match start_of(&pop.request.subscribe) {
                // What is pushed while it waits is after its start, in a partition made meanwhile too.
                Start::End => Start::From(pop.since),
                other => other,
            },
        };
        let group = pop.group;
        let claims: Vec<Claim> = match &pop.request.target {
            PopTarget::Queue(_) => self.engine.claim(state, &self.overlay, group, &request),
            PopTarget::Partition { queue, partition } => {
                let queue = state.queue(pop.request.tenant, queue);
                let id = queue.and_then(|queue| state.partition_named(queue, partition));
                let claim = id.and_then(|id| {
                    self.engine.claim_pinned(state, &self.overlay, group, id, &request)
                });
                claim.into_iter().collect()
            }
        };
        if claims.is_empty() {
            return Attempt::Nothing;
        }
        self.unpark(token);
        let bytes_max = POP_BYTES_MAX / claims.len() as u64;
        let mut reads = Vec::with_capacity(claims.len());
        for (at, claim) in claims.into_iter().enumerate() {
            let read = reader.try_read_claim(&claim, bytes_max).transpose();
            if read.is_none() {
                self.lookups.push(Lookup::Claim { pop: (token, at), claim, bytes_max });
            }
            reads.push((claim, read));
        }
        let complete = reads.iter().all(|(_, read)| read.is_some());
        if let Some(pop) = self.pops.get_mut(&token) {
            pop.claims = reads;
        }
        if complete { self.grant(state, draft, token) } else { Attempt::Taken }
    }

    /// The applied queue that a pop takes from, with the options as planned.
    fn queue_of(&self, state: &State, pop: &PendingPop) -> Option<QueueView> {
        let (PopTarget::Queue(queue) | PopTarget::Partition { queue, .. }) = &pop.request.target;
        self.overlay.queue(state, pop.request.tenant, queue).filter(|view| !view.in_flight)
    }

    pub(super) fn claim_read(
        &mut self,
        state: &State,
        reader: &Reader,
        draft: &mut Draft<'_>,
        (token, at): (u64, usize),
        read: Result<ClaimRead, LookupError>,
    ) {
        let Some(pop) = self.pops.get_mut(&token) else { return };
        if let Some((_, slot)) = pop.claims.get_mut(at) {
            *slot = Some(read);
        }
        if pop.claims.iter().any(|(_, read)| read.is_none()) {
            return;
        }
        if matches!(self.grant(state, draft, token), Attempt::Nothing)
            && matches!(self.attempt(state, reader, draft, token), Attempt::Nothing)
        {
            self.park_or_answer(draft.now(), token);
        }
    }

    /// Turns the read claims of a pop into its answer.
    fn grant(&mut self, state: &State, draft: &mut Draft<'_>, token: u64) -> Attempt {
        let Some(pop) = self.pops.get_mut(&token) else { return Attempt::Taken };
        let claims = std::mem::take(&mut pop.claims);
        let group = pop.group;
        let gone = pop.reply.is_closed();
        let damaged = claims.iter().find_map(|(_, read)| match read {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        });
        if gone || damaged.is_some() {
            for (claim, _) in &claims {
                self.engine.give_back(state, group, token, claim);
            }
            if let Some(pop) = self.forget_pop(token)
                && let Some(damaged) = damaged
            {
                self.damage = Some(damaged.clone());
                let answer = refuse(pop.reply, CallError::Internal(damaged));
                self.after_plan(draft, Ready::Done(answer));
            }
            return Attempt::Taken;
        }
        let granted = self.grant_claims(state, draft, token, claims);
        if granted.claims.is_empty() {
            return Attempt::Nothing;
        }
        if let Some(pop) = self.forget_pop(token) {
            self.after_this(Ready::Pop(token, Box::new(granted), pop.reply));
        }
        Attempt::Taken
    }

    fn grant_claims(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        token: u64,
        claims: Vec<(Claim, Option<Result<ClaimRead, LookupError>>)>,
    ) -> PopGranted {
        let mut granted = PopGranted::default();
        let Some(pop) = self.pops.get(&token) else { return granted };
        let group = pop.group;
        let view = self.queue_of(state, pop);
        let (delay_us, lease_s) = view.map_or((0, 1), |view| (view.delay_us, view.lease_time_s));
        let lease_s = pop.request.lease_seconds.unwrap_or(lease_s).max(1);
        let now = draft.now();
        let (terms, lease) = if pop.request.commit_on_delivery {
            (LeaseTerms::Commit, None)
        } else {
            let id = draft.mint();
            (LeaseTerms::Lease { id, expires: now.plus_seconds(lease_s.into()) }, Some(id))
        };
        for (claim, read) in claims {
            let Some(Ok(ClaimRead { delivered, records })) = read else { continue };
            let terms = (now, delay_us, terms);
            let taken = self.engine.grant(state, group, token, &claim, &delivered, terms);
            if let Taken::Granted(grant) = taken {
                granted.claims.push(claim_data(state, &claim, &delivered, records, grant.attempt));
            }
        }
        granted.group = Some(group);
        granted.lease = lease;
        granted
    }

    /// Parks a pop that found nothing, or answers it empty.
    fn park_or_answer(&mut self, now: Micros, token: u64) {
        let stopping = self.stopping;
        let Some(pop) = self.pops.get_mut(&token) else { return };
        if pop.request.wait && pop.deadline > now && !stopping {
            let first = !pop.parked;
            pop.parked = true;
            let (place, deadline) = (pop.place.clone(), pop.deadline);
            self.waiters.park(place, token);
            if first {
                self.deadlines.insert((deadline, token));
            }
            return;
        }
        self.answer_empty(token);
    }

    fn answer_empty(&mut self, token: u64) {
        if let Some(pop) = self.forget_pop(token) {
            let (registered, reply) = (pop.registered, pop.reply);
            let answer = Box::new(move || drop(reply.send(Ok(PopGranted::default()))));
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
                    Attempt::Nothing => self.park_or_answer(draft.now(), token),
                }
            }
        }
    }

    /// Answers the parked pops whose time is up.
    pub(super) fn time_out_pops(&mut self, _state: &State, now: Micros) {
        while let Some((at, token)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if self.pops.get(&token).is_some_and(|pop| pop.parked) {
                self.answer_empty(token);
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
        for (claim, _) in &pop.claims {
            self.engine.give_back(state, pop.group, token, claim);
        }
    }

    /// Answers all parked pops empty, and from now on every pop that would park.
    pub(super) fn stop_pops(&mut self) {
        self.stopping = true;
        let mut parked: Vec<u64> =
            self.pops.iter().filter(|(_, pop)| pop.parked).map(|(token, _)| *token).collect();
        parked.sort_unstable();
        for token in parked {
            self.answer_empty(token);
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
        {
            self.waiters.remove(&pop.place, token);
        }
    }

    fn forget_pop(&mut self, token: u64) -> Option<PendingPop> {
        let pop = self.pops.remove(&token)?;
        self.deadlines.remove(&(pop.deadline, token));
        if pop.parked {
            self.waiters.remove(&pop.place, token);
        }
        Some(pop)
    }
}

fn claim_data(
    state: &State,
    claim: &Claim,
    delivered: &Delivered,
    records: Vec<StoredRecord>,
    attempt: u32,
) -> ClaimData {
    let name = state.partition(claim.partition).map_or("", |row| state.partition_name(row));
    ClaimData {
        partition: claim.partition,
        name: name.into(),
        attempt,
        first: delivered.first,
        count: delivered.hashes.len(),
        records,
    }
}

fn start_of(subscribe: &Subscribe) -> Start {
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
