//! `cargo xtask damage`: everything that can be wrong with a small directory, and what became of each.
//!
//! ```text
//! damage [--seed S] [--every N] [--only WORD] [--one TEXT]    exit 1 with a wrong verdict
//! ```
//!
//! A panic, or an image that takes longer than the limit, ends the run with the damage that was at work.
#![expect(clippy::print_stdout, reason = "this program talks to the person who called it")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use queen_doctor::StoreKind;
use queen_sim::damage::Directory;
use queen_sim::damage::judge::{COLUMNS, Judge, Judged, Verdict};
use queen_sim::damage::kinds::{self, Damage, KINDS};
use queen_sim::damage::make::{self, LAYOUTS};

/// An image is thousands of small allocations: with the system's allocator they are half of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Threads.
const THREADS: usize = 2;
/// Damage taken at once.
const BATCH: usize = 64;
/// Longest time for one image.
const HANG: Duration = Duration::from_secs(10);
/// Wrong verdicts that are printed.
const PRINTED_MAX: usize = 20;
/// Of so many flips in the LMDB file one is judged by the whole start and the doctor, the others by the rows.
const WHOLE_EVERY: usize = 16;
/// Resident memory that the whole run may reach, KiB.
const MEMORY_MAX_KIB: u64 = 256 << 10;

