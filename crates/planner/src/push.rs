//! Planning a push: which items are new, at which offsets, under which ids.
//!
//! A request is split by (queue, partition) where it arrives; one part is one append or nothing. The whole decision
//! is made here in one place and one order, so of racing pushes of one transactionId exactly one is stored.

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_model::{Append, AppendPayload, Effect, PartitionCreate, QueueOptions, Refusal};
use queen_record::frame;
use queen_record::hash::tx_hash;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, TxHash, UUID_TEXT_LEN, Uuid};
use queen_state::State;

use crate::draft::{Draft, Route};
use crate::filter::{Band, DuplicateFilter};
use crate::limits::{Limits, check_names};
use crate::overlay::{Original, Overlay, QueueView, Tip};

/// Bytes that a message costs in the logs beside its frame: two copies of its hash and a share of heads.
const MESSAGE_OVERHEAD: usize = 48;
/// Bytes of an append's head and of its effect.
const APPEND_OVERHEAD: usize = 160;
/// Bytes between a frame's start and its transactionId, trace id aside.
const OWN_TEXT_AT: usize = frame::ID_AT + 16 + 2;

/// The items of one push for one partition, framed and hashed.
#[derive(Clone, Debug)]
pub struct PushPart {
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// Partition name.
    pub partition: String,
    /// One per item, in input order.
    pub items: Vec<PushPartItem>,
    /// The items' frames, one after the other.
    pub frames: Bytes,
    /// The same as one zstd frame, when that saves enough.
    pub packed: Option<Bytes>,
    /// Whether the caller made the ids: then they stay as they came, whatever their order.
    pub ids_are_callers: bool,
}

impl PushPart {
    /// About how many bytes it takes in the logs.
    pub fn bytes(&self) -> usize {
        self.frames.len() + self.items.len() * MESSAGE_OVERHEAD + APPEND_OVERHEAD
    }
}

/// One item of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushPartItem {
    /// Hash of its transactionId.
    pub hash: TxHash,
    /// Its message id.
    pub id: Uuid,
    /// Where its frame ends.
    pub end: u32,
    /// Whether its transactionId is the text of its id.
    pub own_text: bool,
    /// An earlier item of this part with the same transactionId.
    pub leader: Option<u32>,
}

/// The verdict on one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushVerdict {
    /// Stored.
    Queued {
        /// Its offset.
        offset: Offset,
        /// Its id, which may not be the one it came with.
        id: Uuid,
    },
    /// Not stored: this is the original.
    Duplicate(Original),
}

/// What the log knows about hashes that may have been stored before.
#[derive(Clone, Debug, Default)]
pub struct PushFacts {
    found: HashMap<TxHash, Vec<Original>, FixedState>,
}

impl PushFacts {
    /// Notes every message found under a hash; empty when there is none.
    pub fn put(&mut self, hash: TxHash, found: Vec<Original>) {
        self.found.insert(hash, found);
    }

    /// Adds what was found later.
    pub fn extend(&mut self, later: Self) {
        self.found.extend(later.found);
    }
}

/// A question to the log: which messages of a partition have this hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashQuestion {
    /// The hash.
    pub hash: TxHash,
    /// The runs of entries in which it may stand.
    pub bands: Vec<Band>,
}

/// The plan of one part.
#[derive(Debug)]
pub enum PushPlan {
    /// Decided; the draft holds what changes.
    Done(Vec<PushVerdict>),
    /// Not decided, nothing changed: ask the log, then plan again with the facts.
    NeedLog(PartitionId, Vec<HashQuestion>),
    /// Refused, nothing changed.
    Refused(Refusal),
}

/// What a part's items are to the log; nothing has changed yet.
#[derive(Debug)]
pub enum PushJudged {
    /// The stored message that each item repeats; empty when none does.
    Decided(Vec<Option<Original>>),
    /// Not decided: ask the log, then judge again with the facts.
    NeedLog(PartitionId, Vec<HashQuestion>),
    /// Refused.
    Refused(Refusal),
}

/// Recently planned ids, so that a partition's ids ascend with its offsets.
///
/// Ids are minted where a request arrives and may be planned in another order. Only an id that is not above the last
/// one of its partition is minted again.
pub struct IdOrder {
    last: HashMap<PartitionId, u64, FixedState>,
    /// No partition that is absent from `last` has an id above this.
    floor: u64,
}

const REMEMBERED_MAX: usize = 65_536;

impl IdOrder {
    /// After a start: every id ever planned is at or below the time `now`.
    pub fn new(now: Micros) -> Self {
        let millis = u64::try_from(now.0 / 1000).unwrap_or(0);
        Self { last: HashMap::with_hasher(FixedState::default()), floor: (millis + 1) << 12 }
    }

