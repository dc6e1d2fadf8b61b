//! What can be done where a push arrives: split by partition, hash, mint ids, frame, compress.
//!
//! None of it needs the state, so none of it is done on the planning thread.

mod framed;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_io::Clock;
use queen_model::Refusal;
use queen_planner::limits::{check_names, check_transaction_id};
use queen_planner::push::{PushPart, PushPartItem};
use queen_record::compress::PayloadCompressor;
use queen_record::frame::FrameRef;
use queen_record::hash::tx_hash;
use queen_record::ids::{Tenant, TxHash, UUID_TEXT_LEN, Uuid};
use rand::Rng;

use crate::api::{CallError, PushBatch, PushItem};
use crate::cipher::{QueueSealing, Sealing};

/// Source of message ids.
pub trait MintIds: Send + Sync + 'static {
    /// `count` ids that ascend, above every id minted before on this node.
    fn mint(&self, count: usize) -> Vec<Uuid>;
}

/// Ids by the clock: `UUIDv7` whose ordered part never repeats on this node, and random bits that tell nodes apart.
pub struct ClockIds {
    clock: Arc<dyn Clock>,
    last: AtomicU64,
}

impl ClockIds {
    /// Ids from this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, last: AtomicU64::new(0) }
    }
}

impl MintIds for ClockIds {
    fn mint(&self, count: usize) -> Vec<Uuid> {
        let now_us = u64::try_from(self.clock.wall_us()).unwrap_or(0);
        // Twelve bits below the millisecond: 4096 steps of about a quarter microsecond.
        let now = ((now_us / 1000) << 12) | ((now_us % 1000) * 4096 / 1000);
        let count = count as u64;
        let reserve = |last: u64| Some(last.max(now) + count);
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
        let first = before.unwrap_or_else(|last| last).max(now) + 1;
        // One random tail for the whole push: the ordered part already differs, and equal bytes compress.
        let tail = rand::rng().next_u64();
        (first..first + count)
            .map(|tick| Uuid::v7(tick >> 12, u16::try_from(tick & 0xfff).unwrap_or(0), tail))
            .collect()
    }
}

/// A push, ready to be planned.
#[derive(Debug)]
pub struct Prepared {
    /// One per (queue, partition), in order of first use.
    pub parts: Vec<PushPart>,
    /// For each input item its part and its place in it.
    pub places: Vec<(u32, u32)>,
}

thread_local! {
    /// A compression context is half a megabyte: one per thread, made for the level that was asked last.
    static COMPRESSOR: RefCell<Option<(i32, PayloadCompressor)>> = const { RefCell::new(None) };
}

struct Building<'a> {
    queue: &'a str,
    partition: &'a str,
    sealing: QueueSealing<'a>,
    items: Vec<PushPartItem>,
    frames: Vec<u8>,
}

/// Prepares what a push brings.
///
/// # Errors
/// Of the whole push: a refusal, for names or a transactionId over their limits; a fault, when a payload that must be
/// sealed cannot be.
pub fn prepare(
    tenant: Tenant,
    batch: PushBatch<'_>,
    ids: &dyn MintIds,
    zstd_level: i32,
    sealing: Sealing<'_>,
) -> Result<Prepared, CallError> {
    let split = Split::new(tenant, sealing);
    match batch {
        PushBatch::Items(items) => prepare_items(split, items, ids, zstd_level),
        PushBatch::Framed(groups, sub) => framed::prepare(split, groups, sub, zstd_level),
    }
}

fn prepare_items<'a>(
    mut split: Split<'a>,
    items: &[PushItem<'a>],
    ids: &dyn MintIds,
    zstd_level: i32,
) -> Result<Prepared, CallError> {
    let minted = ids.mint(items.len());
    let mut places = Vec::with_capacity(items.len());
    for (item, id) in items.iter().zip(minted) {
        let part = split.part(item.queue, item.partition, item.payload.len() + 96)?;
        if let Some(building) = split.building.get_mut(part as usize) {
            places.push((part, index(building.items.len())));
            add(building, item, id)?;
        }
    }
    let tenant = split.tenant;
    let parts = split.building.into_iter().map(|part| finish(tenant, part, zstd_level)).collect();
    Ok(Prepared { parts, places })
}

/// The parts of a push while it is split.
struct Split<'a> {
    tenant: Tenant,
    sealing: Sealing<'a>,
    building: Vec<Building<'a>>,
    by_name: HashMap<(&'a str, &'a str), u32, FixedState>,
    last: Option<(&'a str, &'a str, u32)>,
}

impl<'a> Split<'a> {
    fn new(tenant: Tenant, sealing: Sealing<'a>) -> Self {
        Self { tenant, sealing, building: Vec::new(), by_name: HashMap::default(), last: None }
    }

    /// The part of a (queue, partition); neighbours mostly share theirs.
    fn part(&mut self, queue: &'a str, partition: &'a str, bytes: usize) -> Result<u32, Refusal> {
        if let Some((.., part)) = self.last.filter(|(q, p, _)| (*q, *p) == (queue, partition)) {
            return Ok(part);
        }
        let part = if let Some(part) = self.by_name.get(&(queue, partition)) {
            *part
        } else {
            check_names(queue, partition)?;
            let part = index(self.building.len());
            self.by_name.insert((queue, partition), part);
            let (items, frames) = (Vec::new(), Vec::with_capacity(bytes));
            let same = self.building.last().filter(|part| part.queue == queue);
            let sealing =
                same.map_or_else(|| self.sealing.of(self.tenant, queue), |part| part.sealing);
            self.building.push(Building { queue, partition, sealing, items, frames });
            part
        };
        self.last = Some((queue, partition, part));
        Ok(part)
    }
}

