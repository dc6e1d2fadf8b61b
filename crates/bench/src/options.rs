//! What the caller asked for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};

/// All scenarios, in the order in which they run.
pub(crate) const SCENARIOS: &[&str] = &[
    "push-1",
    "push-100",
    "push-pop-ack",
    "paced",
    "lanes",
    "lanes-wide",
    "queues-100",
    "dedup",
    "restart",
    "push-binary",
    "pop-framed",
    "txn-3q",
    "fanout-5g",
    "parked-10k",
    "overload",
    "autopilot",
    "checkpoint-1m",
    "restart-1m",
    "cold-read",
    "reclaim-load",
];

/// Scenarios that run with three nodes too, and those that need them.
const CLUSTERED: &[&str] = &["push-1", "push-100", "push-pop-ack", "txn-3q", FAILOVER];

/// Only with three nodes.
const FAILOVER: &str = "failover";

const HELP: &str = "\
cargo xtask bench [SCENARIO ...] [OPTION ...]

scenarios: push-1 push-100 push-pop-ack paced lanes lanes-wide queues-100 dedup restart
           push-binary pop-framed txn-3q fanout-5g parked-10k overload autopilot
           checkpoint-1m restart-1m cold-read reclaim-load
  --nodes 3       push-1 push-100 push-pop-ack txn-3q failover: on one node, then through the leader and through a
                  follower of three
  --full          the large sizes too: lanes at 1,000,000, dedup of 1,000,000, backlogs five times as large,
                  an overload of 60 s in place of 6 s
  --prealloc      preallocation as the broker has it by default; otherwise off
  --partitions N  partitions of checkpoint-1m and restart-1m, in place of 1,000,000
  --seconds S     time of one timed load (4)
  --bin PATH      the broker (next to this program)
  --dir DIR       where data directories are made (the system's temporary directory)
  --set NAME=VALUE
                  a setting of the broker, or a variable of its environment
";

/// The options.
pub(crate) struct Options {
    pub(crate) scenarios: Vec<String>,
    pub(crate) is_full: bool,
    /// Whether three nodes are measured beside one.
    pub(crate) has_three: bool,
    pub(crate) time: Duration,
    /// In place of a scenario's own number.
    pub(crate) partitions: Option<u32>,
    pub(crate) binary: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) settings: Vec<(String, String)>,
}

impl Options {
    /// Reads the arguments; `None` when help was asked for and given.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> anyhow::Result<Option<Self>> {
        let here = std::env::current_exe()?;
        let mut options = Self {
            scenarios: Vec::new(),
            is_full: false,
            has_three: false,
            time: Duration::from_secs(4),
            partitions: None,
            binary: here.with_file_name("queen"),
            dir: std::env::temp_dir(),
            settings: Vec::new(),
        };
        let mut prealloc = false;
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--full" => options.is_full = true,
                "--prealloc" => prealloc = true,
                "--nodes" => match value()?.as_str() {
                    "1" => options.has_three = false,
                    "3" => options.has_three = true,
                    other => bail!("--nodes is 1 or 3, not {other}"),
                },
                "--seconds" => options.time = Duration::from_secs_f64(value()?.parse()?),
                "--partitions" => options.partitions = Some(value()?.parse()?),
                "--bin" => options.binary = value()?.into(),
                "--dir" => options.dir = value()?.into(),
                "--set" => {
                    let text = value()?;
                    let (name, value) = text.split_once('=').context("--set NAME=VALUE")?;
                    options.settings.push((name.to_owned(), value.to_owned()));
                }
                "--help" | "-h" => {
                    print!("{HELP}");
                    return Ok(None);
                }
                name if SCENARIOS.contains(&name) || name == FAILOVER => {
                    options.scenarios.push(arg);
                }
                other => bail!("no scenario or option {other:?}\n{HELP}"),
            }
        }
        if !prealloc {
            options.settings.push(("QUEEN_RAFT_QLOG_PREALLOC_KB".to_owned(), "0".to_owned()));
        }
        if options.scenarios.is_empty() {
            let all = if options.has_three { CLUSTERED } else { SCENARIOS };
            options.scenarios = all.iter().map(ToString::to_string).collect();
        }
        let allowed = if options.has_three { CLUSTERED } else { SCENARIOS };
        if let Some(other) = options.scenarios.iter().find(|name| !allowed.contains(&name.as_str()))
        {
            bail!("{other} does not run with {} nodes", if options.has_three { 3 } else { 1 });
        }
        Ok(Some(options))
    }
}
