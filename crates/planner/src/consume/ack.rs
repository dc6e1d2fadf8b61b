//! Settling messages: resolves what a call names, decides, and moves the cursor.

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_model::{DlqInsert, Effect, Lease, Released};
use queen_record::ids::{Micros, Offset, PartitionId, QueueId, Tenant, TxHash, Uuid};
use queen_state::{Partition, State};

use super::part::Part;
use super::{Engine, EngineGroup, PartKey, Start};
use crate::ack::{AckCursor, AckDecision, ItemVerdict, Marker, Place, Verdict, decide};
use crate::draft::{Draft, Route};
use crate::limits::cut_reason;
use crate::overlay::QueueView;

/// How far below the cursor a message is still recognised.
const RECOGNISED_BELOW: u64 = 65_536;

/// One acknowledgment of a call for one partition and lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckItem {
    /// Hash of the transactionId.
    pub hash: TxHash,
    /// The verdict.
    pub verdict: Verdict,
    /// Reason, for a dead letter.
    pub error: Option<String>,
}

/// The acknowledgments of one call for one partition and lease.
#[derive(Clone, Debug)]
pub struct AckCall {
    /// Whose.
    pub tenant: Tenant,
    /// The partition.
    pub partition: PartitionId,
    /// Whether the call presents a lease, and which; a text that is no UUID matches none.
    pub lease: Option<Option<Uuid>>,
    /// In input order.
    pub items: Vec<AckItem>,
}

/// A message as a dead letter keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMessage {
    /// Its id.
    pub id: Uuid,
    /// Its transactionId.
    pub transaction_id: String,
    /// Its payload as the log has it.
    pub payload: Bytes,
    /// Whether that is an encrypted envelope.
    pub encrypted: bool,
}

/// What the log knows about the messages of a call.
#[derive(Clone, Debug, Default)]
pub struct AckFacts {
    /// Offsets found under each hash, ascending.
    pub offsets: HashMap<TxHash, Vec<Offset>, FixedState>,
    /// Messages to be dead-lettered.
    pub messages: HashMap<Offset, DeadMessage, FixedState>,
}

/// A question to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckQuestion {
    /// Where the messages of these hashes stand, between two offsets, both included.
    Offsets {
        /// Routes to the partition's log.
        route: QueueId,
        /// Hashes that are not in the leased batch.
        hashes: Vec<TxHash>,
        /// First offset of interest.
        from: Offset,
        /// Last offset of interest.
        to: Offset,
    },
    /// The messages at these offsets.
    Messages {
        /// Routes to the partition's log.
        route: QueueId,
        /// Ascending.
        offsets: Vec<Offset>,
    },
}

/// One item's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemResult {
    /// Taken.
    Done {
        /// The lease ended with this call.
        released: bool,
        /// The message was dead-lettered.
        dead_lettered: bool,
        /// A `completed` at or below the cursor.
        noop: bool,
    },
    /// The lease presented is not the partition's live lease.
    LeaseLost,
    /// The id resolves to nothing that can be acknowledged so.
    Unresolved,
}

/// The result of a call: one per item.
pub type AckResult = Vec<ItemResult>;

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// Decided.
    Done(AckResult),
    /// Not decided, nothing changed: ask the log, then call again.
    NeedLog(AckQuestion),
}

/// What a call would do to a cursor; nothing has changed yet.
pub(super) enum Judged {
    /// It moves the cursor as decided.
    Decided(AckDecision),
    /// It changes nothing: its lease is lost, or it repeats a settled one.
    Unchanged(AckResult),
    /// The log must be asked first.
    NeedLog(AckQuestion),
}

impl Engine {
    /// Settles the items of one call for one partition and lease.
    pub fn ack(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        group: EngineGroup,
        queue: &QueueView,
        call: &AckCall,
        facts: &AckFacts,
    ) -> AckOutcome {
        let key = (call.partition, group);
        let now = draft.now();
        let Some(row) = state.partition(key.0) else {
            return AckOutcome::Done(vec![ItemResult::Unresolved; call.items.len()]);
        };
        let Some(part) = self.load_part(state, key.0, group, Start::All) else {
            return AckOutcome::Done(vec![ItemResult::Unresolved; call.items.len()]);
        };
        let leased = part.live_lease(now).is_some();
        match judge(part, (call, facts), queue, (now, row)) {
            Judged::NeedLog(question) => {
                self.unload_if_idle(key);
                AckOutcome::NeedLog(question)
            }
            Judged::Unchanged(result) => {
                self.unload_if_idle(key);
                AckOutcome::Done(result)
            }
            Judged::Decided(decision) => {
                self.file(state, draft, key, (call, facts, &decision));
                self.settle(state, key, &decision, now);
                AckOutcome::Done(results(&decision, leased))
            }
        }
    }

