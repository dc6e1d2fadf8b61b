//! A short version of the months that `cargo xtask age` lets pass.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use queen_sim::age::{AgeOptions, run, scratch};

const SEED: u64 = 1;

fn days(days: u32, shards: Option<u32>) {
    let dir = scratch().unwrap();
    let options = AgeOptions { dir: dir.path().to_owned(), days, seed: SEED, shards };
    let report = run(&options, &mut |_| {}).unwrap();
    assert!(report.violations.is_empty(), "seed {SEED}: {report:#?}");
    let [files, rewrites, ..] = report.reclaimed;
    assert!(
        files > 0 && rewrites > 0 && report.pushed > 1000 && report.restarts > 0,
        "{report:#?}"
    );
}

#[test]
fn space_comes_back_from_a_log_for_each_queue() {
    days(10, None);
}

#[test]
fn space_comes_back_from_shared_logs() {
    days(10, Some(2));
}
