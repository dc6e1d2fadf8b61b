//! Dead letters that are replayed or deleted, and cursors that are moved by hand.

use queen_broker::api::{
    AckStatus, Api, DeadLetterQuery, LetterRef, LetterSelect, PartitionRef, PopRequest, Reads,
    ReplayEnd, ReplayTo, Seek, SeekTo, Subscribe,
};
use queen_model::OptionsPatch;
use queen_record::ids::{Micros, PartitionId, Uuid};

use crate::support::{DEADLINE, Rig, T, ids, pop, set};

/// Pushes a message and gives up on it; returns its partition.
async fn bury(rig: &Rig, queue: &str, id: &str) -> PartitionId {
    rig.push(queue, "p", &[id]).await;
    let taken = rig.pop(queue, "g", 1).await;
    let partition = taken.claims[0].partition_id;
    rig.ack("g", taken.lease, partition, &[(id, AckStatus::DeadLetter)]).await;
    partition
}

async fn letters(rig: &Rig) -> Vec<(Uuid, String)> {
    let query = DeadLetterQuery { tenant: T, limit: 100, ..DeadLetterQuery::default() };
    let page = rig.api().dead_letters(query).await.unwrap();
    page.rows.into_iter().map(|row| (row.id, row.transaction_id)).collect()
}

async fn replay(rig: &Rig, letter: LetterRef, to: ReplayTo) -> Option<ReplayEnd> {
    rig.api().replay(T, letter, to, DEADLINE).await.unwrap().map(|replay| replay.end)
}

#[tokio::test]
async fn a_replay_moves_the_letter_and_is_stored_once() {
    let mut rig = Rig::new();
    let partition = bury(&rig, "q", "1").await;
    bury(&rig, "q", "2").await;
    let first = letters(&rig).await[1].0;
    let end = replay(&rig, LetterRef::Id(first), ReplayTo::default()).await;
    assert!(matches!(end, Some(ReplayEnd::Moved(_))), "{end:?}");
    assert_eq!(ids(&rig.pop("q", "g", 9).await), [format!("dlq:{first}")]);
    assert_eq!(replay(&rig, LetterRef::Id(first), ReplayTo::default()).await, None);
    // By its message, to another place; and after a restart it is gone too.
    let by_message = |id: &str| LetterRef::Message {
        partition: PartitionRef::Number(partition),
        transaction_id: id.to_owned(),
    };
    let to = ReplayTo { queue: Some("other".into()), partition: None };
    let end = replay(&rig, by_message("2"), to).await;
    assert!(matches!(end, Some(ReplayEnd::Moved(_))), "{end:?}");
    assert_eq!(ids(&rig.pop("other", "h", 9).await).len(), 1);
    rig.restart();
    assert!(letters(&rig).await.is_empty());
    assert_eq!(replay(&rig, by_message("1"), ReplayTo::default()).await, None);
}

#[tokio::test]
async fn a_copy_that_is_there_keeps_the_letter() {
    let rig = Rig::new();
    bury(&rig, "q", "1").await;
    let letter = letters(&rig).await[0].0;
    rig.push("q", "p", &[&format!("dlq:{letter}")]).await;
    let end = replay(&rig, LetterRef::Id(letter), ReplayTo::default()).await;
    assert!(matches!(end, Some(ReplayEnd::Duplicate(_))), "{end:?}");
    assert_eq!(letters(&rig).await.len(), 1);
    let to = ReplayTo { queue: Some("n".repeat(500)), partition: None };
    let end = replay(&rig, LetterRef::Id(letter), to).await;
    assert!(matches!(end, Some(ReplayEnd::Refused(_))), "{end:?}");
}

#[tokio::test]
async fn letters_are_deleted_by_queue_group_and_message() {
    let rig = Rig::new();
    let partition = bury(&rig, "q", "1").await;
    bury(&rig, "q", "2").await;
    bury(&rig, "r", "3").await;
    let delete = |select| {
        let api = rig.api();
        async move { api.delete_letters(T, select, DEADLINE).await.unwrap() }
    };
    let of_queue = |queue: &str, group: Option<&str>| LetterSelect::Queue {
        queue: queue.to_owned(),
        group: group.map(str::to_owned),
    };
    assert_eq!(delete(of_queue("none", None)).await, 0);
    assert_eq!(delete(of_queue("q", Some("other"))).await, 0);
    let of_message = LetterSelect::Message {
        partition: PartitionRef::Number(partition),
        transaction_id: "1".to_owned(),
    };
    assert_eq!(delete(of_message.clone()).await, 1);
    assert_eq!(delete(of_message).await, 0);
    assert_eq!(delete(of_queue("q", Some("g"))).await, 1);
    let left: Vec<String> = letters(&rig).await.into_iter().map(|letter| letter.1).collect();
    assert_eq!(left, ["3"]);
    rig.delete_queue("r").await.unwrap();
    assert_eq!(delete(of_queue("r", None)).await, 0);
}