    /// Adds the dead letters of a decision to the draft.
    pub(super) fn file(
        &self,
        state: &State,
        draft: &mut Draft<'_>,
        key: PartKey,
        (call, facts, decision): (&AckCall, &AckFacts, &AckDecision),
    ) {
        let group = self.state_of(key.1);
        let Some(part) = self.parts.get(&key) else { return };
        let retries = part.retries;
        let any_error = call.items.iter().find_map(|item| item.error.as_deref());
        let failed = draft.now();
        for (offset, item) in &decision.dead {
            let Some(message) = facts.messages.get(offset) else { continue };
            let error = call.items.get(*item).and_then(|item| item.error.as_deref());
            let error = cut_reason(error.or(any_error).unwrap_or("Retries exhausted"));
            let letter = DlqInsert {
                id: draft.mint(),
                tenant: group.tenant,
                queue: group.queue.to_string(),
                partition: key.0,
                group: group.name.to_string(),
                offset: signed(*offset),
                message_id: Some(message.id),
                transaction_id: message.transaction_id.clone(),
                payload: message.payload.clone(),
                encrypted: message.encrypted,
                error,
                retries,
                failed,
            };
            let texts = letter.transaction_id.len() + letter.error.len();
            let bytes = 200 + letter.payload.len() + texts;
            draft.add(Effect::DlqInsert(letter), Route::Queue(part.route), bytes);
        }
        debug_assert!(state.partition(key.0).is_some(), "a dead letter has a partition");
    }

    /// Moves the cursor as decided.
    pub(super) fn settle(
        &mut self,
        state: &State,
        key: PartKey,
        decision: &AckDecision,
        now: Micros,
    ) {
        let Some(part) = self.parts.get_mut(&key) else { return };
        let held = part.live_lease(now).copied();
        let low = part.lease_low;
        let moved = advance(part, decision, now);
        if moved == Moved::LeaseEnds {
            self.end_lease(key);
            if let Some(lease) = held.filter(|_| decision.settled) {
                let messages = (lease.batch_end.0 + 1).saturating_sub(low.0);
                self.state_of_mut(key.1).drained(messages, now.0 - lease.acquired.0);
            }
        }
        if moved == Moved::Nothing {
            self.unload_if_idle(key);
        } else {
            self.mark_dirty(key);
        }
        self.offer_rest(state, key);
    }
}

/// What a decision did to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    Nothing,
    Cursor,
    /// The cursor may have moved too. The lease is still on the part.
    LeaseEnds,
}

/// Carries a decision out on a part.
pub(super) fn advance(part: &mut Part, decision: &AckDecision, now: Micros) -> Moved {
    let leased = part.live_lease(now).is_some();
    let before = (part.committed, part.retries, part.attempt_offset);
    part.consumed += u64::try_from(decision.committed - part.committed).unwrap_or(0);
    part.committed = decision.committed;
    part.seed_time = None;
    part.retries = decision.retries;
    match decision.marker {
        Some(Marker::Reset) => (part.attempt_offset, part.attempts) = (None, 0),
        Some(Marker::MoveTo(offset)) if leased => part.attempt_offset = Some(offset),
        Some(Marker::MoveTo(_)) | None => {}
    }
    let after = (part.committed, part.retries, part.attempt_offset);
    if before.0 != after.0 {
        // What is being read for a pop begins at the old place: it reads again.
        part.reserved = None;
    }
    let ends = decision.release && leased;
    if ends && decision.settled {
        // One message that stands for its span is in the batch's place, and the span is what was settled.
        let low = |lease: Lease| {
            let first = Offset(u64::try_from(before.0 + 1).unwrap_or(0));
            if lease.conflated { first } else { part.lease_low }
        };
        part.released = part.lease.map(|lease| Released {
            worker: lease.worker,
            low: low(lease),
            high: lease.batch_end,
        });
    }
    if part.created == Micros(0) {
        part.created = now;
    }
    match ends {
        true => Moved::LeaseEnds,
        false if before != after => Moved::Cursor,
        false => Moved::Nothing,
    }
}

