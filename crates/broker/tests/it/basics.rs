//! Push, pop, ack, and what a restart keeps of them.

use queen_broker::api::{
    AckDone, AckStatus, Api, DeadLetterQuery, MessageStatus, PartitionRef, Reads,
};
use queen_model::OptionsPatch;

use crate::support::{Rig, T, ids, queue_mode, set, statuses};

#[tokio::test]
async fn a_pushed_message_is_popped_acked_and_gone() {
    let mut rig = Rig::new();
    assert_eq!(statuses(&rig.push("orders", "a", &["1", "2"]).await), [(true, 0), (true, 1)]);
    let popped = rig.pop("orders", queue_mode(), 10).await;
    assert_eq!(ids(&popped), ["1", "2"]);
    let claim = &popped.claims[0];
    assert_eq!(&*claim.messages[0].data, b"{\"id\":\"1\"}");
    assert_eq!(claim.attempt, 1);
    assert!(rig.pop("orders", queue_mode(), 10).await.claims.is_empty(), "the batch is leased");

    rig.restart();
    assert!(rig.pop("orders", queue_mode(), 10).await.claims.is_empty(), "the lease survived");
    let done = rig
        .ack(queue_mode(), popped.lease, claim.partition_id, &[("2", AckStatus::Completed)])
        .await;
    let settled = AckDone { lease_released: true, dead_lettered: false, noop: false };
    assert_eq!(done[0].result, Ok(settled));

    rig.restart();
    assert!(rig.pop("orders", queue_mode(), 10).await.claims.is_empty(), "all is consumed");
    let again = rig
        .ack(queue_mode(), popped.lease, claim.partition_id, &[("2", AckStatus::Completed)])
        .await;
    assert_eq!(again[0].result, Ok(settled), "a repeated ack is answered the same");
    assert_eq!(statuses(&rig.push("orders", "a", &["3"]).await), [(true, 2)]);
}

#[tokio::test]
async fn an_expired_lease_gives_its_batch_back() {
    let rig = Rig::new();
    rig.push("q", "p", &["1"]).await;
    let first = rig.pop("q", queue_mode(), 1).await;
    rig.advance_seconds(61);
    let second = rig.pop("q", queue_mode(), 1).await;
    assert_eq!(ids(&second), ["1"]);
    assert_eq!(second.claims[0].attempt, 2);
    assert_ne!(first.lease, second.lease);
    let id = first.claims[0].partition_id;
    let stale = rig.ack(queue_mode(), first.lease, id, &[("1", AckStatus::Completed)]).await;
    assert!(stale[0].result.as_ref().unwrap_err().contains("lease"));
    let live = rig.ack(queue_mode(), second.lease, id, &[("1", AckStatus::Completed)]).await;
    assert!(live[0].result.is_ok());
}

#[tokio::test]
async fn an_exhausted_message_becomes_a_dead_letter() {
    let mut rig = Rig::new();
    rig.configure("q", OptionsPatch { retry_limit: set(1), ..Default::default() }).await;
    rig.push("q", "p", &["poison", "good"]).await;
    for expected in [false, true] {
        let popped = rig.pop("q", queue_mode(), 10).await;
        assert_eq!(ids(&popped), ["poison", "good"]);
        let id = popped.claims[0].partition_id;
        let acks = [("poison", AckStatus::Failed)];
        let done = rig.ack(queue_mode(), popped.lease, id, &acks).await;
        assert_eq!(done[0].result.as_ref().unwrap().dead_lettered, expected);
        rig.restart();
    }
    let query = DeadLetterQuery { tenant: T, limit: 10, ..Default::default() };
    let page = rig.api().dead_letters(query).await.unwrap();
    assert_eq!(page.total, 1);
    let letter = &page.rows[0];
    assert_eq!((&*letter.transaction_id, &*letter.error), ("poison", "boom"));
    assert_eq!(&*letter.payload, b"{\"id\":\"poison\"}");
    assert_eq!(letter.retries, 1);
    let rest = rig.pop("q", queue_mode(), 10).await;
    assert_eq!(ids(&rest), ["good"]);
}

#[tokio::test]
async fn an_unknown_id_fails_and_the_batch_is_still_acked() {
    let rig = Rig::new();
    rig.push("q", "p", &["1", "2", "3"]).await;
    let popped = rig.pop("q", queue_mode(), 3).await;
    let id = popped.claims[0].partition_id;
    let acks = [("never", AckStatus::Completed), ("nor this", AckStatus::Failed)];
    for answer in rig.ack(queue_mode(), popped.lease, id, &acks).await {
        assert!(answer.result.unwrap_err().contains("unresolv"));
    }
    let done = rig.ack(queue_mode(), popped.lease, id, &[("2", AckStatus::Completed)]).await;
    assert!(!done[0].result.as_ref().unwrap().lease_released);
    let below =
        [("1", AckStatus::Failed), ("1", AckStatus::Completed), ("3", AckStatus::Completed)];
    let done = rig.ack(queue_mode(), popped.lease, id, &below).await;
    assert!(done[0].result.as_ref().unwrap_err().contains("committed"));
    assert!(done[1].result.as_ref().unwrap().noop);
    assert!(done[2].result.as_ref().unwrap().lease_released);
    let unknown = rig.ack(queue_mode(), None, queen_record::ids::PartitionId(99), &acks).await;
    assert_eq!(unknown[0].result, Err("no partition 99".to_owned()));
}

#[tokio::test]
async fn message_detail_shows_who_consumed_it() {
    let rig = Rig::new();
    rig.push("q", "p", &["1"]).await;
    let partition = PartitionRef::Number(queen_record::ids::PartitionId(1));
    let detail = rig.api().message(T, partition, "1".into()).await.unwrap().unwrap();
    assert_eq!(detail.status, MessageStatus::Pending);
    let mut request = crate::support::pop("q", queue_mode(), 1);
    request.commit_on_delivery = true;
    let popped = rig.api().pop(request).await.unwrap();
    assert_eq!((popped.lease, ids(&popped)), (None, vec!["1".to_owned()]));
    let detail = rig.api().message(T, partition, "1".into()).await.unwrap().unwrap();
    assert_eq!(detail.status, MessageStatus::Completed);
    assert_eq!(detail.groups.len(), 1);
    assert!(detail.groups[0].consumed);
    assert!(rig.api().message(T, partition, "2".into()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_deleted_queue_starts_from_nothing() {
    let mut rig = Rig::new();
    rig.push("q", "p", &["1", "2"]).await;
    rig.pop("q", "g", 1).await;
    assert_eq!(rig.delete_queue("q").await, Ok(true));
    assert_eq!(rig.delete_queue("q").await, Ok(false));
    assert_eq!(statuses(&rig.push("q", "p", &["1"]).await), [(true, 0)]);
    rig.restart();
    assert_eq!(ids(&rig.pop("q", queue_mode(), 10).await), ["1"]);
    let detail = rig.api().queue(T, "q".into(), 10).await.unwrap().unwrap();
    assert_eq!(detail.partitions.len(), 1);
    assert_eq!(detail.summary.counts.unwrap().total, 1);
}
