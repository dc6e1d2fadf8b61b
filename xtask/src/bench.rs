//! `cargo xtask bench [SCENARIO ...]` and `cargo xtask soak`: builds the release broker and the workloads, and runs them.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::shell;

/// The soak; the arguments go to it, `--help` lists them.
pub(crate) fn soak(args: Vec<String>) -> anyhow::Result<()> {
    let words: Vec<String> = std::iter::once("soak".to_owned()).chain(args).collect();
    run(&words)
}

/// The command; the arguments go to the workloads, `--help` lists them.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let mut build = shell::cargo();
    build.args(["build", "--release", "-p", "queen", "-p", "queen-bench"]);
    ensure!(build.status().context("cargo does not run")?.success(), "the build failed");
    let program = shell::target()?.join("release").join("queen-bench");
    let mut bench = Command::new(program);
    let status = bench.current_dir(shell::root()).args(args).status();
    ensure!(status.context("the workloads do not run")?.success(), "a workload failed");
    Ok(())
}
