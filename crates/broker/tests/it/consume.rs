//! Groups, waiting, delays, subscriptions.

use std::time::Duration;

use queen_broker::api::{AckStatus, Api, PopRequest, PopTarget, Subscribe};
use queen_model::OptionsPatch;

use crate::support::{Rig, T, ids, pop, queue_mode, set};

const DEADLINE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_parked_pop_wakes_for_a_push() {
    let rig = Rig::new();
    for target in [
        PopTarget::Queue("q".into()),
        PopTarget::Partition { queue: "q2".into(), partition: "p".into() },
    ] {
        let queue = match &target {
            PopTarget::Queue(queue) | PopTarget::Partition { queue, .. } => queue.clone(),
            PopTarget::Labels { .. } => continue,
        };
        let request = PopRequest { target, wait: true, ..pop("", queue_mode(), 5) };
        let api = rig.api();
        let waiting = tokio::spawn(async move { api.pop(request).await.unwrap() });
        // Parked or not yet: either way the message must arrive.
        rig.push(&queue, "p", &["1"]).await;
        assert_eq!(ids(&waiting.await.unwrap()), ["1"]);
    }
}

#[tokio::test]
async fn an_ack_wakes_the_next_in_line() {
    let rig = Rig::new();
    rig.push("q", "p", &["1", "2"]).await;
    let first = rig.pop("q", "g", 1).await;
    let api = rig.api();
    let request = PopRequest { wait: true, ..pop("q", "g", 1) };
    let waiting = tokio::spawn(async move { api.pop(request).await.unwrap() });
    let id = first.claims[0].partition_id;
    rig.ack("g", first.lease, id, &[("1", AckStatus::Completed)]).await;
    assert_eq!(ids(&waiting.await.unwrap()), ["2"]);
}

#[tokio::test]
async fn the_budget_is_shared_by_partitions_and_groups_are_apart() {
    let rig = Rig::new();
    for partition in ["a", "b", "c"] {
        rig.push("q", partition, &["1", "2", "3", "4"]).await;
    }
    let mut request = pop("q", "g", 10);
    request.partitions = Some(3);
    let popped = rig.api().pop(request).await.unwrap();
    assert_eq!(popped.claims.iter().map(|claim| claim.messages.len()).sum::<usize>(), 10);
    assert_eq!(popped.claims.len(), 3);
    assert_eq!(rig.pop("q", "other", 4).await.claims.len(), 1);
}

#[tokio::test]
async fn a_new_group_skips_the_backlog_and_sees_later_partitions() {
    let mut rig = Rig::new();
    rig.push("q", "a", &["old"]).await;
    rig.advance_seconds(1);
    let mut request = pop("q", "g", 10);
    request.subscribe = Subscribe::New;
    assert!(rig.api().pop(request).await.unwrap().claims.is_empty());
    rig.push("q", "a", &["new"]).await;
    rig.push("q", "b", &["later"]).await;
    rig.restart();
    let mut all = Vec::new();
    for _ in 0..2 {
        all.extend(ids(&rig.pop("q", "g", 10).await));
    }
    all.sort();
    assert_eq!(all, ["later", "new"]);
    assert_eq!(ids(&rig.pop("q", "h", 10).await), ["old", "new"]);
}

#[tokio::test]
async fn a_delayed_message_comes_after_its_time() {
    let rig = Rig::new();
    rig.configure("q", OptionsPatch { delayed_processing: set(2), ..Default::default() }).await;
    rig.push("q", "p", &["1"]).await;
    assert!(rig.pop("q", queue_mode(), 10).await.claims.is_empty());
    rig.advance_seconds(1);
    rig.push("q", "p", &["2"]).await;
    assert!(rig.pop("q", queue_mode(), 10).await.claims.is_empty());
    // Entries of a clock that stands are a microsecond apart.
    rig.clock.advance_us(1_000_100);
    assert_eq!(ids(&rig.pop("q", queue_mode(), 10).await), ["1"]);
}

