//! What a pop takes: claim partitions, read them, and turn what was read into leases.

use queen_planner::catalog::Catalog;
use queen_planner::consume::{
    Claim, ClaimFrom, ClaimRequest, Delivered, EngineGroup, LeaseTerms, Start, Taken,
};
use queen_planner::draft::Draft;
use queen_planner::overlay::QueueView;
use queen_qlog::StoredRecord;
use queen_record::ids::Micros;
use queen_state::State;

use super::{ClaimData, PendingPop, PopGranted, refuse, start_of};
use crate::api::{
    BATCH_DEFAULT, CallError, Chosen, MESSAGE_JSON_MAX, PARTITIONS_DEFAULT, PopRequest, PopTarget,
    escaped_len,
};
use crate::cycle::{Cycle, Ready};
use crate::lookup::{ClaimAnswer, ClaimLookup, ClaimRead, ClaimRoom, Lookup, Reader, Weight};

/// Bytes of a pop's answer at most, and one message beyond them. Reading them takes the core a few milliseconds.
const POP_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Partitions of one pop at most, where each gives one message.
const CONFLATED_MAX: u32 = 1000;
/// Partitions of one pop at most, as the autopilot chooses.
const AUTOPILOT_PARTITIONS_MAX: usize = 64;
/// Messages of one pop, as the autopilot chooses.
const AUTOPILOT_BATCH: std::ops::RangeInclusive<u64> = 100..=1000;
/// The autopilot gives a consumer work for a fifth of a second.
const AUTOPILOT_PER_SECOND: u64 = 5;
/// Seconds of a lease by labels that names no length.
const LABELS_LEASE_S: i32 = 60;

/// A partition that a pop has reserved, and what was read of it.
pub(super) struct PendingClaim {
    pub(super) group: EngineGroup,
    pub(super) claim: Claim,
    /// Whether its messages may be encrypted.
    sealed: bool,
    read: Read,
}

/// How far the reading of a claim is.
enum Read {
    /// The disk is asked.
    Awaited,
    Done(ClaimAnswer),
}

pub(super) enum Attempt {
    /// Answered, or waiting for the disk.
    Taken,
    /// Nothing was there.
    Nothing,
}

/// How much a pop takes.
#[derive(Clone, Copy)]
struct Sizes {
    messages: u32,
    partitions: u32,
    conflates: bool,
}

impl Cycle {
    /// Tries to claim for a pop.
    pub(super) fn attempt(
        &mut self,
        state: &State,
        reader: &Reader,
        draft: &mut Draft<'_>,
        token: u64,
    ) -> Attempt {
        // Out of the table while it is worked on; nothing below looks for it there.
        let Some(mut pop) = self.pops.remove(&token) else { return Attempt::Taken };
        if pop.reply.is_closed() {
            self.pops.insert(token, pop);
            self.forget_pop(token);
            return Attempt::Taken;
        }
        if let PopTarget::Queue(queue) = &pop.request.target {
            // The group may have been deleted, with its queue or alone, while the pop was parked.
            let plan = self.proposed + 1;
            let terms = pop.terms();
            let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
            let names = (pop.request.tenant, queue.as_str());
            let entered = catalog.register(draft, names, &pop.request.group, terms);
            debug_assert!(entered.is_ok(), "its names were checked when it arrived");
        }
        let claims = self.claim(state, draft.now(), token, &mut pop);
        let takes_frames = pop.request.frames;
        self.pops.insert(token, pop);
        if claims.is_empty() {
            return Attempt::Nothing;
        }
        self.unpark(token);
        // Decryption, and finding out whether there is anything to decrypt, is no work for this thread.
        let has_key = reader.vault().has_key();
        let is_sealed = |of: &EngineGroup| has_key || self.encrypts(state, *of);
        let sealed: Vec<bool> = claims.iter().map(|(group, _)| is_sealed(group)).collect();
        // As `PopGranted::can_be_framed` will have it.
        let is_newest = |claim: &Claim| matches!(claim.from, ClaimFrom::Newest { .. });
        let is_framed = takes_frames
            && !sealed.contains(&true)
            && !claims.iter().any(|(_, claim)| is_newest(claim));
        let mut room = ClaimRoom::new(POP_BYTES_MAX, claims.len());
        let mut held = Vec::with_capacity(claims.len());
        let mut later = Vec::new();
        for (at, ((group, claim), sealed)) in claims.into_iter().zip(sealed).enumerate() {
            let weight =
                if is_framed { Weight::Stored } else { self.json_weight(state, group, &claim) };
            let now = if sealed { None } else { reader.try_claim(&claim, weight, &mut room) };
            let read = if let Some(read) = now {
                Read::Done(read)
            } else {
                later.push(ClaimLookup { at, claim, sealed, weight });
                Read::Awaited
            };
            held.push(PendingClaim { group, claim, sealed, read });
        }
        let complete = later.is_empty();
        if !complete {
            self.lookups.push(Lookup::Claims { pop: token, claims: later, room });
        }
        if let Some(pop) = self.pops.get_mut(&token) {
            pop.claims = held;
        }
        if complete { self.grant(state, draft, token) } else { Attempt::Taken }
    }

