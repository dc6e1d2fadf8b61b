//! What a soak was asked to do, and the periods and settings that follow from its length.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::soak::rng::Rng;

const HELP: &str = "\
cargo xtask soak [OPTION ...]

One node under a steady mixed load: pushes at a fixed rate, consumers, retention, a queue that is deleted and made again;
small files, checkpoints, rewrites and both scrubs again and again. Prints a line every tenth of the time and one JSON
line at the end, and exits with 1 when something grew, pushes waited for background work, a message was lost, or the
doctor finds something. docs/testing.md says how each is judged.

  --seconds N    length (1800); 300 or more mean something, less shows that the soak itself works
  --seed N       what is pushed where (random, printed)
  --rate N       pushes a second (200), of four messages each on average
  --series FILE  each second's figures, one JSON line each
  --bin PATH     the broker (next to this program)
  --dir DIR      where the data directory is made (the system's temporary directory)
  --set NAME=VALUE
                 a setting of the broker, in place of the soak's own
";

/// Shorter ones have no five parts with something in each.
const SECONDS_MIN: u64 = 20;
const MIB: u64 = 1 << 20;

/// The plan.
pub(super) struct Plan {
    pub(super) time: Duration,
    pub(super) seed: u64,
    /// Requests a second.
    pub(super) rate: f64,
    pub(super) series: Option<PathBuf>,
    pub(super) binary: PathBuf,
    pub(super) dir: PathBuf,
    settings: Vec<(String, String)>,
}

impl Plan {
    /// Reads the arguments; `None` when help was asked for and given.
    pub(super) fn parse(mut args: impl Iterator<Item = String>) -> anyhow::Result<Option<Self>> {
        let mut plan = Self {
            time: Duration::from_mins(30),
            seed: Rng::fresh_seed(),
            rate: 200.0,
            series: None,
            binary: std::env::current_exe()?.with_file_name("queen"),
            dir: std::env::temp_dir(),
            settings: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--seconds" => plan.time = Duration::from_secs(value()?.parse()?),
                "--seed" => plan.seed = value()?.parse()?,
                "--rate" => plan.rate = value()?.parse()?,
                "--series" => plan.series = Some(value()?.into()),
                "--bin" => plan.binary = value()?.into(),
                "--dir" => plan.dir = value()?.into(),
                "--set" => {
                    let text = value()?;
                    let (name, value) = text.split_once('=').context("--set NAME=VALUE")?;
                    plan.settings.push((name.to_owned(), value.to_owned()));
                }
                "--help" | "-h" => {
                    print!("{HELP}");
                    return Ok(None);
                }
                other => bail!("no option {other:?}\n{HELP}"),
            }
        }
        let least = Duration::from_secs(SECONDS_MIN);
        ensure!(plan.time >= least, "--seconds {SECONDS_MIN} is the least: each fifth is judged");
        ensure!((1.0..=10_000.0).contains(&plan.rate), "--rate is 1 to 10000 requests a second");
        Ok(Some(plan))
    }

    /// The beat of everything: a checkpoint in each, a message's life. Twelve are in a fifth of the time; from ten minutes
    /// on it is 10 s.
    pub(super) fn period(&self) -> Duration {
        (self.time / 60).clamp(Duration::from_secs(1), Duration::from_secs(10))
    }

    /// What the broker is started with.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let period = self.period();
        let often_s = (period.as_secs() * 3 / 2).max(5);
        let segment = 4 * MIB * period.as_secs() / 10;
        let own = [
            // Each file of a shared log has messages that go beside some that stay.
            ("QUEEN_QLOG_SHARDS", "2".to_owned()),
            ("QUEEN_RAFT_SEGMENT_BYTES", segment.to_string()),
            ("QUEEN_QLOG_COMPACT_MIN_DEAD_PCT", "50".to_owned()),
            ("QUEEN_QLOG_SEAL_AGE_S", period.as_secs().to_string()),
            // Full soon, so that what it holds does not count as growth.
            ("QUEEN_RAFT_QLOG_FD_CACHE", "16".to_owned()),
            ("QUEEN_RAFT_DURABLE_EVERY_MS", period.as_millis().to_string()),
            // A round takes a part of the time from one to the next: there must be seconds without.
            ("QUEEN_QLOG_SCRUB_KB_PER_S", "65536".to_owned()),
            ("QUEEN_QLOG_SCRUB_EVERY_S", often_s.to_string()),
            ("QUEEN_STORE_SCRUB_ROWS_PER_S", "100000".to_owned()),
            ("QUEEN_STORE_SCRUB_EVERY_S", often_s.to_string()),
            ("QUEEN_RAFT_TXN_WINDOW_MIN_S", "1".to_owned()),
            ("RETENTION_INTERVAL", "500".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        // A later one of the same name wins.
        own.chain(self.settings.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Plan> {
        Plan::parse(text.split_whitespace().map(str::to_owned)).map(Option::unwrap)
    }

    #[test]
    fn the_period_follows_the_length() {
        for (seconds, period) in [(20, 1), (60, 1), (300, 5), (600, 10), (100_000, 10)] {
            let plan = parse(&format!("--seconds {seconds}")).unwrap();
            assert_eq!(plan.period(), Duration::from_secs(period), "{seconds}");
            let settings = plan.settings();
            let segment = settings.iter().find(|(name, _)| name == "QUEEN_RAFT_SEGMENT_BYTES");
            assert!(segment.unwrap().1.parse::<u64>().unwrap() >= 65_536);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["--seconds 3", "--rate 0", "--rate NaN", "--set x", "--seed", "words"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
