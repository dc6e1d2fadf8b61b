//! `cargo xtask crash`: every power cut of the scripted workload, every call failing once, and the figures.
//!
//! ```text
//! crash [--gate | --long] [--seed S] [--variant V]     explore; exit 1 with a violation
//! crash --drop-sync all | N | NAME                      leave one sync site out: it must be caught
//! crash --variant V --seed S --call N --choice C        one image again, with everything
//! crash --variant V --seed S --call N --fault F         one failing call again
//! ```
#![expect(clippy::print_stdout, reason = "this program talks to the person who called it")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use queen_sim::crash::{Depth, Exploration, Figures, parse_choice};
use queen_sim::faults::{self, FAULTS, FaultRun};
use queen_sim::sites;
use queen_sim::variant::{VARIANTS, Variant};

/// An image is thousands of small allocations: with the system's allocator they are half of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Images that a gate must have looked at.
const IMAGES_MIN: usize = 100_000;
/// What the gate does with the layouts that it does not walk whole: a recovery of many logs has many calls.
const SAMPLE: Depth = Depth { look: 8, recovery: 800, second: 800, ..Depth::GATE };
/// Threads.
const THREADS: usize = 2;
/// Violations of one job after which it ends.
const VIOLATIONS_MAX: usize = 20;

#[derive(Default)]
struct Options {
    long: bool,
    seed: Option<u64>,
    drop_sync: Option<String>,
    variant: Option<String>,
    call: Option<u64>,
    choice: Option<String>,
    fault: Option<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--gate" => {}
            "--long" => options.long = true,
            "--seed" => options.seed = Some(number(value()?)?),
            "--drop-sync" => options.drop_sync = Some(value()?),
            "--variant" => options.variant = Some(value()?),
            "--call" => options.call = Some(number(value()?)?),
            "--choice" => options.choice = Some(value()?),
            "--fault" => options.fault = Some(value()?),
            _ => return Err(format!("not understood: {word}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let done = parse(std::env::args().skip(1)).and_then(|options| run(&options));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            println!("crash: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let seed = options.seed.unwrap_or(1);
    if let Some(which) = &options.drop_sync {
        return drop_sync(which, seed);
    }
    let variant = match &options.variant {
        Some(name) => Some(Variant::named(name).ok_or(format!("no variant {name}"))?),
        None => None,
    };
    if let Some(call) = options.call {
        let variant = variant.ok_or("--call needs --variant")?;
        return one(variant, seed, call, options);
    }
    let started = Instant::now();
    let jobs = jobs(options.long, variant, seed);
    let figures = work(&jobs);
    report(&figures, &jobs, started);
    let enough = variant.is_some() || figures.distinct.len() >= IMAGES_MIN;
    if !enough {
        println!("crash: fewer than {IMAGES_MIN} distinct images");
    }
    Ok(figures.violations.is_empty() && enough)
}

/// One image or one failing call again.
fn one(variant: Variant, seed: u64, call: u64, options: &Options) -> Result<bool, String> {
    let depth = Depth::ALL;
    let (dropped, repeating): (&[String], _) = (&[], true);
    let exploration =
        Exploration { variant, seed, depth, dropped, repeating, violations_max: VIOLATIONS_MAX };
    let result = if let Some(name) = &options.fault {
        let named = |fault: &queen_io::sim::SimFault| format!("{fault:?}") == *name;
        let fault = FAULTS.into_iter().find(named).ok_or(format!("no fault {name}"))?;
        let (_, clean) = exploration.run()?;
        let mut figures = Figures::default();
        FaultRun { variant, seed, dropped, call, fault }.run(&clean, &mut figures).map(|()| figures)
    } else {
        let text = options.choice.as_deref().ok_or("--call needs --choice or --fault")?;
        let choice = parse_choice(text).ok_or(format!("no choice {text}"))?;
        exploration.one(call, &choice)
    };
    match result {
        Ok(figures) => {
            println!("no violation; {} disks opened", figures.opened);
            Ok(true)
        }
        Err(reason) => {
            println!("VIOLATION {reason}");
            Ok(false)
        }
    }
}

/// A piece of work for one thread.
enum Job {
    Cuts(Variant, u64, Depth),
    Faults(Variant, u64, (u64, u64)),
}

/// The gate walks the whole of one layout and a sample of the others; a long run walks everything.
fn jobs(long: bool, only: Option<Variant>, seed: u64) -> Vec<Job> {
    const SLICES: u64 = 4;
    let whole = ["shards"];
    let seeds = if long { seed..seed + 16 } else { seed..seed + 1 };
    let mut jobs = Vec::new();
    for seed in seeds {
        let wanted = VARIANTS
            .into_iter()
            .filter(|variant| only.is_none_or(|only| only.name == variant.name));
        for variant in wanted {
            let all = long || only.is_some() || whole.contains(&variant.name);
            for slice in 0..if all { SLICES } else { 1 } {
                let slices = if all { (slice, SLICES) } else { (0, 1) };
                let depth = if all { Depth::GATE } else { SAMPLE };
                jobs.push(Job::Cuts(variant, seed, Depth { slice: slices, ..depth }));
            }
            let failing = long || only.is_some() || variant.name == "shards";
            if failing && !variant.grouped {
                jobs.extend((0..SLICES).map(|at| Job::Faults(variant, seed, (at, SLICES))));
            }
        }
    }
    jobs
}

fn work(jobs: &[Job]) -> Figures {
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Figures::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let figures = do_job(job);
                    for line in &figures.violations {
                        println!("VIOLATION {line}");
                    }
                    if let Ok(mut total) = total.lock() {
                        total.merge(figures);
                    }
                }
            });
        }
    });
    total.into_inner().unwrap_or_default()
}