fn add(building: &mut Building<'_>, item: &PushItem<'_>, id: Uuid) -> Result<(), CallError> {
    let own: [u8; UUID_TEXT_LEN];
    let transaction_id = if let Some(text) = item.transaction_id {
        text
    } else {
        own = id.text();
        std::str::from_utf8(&own).unwrap_or_default()
    };
    check_transaction_id(transaction_id)?;
    let stored = building.sealing.stored(item.payload).map_err(|error| {
        tracing::error!(queue = building.queue, "a payload is not stored: {error}");
        CallError::Internal(format!("nothing was stored: {error}"))
    })?;
    let frame = FrameRef {
        flags: 0,
        id,
        trace: item.trace_id,
        transaction_id,
        producer_sub: item.producer_sub,
        data: &stored.data,
        encrypted: stored.encrypted,
    };
    frame
        .encode(&mut building.frames)
        .map_err(|_| Refusal::BadRequest("a message is too large for a frame".to_owned()))?;
    building.items.push(PushPartItem {
        hash: tx_hash(transaction_id),
        id,
        end: index(building.frames.len()),
        own_text: item.transaction_id.is_none(),
        leader: None,
    });
    Ok(())
}

fn finish(tenant: Tenant, mut building: Building<'_>, zstd_level: i32) -> PushPart {
    if building.items.len() > 1 {
        note_leaders(&mut building.items);
    }
    let packed = compress(&building.frames, zstd_level);
    PushPart {
        tenant,
        queue: building.queue.to_owned(),
        partition: building.partition.to_owned(),
        items: building.items,
        frames: building.frames.into(),
        packed,
        ids_are_callers: false,
    }
}

/// Marks items that repeat a transactionId of the same part.
fn note_leaders(items: &mut [PushPartItem]) {
    let mut first: HashMap<TxHash, u32, FixedState> = HashMap::default();
    first.reserve(items.len());
    for (at, item) in items.iter_mut().enumerate() {
        let at = index(at);
        let leader = *first.entry(item.hash).or_insert(at);
        item.leader = (leader != at).then_some(leader);
    }
}

fn compress(frames: &[u8], level: i32) -> Option<Bytes> {
    if level == 0 || frames.len() < queen_record::compress::COMPRESS_MIN {
        return None;
    }
    COMPRESSOR.with_borrow_mut(|held| {
        if held.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
            *held = PayloadCompressor::new(level).ok().map(|made| (level, made));
        }
        held.as_mut().and_then(|(_, compressor)| compressor.compress(frames)).map(Bytes::from)
    })
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use queen_io::ManualClock;
    use queen_planner::push::tick_of;

    use super::*;

    fn item<'a>(queue: &'a str, partition: &'a str, id: Option<&'a str>) -> PushItem<'a> {
        PushItem {
            queue,
            partition,
            transaction_id: id,
            payload: b"{}",
            producer_sub: None,
            trace_id: None,
        }
    }

    fn split() -> Split<'static> {
        Split::new(Tenant::DEFAULT, Sealing::PLAIN)
    }

    #[test]
    fn items_are_split_by_partition_and_repeats_follow_their_leader() {
        let ids = ClockIds::new(Arc::new(ManualClock::new(5_000_000)));
        let items = [
            item("q", "a", Some("1")),
            item("q", "b", Some("1")),
            item("q", "a", Some("2")),
            item("q", "a", Some("1")),
            item("r", "a", None),
        ];
        let prepared = prepare_items(split(), &items, &ids, 1).unwrap();
        assert_eq!(prepared.places, [(0, 0), (1, 0), (0, 1), (0, 2), (2, 0)]);
        let leaders: Vec<_> = prepared.parts[0].items.iter().map(|item| item.leader).collect();
        assert_eq!(leaders, [None, None, Some(0)]);
        assert!(prepared.parts[2].items[0].own_text);
    }

    #[test]
    fn ids_ascend_although_the_clock_stands() {
        let ids = ClockIds::new(Arc::new(ManualClock::new(5_000_000)));
        let minted: Vec<Uuid> = (1..50).flat_map(|count| ids.mint(count)).collect();
        assert!(minted.windows(2).all(|pair| tick_of(pair[0]) < tick_of(pair[1])));
        assert!(minted.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn limits_refuse_the_whole_push() {
        let ids = ClockIds::new(Arc::new(ManualClock::new(0)));
        let long = "n".repeat(412);
        let refused = prepare_items(split(), &[item("", &long, None)], &ids, 1).unwrap_err();
        assert!(matches!(refused, CallError::Refused(Refusal::NameTooLong { .. })), "{refused}");
        assert!(prepare_items(split(), &[item("", &long[1..], None)], &ids, 1).is_ok());
        let long = "t".repeat(65_536);
        assert!(prepare_items(split(), &[item("q", "p", Some(&long))], &ids, 1).is_err());
        assert!(prepare_items(split(), &[item("q", "p", Some(&long[1..]))], &ids, 1).is_ok());
    }
}
