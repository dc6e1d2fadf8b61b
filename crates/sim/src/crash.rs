//! Every power cut of a run, and what is done with the disk that each leaves.

use std::collections::HashSet;

use queen_io::SimDisk;
use queen_io::sim::{Choice, Explorer, Image, SimFault};

use crate::history::History;
use crate::node::{SimNode, Start, open};
use crate::oracle::{Bounds, check_reopen, open_and_check};
use crate::rng::Rng;
use crate::variant::Variant;
use crate::workload::{Run, after_recovery};

/// How much is done with an image: one in so many.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Is looked at at all.
    pub look: u64,
    /// Of these, the ones whose hash leaves this remainder: threads share a walk so.
    pub slice: (u64, u64),
    /// Is started a second time.
    pub reopen: u64,
    /// Has every call of its recovery crash.
    pub recovery: u64,
    /// Is worked on after recovery, and crashes again.
    pub second: u64,
}

impl Depth {
    /// As the verification page asks.
    pub const GATE: Self = Self { look: 1, slice: (0, 1), reopen: 4, recovery: 50, second: 200 };
    /// Everything with every image.
    pub const ALL: Self = Self { look: 1, slice: (0, 1), reopen: 1, recovery: 1, second: 1 };

    /// Whether an image is looked at, by its hash, so that a repetition does the same.
    fn looks(&self, fingerprint: u128) -> bool {
        let bits = low(fingerprint.rotate_left(64));
        let (at, of) = self.slice;
        bits % of == at && (bits / of).is_multiple_of(self.look)
    }

    fn takes(every: u64, fingerprint: u128) -> bool {
        low(fingerprint).is_multiple_of(every)
    }
}

fn low(fingerprint: u128) -> u64 {
    let bytes = fingerprint.to_le_bytes();
    bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// What was looked at.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Disk calls of the runs.
    pub calls: u64,
    /// Images built.
    pub built: u64,
    /// Fingerprints of the images opened.
    pub distinct: HashSet<u128>,
    /// Images opened, those of second crashes included.
    pub opened: u64,
    /// Images that were started again.
    pub reopened: u64,
    /// Images of crashes during recovery.
    pub recovery: u64,
    /// Images that were worked on after recovery.
    pub second_runs: u64,
    /// Images of crashes in that work.
    pub second: u64,
    /// Runs with one failing call.
    pub fault_runs: u64,
    /// What was wrong, one line each.
    pub violations: Vec<String>,
    /// Places that synced.
    pub sites: HashSet<String>,
}

impl Figures {
    /// Adds another's.
    pub fn merge(&mut self, other: Self) {
        self.calls += other.calls;
        self.built += other.built;
        self.distinct.extend(other.distinct);
        self.opened += other.opened;
        self.reopened += other.reopened;
        self.recovery += other.recovery;
        self.second_runs += other.second_runs;
        self.second += other.second;
        self.fault_runs += other.fault_runs;
        self.violations.extend(other.violations);
        self.sites.extend(other.sites);
    }
}

/// Kills of the recovery of one image, on average.
const KILLS_MEAN: u64 = 8;

/// One exploration.
pub struct Exploration<'a> {
    /// The variant.
    pub variant: Variant,
    /// The seed of the workload and of the choices.
    pub seed: u64,
    /// How much is done.
    pub depth: Depth,
    /// Sync sites left out.
    pub dropped: &'a [String],
    /// Whether one image is looked at again: nothing is left out because it was seen.
    pub repeating: bool,
    /// Violations after which it ends.
    pub violations_max: usize,
}

