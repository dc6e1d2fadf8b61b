//! A checkpoint taken while apply goes on holds exactly the rows of its entry, and loads back to the same state.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use queen_model::{
    Append, AppendPayload, CommandSpan, CursorSet, DlqInsert, Effect, Entry, GroupUpsert, Lease,
    PartitionCreate, QueueOptions, Released, SubscriptionMode, Watermark,
};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, TxHash, Uuid};
use queen_state::{Keyspace, RowPlace, State, StoredRow, stored_again};

const T: Tenant = Tenant::DEFAULT;

#[derive(Clone, Debug)]
enum Op {
    Queue(u8),
    DeleteQueue(u8),
    Partition(u8),
    Append(usize, u8),
    Cursor(usize, u8, bool),
    Subscribe(u8, u8),
    DeleteGroup(u8, u8, bool),
    Dead(usize, u8),
    Sweep(u32),
    Marks(usize, u64, u64),
    DeletePartition(usize),
    BeginCut,
    Pull(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let (queue, group, at) = (0u8..3, 0u8..3, 0usize..24);
    prop_oneof![
        2 => queue.clone().prop_map(Op::Queue),
        1 => queue.clone().prop_map(Op::DeleteQueue),
        6 => queue.clone().prop_map(Op::Partition),
        8 => (at.clone(), 1u8..4).prop_map(|(at, n)| Op::Append(at, n)),
        8 => (at.clone(), group.clone(), any::<bool>()).prop_map(|(a, g, l)| Op::Cursor(a, g, l)),
        2 => (queue.clone(), group.clone()).prop_map(|(q, g)| Op::Subscribe(q, g)),
        1 => (queue, group.clone(), any::<bool>()).prop_map(|(q, g, m)| Op::DeleteGroup(q, g, m)),
        2 => (at.clone(), group).prop_map(|(at, g)| Op::Dead(at, g)),
        4 => (at.clone(), 0u64..9, 0u64..9).prop_map(|(at, l, t)| Op::Marks(at, l, t)),
        1 => at.prop_map(Op::DeletePartition),
        2 => (1u32..6).prop_map(Op::Sweep),
        2 => Just(Op::BeginCut),
        6 => (1usize..8).prop_map(Op::Pull),
    ]
}

fn live_partition(state: &State, at: usize) -> Option<PartitionId> {
    let live: Vec<_> = state.partitions().map(|(id, _)| id).collect();
    let live: Vec<_> = live.into_iter().filter(|id| state.partition(*id).is_some()).collect();
    (!live.is_empty()).then(|| live[at % live.len()])
}

/// The effect that an operation means in this state, if it means one.
#[expect(clippy::too_many_lines, reason = "one arm per operation")]
fn effect(state: &State, op: &Op, now: Micros) -> Option<Effect> {
    let queue_name = |q: u8| format!("queue-{q}");
    let group_name = |g: u8| format!("group-{g}");
    let uuid = Uuid::v7(now.0.unsigned_abs(), 0, 1);
    Some(match op {
        Op::Queue(q) => Effect::QueueUpsert {
            tenant: T,
            queue: queue_name(*q),
            id: uuid,
            options: QueueOptions::implicit("a.b"),
            created: now,
        },
        Op::DeleteQueue(q) => {
            state.queue(T, &queue_name(*q))?;
            Effect::QueueDelete { tenant: T, queue: queue_name(*q) }
        }
        Op::Partition(q) => {
            state.queue(T, &queue_name(*q))?;
            Effect::PartitionCreate(PartitionCreate {
                id: state.next_partition(),
                uuid,
                tenant: T,
                queue: queue_name(*q),
                partition: format!("p{}", now.0),
                created: now,
            })
        }
        Op::Append(at, count) => {
            let id = live_partition(state, *at)?;
            Effect::Append(Append {
                id,
                bucket: 0,
                base: state.partition(id)?.next_offset(),
                created: now,
                hashes: vec![TxHash([*count; 16]); usize::from(*count)],
                payload: AppendPayload::Elsewhere { retained: 77 },
            })
        }
        Op::Cursor(at, g, leased) => Effect::CursorSet(CursorSet {
            id: live_partition(state, *at)?,
            group: group_name(*g),
            committed: now.0 % 7 - 1,
            lease: leased.then_some(Lease {
                worker: uuid,
                batch_end: Offset(9),
                expires: now,
                acquired: now,
                conflated: false,
            }),
            retries: u32::from(*g),
            attempt_offset: leased.then_some(Offset(4)),
            attempts: 1,
            consumed: 5,
            created: now,
            metadata: String::new(),
            released: (*g == 1).then_some(Released {
                worker: uuid,
                low: Offset(1),
                high: Offset(2),
            }),
        }),
        Op::Subscribe(q, g) => {
            state.queue(T, &queue_name(*q))?;
            Effect::GroupUpsert(GroupUpsert {
                tenant: T,
                queue: queue_name(*q),
                group: group_name(*g),
                id: uuid,
                mode: SubscriptionMode::New,
                subscribe_at: now,
                conflation: false,
                registered: now,
            })
        }
        Op::DeleteGroup(q, g, metadata) => {
            state.queue(T, &queue_name(*q))?.group(&group_name(*g))?;
            Effect::GroupDelete {
                tenant: T,
                queue: queue_name(*q),
                group: group_name(*g),
                metadata: *metadata,
            }
        }
        Op::Dead(at, g) => {
            let partition = live_partition(state, *at)?;
            Effect::DlqInsert(DlqInsert {
                id: uuid,
                tenant: T,
                queue: state.queue_by_number(state.partition(partition)?.queue)?.name.to_string(),
                partition,
                group: group_name(*g),
                offset: i64::from(*g) - 1,
                message_id: None,
                transaction_id: "t".into(),
                payload: Bytes::from_static(b"{}"),
                encrypted: *g % 2 == 1,
                error: "boom".into(),
                retries: 1,
                failed: now,
            })
        }
        Op::Marks(at, log, txns) => {
            let id = live_partition(state, *at)?;
            let next = state.partition(id)?.next_offset().0;
            Effect::Watermark(Watermark {
                id,
                log_start: Offset(next.min(*log)),
                txns_start: Offset(*txns),
                rows_start: Offset(*txns + 1),
                oldest: (*log % 2 == 0).then_some(now),
                freed: *log * 20,
            })
        }
        Op::DeletePartition(at) => Effect::PartitionDelete { id: live_partition(state, *at)? },
        Op::Sweep(limit) => Effect::DeleteChunk { limit: *limit },
        Op::BeginCut | Op::Pull(_) => return None,
    })
}

type Stored = BTreeMap<(Keyspace, Vec<u8>), Vec<u8>>;

fn store(stored: &mut Stored, rows: Vec<StoredRow>) {
    for row in rows {
        match row.value {
            Some(value) => stored.insert((row.keyspace, row.key), value),
            None => stored.remove(&(row.keyspace, row.key)),
        };
    }
}

fn load(stored: &Stored) -> State {
    let mut state = State::new();
    for ((keyspace, key), value) in stored {
        state.load_row(*keyspace, key, value).unwrap();
    }
    state
}

fn apply(state: &mut State, effect: Effect, now: Micros) {
    let entry = Entry {
        now,
        pid_base: state.next_partition(),
        kv_version_base: 1,
        commands: vec![CommandSpan { request: Uuid([1; 16]), first_effect: 0, effect_count: 1 }],
        effects: vec![effect],
    };
    // Through the bytes, as a replay would take it.
    let mut bytes = Vec::new();
    entry.encode(&mut bytes);
    let entry = Entry::decode(&bytes).unwrap();
    state.apply(state.applied().next(), 1, &entry).unwrap();
}

/// What is looked up by place is what is walked.
fn check_lookups(state: &State) {
    for queue in state.all_queues() {
        let mut walked: Vec<_> = queue.dead_letters().map(|row| &row.letter).collect();
        walked.sort_by_key(|letter| (letter.partition, letter.offset, letter.failed, letter.id));
        let of = |id| queue.dead_letters_at(id, i64::MIN..=i64::MAX).map(|row| &row.letter);
        let found: Vec<_> = queue.partitions().flat_map(of).collect();
        assert_eq!(found, walked);
        for letter in walked {
            let at = letter.offset;
            assert!(
                queue.dead_letters_at(letter.partition, at..=at).any(|row| row.letter == *letter)
            );
            let beside = queue.dead_letters_at(letter.partition, at + 1..=at);
            assert_eq!(beside.count(), 0, "an empty range");
        }
        for (rank, id) in (0..).zip(queue.partitions()) {
            assert_eq!(queue.partition_at(rank), Some(id));
        }
        assert_eq!(queue.partition_at(queue.partition_count()), None);
        let rows = || queue.partitions().map(|id| state.partition(id).unwrap());
        assert!(rows().all(|row| row.retained_bytes >= 0 && row.txns_start() <= row.log_start()));
        assert!(rows().all(|row| row.log_start() <= row.next_offset()));
        assert_eq!(queue.retained_bytes, rows().map(|row| row.retained_bytes).sum::<i64>());
    }
    let all: Vec<PartitionId> = state.partitions().map(|(id, _)| id).collect();
    for (at, id) in all.iter().enumerate() {
        let rest: Vec<PartitionId> = state.partitions_from(*id).map(|(id, _)| id).collect();
        assert_eq!(rest, all[at..]);
    }
}

/// A walk over the rows that did not change gives what is stored, and nothing else.
fn check_unchanged(state: &State, stored: &Stored) {
    for max in [1, 5, 1000] {
        let (mut place, mut found) = (RowPlace::default(), Stored::new());
        while let Some(rows) = state.unchanged_rows(&mut place, max) {
            store(&mut found, rows);
        }
        assert_eq!(place, RowPlace::default());
        let want = stored.iter().filter(|((keyspace, _), _)| *keyspace != Keyspace::Meta);
        let want: Stored = want.map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(found, want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_holds_the_rows_of_its_entry(ops in proptest::collection::vec(op(), 1..160)) {
        let (mut state, mut stored, mut now) = (State::new(), Stored::new(), Micros(1000));
        let mut cut: Option<(Vec<StoredRow>, [u64; 6])> = None;
        let finish = |state: &mut State, stored: &mut Stored, mut rows: Vec<StoredRow>, want| {
            rows.extend(state.next_of_cut(usize::MAX >> 8));
            state.finish_cut();
            store(stored, rows);
            prop_assert_eq!(load(stored).digest(), want);
            Ok(())
        };
        for op in &ops {
            now = Micros(now.0 + 10);
            match (op, &mut cut) {
                (Op::BeginCut, held) => {
                    if let Some((rows, want)) = held.take() {
                        finish(&mut state, &mut stored, rows, want)?;
                    }
                    *held = Some((state.begin_cut(b"logs"), state.digest()));
                }
                (Op::Pull(max), Some((rows, _))) => rows.extend(state.next_of_cut(*max)),
                (op, _) => {
                    if let Some(effect) = effect(&state, op, now) {
                        apply(&mut state, effect, now);
                    }
                }
            }
        }
        if let Some((rows, want)) = cut.take() {
            finish(&mut state, &mut stored, rows, want)?;
        }
        let (rows, want) = (state.begin_cut(b"logs"), state.digest());
        finish(&mut state, &mut stored, rows, want)?;
        check_unchanged(&state, &stored);
        let mut loaded = load(&stored);
        check_unchanged(&loaded, &stored);
        for ((keyspace, key), value) in &stored {
            prop_assert_eq!(&stored_again(*keyspace, key, value).unwrap(), value);
        }
        // The same entries have the same effect on a loaded state.
        for op in ops.iter().rev() {
            now = Micros(now.0 + 10);
            if let Some(effect) = effect(&state, op, now) {
                apply(&mut state, effect.clone(), now);
                apply(&mut loaded, effect, now);
            }
        }
        prop_assert_eq!(loaded.digest(), state.digest());
        check_lookups(&state);
        check_lookups(&loaded);
    }
}