/// Decides a call for a part, changing nothing.
pub(super) fn judge(
    part: &Part,
    (call, facts): (&AckCall, &AckFacts),
    queue: &QueueView,
    (now, row): (Micros, &Partition),
) -> Judged {
    let live = part.live_lease(now);
    let known_from = row.txns_start();
    if let Some(presented) = call.lease
        && live.is_none_or(|lease| Some(lease.worker) != presented)
    {
        return repeated(part, presented, (call, facts), known_from);
    }
    let end = live.map_or(row.last_offset, |lease| signed(lease.batch_end));
    let unique = queue.dedup_window_us > 0;
    let places = match places(part, (call, facts), (known_from, end), unique) {
        Ok(places) => places,
        Err(question) => return Judged::NeedLog(question),
    };
    let cursor = AckCursor {
        committed: part.committed,
        batch_end: live.map(|lease| lease.batch_end),
        retries: part.retries,
        conflated: live.is_some_and(|lease| lease.conflated),
        retry_limit: u32::try_from(queue.retry_limit).unwrap_or(0),
        files_exhausted: queue.files_dead_letters,
    };
    let verdicts: Vec<_> =
        places.iter().copied().zip(call.items.iter().map(|item| item.verdict)).collect();
    let mut decision = decide(&cursor, &verdicts);
    drop_removed(&mut decision, &places, known_from);
    let missing = |(offset, _): &&(Offset, usize)| !facts.messages.contains_key(offset);
    let offsets: Vec<Offset> = decision.dead.iter().filter(missing).map(|dead| dead.0).collect();
    if offsets.is_empty() {
        Judged::Decided(decision)
    } else {
        Judged::NeedLog(AckQuestion::Messages { route: part.route, offsets })
    }
}

/// Messages that may be reclaimed cannot be filed any more: they are done with.
fn drop_removed(decision: &mut AckDecision, places: &[Place], known_from: Offset) {
    if known_from == Offset(0) {
        return;
    }
    decision.dead.retain(|(offset, _)| *offset >= known_from);
    for (verdict, place) in decision.items.iter_mut().zip(places) {
        let removed = matches!(place, Place::InRange(offset) if *offset < known_from);
        if removed && *verdict == ItemVerdict::DeadLettered {
            *verdict = ItemVerdict::Done;
        }
    }
}

/// An ack under a lease that is over: taken when that lease was settled to its end and covers the messages.
fn repeated(
    part: &Part,
    presented: Option<Uuid>,
    (call, facts): (&AckCall, &AckFacts),
    known_from: Offset,
) -> Judged {
    let Some(released) = part.released.filter(|released| Some(released.worker) == presented) else {
        return Judged::Unchanged(vec![ItemResult::LeaseLost; call.items.len()]);
    };
    let unknown: Vec<TxHash> = call
        .items
        .iter()
        .map(|item| item.hash)
        .filter(|hash| !facts.offsets.contains_key(hash))
        .collect();
    let from = released.low.max(known_from);
    if !unknown.is_empty() && from <= released.high {
        return Judged::NeedLog(AckQuestion::Offsets {
            route: part.route,
            hashes: unknown,
            from,
            to: released.high,
        });
    }
    let inside = |item: &AckItem| {
        facts.offsets.get(&item.hash).is_some_and(|offsets| {
            offsets.iter().any(|offset| {
                (released.low..=released.high).contains(offset) && signed(*offset) <= part.committed
            })
        })
    };
    let result = |item: &AckItem| {
        if inside(item) {
            ItemResult::Done { released: true, dead_lettered: false, noop: false }
        } else {
            ItemResult::LeaseLost
        }
    };
    Judged::Unchanged(call.items.iter().map(result).collect())
}

