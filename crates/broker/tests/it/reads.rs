//! Reads against a naive model: random pushes, pops, acks, deletes and restarts, then the same questions to both.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use queen_broker::api::{
    AckStatus, Api, ChangedQuery, FetchEntry, FetchError, FetchRequest, MessageQuery,
    MessageStatus, OffsetQuery, PartitionRef, Reads,
};
use queen_model::OptionsPatch;
use queen_record::ids::{Micros, PartitionId};

use crate::support::{Rig, T, pop, queue_mode, set};

const QUEUES: [&str; 3] = ["a", "b.n", "missing"];
const GROUPS: [&str; 2] = ["g", "__QUEUE_MODE__"];

#[derive(Clone, Debug)]
enum Op {
    Push { queue: usize, partition: u8, count: u8, bytes: u16 },
    Take { queue: usize, group: usize, batch: u32, verdict: Option<AckStatus> },
    Advance(i64),
    DeleteQueue(usize),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop_oneof![
        2 => Just(None),
        3 => Just(Some(AckStatus::Completed)),
        2 => Just(Some(AckStatus::DeadLetter)),
    ];
    prop_oneof![
        12 => (0usize..2, 0u8..5, 1u8..6, 1u16..900)
            .prop_map(|(queue, partition, count, bytes)| Op::Push { queue, partition, count, bytes }),
        4 => (0usize..2, 0usize..2, 1u32..5, verdict)
            .prop_map(|(queue, group, batch, verdict)| Op::Take { queue, group, batch, verdict }),
        3 => (1i64..2_000_000).prop_map(Op::Advance),
        1 => (0usize..2).prop_map(Op::DeleteQueue),
        2 => Just(Op::Restart),
    ]
}

/// Numbers that questions are made of.
type Dice = Vec<u32>;

/// One message of the model.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    id: String,
    data: String,
    created: Micros,
    status: Option<MessageStatus>,
}

#[derive(Debug)]
struct Part {
    queue: &'static str,
    name: String,
    number: PartitionId,
    messages: Vec<Known>,
}

/// Everything that was pushed, by queue and partition.
#[derive(Default)]
struct Model {
    pushed: BTreeMap<(usize, String), Vec<(String, String)>>,
    next: u32,
}

async fn run(ops: Vec<Op>, dice: Dice) {
    let mut rig = Rig::new();
    for queue in &QUEUES[..2] {
        let options =
            OptionsPatch { retry_limit: set(0), lease_time: set(1), ..Default::default() };
        rig.configure(queue, options).await;
    }
    let mut model = Model::default();
    for op in ops {
        match op {
            Op::Push { queue, partition, count, bytes } => {
                model.push(&rig, queue, &format!("p{partition}"), count, bytes).await;
            }
            Op::Take { queue, group, batch, verdict } => {
                take(&rig, queue, group, batch, verdict).await;
            }
            Op::Advance(micros) => rig.clock.advance_us(micros),
            Op::DeleteQueue(queue) => {
                assert_eq!(rig.delete_queue(QUEUES[queue]).await, Ok(true));
                rig.configure(QUEUES[queue], OptionsPatch::default()).await;
                model.pushed.retain(|(of, _), _| *of != queue);
            }
            Op::Restart => rig.restart(),
        }
    }
    let parts = check_fetch_of_all(&rig, &model).await;
    let mut dice = Roll { dice, at: 0 };
    for _ in 0..12 {
        check_fetch(&rig, &parts, &mut dice).await;
        check_browse(&rig, &parts, &mut dice).await;
        check_offsets(&rig, &parts, &mut dice).await;
        check_changed(&rig, &parts, &mut dice).await;
    }
    check_groups(&rig, &parts).await;
}

impl Model {
    async fn push(&mut self, rig: &Rig, queue: usize, partition: &str, count: u8, bytes: u16) {
        let mut items = Vec::new();
        for _ in 0..count {
            self.next += 1;
            let data = format!("\"{}\"", "x".repeat(usize::from(bytes) + items.len()));
            items.push((format!("t{}", self.next), data));
        }
        rig.push_payloads(QUEUES[queue], partition, &items).await;
        self.pushed.entry((queue, partition.to_owned())).or_default().extend(items);
    }
}

