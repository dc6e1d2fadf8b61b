//! `cargo xtask simulate`: whole clusters under faults, one seed after the other, and the figures.
//!
//! ```text
//! simulate [--seeds N] [--seconds S] [--seed X] [--nodes N]    seeds X to X+N-1; exit 1 with a violation
//! simulate --seed X --trace FILE                               one seed again, with every line of what happened
//! simulate --only WORD                                         faults of the classes whose names hold the word
//! simulate --drop-sync SITE                                    syncs of a site do nothing: violations must show it
//! simulate --gate yes                                          as the first; every class of faults must have come
//! ```
#![expect(clippy::print_stdout, reason = "this program talks to the person who called it")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use queen_sim::cluster::{Faults, Plan, Report, happenings, run};

/// A run is thousands of small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Threads, each with runs of its own.
const THREADS: usize = 2;

struct Options {
    seeds: u64,
    seconds: u64,
    seed: u64,
    nodes: u64,
    trace: Option<String>,
    is_gate: bool,
    only: Option<String>,
    dropped: Vec<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        seeds: 40,
        seconds: 60,
        seed: 1,
        nodes: 3,
        trace: None,
        is_gate: false,
        only: None,
        dropped: Vec::new(),
    };
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value} is no number"));
        match word.as_str() {
            "--seeds" => options.seeds = number()?,
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            "--nodes" => options.nodes = number()?,
            "--trace" => options.trace = Some(value),
            "--only" => options.only = Some(value),
            "--drop-sync" => options.dropped.push(value),
            "--gate" => options.is_gate = true,
            _ => return Err(format!("not understood: {word}")),
        }
    }
    if options.trace.is_some() {
        options.seeds = 1;
    }
    Ok(options)
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|options| simulate(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            println!("simulate: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn simulate(options: &Options) -> Result<bool, String> {
    let started = Instant::now();
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= options.seeds {
                        return;
                    }
                    let report = run(&plan(options, options.seed + at));
                    if let Ok(mut sum) = sum.lock() {
                        sum.add(options, report);
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().map_err(|_| "a run has panicked".to_owned())?;
    if let (Some(path), Some(trace)) = (&options.trace, &sum.trace) {
        std::fs::write(path, trace).map_err(|error| format!("{path}: {error}"))?;
    }
    sum.print(started.elapsed().as_secs_f64());
    let missing = if options.is_gate { sum.missing() } else { Vec::new() };
    for what in &missing {
        println!("never: {what}");
    }
    Ok(sum.violations == 0 && missing.is_empty())
}

fn plan(options: &Options, seed: u64) -> Plan {
    Plan {
        seed,
        seconds: options.seconds,
        nodes: options.nodes,
        faults: options.only.clone().map_or(Faults::Drawn, Faults::Only),
        dropped: options.dropped.clone(),
        keeps_trace: options.trace.is_some(),
    }
}

/// What all runs came to.
#[derive(Default)]
struct Sum {
    runs: u64,
    counts: BTreeMap<&'static str, u64>,
    pushed: usize,
    acknowledged: usize,
    violations: usize,
    /// Runs in which hardly anything was answered.
    idle: Vec<u64>,
    trace: Option<String>,
}

impl Sum {
    fn add(&mut self, options: &Options, report: Report) {
        self.runs += 1;
        for (what, count) in &report.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.pushed += report.pushes.0;
        self.acknowledged += report.pushes.1;
        if report.is_idle() {
            self.idle.push(report.seed);
        }
        let Options { seconds, nodes, .. } = options;
        if !report.violations.is_empty() {
            let (seed, mut others) = (report.seed, String::new());
            let words = |name, of: &str| format!(" {name} '{of}'");
            others.extend(options.only.iter().map(|word| words("--only", word)));
            others.extend(options.dropped.iter().map(|site| words("--drop-sync", site)));
            println!(
                "seed {seed}: cargo xtask simulate --seed {seed} --seeds 1 --seconds {seconds} --nodes {nodes}{others}"
            );
            for violation in &report.violations {
                println!("  {violation}");
            }
        }
        self.violations += report.violations.len();
        if options.seeds == 1 {
            let (digest, lines) = report.digest;
            println!("seed {}: trace {digest:016x} of {lines} lines", report.seed);
        }
        self.trace = report.trace;
    }

    /// What must have happened, so that the runs show something, and did not; half of all operations must be answered.
    fn missing(&self) -> Vec<String> {
        let count = |what: &str| self.counts.get(what).copied().unwrap_or_default();
        let mut missing: Vec<String> =
            happenings().filter(|what| count(what) == 0).map(str::to_owned).collect();
        if count("answered") * 2 < count("operations") {
            missing.push("half of the operations answered".to_owned());
        }
        missing
    }

    fn print(&self, took_s: f64) {
        for (what, count) in &self.counts {
            println!("{count:>10}  {what}");
        }
        if !self.idle.is_empty() {
            println!(
                "not judged, less than a tenth of the operations was answered: {:?}",
                self.idle
            );
        }
        println!(
            "{} runs in {took_s:.0} s: {} messages pushed, {} acknowledged, violations {}",
            self.runs, self.pushed, self.acknowledged, self.violations
        );
    }
}
