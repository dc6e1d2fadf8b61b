//! The published client's own tests, one file at a time, each against a fresh node.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::node::{Node, NodeOptions};
use crate::python::Python;
use crate::shell::{Scratch, capture, tail};
use crate::test::{Parts, Tally};

/// How long one file may take; the longest sleeps for most of a minute by itself.
const FILE_LIMIT: Duration = Duration::from_mins(15);

const FILES: [&str; 13] = [
    "test_queue",
    "test_push",
    "test_pop",
    "test_consume",
    "test_subscription",
    "test_ack_commit",
    "test_ack_window",
    "test_dlq",
    "test_docs",
    "test_complete",
    "test_transaction",
    "test_transaction_lease_fencing",
    "test_reads",
];

/// A secret for the tests that sign tokens with it.
const SECRET: &str = "a secret of the client's own tests";

/// Tests of one file, and the node that they want.
struct Case {
    file: &'static str,
    /// Which of its tests: pytest's `-k`, or all.
    select: Option<&'static str>,
    /// Settings of the node; the tests see them too.
    settings: &'static [(&'static str, &'static str)],
}

/// One file has tests for a node that asks for tokens, and one for a node that does not.
const AUTH: [Case; 2] = [
    Case { file: "test_auth", select: Some("without_auth"), settings: &[] },
    Case {
        file: "test_auth",
        select: Some("jwt"),
        settings: &[("JWT_ENABLED", "true"), ("JWT_SECRET", SECRET)],
    },
];

/// Runs every file as a part of its own.
pub(crate) fn parts(parts: &mut Parts, binary: &Path, python: &Python) {
    let tests = match python.client_tests() {
        Ok(tests) => tests,
        Err(reason) => return parts.run("client tests", || Err(reason)),
    };
    let all = FILES.map(|file| Case { file, select: None, settings: &[] });
    for case in all.iter().chain(&AUTH) {
        let Case { file, select, .. } = case;
        let name = [Some(*file), *select].into_iter().flatten().collect::<Vec<_>>().join(" ");
        parts.run(&format!("client {name}"), || run(&tests, case, binary, python));
    }
}

fn run(tests: &Path, case: &Case, binary: &Path, python: &Python) -> anyhow::Result<Tally> {
    let scratch = Scratch::new(case.file)?;
    let plain = NodeOptions::below(scratch.path(), binary)?;
    let options =
        case.settings.iter().fold(plain, |options, (name, value)| options.set(name, value));
    let node = Node::start(&options)?;
    let report = scratch.path().join("report.xml");
    let mut command = python.command();
    command
        .current_dir(tests)
        .env("QUEEN_SERVER_URL", options.url())
        .env("QUEEN_URL", options.url())
        .args(["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--junitxml"])
        .arg(&report)
        .arg(format!("{}.py", case.file));
    command.envs(case.settings.iter().copied());
    if let Some(select) = case.select {
        command.args(["-k", select]);
    }
    let done = capture(&mut command, FILE_LIMIT)?;
    let counts = fs::read_to_string(&report)
        .with_context(|| format!("pytest left no report\n{}", tail(&done.text, 60)))?;
    let tally = junit_tally(&counts)?;
    if tally.failed > 0 || !done.status.success() {
        println!("{}\n--- the node's log\n{}", tail(&done.text, 120), options.log_tail());
    }
    ensure!(done.status.success() || tally.failed > 0, "pytest ended with {}", done.status);
    node.stop()?;
    Ok(tally)
}

/// Reads the counts of a junit report; whatever did not pass failed, skips included.
fn junit_tally(text: &str) -> anyhow::Result<Tally> {
    let Some((_, suite)) = text.split_once("<testsuite ") else {
        bail!("a report without a suite")
    };
    let attribute = |name: &str| -> anyhow::Result<u64> {
        let (_, rest) = suite.split_once(&format!(" {name}=\"")).context(name.to_owned())?;
        let (value, _) = rest.split_once('"').context(name.to_owned())?;
        Ok(value.parse()?)
    };
    let failed = attribute("failures")? + attribute("errors")? + attribute("skipped")?;
    Ok(Tally { passed: attribute("tests")?.saturating_sub(failed), failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_count_as_failures() {
        let text = r#"<testsuites name="x"><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="16" time="1">"#;
        assert_eq!(junit_tally(text).unwrap(), Tally { passed: 10, failed: 6 });
        assert!(junit_tally("<nothing/>").is_err());
    }
}
