//! Which verdicts the stories have shown, and which there are: a new one does not compile until it is named here, and
//! fails until a story shows it.

use std::collections::BTreeSet;

use queen_model::{Effect, Refusal, SubscriptionMode};
use queen_planner::ack::{ItemVerdict, Marker, Place as AckPlace, Verdict};
use queen_planner::consume::{
    AckOutcome, AckQuestion, BundleVerdict, ClaimFrom, Grant, ItemResult, LeaseTerms, Place, Start,
    Taken,
};
use queen_planner::push::{PushJudged, PushPlan, PushVerdict};
use queen_planner::retention::{Dropped, Judged};

#[derive(Default)]
pub(crate) struct Seen(BTreeSet<&'static str>);

impl Seen {
    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Everything that was never shown.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let all = KINDS.iter().chain(OTHERS).copied();
        all.filter(|name| !self.0.contains(name)).collect()
    }

    /// Notes something that has no type of its own; one of [`OTHERS`].
    pub(crate) fn note(&mut self, what: &'static str) {
        assert!(OTHERS.contains(&what), "{what} is not in the list");
        self.0.insert(what);
    }

    pub(crate) fn effect(&mut self, effect: &Effect) {
        let what = match effect {
            Effect::QueueUpsert { .. } => "effect: queue made or changed",
            Effect::QueueDelete { .. } => "effect: queue deleted",
            Effect::GroupUpsert(group) => {
                self.mode(&group.mode);
                "effect: group registered"
            }
            Effect::GroupDelete { .. } => "effect: group deleted",
            Effect::PartitionCreate(_) => "effect: partition made",
            Effect::Append(_) => "effect: append",
            Effect::CursorSet(_) => "effect: cursor set",
            Effect::CursorDelete { .. } => "effect: cursor deleted",
            Effect::DlqInsert(_) => "effect: dead letter filed",
            Effect::DlqDelete { .. } => "effect: dead letter removed",
            Effect::DeleteChunk { .. } => "effect: rows swept",
            Effect::PartitionDelete { .. } => "effect: partition removed",
            Effect::Watermark(_) => "effect: marks moved",
            Effect::Noop => panic!("nobody plans {effect:?}"),
        };
        self.note(what);
    }
}

macro_rules! kinds {
    ($($function:ident($type:ty) { $($pattern:pat => $name:literal),+ $(,)? })+) => {
        impl Seen {
            $(pub(crate) fn $function(&mut self, value: &$type) {
                self.0.insert(match value { $($pattern => $name),+ });
            })+
        }

        /// Every kind of every type below.
        const KINDS: &[&str] = &[$($($name),+),+];
    };
}

