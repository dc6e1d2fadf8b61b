//! Transactions: all of it or nothing, whatever guard fails.

use queen_broker::api::{
    AckItem, AckStatus, Api, PopAnswer, PositionSet, PushBatch, PushItem, PushStatus,
    RollbackReason, Transaction, TransactionAck, TransactionAnswer,
};
use queen_model::OptionsPatch;
use queen_record::ids::Offset;

use crate::support::{DEADLINE, Rig, T, ids, queue_mode, set};

/// A transaction under construction.
#[derive(Default)]
struct Parts {
    acks: Vec<TransactionAck>,
    pushes: Vec<(&'static str, &'static str, String)>,
    positions: Vec<PositionSet>,
}

impl Parts {
    /// Acknowledges the first `count` messages of the answer's first claim.
    fn ack(mut self, group: &str, answer: &PopAnswer, count: usize, status: AckStatus) -> Self {
        let claim = &answer.claims[0];
        for message in &claim.messages[..count] {
            let item = AckItem {
                transaction_id: String::from_utf8(message.transaction_id.to_vec()).unwrap(),
                partition_id: Some(claim.partition_id),
                lease: answer.lease.map(|lease| lease.to_string()),
                status,
                error: None,
            };
            self.acks.push(TransactionAck { group: group.to_owned(), item });
        }
        self
    }

    fn push(mut self, queue: &'static str, partition: &'static str, id: &str) -> Self {
        self.pushes.push((queue, partition, id.to_owned()));
        self
    }

    fn position(mut self, queue: &str, partition: &str, offset: Option<u64>) -> Self {
        self.positions.push(PositionSet {
            queue: queue.to_owned(),
            partition: partition.to_owned(),
            group: "g".to_owned(),
            offset: offset.map(Offset),
            note: Some("noted".to_owned()),
            subscribe: None,
        });
        self
    }

    async fn run(self, rig: &Rig) -> TransactionAnswer {
        let items: Vec<PushItem<'_>> = self
            .pushes
            .iter()
            .map(|(queue, partition, id)| PushItem {
                queue,
                partition,
                transaction_id: Some(id),
                payload: b"1",
                producer_sub: None,
                trace_id: None,
            })
            .collect();
        let (acks, positions) = (self.acks, self.positions);
        let pushes = PushBatch::Items(&items);
        let call = Transaction { tenant: T, acks, pushes, positions };
        rig.api().transaction(call, DEADLINE).await.unwrap()
    }
}

fn refused(answer: &TransactionAnswer) -> RollbackReason {
    match answer {
        TransactionAnswer::RolledBack(rollback) => {
            assert!(rollback.error.contains("rolled back"), "{rollback:?}");
            rollback.reason
        }
        TransactionAnswer::Committed { .. } => panic!("{answer:?}"),
    }
}

fn statuses(answer: &TransactionAnswer) -> Vec<PushStatus> {
    match answer {
        TransactionAnswer::Committed { pushes, .. } => {
            pushes.iter().map(|push| push.status.clone()).collect()
        }
        TransactionAnswer::RolledBack(rollback) => panic!("{rollback:?}"),
    }
}

#[tokio::test]
async fn acks_and_pushes_to_many_queues_happen_together() {
    let rig = Rig::new();
    rig.push("in", "a", &["1", "2", "3"]).await;
    let taken = rig.pop("in", "g", 3).await;
    let answer = Parts::default()
        .ack("g", &taken, 3, AckStatus::Completed)
        .push("out", "x", "o1")
        .push("other", "y", "o2")
        .push("out", "x", "o3")
        .push("out", "x", "o1")
        .run(&rig)
        .await;
    let (queued, again) = (PushStatus::Queued, PushStatus::Duplicate(Offset(0)));
    let first = queued(Offset(0));
    assert_eq!(statuses(&answer), [first.clone(), first, queued(Offset(1)), again]);
    assert!(ids(&rig.pop("in", "g", 3).await).is_empty());
    assert_eq!(ids(&rig.pop("out", "g", 10).await), ["o1", "o3"]);
    assert_eq!(ids(&rig.pop("other", "g", 10).await), ["o2"]);
}

#[tokio::test]
async fn a_refused_ack_leaves_nothing_and_the_leases_run_on() {
    let rig = Rig::new();
    rig.push("in", "a", &["1", "2"]).await;
    rig.push("in", "b", &["3"]).await;
    let a = rig.pop("in", "g", 2).await;
    let b = rig.pop("in", "g", 1).await;
    let bundle = || {
        Parts::default()
            .ack("g", &a, 2, AckStatus::Completed)
            .ack("g", &b, 1, AckStatus::Completed)
            .push("out", "x", "o1")
    };
    let mut stale = bundle();
    stale.acks[2].item.lease = a.lease.map(|lease| lease.to_string());
    assert_eq!(refused(&stale.run(&rig).await), RollbackReason::RejectedAck);
    let mut unknown = bundle();
    unknown.acks[2].item.transaction_id = "never".to_owned();
    assert_eq!(refused(&unknown.run(&rig).await), RollbackReason::RejectedAck);
    assert!(ids(&rig.pop("out", queue_mode(), 1).await).is_empty());
    assert_eq!(statuses(&bundle().run(&rig).await), [PushStatus::Queued(Offset(0))]);
    // Sent again it is another transaction, and its leases are gone.
    assert_eq!(refused(&bundle().run(&rig).await), RollbackReason::RejectedAck);
}