    fn last(&self, partition: PartitionId) -> u64 {
        self.last.get(&partition).copied().unwrap_or(self.floor)
    }

    fn note(&mut self, partition: PartitionId, tick: u64) {
        if self.last.len() >= REMEMBERED_MAX && !self.last.contains_key(&partition) {
            self.floor = self.last.drain().fold(self.floor, |floor, (_, tick)| floor.max(tick));
        }
        self.last.insert(partition, tick);
    }
}

/// The ordered part of a `UUIDv7`: milliseconds and the twelve bits after the version.
#[must_use]
pub fn tick_of(id: Uuid) -> u64 {
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (millis, rest) = id.0.split_at(6);
    (number(millis) << 12) | (number(rest.first_chunk::<2>().map_or(&[], |sub| sub)) & 0xfff)
}

/// What planning a push works on.
pub struct PushContext<'a> {
    /// Applied state.
    pub state: &'a State,
    /// Changes in flight.
    pub overlay: &'a mut Overlay,
    /// Stored hashes.
    pub filter: &'a DuplicateFilter,
    /// Ids planned lately.
    pub order: &'a mut IdOrder,
    /// Limits.
    pub limits: &'a Limits,
    /// Number of this plan.
    pub plan: u64,
}

impl PushContext<'_> {
    /// Plans one part.
    pub fn plan(&mut self, draft: &mut Draft<'_>, part: &PushPart, facts: &PushFacts) -> PushPlan {
        match self.judge(draft.now(), part, facts) {
            PushJudged::Refused(refusal) => PushPlan::Refused(refusal),
            PushJudged::NeedLog(id, questions) => PushPlan::NeedLog(id, questions),
            PushJudged::Decided(stored) => PushPlan::Done(self.carry_out(draft, part, &stored)),
        }
    }

    /// Decides which items of a part are stored already; changes nothing.
    pub fn judge(&self, now: Micros, part: &PushPart, facts: &PushFacts) -> PushJudged {
        if let Err(refusal) = self.check(part) {
            return PushJudged::Refused(refusal);
        }
        let (queue, partition) = self.known_place(part);
        let window_us = queue.map_or(0, |queue| queue.dedup_window_us);
        match partition {
            Some(id) if window_us > 0 => {
                let since = Micros(now.0 - window_us);
                match self.originals(part, id, since, facts) {
                    Ok(stored) => PushJudged::Decided(stored),
                    Err(questions) => PushJudged::NeedLog(id, questions),
                }
            }
            _ => PushJudged::Decided(Vec::new()),
        }
    }

    /// Appends what is not stored; `stored` is what `judge` found in this same plan.
    pub fn carry_out(
        &mut self,
        draft: &mut Draft<'_>,
        part: &PushPart,
        stored: &[Option<Original>],
    ) -> Vec<PushVerdict> {
        let is_new = |at: usize| stored.get(at).is_none_or(Option::is_none);
        let survivors: Vec<usize> = part
            .items
            .iter()
            .enumerate()
            .filter(|(at, item)| item.leader.is_none() && is_new(*at))
            .map(|(at, _)| at)
            .collect();
        let written = if survivors.is_empty() {
            Vec::new()
        } else {
            let (queue, partition) = self.known_place(part);
            let (queue, id) = self.place(draft, part, queue, partition);
            self.append(draft, part, &queue, id, &survivors)
        };
        verdicts(part, stored, &survivors, &written)
    }

    /// The queue and partition of a part, as far as they are there.
    fn known_place(&self, part: &PushPart) -> (Option<QueueView>, Option<PartitionId>) {
        let queue = self.overlay.queue(self.state, part.tenant, &part.queue);
        let partition = queue.as_ref().and_then(|queue| {
            self.overlay.partition(self.state, part.tenant, &part.queue, queue, &part.partition)
        });
        (queue, partition)
    }

    fn check(&self, part: &PushPart) -> Result<(), Refusal> {
        check_names(&part.queue, &part.partition)?;
        let (bytes, max) = (part.bytes(), self.limits.command_bytes_max);
        if bytes > max {
            return Err(Refusal::TooLarge { bytes, max });
        }
        Ok(())
    }

    /// The stored message that each item repeats, or what must be asked first.
    fn originals(
        &self,
        part: &PushPart,
        id: PartitionId,
        since: Micros,
        facts: &PushFacts,
    ) -> Result<Vec<Option<Original>>, Vec<HashQuestion>> {
        let mut stored = Vec::new();
        let mut questions = Vec::new();
        let mut bands = Vec::new();
        for (at, item) in part.items.iter().enumerate() {
            if item.leader.is_some() {
                continue;
            }
            let mut original =
                self.overlay.original(id, item.hash).filter(|original| original.created >= since);
            if let Some(found) = facts.found.get(&item.hash) {
                // What the log holds is older than what is in flight: the lowest offset in the window counts.
                let first = found.iter().find(|original| original.created >= since).copied();
                original = first.or(original);
            } else if original.is_none() {
                self.filter.probe(id, item.hash, &mut bands);
                if !bands.is_empty() {
                    let bands = std::mem::take(&mut bands);
                    questions.push(HashQuestion { hash: item.hash, bands });
                }
            }
            if original.is_some() && stored.is_empty() {
                stored = vec![None; part.items.len()];
            }
            if let Some(slot) = stored.get_mut(at) {
                *slot = original;
            }
        }
        if questions.is_empty() { Ok(stored) } else { Err(questions) }
    }

    /// The queue and partition to append to, made in this draft when they are new.
    fn place(
        &mut self,
        draft: &mut Draft<'_>,
        part: &PushPart,
        queue: Option<QueueView>,
        partition: Option<PartitionId>,
    ) -> (QueueView, PartitionId) {
        let queue = queue.unwrap_or_else(|| {
            create_queue(self.overlay, self.plan, draft, (part.tenant, &part.queue))
        });
        let id = partition.unwrap_or_else(|| {
            self.make_partition(draft, part.tenant, (&part.queue, &queue), &part.partition)
        });
        (queue, id)
    }

    /// Makes a partition that is not there.
    pub fn make_partition(
        &mut self,
        draft: &mut Draft<'_>,
        tenant: Tenant,
        (queue, view): (&str, &QueueView),
        partition: &str,
    ) -> PartitionId {
        let id = draft.new_partition();
        let created = draft.now();
        let create = PartitionCreate {
            id,
            uuid: draft.mint(),
            tenant,
            queue: queue.to_owned(),
            partition: partition.to_owned(),
            created,
        };
        let bytes = 100 + queue.len() + partition.len();
        let route = Route::Partition(view.route, id);
        draft.add(Effect::PartitionCreate(create), route, bytes);
        self.overlay.put_partition(self.plan, view, partition, id);
        let tip = Tip { last_offset: -1, last_created: Micros(created.0 - 1) };
        self.overlay.put_tip(self.plan, id, tip);
        id
    }

    /// Appends the surviving items; returns the offset and id of each.
    fn append(
        &mut self,
        draft: &mut Draft<'_>,
        part: &PushPart,
        queue: &QueueView,
        id: PartitionId,
        survivors: &[usize],
    ) -> Vec<Original> {
        let tip = self.overlay.tip(self.state, id);
        let tip = tip.unwrap_or(Tip { last_offset: -1, last_created: Micros(draft.now().0 - 1) });
        let created = draft.now().max(Micros(tip.last_created.0 + 1));
        let base = Offset(u64::try_from(tip.last_offset + 1).unwrap_or(0));
        let (items, payload) = self.payload(draft, part, id, survivors);
        let written: Vec<Original> = (base.0..)
            .zip(&items)
            .map(|(offset, item)| Original { offset: Offset(offset), created, id: item.id })
            .collect();
        let hashes: Vec<TxHash> = items.iter().map(|item| item.hash).collect();
        if let Some(last) = items.last()
            && !part.ids_are_callers
        {
            self.order.note(id, tick_of(last.id));
        }
        self.overlay.put_hashes(self.plan, id, hashes.iter().copied().zip(written.iter().copied()));
        let last_offset = tip.last_offset + i64::try_from(items.len()).unwrap_or(0);
        self.overlay.put_tip(self.plan, id, Tip { last_offset, last_created: created });
        let bytes = match &payload {
            AppendPayload::Stored { bytes, .. } => bytes.len(),
            AppendPayload::Elsewhere { .. } => 0,
        };
        let bytes = bytes + items.len() * MESSAGE_OVERHEAD + APPEND_OVERHEAD;
        let append = Append { id, bucket: 0, base, created, hashes, payload };
        draft.add(Effect::Append(append), Route::Partition(queue.route, id), bytes);
        written
    }

    /// The surviving items and their frames, with ids that follow the partition's last one.
    fn payload(
        &self,
        draft: &mut Draft<'_>,
        part: &PushPart,
        partition: PartitionId,
        survivors: &[usize],
    ) -> (Vec<PushPartItem>, AppendPayload) {
        let last = self.order.last(partition);
        let first_tick =
            survivors.first().and_then(|at| part.items.get(*at)).map_or(0, |item| tick_of(item.id));
        let whole = survivors.len() == part.items.len();
        if whole && (part.ids_are_callers || first_tick > last) {
            let raw_len = u32::try_from(part.frames.len()).unwrap_or(u32::MAX);
            let (bytes, compressed) = match &part.packed {
                Some(packed) => (packed.clone(), true),
                None => (part.frames.clone(), false),
            };
            return (part.items.clone(), AppendPayload::Stored { bytes, compressed, raw_len });
        }
        let mut frames = Vec::with_capacity(part.frames.len());
        let mut items = Vec::with_capacity(survivors.len());
        let mut tick = last;
        for at in survivors {
            let Some(mut item) = part.items.get(*at).copied() else { continue };
            let start = at.checked_sub(1).and_then(|before| part.items.get(before));
            let start = start.map_or(0, |item| item.end as usize);
            let frame_at = frames.len();
            frames.extend_from_slice(part.frames.get(start..item.end as usize).unwrap_or_default());
            if !part.ids_are_callers && tick_of(item.id) <= tick {
                reissue(draft, &mut frames, frame_at, &mut item, tick + 1);
            }
            tick = tick_of(item.id);
            item.end = u32::try_from(frames.len()).unwrap_or(u32::MAX);
            items.push(item);
        }
        // Left uncompressed: compressing here would hold up every other request, and this is rare.
        let raw_len = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        (items, AppendPayload::Stored { bytes: frames.into(), compressed: false, raw_len })
    }
}

