//! One round of a node, without threads: plan, propose, commit, apply, answer.
//!
//! The core thread and the simulator both drive this; neither adds a rule of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockWriteGuard};
use queen_planner::draft::{Route, Stamp};
use queen_raft::{Committed, Proposal, Replicator, Step};
use queen_record::ids::{EntryIndex, LogId, Micros};
use queen_record::layout::SYSTEM_LOG;
use queen_state::State;

use crate::arrivals::Arrivals;
use crate::cycle::{Cycle, Input, RetentionDone};
use crate::lookup::{Lookup, Reader};

/// A node's moving parts.
pub struct Machine {
    state: Arc<RwLock<State>>,
    reader: Reader,
    cycle: Cycle,
    replicator: Box<dyn Replicator>,
    arrivals: Option<Arc<Arrivals>>,
    /// Whom to tell of damage that a read met.
    on_damage: Option<Tell>,
    /// Whether this node plans.
    is_leading: bool,
    steps: Vec<Step>,
}

/// Takes word of damage.
type Tell = Box<dyn Fn(&str) + Send>;

/// What one round did.
#[derive(Debug, Default)]
pub struct Round {
    /// Questions to the logs: each answer must come back as an input.
    pub lookups: Vec<Lookup>,
    /// Answers that left.
    pub answered: usize,
    /// Entries applied.
    pub applied: u64,
    /// Whether this node began or ended to plan.
    pub role_changed: bool,
    /// What retention did.
    pub retention: RetentionDone,
    /// Damage that a read met.
    pub damage: Option<String>,
    /// How long each stage took.
    pub took: Stages,
}

/// A round that has begun.
#[derive(Debug, Default)]
pub struct Begun {
    round: Round,
    /// Whether this node planned in it.
    is_planned: bool,
    /// When its entry was proposed.
    written: Option<Instant>,
}

/// Time of a round by stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// Planning.
    pub plan: Duration,
    /// Writing the logs.
    pub write: Duration,
    /// Making them durable.
    pub sync: Duration,
    /// Applying.
    pub apply: Duration,
}

impl Machine {
    /// A machine over an opened directory.
    pub fn new(
        state: Arc<RwLock<State>>,
        reader: Reader,
        cycle: Cycle,
        replicator: Box<dyn Replicator>,
    ) -> Self {
        let (is_leading, steps) = (replicator.leads_at_start(), Vec::new());
        let (arrivals, on_damage) = (None, None);
        Self { state, reader, cycle, replicator, arrivals, on_damage, is_leading, steps }
    }

    /// Shows every applied entry to those who wait for messages by offset.
    pub(crate) fn with_arrivals(self, arrivals: Arc<Arrivals>) -> Self {
        Self { arrivals: Some(arrivals), ..self }
    }

    /// Tells of damage before anybody is answered that something is damaged: whoever then looks at the node's health sees it.
    pub(crate) fn with_damage_told(self, tell: impl Fn(&str) + Send + 'static) -> Self {
        Self { on_damage: Some(Box::new(tell)), ..self }
    }

    /// The state, as of the last applied entry.
    pub fn state(&self) -> &Arc<RwLock<State>> {
        &self.state
    }

    /// The reader of the logs.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The cycle.
    pub fn cycle(&self) -> &Cycle {
        &self.cycle
    }

    /// Whether this node plans: it is alone, or leads its cluster.
    pub fn is_leading(&self) -> bool {
        self.is_leading
    }

    /// Whether another round should follow at once although nothing arrived.
    pub fn has_work(&self) -> bool {
        self.is_leading && self.cycle.has_work(&self.state.read())
    }

    /// When a round is due although nothing arrives.
    pub fn next_due(&self) -> Option<Micros> {
        if self.is_leading { self.cycle.next_due() } else { None }
    }

    /// One round over everything in `inputs`, which is emptied. What arrives at a node that does not plan is dropped: its
    /// callers see that nobody will answer.
    ///
    /// # Errors
    /// A fault of the logs or a failed apply: the machine must not be used again, and nothing more answered.
    pub fn round(
        &mut self,
        now: Micros,
        entropy: &mut dyn FnMut() -> u64,
        inputs: &mut Vec<Input>,
    ) -> Result<Round, String> {
        let (mut steps, mut begun) = (std::mem::take(&mut self.steps), Begun::default());
        self.replicator.begin_round(&mut steps).map_err(|fault| fault.to_string())?;
        self.take_steps(&mut steps, &mut begun.round)?;
        self.plan(now, entropy, inputs, &mut begun)?;
        if let Some(written) = begun.written {
            self.replicator.commit(&mut steps).map_err(|fault| fault.to_string())?;
            self.committed(written, &mut steps, &mut begun.round)?;
        }
        self.steps = steps;
        Ok(self.end(begun))
    }

    /// Begins a round, for whoever must not block; [`Machine::try_end`] ends it. When somebody else must end first it plans
    /// nothing and leaves `inputs` as they are: then it is to be begun again.
    ///
    /// # Errors
    /// As [`Machine::round`].
    pub fn try_begin(
        &mut self,
        now: Micros,
        entropy: &mut dyn FnMut() -> u64,
        inputs: &mut Vec<Input>,
    ) -> Result<Begun, String> {
        let (mut steps, mut begun) = (std::mem::take(&mut self.steps), Begun::default());
        let may_plan =
            self.replicator.try_begin_round(&mut steps).map_err(|fault| fault.to_string())?;
        self.take_steps(&mut steps, &mut begun.round)?;
        self.steps = steps;
        if may_plan {
            self.plan(now, entropy, inputs, &mut begun)?;
        }
        Ok(begun)
    }

