//! Marks against a list of appends: they only rise, and the counters are those of what is left.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use proptest::prelude::*;
use queen_model::{
    Append, AppendPayload, CommandSpan, Effect, Entry, PartitionCreate, QueueOptions, Watermark,
};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, TxHash, Uuid};
use queen_state::State;

const T: Tenant = Tenant::DEFAULT;
const ID: PartitionId = PartitionId(1);

#[derive(Clone, Copy, Debug)]
enum Op {
    Append(u8),
    /// Removes this many of the appends that are left; hashes of so many that were removed go too.
    Remove(usize, usize),
}

#[derive(Clone, Copy, Debug)]
struct Made {
    base: u64,
    end: u64,
    created: Micros,
    retained: u32,
}

fn apply(state: &mut State, effects: Vec<Effect>) -> Result<(), String> {
    let count = u32::try_from(effects.len()).unwrap();
    let span = CommandSpan { request: Uuid([1; 16]), first_effect: 0, effect_count: count };
    let entry = Entry {
        now: Micros(state.last_now().0 + 10),
        pid_base: state.next_partition(),
        kv_version_base: 1,
        commands: vec![span],
        effects,
    };
    let index = state.applied().next();
    state.apply(index, 1, &entry).map_err(|error| error.to_string())
}

fn state() -> State {
    let mut state = State::new();
    let (queue, created) = ("q".to_owned(), Micros(1));
    let options = QueueOptions::configured();
    let id = Uuid([2; 16]);
    let upsert = Effect::QueueUpsert { tenant: T, queue: queue.clone(), id, options, created };
    let (uuid, partition) = (Uuid([3; 16]), "p".to_owned());
    let create = PartitionCreate { id: ID, uuid, tenant: T, queue, partition, created };
    apply(&mut state, vec![upsert, Effect::PartitionCreate(create)]).unwrap();
    state
}

fn append(state: &State, count: u8) -> (Effect, Made) {
    let row = state.partition(ID).unwrap();
    let (base, created) = (row.next_offset(), Micros(row.last_created.0 + 5));
    let retained = 40 + u32::from(count) * 21;
    let made = Made { base: base.0, end: base.0 + u64::from(count), created, retained };
    let hashes = vec![TxHash([count; 16]); usize::from(count)];
    let payload = AppendPayload::Elsewhere { retained };
    (Effect::Append(Append { id: ID, bucket: 0, base, created, hashes, payload }), made)
}

fn marks(log_start: u64, txns_start: u64, oldest: Option<Micros>, freed: u64) -> Effect {
    let (log_start, txns_start) = (Offset(log_start), Offset(txns_start));
    Effect::Watermark(Watermark {
        id: ID,
        log_start,
        txns_start,
        rows_start: txns_start,
        oldest,
        freed,
    })
}

fn check(state: &State, all: &[Made], log: usize, txns: usize) {
    let row = state.partition(ID).unwrap();
    let left = &all[log..];
    let end = all.last().map_or(0, |made| made.end);
    let start_of = |at: usize| all.get(at).map_or(end, |made| made.base);
    assert_eq!(row.log_start().0, start_of(log));
    assert_eq!(row.txns_start().0, start_of(txns));
    assert_eq!(state.reclaimable(ID), Some(Offset(start_of(txns))));
    let retained: i64 = left.iter().map(|made| i64::from(made.retained)).sum();
    assert_eq!(row.retained_bytes, retained);
    assert_eq!(state.queue(T, "q").unwrap().retained_bytes, retained);
    assert_eq!(row.retained_count(), left.iter().map(|made| made.end - made.base).sum::<u64>());
    if let Some(marks) = &row.marks
        && log > 0
    {
        assert_eq!(marks.oldest, left.first().map(|made| made.created));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_left_is_what_was_not_removed(
        ops in proptest::collection::vec(
            prop_oneof![
                3 => (1u8..5).prop_map(Op::Append),
                2 => (0usize..4, 0usize..5).prop_map(|(log, txns)| Op::Remove(log, txns)),
            ],
            0..60,
        ),
    ) {
        let (mut state, mut all, mut log, mut txns) = (state(), Vec::<Made>::new(), 0, 0);
        for op in ops {
            match op {
                Op::Append(count) => {
                    let (effect, made) = append(&state, count);
                    apply(&mut state, vec![effect]).unwrap();
                    all.push(made);
                }
                Op::Remove(more, rows) => {
                    let next = (log + more).min(all.len());
                    txns = (txns + rows).min(next);
                    let gone = &all[log..next];
                    let freed = gone.iter().map(|made| u64::from(made.retained)).sum();
                    log = next;
                    let end = all.last().map_or(0, |made| made.end);
                    let start_of = |at: usize| all.get(at).map_or(end, |made: &Made| made.base);
                    let oldest = all.get(log).map(|made| made.created);
                    let effect = marks(start_of(log), start_of(txns), oldest, freed);
                    apply(&mut state, vec![effect]).unwrap();
                }
            }
            check(&state, &all, log, txns);
            // Nothing moves a mark back, and nothing is freed twice.
            apply(&mut state, vec![marks(0, 0, Some(Micros(3)), 50)]).unwrap();
            check(&state, &all, log, txns);
        }
    }
}

#[test]
fn a_mark_behind_the_end_stops_the_node() {
    let mut state = state();
    let (effect, _) = append(&state, 3);
    apply(&mut state, vec![effect]).unwrap();
    assert!(apply(&mut state, vec![marks(4, 0, None, 0)]).is_err());
}

#[test]
fn a_layout_that_does_not_say_what_is_freed_leaves_no_counter_negative_or_stuck() {
    let mut state = state();
    for count in [1, 2, 3] {
        let (effect, _) = append(&state, count);
        apply(&mut state, vec![effect]).unwrap();
    }
    let row = |state: &State| state.partition(ID).unwrap().clone();
    let newest = row(&state).last_created;
    apply(&mut state, vec![marks(5, 5, None, 0)]).unwrap();
    assert_eq!(row(&state).marks.unwrap().oldest, Some(newest), "only the newest is left");
    apply(&mut state, vec![marks(6, 9, None, 0)]).unwrap();
    assert_eq!((row(&state).retained_bytes, row(&state).retained_count()), (0, 0));
    assert_eq!(row(&state).txns_start(), Offset(6), "it never passes the log's start");
    let (effect, made) = append(&state, 1);
    apply(&mut state, vec![effect]).unwrap();
    assert_eq!(row(&state).marks.unwrap().oldest, Some(made.created));
    assert_eq!(row(&state).retained_bytes, i64::from(made.retained));
    apply(&mut state, vec![Effect::PartitionDelete { id: ID }]).unwrap();
    assert_eq!(state.reclaimable(ID), None);
    assert_eq!(state.queue(T, "q").unwrap().retained_bytes, 0);
}
