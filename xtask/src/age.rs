//! `cargo xtask age`: months of steady traffic in simulated time, in `crates/sim`, in release mode.

use std::process::Command;

use anyhow::{Context, ensure};

/// Runs it with the words after `age`.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "-p", "queen-sim", "--bin", "age", "--"])
        .args(args)
        .status()
        .context("cargo does not start")?;
    ensure!(status.success(), "months of traffic ended with {status}");
    Ok(())
}
