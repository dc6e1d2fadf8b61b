//! What retention removes, and what everybody else sees of it.

use std::time::{Duration, Instant};

use queen_broker::api::{
    AckAnswer, AckStatus, Api, FetchEntry, FetchError, FetchRequest, Fetched, QueueDetail, Reads,
    Seek, SeekTo,
};
use queen_broker::cycle::CycleLimits;
use queen_model::OptionsPatch;
use queen_record::ids::PartitionId;

use crate::support::{DEADLINE, Rig, T, ids, queue_mode, set, statuses};

/// Steps move over up to three pushes; hashes are kept as long as a queue's window says.
fn rig() -> Rig {
    let cycle = CycleLimits { hash_window_min_s: 0, cleanup_s: None, ..CycleLimits::default() };
    Rig::with_retention(3, cycle)
}

fn retained(seconds: i32) -> OptionsPatch {
    OptionsPatch { retention_enabled: set(true), retention_seconds: set(seconds), ..window(0) }
}

fn completed(seconds: i32) -> OptionsPatch {
    OptionsPatch {
        retention_enabled: set(true),
        completed_retention_seconds: set(seconds),
        ..window(0)
    }
}

fn window(seconds: i32) -> OptionsPatch {
    OptionsPatch { dedup_window_seconds: set(seconds), ..OptionsPatch::default() }
}

async fn fetch(rig: &Rig, queue: &str, offset: u64) -> Fetched {
    let entry = FetchEntry {
        queue: queue.to_owned(),
        partition: "p".to_owned(),
        offset,
        bytes_max: 1 << 20,
    };
    let request = FetchRequest {
        tenant: T,
        entries: vec![entry],
        bytes_max: 1 << 20,
        wait: Duration::ZERO,
        bytes_min: 1,
    };
    rig.api().fetch(request).await.unwrap().remove(0)
}

async fn detail(rig: &Rig, queue: &str) -> QueueDetail {
    rig.api().queue(T, queue.to_owned(), 100).await.unwrap().unwrap()
}

async fn start(rig: &Rig, queue: &str) -> u64 {
    fetch(rig, queue, 0).await.bounds.log_start
}

/// Waits until the log of `queue/p` starts here, and is at rest there for a few walks.
async fn wait_start(rig: &Rig, queue: &str, expected: u64) {
    let until = Instant::now() + DEADLINE;
    while start(rig, queue).await != expected {
        assert!(Instant::now() < until, "it starts at {}, not {expected}", start(rig, queue).await);
        turn(rig).await;
    }
}

