//! `cargo xtask ci`: exactly what is checked before a change lands; and `fix`, the twin that writes.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::{node, shell, test, tidy};

const STEP_LIMIT: Duration = Duration::from_hours(1);

/// Runs every step until one fails; prints one line per step.
pub(crate) fn ci(mut args: Args) -> anyhow::Result<()> {
    let is_tested = !args.flag("--no-test");
    args.end()?;
    step("format", || cargo(&["fmt", "--all", "--check"]))?;
    let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    step("lints", || cargo(&lints))?;
    step("tidy", tidy::check)?;
    step("documents", || {
        let mut command = shell::cargo();
        command.env("RUSTDOCFLAGS", "-D warnings");
        must(command.args(["doc", "--workspace", "--no-deps", "--quiet"]))
    })?;
    step("release build", || node::build().map(drop))?;
    step("generated documents", || tidy::check_generated(&node::build()?))?;
    if is_tested {
        test::test(Args::new(std::iter::empty()))?;
    }
    Ok(())
}

/// Formats, and applies what clippy can apply by itself.
pub(crate) fn fix(args: Args) -> anyhow::Result<()> {
    args.end()?;
    let lints = ["clippy", "--fix", "--workspace", "--all-targets", "--allow-dirty", "--quiet"];
    step("lints", || cargo(&lints))?;
    step("format", || cargo(&["fmt", "--all"]))?;
    step("generated documents", || tidy::write_generated(&node::build()?))
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    must(shell::cargo().args(arguments))
}

fn must(command: &mut Command) -> anyhow::Result<()> {
    shell::must(command, STEP_LIMIT).map(drop)
}

fn step(name: &str, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let started = Instant::now();
    run()?;
    println!("{name:<20} ok {:>9}", shell::seconds(started));
    Ok(())
}
