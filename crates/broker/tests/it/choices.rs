//! Pops that choose: by labels, only the newest message, sizes by the autopilot.

use queen_broker::api::{
    AckStatus, Api, Chosen, PopAnswer, PopRequest, PopTarget, PushStatus, Subscribe,
};
use queen_model::OptionsPatch;

use crate::support::{Rig, T, ids, pop, set};

async fn take(rig: &Rig, request: PopRequest) -> PopAnswer {
    rig.api().pop(request).await.unwrap()
}

fn newest(queue: &str, group: &str) -> PopRequest {
    PopRequest { conflation: Some(true), partitions: None, ..pop(queue, group, 10) }
}

#[tokio::test]
async fn a_pop_by_labels_takes_from_every_queue_that_has_them() {
    let rig = Rig::new();
    for (queue, id) in [("billing.invoices", "1"), ("billing.mails", "2"), ("orders.mails", "3")] {
        rig.push(queue, "p", &[id]).await;
    }
    let labels = |namespace: Option<&str>, task: Option<&str>| PopRequest {
        target: PopTarget::Labels {
            namespace: namespace.map(str::to_owned),
            task: task.map(str::to_owned),
        },
        partitions: Some(10),
        ..pop("", "g", 10)
    };
    let mut found = ids(&take(&rig, labels(Some("billing"), None)).await);
    found.sort();
    assert_eq!(found, ["1", "2"]);
    assert_eq!(ids(&take(&rig, labels(None, Some("mails"))).await), ["3"]);
    assert!(ids(&take(&rig, labels(Some("billing"), Some("none"))).await).is_empty());
    // The group is registered on each, so that a later mode changes nothing.
    rig.push("billing.mails", "p2", &["4"]).await;
    let late = PopRequest { subscribe: Subscribe::New, ..labels(Some("billing"), Some("mails")) };
    assert_eq!(ids(&take(&rig, late).await), ["4"]);
}

#[tokio::test]
async fn labels_share_one_budget_and_one_lease() {
    let rig = Rig::new();
    for queue in ["n.a", "n.b", "n.c"] {
        rig.push(queue, "p", &["1", "2", "3"]).await;
    }
    let target = PopTarget::Labels { namespace: Some("n".into()), task: None };
    let request = PopRequest { target, partitions: Some(2), ..pop("", "g", 5) };
    let answer = take(&rig, request.clone()).await;
    assert_eq!((answer.claims.len(), ids(&answer).len()), (2, 5));
    let lease = answer.lease.unwrap().to_string();
    let extended = rig.api().extend(T, lease, 60, crate::support::DEADLINE).await.unwrap();
    assert_eq!(extended.renewed, 2);
    let rest = take(&rig, PopRequest { partitions: Some(9), ..request }).await;
    assert_eq!(ids(&rest).len(), 3);
}

#[tokio::test]
async fn only_the_newest_message_is_delivered_and_its_ack_settles_the_span() {
    let mut rig = Rig::new();
    rig.push("q", "a", &["1", "2", "3"]).await;
    rig.push("q", "b", &["4"]).await;
    let first = take(&rig, newest("q", "g")).await;
    let mut found = ids(&first);
    found.sort();
    assert_eq!((found, first.conflates), (vec!["3".to_owned(), "4".to_owned()], true));
    let claim = first.claims.iter().find(|claim| &*claim.partition == "a").unwrap();
    // Not acknowledged yet: another message does not come to another consumer.
    rig.push("q", "a", &["5"]).await;
    assert!(ids(&take(&rig, newest("q", "g")).await).is_empty());
    let results =
        rig.ack("g", first.lease, claim.partition_id, &[("3", AckStatus::Completed)]).await;
    assert!(results[0].result.as_ref().unwrap().lease_released);
    assert_eq!(ids(&take(&rig, newest("q", "g")).await), ["5"]);
    rig.restart();
    // The stored policy wins over the parameter, after a restart too.
    rig.push("q", "c", &["6", "7"]).await;
    let other = PopRequest { conflation: Some(false), ..newest("q", "g") };
    let answer = take(&rig, other).await;
    assert_eq!((ids(&answer), answer.conflates), (vec!["7".to_owned()], true));
}

#[tokio::test]
async fn a_newest_message_that_fails_comes_again_as_whatever_is_newest_then() {
    let rig = Rig::new();
    rig.push("q", "a", &["1", "2"]).await;
    let first = take(&rig, newest("q", "g")).await;
    assert_eq!((ids(&first), first.claims[0].attempt), (vec!["2".to_owned()], 1));
    let partition = first.claims[0].partition_id;
    rig.ack("g", first.lease, partition, &[("2", AckStatus::Retry)]).await;
    rig.push("q", "a", &["3"]).await;
    let second = take(&rig, newest("q", "g")).await;
    assert_eq!((ids(&second), second.claims[0].attempt), (vec!["3".to_owned()], 2));
}

#[tokio::test]
async fn a_delay_counts_for_the_newest_message_too() {
    let rig = Rig::new();
    rig.configure("q", OptionsPatch { delayed_processing: set(10), ..Default::default() }).await;
    rig.push("q", "a", &["1"]).await;
    rig.advance_seconds(5);
    rig.push("q", "a", &["2"]).await;
    assert!(ids(&take(&rig, newest("q", "g")).await).is_empty());
    rig.advance_seconds(6);
    let first = take(&rig, newest("q", "g")).await;
    assert_eq!(ids(&first), ["1"]);
    let partition = first.claims[0].partition_id;
    rig.ack("g", first.lease, partition, &[("1", AckStatus::Completed)]).await;
    assert!(ids(&take(&rig, newest("q", "g")).await).is_empty());
    rig.advance_seconds(6);
    assert_eq!(ids(&take(&rig, newest("q", "g")).await), ["2"]);
}

#[tokio::test]
async fn the_autopilot_shares_what_is_ready_and_leaves_what_is_given() {
    let rig = Rig::new();
    for partition in 0..12 {
        rig.push("q", &format!("p{partition}"), &["1"]).await;
    }
    let auto = PopRequest { autopilot: true, batch: None, partitions: None, ..pop("q", "g", 1) };
    let first = take(&rig, auto.clone()).await;
    assert_eq!(first.chosen, Some(Chosen { batch: 100, partitions: 12 }));
    assert_eq!(first.claims.len(), 12);
    for partition in 12..24 {
        rig.push("q", &format!("p{partition}"), &["1"]).await;
    }
    // The first consumer still works: half is left for it.
    let second = take(&rig, auto.clone()).await;
    assert_eq!((second.chosen.unwrap().partitions, second.claims.len()), (6, 6));
    let given = PopRequest { batch: Some(7), partitions: Some(2), ..auto };
    let third = take(&rig, given).await;
    assert_eq!(third.chosen, Some(Chosen { batch: 7, partitions: 2 }));
    assert_eq!(third.claims.len(), 2);
}

#[tokio::test]
async fn labels_follow_the_options_of_the_queue() {
    let rig = Rig::new();
    assert!(matches!(rig.push("q", "p", &["1"]).await[0].status, PushStatus::Queued(_)));
    let patch = OptionsPatch { namespace: set("late".to_owned()), ..Default::default() };
    rig.configure("q", patch).await;
    let target = PopTarget::Labels { namespace: Some("late".into()), task: None };
    assert_eq!(ids(&take(&rig, PopRequest { target, ..pop("", "g", 5) }).await), ["1"]);
}