impl Exploration<'_> {
    /// The run whose crashes are explored.
    ///
    /// # Errors
    /// What the uncrashed run got wrong.
    pub fn run(&self) -> Result<(SimDisk, Run), String> {
        let dropped = self.dropped;
        let (disk, run) = self.variant.run(self.seed, &|disk| drop_sites(disk, dropped))?;
        match &run.stopped {
            Some(reason) => Err(reason.clone()),
            None => Ok((disk, run)),
        }
    }

    /// Explores.
    pub fn explore(&self) -> Figures {
        let mut figures = Figures::default();
        let (disk, run) = match self.run() {
            Ok(done) => done,
            Err(reason) => {
                let (name, seed) = (self.variant.name, self.seed);
                let line = format!("the run itself: {reason} | --variant {name} --seed {seed}");
                figures.violations.push(line);
                return figures;
            }
        };
        figures.calls = disk.calls();
        figures.sites.extend(disk.sync_sites());
        for image in Explorer::new(&disk, self.seed) {
            figures.built += 1;
            if !self.depth.looks(image.fingerprint) {
                continue;
            }
            let (call, choice) = (image.call, image.choice.clone());
            if let Err(reason) = self.image(image, &run, &mut figures) {
                let line = format!("{reason} | {}", self.repeat(call, &choice));
                figures.violations.push(line);
                if figures.violations.len() >= self.violations_max {
                    break;
                }
            }
        }
        figures
    }

    /// The options that repeat one image.
    pub fn repeat(&self, call: u64, choice: &Choice) -> String {
        let (name, seed) = (self.variant.name, self.seed);
        format!("--variant {name} --seed {seed} --call {call} --choice '{choice:?}'")
    }

    /// Looks at one image.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn image(&self, image: Image, run: &Run, figures: &mut Figures) -> Result<(), String> {
        let Image { call, choice: _, disk, fingerprint } = image;
        let setup = &self.variant.setup;
        drop_sites(&disk, self.dropped);
        figures.distinct.insert(fingerprint);
        figures.opened += 1;
        let worked_on = Depth::takes(self.depth.second, fingerprint);
        let untouched = worked_on.then(|| disk.copy());
        let bare = open_and_check(&disk, setup, &run.history, Bounds::at(call))?;
        figures.sites.extend(disk.sync_sites());
        let (applied, durable) = (bare.opened.state.applied().0, bare.opened.durable.0);
        if Depth::takes(self.depth.reopen, fingerprint) {
            figures.reopened += 1;
            check_reopen(&disk.copy(), setup, applied)?;
        }
        if Depth::takes(self.depth.recovery, fingerprint) {
            self.recovery_crashes(&disk, (applied, durable), run, figures)?;
        }
        if let Some(untouched) = untouched {
            let calls = disk.calls();
            self.killed_recoveries(&untouched, calls, Bounds::at(call), run, figures)?;
            figures.second_runs += 1;
            let history = run.history.resumed(applied, durable);
            let seed = 1 + (fingerprint.to_le_bytes().first().copied().map_or(0, u64::from));
            let start = Start { now: run.now + 1_000_000, seed };
            let mut node = SimNode::start(&disk, bare, start, history)?;
            after_recovery(&mut node, seed)
                .map_err(|reason| format!("the work after recovery: {reason}"))?;
            figures.sites.extend(disk.sync_sites());
            self.second_crashes(&disk, &node.history, seed, figures)?;
        }
        Ok(())
    }

    /// Every call of a recovery crashes: the next one ends the same.
    fn recovery_crashes(
        &self,
        disk: &SimDisk,
        (applied, durable): (u64, u64),
        run: &Run,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let end = logs_fingerprint(disk);
        // What recovery found is there to stay, and nothing else is.
        let mut history = run.history.clone();
        history.sent = vec![(0, applied)];
        history.answered = vec![(0, applied)];
        history.durable = vec![(0, durable)];
        let mut rng = Rng::new(self.seed ^ applied);
        for call in 0..disk.calls() {
            let odd = match rng.below(4) {
                0 => Choice::AllKept,
                1 => Choice::ItemsRandom(rng.draw()),
                2 => Choice::Torn(usize::try_from(1 + rng.below(200)).unwrap_or(1)),
                _ => Choice::Scattered(rng.draw()),
            };
            for choice in [Choice::AllLost, odd] {
                let image = disk.crash(call, &choice);
                let fingerprint = image.fingerprint();
                if !figures.distinct.insert(fingerprint) && !self.repeating {
                    continue;
                }
                figures.recovery += 1;
                figures.opened += 1;
                drop_sites(&image, self.dropped);
                let bounds = Bounds { answered_by: 0, written_by: 1 };
                let at = |reason: String| {
                    format!("crash at call {call} {choice:?} of the recovery: {reason}")
                };
                open_and_check(&image, &self.variant.setup, &history, bounds).map_err(at)?;
                if logs_fingerprint(&image) != end {
                    return Err(at("its logs end otherwise".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Crashes of the work after a recovery, the recovery's own calls included; a sample of calls and choices.
    fn second_crashes(
        &self,
        disk: &SimDisk,
        history: &History,
        seed: u64,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        for call in 0..=disk.calls() {
            if rng.below(3) > 0 {
                continue;
            }
            let mut choices = vec![Choice::AllLost, Choice::AllKept];
            let more = [
                Choice::NamesKept,
                Choice::DataKept,
                Choice::ItemsRandom(rng.draw()),
                Choice::Scattered(rng.draw()),
                Choice::Scattered(rng.draw()),
                Choice::Torn(usize::try_from(1 + rng.below(600)).unwrap_or(1)),
            ];
            choices.extend(more.into_iter().filter(|_| rng.below(4) == 0));
            for choice in choices {
                let image = disk.crash(call, &choice);
                drop_sites(&image, self.dropped);
                figures.second += 1;
                figures.opened += 1;
                figures.distinct.insert(image.fingerprint());
                open_and_check(&image, &self.variant.setup, history, Bounds::at(call)).map_err(
                    |reason| format!("second crash at call {call} {choice:?}: {reason}"),
                )?;
            }
        }
        Ok(())
    }

    /// The process ends at a call of its recovery while the system stays up; the next one works on what it left, and
    /// then the power fails: nothing that the first left unsynced may come back or go.
    fn killed_recoveries(
        &self,
        untouched: &SimDisk,
        calls: u64,
        bounds: Bounds,
        run: &Run,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let setup = &self.variant.setup;
        let mut rng = Rng::new(run.now.unsigned_abs() ^ calls ^ bounds.answered_by);
        let odds = if self.repeating { 1 } else { calls.div_ceil(KILLS_MEAN) };
        for call in 1..=calls {
            if rng.below(odds) > 0 {
                continue;
            }
            let disk = untouched.copy();
            drop_sites(&disk, self.dropped);
            disk.fail_call(call, SimFault::Eintr);
            if open(&disk, setup).is_ok() {
                return Err(format!("a recovery went on although its call {call} failed"));
            }
            let at = |reason: String| format!("killed at call {call} of its recovery: {reason}");
            let bare = open_and_check(&disk, setup, &run.history, bounds).map_err(at)?;
            let (applied, durable) = (bare.opened.state.applied().0, bare.opened.durable.0);
            let history = run.history.resumed(applied, durable);
            let start = Start { now: run.now + 1_000_000, seed: call };
            let started = disk.calls();
            let mut node = SimNode::start(&disk, bare, start, history)?;
            after_recovery(&mut node, call).map_err(at)?;
            let mut rng = Rng::new(call);
            let behind = disk.calls() - started;
            for choice in [
                Choice::AllLost,
                Choice::AllLost,
                Choice::ItemsRandom(rng.draw()),
                Choice::Scattered(rng.draw()),
            ] {
                let cut_at = started + rng.below(behind + 1);
                let image = disk.crash(cut_at, &choice);
                drop_sites(&image, self.dropped);
                figures.second += 1;
                figures.opened += 1;
                figures.distinct.insert(image.fingerprint());
                open_and_check(&image, setup, &node.history, Bounds::at(cut_at)).map_err(
                    |reason| at(format!("then a power cut at {cut_at} {choice:?}: {reason}")),
                )?;
            }
        }
        Ok(())
    }

    /// Builds one image again and does everything with it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn one(&self, call: u64, choice: &Choice) -> Result<Figures, String> {
        let (disk, run) = self.run()?;
        let mut figures = Figures { calls: disk.calls(), built: 1, ..Figures::default() };
        let disk = disk.crash(call, choice);
        let fingerprint = disk.fingerprint();
        let image = Image { call, choice: choice.clone(), disk, fingerprint };
        self.image(image, &run, &mut figures)?;
        Ok(figures)
    }
}

/// Leaves sync sites out.
pub fn drop_sites(disk: &SimDisk, sites: &[String]) {
    for site in sites {
        disk.drop_sync(site);
    }
}

/// Names and bytes of all record files.
fn logs_fingerprint(disk: &SimDisk) -> u64 {
    let mut bytes = Vec::new();
    for (path, _) in disk.files() {
        if path.extension().is_some_and(|ext| ext == "qlog") {
            bytes.extend_from_slice(path.as_os_str().as_encoded_bytes());
            bytes.extend(disk.contents(&path).unwrap_or_default());
        }
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Reads a choice as `Debug` writes it.
pub fn parse_choice(text: &str) -> Option<Choice> {
    let (name, number) = match text.split_once('(') {
        Some((name, rest)) => (name, Some(rest.strip_suffix(')')?)),
        None => (text, None),
    };
    let bits = || number?.parse::<u64>().ok();
    let place = || number?.parse::<usize>().ok();
    match name {
        "AllLost" => Some(Choice::AllLost),
        "AllKept" => Some(Choice::AllKept),
        "DataKept" => Some(Choice::DataKept),
        "NamesKept" => Some(Choice::NamesKept),
        "Items" => bits().map(Choice::Items),
        "ItemsRandom" => bits().map(Choice::ItemsRandom),
        "Scattered" => bits().map(Choice::Scattered),
        "Torn" => place().map(Choice::Torn),
        "NameLost" => place().map(Choice::NameLost),
        "NameKept" => place().map(Choice::NameKept),
        _ => None,
    }
}
