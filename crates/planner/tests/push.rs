//! Planning a push: ids that ascend with offsets, limits, queues born from use.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use bytes::Bytes;
use queen_model::{Append, AppendPayload, Effect, Entry, Refusal};
use queen_planner::draft::{Draft, Stamp};
use queen_planner::filter::DuplicateFilter;
use queen_planner::limits::Limits;
use queen_planner::overlay::Overlay;
use queen_planner::push::{
    IdOrder, PushContext, PushFacts, PushPart, PushPartItem, PushPlan, PushVerdict, tick_of,
};
use queen_record::frame::{FrameRef, Frames};
use queen_record::hash::tx_hash;
use queen_record::ids::{Micros, Tenant, Uuid};
use queen_state::State;

const NOW: Micros = Micros(1_800_000_000_000_000);

/// A part whose items have ids of these ticks after `NOW`; an item without text takes its id's.
fn part(items: &[(u16, Option<&str>)]) -> PushPart {
    let millis = u64::try_from(NOW.0 / 1000).unwrap() + 5;
    let mut frames = Vec::new();
    let items = items
        .iter()
        .map(|(sub, text)| {
            let id = Uuid::v7(millis, *sub, 7);
            let own = id.to_string();
            let transaction_id = text.unwrap_or(&own);
            let frame = FrameRef {
                flags: 0,
                id,
                trace: None,
                transaction_id,
                producer_sub: None,
                data: b"{}",
                encrypted: false,
            };
            frame.encode(&mut frames).unwrap();
            PushPartItem {
                hash: tx_hash(transaction_id),
                id,
                end: u32::try_from(frames.len()).unwrap(),
                own_text: text.is_none(),
                leader: None,
            }
        })
        .collect();
    PushPart {
        tenant: Tenant::DEFAULT,
        queue: "a.b".into(),
        partition: "p".into(),
        items,
        frames: Bytes::from(frames),
        packed: None,
        ids_are_callers: false,
    }
}

struct Bench {
    state: State,
    overlay: Overlay,
    order: IdOrder,
    limits: Limits,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits::default();
        Self { state: State::new(), overlay: Overlay::default(), order: IdOrder::new(NOW), limits }
    }

    /// Plans the parts into one entry.
    fn plan(&mut self, parts: &[PushPart]) -> (Vec<PushPlan>, Entry) {
        let filter = DuplicateFilter::default();
        let mut random = 0;
        let mut entropy = || {
            random += 1;
            random
        };
        let stamp = Stamp { now: NOW, entropy: &mut entropy };
        let mut draft = Draft::new(stamp, self.state.next_partition(), 1);
        let mut plans = Vec::new();
        for part in parts {
            let mut context = PushContext {
                state: &self.state,
                overlay: &mut self.overlay,
                filter: &filter,
                order: &mut self.order,
                limits: &self.limits,
                plan: 1,
            };
            plans.push(context.plan(&mut draft, part, &PushFacts::default()));
        }
        (plans, draft.finish().0)
    }
}

fn appends(entry: &Entry) -> Vec<&Append> {
    let appends = entry.effects.iter().filter_map(|effect| match effect {
        Effect::Append(append) => Some(append),
        _ => None,
    });
    appends.collect()
}

#[test]
fn ids_ascend_although_pushes_are_planned_in_another_order() {
    let late = part(&[(100, Some("x")), (101, None)]);
    let early = part(&[(50, Some("y")), (51, None), (102, Some("z"))]);
    let mut bench = Bench::new();
    let (plans, entry) = bench.plan(&[late, early]);
    let appends = appends(&entry);
    assert_eq!((appends[0].base.0, appends[1].base.0), (0, 2));
    assert!(appends[1].created > appends[0].created, "two appends of a partition differ in time");
    let mut last = 0;
    for append in &appends {
        let AppendPayload::Stored { bytes, raw_len, .. } = &append.payload else { panic!() };
        assert_eq!(bytes.len(), *raw_len as usize);
        for (frame, hash) in Frames::new(bytes).zip(&append.hashes) {
            let frame = frame.unwrap();
            assert!(tick_of(frame.id) > last, "{} follows {last}", frame.id);
            last = tick_of(frame.id);
            assert_eq!(tx_hash(frame.transaction_id), *hash);
            if frame.transaction_id.len() == 36 {
                assert_eq!(frame.transaction_id, frame.id.to_string());
            }
        }
    }
    let PushPlan::Done(verdicts) = &plans[1] else { panic!() };
    assert!(verdicts.iter().all(|verdict| matches!(verdict, PushVerdict::Queued { .. })));
}

#[test]
fn the_first_push_makes_queue_and_partition() {
    let (_, entry) = Bench::new().plan(&[part(&[(1, Some("x"))])]);
    let Effect::QueueUpsert { options, .. } = &entry.effects[0] else { panic!() };
    assert_eq!((&*options.namespace, &*options.task, options.lease_time), ("a", "b", 60));
    assert!(matches!(&entry.effects[1], Effect::PartitionCreate(create) if create.id.0 == 1));
    let mut state = State::new();
    state.apply(state.applied().next(), 1, &entry).unwrap();
    assert_eq!(state.partition_count(), 1);
}

#[test]
fn what_apply_could_not_take_is_refused_and_changes_nothing() {
    let mut bench = Bench::new();
    bench.limits.command_bytes_max = 100;
    let (plans, entry) = bench.plan(&[part(&[(1, Some("x"))])]);
    assert!(matches!(&plans[0], PushPlan::Refused(Refusal::TooLarge { .. })));
    assert!(entry.effects.is_empty());
    let mut long = part(&[(1, Some("x"))]);
    long.partition = "p".repeat(409);
    let (plans, entry) = Bench::new().plan(&[long]);
    assert!(matches!(&plans[0], PushPlan::Refused(Refusal::NameTooLong { .. })));
    assert!(entry.effects.is_empty());
}
