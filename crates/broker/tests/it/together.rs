//! Calls that meet in one round, and callers that wait while the world changes.

use std::time::Duration;

use queen_broker::api::{
    AckStatus, Api, CallError, DeadLetterQuery, PopAnswer, PopRequest, PopTarget, PushBatch,
    PushItem, Reads, Subscribe,
};
use queen_model::OptionsPatch;
use tokio::task::JoinHandle;

use crate::support::{Rig, T, ids, pop, queue_mode, set, statuses};

const DEADLINE: Duration = Duration::from_secs(20);

fn waiting(rig: &Rig, request: PopRequest) -> JoinHandle<PopAnswer> {
    let api = rig.api();
    let request = PopRequest { wait: true, ..request };
    tokio::spawn(async move { api.pop(request).await.unwrap() })
}

fn pinned(queue: &str, partition: &str, group: &str) -> PopRequest {
    let target = PopTarget::Partition { queue: queue.into(), partition: partition.into() };
    PopRequest { target, ..pop(queue, group, 10) }
}

/// Waits until the node has taken everything that was sent to it before.
async fn settle(rig: &Rig) {
    for _ in 0..3 {
        tokio::task::yield_now().await;
        rig.configure("settle", OptionsPatch::default()).await;
    }
}

#[tokio::test]
async fn deletes_of_one_group_and_queue_may_meet() {
    let mut rig = Rig::new();
    for round in 0..60 {
        rig.push("q", "p", &[&*format!("{round}")]).await;
        rig.pop("q", "g", 1).await;
        let api = rig.api();
        let group = |metadata| api.delete_group(T, "g".into(), None, metadata, DEADLINE);
        let on_queue = || api.delete_group(T, "g".into(), Some("q".into()), true, DEADLINE);
        let queue = || api.delete_queue(T, "q".into(), DEADLINE);
        let popped = || api.pop(pop("q", "g", 1));
        let answered = tokio::try_join!(
            group(true),
            group(round % 2 == 0),
            popped(),
            queue(),
            on_queue(),
            popped(),
            group(false)
        );
        assert!(answered.is_ok(), "round {round}: {answered:?}");
    }
    rig.restart();
    assert_eq!(statuses(&rig.push("q", "p", &["after"]).await).len(), 1);
}

#[tokio::test]
async fn pushes_that_ask_the_log_for_each_others_ids_end() {
    let rig = Rig::new();
    for round in 0..40 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        rig.push("q", "p", &[&a]).await;
        let (one, both) = ([&*b], [&*b, &*a]);
        let racers = tokio::join!(
            rig.push("q", "p", &one),
            rig.push("q", "p", &both),
            rig.push("q", "p", &both),
            rig.push("q", "p", &both)
        );
        let all = [racers.0, racers.1, racers.2, racers.3];
        let stored = all.iter().flat_map(|answers| statuses(answers)).filter(|s| s.0).count();
        assert_eq!(stored, 1, "b is stored once, a was stored before: {all:?}");
    }
}

#[tokio::test]
async fn a_pinned_pop_wakes_for_every_message() {
    let rig = Rig::new();
    for n in 0..4 {
        let id = format!("{n}");
        let parked = waiting(&rig, pinned("q", "p", "g"));
        settle(&rig).await;
        rig.push("q", "p", &[&id]).await;
        let popped = parked.await.unwrap();
        assert_eq!(ids(&popped), std::slice::from_ref(&id));
        let partition = popped.claims[0].partition_id;
        // The next one waits for the lease to end.
        let parked = waiting(&rig, pinned("q", "p", "g"));
        rig.push("q", "p", &[&*format!("more-{n}")]).await;
        rig.ack("g", popped.lease, partition, &[(&id, AckStatus::Completed)]).await;
        let popped = parked.await.unwrap();
        assert_eq!(ids(&popped), [format!("more-{n}")]);
        let more = format!("more-{n}");
        rig.ack("g", popped.lease, partition, &[(&more, AckStatus::Completed)]).await;
    }
}