#[tokio::test]
async fn a_stored_id_rolls_back_also_when_only_the_log_knows_it() {
    let mut rig = Rig::new();
    rig.push("out", "x", &["o1"]).await;
    rig.push("in", "a", &["1"]).await;
    rig.restart();
    let taken = rig.pop("in", "g", 1).await;
    let bundle = Parts::default().ack("g", &taken, 1, AckStatus::Completed).push("out", "x", "o1");
    assert_eq!(refused(&bundle.run(&rig).await), RollbackReason::Duplicate);
    let only_acks = Parts::default().ack("g", &taken, 1, AckStatus::Completed);
    assert!(statuses(&only_acks.run(&rig).await).is_empty());
}

#[tokio::test]
async fn acks_of_one_lease_are_one_decision_and_later_ones_see_earlier_ones() {
    let rig = Rig::new();
    rig.configure("in", OptionsPatch { retry_limit: set(0), ..Default::default() }).await;
    rig.push("in", "a", &["1", "2", "3", "4"]).await;
    let taken = rig.pop("in", "g", 4).await;
    let mut bundle = Parts::default().ack("g", &taken, 3, AckStatus::Completed);
    bundle.acks[1].item.status = AckStatus::Failed;
    let TransactionAnswer::Committed { acks, .. } = bundle.run(&rig).await else { panic!() };
    let dead: Vec<bool> = acks.iter().map(|ack| ack.dead_lettered).collect();
    assert_eq!(dead, [false, true, false]);
    assert_eq!(ids(&rig.pop("in", "g", 4).await), ["4"]);
    // Unfenced acks of the same cursor after a fenced one stand on what it left.
    rig.push("in", "b", &["5", "6"]).await;
    let taken = rig.pop("in", "h", 1).await;
    let pinned = rig.pop("in", "h", 1).await;
    assert_eq!((ids(&taken).len(), ids(&pinned).len()), (1, 1));
    let mut bundle = Parts::default().ack("h", &pinned, 1, AckStatus::Completed);
    let mut second = bundle.acks[0].clone();
    second.item.lease = None;
    bundle.acks.push(second);
    // The first call commits it; for the second it is at the cursor: a completed there is a no-op, which holds.
    assert!(matches!(bundle.run(&rig).await, TransactionAnswer::Committed { .. }));
}

#[tokio::test]
async fn positions_move_forget_and_are_refused() {
    let rig = Rig::new();
    rig.push("q", "a", &["1", "2", "3"]).await;
    let bundle = Parts::default().position("none", "a", Some(0));
    assert_eq!(refused(&bundle.run(&rig).await), RollbackReason::QueueNotFound);
    let bundle = Parts::default().position("q", "a", Some(4)).push("q", "a", "x");
    let TransactionAnswer::Committed { .. } = bundle.run(&rig).await else { panic!() };
    assert!(ids(&rig.pop("q", "g", 9).await).is_empty());
    let bundle = Parts::default().position("q", "a", Some(9));
    assert_eq!(refused(&bundle.run(&rig).await), RollbackReason::BadRequest);
    assert!(statuses(&Parts::default().position("q", "a", Some(1)).run(&rig).await).is_empty());
    let taken = rig.pop("q", "g", 9).await;
    assert_eq!(ids(&taken), ["2", "3", "x"]);
    // A position ends the lease that is there.
    assert!(statuses(&Parts::default().position("q", "a", Some(2)).run(&rig).await).is_empty());
    let stale = Parts::default().ack("g", &taken, 1, AckStatus::Completed);
    assert_eq!(refused(&stale.run(&rig).await), RollbackReason::RejectedAck);
    assert!(statuses(&Parts::default().position("q", "a", None).run(&rig).await).is_empty());
    assert_eq!(ids(&rig.pop("q", "g", 9).await), ["1", "2", "3", "x"]);
    // One in a partition that nobody wrote to makes it.
    let made = Parts::default().position("q", "new", Some(0)).position("q", "new", None);
    assert!(statuses(&made.run(&rig).await).is_empty());
    rig.push("q", "new", &["n"]).await;
    assert_eq!(ids(&rig.pop("q", "g", 9).await), ["n"]);
}

#[tokio::test]
async fn a_transaction_survives_a_restart_whole() {
    let mut rig = Rig::new();
    rig.push("in", "a", &["1"]).await;
    let taken = rig.pop("in", "g", 1).await;
    let bundle = Parts::default()
        .ack("g", &taken, 1, AckStatus::Completed)
        .push("out", "x", "o1")
        .position("in", "b", Some(0));
    assert_eq!(statuses(&bundle.run(&rig).await).len(), 1);
    rig.restart();
    assert!(ids(&rig.pop("in", "g", 1).await).is_empty());
    assert_eq!(ids(&rig.pop("out", "g", 1).await), ["o1"]);
}