    /// What a message of a claim counts in a JSON answer, which names group and partition with each.
    fn json_weight(&self, state: &State, group: EngineGroup, claim: &Claim) -> Weight {
        let (_, _, name) = self.engine.names(group);
        let partition = state.partition(claim.partition);
        let partition = partition.map_or(0, |row| escaped_len(state.partition_name(row)));
        Weight::Json { fields: MESSAGE_JSON_MAX + escaped_len(&*name) + partition }
    }

    /// Reserves what a pop may take.
    fn claim(
        &mut self,
        state: &State,
        now: Micros,
        token: u64,
        pop: &mut PendingPop,
    ) -> Vec<(EngineGroup, Claim)> {
        let mut groups = pop.groups.clone();
        if groups.len() > 1 {
            // Each pop by labels begins at another queue, so that none waits behind the others for ever.
            let first = usize::try_from(token).unwrap_or(0) % groups.len();
            groups.rotate_left(first);
        }
        let mut claims: Vec<(EngineGroup, Claim)> = Vec::new();
        let mut left: Option<Sizes> = None;
        for group in groups {
            let sizes = self.sizes(state, group, pop);
            let request = &pop.request;
            let now_left = *left.get_or_insert(sizes);
            if now_left.messages == 0 || now_left.partitions == 0 {
                break;
            }
            let Some(queue) = self.view_of(state, group) else { continue };
            let asked = ClaimRequest {
                token,
                messages_max: now_left.messages,
                partitions_max: now_left.partitions,
                queue,
                now,
                pinned_start: match start_of(&request.subscribe) {
                    // What is pushed while it waits is after its start, in a partition made meanwhile too.
                    Start::End => Start::From(pop.since),
                    other => other,
                },
                conflates: sizes.conflates,
            };
            let found = match &request.target {
                PopTarget::Queue(_) | PopTarget::Labels { .. } => {
                    self.engine.claim(state, &self.overlay, group, &asked)
                }
                PopTarget::Partition { queue, partition } => {
                    let queue = state.queue(request.tenant, queue);
                    let id = queue.and_then(|queue| state.partition_named(queue, partition));
                    let claim = id.and_then(|id| {
                        self.engine.claim_pinned(state, &self.overlay, group, id, &asked)
                    });
                    claim.into_iter().collect()
                }
            };
            if let Some(left) = &mut left {
                let messages: u32 = found.iter().map(|claim| claim.messages_max).sum();
                left.messages -= messages.min(left.messages);
                left.partitions -= u32::try_from(found.len()).unwrap_or(0).min(left.partitions);
            }
            claims.extend(found.into_iter().map(|claim| (group, claim)));
        }
        claims
    }

    /// How much a pop takes from a group: as asked, as the defaults say, or as the autopilot chooses.
    fn sizes(&mut self, state: &State, group: EngineGroup, pop: &mut PendingPop) -> Sizes {
        let request = &pop.request;
        let conflates = self.conflates(state, group);
        if conflates {
            let messages = request.batch.unwrap_or(BATCH_DEFAULT);
            let partitions = request.partitions.unwrap_or(messages.min(CONFLATED_MAX));
            return Sizes { messages, partitions, conflates };
        }
        if request.autopilot && matches!(request.target, PopTarget::Queue(_)) {
            let chosen = self.choose(state, group, request);
            pop.chosen = Some(chosen);
            let Chosen { batch, partitions } = chosen;
            return Sizes { messages: batch, partitions, conflates };
        }
        Sizes {
            messages: request.batch.unwrap_or(BATCH_DEFAULT),
            partitions: request.partitions.unwrap_or(PARTITIONS_DEFAULT),
            conflates,
        }
    }

    /// An even share of what is ready, and work for a fraction of a second.
    fn choose(&mut self, state: &State, group: EngineGroup, request: &PopRequest) -> Chosen {
        let load = self.engine.load(state, &self.overlay, group);
        let asking = self.popping.get(&group).copied().unwrap_or(0) as usize;
        // A consumer at work comes back: what is ready is shared with it too.
        let consumers = (asking + load.holders).max(1);
        let share = load.ready.div_ceil(consumers).clamp(1, AUTOPILOT_PARTITIONS_MAX);
        let work = load.drain_rate / AUTOPILOT_PER_SECOND;
        let work = work.clamp(*AUTOPILOT_BATCH.start(), *AUTOPILOT_BATCH.end());
        Chosen {
            batch: request.batch.unwrap_or(u32::try_from(work).unwrap_or(u32::MAX)),
            partitions: request.partitions.unwrap_or(u32::try_from(share).unwrap_or(1)),
        }
    }

    /// The applied queue of a group, with the options as planned.
    fn view_of(&self, state: &State, group: EngineGroup) -> Option<QueueView> {
        let (tenant, queue, _) = self.engine.names(group);
        self.overlay.queue(state, tenant, &queue).filter(|view| !view.in_flight)
    }

    /// Whether a group's queue asks for encryption.
    fn encrypts(&self, state: &State, group: EngineGroup) -> bool {
        self.view_of(state, group).is_some_and(|view| view.encryption_enabled)
    }

