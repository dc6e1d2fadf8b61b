//! Fetches that wait, and the time up to which a list of changed partitions is complete.

use std::time::{Duration, Instant};

use queen_broker::api::{
    Changed, ChangedQuery, FetchEntry, FetchError, FetchRequest, Fetched, Reads,
};
use queen_model::OptionsPatch;
use queen_record::ids::Micros;
use tokio::task::JoinHandle;

use crate::support::{Rig, T};

const LONG: Duration = Duration::from_secs(30);

fn entry(queue: &str, partition: &str, offset: u64) -> FetchEntry {
    FetchEntry { queue: queue.into(), partition: partition.into(), offset, bytes_max: 1 << 20 }
}

fn request(entries: Vec<FetchEntry>, wait: Duration, bytes_min: u64) -> FetchRequest {
    FetchRequest { tenant: T, entries, bytes_max: u64::MAX, wait, bytes_min }
}

fn waiting(rig: &Rig, request: FetchRequest) -> JoinHandle<Vec<Fetched>> {
    let api = rig.api();
    tokio::spawn(async move { api.fetch(request).await.unwrap() })
}

/// Waits until the node has taken everything that was sent to it before.
async fn settle(rig: &Rig) {
    for _ in 0..4 {
        tokio::task::yield_now().await;
        rig.configure("settle", OptionsPatch::default()).await;
    }
}

fn offsets(fetched: &Fetched) -> Vec<u64> {
    fetched.messages.iter().map(|message| message.offset.0).collect()
}

#[tokio::test]
async fn a_fetch_wakes_for_its_partitions_only() {
    let rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    rig.push("q", "b", &["2"]).await;
    // One that is there, and one that is made while the call waits.
    for partition in ["a", "new"] {
        let from = u64::from(partition == "a");
        let entries = vec![entry("q", partition, from), entry("q", "b", 1)];
        let fetch = waiting(&rig, request(entries, LONG, 1));
        settle(&rig).await;
        rig.push("q", "elsewhere", &[partition]).await;
        rig.push("other", "a", &[partition]).await;
        settle(&rig).await;
        assert!(!fetch.is_finished());
        rig.push("q", partition, &[&*format!("{partition}-3"), "4"]).await;
        let fetched = fetch.await.unwrap();
        assert_eq!(offsets(&fetched[0]), [from, from + 1]);
        assert_eq!((offsets(&fetched[1]), fetched[1].bounds.high_watermark), (vec![], 1));
    }
}

#[tokio::test]
async fn a_fetch_waits_for_as_much_as_it_asks_for() {
    let rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    let payload = "{\"id\":\"1\"}".len() as u64;
    let entries = vec![entry("q", "a", 0), entry("q", "b", 0)];
    let fetch = waiting(&rig, request(entries, LONG, payload * 4));
    for id in ["2", "3"] {
        settle(&rig).await;
        assert!(!fetch.is_finished());
        rig.push("q", "a", &[id]).await;
    }
    settle(&rig).await;
    assert!(!fetch.is_finished());
    rig.push("q", "b", &["4"]).await;
    let fetched = fetch.await.unwrap();
    assert_eq!((offsets(&fetched[0]), offsets(&fetched[1])), (vec![0, 1, 2], vec![0]));
    // What cannot become more does not wait: the entry is full.
    let full = FetchEntry { bytes_max: 1, ..entry("q", "a", 0) };
    let fetched = rig.api().fetch(request(vec![full], LONG, u64::MAX)).await.unwrap();
    assert_eq!(offsets(&fetched[0]), [0]);
}

#[tokio::test]
async fn a_fetch_that_has_an_answer_does_not_wait() {
    let rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    let started = Instant::now();
    let unknown = vec![entry("q", "a", 1), entry("missing", "a", 0)];
    let beyond = vec![entry("q", "a", 1), entry("q", "a", 3)];
    for (entries, bytes_min, error) in [
        (vec![entry("q", "a", 0)], 1, None),
        (vec![entry("q", "a", 1)], 0, None),
        (vec![], 1, None),
        (unknown, 1, Some(FetchError::UnknownQueue)),
        (beyond, 1, Some(FetchError::OffsetOutOfRange)),
    ] {
        let fetched = rig.api().fetch(request(entries, LONG, bytes_min)).await.unwrap();
        assert_eq!(fetched.last().and_then(|entry| entry.error), error);
    }
    assert!(started.elapsed() < LONG);
    let brief = request(vec![entry("q", "a", 1)], Duration::from_millis(20), 1);
    assert_eq!(offsets(&rig.api().fetch(brief).await.unwrap()[0]), [] as [u64; 0]);
}

