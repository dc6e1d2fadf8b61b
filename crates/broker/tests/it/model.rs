//! A node against a naive model: random calls one after the other, with restarts, expiries and deletes in between.

use std::collections::BTreeMap;

use proptest::prelude::*;
use queen_broker::api::{AckStatus, Api, PopAnswer, Reads};
use queen_model::OptionsPatch;
use queen_record::ids::{PartitionId, Uuid};

use crate::support::{Rig, T, pop, set, statuses};

const QUEUE: &str = "q";
const GROUPS: [&str; 2] = ["g", "h"];
const RETRY_LIMIT: u32 = 2;
const LEASE_S: i64 = 10;
/// No multiple of it is a lease's length: no lease ends in the microsecond of a call.
const STEP_S: i64 = 3;

#[derive(Clone, Debug)]
enum Op {
    Push {
        partition: u8,
        ids: Vec<u8>,
    },
    Pop {
        group: usize,
        batch: u32,
        partitions: u32,
        commit: bool,
    },
    /// Acknowledge the first `upto` messages of a held batch, then possibly fail the next.
    Ack {
        held: usize,
        upto: usize,
        then: Option<AckStatus>,
    },
    AckStale {
        held: usize,
    },
    Extend {
        held: usize,
    },
    Advance(i64),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop_oneof![
        Just(None),
        Just(Some(AckStatus::Failed)),
        Just(Some(AckStatus::Retry)),
        Just(Some(AckStatus::DeadLetter)),
    ];
    prop_oneof![
        8 => (0u8..4, proptest::collection::vec(any::<u8>(), 1..6))
            .prop_map(|(partition, ids)| Op::Push { partition, ids }),
        8 => (0usize..2, 1u32..6, 1u32..4, proptest::bool::weighted(0.2))
            .prop_map(|(group, batch, partitions, commit)| Op::Pop { group, batch, partitions, commit }),
        8 => (any::<usize>(), 0usize..6, verdict).prop_map(|(held, upto, then)| Op::Ack { held, upto, then }),
        1 => any::<usize>().prop_map(|held| Op::AckStale { held }),
        1 => any::<usize>().prop_map(|held| Op::Extend { held }),
        2 => (1i64..4).prop_map(|steps| Op::Advance(steps * STEP_S)),
        1 => Just(Op::Restart),
    ]
}

#[derive(Clone, Debug, Default)]
struct Cursor {
    committed: i64,
    lease: Option<(Uuid, i64, i64)>,
    retries: u32,
}

#[derive(Default)]
struct Model {
    now_s: i64,
    logs: BTreeMap<String, Vec<String>>,
    cursors: BTreeMap<(usize, String), Cursor>,
    dead: Vec<String>,
}

/// One claim that a consumer of the test holds.
#[derive(Clone, Debug)]
struct Held {
    group: usize,
    partition: String,
    id: PartitionId,
    lease: Uuid,
    first: i64,
    ids: Vec<String>,
}

impl Model {
    fn cursor(&mut self, group: usize, partition: &str) -> &mut Cursor {
        let fresh = || Cursor { committed: -1, ..Cursor::default() };
        self.cursors.entry((group, partition.to_owned())).or_insert_with(fresh)
    }

    fn is_live(&mut self, held: &Held) -> bool {
        let now = self.now_s;
        let lease = self.cursor(held.group, &held.partition).lease;
        lease.is_some_and(|(lease, _, expires)| lease == held.lease && expires >= now)
    }

    /// Whether the group could be given something.
    fn any_ready(&mut self, group: usize) -> bool {
        let now = self.now_s;
        let partitions: Vec<(String, i64)> = self
            .logs
            .iter()
            .map(|(name, log)| (name.clone(), i64::try_from(log.len()).unwrap() - 1))
            .collect();
        partitions.into_iter().any(|(name, last)| {
            let cursor = self.cursor(group, &name);
            cursor.committed < last && cursor.lease.is_none_or(|(.., expires)| expires < now)
        })
    }
}

async fn run(ops: Vec<Op>) {
    let mut rig = Rig::new();
    let options = OptionsPatch {
        retry_limit: set(i32::try_from(RETRY_LIMIT).unwrap()),
        lease_time: set(i32::try_from(LEASE_S).unwrap()),
        ..Default::default()
    };
    rig.configure(QUEUE, options).await;
    let (mut model, mut held) = (Model::default(), Vec::<Held>::new());
    for op in ops {
        match op {
            Op::Push { partition, ids } => check_push(&rig, &mut model, partition, &ids).await,
            Op::Pop { group, batch, partitions, commit } => {
                let mut request = pop(QUEUE, GROUPS[group], batch);
                (request.partitions, request.commit_on_delivery) = (Some(partitions), commit);
                let answer = rig.api().pop(request).await.unwrap();
                held.extend(check_pop(&mut model, group, batch, &answer));
            }
            Op::Ack { held: at, upto, then } if !held.is_empty() => {
                let claim = held[at % held.len()].clone();
                check_ack(&rig, &mut model, &claim, upto, then).await;
            }
            Op::AckStale { held: at } if !held.is_empty() => {
                let claim = &held[at % held.len()];
                let acks = [(&*claim.ids[0], AckStatus::Completed)];
                let invented = Some(Uuid([7; 16]));
                let done = rig.ack(GROUPS[claim.group], invented, claim.id, &acks).await;
                assert!(done[0].result.as_ref().unwrap_err().contains("lease"));
            }
            Op::Extend { held: at } if !held.is_empty() => {
                let claim = held[at % held.len()].clone();
                let lease = claim.lease.to_string();
                let deadline = std::time::Duration::from_secs(20);
                let done = rig.api().extend(T, lease, LEASE_S, deadline).await.unwrap();
                assert_eq!(done.renewed > 0, any_live(&mut model, &held, claim.lease), "{claim:?}");
                let now = model.now_s;
                for cursor in model.cursors.values_mut() {
                    if let Some((lease, _, expires)) = &mut cursor.lease
                        && *lease == claim.lease
                        && *expires >= now
                    {
                        *expires = now + LEASE_S;
                    }
                }
            }
            Op::Advance(seconds) => {
                rig.advance_seconds(seconds);
                model.now_s += seconds;
            }
            Op::Restart => rig.restart(),
            Op::Ack { .. } | Op::AckStale { .. } | Op::Extend { .. } => {}
        }
    }
    let query = queen_broker::api::DeadLetterQuery { tenant: T, limit: 1000, ..Default::default() };
    let page = rig.api().dead_letters(query).await.unwrap();
    let mut filed: Vec<String> = page.rows.iter().map(|row| row.transaction_id.clone()).collect();
    filed.sort();
    model.dead.sort();
    assert_eq!(filed, model.dead);
}