fn seek(partition: Option<&str>, to: SeekTo) -> Seek {
    Seek {
        tenant: T,
        group: "g".into(),
        queue: "q".into(),
        partition: partition.map(str::to_owned),
        to,
    }
}

#[tokio::test]
async fn a_group_seeks_to_a_time_and_to_the_end() {
    let rig = Rig::new();
    let moved = |seek| {
        let api = rig.api();
        async move { api.seek(seek, DEADLINE).await.unwrap() }
    };
    assert_eq!(moved(seek(None, SeekTo::End)).await, None);
    rig.push("q", "a", &["1"]).await;
    rig.advance_seconds(10);
    rig.push("q", "a", &["2"]).await;
    rig.push("q", "b", &["3"]).await;
    let taken = rig.pop("q", "g", 9).await;
    // The newest message of the partition that was taken is after any time seen so far.
    let middle = taken.claims[0].messages.last().unwrap().created;
    assert_eq!(moved(seek(None, SeekTo::End)).await, Some(2));
    assert!(ids(&rig.pop("q", "g", 9).await).is_empty());
    let stale =
        rig.ack("g", taken.lease, taken.claims[0].partition_id, &[("2", AckStatus::Completed)]);
    assert!(stale.await[0].result.is_err(), "a seek ends the lease");
    assert_eq!(moved(seek(Some("a"), SeekTo::Time(middle))).await, Some(1));
    assert_eq!(ids(&rig.pop("q", "g", 9).await), ["2"]);
    assert_eq!(moved(seek(Some("a"), SeekTo::Time(Micros(0)))).await, Some(1));
    assert_eq!(ids(&rig.pop("q", "g", 9).await), ["1", "2"]);
    assert_eq!(moved(seek(Some("a"), SeekTo::Time(Micros(i64::MAX)))).await, Some(1));
    assert!(ids(&rig.pop("q", "g", 9).await).is_empty());
    assert_eq!(moved(seek(Some("none"), SeekTo::End)).await, None);
}

#[tokio::test]
async fn a_seek_wakes_a_parked_pop() {
    let rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    rig.api().seek(seek(None, SeekTo::End), DEADLINE).await.unwrap();
    let api = rig.api();
    let request = PopRequest { wait: true, ..pop("q", "g", 1) };
    let waiting = tokio::spawn(async move { api.pop(request).await.unwrap() });
    // Parked or not yet: either way the seek must reach it.
    rig.api().seek(seek(None, SeekTo::Time(Micros(0))), DEADLINE).await.unwrap();
    assert_eq!(ids(&waiting.await.unwrap()), ["1"]);
}

#[tokio::test]
async fn a_changed_subscription_counts_for_partitions_without_a_cursor() {
    let rig = Rig::new();
    let new = PopRequest { subscribe: Subscribe::New, ..pop("q", "g", 9) };
    rig.push("q", "a", &["1"]).await;
    assert!(ids(&rig.api().pop(new.clone()).await.unwrap()).is_empty());
    let changed = rig.api().resubscribe(T, "g".into(), Micros(1), DEADLINE).await.unwrap();
    assert_eq!(changed, 1);
    assert_eq!(rig.api().resubscribe(T, "h".into(), Micros(1), DEADLINE).await.unwrap(), 0);
    assert_eq!(ids(&rig.api().pop(new).await.unwrap()), ["1"]);
}

#[tokio::test]
async fn a_letter_deleted_with_its_queue_is_not_deleted_twice() {
    let rig = Rig::new();
    rig.configure("q", OptionsPatch { retry_limit: set(0), ..Default::default() }).await;
    bury(&rig, "q", "1").await;
    let select = LetterSelect::Queue { queue: "q".into(), group: None };
    let (api, other) = (rig.api(), rig.api());
    let letters = tokio::spawn(async move { api.delete_letters(T, select, DEADLINE).await });
    let queue = tokio::spawn(async move { other.delete_queue(T, "q".into(), DEADLINE).await });
    letters.await.unwrap().unwrap();
    assert!(queue.await.unwrap().unwrap());
    rig.push("q", "p", &["1"]).await;
    assert_eq!(ids(&rig.pop("q", "g", 1).await), ["1"]);
}
