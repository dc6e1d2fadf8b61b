//! Ceilings of reads, large queues, damage.

use queen_broker::api::{
    AckStatus, Api, CallError, ChangedQuery, FetchEntry, FetchRequest, Label, MESSAGES_DEPTH_MAX,
    MessageQuery, PushBatch, PushItem, Reads,
};
use queen_model::Refusal;
use std::time::Duration;

use crate::support::{Rig, T, ids, pop};

const MEGABYTE: usize = 1 << 20;

async fn push_large(rig: &Rig, partitions: usize) {
    let data = format!("\"{}\"", "x".repeat(MEGABYTE - 2));
    for n in 0..partitions {
        let item = [(format!("t{n}"), data.clone())];
        rig.push_payloads("large", &format!("p{n:02}"), &item).await;
    }
}

fn request(entries: Vec<FetchEntry>) -> FetchRequest {
    FetchRequest { tenant: T, entries, bytes_max: u64::MAX, wait: Duration::ZERO, bytes_min: 1 }
}

fn entry(queue: &str, partition: &str) -> FetchEntry {
    FetchEntry { queue: queue.into(), partition: partition.into(), offset: 0, bytes_max: u64::MAX }
}

#[tokio::test]
async fn one_answer_holds_so_many_bytes_and_the_rest_is_asked_for_again() {
    let rig = Rig::new();
    push_large(&rig, 40).await;
    let entries: Vec<FetchEntry> = (0..40).map(|n| entry("large", &format!("p{n:02}"))).collect();
    let fetched = rig.api().fetch(request(entries.clone())).await.unwrap();
    let got = fetched.iter().take_while(|entry| entry.messages.len() == 1).count();
    assert_eq!(got, 32, "until 32 MiB are passed");
    assert!(fetched[got..].iter().all(|entry| entry.messages.is_empty()));
    assert!(fetched.iter().all(|entry| entry.bounds.high_watermark == 1 && entry.error.is_none()));
    let fetched = rig.api().fetch(request(entries[got..].to_vec())).await.unwrap();
    assert!(fetched.iter().all(|entry| entry.messages.len() == 1));

    let query = |offset| MessageQuery { tenant: T, limit: 40, offset, ..MessageQuery::default() };
    let mut found = Vec::new();
    while found.len() < 40 {
        let page = rig.api().messages(query(found.len())).await.unwrap();
        assert!((1..=16).contains(&page.rows.len()), "{}", page.rows.len());
        found.extend(page.rows.into_iter().map(|row| row.partition));
    }
    let expected: Vec<String> = (0..40).rev().map(|n| format!("p{n:02}")).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn one_entry_holds_so_many_messages() {
    let rig = Rig::new();
    let items: Vec<(String, String)> =
        (0..10_050).map(|n| (format!("t{n}"), n.to_string())).collect();
    rig.push_payloads("q", "p", &items).await;
    let fetched = rig.api().fetch(request(vec![entry("q", "p"), entry("q", "p")])).await.unwrap();
    for entry in &fetched {
        assert_eq!(entry.messages.len(), 10_000);
        assert_eq!(entry.messages.last().unwrap().offset.0, 9999);
    }
    // They are so small that their number counts: many entries do not multiply it.
    let many = rig.api().fetch(request(vec![entry("q", "p"); 1024])).await.unwrap();
    let count: usize = many.iter().map(|entry| entry.messages.len()).sum();
    assert!((100_000..300_000).contains(&count), "{count}");
    let query =
        |offset, limit| MessageQuery { tenant: T, limit, offset, ..MessageQuery::default() };
    let page = rig.api().messages(query(9_990, 10)).await.unwrap();
    assert_eq!(page.rows.last().unwrap().message.offset.0, 50);
    for (offset, limit) in [(MESSAGES_DEPTH_MAX, 1), (usize::MAX, usize::MAX)] {
        let refused = rig.api().messages(query(offset, limit)).await;
        assert!(matches!(refused, Err(CallError::Refused(Refusal::BadRequest(_)))), "{refused:?}");
    }
}

/// More partitions than any read walks at once, all made by one push: they share one time.
#[tokio::test]
async fn a_queue_with_many_partitions() {
    const PARTITIONS: usize = 21_000;
    let rig = Rig::new();
    let names: Vec<String> = (0..PARTITIONS).map(|n| format!("p{n}")).collect();
    let mut items: Vec<PushItem<'_>> = names
        .iter()
        .map(|partition| PushItem {
            queue: "many.small",
            partition,
            transaction_id: None,
            payload: b"1",
            producer_sub: None,
            trace_id: None,
        })
        .collect();
    // The one that an estimate would not meet.
    let most = items[PARTITIONS / 2 + 7];
    items.extend(std::iter::repeat_n(most, 500));
    rig.api().push(T, PushBatch::Items(&items), Duration::from_mins(1)).await.unwrap();
    let total = (PARTITIONS + 500) as u64;

    let api = rig.api();
    let mut counted = 0;
    while counted != total {
        // An estimate at first, and then what the walker found.
        let queues = api.queues(T, true).await.unwrap();
        assert_eq!(queues[0].partitions, PARTITIONS as u64);
        assert!(queues[0].log_files > 0);
        counted = queues[0].counts.unwrap().total;
        assert!((total - 500..=total).contains(&counted) || counted > total / 2, "{counted}");
        tokio::task::yield_now().await;
    }
    let overview = api.overview(T).await.unwrap();
    assert_eq!((overview.queues, overview.namespaces, overview.tasks), (1, 1, 1));
    assert_eq!((overview.counts.pending, overview.lag_messages.max), (total, total));
    let labels = api.labels(T, Label::Namespace).await.unwrap();
    assert_eq!((&*labels[0].label, labels[0].counts.total), ("many", total));

    let busy = api.busy_partitions(T, None, 3).await.unwrap();
    assert_eq!((busy.rows.len(), busy.walked, busy.truncated), (3, 10_000, true));
    let depth = api.depth(T, "many.small".into(), None, 10).await.unwrap().unwrap();
    assert_eq!((depth.total.pending, depth.partitions_pending), (total, PARTITIONS as u64));
    assert!(depth.truncated && depth.partitions.len() == 10);

    let query = MessageQuery { tenant: T, limit: 5, offset: 3, ..MessageQuery::default() };
    let page = api.messages(query).await.unwrap();
    let found: Vec<String> = page.rows.into_iter().map(|row| row.partition).collect();
    let expected: Vec<String> = (0..5).map(|n| format!("p{}", PARTITIONS - 4 - n)).collect();
    assert_eq!(found, expected);

    // Many questions share what one call may look at, and all of them get on.
    let since = Some(queen_record::ids::Micros(i64::MAX));
    let mut queries =
        vec![ChangedQuery { queue: "many.small".into(), since, after: None, limit: 1000 }; 1000];
    let mut calls = 0;
    while !queries.is_empty() {
        calls += 1;
        let changed = api.changed(T, queries.clone()).await.unwrap();
        let pages = changed.pages.into_iter().map(Result::unwrap);
        queries = std::mem::take(&mut queries)
            .into_iter()
            .zip(pages)
            .filter_map(|(query, page)| {
                assert!(page.partitions.is_empty());
                Some(ChangedQuery { after: Some(page.next?), ..query })
            })
            .collect();
    }
    assert!(calls > 100, "{calls}");
}

/// Flips a bit of every record whose payload holds these bytes.
fn damage(rig: &Rig, data: &str) {
    for (path, _) in rig.disk.files() {
        let mut bytes = rig.disk.contents(&path).unwrap();
        let found = bytes.windows(data.len()).position(|window| window == data.as_bytes());
        if let Some(at) = found.filter(|_| path.extension().is_some_and(|ext| ext == "qlog")) {
            bytes[at + 5] ^= 1;
            rig.disk.set_contents(&path, &bytes);
        }
    }
}

#[tokio::test]
async fn a_pop_delivers_what_stands_before_a_damaged_record() {
    let rig = Rig::new();
    let data = "\"a-payload-that-is-easy-to-find\"";
    for (id, payload) in [("1", "1"), ("2", "2"), ("3", data), ("4", "4")] {
        rig.push_payloads("q", "p", &[(id, payload)]).await;
    }
    damage(&rig, data);
    let popped = rig.pop("q", "g", 10).await;
    assert_eq!(ids(&popped), ["1", "2"]);
    let partition = popped.claims[0].partition_id;
    let acks = [("1", AckStatus::Completed), ("2", AckStatus::Completed)];
    let acked = rig.ack("g", popped.lease, partition, &acks).await;
    assert!(acked.iter().all(|answer| answer.result.is_ok()), "{acked:?}");
    // Now it is the first of all.
    let popped = rig.api().pop(pop("q", "g", 10)).await;
    assert!(matches!(popped, Err(CallError::Internal(_))), "{popped:?}");
    assert!(!rig.api().health().serving);
}

#[tokio::test]
async fn damage_is_an_error_and_a_flag_and_never_an_empty_answer() {
    let rig = Rig::new();
    let data = "\"a-payload-that-is-easy-to-find\"".to_owned();
    rig.push_payloads("q", "p", &[("1", &data), ("2", &data)]).await;
    rig.push_payloads("q", "sound", &[("3", "3")]).await;
    assert!(rig.api().health().serving);
    damage(&rig, &data);
    let api = rig.api();
    let sound = api.fetch(request(vec![entry("q", "sound")])).await.unwrap();
    assert_eq!(sound[0].messages.len(), 1);
    assert!(api.health().serving);
    let fetched = api.fetch(request(vec![entry("q", "sound"), entry("q", "p")])).await;
    assert!(matches!(fetched, Err(CallError::Internal(_))), "{fetched:?}");
    let health = api.health();
    assert!(!health.serving && health.reason.is_some());
    let query = MessageQuery { tenant: T, limit: 10, ..MessageQuery::default() };
    let page = api.messages(query).await;
    assert!(matches!(page, Err(CallError::Internal(_))), "{page:?}");
}
