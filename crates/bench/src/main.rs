//! Workloads against a real node over HTTP: one JSON line for each scenario.
//!
//! Every scenario starts the broker on a fresh directory over loopback, loads it from one thread, and stops it. Counts
//! (syncs, bytes, memory, processor time) hold on a busy machine; rates and latencies hold only where `other_cores` is
//! near zero, and compare only with the floor of the same run. `docs/benchmarks.md` describes the method.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "lines for whoever called the program")]
#![expect(clippy::unwrap_used, reason = "a development tool: a broken invariant ends it")]
#![expect(clippy::indexing_slicing, reason = "a development tool: a broken invariant ends it")]
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people: counts far below 2^52"
)]

mod check;
mod drain;
mod files;
mod flood;
mod floor;
mod http;
mod load;
mod measure;
mod node;
mod options;
mod scenarios;
mod site;
mod soak;
mod usage;
mod wire;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use serde_json::{Map, Value};

use crate::measure::Line;
use crate::options::Options;

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut args = std::env::args().skip(1).peekable();
    if args.peek().is_some_and(|word| word == "floor") {
        let (port, path) = (args.nth(1), args.next());
        let port = port.context("a port")?.parse()?;
        runtime.block_on(floor::serve(port, Path::new(&path.context("a path")?)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.peek().is_some_and(|word| word == "soak") {
        let Some(line) = runtime.block_on(soak::run(args.skip(1)))? else {
            return Ok(ExitCode::SUCCESS);
        };
        let is_right = !line.is_wrong;
        println!("{}", with_head("soak", &[], line).text());
        return Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let Some(options) = Options::parse(args)? else { return Ok(ExitCode::SUCCESS) };
    let mut is_right = true;
    for scenario in &options.scenarios {
        for line in runtime.block_on(scenarios::run(scenario, &options))? {
            is_right &= !line.is_wrong;
            println!("{}", with_head(scenario, &options.settings, line).text());
        }
    }
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What ran where, before a line's figures.
fn with_head(scenario: &str, settings: &[(String, String)], figures: Line) -> Line {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let settings = settings.iter().map(|(name, value)| (name.clone(), value.clone().into()));
    let mut line = Line::default();
    line.add("commit", commit());
    line.add("scenario", scenario);
    line.add("kernel", read("/proc/sys/kernel/osrelease"));
    line.add("cpus", std::thread::available_parallelism().map_or(0, std::num::NonZero::get));
    line.add("settings", Value::Object(settings.collect::<Map<_, _>>()));
    line.adopt("", figures);
    line
}

/// The checkout's commit, marked when files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(mut commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    if git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty())
    {
        commit.push('+');
    }
    commit
}
