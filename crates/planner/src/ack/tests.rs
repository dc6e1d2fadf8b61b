//! The rules of an acknowledgment call, one by one.

use super::*;
use Verdict::{Completed, Dead, Failed, Retry};

const CURSOR: AckCursor = AckCursor {
    committed: -1,
    batch_end: Some(Offset(4)),
    retries: 0,
    conflated: false,
    retry_limit: 3,
    files_exhausted: true,
};

/// Decides verdicts on offsets: the outcome as (committed, release, retries, dead offsets).
fn check(cursor: AckCursor, acks: &[(u64, Verdict)], expected: (i64, bool, u32, &[u64])) {
    let items: Vec<_> =
        acks.iter().map(|(offset, verdict)| (Place::InRange(Offset(*offset)), *verdict)).collect();
    let decision = decide(&cursor, &items);
    let dead: Vec<u64> = decision.dead.iter().map(|(offset, _)| offset.0).collect();
    let found = (decision.committed, decision.release, decision.retries, &*dead);
    assert_eq!(found, expected, "{acks:?}");
}

#[test]
fn completing_moves_the_cursor_over_silent_gaps() {
    check(CURSOR, &[(4, Completed)], (4, true, 0, &[]));
    check(CURSOR, &[(2, Completed)], (2, false, 0, &[]));
    check(CURSOR, &[(0, Completed), (2, Completed)], (2, false, 0, &[]));
    check(AckCursor { retries: 2, ..CURSOR }, &[(4, Completed)], (4, true, 0, &[]));
    check(AckCursor { retries: 2, ..CURSOR }, &[(3, Completed)], (3, false, 2, &[]));
}

#[test]
fn a_failure_stops_the_cursor_below_it_and_is_charged_once() {
    let acks = [(0, Completed), (1, Failed), (2, Completed), (3, Completed), (4, Completed)];
    check(CURSOR, &acks, (0, true, 1, &[]));
    let all_failed: Vec<_> = (0..5).map(|offset| (offset, Failed)).collect();
    check(CURSOR, &all_failed, (-1, true, 1, &[]));
}

#[test]
fn a_retry_is_not_charged() {
    let cursor = AckCursor { retries: 1, ..CURSOR };
    check(cursor, &[(0, Completed), (1, Retry), (4, Completed)], (0, true, 1, &[]));
}

#[test]
fn an_exhausted_message_is_filed_and_the_walk_goes_on() {
    let cursor = AckCursor { retries: 3, ..CURSOR };
    check(cursor, &[(0, Failed)], (0, true, 0, &[0]));
    check(cursor, &[(0, Failed), (1, Completed), (3, Completed)], (3, true, 0, &[0]));
    check(cursor, &[(0, Failed), (1, Failed), (2, Completed)], (2, true, 0, &[0, 1]));
    check(cursor, &[(0, Failed), (1, Retry), (2, Completed)], (0, true, 0, &[0]));
    check(cursor, &[(0, Failed), (2, Retry)], (0, true, 0, &[0]));
    check(AckCursor { retry_limit: 0, ..CURSOR }, &[(0, Failed)], (0, true, 0, &[0]));
}

#[test]
fn a_dead_letter_verdict_does_not_wait_for_the_budget() {
    check(CURSOR, &[(1, Dead)], (1, true, 0, &[1]));
    let cursor = AckCursor { retries: 1, ..CURSOR };
    check(cursor, &[(0, Dead), (1, Dead), (2, Failed), (3, Completed)], (1, true, 1, &[0, 1]));
    check(CURSOR, &[(0, Failed), (0, Dead), (1, Completed)], (1, true, 0, &[0]));
}

#[test]
fn a_queue_that_files_nothing_drops_the_exhausted_and_still_files_on_demand() {
    let cursor = AckCursor { retries: 3, files_exhausted: false, ..CURSOR };
    check(cursor, &[(0, Failed), (1, Failed), (2, Completed)], (2, true, 0, &[]));
    check(cursor, &[(0, Failed), (1, Dead)], (1, true, 0, &[1]));
    check(cursor, &[(0, Dead)], (0, true, 0, &[0]));
    let dropped = decide(&cursor, &[(Place::InRange(Offset(0)), Failed)]);
    assert_eq!(dropped.items, [ItemVerdict::Done]);
}

#[test]
fn a_conflated_ack_commits_its_span() {
    let cursor = AckCursor { conflated: true, ..CURSOR };
    check(cursor, &[(4, Completed)], (4, true, 0, &[]));
}

#[test]
fn without_a_lease_a_completion_only_moves_the_cursor() {
    let cursor = AckCursor { batch_end: None, ..CURSOR };
    check(cursor, &[(7, Completed)], (7, false, 0, &[]));
}

#[test]
fn items_outside_the_range_do_not_move_anything() {
    let cursor = AckCursor { committed: 2, ..CURSOR };
    let items = [
        (Place::Below(Offset(1)), Completed),
        (Place::Below(Offset(2)), Failed),
        (Place::Unknown, Completed),
    ];
    let decision = decide(&cursor, &items);
    assert!(!decision.changes(&cursor));
    let expected = [ItemVerdict::Noop, ItemVerdict::Unresolved, ItemVerdict::Unresolved];
    assert_eq!(decision.items, expected);
}

#[test]
fn the_marker_follows_the_cursor_inside_the_batch() {
    let items = [(Place::InRange(Offset(1)), Completed)];
    assert_eq!(decide(&CURSOR, &items).marker, Some(Marker::MoveTo(Offset(2))));
    let items = [(Place::InRange(Offset(4)), Completed)];
    assert_eq!(decide(&CURSOR, &items).marker, Some(Marker::Reset));
    let items = [(Place::InRange(Offset(1)), Failed)];
    assert_eq!(decide(&CURSOR, &items).marker, None);
}