/// Gives the item a new id, and its frame with it.
fn reissue(
    draft: &mut Draft<'_>,
    frames: &mut [u8],
    frame_at: usize,
    item: &mut PushPartItem,
    tick: u64,
) {
    let tail = u64::from_le_bytes(draft.mint().0.last_chunk().copied().unwrap_or_default());
    item.id = Uuid::v7(tick >> 12, u16::try_from(tick & 0xfff).unwrap_or(0), tail);
    let patched = frame::patch_id(frames, frame_at, item.id);
    debug_assert!(patched, "a frame holds its id");
    if item.own_text {
        let text = item.id.text();
        let flags = frames.get(frame_at + frame::FLAGS_AT).copied().unwrap_or(0);
        let trace_len = if flags & frame::FLAG_TRACE == 0 { 0 } else { 16 };
        let at = frame_at + OWN_TEXT_AT + trace_len;
        if let Some(slot) = frames.get_mut(at..at + UUID_TEXT_LEN) {
            slot.copy_from_slice(&text);
        }
        item.hash = tx_hash(std::str::from_utf8(&text).unwrap_or_default());
    }
}

/// Makes a queue by its first use.
pub(crate) fn create_queue(
    overlay: &mut Overlay,
    plan: u64,
    draft: &mut Draft<'_>,
    (tenant, name): (Tenant, &str),
) -> QueueView {
    let options = QueueOptions::implicit(name);
    let (id, created) = (draft.mint(), draft.now());
    let view = QueueView::new((tenant, name), id, created, &options, true);
    overlay.put_queue(plan, tenant, name, Some((view, options.clone())));
    let effect = Effect::QueueUpsert { tenant, queue: name.to_owned(), id, options, created };
    draft.add(effect, Route::Queue(view.route), 200 + name.len());
    view
}

fn verdicts(
    part: &PushPart,
    stored: &[Option<Original>],
    survivors: &[usize],
    written: &[Original],
) -> Vec<PushVerdict> {
    let mut verdicts: Vec<PushVerdict> = Vec::with_capacity(part.items.len());
    let mut new = survivors.iter().zip(written).peekable();
    for (at, item) in part.items.iter().enumerate() {
        let verdict = if let Some(leader) = item.leader {
            match verdicts.get(leader as usize) {
                Some(PushVerdict::Queued { offset, id }) => {
                    let created = written.first().map_or(Micros(0), |first| first.created);
                    PushVerdict::Duplicate(Original { offset: *offset, created, id: *id })
                }
                Some(PushVerdict::Duplicate(original)) => PushVerdict::Duplicate(*original),
                None => unreachable!("a leader stands before its followers"),
            }
        } else if let Some(original) = stored.get(at).copied().flatten() {
            PushVerdict::Duplicate(original)
        } else {
            match new.next_if(|(survivor, _)| **survivor == at) {
                Some((_, written)) => {
                    PushVerdict::Queued { offset: written.offset, id: written.id }
                }
                None => unreachable!("an item is a follower, stored, or appended"),
            }
        };
        verdicts.push(verdict);
    }
    verdicts
}
