//! Directories that must not be served.

use std::path::Path;

use queen_io::Disk;

use crate::support::{Rig, ids, queue_mode};

/// The text of a start that is refused.
fn refusal(rig: &Rig) -> String {
    rig.start_again().err().unwrap().to_string()
}

#[tokio::test]
async fn a_lost_checkpoint_is_rebuilt_from_whole_logs() {
    let mut rig = Rig::new();
    rig.push("q", "p", &["1", "2"]).await;
    rig.stop();
    for (path, _) in rig.disk.files() {
        if path.starts_with("/data/store") {
            rig.disk.remove(&path);
        }
    }
    rig.restart();
    assert_eq!(ids(&rig.pop("q", queue_mode(), 10).await), ["1", "2"]);
}

#[tokio::test]
async fn a_lost_checkpoint_beside_logs_without_beginning_is_refused() {
    let mut rig = Rig::new();
    for n in 0..400 {
        rig.push("q", "p", &[&*format!("a-longer-transaction-id-{n}"), &format!("b-{n}")]).await;
    }
    rig.stop();
    for (path, _) in rig.disk.files() {
        if path.starts_with("/data/store") || path.ends_with("r00000001.qlog") {
            rig.disk.remove(&path);
        }
    }
    assert!(refusal(&rig).contains("Cannot re-apply logs"));
}

#[tokio::test]
async fn a_directory_of_the_cluster_replicator_is_refused() {
    let mut rig = Rig::new();
    rig.stop();
    rig.disk.create_dir(Path::new("/data/raft")).unwrap();
    rig.disk.set_contents(Path::new("/data/raft/state.json"), b"{}");
    assert!(refusal(&rig).contains("written by the openraft replicator"));
}

#[tokio::test]
async fn a_changed_byte_below_the_checkpoint_is_refused() {
    let mut rig = Rig::new();
    rig.push("q", "p", &["1", "2"]).await;
    rig.stop();
    let logs: Vec<_> = rig
        .disk
        .files()
        .into_iter()
        .filter(|(p, len)| p.extension().is_some_and(|e| e == "qlog") && *len > 100)
        .collect();
    let (path, _) = &logs[0];
    let mut bytes = rig.disk.contents(path).unwrap();
    bytes[90] ^= 1;
    rig.disk.set_contents(path, &bytes);
    let text = refusal(&rig);
    assert!(text.contains(&*path.to_string_lossy()), "{text}");
}
