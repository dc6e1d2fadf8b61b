//! Whole clusters under faults, a few seeds of them; `cargo xtask simulate` runs as many as one likes.

use queen_sim::cluster::{Faults, Plan, Report, run};

fn plan(seed: u64) -> Plan {
    let (faults, dropped) = (Faults::Drawn, Vec::new());
    Plan { seed, seconds: 10, nodes: 3, faults, dropped, keeps_trace: false }
}

fn check(report: &Report) {
    let repeat = format!("cargo xtask simulate --seeds 1 --seed {}", report.seed);
    assert!(report.violations.is_empty(), "{repeat}\n{}", report.violations.join("\n"));
}

#[test]
fn three_nodes_elect_and_serve() {
    let report = run(&Plan { faults: Faults::None, ..plan(1) });
    check(&report);
    assert!(report.count("lead taken") >= 1);
    // Some are given up before there is a leader.
    assert!(report.pushes.1 * 100 >= report.pushes.0 * 99, "{report:?}");
    assert!(report.count("pushes") > 50, "{report:?}");
    assert!(report.count("acks") > 20, "{report:?}");
    assert!(report.count("transactions") > 20, "{report:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let again = |seed| run(&Plan { keeps_trace: true, ..plan(seed) });
    let (one, two, other) = (again(7), again(7), again(8));
    let (one, two) = (one.trace.unwrap_or_default(), two.trace.unwrap_or_default());
    let differs = one.lines().zip(two.lines()).find(|(one, two)| one != two);
    assert_eq!(differs, None);
    assert_eq!(one.len(), two.len());
    assert_ne!(Some(one), other.trace);
}

#[test]
fn five_nodes_lose_power_and_nothing_else() {
    let report = run(&Plan { nodes: 5, faults: Faults::Only("power".to_owned()), ..plan(3) });
    check(&report);
    assert!(report.count("lead taken") >= 2, "{report:?}");
}

/// A member that has staged a snapshot told the leader so, and answered the next append as if it lacked all of it.
#[test]
fn members_are_replaced_and_load_snapshots() {
    let report = run(&Plan { faults: Faults::Only("member".to_owned()), ..plan(10) });
    check(&report);
    assert!(report.count("snapshot loaded") >= 1, "{report:?}");
    assert!(report.count("membership changed") >= 3, "{report:?}");
}

#[test]
fn a_sync_that_is_left_out_is_noticed() {
    let plan = |site: &str, seed| Plan {
        faults: Faults::Only("power all".to_owned()),
        dropped: vec![site.to_owned()],
        ..plan(seed)
    };
    for site in ["sync_data data/qlog/qN/rN.qlog #group", "sync_data data/raft/state.json.tmp"] {
        let is_noticed = (1..6).any(|seed| !run(&plan(site, seed)).violations.is_empty());
        assert!(is_noticed, "{site}");
    }
}
