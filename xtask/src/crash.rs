//! `cargo xtask crash`: the exploration of power cuts in `crates/sim`, in release mode.

use std::process::Command;

use anyhow::{Context, ensure};

/// Runs the exploration with the words after `crash`.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "-p", "queen-sim", "--bin", "crash", "--"])
        .args(args)
        .status()
        .context("cargo does not start")?;
    ensure!(status.success(), "the exploration of crashes ended with {status}");
    Ok(())
}