#[tokio::test]
async fn a_pinned_new_pop_sees_the_first_message_of_a_partition_made_meanwhile() {
    let rig = Rig::new();
    for queue in ["missing", "there"] {
        if queue == "there" {
            rig.push(queue, "other", &["0"]).await;
        }
        let parked =
            waiting(&rig, PopRequest { subscribe: Subscribe::New, ..pinned(queue, "p", "g") });
        settle(&rig).await;
        rig.push(queue, "p", &["1"]).await;
        assert_eq!(ids(&parked.await.unwrap()), ["1"]);
    }
    // And one that begins at the end stays where it began.
    rig.push("end", "p", &["old"]).await;
    let new = || PopRequest { subscribe: Subscribe::New, ..pinned("end", "p", "g") };
    rig.advance_seconds(1);
    assert!(rig.api().pop(new()).await.unwrap().claims.is_empty());
    rig.push("end", "p", &["new"]).await;
    rig.advance_seconds(1);
    assert_eq!(ids(&rig.api().pop(new()).await.unwrap()), ["new"]);
}

#[tokio::test]
async fn a_parked_new_pop_outlives_its_queue_and_its_group() {
    let rig = Rig::new();
    rig.push("q", "p", &["0"]).await;
    let new = || PopRequest { subscribe: Subscribe::New, ..pop("q", "g", 10) };
    rig.advance_seconds(1);
    let parked = waiting(&rig, new());
    settle(&rig).await;
    rig.delete_queue("q").await.unwrap();
    rig.push("q", "p", &["1"]).await;
    assert_eq!(ids(&parked.await.unwrap()), ["1"]);

    rig.advance_seconds(100);
    let popped = rig.pop("q", "g", 10).await;
    let partition = popped.claims[0].partition_id;
    rig.ack("g", popped.lease, partition, &[("1", AckStatus::Completed)]).await;
    rig.advance_seconds(1);
    let parked = waiting(&rig, new());
    settle(&rig).await;
    rig.api().delete_group(T, "g".into(), None, true, DEADLINE).await.unwrap();
    rig.push("q", "p", &["2"]).await;
    assert_eq!(ids(&parked.await.unwrap()), ["2"]);
}

#[tokio::test]
async fn a_group_that_is_deleted_while_it_acks_starts_over() {
    let rig = Rig::new();
    for round in 0..40 {
        let queue = format!("q{round}");
        rig.push(&queue, "p", &["1", "2"]).await;
        let popped = rig.pop(&queue, "g", 2).await;
        let partition = popped.claims[0].partition_id;
        let acks = [("2", AckStatus::Completed)];
        let api = rig.api();
        let (_, deleted, _) = tokio::join!(
            rig.pop(&queue, "g", 2),
            api.delete_group(T, "g".into(), Some(queue.clone()), true, DEADLINE),
            rig.ack("g", popped.lease, partition, &acks)
        );
        deleted.unwrap();
        rig.advance_seconds(100);
        assert_eq!(ids(&rig.pop(&queue, "g", 2).await), ["1", "2"], "round {round}");
    }
}

#[tokio::test]
async fn dead_letters_outlive_their_group_and_are_filed_on_demand() {
    let mut rig = Rig::new();
    let none = OptionsPatch {
        dead_letter_queue: set(false),
        dlq_after_max_retries: set(false),
        retry_limit: set(0),
        ..Default::default()
    };
    rig.configure("q", none).await;
    rig.push("q", "p", &["dropped", "filed", "done"]).await;
    let popped = rig.pop("q", "g", 3).await;
    let partition = popped.claims[0].partition_id;
    let acks = [
        ("dropped", AckStatus::Failed),
        ("filed", AckStatus::DeadLetter),
        ("done", AckStatus::Completed),
    ];
    let done = rig.ack("g", popped.lease, partition, &acks).await;
    let filed: Vec<bool> =
        done.iter().map(|answer| answer.result.as_ref().unwrap().dead_lettered).collect();
    assert_eq!(filed, [false, true, false]);
    rig.api().delete_group(T, "g".into(), None, true, DEADLINE).await.unwrap();
    rig.restart();
    let query = DeadLetterQuery { tenant: T, limit: 10, ..Default::default() };
    let page = rig.api().dead_letters(query).await.unwrap();
    assert_eq!(page.rows.iter().map(|row| &*row.transaction_id).collect::<Vec<_>>(), ["filed"]);
}