fn do_job(job: &Job) -> Figures {
    match *job {
        Job::Cuts(variant, seed, depth) => {
            let (dropped, repeating): (&[String], _) = (&[], false);
            let violations_max = VIOLATIONS_MAX;
            Exploration { variant, seed, depth, dropped, repeating, violations_max }.explore()
        }
        Job::Faults(variant, seed, slice) => {
            faults::explore(variant, seed, &[], slice, VIOLATIONS_MAX)
        }
    }
}

fn report(figures: &Figures, jobs: &[Job], started: Instant) {
    let mut calls: Vec<(&str, u64, u64)> = Vec::new();
    for job in jobs {
        let Job::Cuts(variant, seed, _) = job else { continue };
        let known = calls.iter().any(|(name, of, _)| (*name, *of) == (variant.name, *seed));
        if !known && let Ok((disk, _)) = variant.run(*seed, &|_| {}) {
            calls.push((variant.name, *seed, disk.calls()));
        }
    }
    println!("variants           {}", VARIANTS.map(|variant| variant.name).join(", "));
    println!("runs               {}", calls.len());
    println!("disk calls         {}", calls.iter().map(|(.., calls)| calls).sum::<u64>());
    println!("images built       {}", figures.built);
    println!("images distinct    {}", figures.distinct.len());
    println!("disks opened       {}", figures.opened);
    println!("started again      {}", figures.reopened);
    println!("recovery crashes   {}", figures.recovery);
    println!("second runs        {}, with {} crashes", figures.second_runs, figures.second);
    println!("I/O error runs     {}", figures.fault_runs);
    println!("violations         {}", figures.violations.len());
    println!("seconds            {:.1}", started.elapsed().as_secs_f64());
}

/// Leaves sync sites out, one at a time; true when each was caught.
fn drop_sync(which: &str, seed: u64) -> Result<bool, String> {
    let all = sites::all(seed)?;
    let chosen: Vec<(usize, &String)> = match (which, which.parse::<usize>()) {
        ("all", _) => all.iter().enumerate().collect(),
        (_, Ok(number)) => all.iter().enumerate().filter(|(at, _)| *at == number).collect(),
        (name, Err(_)) => all.iter().enumerate().filter(|(_, site)| *site == name).collect(),
    };
    if chosen.is_empty() {
        return Err(format!("no sync site {which}; there are {}: {}", all.len(), all.join("; ")));
    }
    let mut caught = 0;
    for (at, site) in &chosen {
        let verdict = sites::catch(site, seed);
        match &verdict.violation {
            Some(violation) => {
                caught += 1;
                println!("{at:>2} | {site} | {} images | {violation}", verdict.looked);
            }
            None => println!("{at:>2} | {site} | {} images | NOT CAUGHT", verdict.looked),
        }
    }
    println!("caught {caught} of {}", chosen.len());
    Ok(caught == chosen.len())
}