async fn take(rig: &Rig, queue: usize, group: usize, batch: u32, verdict: Option<AckStatus>) {
    let popped = rig.api().pop(pop(QUEUES[queue], GROUPS[group], batch)).await.unwrap();
    for claim in &popped.claims {
        let last = claim.messages.last().unwrap();
        let id = std::str::from_utf8(&last.transaction_id).unwrap();
        if let Some(verdict) = verdict {
            rig.ack(GROUPS[group], popped.lease, claim.partition_id, &[(id, verdict)]).await;
        }
    }
}

/// Everything comes back by offset, with what each message does; it is what the other questions are checked against.
async fn check_fetch_of_all(rig: &Rig, model: &Model) -> Vec<Part> {
    let mut parts = Vec::new();
    for (queue, queue_name) in QUEUES.into_iter().enumerate().take(2) {
        let detail = rig.api().queue(T, queue_name.into(), 100).await.unwrap().unwrap();
        assert_eq!(
            detail.partitions.len(),
            model.pushed.keys().filter(|(of, _)| *of == queue).count()
        );
        for row in detail.partitions {
            let pushed = &model.pushed[&(queue, row.name.clone())];
            let entry = FetchEntry {
                queue: queue_name.into(),
                partition: row.name.clone(),
                offset: 0,
                bytes_max: u64::MAX,
            };
            let request = fetch(vec![entry], u64::MAX);
            let fetched = rig.api().fetch(request).await.unwrap().pop().unwrap();
            assert_eq!(fetched.bounds.high_watermark, pushed.len() as u64);
            let mut messages = Vec::new();
            for ((offset, message), (id, data)) in fetched.messages.iter().enumerate().zip(pushed) {
                assert_eq!(message.offset.0, offset as u64);
                assert_eq!(
                    (&*message.transaction_id, &*message.data),
                    (id.as_bytes(), data.as_bytes())
                );
                let partition = PartitionRef::Uuid(row.uuid);
                let detail = rig.api().message(T, partition, id.clone()).await.unwrap();
                let status = Some(detail.unwrap().status);
                let (id, data, created) = (id.clone(), data.clone(), message.created);
                messages.push(Known { id, data, created, status });
            }
            assert_eq!(messages.len(), pushed.len());
            assert!(messages.is_sorted_by_key(|message| message.created));
            assert_eq!(row.oldest, messages.first().map(|message| message.created));
            assert_eq!(row.newest, messages.last().map(|message| message.created));
            parts.push(Part { queue: queue_name, name: row.name, number: row.id, messages });
        }
    }
    parts
}

fn fetch(entries: Vec<FetchEntry>, bytes_max: u64) -> FetchRequest {
    FetchRequest { tenant: T, entries, bytes_max, wait: Duration::ZERO, bytes_min: 1 }
}

/// A row of numbers; it never ends.
struct Roll {
    dice: Dice,
    at: usize,
}

impl Roll {
    fn below(&mut self, most: usize) -> usize {
        self.at += 1;
        let mixed =
            self.dice[self.at % self.dice.len()].rotate_left(u32::try_from(self.at % 31).unwrap());
        mixed as usize % most.max(1)
    }

    fn maybe<V>(&mut self, value: impl FnOnce(&mut Self) -> V) -> Option<V> {
        (self.below(3) == 0).then(|| value(self))
    }

    /// A time at, just before or just after some message.
    fn time(&mut self, parts: &[Part]) -> Micros {
        let times: Vec<Micros> =
            parts.iter().flat_map(|part| &part.messages).map(|message| message.created).collect();
        let at = if times.is_empty() { Micros(5) } else { times[self.below(times.len())] };
        Micros(at.0 + i64::try_from(self.below(3)).unwrap() - 1)
    }
}

