//! `cargo xtask fuzz`: runs the targets of `fuzz/` for a while each, and says what they did.
//!
//! libFuzzer comes with the targets' own dependency, and the coverage that it goes by is an option of the compiler, so no
//! other tool is needed. Inputs that reached something new stay in `corpus` below the build, the one that broke a target in
//! `artifacts`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::args::Args;
use crate::shell::{self, capture, tail};
use crate::test::{Parts, Tally};

/// Seconds for each target unless others are named.
const SECONDS: u64 = 15;
/// How long the build may take.
const BUILD_LIMIT: Duration = Duration::from_hours(1);
/// How much longer than its time a target may take: its corpus is read first.
const OVERTIME: Duration = Duration::from_mins(5);

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
    let known = targets()?;
    let mut wanted = Vec::new();
    while let Some(word) = args.word() {
        if !known.contains(&word) {
            bail!("no target {word:?}; there are {}", known.join(", "));
        }
        wanted.push(word);
    }
    let wanted = if wanted.is_empty() { known } else { wanted };
    let built = build(&wanted)?;
    let mut crashed = 0;
    for target in &wanted {
        crashed += u64::from(!built.run(target, seconds)?);
    }
    if crashed > 0 {
        bail!("{crashed} of {} targets crashed", wanted.len());
    }
    Ok(())
}

/// Each target as a part of the tests.
pub(crate) fn parts(parts: &mut Parts) {
    let name = |target: &str| format!("fuzz {target}");
    let built = targets().and_then(|mut wanted| {
        wanted.retain(|target| parts.wants(&name(target)));
        Ok(if wanted.is_empty() { None } else { Some((build(&wanted)?, wanted)) })
    });
    match built {
        Ok(None) => {}
        Ok(Some((built, wanted))) => {
            for target in wanted {
                parts.run(&name(&target), || built.run(&target, SECONDS).map(Tally::one));
            }
        }
        Err(reason) => parts.run("fuzz", || Err(reason)),
    }
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
        command.args(["-print_final_stats=1", "-use_value_profile=1", "-timeout=10"]);
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
