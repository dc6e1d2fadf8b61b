//! The programs of `crates/sim`, in release mode: `cargo xtask age`, `crash` and `damage`.

use std::process::Command;

use anyhow::{Context, ensure};

/// Runs one of them with the words after its name.
pub(crate) fn run(program: &str, args: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "-p", "queen-sim", "--bin", program, "--"])
        .args(args)
        .status()
        .context("cargo does not start")?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}