/// Lets the walk come by: it goes by the node's clock.
async fn turn(rig: &Rig) {
    rig.clock.advance_us(1000);
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// Several walks pass and nothing moves: what must not be removed is still there.
async fn stays(rig: &Rig, queue: &str, expected: u64) {
    // Another partition that is due shows that walks have passed.
    rig.configure("probe", retained(1)).await;
    let next = fetch(rig, "probe", 0).await.bounds.high_watermark;
    rig.push("probe", "p", &[&format!("probe-{next}")]).await;
    rig.advance_seconds(2);
    wait_start(rig, "probe", next + 1).await;
    assert_eq!(start(rig, queue).await, expected);
}

fn done(answers: &[AckAnswer]) -> bool {
    answers.iter().all(|answer| answer.result.is_ok())
}

async fn partition(rig: &Rig, queue: &str) -> PartitionId {
    let taken = rig.pop(queue, "look", 1).await;
    let id = taken.claims[0].partition_id;
    rig.ack("look", taken.lease, id, &[(&ids(&taken)[0], AckStatus::Retry)]).await;
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn old_messages_go_and_reads_below_say_so() {
    let mut rig = rig();
    rig.configure("q", retained(60)).await;
    for n in 0..8 {
        rig.push("q", "p", &[&format!("a{n}"), &format!("b{n}")]).await;
        rig.advance_seconds(10);
    }
    // 81 seconds after the first push those made 60 or more seconds ago are the first three.
    rig.advance_seconds(1);
    wait_start(&rig, "q", 6).await;
    let before = detail(&rig, "q").await;
    assert_eq!(
        (before.summary.counts.unwrap().total, before.summary.counts.unwrap().pending),
        (10, 10)
    );
    let refused = fetch(&rig, "q", 5).await;
    assert_eq!(refused.error, Some(FetchError::OffsetOutOfRange));
    assert_eq!((refused.bounds.log_start, refused.bounds.high_watermark), (6, 16));
    assert_eq!(fetch(&rig, "q", 6).await.messages.len(), 10);
    rig.restart();
    assert_eq!(start(&rig, "q").await, 6);
    assert_eq!(detail(&rig, "q").await.summary.retained_bytes, before.summary.retained_bytes);
    let taken = rig.pop("q", "g", 100).await;
    assert_eq!(ids(&taken)[0], "a3");
    assert_eq!(taken.claims[0].messages.len(), 10);
    // All of it goes, in steps of three pushes, and the counter comes to nothing.
    rig.advance_seconds(500);
    wait_start(&rig, "q", 16).await;
    let after = detail(&rig, "q").await;
    assert_eq!(
        (
            after.summary.retained_bytes,
            after.summary.counts.unwrap().total,
            after.summary.counts.unwrap().pending
        ),
        (0, 0, 0)
    );
    rig.push("q", "p", &["late"]).await;
    let found = fetch(&rig, "q", 16).await;
    assert_eq!((found.messages.len(), found.messages[0].offset.0), (1, 16));
    assert!(detail(&rig, "q").await.summary.retained_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_bytes_are_those_of_what_is_left() {
    let rig = rig();
    rig.configure("q", retained(60)).await;
    rig.configure("same", window(0)).await;
    let big = format!("{{\"text\":\"{}\"}}", "abc".repeat(700));
    for n in 0..6 {
        let (small, large) = (format!("s{n}"), format!("l{n}"));
        let items = [(&*small, "1"), (&*large, &*big)];
        let items = if n % 2 == 0 { &items[..1] } else { &items[..] };
        rig.push_payloads("q", "p", items).await;
        if n >= 3 {
            rig.push_payloads("same", "p", items).await;
        }
        rig.advance_seconds(if n == 2 { 100 } else { 1 });
    }
    wait_start(&rig, "q", 4).await;
    let left = detail(&rig, "q").await.summary.retained_bytes;
    assert_eq!(
        left,
        detail(&rig, "same").await.summary.retained_bytes,
        "compressed ones count in full"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_messages_go_only_once_every_group_has_done_them() {
    let rig = rig();
    rig.configure("q", completed(30)).await;
    for n in 0..4 {
        rig.push("q", "p", &[&format!("a{n}"), &format!("b{n}")]).await;
    }
    rig.advance_seconds(100);
    stays(&rig, "q", 0).await;
    let taken = rig.pop("q", "g", 5).await;
    let id = taken.claims[0].partition_id;
    let all = ids(&taken);
    let of = |range: std::ops::Range<usize>| -> Vec<(&str, AckStatus)> {
        all[range].iter().map(|id| (&**id, AckStatus::Completed)).collect()
    };
    assert!(done(&rig.ack("g", taken.lease, id, &of(0..3)).await));
    // Three of four messages of two pushes are done: only the first push is whole.
    wait_start(&rig, "q", 2).await;
    let slow = rig.pop("q", "slow", 1).await;
    assert_eq!(ids(&slow), ["a1"]);
    assert!(done(&rig.ack("g", taken.lease, id, &of(3..5)).await));
    stays(&rig, "q", 2).await;
    let last = rig.pop("q", "g", 5).await;
    let rest: Vec<_> = ids(&last);
    let rest: Vec<_> = rest.iter().map(|id| (&**id, AckStatus::Completed)).collect();
    assert!(done(&rig.ack("g", last.lease, id, &rest).await));
    stays(&rig, "q", 2).await;
    assert!(done(&rig.ack("slow", slow.lease, id, &[("a1", AckStatus::Completed)]).await));
    stays(&rig, "q", 2).await;
    let deleted = rig.api().delete_group(T, "slow".to_owned(), None, true, DEADLINE).await;
    assert_eq!(deleted.unwrap().partitions, 1);
    wait_start(&rig, "q", 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_cursor_here_holds_what_it_starts_with() {
    let rig = rig();
    rig.configure("q", completed(30)).await;
    rig.push("q", "other", &["x"]).await;
    let taken = rig.pop("q", "g", 1).await;
    assert_eq!(ids(&taken), ["x"]);
    rig.push("q", "p", &["1", "2"]).await;
    let mode = rig.pop("q", queue_mode(), 10).await;
    let more = rig.pop("q", queue_mode(), 10).await;
    for taken in [&mode, &more] {
        let id = taken.claims[0].partition_id;
        let all = ids(taken);
        let all: Vec<_> = all.iter().map(|id| (&**id, AckStatus::Completed)).collect();
        assert!(done(&rig.ack(queue_mode(), taken.lease, id, &all).await));
    }
    rig.advance_seconds(100);
    // The registered group has never seen this partition, and has both messages yet to do.
    stays(&rig, "q", 0).await;
    let taken = rig.pop("q", "g", 2).await;
    let id = taken.claims[0].partition_id;
    assert_eq!(ids(&taken), ["1", "2"]);
    let both = [("1", AckStatus::Completed), ("2", AckStatus::Completed)];
    assert!(done(&rig.ack("g", taken.lease, id, &both).await));
    wait_start(&rig, "q", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_was_moved_back_holds_again() {
    let rig = rig();
    rig.configure("q", completed(30)).await;
    let began = rig.clock_now();
    rig.push("q", "p", &["1", "2"]).await;
    let taken = rig.pop("q", "g", 2).await;
    let id = taken.claims[0].partition_id;
    let both = [("1", AckStatus::Completed), ("2", AckStatus::Completed)];
    assert!(done(&rig.ack("g", taken.lease, id, &both).await));
    let seek = Seek {
        tenant: T,
        group: "g".to_owned(),
        queue: "q".to_owned(),
        partition: Some("p".to_owned()),
        to: SeekTo::Time(began),
    };
    rig.api().seek(seek, DEADLINE).await.unwrap();
    rig.advance_seconds(100);
    stays(&rig, "q", 0).await;
    assert_eq!(ids(&rig.pop("q", "g", 2).await), ["1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_too_long_goes_without_retention_and_unconsumed() {
    let rig = rig();
    let patch = OptionsPatch {
        max_wait_time_seconds: set(20),
        retention_sink_hold: set("archive".to_owned()),
        ..retained(5)
    };
    rig.configure("q", OptionsPatch { retention_enabled: set(false), ..patch }).await;
    rig.push("q", "p", &["1"]).await;
    rig.advance_seconds(10);
    stays(&rig, "q", 0).await;
    rig.advance_seconds(10);
    wait_start(&rig, "q", 1).await;
    assert!(ids(&rig.pop("q", "g", 2).await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_fell_behind_goes_on_at_the_start() {
    let mut rig = rig();
    let options = OptionsPatch { lease_time: set(30), retry_limit: set(1), ..retained(60) };
    rig.configure("q", options).await;
    for n in 0..3 {
        rig.push("q", "p", &[&format!("a{n}"), &format!("b{n}")]).await;
        rig.advance_seconds(25);
    }
    let taken = rig.pop("q", "g", 1).await;
    let id = taken.claims[0].partition_id;
    assert_eq!(ids(&taken), ["a0"]);
    // Its message is removed while it is leased: the lease holds, and so does its ack.
    wait_start(&rig, "q", 2).await;
    let counts = detail(&rig, "q").await.summary.counts.unwrap();
    assert_eq!((counts.total, counts.pending, counts.processing), (4, 4, 1));
    assert!(ids(&rig.pop("q", "g", 1).await).is_empty());
    assert!(done(&rig.ack("g", taken.lease, id, &[("a0", AckStatus::Failed)]).await));
    let taken = rig.pop("q", "g", 2).await;
    assert_eq!((ids(&taken), taken.claims[0].attempt), (vec!["a1".into(), "b1".into()], 1));
    // What failed was about a message that is gone: the next one has its whole budget.
    assert!(done(&rig.ack("g", taken.lease, id, &[("a1", AckStatus::Failed)]).await));
    let taken = rig.pop("q", "g", 1).await;
    assert_eq!((ids(&taken), taken.claims[0].attempt), (vec!["a1".into()], 2));
    rig.advance_seconds(100);
    wait_start(&rig, "q", 6).await;
    // Everything is gone; the cursor goes to the end once, and the group waits for what comes.
    assert!(ids(&rig.pop("q", "g", 1).await).is_empty());
    let counts = detail(&rig, "q").await.summary.counts.unwrap();
    assert_eq!((counts.total, counts.pending, counts.processing), (0, 0, 0));
    rig.restart();
    assert!(ids(&rig.pop("q", "g", 1).await).is_empty());
    rig.push("q", "p", &["new"]).await;
    assert_eq!(ids(&rig.pop("q", "g", 9).await), ["new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_outlives_its_payload_for_deduplication() {
    let mut rig = rig();
    let patch = OptionsPatch { dedup_window_seconds: set(100), ..retained(10) };
    rig.configure("q", patch).await;
    rig.push("q", "p", &["once", "twice"]).await;
    rig.advance_seconds(50);
    wait_start(&rig, "q", 2).await;
    let again = rig.push("q", "p", &["twice", "new"]).await;
    assert_eq!(statuses(&again), [(false, 1), (true, 2)]);
    rig.restart();
    assert_eq!(statuses(&rig.push("q", "p", &["once"]).await), [(false, 0)]);
    rig.advance_seconds(60);
    wait_start(&rig, "q", 3).await;
    assert_eq!(statuses(&rig.push("q", "p", &["once", "twice"]).await), [(true, 3), (true, 4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_outlive_their_messages() {
    let rig = rig();
    rig.configure("q", retained(10)).await;
    rig.push("q", "p", &["1", "2"]).await;
    let taken = rig.pop("q", "g", 2).await;
    let id = taken.claims[0].partition_id;
    assert!(done(&rig.ack("g", taken.lease, id, &[("1", AckStatus::DeadLetter)]).await));
    rig.advance_seconds(50);
    wait_start(&rig, "q", 2).await;
    let counts = detail(&rig, "q").await.summary.counts.unwrap();
    assert_eq!((counts.total, counts.pending, counts.dead_letter), (0, 0, 1));
    let gone = rig.ack("g", None, id, &[("2", AckStatus::DeadLetter)]).await;
    assert!(gone[0].result.is_err(), "its hash went with its window");
    assert_eq!(detail(&rig, "q").await.summary.counts.unwrap().dead_letter, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_nobody_uses_is_removed() {
    let cycle =
        CycleLimits { hash_window_min_s: 0, cleanup_s: Some(3 * 86_400), ..CycleLimits::default() };
    let mut rig = Rig::with_retention(100, cycle);
    rig.configure("q", retained(60)).await;
    rig.configure("kept", OptionsPatch::default()).await;
    rig.push("q", "p", &["1"]).await;
    rig.push("kept", "p", &["1"]).await;
    let first = partition(&rig, "q").await;
    rig.advance_seconds(2 * 86_400);
    wait_start(&rig, "q", 1).await;
    assert_eq!(detail(&rig, "q").await.partitions.len(), 1);
    rig.advance_seconds(86_400 + 1);
    let until = Instant::now() + DEADLINE;
    while !detail(&rig, "q").await.partitions.is_empty() {
        assert!(Instant::now() < until, "it is still there");
        turn(&rig).await;
    }
    assert_eq!(detail(&rig, "kept").await.partitions.len(), 1, "it holds a message");
    let nothing = rig.ack("look", None, first, &[("1", AckStatus::Completed)]).await;
    assert!(nothing[0].result.is_err());
    rig.restart();
    assert_eq!(statuses(&rig.push("q", "p", &["1"]).await), [(true, 0)]);
    assert_ne!(partition(&rig, "q").await, first);
    assert_eq!(ids(&rig.pop("q", "look", 1).await), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_look_removes_nothing() {
    let mut rig = rig();
    rig.retention = None;
    rig.restart();
    rig.configure("q", retained(1)).await;
    rig.push("q", "p", &["1"]).await;
    rig.advance_seconds(1000);
    rig.restart();
    assert_eq!(start(&rig, "q").await, 0);
}
