//! The same entries, several of them written before one sync: what a replicator with a busy disk does.
//!
//! One node commits each entry before it plans the next, so its logs never roll over unsynced records. A cluster's
//! do. This writes the entries of a finished run in groups, with its own checkpoints and background work.

use std::sync::Arc;

use parking_lot::RwLock;
use queen_io::SimDisk;
use queen_raft::{LocalReplicator, Proposal, Replicator, Step};

use crate::history::History;
use crate::node::{Bare, Cutting, Setup, open, reclaimer};
use crate::rng::Rng;
use crate::workload::Run;

/// Largest group.
const GROUP_MAX: u64 = 5;

/// Writes the run's entries in groups on an empty disk.
///
/// # Errors
/// Why the directory does not open.
pub fn run(disk: &SimDisk, setup: &Setup, plain: Run, seed: u64) -> Result<Run, String> {
    let bare = open(disk, setup)?;
    let mut run = Run { history: plain.history, ..plain };
    run.history.sent.clear();
    run.history.answered.clear();
    run.history.durable.clear();
    run.stopped = write_groups(disk, bare, &mut run, seed).err();
    Ok(run)
}

fn write_groups(disk: &SimDisk, bare: Bare, run: &mut Run, seed: u64) -> Result<(), String> {
    let Bare { mut store, opened } = bare;
    let shared = Arc::new(RwLock::new(opened.state));
    let qlog = opened.qlog;
    let mut reclaimer = reclaimer(&qlog, &shared);
    let mut rng = Rng::new(seed);
    let applied = shared.read().applied();
    let mut replicator = LocalReplicator::new(qlog.clone(), applied);
    let history: &mut History = &mut run.history;
    let mut entries = run.sent.entries.drain(..).peekable();
    let mut groups = 0u64;
    let mut cutting: Option<Cutting> = None;
    let (mut proposed, mut steps) = (applied, Vec::new());
    while entries.peek().is_some() {
        for _ in 0..=rng.below(GROUP_MAX) {
            let Some((entry, logs)) = entries.next() else { break };
            let before = disk.calls();
            replicator.propose(Proposal { entry, logs }).map_err(|fault| fault.to_string())?;
            proposed = proposed.next();
            history.sent.push((before, proposed.0));
        }
        let mut state = shared.write();
        replicator.commit(&mut steps).map_err(|fault| fault.to_string())?;
        for step in steps.drain(..) {
            let Step::Committed { committed, .. } = step else { continue };
            state
                .apply(committed.index, committed.term, &committed.entry)
                .map_err(|error| error.to_string())?;
            if history.digests.get(&committed.index.0) != Some(&state.digest()) {
                return Err(format!("entry {} gives another state in a group", committed.index));
            }
        }
        history.answered.push((disk.calls(), state.applied().0));
        groups += 1;
        let now = state.last_now();
        drop(state);
        match groups % 8 {
            3 => while qlog.background().map_err(|fault| fault.to_string())? {},
            5 => {
                let mut state = shared.write();
                let mut begun = Cutting::begin(&mut state, &qlog);
                begun.pull(&mut state, 4);
                cutting = Some(begun);
            }
            1 | 6 => {
                reclaimer.pass(now).map_err(|fault| fault.to_string())?;
            }
            7 => {
                if let Some(begun) = cutting.take() {
                    let point = begun.write(&mut shared.write(), &mut store, &qlog)?;
                    history.durable.push((disk.calls(), point.index.0));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
