//! The decision on the acknowledgments of one call for one cursor: an ack is a commit.
//!
//! Pure: the offsets are resolved before, the cursor is moved after. Source: the API page on acknowledgments.

use std::collections::BTreeMap;

use queen_record::ids::Offset;

/// A consumer's verdict about one message, weakest first: on one offset the strongest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Done.
    Completed,
    /// Redeliver without charge.
    Retry,
    /// Redeliver, charging the retry budget.
    Failed,
    /// File now.
    Dead,
}

/// Where an acknowledged message stands relative to the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Inside the span that this call may settle.
    InRange(Offset),
    /// At or below the cursor.
    Below(Offset),
    /// Nowhere that can be acknowledged.
    Unknown,
}

/// The cursor that the call acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckCursor {
    /// Last offset done, -1 for none.
    pub committed: i64,
    /// Last offset of the lease that the call acts under; `None` without a live lease.
    pub batch_end: Option<Offset>,
    /// Retry counter.
    pub retries: u32,
    /// Whether the lease stands for its whole span.
    pub conflated: bool,
    /// How many `failed` acks redeliver.
    pub retry_limit: u32,
    /// Whether an exhausted message is filed rather than dropped.
    pub files_exhausted: bool,
}

/// One item's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemVerdict {
    /// Taken.
    Done,
    /// Taken, and its message was dead-lettered, also when another item of the call asked for that.
    DeadLettered,
    /// A `completed` at or below the cursor.
    Noop,
    /// Names nothing that can be acknowledged so.
    Unresolved,
}

/// What the call does to the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckDecision {
    /// Last offset done now.
    pub committed: i64,
    /// Whether the lease ends.
    pub release: bool,
    /// Whether the lease ended because everything in it is done.
    pub settled: bool,
    /// Retry counter now.
    pub retries: u32,
    /// Where the next delivery counts as a repeated one; `None` leaves the marker where it is.
    pub marker: Option<Marker>,
    /// Offsets to be dead-lettered, in order, each with the item that decided it.
    pub dead: Vec<(Offset, usize)>,
    /// One per item.
    pub items: Vec<ItemVerdict>,
}

/// A change of the attempt marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The next delivery is a first one.
    Reset,
    /// The open batch goes on at this offset.
    MoveTo(Offset),
}

impl AckDecision {
    /// Whether the cursor row changes.
    pub fn changes(&self, cursor: &AckCursor) -> bool {
        self.release || self.committed != cursor.committed || self.retries != cursor.retries
    }
}

/// Decides the items of one call for one cursor.
///
/// Shape: `items` are place and verdict in input order. The places were resolved against `cursor.committed`.
pub fn decide(cursor: &AckCursor, items: &[(Place, Verdict)]) -> AckDecision {
    let mut by_offset: BTreeMap<i64, (Verdict, usize)> = BTreeMap::new();
    for (at, (place, verdict)) in items.iter().enumerate() {
        if let Place::InRange(offset) = place {
            let slot = by_offset.entry(signed(*offset)).or_insert((*verdict, at));
            if *verdict > slot.0 {
                *slot = (*verdict, at);
            }
        }
    }
    let head = by_offset.iter().find(|(_, (verdict, _))| *verdict != Verdict::Completed);
    let head = head.map(|(offset, (verdict, item))| (*offset, *verdict, *item));
    let below_head = head.map_or(i64::MAX, |(offset, ..)| offset);
    let done = by_offset.range(..below_head).next_back().map(|(offset, _)| *offset);
    let new = done.unwrap_or(cursor.committed).max(cursor.committed);
    let mut decision = AckDecision {
        committed: new,
        release: false,
        settled: false,
        retries: cursor.retries,
        marker: None,
        dead: Vec::new(),
        items: Vec::new(),
    };
    match head {
        None => settle_clean(cursor, done.is_some(), &mut decision),
        Some((_, Verdict::Retry | Verdict::Completed, _)) => decision.release = true,
        Some((_, Verdict::Failed, _)) if cursor.retries < cursor.retry_limit => {
            decision.release = true;
            decision.retries = cursor.retries + 1;
        }
        Some((offset, verdict, item)) => {
            if verdict == Verdict::Dead || cursor.files_exhausted {
                decision.dead.push((offset_of(offset), item));
            }
            decision.committed = offset;
            decision.release = true;
            decision.retries = 0;
            decision.marker = Some(Marker::Reset);
            settle_above(cursor, &by_offset, &mut decision);
        }
    }
    decision.items = verdicts(items, &decision);
    decision
}

/// No message failed: the cursor moves up, and the lease ends when it reaches the batch's end.
fn settle_clean(cursor: &AckCursor, any: bool, decision: &mut AckDecision) {
    if !any {
        return;
    }
    let Some(end) = cursor.batch_end else { return };
    if cursor.conflated {
        decision.committed = signed(end);
    }
    if decision.committed >= signed(end) {
        decision.release = true;
        decision.settled = true;
        decision.retries = 0;
        decision.marker = Some(Marker::Reset);
    } else {
        let next = offset_of(decision.committed + 1);
        decision.marker = Some(Marker::MoveTo(next));
    }
}

/// Above a dead-lettered head: goes on while each offset is decided by this same call.
fn settle_above(
    cursor: &AckCursor,
    by_offset: &BTreeMap<i64, (Verdict, usize)>,
    decision: &mut AckDecision,
) {
    let exhausted = cursor.retries >= cursor.retry_limit;
    let highest_completed = by_offset
        .iter()
        .rev()
        .find(|(_, (verdict, _))| *verdict == Verdict::Completed)
        .map_or(-1, |(offset, _)| *offset);
    let last = by_offset.last_key_value().map_or(-1, |(offset, _)| *offset);
    let mut next = decision.committed + 1;
    while next <= last {
        match by_offset.get(&next) {
            Some((Verdict::Dead, item)) => decision.dead.push((offset_of(next), *item)),
            Some((Verdict::Failed, item)) if exhausted => {
                if cursor.files_exhausted {
                    decision.dead.push((offset_of(next), *item));
                }
            }
            Some((Verdict::Failed, _)) => {
                decision.retries = cursor.retries;
                break;
            }
            Some((Verdict::Completed, _)) => {}
            None if next < highest_completed => {
                // A gap below something completed is done with it: jump to the next decided offset.
                let decided = by_offset.range(next..).next().map_or(next, |(offset, _)| *offset);
                next = decided;
                decision.committed = next - 1;
                continue;
            }
            Some((Verdict::Retry, _)) | None => break,
        }
        decision.committed = next;
        next += 1;
    }
    let end = cursor.batch_end.map(signed);
    decision.settled = end.is_some_and(|end| decision.committed >= end);
}

fn verdicts(items: &[(Place, Verdict)], decision: &AckDecision) -> Vec<ItemVerdict> {
    let verdict = |(place, verdict): &(Place, Verdict)| match place {
        Place::InRange(offset) => {
            let filed = decision.dead.binary_search_by_key(offset, |(dead, _)| *dead).is_ok();
            if filed { ItemVerdict::DeadLettered } else { ItemVerdict::Done }
        }
        Place::Below(_) if *verdict == Verdict::Completed => ItemVerdict::Noop,
        Place::Below(_) | Place::Unknown => ItemVerdict::Unresolved,
    };
    items.iter().map(verdict).collect()
}

fn signed(offset: Offset) -> i64 {
    i64::try_from(offset.0).unwrap_or(i64::MAX)
}

fn offset_of(position: i64) -> Offset {
    Offset(u64::try_from(position).unwrap_or(0))
}

#[cfg(test)]
mod tests;