    /// Ends a round, or hands it back while the fate of what it proposed is open: then it is to be called again, once the
    /// replicator has woken the core.
    ///
    /// # Errors
    /// As [`Machine::round`].
    pub fn try_end(&mut self, mut begun: Begun) -> Result<Result<Round, Begun>, String> {
        if let Some(written) = begun.written {
            let mut steps = std::mem::take(&mut self.steps);
            let is_over =
                self.replicator.try_commit(&mut steps).map_err(|fault| fault.to_string())?;
            self.committed(written, &mut steps, &mut begun.round)?;
            self.steps = steps;
            if !is_over {
                return Ok(Err(begun));
            }
        }
        Ok(Ok(self.end(begun)))
    }

    /// Plans what arrived, if this node does, and proposes the entry.
    fn plan(
        &mut self,
        now: Micros,
        entropy: &mut dyn FnMut() -> u64,
        inputs: &mut Vec<Input>,
        begun: &mut Begun,
    ) -> Result<(), String> {
        begun.is_planned = self.is_leading;
        if !self.is_leading {
            inputs.clear();
            return Ok(());
        }
        let round = &mut begun.round;
        let started = Instant::now();
        let planned = {
            let state = self.state.read();
            // One clock that never stands still, over all partitions and entries.
            let now = now.max(Micros(state.last_now().0 + 1));
            let now = now.max(Micros(state.max_created().0 + 1));
            let stamp = Stamp { now, entropy };
            self.cycle.plan(&state, &self.reader, stamp, inputs.drain(..))
        };
        round.took.plan = started.elapsed();
        round.lookups = planned.lookups;
        round.retention = planned.retention;
        round.damage = self.cycle.take_damage();
        if let (Some(damage), Some(tell)) = (&round.damage, &self.on_damage) {
            tell(damage);
        }
        if let Some((entry, routes)) = planned.entry {
            let logs = routes.iter().map(|route| self.log_of(*route)).collect();
            let started = Instant::now();
            let proposal = Proposal { entry, logs };
            self.replicator.propose(proposal).map_err(|fault| fault.to_string())?;
            let written = Instant::now();
            round.took.write = written - started;
            begun.written = Some(written);
        }
        Ok(())
    }

    /// Carries out what a commit brought.
    fn committed(
        &mut self,
        written: Instant,
        steps: &mut Vec<Step>,
        round: &mut Round,
    ) -> Result<(), String> {
        let synced = Instant::now();
        self.take_steps(steps, round)?;
        round.took.sync = synced - written;
        round.took.apply += synced.elapsed();
        Ok(())
    }

    /// Lets the answers go.
    fn end(&mut self, mut begun: Begun) -> Round {
        if begun.is_planned {
            begun.round.answered = self.cycle.release();
        }
        self.replicator.end_round();
        begun.round
    }

    fn take_steps(&mut self, steps: &mut Vec<Step>, round: &mut Round) -> Result<(), String> {
        for step in steps.drain(..) {
            match step {
                Step::Committed { committed, is_own } => self.apply(&committed, is_own, round)?,
                Step::Passed { index, term } => {
                    let passed = self.state.write().pass(index, term);
                    passed.map_err(|error| format!("APPLY FAILED DETERMINISTIC: {error}"))?;
                    self.cycle.passed(index);
                    self.handed_on(index, round);
                }
                Step::Lead => {
                    self.cycle.begin(&self.state.read());
                    (self.is_leading, round.role_changed) = (true, true);
                }
                Step::Follow => {
                    // Who waits for an answer of this plan gets none: it may be committed, or never.
                    self.cycle.begin(&self.state.read());
                    (self.is_leading, round.role_changed) = (false, true);
                }
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        committed: &Committed,
        is_own: bool,
        round: &mut Round,
    ) -> Result<(), String> {
        let Committed { index, term, entry } = committed;
        let mut state = self.state.write();
        state
            .apply(*index, *term, entry)
            .map_err(|error| format!("APPLY FAILED DETERMINISTIC: {error}"))?;
        let state = RwLockWriteGuard::downgrade(state);
        if is_own {
            self.cycle.applied(&state, *index, entry);
        } else {
            self.cycle.followed(*index, entry);
        }
        drop(state);
        if let Some(arrivals) = &self.arrivals {
            arrivals.applied(entry);
        }
        self.handed_on(*index, round);
        Ok(())
    }

    fn handed_on(&mut self, index: EntryIndex, round: &mut Round) {
        round.applied += 1;
        self.replicator.applied(index);
    }

    fn log_of(&self, route: Route) -> LogId {
        let qlog = self.reader.qlog();
        match route {
            Route::Partition(queue, partition) => qlog.log_of(queue, Some(partition)),
            Route::Queue(queue) => qlog.log_of(queue, None),
            Route::System => SYSTEM_LOG,
        }
    }
}
