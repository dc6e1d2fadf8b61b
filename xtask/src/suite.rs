//! The published client's own tests, one file at a time: each against a fresh node, and through a follower of three.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::cluster::{Cluster, MEMBERS};
use crate::node::{Node, NodeOptions};
use crate::python::Python;
use crate::shell::{Scratch, capture, tail};
use crate::test::{Parts, Tally};

/// How long one file may take; the longest sleeps for most of a minute by itself.
const FILE_LIMIT: Duration = Duration::from_mins(15);

/// The files of the message API.
const FILES: [&str; 14] = [
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
    "test_auth",
];

/// Those that push, pop, acknowledge and transact: run again with every binary form switched on.
const FORMS: [&str; 10] = [
    "test_push",
    "test_pop",
    "test_consume",
    "test_ack_commit",
    "test_ack_window",
    "test_dlq",
    "test_docs",
    "test_complete",
    "test_transaction",
    "test_transaction_lease_fencing",
];

/// Those that are run through a follower in every test; the others, and every binary form, with the slow ones.
const FOLLOWED: [&str; 8] = [
    "test_queue",
    "test_push",
    "test_pop",
    "test_ack_commit",
    "test_dlq",
    "test_transaction",
    "test_transaction_lease_fencing",
    "test_reads",
];

/// Secret of the node that the tests of authentication talk to.
const SECRET: &str = "a secret of the tests, long enough for every HMAC";

/// Runs every file as a part of its own, in each way.
pub(crate) fn parts(parts: &mut Parts, binary: &Path, python: &Python, is_slow: bool) {
    let tests = match python.client_tests() {
        Ok(tests) => tests,
        Err(reason) => return parts.run("client tests", || Err(reason)),
    };
    let suite = Suite { tests: &tests, binary, python };
    for file in FILES {
        parts.run(&format!("client {file}"), || suite.alone(&Run::of(file)));
    }
    let with_tokens = Run { only: Some("jwt"), secret: Some(SECRET), ..Run::of("test_auth") };
    parts.run("client test_auth, tokens", || suite.alone(&with_tokens));
    for file in FORMS {
        let run = Run { forms: true, ..Run::of(file) };
        parts.run(&format!("client {file}, binary"), || suite.alone(&run));
    }
    parts.run("client, a restart between files", || suite.restarting());
    let runs: Vec<Run> = FOLLOWED.into_iter().map(Run::of).collect();
    parts.run("client, through a follower", || suite.following(&runs));
    if is_slow {
        // Each on a cluster of its own: a file that runs twice over one directory finds what it left.
        let others = FILES.into_iter().filter(|file| !FOLLOWED.contains(file)).map(Run::of);
        let others: Vec<Run> = others.collect();
        parts.run("client, follower, others", || suite.following(&others));
        let forms = FORMS.into_iter().map(|file| Run { forms: true, ..Run::of(file) });
        let forms: Vec<Run> = forms.collect();
        parts.run("client, follower, binary", || suite.following(&forms));
        parts.run("client, follower, tokens", || suite.following(&[with_tokens]));
    }
}

/// One run of one file.
#[derive(Clone, Copy)]
struct Run {
    file: &'static str,
    /// Only the tests whose names hold this.
    only: Option<&'static str>,
    secret: Option<&'static str>,
    /// Whether the client sends and takes the binary forms.
    forms: bool,
}

impl Run {
    fn of(file: &'static str) -> Self {
        // The other tests of this file need a node with a secret.
        let only = (file == "test_auth").then_some("without_auth");
        Self { file, only, secret: None, forms: false }
    }
}

struct Suite<'a> {
    tests: &'a Path,
    binary: &'a Path,
    python: &'a Python,
}

impl Suite<'_> {
    /// One file against a node of its own.
    fn alone(&self, run: &Run) -> anyhow::Result<Tally> {
        let scratch = Scratch::new(run.file)?;
        let mut options = NodeOptions::below(scratch.path(), self.binary)?;
        if let Some(secret) = run.secret {
            options = options.set("JWT_ENABLED", "true").set("JWT_SECRET", secret);
        }
        let node = Node::start(&options)?;
        let tally = self.run(run, &options, scratch.path())?;
        node.stop()?;
        Ok(tally)
    }

    /// All files against one directory; the node is killed and started again between two of them.
    fn restarting(&self) -> anyhow::Result<Tally> {
        let scratch = Scratch::new("restarting")?;
        let options = NodeOptions::below(scratch.path(), self.binary)?;
        let mut sum = Tally::default();
        let mut node = Node::start(&options)?;
        for (at, file) in FILES.into_iter().enumerate() {
            if at % 2 == 1 {
                node.stop()?;
            } else {
                node.kill();
            }
            node = Node::start(&options)?;
            sum.add(self.run(&Run::of(file), &options, scratch.path())?);
        }
        node.stop()?;
        Ok(sum)
    }

    /// Files one after the other, all through one member that does not lead. The runs have the same secret.
    fn following(&self, runs: &[Run]) -> anyhow::Result<Tally> {
        let scratch = Scratch::new("following")?;
        let mut cluster = Cluster::new(scratch.path(), self.binary, None)?;
        if let Some(secret) = runs.first().and_then(|run| run.secret) {
            cluster.set("JWT_ENABLED", "true");
            cluster.set("JWT_SECRET", secret);
        }
        // On a machine that is busy with the rest of the tests a leader is not to be given up for a late call.
        cluster.set("QUEEN_RAFT_ELECTION_MS", "3000");
        cluster.launch_all()?;
        cluster.wait_equal()?;
        let leader = cluster.leader()?;
        let follower = cluster.options((leader + 1) % MEMBERS)?.clone();
        let mut sum = Tally::default();
        for run in runs {
            sum.add(self.run(run, &follower, scratch.path())?);
            // Otherwise it was not a follower that was tested.
            ensure!(
                cluster.leader_now() == Some(leader),
                "the leader changed\n{}",
                cluster.log_tails()
            );
        }
        cluster.wait_equal()?;
        cluster.stop_all()?;
        Ok(sum)
    }

    fn run(&self, run: &Run, options: &NodeOptions, scratch: &Path) -> anyhow::Result<Tally> {
        let report = scratch.join("report.xml");
        let mut command = self.python.command();
        command
            .current_dir(self.tests)
            .env("QUEEN_SERVER_URL", options.url())
            .env("QUEEN_URL", options.url())
            .env("QUEEN_TEST_FORMS", if run.forms { "1" } else { "" })
            .env("JWT_SECRET", run.secret.unwrap_or_default())
            .args(["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--junitxml"])
            .arg(&report)
            .arg(format!("{}.py", run.file));
        if let Some(only) = run.only {
            command.args(["-k", only]);
        }
        let done = capture(&mut command, FILE_LIMIT)?;
        let counts = fs::read_to_string(&report)
            .with_context(|| format!("pytest left no report\n{}", tail(&done.text, 60)))?;
        let tally = junit_tally(&counts)?;
        if tally.failed > 0 || !done.status.success() {
            println!("{}\n--- the node's log\n{}", tail(&done.text, 120), options.log_tail());
        }
        ensure!(done.status.success() || tally.failed > 0, "pytest ended with {}", done.status);
        Ok(tally)
    }
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