#[tokio::test]
async fn a_waiting_fetch_learns_that_its_queue_is_gone() {
    let rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    let fetch = waiting(&rig, request(vec![entry("q", "a", 1)], LONG, 1));
    settle(&rig).await;
    assert_eq!(rig.delete_queue("q").await, Ok(true));
    let fetched = fetch.await.unwrap();
    assert_eq!(fetched[0].error, Some(FetchError::UnknownQueue));
}

#[tokio::test]
async fn a_stop_answers_what_waits() {
    let mut rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    let fetch = waiting(&rig, request(vec![entry("q", "a", 0), entry("q", "a", 1)], LONG, 1 << 20));
    settle(&rig).await;
    rig.stop();
    let fetched = fetch.await.unwrap();
    assert_eq!((offsets(&fetched[0]), offsets(&fetched[1])), (vec![0], vec![]));
}

#[tokio::test]
async fn many_wait_and_leave() {
    let rig = Rig::new();
    rig.push("q", "a", &["1"]).await;
    let waits =
        || waiting(&rig, request(vec![entry("q", "a", 1), entry("q", "later", 0)], LONG, 1));
    let (stay, leave): (Vec<_>, Vec<_>) = (0..50).map(|_| (waits(), waits())).unzip();
    settle(&rig).await;
    leave.iter().for_each(JoinHandle::abort);
    rig.push("q", "a", &["2"]).await;
    for fetch in stay {
        assert_eq!(offsets(&fetch.await.unwrap()[0]), [1]);
    }
}

async fn changed(rig: &Rig) -> Changed {
    let query = ChangedQuery { queue: "q".into(), since: None, after: None, limit: 1000 };
    rig.api().changed(T, vec![query]).await.unwrap()
}

/// No message of an observed time or before comes to light later, whatever the clock does and however pushes meet.
#[tokio::test]
async fn a_safe_time_is_never_undercut() {
    let mut rig = Rig::new();
    rig.configure("q", OptionsPatch::default()).await;
    let mut seen: Vec<Changed> = Vec::new();
    for round in 0..60 {
        match round % 6 {
            // The clock jumps ahead, stands still, falls back, and so does the node's start.
            0 => rig.clock.advance_us(1_000_000),
            2 => rig.clock.advance_us(-30_000_000),
            4 => {
                rig.clock.advance_us(-3_600_000_000);
                rig.restart();
            }
            _ => {}
        }
        let rig = &rig;
        let push = |partition: &'static str, n: u32| async move {
            rig.push("q", partition, &[&*format!("{round}-{n}")]).await;
        };
        let (first, .., second, _, third) = tokio::join!(
            changed(rig),
            push("a", 0),
            push("a", 1),
            push("b", 2),
            push("a", 3),
            changed(rig),
            async { tokio::join!(push("a", 4), push("b", 5)) },
            changed(rig)
        );
        // Three reads at once are answered in any order.
        let mut together = [first, second, third];
        together.sort_by_key(|changed| changed.safe_time);
        seen.extend(together);
        seen.push(changed(rig).await);
    }
    let entries = vec![entry("q", "a", 0), entry("q", "b", 0)];
    let fetched = rig.api().fetch(request(entries, Duration::ZERO, 1)).await.unwrap();
    let created =
        |partition: usize| fetched[partition].messages.iter().map(|message| message.created);
    let mut all: Vec<Micros> = created(0).chain(created(1)).collect();
    all.sort_unstable();
    assert_eq!(all.len(), 360);
    for changed in &seen {
        let rows = &changed.pages[0].as_ref().unwrap().partitions;
        for (partition, name) in ["a", "b"].into_iter().enumerate() {
            let known =
                rows.iter().find(|row| row.name == name).map_or(0, |row| row.last_offset + 1);
            let later = created(partition).skip(usize::try_from(known).unwrap());
            assert!(later.into_iter().all(|created| created > changed.safe_time));
        }
    }
    assert_eq!(seen.last().unwrap().safe_time, *all.last().unwrap());
    assert!(seen.is_sorted_by_key(|changed| changed.safe_time));
}