    pub(in crate::cycle) fn claims_read(
        &mut self,
        state: &State,
        reader: &Reader,
        draft: &mut Draft<'_>,
        token: u64,
        reads: Vec<(usize, ClaimAnswer)>,
    ) {
        let Some(pop) = self.pops.get_mut(&token) else { return };
        for (at, read) in reads {
            if let Some(held) = pop.claims.get_mut(at) {
                held.read = Read::Done(read);
            }
        }
        if matches!(self.grant(state, draft, token), Attempt::Nothing)
            && matches!(self.attempt(state, reader, draft, token), Attempt::Nothing)
        {
            self.park_or_answer(state, draft.now(), token);
        }
    }

    /// Turns the read claims of a pop into its answer.
    fn grant(&mut self, state: &State, draft: &mut Draft<'_>, token: u64) -> Attempt {
        let Some(pop) = self.pops.get_mut(&token) else { return Attempt::Taken };
        let mut claims = std::mem::take(&mut pop.claims);
        let gone = pop.reply.is_closed();
        let damaged = claims.iter().find_map(|held| self.damage_of(state, held));
        // A partition that cannot be read fails its own pops, and does not keep others from being served. One that had no
        // room in the answer is for the next pop.
        let is_lost =
            |held: &mut PendingClaim| gone || !matches!(held.read, Read::Done(Some(Ok(_))));
        for held in claims.extract_if(.., is_lost) {
            self.engine.give_back(state, held.group, token, &held.claim);
        }
        if gone {
            self.forget_pop(token);
            return Attempt::Taken;
        }
        let granted = self.grant_claims(state, draft, token, claims);
        self.damage = damaged.clone().or(self.damage.take());
        if granted.claims.is_empty() {
            let Some(damaged) = damaged else { return Attempt::Nothing };
            if let Some(pop) = self.forget_pop(token) {
                let answer = refuse(pop.reply, CallError::Internal(damaged));
                self.after_plan(draft, Ready::Done(answer));
            }
            return Attempt::Taken;
        }
        if let Some(pop) = self.forget_pop(token) {
            self.after_this(Ready::Pop(token, Box::new(granted), pop.reply));
        }
        Attempt::Taken
    }

    /// What is wrong with a claim, for the consumer and for the operator.
    fn damage_of(&self, state: &State, held: &PendingClaim) -> Option<String> {
        let Read::Done(Some(Err(error))) = &held.read else { return None };
        let row = state.partition(held.claim.partition);
        if row.is_none_or(|row| row.log_start() > held.claim.start) {
            // Removed while it was read; what could not be read is not there any more.
            return None;
        }
        let (_, queue, _) = self.engine.names(held.group);
        let partition = row.map_or("", |row| state.partition_name(row));
        Some(format!("queue {queue}, partition {partition}: {error}"))
    }

    fn grant_claims(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        token: u64,
        claims: Vec<PendingClaim>,
    ) -> PopGranted {
        let mut granted = PopGranted::default();
        let Some(pop) = self.pops.get(&token) else { return granted };
        granted.chosen = pop.chosen;
        let commits = pop.request.commit_on_delivery;
        let asked_s = lease_seconds(pop);
        let now = draft.now();
        granted.lease = (!commits).then(|| draft.mint());
        for PendingClaim { group, claim, sealed, read } in claims {
            let Read::Done(Some(Ok(ClaimRead { delivered, records, .. }))) = read else { continue };
            let view = self.view_of(state, group);
            let (delay_us, own_s) = view.map_or((0, 1), |view| (view.delay_us, view.lease_time_s));
            let lease_s = asked_s.unwrap_or(own_s).max(1);
            let terms = match granted.lease {
                Some(id) => LeaseTerms::Lease { id, expires: now.plus_seconds(lease_s.into()) },
                None => LeaseTerms::Commit,
            };
            let terms = (now, delay_us, terms);
            let taken = self.engine.grant(state, group, token, &claim, &delivered, terms);
            if let Taken::Granted(grant) = taken {
                granted.sealed |= sealed;
                granted.conflates |= matches!(claim.from, ClaimFrom::Newest { .. });
                let data = claim_data(state, (group, &claim), &delivered, records, grant.attempt);
                granted.claims.push(data);
            }
        }
        granted
    }
}

/// Seconds that a pop says; `None` takes the queue's.
fn lease_seconds(pop: &PendingPop) -> Option<i32> {
    let by_labels = matches!(pop.request.target, PopTarget::Labels { .. });
    pop.request.lease_seconds.or(by_labels.then_some(LABELS_LEASE_S))
}

fn claim_data(
    state: &State,
    (group, claim): (EngineGroup, &Claim),
    delivered: &Delivered,
    records: Vec<StoredRecord>,
    attempt: u32,
) -> ClaimData {
    let name = state.partition(claim.partition).map_or("", |row| state.partition_name(row));
    ClaimData {
        group,
        partition: claim.partition,
        name: name.into(),
        attempt,
        first: delivered.first,
        count: delivered.hashes.len(),
        records,
    }
}