/// Where each item's message stands; what must be asked when the leased batch does not tell.
fn places(
    part: &Part,
    (call, facts): (&AckCall, &AckFacts),
    (known_from, end): (Offset, i64),
    unique: bool,
) -> Result<Vec<Place>, AckQuestion> {
    let keys = part.keys.as_deref().unwrap_or_default();
    let low = part.lease_low.0;
    let mut places = Vec::with_capacity(call.items.len());
    let mut unknown = Vec::new();
    let mut guess = 0;
    let mut named: HashMap<TxHash, usize, FixedState> = HashMap::default();
    for item in &call.items {
        let mut in_batch = position(keys, (guess, unique), item.hash, part.committed, low);
        if !unique {
            // With deduplication off one id may name several messages: named again, it means the next of them.
            let last = named.get(&item.hash).copied();
            let after = last.and_then(|last| {
                let rest = keys.get(last + 1..)?;
                rest.iter().position(|key| *key == item.hash).map(|ahead| last + 1 + ahead)
            });
            in_batch = after.or(in_batch);
            in_batch.map(|at| named.insert(item.hash, at));
        }
        let place = if let Some(at) = in_batch {
            guess = at + 1;
            let offset = Offset(low + at as u64);
            if signed(offset) > part.committed {
                Place::InRange(offset)
            } else {
                Place::Below(offset)
            }
        } else if let Some(offsets) = facts.offsets.get(&item.hash) {
            let above = |offset: &&Offset| (part.committed + 1..=end).contains(&signed(**offset));
            let open = || offsets.iter().filter(above);
            let mut skip = 0;
            if !unique {
                // As in the batch: named again, it means the next of them.
                let times = named.entry(item.hash).or_default();
                skip = *times;
                *times += 1;
            }
            match (open().nth(skip).or_else(|| open().next()), offsets.first()) {
                (Some(offset), _) => Place::InRange(*offset),
                (None, Some(offset)) if signed(*offset) <= part.committed => Place::Below(*offset),
                (None, _) => Place::Unknown,
            }
        } else {
            unknown.push(item.hash);
            Place::Unknown
        };
        places.push(place);
    }
    let from = u64::try_from(part.committed + 1).unwrap_or(0).saturating_sub(RECOGNISED_BELOW);
    let from = Offset(from).max(known_from);
    let to = Offset(u64::try_from(end).unwrap_or(0));
    if unknown.is_empty() || from > to {
        return Ok(places);
    }
    Err(AckQuestion::Offsets { route: part.route, hashes: unknown, from, to })
}

/// Index of a hash in the batch, an uncommitted one first; acks mostly come in order, so `guess` is tried first.
fn position(
    keys: &[TxHash],
    (guess, unique): (usize, bool),
    hash: TxHash,
    committed: i64,
    low: u64,
) -> Option<usize> {
    let done =
        usize::try_from(committed + 1).unwrap_or(0).saturating_sub(usize::try_from(low).ok()?);
    if guess >= done && keys.get(guess) == Some(&hash) {
        if unique {
            return Some(guess);
        }
        let earlier = keys.get(done..guess).unwrap_or_default();
        // With deduplication off one id may name several messages: the lowest not yet committed counts.
        return earlier.iter().position(|key| *key == hash).map(|at| done + at).or(Some(guess));
    }
    let open = keys.get(done..).unwrap_or_default();
    open.iter().position(|key| *key == hash).map(|at| done + at).or_else(|| {
        let settled = keys.get(..done).unwrap_or(keys);
        settled.iter().position(|key| *key == hash)
    })
}

pub(super) fn results(decision: &AckDecision, leased: bool) -> AckResult {
    let result = |verdict: &ItemVerdict| match verdict {
        ItemVerdict::Done | ItemVerdict::DeadLettered => ItemResult::Done {
            released: decision.release && leased,
            dead_lettered: *verdict == ItemVerdict::DeadLettered,
            noop: false,
        },
        ItemVerdict::Noop => ItemResult::Done { released: false, dead_lettered: false, noop: true },
        ItemVerdict::Unresolved => ItemResult::Unresolved,
    };
    decision.items.iter().map(result).collect()
}

fn signed(offset: Offset) -> i64 {
    i64::try_from(offset.0).unwrap_or(i64::MAX)
}
