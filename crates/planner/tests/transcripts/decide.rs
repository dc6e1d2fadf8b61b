//! The bare decision on an acknowledgment call, from a cursor that a story writes down.

use queen_planner::ack::{AckCursor, ItemVerdict, Marker, Place, decide};
use queen_record::ids::Offset;

use crate::script::Words;
use crate::settle::parse_verdict;
use crate::world::{Says, World};

impl World {
    /// `decide [committed=] [batch=] [retries=] [limit=] [conflated] [drops] place=verdict ...`: a place is an offset in
    /// range, `<3` one below the cursor, `?` unknown; without `batch` there is no lease.
    pub(crate) fn decide(&mut self, mut words: Words, says: &mut Says) {
        let cursor = AckCursor {
            committed: words.number("committed").unwrap_or(-1),
            batch_end: words.number("batch").map(Offset),
            retries: words.number("retries").unwrap_or(0),
            retry_limit: words.number("limit").unwrap_or(3),
            conflated: words.flag("conflated"),
            files_exhausted: !words.flag("drops"),
        };
        let items: Vec<_> = words.rest().iter().map(|word| item(word)).collect();
        let decision = decide(&cursor, &items);
        let mut verdicts = Vec::new();
        for ((place, verdict), item) in items.iter().zip(&decision.items) {
            self.seen.verdict(verdict);
            self.seen.ack_place(place);
            self.seen.item_verdict(item);
            verdicts.push(match item {
                ItemVerdict::Done => "done",
                ItemVerdict::DeadLettered => "dead-lettered",
                ItemVerdict::Noop => "nothing to do",
                ItemVerdict::Unresolved => "unresolved",
            });
        }
        self.seen.marker(&decision.marker);
        says.push(verdicts.join(", "));
        let release = match (decision.release, decision.settled) {
            (true, true) => "settled to its end",
            (true, false) => "released",
            (false, _) => "goes on",
        };
        let marker = match decision.marker {
            None => "stays".to_owned(),
            Some(Marker::Reset) => "reset".to_owned(),
            Some(Marker::MoveTo(offset)) => format!("at {offset}"),
        };
        let dead: Vec<String> =
            decision.dead.iter().map(|(offset, _)| offset.to_string()).collect();
        let dead =
            if dead.is_empty() { String::new() } else { format!(", files {}", dead.join(" ")) };
        let (committed, retries) = (decision.committed, decision.retries);
        says.push(format!(
            "done to {committed}, lease {release}, {retries} retries, marker {marker}{dead}"
        ));
    }
}

fn item(word: &str) -> (Place, queen_planner::ack::Verdict) {
    let (place, verdict) = word.split_once('=').unwrap_or((word, "completed"));
    let place = match place.strip_prefix('<') {
        Some(offset) => Place::Below(Offset(offset.parse().unwrap())),
        None if place == "?" => Place::Unknown,
        None => Place::InRange(Offset(place.parse().unwrap())),
    };
    (place, parse_verdict(verdict))
}