async fn check_fetch(rig: &Rig, parts: &[Part], dice: &mut Roll) {
    let count = dice.below(6);
    let entries: Vec<FetchEntry> = (0..count)
        .map(|_| FetchEntry {
            queue: QUEUES[dice.below(3)].into(),
            partition: format!("p{}", dice.below(6)),
            offset: dice.below(8) as u64,
            bytes_max: dice.below(3000) as u64 + 1,
        })
        .collect();
    let bytes_max = dice.maybe(|dice| dice.below(4000) as u64 + 1).unwrap_or(u64::MAX);
    let fetched = rig.api().fetch(fetch(entries.clone(), bytes_max)).await.unwrap();
    assert_eq!(fetched.len(), entries.len());
    let mut call_left = bytes_max;
    for (entry, found) in entries.iter().zip(fetched) {
        let part =
            parts.iter().find(|part| part.queue == entry.queue && part.name == entry.partition);
        let messages = part.map_or(&[][..], |part| &part.messages);
        let end = messages.len() as u64;
        let error = if entry.queue == QUEUES[2] {
            Some(FetchError::UnknownQueue)
        } else {
            (part.is_some() && entry.offset > end).then_some(FetchError::OffsetOutOfRange)
        };
        assert_eq!((found.error, found.bounds.high_watermark), (error, end), "{entry:?}");
        let (mut left, mut offset) = (entry.bytes_max, entry.offset);
        let mut expected = Vec::new();
        while error.is_none() && offset < end && left > 0 && call_left > 0 {
            let message = &messages[usize::try_from(offset).unwrap()];
            let bytes = message.data.len() as u64;
            if !expected.is_empty() && (bytes > left || bytes > call_left) {
                break;
            }
            expected.push((offset, message.id.clone(), message.created));
            (left, call_left) = (left.saturating_sub(bytes), call_left.saturating_sub(bytes));
            offset += 1;
        }
        let found: Vec<_> = found
            .messages
            .iter()
            .map(|message| {
                let id = String::from_utf8(message.transaction_id.to_vec()).unwrap();
                (message.offset.0, id, message.created)
            })
            .collect();
        assert_eq!(found, expected, "{entry:?} {bytes_max}");
    }
}

async fn check_browse(rig: &Rig, parts: &[Part], dice: &mut Roll) {
    let statuses = [
        MessageStatus::Pending,
        MessageStatus::Processing,
        MessageStatus::Completed,
        MessageStatus::DeadLetter,
    ];
    let query = MessageQuery {
        tenant: T,
        queue: dice.maybe(|dice| QUEUES[dice.below(3)].into()),
        partition: dice.maybe(|dice| format!("p{}", dice.below(6))),
        namespace: dice.maybe(|dice| ["", "b"][dice.below(2)].into()),
        task: None,
        status: dice.maybe(|dice| statuses[dice.below(4)]),
        from: Some(dice.maybe(|dice| dice.time(parts)).unwrap_or(Micros(0))),
        to: dice.maybe(|dice| dice.time(parts)),
        limit: dice.below(12) + 1,
        offset: dice.below(9),
    };
    let mut all: Vec<(Micros, PartitionId, usize, &Part, &Known)> = Vec::new();
    for part in parts {
        for (offset, message) in part.messages.iter().enumerate() {
            let is_wanted = query.queue.as_deref().is_none_or(|queue| queue == part.queue)
                && query.partition.as_ref().is_none_or(|name| *name == part.name)
                && query.namespace.as_deref().is_none_or(str::is_empty)
                && query.status.is_none_or(|status| Some(status) == message.status)
                && query.from.is_none_or(|from| message.created >= from)
                && query.to.is_none_or(|to| message.created < to);
            if is_wanted {
                all.push((message.created, part.number, offset, part, message));
            }
        }
    }
    all.sort_by_key(|(created, number, offset, ..)| {
        std::cmp::Reverse((*created, *number, *offset))
    });
    let expected: Vec<_> = all
        .iter()
        .skip(query.offset)
        .take(query.limit)
        .map(|(created, _, offset, part, message)| {
            (
                part.queue,
                part.name.clone(),
                *offset as u64,
                *created,
                message.id.clone(),
                message.status,
            )
        })
        .collect();
    let page = rig.api().messages(query.clone()).await.unwrap();
    let found: Vec<_> = page
        .rows
        .iter()
        .map(|row| {
            let queue = QUEUES.into_iter().find(|queue| **queue == *row.queue).unwrap();
            let message = &row.message;
            let id = String::from_utf8(message.transaction_id.to_vec()).unwrap();
            (queue, row.partition.clone(), message.offset.0, message.created, id, Some(row.status))
        })
        .collect();
    assert_eq!(found, expected, "{query:?}");
    for row in &page.rows {
        assert_eq!(
            row.hash,
            queen_record::hash::tx_hash(std::str::from_utf8(&row.message.transaction_id).unwrap())
        );
    }
}

async fn check_offsets(rig: &Rig, parts: &[Part], dice: &mut Roll) {
    let query = OffsetQuery {
        queue: QUEUES[dice.below(3)].into(),
        partition: format!("p{}", dice.below(6)),
        at: dice.time(parts),
    };
    let part = parts.iter().find(|part| part.queue == query.queue && part.name == query.partition);
    let expected = part.and_then(|part| {
        let at = part.messages.iter().position(|message| message.created >= query.at)?;
        Some((at as u64, part.messages[at].created))
    });
    let found = rig.api().offsets(T, vec![query.clone()]).await.unwrap()[0];
    assert_eq!((found.found, found.unknown), (expected, query.queue == QUEUES[2]), "{query:?}");
}

