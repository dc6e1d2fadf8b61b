//! `cargo xtask clients`: two workloads through the published client while the leader of three nodes is killed.
//!
//! The workloads judge what they see (`tests/python/clients.py`). Here the leader is killed again and again, and pauses of
//! more than six seconds are held against the kills.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::args::Args;
use crate::cluster::Cluster;
use crate::node;
use crate::python::{self, Python};
use crate::rng::Rng;
use crate::shell::{self, Running, Scratch};
use crate::test::Tally;

const WORKLOADS: [&str; 2] = ["queue", "pipeline"];
/// How long a leader that was killed stays away.
const AWAY: Duration = Duration::from_secs(2);
/// How long a workload may take to drain, and some more.
const DRAIN_LIMIT: Duration = Duration::from_mins(4);
/// A pause that begins or ends this long after a kill is explained by it.
const FELT_S: f64 = 10.0;

/// What to do.
pub(crate) struct ClientsOptions {
    pub(crate) seconds: u64,
    /// Seconds between two kills of the leader.
    pub(crate) every: u64,
    pub(crate) seed: u64,
}

/// The command.
pub(crate) fn clients(mut args: Args) -> anyhow::Result<()> {
    let options = ClientsOptions {
        seconds: args.value("--seconds")?.unwrap_or(600),
        every: args.value("--every")?.unwrap_or(20),
        seed: args.value("--seed")?.unwrap_or_else(Rng::fresh_seed),
    };
    args.end()?;
    ensure!(options.every >= 5, "a leader is killed every 5 s at most");
    let tally = run(&node::build()?, &Python::set_up()?, &options)?;
    ensure!(tally.failed == 0, "the clients found something wrong");
    Ok(())
}

/// Runs both workloads at once; counts one for each, one for the pauses, one for the nodes at the end.
pub(crate) fn run(
    binary: &Path,
    python: &Python,
    options: &ClientsOptions,
) -> anyhow::Result<Tally> {
    println!("clients: seed {}, {} s", options.seed, options.seconds);
    let mut scratch = Scratch::new("clients")?;
    let mut cluster = Cluster::new(scratch.path(), binary, None)?;
    cluster.launch_all()?;
    cluster.wait_equal()?;
    let mut workloads = Vec::new();
    for name in WORKLOADS {
        let output = fs::File::create(scratch.path().join(name))?;
        let mut command = python.command();
        command.arg(python::directory().join("clients.py")).arg(name);
        command.args([options.seconds.to_string(), options.seed.to_string()]);
        command.args(cluster.addresses().iter().map(|address| format!("http://{address}")));
        command.stdout(output.try_clone()?).stderr(output);
        workloads.push((name, Running::start(&mut command)?));
    }
    let kills = kill_leaders(&mut cluster, options)?;
    let mut tally = Tally::default();
    let mut pauses = Vec::new();
    for (name, mut process) in workloads {
        let status = process.wait(DRAIN_LIMIT)?;
        let text = fs::read_to_string(scratch.path().join(name))?;
        ensure!(status.success(), "{name} ended with {status}\n{}", shell::tail(&text, 30));
        let result = shell::tail(&text, 1);
        println!("{name}: {}", result.trim());
        let result: Value = serde_json::from_str(result).context("no result")?;
        tally.add(Tally::one(result.get("wrong").and_then(Value::as_u64) == Some(0)));
        pauses.extend(pauses_of(name, &result));
    }
    let unexplained = pauses.iter().filter(|pause| !pause.is_explained(&kills)).count();
    for pause in &pauses {
        let word = if pause.is_explained(&kills) { "a leader was killed" } else { "unexplained" };
        println!(
            "stall: {}: no {} for {:.1} s: {word}",
            pause.name,
            pause.what,
            pause.until - pause.from
        );
    }
    tally.add(Tally::one(unexplained == 0));
    let ended = cluster.wait_equal().and_then(|()| cluster.stop_all());
    if let Err(reason) = &ended {
        println!("{reason:#}");
    }
    tally.add(Tally::one(ended.is_ok()));
    println!(
        "leaders killed {}, stalls {}, of them unexplained {unexplained}, failed {}, seed {}",
        kills.len(),
        pauses.len(),
        tally.failed,
        options.seed
    );
    if tally.failed > 0 {
        scratch.keep();
        println!("the data is kept in {}", scratch.path().display());
    }
    Ok(tally)
}

/// Kills the leader every so often; when, by the wall clock.
fn kill_leaders(cluster: &mut Cluster, options: &ClientsOptions) -> anyhow::Result<Vec<f64>> {
    let (started, mut kills) = (Instant::now(), Vec::new());
    let every = Duration::from_secs(options.every);
    let until = Duration::from_secs(options.seconds);
    let mut next = every / 2;
    while next + AWAY < until {
        while started.elapsed() < next {
            cluster.tend()?;
            shell::pause(Duration::from_millis(100));
        }
        let leader = cluster.leader()?;
        cluster.kill(leader);
        kills.push(now_s());
        shell::pause(AWAY);
        cluster.launch(leader)?;
        next += every;
    }
    Ok(kills)
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A time without progress, as a workload saw it.
struct Pause {
    name: &'static str,
    what: String,
    from: f64,
    until: f64,
}

impl Pause {
    /// Whether a leader was killed shortly before it or in it.
    fn is_explained(&self, kills: &[f64]) -> bool {
        kills.iter().any(|kill| *kill <= self.until && self.from <= kill + FELT_S)
    }
}

fn pauses_of(name: &'static str, result: &Value) -> Vec<Pause> {
    let rows = result.get("stalls").and_then(Value::as_array).into_iter().flatten();
    rows.filter_map(|row| {
        let what = row.get(0)?.as_str()?.to_owned();
        Some(Pause { name, what, from: row.get(1)?.as_f64()?, until: row.get(2)?.as_f64()? })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_explained_by_a_kill_in_it_or_shortly_before() {
        let result =
            serde_json::json!({"stalls": [["push", 100.0, 107.5], ["delivery", 200.0, 207.0]]});
        let pauses = pauses_of("queue", &result);
        let explained: Vec<bool> = pauses.iter().map(|pause| pause.is_explained(&[95.0])).collect();
        assert_eq!(explained, [true, false]);
        assert!(pauses[1].is_explained(&[206.0]) && !pauses[1].is_explained(&[208.0]));
    }
}