kinds! {
    push_plan(PushPlan) {
        PushPlan::Done(_) => "push: decided",
        PushPlan::NeedLog(..) => "push: asks the log",
        PushPlan::Refused(_) => "push: refused",
    }
    push_judged(PushJudged) {
        PushJudged::Decided(_) => "push in a transaction: decided",
        PushJudged::NeedLog(..) => "push in a transaction: asks the log",
        PushJudged::Refused(_) => "push in a transaction: refused",
    }
    push_verdict(PushVerdict) {
        PushVerdict::Queued { .. } => "pushed item: queued",
        PushVerdict::Duplicate(_) => "pushed item: duplicate",
    }
    refusal(Refusal) {
        Refusal::NameTooLong { .. } => "refusal: name too long",
        Refusal::TooLarge { .. } => "refusal: too large",
        Refusal::BadRequest(_) => "refusal: bad request",
    }
    mode(SubscriptionMode) {
        SubscriptionMode::All => "subscription: all",
        SubscriptionMode::New => "subscription: new",
        SubscriptionMode::Timestamp => "subscription: a time",
    }
    start(Start) {
        // Only an engine that starts says so; a pop that does begins with everything.
        Start::Stored | Start::All => "start: all",
        Start::End => "start: end",
        Start::From(_) => "start: a time",
    }
    claim_from(ClaimFrom) {
        ClaimFrom::Offset(_) => "claim: from an offset",
        ClaimFrom::Time(_) => "claim: from a time",
        ClaimFrom::Newest { .. } => "claim: the newest",
    }
    terms(LeaseTerms) {
        LeaseTerms::Lease { .. } => "terms: lease",
        LeaseTerms::Commit => "terms: committed at delivery",
    }
    taken(Taken) {
        Taken::Granted(Grant { attempt: ..=1 }) => "claim: granted for the first time",
        Taken::Granted(_) => "claim: granted again",
        Taken::Nothing => "claim: nothing to deliver",
        Taken::Lost => "claim: lost",
    }
    verdict(Verdict) {
        Verdict::Completed => "ack: completed",
        Verdict::Retry => "ack: retry",
        Verdict::Failed => "ack: failed",
        Verdict::Dead => "ack: dlq",
    }
    ack_outcome(AckOutcome) {
        AckOutcome::Done(_) => "ack: decided",
        AckOutcome::NeedLog(_) => "ack: asks the log",
    }
    ack_question(AckQuestion) {
        AckQuestion::Offsets { .. } => "ack asks: where messages stand",
        AckQuestion::Messages { .. } => "ack asks: messages to be filed",
    }
    item_result(ItemResult) {
        ItemResult::Done { noop: true, .. } => "acked item: nothing to do",
        ItemResult::Done { dead_lettered: true, released: true, .. } =>
            "acked item: dead-lettered, lease released",
        ItemResult::Done { dead_lettered: true, released: false, .. } =>
            "acked item: dead-lettered without a lease",
        ItemResult::Done { released: true, .. } => "acked item: done, lease released",
        ItemResult::Done { released: false, .. } => "acked item: done, lease goes on",
        ItemResult::LeaseLost => "acked item: lease lost",
        ItemResult::Unresolved => "acked item: unresolved",
    }
    bundle(BundleVerdict) {
        BundleVerdict::Holds(_) => "bundle: holds",
        BundleVerdict::NeedLog(_) => "bundle: asks the log",
        BundleVerdict::Refused { .. } => "bundle: refused",
    }
    judged(Judged) {
        Judged::Moved { .. } => "retention: marks move",
        Judged::Removed => "retention: partition removed",
        Judged::Dropped(Dropped::Gone) => "retention: gone already",
        Judged::Dropped(Dropped::InFlight) => "retention: something is in flight",
        Judged::Dropped(Dropped::Stale) => "retention: what was seen is stale",
        Judged::Dropped(Dropped::NotDue) => "retention: not due",
    }
    place(Place) {
        Place::Next(_) => "moved: to an offset",
        Place::End => "moved: to the end",
    }
    ack_place(AckPlace) {
        AckPlace::InRange(_) => "decision: in range",
        AckPlace::Below(_) => "decision: below the cursor",
        AckPlace::Unknown => "decision: unknown",
    }
    item_verdict(ItemVerdict) {
        ItemVerdict::Done => "decided item: done",
        ItemVerdict::DeadLettered => "decided item: dead-lettered",
        ItemVerdict::Noop => "decided item: nothing to do",
        ItemVerdict::Unresolved => "decided item: unresolved",
    }
    marker(Option<Marker>) {
        None => "marker: stays",
        Some(Marker::Reset) => "marker: reset",
        Some(Marker::MoveTo(_)) => "marker: moves",
    }
}

/// Verdicts that are numbers and truth values, and those of the engine that only show in what it hands out.
const OTHERS: &[&str] = &[
    "readiness: ready",
    "readiness: later",
    "readiness: idle",
    "registers: a queue that is there",
    "registers: makes the queue",
    "registers: refused",
    "registers: known already",
    "configure: made",
    "configure: changed",
    "configure: the same",
    "configure: refused",
    "queue deleted",
    "queue not there",
    "group deleted",
    "group not there",
    "resubscribed",
    "not resubscribed",
    "extended",
    "not extended",
    "effect: queue made or changed",
    "effect: queue deleted",
    "effect: group registered",
    "effect: group deleted",
    "effect: partition made",
    "effect: append",
    "effect: cursor set",
    "effect: cursor deleted",
    "effect: dead letter filed",
    "effect: dead letter removed",
    "effect: rows swept",
    "effect: marks moved",
    "effect: partition removed",
];
