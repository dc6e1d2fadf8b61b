//! `cargo xtask test`: everything that can fail, one line per part, and the sum at the end.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::args::Args;
use crate::chaos::{self, ChaosOptions};
use crate::clients::{self, ClientsOptions};
use crate::python::Python;
use crate::rng::Rng;
use crate::shell::{self, capture, tail};
use crate::{decode, demo, fuzz, node, readme, schema, sim, suite};

/// How long the workspace's tests may take, building included.
const WORKSPACE_LIMIT: Duration = Duration::from_hours(1);

/// Lines of the short demo.
const SHORT_DEMO_LINES: usize = 3000;

/// What a part counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    /// Failed, or skipped: nothing here may be skipped.
    pub(crate) failed: u64,
}

impl Tally {
    /// One thing that was tried as a whole.
    pub(crate) fn one(is_passed: bool) -> Self {
        Self { passed: u64::from(is_passed), failed: u64::from(!is_passed) }
    }

    /// Adds another part's.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs all parts, also after one that failed; or only those whose name holds a word.
pub(crate) fn test(mut args: Args) -> anyhow::Result<()> {
    let is_slow = args.flag("--slow");
    let mut parts = Parts { sum: Tally::default(), only: args.value("--only")? };
    args.end()?;
    parts.run("workspace tests", || workspace_tests(is_slow));
    parts.run("documentation examples", doc_tests);
    parts.run("fuzz", fuzz::run);
    parts.run("clusters", sim::clusters);
    match node::build().and_then(|binary| Ok((binary, Python::set_up()?))) {
        Ok((binary, python)) => {
            parts.run("README", || readme::run(&binary));
            suite::parts(&mut parts, &binary, &python, is_slow);
            decode::parts(&mut parts, &binary, &python);
            let lines = (!is_slow).then_some(SHORT_DEMO_LINES);
            parts.run("demo", || demo::run(&binary, &python, lines));
            if is_slow {
                parts.run("generated calls", || schema::run(&binary, 60));
                let options = ChaosOptions { seconds: 120, ..ChaosOptions::default() };
                parts.run("chaos", || chaos::run(&binary, &options));
                let options = ChaosOptions { seconds: 180, nodes: 3, ..ChaosOptions::default() };
                parts.run("chaos, three nodes", || chaos::run(&binary, &options));
                let options = ClientsOptions { seconds: 60, every: 15, seed: Rng::fresh_seed() };
                parts.run("clients, killed leaders", || clients::run(&binary, &python, &options));
            }
        }
        Err(reason) => parts.run("preparation", || Err(reason)),
    }
    if parts.sum == Tally::default() {
        bail!("no part has such a name");
    }
    let Tally { passed, failed } = parts.sum;
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("the tests failed");
    }
    Ok(())
}

/// The parts so far.
pub(crate) struct Parts {
    sum: Tally,
    /// A word that the name of a part has to hold.
    only: Option<String>,
}

impl Parts {
    /// Whether a part of this name is run.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|word| name.contains(word))
    }

    /// Runs one part, prints its line, and adds what it counted; a part that could not be judged counts as one
    /// failure.
    pub(crate) fn run(&mut self, name: &str, run: impl FnOnce() -> anyhow::Result<Tally>) {
        if !self.wants(name) {
            return;
        }
        let started = Instant::now();
        let tally = match run() {
            Ok(tally) if tally == Tally::default() => {
                println!("{name}: nothing was tested");
                Tally::one(false)
            }
            Ok(tally) => tally,
            Err(reason) => {
                println!("{reason:#}");
                Tally::one(false)
            }
        };
        let Tally { passed, failed } = tally;
        let took = shell::seconds(started);
        println!("{name:<32} {passed:>5} ok {failed:>3} not ok {took:>9}");
        self.sum.add(tally);
    }
}

fn has_nextest() -> bool {
    let mut command = shell::cargo();
    let version = capture(command.args(["nextest", "--version"]), Duration::from_mins(1));
    version.is_ok_and(|done| done.status.success())
}

fn workspace_tests(is_slow: bool) -> anyhow::Result<Tally> {
    let mut command = shell::cargo();
    if is_slow {
        command.env("QUEEN_TEST_SLOW", "1");
    }
    if has_nextest() {
        command.args(["nextest", "run", "--workspace", "--no-fail-fast", "--color", "never"]);
        command.args(["--status-level", "slow", "--final-status-level", "fail"]);
        let done = capture(&mut command, WORKSPACE_LIMIT)?;
        let tally = nextest_tally(&done.text).with_context(|| {
            format!("nextest ended without a summary\n{}", tail(&done.text, 60))
        })?;
        Ok(shown(tally, done.status.success(), &done.text))
    } else {
        command.args(["test", "--workspace", "--quiet", "--no-fail-fast", "--all-targets"]);
        let done = capture(&mut command, WORKSPACE_LIMIT)?;
        Ok(shown(libtest_tally(&done.text), done.status.success(), &done.text))
    }
}

fn doc_tests() -> anyhow::Result<Tally> {
    let mut command = shell::cargo();
    command.args(["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"]);
    let done = capture(&mut command, WORKSPACE_LIMIT)?;
    let mut tally = libtest_tally(&done.text);
    // Crates without an example count none; that the command succeeds is one result.
    tally.add(Tally::one(done.status.success()));
    Ok(shown(tally, done.status.success(), &done.text))
}

/// Shows the output of a part that failed; a failure that no line counted is one.
fn shown(mut tally: Tally, is_success: bool, text: &str) -> Tally {
    if !is_success && tally.failed == 0 {
        tally.failed = 1;
    }
    if tally.failed > 0 {
        println!("{}", tail(text, 300));
    }
    tally
}

/// Reads `Summary [..] 12 tests run: 11 passed, 1 failed, 0 skipped`.
fn nextest_tally(text: &str) -> Option<Tally> {
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Summary ["))?;
    let (_, counts) = line.split_once(" run: ")?;
    let mut tally = Tally::default();
    for count in counts.split(", ") {
        let (number, word) = count.trim().split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        // `5 passed (1 slow)` is still passed.
        match word.split(' ').next()? {
            "passed" => tally.passed += number,
            _ => tally.failed += number,
        }
    }
    Some(tally)
}

/// Sums `test result: ok. 3 passed; 0 failed; 0 ignored; ..` over all binaries.
fn libtest_tally(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines() {
        let Some((_, counts)) = line.trim_start().split_once("test result: ") else { continue };
        for count in counts.split([';', '.']) {
            let mut words = count.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
            match words.next() {
                Some("passed") => tally.passed += number,
                Some("failed" | "ignored") => tally.failed += number,
                _ => {}
            }
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_both_runners() {
        let text =
            "x\n     Summary [   0.01s] 14 tests run: 11 passed (2 slow), 1 failed, 2 skipped\n";
        assert_eq!(nextest_tally(text), Some(Tally { passed: 11, failed: 3 }));
        let text = "\n  Summary [ 1.2s] 3/5 tests run: 3 passed, 0 skipped\n";
        assert_eq!(nextest_tally(text), Some(Tally { passed: 3, failed: 0 }));
        assert_eq!(nextest_tally("error: could not compile"), None);
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured\n";
        assert_eq!(libtest_tally(text), Tally { passed: 4, failed: 3 });
    }
}
