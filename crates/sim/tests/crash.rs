//! A small slice of the exploration, and tests of the tests: the trace repeats, the oracle rejects, sites are caught.
//!
//! `cargo xtask crash` looks at everything; this only has to notice when one of the parts stops working.

use queen_io::sim::Choice;
use queen_sim::crash::{Depth, Exploration, parse_choice};
use queen_sim::faults;
use queen_sim::history::{History, What};
use queen_sim::oracle::{Bounds, open_and_check};
use queen_sim::sites;
use queen_sim::variant::{VARIANTS, Variant};

fn exploration(variant: Variant, depth: Depth) -> Exploration<'static> {
    Exploration { variant, seed: 1, depth, dropped: &[], repeating: false, violations_max: 1 }
}

#[test]
fn a_slice_of_the_power_cuts_leaves_nothing_wrong() {
    let depth = Depth { look: 150, slice: (0, 1), reopen: 4, recovery: 60, second: 60 };
    let figures = exploration(Variant::named("shards").unwrap(), depth).explore();
    assert_eq!(figures.violations, Vec::<String>::new());
    assert!(figures.opened > 150 && figures.built > 10_000, "{}", figures.opened);
    assert!(figures.recovery > 0 && figures.second > 0 && figures.reopened > 0);
}

#[test]
fn a_slice_of_the_failing_calls_loses_nothing() {
    let figures = faults::explore(Variant::named("shards").unwrap(), 1, &[], (7, 80), 1);
    assert_eq!(figures.violations, Vec::<String>::new());
    assert!(figures.fault_runs >= 20);
}

#[test]
fn one_seed_is_one_trace() {
    for name in ["plain", "grouped"] {
        let variant = Variant::named(name).unwrap();
        let trace = |seed| {
            let (disk, run) = variant.run(seed, &|_| {}).unwrap();
            let cuts: Vec<u128> = (0..disk.calls())
                .step_by(20)
                .map(|call| disk.crash(call, &Choice::AllKept).fingerprint())
                .collect();
            (disk.calls(), cuts, run.history.digests)
        };
        assert_eq!(trace(3), trace(3));
        assert_ne!(trace(3).1, trace(4).1);
    }
}

/// The history must be refused after each of these changes, at the end of the run.
#[test]
fn the_oracle_rejects_a_tampered_history() {
    let variant = Variant::named("shards").unwrap();
    let (disk, run) = variant.run(1, &|_| {}).unwrap();
    let verdict = |tamper: &dyn Fn(&mut History)| {
        let mut history = run.history.clone();
        tamper(&mut history);
        let image = disk.crash_now(&Choice::AllLost);
        let bounds = Bounds::at(disk.calls());
        open_and_check(&image, &variant.setup, &history, bounds).err().unwrap_or_default()
    };
    let last = run.history.answered.last().unwrap().1;
    assert_eq!(run.stopped, None);
    let removed = |what: &What| matches!(what, What::Starts(..));
    assert!(run.history.facts.iter().any(|fact| removed(&fact.what) && fact.until.is_none()));
    assert!(run.history.facts.iter().any(|fact| removed(&fact.what) && fact.until.is_some()));
    assert_eq!(verdict(&|_| {}), "");
    let rejects = |rule: &str, tamper: &dyn Fn(&mut History)| {
        let found = verdict(tamper);
        assert!(found.starts_with(rule), "{rule} was due: {found:?}");
    };
    rejects("O2", &|history| history.answered.push((disk.calls(), last + 1)));
    rejects("O2", &|history| history.sent.retain(|(_, index)| *index < last));
    rejects("O3", &|history| history.digests.get_mut(&last).unwrap()[0] ^= 1);
    rejects("O3", &|history| history.digests.retain(|index, _| *index < last));
    rejects("O6", &|history| history.durable.push((disk.calls(), last)));
    let live = |part: &queen_sim::history::Part| part.until.is_none() && part.messages.len() > 2;
    rejects("O4", &|history| {
        let part = history.parts.values_mut().find(|part| live(part)).unwrap();
        part.messages[1].payload.push(0);
    });
    rejects("O4", &|history| {
        let part = history.parts.values_mut().find(|part| live(part)).unwrap();
        part.messages.swap(0, 1);
    });
    rejects("O4", &|history| {
        let part = history.parts.values_mut().find(|part| live(part)).unwrap();
        part.messages.pop();
    });
    rejects("O4", &|history| {
        let part = history.parts.values_mut().find(|part| live(part)).unwrap();
        let again = part.messages[0].clone();
        part.messages.push(again);
    });
    for fact in 0..run.history.facts.len() {
        if run.history.facts[fact].until.is_some() {
            continue;
        }
        rejects("O5", &|history| match &mut history.facts[fact].what {
            What::Options(_, options) => options.lease_time += 1,
            What::NoQueue(name) => "orders".clone_into(name),
            What::Committed(_, at) => *at += 1_000,
            What::Leased(_, lease) => lease.0[3] ^= 1,
            What::Dead(_, offset, _) => *offset += 1_000,
            What::NoCursor(place) => "g1".clone_into(&mut place.group),
            What::Starts(_, _, start) => *start += 1_000,
        });
    }
}

#[test]
fn sync_sites_left_out_are_caught() {
    for site in [
        "sync_data data/qlog/qN/rN.qlog #group",
        "sync_dir data/qlog/qN",
        "sync_data data/store/image.tmp #checkpoint",
        "sync_dir data/store #checkpoint",
    ] {
        let verdict = sites::catch(site, 1);
        assert!(verdict.violation.is_some(), "{site} after {} images", verdict.looked);
    }
}

#[test]
fn choices_read_back() {
    for choice in [
        Choice::AllLost,
        Choice::NamesKept,
        Choice::Torn(17),
        Choice::Scattered(u64::MAX),
        Choice::NameLost(3),
    ] {
        assert_eq!(parse_choice(&format!("{choice:?}")), Some(choice));
    }
    assert_eq!(parse_choice("Torn(x)"), None);
}

/// The script reaches every way in which space is given back.
#[test]
fn the_script_reclaims() {
    for variant in VARIANTS.into_iter().filter(|variant| !variant.grouped) {
        let (_, run) = variant.run(1, &|_| {}).unwrap();
        assert_eq!(run.stopped, None, "{}", variant.name);
        let done = run.reclaimed;
        assert!(
            done.files > 0 && done.rewrites > 0 && done.sealed > 0,
            "{}: {done:?}",
            variant.name
        );
        let during = run.during_backup;
        assert!(during.files + during.rewrites + during.logs > 0, "{}: {during:?}", variant.name);
        // Shared logs are never removed.
        assert_eq!(done.logs > 0, variant.name != "shards", "{}: {done:?}", variant.name);
    }
}
