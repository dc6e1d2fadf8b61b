//! The programs of `crates/sim`, in release mode: `cargo xtask age`, `crash`, `damage` and `simulate`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::shell::{self, capture, tail};
use crate::test::Tally;

/// Clusters that the gate runs, and their simulated time.
const GATE_SEEDS: u64 = 16;
const GATE_SECONDS: u64 = 20;
/// How long that may take, building included.
const GATE_LIMIT: Duration = Duration::from_mins(30);

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

/// Runs the clusters of the gate: each counts as one.
pub(crate) fn clusters() -> anyhow::Result<Tally> {
    let (seeds, seconds) = (GATE_SEEDS.to_string(), GATE_SECONDS.to_string());
    let mut command = shell::cargo();
    command.args(["run", "--release", "--quiet", "-p", "queen-sim", "--bin", "simulate", "--"]);
    command.args(["--seeds", &seeds, "--seconds", &seconds]);
    let done = capture(&mut command, GATE_LIMIT)?;
    if !done.status.success() {
        println!("{}", tail(&done.text, 300));
        return Ok(Tally::one(false));
    }
    Ok(Tally { passed: GATE_SEEDS, failed: 0 })
}
