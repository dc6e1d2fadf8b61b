//! Each mutating call of the script fails once, in a run of its own.
//!
//! The node stops, or goes on correctly; it never panics. Then the power fails, or only the process is started
//! again: nothing that was acknowledged may be lost, also when the power fails after that.

use queen_io::SimDisk;
use queen_io::sim::{Choice, SimFault};

use crate::client::WRONG;
use crate::crash::{Figures, drop_sites};
use crate::history::History;
use crate::node::{SimNode, Start, new_disk};
use crate::oracle::{Bounds, open_and_check};
use crate::rng::Rng;
use crate::variant::Variant;
use crate::workload::{self, Run, after_recovery};

/// Every fault.
pub const FAULTS: [SimFault; 4] =
    [SimFault::Eio, SimFault::Enospc, SimFault::Eintr, SimFault::ShortWrite];

/// One run with one failing call.
#[derive(Clone, Copy)]
pub struct FaultRun<'a> {
    /// The variant; not a grouped one.
    pub variant: Variant,
    /// The seed.
    pub seed: u64,
    /// Sync sites left out.
    pub dropped: &'a [String],
    /// The call that fails.
    pub call: u64,
    /// How.
    pub fault: SimFault,
}

impl FaultRun<'_> {
    /// Runs it; `clean` is the same run without the fault.
    ///
    /// # Errors
    /// What is wrong, with the options that repeat it.
    pub fn run(&self, clean: &Run, figures: &mut Figures) -> Result<(), String> {
        let (name, seed, call, fault) = (self.variant.name, self.seed, self.call, self.fault);
        self.judge(clean, figures).map_err(|reason| {
            format!("{reason} | --variant {name} --seed {seed} --call {call} --fault {fault:?}")
        })
    }

    fn judge(&self, clean: &Run, figures: &mut Figures) -> Result<(), String> {
        let disk = new_disk();
        drop_sites(&disk, self.dropped);
        disk.fail_call(self.call, self.fault);
        figures.fault_runs += 1;
        let ended = workload::run(&disk, &self.variant.setup, self.seed);
        let stopped = ended.as_ref().ok().and_then(|run| run.stopped.as_ref());
        if let Some(reason) = stopped.filter(|reason| reason.starts_with(WRONG)) {
            return Err(reason.clone());
        }
        // A node that went on made other calls than the clean one: its own history counts. One that stopped did as
        // the clean one up to there, which alone knows the entry that was under way.
        let own = ended.as_ref().ok().filter(|run| run.stopped.is_none());
        let (clean, bounds) = if let Some(run) = own {
            (run, Bounds::at(disk.calls()))
        } else {
            // It may have borne the fault for a while: what it began before it stopped may be there.
            let sent = ended.as_ref().ok().and_then(|run| run.history.sent.last());
            let last = sent.map_or(0, |(_, index)| *index);
            let began = clean.history.sent.iter().find(|(_, index)| *index == last);
            let written_by = self.call.max(began.map_or(0, |(call, _)| *call + 1));
            (clean, Bounds { answered_by: self.call - 1, written_by })
        };
        let mut rng = Rng::new(self.seed ^ self.call);
        self.cuts(&disk, &clean.history, bounds, &mut rng, figures)
            .map_err(|reason| format!("power cut behind the fault: {reason}"))?;
        self.restart(&disk, clean, bounds, &mut rng, figures)
            .map_err(|reason| format!("start behind the fault: {reason}"))
    }

    /// The power fails now.
    fn cuts(
        &self,
        disk: &SimDisk,
        history: &History,
        bounds: Bounds,
        rng: &mut Rng,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let choices = [Choice::AllLost, Choice::AllKept, Choice::Scattered(rng.draw())];
        for choice in choices {
            let image = disk.crash_now(&choice);
            drop_sites(&image, self.dropped);
            figures.opened += 1;
            figures.distinct.insert(image.fingerprint());
            open_and_check(&image, &self.variant.setup, history, bounds)
                .map_err(|reason| format!("{choice:?}: {reason}"))?;
        }
        Ok(())
    }

    /// The process starts again on the same running system, works, and then the power fails.
    fn restart(
        &self,
        disk: &SimDisk,
        clean: &Run,
        bounds: Bounds,
        rng: &mut Rng,
        figures: &mut Figures,
    ) -> Result<(), String> {
        figures.opened += 1;
        let bare = open_and_check(disk, &self.variant.setup, &clean.history, bounds)?;
        let (applied, durable) = (bare.opened.state.applied().0, bare.opened.durable.0);
        let started = disk.calls();
        let history = clean.history.resumed(applied, durable);
        let seed = 1 + rng.below(200);
        let start = Start { now: clean.now + 1_000_000, seed };
        let mut node = SimNode::start(disk, bare, start, history)?;
        after_recovery(&mut node, seed)?;
        figures.sites.extend(disk.sync_sites());
        let behind = disk.calls() - started;
        for _ in 0..3 {
            let call = started + rng.below(behind);
            for choice in [Choice::AllLost, Choice::Scattered(rng.draw())] {
                let image = disk.crash(call, &choice);
                drop_sites(&image, self.dropped);
                figures.opened += 1;
                figures.distinct.insert(image.fingerprint());
                open_and_check(&image, &self.variant.setup, &node.history, Bounds::at(call))
                    .map_err(|reason| format!("power cut at call {call} {choice:?}: {reason}"))?;
            }
        }
        self.cuts(disk, &node.history, Bounds::at(disk.calls()), rng, figures)
    }
}

/// Every call and fault of a variant, those of one slice, until there are `violations_max`.
pub fn explore(
    variant: Variant,
    seed: u64,
    dropped: &[String],
    (slice, slices): (u64, u64),
    violations_max: usize,
) -> Figures {
    let mut figures = Figures::default();
    let prepare = |disk: &SimDisk| drop_sites(disk, dropped);
    let (disk, clean) = match variant.run(seed, &prepare) {
        Ok((disk, run)) if run.stopped.is_none() => (disk, run),
        Ok((_, run)) => {
            figures.violations.extend(run.stopped);
            return figures;
        }
        Err(reason) => {
            figures.violations.push(reason);
            return figures;
        }
    };
    for call in (1..=disk.calls()).filter(|call| call % slices == slice) {
        for fault in FAULTS {
            let run = FaultRun { variant, seed, dropped, call, fault };
            if let Err(line) = run.run(&clean, &mut figures) {
                figures.violations.push(line);
                if figures.violations.len() >= violations_max {
                    return figures;
                }
            }
        }
    }
    figures
}
