//! `cargo xtask fuzz`: runs the targets of `fuzz/` for a while each, and says what they did.
//!
//! libFuzzer comes with the targets' own dependency, and the coverage that it goes by is an option of the compiler, so no
//! other tool is needed. Inputs that reached something new stay in `corpus` below the build, the one that broke a target in
//! `artifacts`.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

use crate::args::Args;
use crate::shell::{self, capture, tail};
use crate::test::Tally;

/// Seconds for each target unless others are named.
const SECONDS: u64 = 15;
/// How long the build may take.
const BUILD_LIMIT: Duration = Duration::from_hours(1);
/// How much longer than its time a target may take: its corpus is read first.
const OVERTIME: Duration = Duration::from_mins(10);

/// What the compiler adds so that libFuzzer sees which way a run went, and assertions.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "--cfg=fuzzing",
];

/// The command.
pub(crate) fn fuzz(mut args: Args) -> anyhow::Result<()> {
    let seconds = args.value("--seconds")?.unwrap_or(SECONDS);
    let jobs = args.value("--jobs")?.unwrap_or_else(jobs);
    let known = targets()?;
    let mut wanted = Vec::new();
    while let Some(word) = args.word() {
        if !known.contains(&word) {
            bail!("no target {word:?}; there are {}", known.join(", "));
        }
        wanted.push(word);
    }
    let wanted = if wanted.is_empty() { known } else { wanted };
    let Tally { failed, .. } = build(&wanted)?.run_all(&wanted, seconds, jobs)?;
    if failed > 0 {
        bail!("{failed} of {} targets crashed", wanted.len());
    }
    Ok(())
}

/// All targets as a part of the tests.
pub(crate) fn run() -> anyhow::Result<Tally> {
    let targets = targets()?;
    build(&targets)?.run_all(&targets, SECONDS, jobs())
}

/// Targets that run at a time: each keeps a core busy.
fn jobs() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The names of the targets.
fn targets() -> anyhow::Result<Vec<String>> {
    let metadata = shell::metadata_by(cargo())?;
    let targets = metadata.pointer("/packages/0/targets").and_then(Value::as_array);
    let is_binary = |target: &&Value| target.pointer("/kind/0").is_some_and(|kind| kind == "bin");
    let name = |target: &Value| target.get("name").and_then(Value::as_str).map(str::to_owned);
    let names = targets.context("cargo metadata names no targets")?.iter().filter(is_binary);
    let mut names: Vec<String> = names.filter_map(name).collect();
    names.sort();
    Ok(names)
}

/// Builds the targets.
fn build(wanted: &[String]) -> anyhow::Result<Built> {
    let host = host()?;
    let directory = shell::target()?.join("fuzz");
    let mut command = cargo();
    // Named, the target is built with the flags and the build's own programs are not.
    command.args(["build", "--release", "--target", &host]);
    for target in wanted {
        command.args(["--bin", target]);
    }
    command.env("RUSTFLAGS", FLAGS.join(" ")).env("CARGO_TARGET_DIR", &directory);
    shell::must(&mut command, BUILD_LIMIT)?;
    Ok(Built { programs: directory.join(host).join("release"), directory })
}

/// A `cargo` in the targets' workspace.
fn cargo() -> Command {
    let mut command = shell::cargo();
    command.current_dir(home());
    command
}

fn home() -> PathBuf {
    shell::root().join("fuzz")
}

/// The triple of this machine.
fn host() -> anyhow::Result<String> {
    let text = shell::must(Command::new("rustc").arg("-vV"), Duration::from_mins(1))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

/// Built targets.
struct Built {
    programs: PathBuf,
    /// Where what they find is kept.
    directory: PathBuf,
}

impl Built {
    /// Runs the targets, `jobs` at a time.
    fn run_all(&self, targets: &[String], seconds: u64, jobs: usize) -> anyhow::Result<Tally> {
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<Tally> {
            let mut tally = Tally::default();
            while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                tally.add(Tally::one(self.run(target, seconds)?));
            }
            Ok(tally)
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let mut sum = Tally::default();
            for worker in workers {
                sum.add(worker.join().map_err(|_| anyhow!("a worker panicked"))??);
            }
            Ok(sum)
        })
    }

    /// Runs one target and prints its line; whether it held.
    fn run(&self, target: &str, seconds: u64) -> anyhow::Result<bool> {
        let corpus = self.directory.join("corpus").join(target);
        let artifacts = self.directory.join("artifacts").join(target);
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        let before = count(&artifacts)?;
        let mut command = Command::new(self.programs.join(target));
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.args(["-print_final_stats=1", "-use_value_profile=1"]);
        // A hang, not a slow machine.
        command.args(["-timeout=300", "-report_slow_units=300"]);
        command.args(["-rss_limit_mb=1024", "-max_len=8192"]).arg(&corpus);
        let seeds = home().join("seeds").join(target);
        if seeds.is_dir() {
            command.arg(seeds);
        }
        let started = Instant::now();
        let done = capture(&mut command, Duration::from_secs(seconds) + OVERTIME)?;
        let kept = count(&artifacts)?.saturating_sub(before);
        let is_good = done.status.success() && kept == 0;
        let crashes = kept.max(usize::from(!is_good));
        let stat = |name: &str| stat(&done.text, name).unwrap_or(0);
        let (runs, new) = (stat("number_of_executed_units"), stat("new_units_added"));
        let took = shell::seconds(started);
        println!("{target:<18} {runs:>9} runs {new:>6} new units {crashes:>3} crashes {took:>9}");
        if !is_good {
            println!("{}", tail(&done.text, 40));
            println!("the input is in {}", artifacts.display());
        }
        Ok(is_good)
    }
}

/// Files in a directory.
fn count(directory: &Path) -> anyhow::Result<usize> {
    Ok(fs::read_dir(directory)?.count())
}

/// A number among those that libFuzzer prints at its end.
fn stat(text: &str, name: &str) -> Option<u64> {
    let prefix = format!("stat::{name}:");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_among_what_is_printed() {
        let text =
            "Done 5 runs\nstat::number_of_executed_units: 5312\nstat::new_units_added:   7\n";
        assert_eq!(stat(text, "number_of_executed_units"), Some(5312));
        assert_eq!(stat(text, "new_units_added"), Some(7));
        assert_eq!(stat(text, "slowest_unit_time_sec"), None);
    }
}