struct Options {
    seed: u64,
    every: usize,
    only: Option<String>,
    one: Option<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { seed: 1, every: 1, only: None, one: None };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let no_number = |text: String| format!("{text} is no number");
        match word.as_str() {
            "--seed" => {
                let text = value()?;
                options.seed = text.parse().map_err(|_| no_number(text))?;
            }
            "--every" => {
                let text = value()?;
                options.every = text.parse().ok().filter(|n| *n > 0).ok_or(no_number(text))?;
            }
            "--only" => options.only = Some(value()?),
            "--one" => options.one = Some(value()?),
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
            println!("damage: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// What was counted.
#[derive(Default)]
struct Counts {
    table: [[u64; COLUMNS.len()]; KINDS.len()],
    /// Harmless, and nothing for the doctor to find either: how often, by file.
    silent: BTreeMap<String, u64>,
    /// Judged by the whole start and by the doctor.
    whole: u64,
    wrong: Vec<String>,
}

impl Counts {
    fn add(&mut self, name: &str, damage: &Damage, judged: Judged) {
        let Judged { verdict, findings } = judged;
        let cell = self.table.get_mut(damage.kind()).and_then(|row| row.get_mut(verdict.column()));
        if let Some(cell) = cell {
            *cell += 1;
        }
        self.whole += u64::from(findings.is_some());
        if verdict == Verdict::Harmless && findings == Some(0) {
            *self.silent.entry(format!("{name} {}", damage.file().display())).or_default() += 1;
        }
        if let Verdict::Wrong(reason) = verdict {
            self.wrong.push(format!("{reason} | {name} {damage:?}"));
        }
    }

    fn merge(&mut self, other: Self) {
        for (row, more) in self.table.iter_mut().zip(other.table) {
            for (cell, more) in row.iter_mut().zip(more) {
                *cell += more;
            }
        }
        for (file, more) in other.silent {
            *self.silent.entry(file).or_default() += more;
        }
        self.whole += other.whole;
        self.wrong.extend(other.wrong);
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let started = Instant::now();
    let mut counts = Counts::default();
    for (name, shards) in LAYOUTS {
        let plain = make::plain(shards, options.seed)?;
        describe(name, &plain);
        explore(name, &plain, options, &mut counts)?;
        if name == "queues" {
            let lmdb = make::lmdb(&plain)?;
            describe("lmdb", &lmdb);
            explore("lmdb", &lmdb, options, &mut counts)?;
        }
    }
    report(&counts, options, started);
    let memory = peak_kib();
    println!("peak memory        {} MiB", memory / 1024);
    if memory > MEMORY_MAX_KIB {
        println!("damage: more than {} MiB of memory", MEMORY_MAX_KIB / 1024);
    }
    Ok(counts.wrong.is_empty() && memory <= MEMORY_MAX_KIB)
}

fn describe(name: &str, directory: &Directory) {
    println!(
        "directory {name}: {} files, {} bytes, entries up to {}, durable up to {}",
        directory.files.len(),
        directory.bytes(),
        directory.last,
        directory.durable
    );
}

/// What each thread is at, and since when.
type Work = Mutex<Option<(Instant, String)>>;

fn explore(
    name: &str,
    directory: &Directory,
    options: &Options,
    counts: &mut Counts,
) -> Result<(), String> {
    let is_lmdb = directory.store == StoreKind::Lmdb;
    // With LMDB only the store's files differ from the directory before.
    let takes = |path: &std::path::Path| !is_lmdb || path.starts_with("/data/store");
    let mut list = kinds::all(directory, &takes);
    list.retain(|damage| {
        let text = || format!("{damage:?}");
        options.only.as_ref().is_none_or(|only| text().contains(only))
            && options.one.as_ref().is_none_or(|one| text() == *one)
    });
    let list: Vec<Damage> = list.into_iter().step_by(options.every).collect();
    let next = AtomicUsize::new(0);
    let works: Vec<Work> = (0..THREADS).map(|_| Work::default()).collect();
    let total = Mutex::new(Counts::default());
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        let working: Vec<_> = works
            .iter()
            .map(|work| {
                let (next, list, total, failed) = (&next, &list, &total, &failed);
                scope.spawn(move || match judge_some(name, directory, list, next, work) {
                    Ok(found) => {
                        if let Ok(mut total) = total.lock() {
                            total.merge(found);
                        }
                    }
                    Err(reason) => {
                        if let Ok(mut failed) = failed.lock() {
                            *failed = Some(reason);
                        }
                    }
                })
            })
            .collect();
        while working.iter().any(|thread| !thread.is_finished()) {
            std::thread::park_timeout(Duration::from_millis(50));
            works.iter().for_each(watch);
        }
    });
    if let Ok(Some(reason)) = failed.into_inner() {
        return Err(format!("{name}: {reason}"));
    }
    counts.merge(total.into_inner().unwrap_or_default());
    Ok(())
}

#[expect(clippy::exit, reason = "a thread that hangs cannot be asked to end")]
fn watch(work: &Work) {
    let Ok(work) = work.lock() else { return };
    if let Some((since, what)) = work.as_ref().filter(|(since, _)| since.elapsed() > HANG) {
        println!("WRONG hangs for {:?} | {what}", since.elapsed());
        std::process::exit(1);
    }
}

fn judge_some(
    name: &str,
    directory: &Directory,
    list: &[Damage],
    next: &AtomicUsize,
    work: &Work,
) -> Result<Counts, String> {
    let judge = Judge::new(directory)?;
    let is_lmdb = directory.store == StoreKind::Lmdb;
    let mut counts = Counts::default();
    loop {
        let from = next.fetch_add(BATCH, Ordering::Relaxed);
        let batch = list.get(from..list.len().min(from + BATCH)).unwrap_or_default();
        if batch.is_empty() {
            return Ok(counts);
        }
        for (step, damage) in batch.iter().enumerate() {
            if let Ok(mut work) = work.lock() {
                *work = Some((Instant::now(), format!("{name} {damage:?}")));
            }
            let by_rows =
                is_lmdb && damage.kind() == 0 && !(from + step).is_multiple_of(WHOLE_EVERY);
            // A panic ends the program in a release build: the damage at work is then the last line.
            let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if by_rows { judge.judge_store(damage) } else { judge.judge(damage) }
            }));
            let judged = judged.unwrap_or_else(|_| Judged {
                verdict: Verdict::Wrong("a panic".to_owned()),
                findings: None,
            });
            counts.add(name, damage, judged);
        }
        if let Ok(mut work) = work.lock() {
            *work = None;
        }
    }
}

fn report(counts: &Counts, options: &Options, started: Instant) {
    print!("{:<18}", "");
    for column in COLUMNS {
        print!("{column:>10}");
    }
    println!();
    let mut sums = [0u64; COLUMNS.len()];
    for (kind, row) in KINDS.iter().zip(&counts.table) {
        print!("{kind:<18}");
        for (cell, sum) in row.iter().zip(&mut sums) {
            print!("{cell:>10}");
            *sum += cell;
        }
        println!();
    }
    print!("{:<18}", "all");
    for sum in sums {
        print!("{sum:>10}");
    }
    println!();
    let all: u64 = sums.iter().sum();
    for line in counts.wrong.iter().take(PRINTED_MAX) {
        println!("WRONG {line}");
    }
    println!(
        "images             {all}, {} of them by the whole start and the doctor",
        counts.whole
    );
    for (file, silent) in &counts.silent {
        println!("silent             {silent} in {file}");
    }
    println!("wrong              {}", counts.wrong.len());
    println!("seed               {}", options.seed);
    println!("seconds            {:.1}", started.elapsed().as_secs_f64());
}

/// The most memory that was resident, KiB; 0 where the system does not say.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