#[tokio::test]
async fn a_window_waits_for_quiet() {
    let rig = Rig::new();
    rig.configure("q", OptionsPatch { window_buffer: set(2), ..Default::default() }).await;
    rig.push("q", "p", &["1"]).await;
    rig.advance_seconds(1);
    rig.push("q", "p", &["2"]).await;
    rig.advance_seconds(1);
    assert!(rig.pop("q", queue_mode(), 10).await.claims.is_empty());
    rig.clock.advance_us(1_000_100);
    assert_eq!(ids(&rig.pop("q", queue_mode(), 10).await), ["1", "2"]);
}

#[tokio::test]
async fn a_lease_can_be_extended_while_it_lives() {
    let rig = Rig::new();
    rig.push("q", "p", &["1"]).await;
    let mut request = pop("q", "g", 1);
    request.lease_seconds = Some(10);
    let popped = rig.api().pop(request).await.unwrap();
    let lease = popped.lease.unwrap().to_string();
    let extended = rig.api().extend(T, lease.clone(), 60, DEADLINE).await.unwrap();
    assert_eq!(extended.renewed, 1);
    rig.advance_seconds(30);
    assert!(rig.pop("q", "g", 1).await.claims.is_empty());
    let id = popped.claims[0].partition_id;
    rig.ack("g", popped.lease, id, &[("1", AckStatus::Completed)]).await;
    let gone = rig.api().extend(T, lease, 60, DEADLINE).await.unwrap();
    assert_eq!((gone.renewed, gone.expires), (0, None));
}

#[tokio::test]
async fn a_deleted_group_registers_again() {
    let rig = Rig::new();
    rig.push("q", "p", &["1"]).await;
    let popped = rig.pop("q", "g", 1).await;
    let id = popped.claims[0].partition_id;
    rig.ack("g", popped.lease, id, &[("1", AckStatus::Completed)]).await;
    let deleted = rig.api().delete_group(T, "g".into(), None, true, DEADLINE).await.unwrap();
    assert_eq!((deleted.partitions, deleted.metadata), (1, true));
    assert_eq!(ids(&rig.pop("q", "g", 1).await), ["1"]);
    let nothing = rig.api().delete_group(T, "never".into(), None, true, DEADLINE).await.unwrap();
    assert_eq!((nothing.partitions, nothing.queues.len()), (0, 0));
}

#[tokio::test]
async fn a_deleted_group_wakes_those_who_waited_for_its_leases() {
    let pinned = PopTarget::Partition { queue: "q".into(), partition: "p".into() };
    for target in [PopTarget::Queue("q".into()), pinned] {
        for queue in [None, Some("q".to_owned())] {
            let rig = Rig::new();
            rig.push("q", "p", &["1"]).await;
            assert_eq!(ids(&rig.pop("q", "g", 1).await), ["1"]);
            let api = rig.api();
            let request = PopRequest { wait: true, target: target.clone(), ..pop("q", "g", 5) };
            let waiting = tokio::spawn(async move { api.pop(request).await.unwrap() });
            // Parked or not yet: either way the deletion must reach it.
            rig.api().delete_group(T, "g".into(), queue, true, DEADLINE).await.unwrap();
            assert_eq!(ids(&waiting.await.unwrap()), ["1"]);
        }
    }
}

#[tokio::test]
async fn a_dropped_pop_leaves_no_lease() {
    let rig = Rig::new();
    for round in 0..30 {
        let api = rig.api();
        let request = PopRequest { wait: true, ..pop("q", "g", 5) };
        let waiting = tokio::spawn(async move { api.pop(request).await });
        let id = format!("{round}");
        let pushed = [&*id];
        let push = rig.push("q", "p", &pushed);
        waiting.abort();
        push.await;
        // Whether the claim was made or not, the next pop gets the message.
        let request = PopRequest { wait: true, ..pop("q", "g", 5) };
        let popped = rig.api().pop(request).await.unwrap();
        assert_eq!(ids(&popped), pushed);
        let claim = &popped.claims[0];
        assert_eq!(claim.attempt, 1, "round {round}");
        rig.ack("g", popped.lease, claim.partition_id, &[(&id, AckStatus::Completed)]).await;
    }
}
