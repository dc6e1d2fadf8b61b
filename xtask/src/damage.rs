//! `cargo xtask damage`: everything that can be wrong with a small directory, in `crates/sim`, in release mode.

use std::process::Command;

use anyhow::{Context, ensure};

/// Runs it with the words after `damage`.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "-p", "queen-sim", "--bin", "damage", "--"])
        .args(args)
        .status()
        .context("cargo does not start")?;
    ensure!(status.success(), "the damage of directories ended with {status}");
    Ok(())
}
