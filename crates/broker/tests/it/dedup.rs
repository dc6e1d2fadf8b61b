//! A transactionId is stored once per partition within the window.

use queen_model::OptionsPatch;

use crate::support::{Rig, ids, queue_mode, set, statuses};

#[tokio::test]
async fn a_repeat_is_answered_with_the_original() {
    let mut rig = Rig::new();
    let first = rig.push("q", "p", &["1", "2", "1"]).await;
    assert_eq!(statuses(&first), [(true, 0), (true, 1), (false, 0)]);
    assert_eq!(first[2].message_id, first[0].message_id);
    for _ in 0..2 {
        let again = rig.push("q", "p", &["2", "3", "1"]).await;
        let stored = statuses(&again)[1].1;
        assert_eq!(stored, 2);
        assert_eq!(again[0].message_id, first[1].message_id);
        assert_eq!(again[2].message_id, first[0].message_id);
        assert_eq!(statuses(&again)[0], (false, 1));
        rig.restart();
    }
    assert_eq!(statuses(&rig.push("q", "other", &["1"]).await), [(true, 0)]);
    assert_eq!(ids(&rig.pop("q", queue_mode(), 10).await), ["1", "2", "3"]);
}

#[tokio::test]
async fn many_ids_are_found_in_sealed_files_too() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..600).map(|n| format!("message-{n}")).collect();
    for chunk in names.chunks(7) {
        let chunk: Vec<&str> = chunk.iter().map(String::as_str).collect();
        rig.push("q", "p", &chunk).await;
    }
    for _ in 0..2 {
        for (at, name) in names.iter().enumerate().step_by(13) {
            let answer = rig.push("q", "p", &[name]).await;
            assert_eq!(statuses(&answer), [(false, at as u64)], "{name}");
        }
        rig.restart();
    }
}

#[tokio::test]
async fn the_window_ends_and_can_be_off() {
    let rig = Rig::new();
    rig.push("q", "p", &["1"]).await;
    rig.advance_seconds(3601);
    assert_eq!(statuses(&rig.push("q", "p", &["1"]).await), [(true, 1)]);
    assert_eq!(statuses(&rig.push("q", "p", &["1"]).await), [(false, 1)]);
    rig.configure("off", OptionsPatch { dedup_window_seconds: set(0), ..Default::default() }).await;
    let twice = rig.push("off", "p", &["1", "1"]).await;
    assert_eq!(
        statuses(&twice),
        [(true, 0), (false, 0)],
        "a repeat inside one request is stored once"
    );
    assert_eq!(statuses(&rig.push("off", "p", &["1"]).await), [(true, 1)]);
}

#[tokio::test]
async fn of_racing_pushes_one_is_stored() {
    let rig = Rig::new();
    for round in 0..20 {
        let id = format!("race-{round}");
        let ids = [&*id];
        let racers = [
            rig.push("q", "p", &ids),
            rig.push("q", "p", &ids),
            rig.push("q", "p", &ids),
            rig.push("q", "p", &ids),
        ];
        let [a, b, c, d] = racers;
        let (a, b, c, d) = tokio::join!(a, b, c, d);
        let all = [a, b, c, d].map(|answers| (statuses(&answers)[0], answers[0].message_id));
        assert_eq!(all.iter().filter(|(status, _)| status.0).count(), 1, "{all:?}");
        assert!(all.iter().all(|(_, id)| *id == all[0].1), "{all:?}");
    }
}
