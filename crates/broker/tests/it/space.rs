//! Space comes back: what is deleted leaves the disk while the node serves, and the node starts again.

use std::time::Duration;

use queen_record::layout::Shards;

use crate::support::{Rig, ids, statuses};

/// Bytes of all files of the queue logs.
fn log_bytes(rig: &Rig) -> u64 {
    let files = rig.disk.files().into_iter();
    files.filter(|(path, _)| path.starts_with("/data/qlog")).map(|(_, len)| len).sum()
}

async fn push_many(rig: &Rig, queue: &str, count: usize, size: usize) {
    for at in 0..count {
        // Bytes that a compression does not make small.
        let mut seed = at as u64 + queue.len() as u64;
        let text: String = (0..size)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b'a' + u8::try_from(seed >> 60).unwrap())
            })
            .collect();
        let payload = format!("\"{text}\"");
        let answers = rig.push_payloads(queue, "p", &[(at.to_string(), payload)]).await;
        assert!(statuses(&answers)[0].0);
    }
}

/// Waits until the logs take at most so many bytes.
async fn shrinks_to(rig: &Rig, most: u64) {
    let look = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while log_bytes(rig) > most {
            ticks.tick().await;
        }
    };
    let found = tokio::time::timeout(Duration::from_mins(1), look).await;
    assert!(found.is_ok(), "{} bytes are left of which {most} may be", log_bytes(rig));
}

async fn deleted_queues_give_their_space_back(shards: Shards) {
    let mut rig = Rig::with_shards(shards);
    // Each file of a shared log holds both.
    for _ in 0..6 {
        push_many(&rig, "kept", 1, 300).await;
        rig.advance_seconds(1_000_000);
        push_many(&rig, "gone", 16, 4000).await;
        rig.advance_seconds(1_000_000);
    }
    let full = log_bytes(&rig);
    assert!(full > 200_000, "{full}");
    assert!(rig.delete_queue("gone").await.unwrap());
    // The active file of the shared log is sealed early; its own log goes as a whole.
    rig.advance_seconds(1_000);
    shrinks_to(&rig, 20_000).await;
    let popped = rig.pop("kept", "g", 100).await;
    assert_eq!(ids(&popped), ["0"; 6]);

    // The queue comes back, with a new log of the same name.
    push_many(&rig, "gone", 2, 100).await;
    rig.restart();
    assert_eq!(ids(&rig.pop("gone", "g", 100).await), ["0", "1"]);
    assert_eq!(ids(&rig.pop("kept", "h", 100).await), ["0"; 6]);
    assert!(log_bytes(&rig) < 25_000, "{}", log_bytes(&rig));
}

#[tokio::test]
async fn a_deleted_queue_gives_its_log_back() {
    deleted_queues_give_their_space_back(Shards::None).await;
}

#[tokio::test]
async fn a_deleted_queue_gives_its_part_of_shared_logs_back() {
    deleted_queues_give_their_space_back(Shards::Count(1)).await;
}
