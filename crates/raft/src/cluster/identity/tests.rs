//! The rules by which directories are told apart.

use super::super::types::Member;
use super::*;

const SEEN: Sighting = Sighting { boot: Boot { count: 3, nonce: 30 }, term: 5, end: 100 };

#[test]
fn an_older_copy_is_told_from_a_restart() {
    let check = |now: Sighting, is_older| assert_eq!(now.is_older_than(&SEEN), is_older, "{now:?}");
    check(SEEN, false);
    // The same directory later on, and after its next start.
    check(Sighting { end: 101, ..SEEN }, false);
    check(Sighting { boot: Boot { count: 4, nonce: 40 }, ..SEEN }, false);
    check(Sighting { boot: Boot { count: 9, nonce: 90 }, term: 6, end: 101 }, false);
    // A later leader has cut what was not committed.
    check(Sighting { term: 6, end: 40, ..SEEN }, false);
    // An earlier start, or another one of the same count.
    check(Sighting { boot: Boot { count: 2, nonce: 20 }, ..SEEN }, true);
    check(Sighting { boot: Boot { count: 3, nonce: 31 }, ..SEEN }, true);
    // Less than it has acknowledged, whatever the start says.
    let later = Boot { count: 4, nonce: 40 };
    check(Sighting { boot: later, end: 99, ..SEEN }, true);
    check(Sighting { boot: later, term: 4, end: 500 }, true);
}

#[test]
fn what_is_said_arrives() {
    let greeting =
        Greeting { disk: DiskId(u128::MAX - 9), now: SEEN, means: Some(DiskId(7)), seen: None };
    for greeting in [greeting, Greeting { means: None, seen: Some(SEEN), ..greeting }] {
        let mut bytes = Vec::new();
        greeting.put(&mut bytes);
        assert_eq!(Greeting::decode(bytes.into()), Ok(greeting));
    }
    for welcome in [
        Welcome::Known { disk: DiskId(1 << 77), now: SEEN },
        Welcome::Unnamed { disk: DiskId(3) },
        Welcome::NotMeant("another".to_owned()),
        Welcome::Older("older".to_owned()),
    ] {
        let mut bytes = Vec::new();
        welcome.put(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(Welcome::decode(bytes[..cut].to_vec().into()).is_err(), "{welcome:?} {cut}");
        }
        assert_eq!(Welcome::decode(bytes.into()), Ok(welcome));
    }
}

#[test]
fn an_id_is_written_as_it_is_read() {
    for id in [DiskId(0), DiskId(0xabc), DiskId(u128::MAX)] {
        assert_eq!(id.to_string().parse(), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<DiskId>(&json).unwrap(), id);
    }
    for text in ["", "12", "+0000000000000000000000000000001", "g0000000000000000000000000000000"] {
        assert!(text.parse::<DiskId>().is_err(), "{text}");
    }
}

#[test]
fn a_leader_plans_when_a_majority_of_each_set_is_named() {
    let membership = |sets: &[&[u64]], named: &[u64]| {
        let sets: Vec<std::collections::BTreeSet<u64>> =
            sets.iter().map(|set| set.iter().copied().collect()).collect();
        let member = |id: u64| {
            let disk = named.contains(&id).then_some(DiskId(id.into()));
            (id, Member { disk, ..Member::at("r", "h") })
        };
        let nodes: BTreeMap<u64, Member> = (1..=4).map(member).collect();
        super::super::types::Membership::new(sets, nodes).unwrap()
    };
    let check = |sets: &[&[u64]], named: &[u64], expected| {
        assert_eq!(names_a_majority(&membership(sets, named), 1), expected, "{sets:?} {named:?}");
    };
    check(&[&[1]], &[], false);
    check(&[&[1]], &[1], true);
    check(&[&[1, 2, 3]], &[1], false);
    check(&[&[1, 2, 3]], &[2, 3], false);
    check(&[&[1, 2, 3]], &[1, 3], true);
    check(&[&[1, 2]], &[1], false);
    check(&[&[1, 2, 3], &[1, 4]], &[1, 2], false);
    check(&[&[1, 2, 3], &[1, 4]], &[1, 2, 4], true);
}