fn any_live(model: &mut Model, held: &[Held], lease: Uuid) -> bool {
    let same: Vec<Held> = held.iter().filter(|claim| claim.lease == lease).cloned().collect();
    same.iter().any(|claim| model.is_live(claim))
}

async fn check_push(rig: &Rig, model: &mut Model, partition: u8, ids: &[u8]) {
    let name = format!("p{partition}");
    let texts: Vec<String> = ids.iter().map(|id| format!("t{id}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let log = model.logs.entry(name.clone()).or_default();
    let expected: Vec<(bool, u64)> = texts
        .iter()
        .map(|id| {
            if let Some(at) = log.iter().position(|known| known == id) {
                return (false, at as u64);
            }
            log.push((*id).to_owned());
            (true, log.len() as u64 - 1)
        })
        .collect();
    assert_eq!(statuses(&rig.push(QUEUE, &name, &texts).await), expected);
}

fn check_pop(model: &mut Model, group: usize, batch: u32, answer: &PopAnswer) -> Vec<Held> {
    if answer.claims.is_empty() {
        assert!(!model.any_ready(group), "something was ready for {}", GROUPS[group]);
        return Vec::new();
    }
    let total: usize = answer.claims.iter().map(|claim| claim.messages.len()).sum();
    assert!(total <= batch as usize);
    let now = model.now_s;
    let mut held = Vec::new();
    for claim in &answer.claims {
        let name = claim.partition.to_string();
        let log = model.logs[&name].clone();
        let cursor = model.cursor(group, &name);
        let leased = cursor.lease.is_some_and(|(.., expires)| expires >= now);
        assert!(!leased, "{name} is held by {:?}", cursor.lease);
        let first = cursor.committed + 1;
        let ids: Vec<String> = claim
            .messages
            .iter()
            .map(|message| String::from_utf8(message.transaction_id.to_vec()).unwrap())
            .collect();
        let from = usize::try_from(first).unwrap();
        assert_eq!(ids, log[from..from + ids.len()], "in order, without a gap");
        assert_eq!(claim.messages[0].offset.0, from as u64);
        let last = first + i64::try_from(ids.len()).unwrap() - 1;
        match answer.lease {
            Some(lease) => {
                cursor.lease = Some((lease, last, now + LEASE_S));
                let id = claim.partition_id;
                held.push(Held { group, partition: name, id, lease, first, ids });
            }
            None => {
                (cursor.committed, cursor.lease, cursor.retries) = (last, None, 0);
            }
        }
    }
    held
}

async fn check_ack(
    rig: &Rig,
    model: &mut Model,
    claim: &Held,
    upto: usize,
    then: Option<AckStatus>,
) {
    let upto = upto.min(claim.ids.len());
    let mut acks: Vec<(&str, AckStatus)> =
        claim.ids[..upto].iter().map(|id| (&**id, AckStatus::Completed)).collect();
    acks.extend(claim.ids.get(upto).zip(then).map(|(id, status)| (&**id, status)));
    if acks.is_empty() {
        return;
    }
    let live = model.is_live(claim);
    let done = rig.ack(GROUPS[claim.group], Some(claim.lease), claim.id, &acks).await;
    if !live {
        // Taken only when this very lease was settled to its end before.
        assert!(done.iter().all(|answer| {
            answer
                .result
                .as_ref()
                .map_or_else(|error| error.contains("lease"), |done| done.lease_released)
        }));
        return;
    }
    let cursor = model.cursor(claim.group, &claim.partition);
    let end = cursor.lease.unwrap().1;
    let position = |at: usize| claim.first + i64::try_from(at).unwrap();
    let done_to = position(upto) - 1;
    let failed = then.filter(|_| upto < claim.ids.len() && position(upto) > cursor.committed);
    cursor.committed = cursor.committed.max(done_to);
    match failed {
        None if cursor.committed == end => (cursor.lease, cursor.retries) = (None, 0),
        None | Some(AckStatus::Completed) => {}
        Some(AckStatus::Retry) => cursor.lease = None,
        Some(AckStatus::Failed) if cursor.retries < RETRY_LIMIT => {
            cursor.lease = None;
            cursor.retries += 1;
        }
        Some(AckStatus::Failed | AckStatus::DeadLetter) => {
            cursor.committed = position(upto);
            (cursor.lease, cursor.retries) = (None, 0);
            model.dead.push(claim.ids[upto].clone());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_node_does_what_the_model_says(ops in proptest::collection::vec(op(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(ops));
    }
}
