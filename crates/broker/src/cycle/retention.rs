//! Retention in the cycle: what was proposed is judged at the end of a plan, after everything else is in it.

use queen_planner::draft::Draft;
use queen_planner::retention::{Dropped, Judged, Proposal, RetentionContext};
use queen_state::State;

use super::Cycle;

/// What became of the proposals of one plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionDone {
    /// Proposals judged.
    pub judged: usize,
    /// Of them, those that moved marks.
    pub moved: u64,
    /// Messages removed by them.
    pub messages: u64,
    /// Bytes that those counted as retained.
    pub bytes: u64,
    /// Partitions removed.
    pub partitions: u64,
    /// Dropped because the partition was deleted, or something else came in between.
    pub overtaken: u64,
    /// Dropped because it was not due, or a group held it.
    pub not_due: u64,
}

impl RetentionDone {
    fn note(&mut self, judged: Judged) {
        self.judged += 1;
        match judged {
            Judged::Moved { messages, bytes } => {
                self.moved += 1;
                self.messages += messages;
                self.bytes += bytes;
            }
            Judged::Removed => self.partitions += 1,
            Judged::Dropped(Dropped::NotDue) => self.not_due += 1,
            Judged::Dropped(Dropped::Gone | Dropped::InFlight | Dropped::Stale) => {
                self.overtaken += 1;
            }
        }
    }
}

impl Cycle {
    /// Takes proposals; they are judged when the plan is otherwise complete.
    pub(super) fn propose_retention(&mut self, proposals: Vec<Proposal>) {
        self.proposed_retention.extend(proposals);
    }

    /// Judges what was proposed, as much as one plan may.
    pub(super) fn judge_retention(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
    ) -> RetentionDone {
        let mut done = RetentionDone::default();
        let terms = self.limits.retention_terms();
        // Whatever else the plan is full of: a node that is never idle must remove what is old too.
        while done.judged < self.limits.proposals_max
            && let Some(proposal) = self.proposed_retention.pop_front()
        {
            let mut context = RetentionContext {
                state,
                overlay: &mut self.overlay,
                engine: &self.engine,
                terms: &terms,
                plan: self.proposed + 1,
            };
            done.note(context.judge(draft, &proposal));
        }
        done
    }
}