async fn check_changed(rig: &Rig, parts: &[Part], dice: &mut Roll) {
    let queue = QUEUES[dice.below(2)];
    let since = dice.maybe(|dice| dice.time(parts));
    let limit = dice.below(4) + 1;
    let mut of_queue: Vec<&Part> = parts.iter().filter(|part| part.queue == queue).collect();
    of_queue.sort_by_key(|part| part.number);
    let expected: Vec<(String, i64, Micros)> = of_queue
        .iter()
        .map(|part| {
            let last = part.messages.last().unwrap().created;
            (part.name.clone(), i64::try_from(part.messages.len()).unwrap() - 1, last)
        })
        .filter(|(.., last)| since.is_none_or(|since| *last >= since))
        .collect();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let query = ChangedQuery { queue: queue.into(), since, after, limit };
        let mut changed = rig.api().changed(T, vec![query]).await.unwrap();
        let newest =
            parts.iter().flat_map(|part| &part.messages).map(|message| message.created).max();
        assert!(newest.is_none_or(|newest| changed.safe_time >= newest));
        let page = changed.pages.pop().unwrap().unwrap();
        assert!(page.partitions.len() <= limit);
        found.extend(
            page.partitions.into_iter().map(|row| (row.name, row.last_offset, row.last_write)),
        );
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected, "{since:?} {limit}");
}

/// Lags are what the positions and the messages say; they are exact while there are few partitions.
async fn check_groups(rig: &Rig, parts: &[Part]) {
    let now = rig.clock_now();
    let listed = rig.api().groups(T).await.unwrap();
    let lagging = rig.api().lagging(T, 0).await.unwrap();
    assert!(lagging.is_sorted_by_key(|row| row.oldest));
    let mut seen = 0;
    for group in [GROUPS[0], queue_mode()] {
        let positions = rig.api().positions(T, group.into(), None).await.unwrap();
        for queue in &QUEUES[..2] {
            let mine: Vec<_> =
                positions.iter().filter(|position| position.queue == *queue).collect();
            let row = listed.iter().find(|row| &*row.group == group && &*row.queue == *queue);
            let Some(row) = row else {
                assert!(mine.is_empty());
                continue;
            };
            seen += 1;
            let (mut lag, mut with_lag, mut longest) = (0, 0, 0);
            for position in &mine {
                let part = parts
                    .iter()
                    .find(|part| part.queue == *queue && part.name == position.partition);
                let left = &part.unwrap().messages
                    [usize::try_from(position.next.as_ref().unwrap().0).unwrap()..];
                let Some(oldest) = left.first() else { continue };
                (lag, with_lag) = (lag + left.len() as u64, with_lag + 1);
                let seconds = u64::try_from(now.0 - oldest.created.0).unwrap_or(0) / 1_000_000;
                longest = longest.max(seconds);
                let found = lagging.iter().find(|row| {
                    &*row.group == group
                        && &*row.queue == *queue
                        && row.partition == position.partition
                });
                assert_eq!(
                    found.map(|row| (row.lag, row.oldest)),
                    (oldest.created < now).then_some((left.len() as u64, oldest.created))
                );
            }
            assert_eq!((row.cursors, row.lag, row.with_lag), (mine.len() as u64, lag, with_lag));
            assert_eq!(row.lag_seconds, longest, "{row:?}");
            let named = mine
                .iter()
                .map(|position| ((*queue).to_owned(), position.partition.clone()))
                .collect();
            let again = rig.api().positions(T, group.into(), Some(named)).await.unwrap();
            assert_eq!(again.iter().collect::<Vec<_>>(), mine);
            let depth = rig
                .api()
                .depth(T, (*queue).into(), Some(group.into()), 100)
                .await
                .unwrap()
                .unwrap();
            let without: u64 = parts
                .iter()
                .filter(|part| {
                    part.queue == *queue
                        && mine.iter().all(|position| position.partition != part.name)
                })
                .map(|part| part.messages.len() as u64)
                .sum();
            assert_eq!(depth.total.pending, lag + without);
        }
    }
    assert_eq!(listed.len(), seen);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reads_show_what_the_model_says(
        ops in proptest::collection::vec(op(), 1..60),
        dice in proptest::collection::vec(any::<u32>(), 40..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(ops, dice));
    }
}