#[tokio::test]
async fn a_shorter_delay_frees_what_waited_for_the_longer_one() {
    let rig = Rig::new();
    rig.configure("q", OptionsPatch { delayed_processing: set(3600), ..Default::default() }).await;
    rig.push("q", "p", &["1"]).await;
    assert!(rig.pop("q", queue_mode(), 1).await.claims.is_empty());
    let parked = waiting(&rig, pop("q", queue_mode(), 1));
    settle(&rig).await;
    rig.configure("q", OptionsPatch { delayed_processing: set(0), ..Default::default() }).await;
    assert_eq!(ids(&parked.await.unwrap()), ["1"]);
}

#[tokio::test]
async fn repeats_name_the_next_message_and_names_are_limited_on_every_call() {
    let rig = Rig::new();
    rig.configure("q", OptionsPatch { dedup_window_seconds: set(0), ..Default::default() }).await;
    for _ in 0..3 {
        rig.push("q", "p", &["same"]).await;
    }
    let popped = rig.pop("q", "g", 3).await;
    let partition = popped.claims[0].partition_id;
    let acks = [("same", AckStatus::Completed); 3];
    let done = rig.ack("g", popped.lease, partition, &acks).await;
    assert!(done.iter().all(|answer| answer.result.as_ref().unwrap().lease_released));
    rig.advance_seconds(1000);
    assert!(rig.pop("q", "g", 3).await.claims.is_empty());

    let long = "g".repeat(412);
    let item = queen_broker::api::AckItem {
        transaction_id: "same".into(),
        partition_id: Some(partition),
        lease: None,
        status: AckStatus::Completed,
        error: None,
    };
    let acked = rig.api().ack(T, long.clone(), vec![item], DEADLINE).await;
    assert!(matches!(acked, Err(CallError::Refused(_))), "{acked:?}");
    let deleted = rig.api().delete_group(T, long, None, true, DEADLINE).await;
    assert!(matches!(deleted, Err(CallError::Refused(_))), "{deleted:?}");
}

/// What the planner takes, apply and the checkpoint must take: the longest names that there may be make the longest keys.
#[tokio::test]
async fn trap_t8_the_longest_names_reach_the_checkpoint_and_longer_ones_reach_nothing() {
    let mut rig = Rig::new();
    // A queue's name and a partition's, or a group's, make one key.
    let queue = "ü".repeat(100);
    let [partition, group] = ["p", "g"].map(|first| format!("{first}{}", "ü".repeat(105)));
    assert_eq!((queue.len() + partition.len(), queue.len() + group.len()), (411, 411));
    rig.push(&queue, &partition, &["a", "b"]).await;
    let popped = rig.pop(&queue, &group, 2).await;
    let id = popped.claims[0].partition_id;
    let acks = [("a", AckStatus::DeadLetter), ("b", AckStatus::Completed)];
    let done = rig.ack(&group, popped.lease, id, &acks).await;
    assert!(done.iter().all(|answer| answer.result.is_ok()), "{done:?}");
    // A stop writes a checkpoint of all of it, and the start reads it.
    rig.restart();
    assert_eq!(statuses(&rig.push(&queue, &partition, &["a", "c"]).await), [(false, 0), (true, 2)]);
    assert_eq!(ids(&rig.pop(&queue, &group, 9).await), ["c"]);
    let longer = partition + "x";
    let item = PushItem {
        queue: &queue,
        partition: &longer,
        transaction_id: Some("a"),
        payload: b"1",
        producer_sub: None,
        trace_id: None,
    };
    let pushed = rig.api().push(T, PushBatch::Items(&[item]), DEADLINE).await;
    assert!(matches!(pushed, Err(CallError::Refused(_))), "{pushed:?}");
    let popped = rig.api().pop(pop(&queue, &(group + "x"), 1)).await;
    assert!(matches!(popped, Err(CallError::Refused(_))), "{popped:?}");
}
