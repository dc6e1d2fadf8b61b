//! What the node is and does, looked at all the time: its memory, files, threads and disk each second, and what it works at
//! in the background several times a second.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;

use crate::files;
use crate::http::Client;
use crate::node::Metrics;
use crate::usage;
use crate::wire::PAYLOAD_BYTES;

/// Time between two looks at the metrics.
const LOOK: Duration = Duration::from_millis(200);
/// The node keeps this much room whatever it holds.
const BALLAST: &str = "ballast";

/// Background work, in the order of [`Watched::spans`].
pub(super) const WORKS: [&str; 3] = ["checkpoint", "rewrite", "scrub"];

/// A second of the run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Second {
    pub(super) rss_bytes: u64,
    pub(super) anon_bytes: u64,
    pub(super) open_files: u64,
    pub(super) threads: u64,
    /// Of the data directory, without the ballast.
    pub(super) disk_bytes: u64,
    /// Of those, the store's.
    pub(super) store_bytes: u64,
    /// Of those, what must stay: messages of a queue without retention, by their payloads alone.
    pub(super) kept_bytes: u64,
}

/// When one kind of work was under way; in order of their starts.
pub(super) type Spans = Vec<(Instant, Instant)>;

/// What was seen.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) seconds: Vec<Second>,
    pub(super) spans: [Spans; WORKS.len()],
    /// The counters at the end.
    pub(super) last: Counters,
}

/// What the node counts of its background work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) checkpoints: f64,
    checkpoint_s: f64,
    merge_s: f64,
    pub(super) rewritten_bytes: f64,
    pass_s: f64,
    pub(super) rewrites: f64,
    pub(super) files_removed: f64,
    pub(super) log_scrubbed_bytes: f64,
    pub(super) rows_scrubbed: f64,
    pub(super) checksum_failures: f64,
    pub(super) expired: f64,
}

impl Counters {
    fn of(metrics: &Metrics) -> Self {
        let reclaimed =
            |kind: &str| metrics.value(&format!("queen_raft_reclaimed_total{{kind=\"{kind}\"}}"));
        Self {
            checkpoints: metrics.value("queen_raft_durable_point_seconds_count"),
            checkpoint_s: metrics.value("queen_raft_durable_point_seconds_sum"),
            merge_s: metrics.value("queen_raft_store_merge_seconds_sum"),
            rewritten_bytes: metrics.value("queen_raft_rewritten_bytes_total"),
            pass_s: metrics.value("queen_raft_reclaim_pass_seconds_sum"),
            rewrites: reclaimed("rewrites"),
            files_removed: reclaimed("files"),
            log_scrubbed_bytes: metrics.value("queen_raft_log_scrub_bytes_total"),
            rows_scrubbed: metrics.value("queen_raft_store_scrub_rows_total"),
            checksum_failures: metrics.value("queen_raft_checksum_failures_total"),
            expired: metrics.value("queen_retention_messages_total"),
        }
    }

    /// For each kind of work the time that it took since `before`, if there was any. What is counted without a time is taken
    /// to have filled the time between two looks.
    fn since(&self, before: &Self) -> [Option<Duration>; WORKS.len()] {
        let seconds = |time: f64| Duration::from_secs_f64(time.max(0.0));
        let checkpoint = self.checkpoint_s - before.checkpoint_s;
        let merge = self.merge_s - before.merge_s;
        let is_rewritten = self.rewritten_bytes > before.rewritten_bytes
            || self.rewrites > before.rewrites
            || self.files_removed > before.files_removed;
        let is_scrubbed = self.log_scrubbed_bytes > before.log_scrubbed_bytes
            || self.rows_scrubbed > before.rows_scrubbed;
        [
            (checkpoint + merge > 0.0).then(|| seconds(checkpoint + merge)),
            is_rewritten.then(|| seconds(self.pass_s - before.pass_s)),
            is_scrubbed.then_some(Duration::ZERO),
        ]
    }
}

/// Looks at a node.
pub(super) struct Watch {
    pub(super) port: u16,
    pub(super) pid: u32,
    pub(super) dir: PathBuf,
    /// Messages that must stay.
    pub(super) kept: Arc<AtomicU64>,
    /// Messages pushed so far.
    pub(super) pushed: Arc<AtomicU64>,
    pub(super) time: Duration,
    pub(super) series: Option<PathBuf>,
    pub(super) is_over: Arc<AtomicBool>,
}

impl Watch {
    /// Looks until it is over.
    pub(super) async fn run(self) -> anyhow::Result<Watched> {
        let mut client = Client::connect(self.port).await?;
        let mut series = self.series.as_deref().map(create).transpose()?;
        let mut watched = Watched::default();
        let (mut before, started) = (read(&mut client).await?, Instant::now());
        let (mut last_look, mut at_second) = (started, before);
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut next_second = started + Duration::from_secs(1);
        let mut next_line = started + self.time / 10;
        while !self.is_over.load(Ordering::SeqCst) {
            ticks.tick().await;
            let (now, counters) = (Instant::now(), read(&mut client).await?);
            for (spans, took) in watched.spans.iter_mut().zip(counters.since(&before)) {
                if let Some(took) = took {
                    // It ended at some time since the look before.
                    let begin = last_look.checked_sub(took).unwrap_or(last_look);
                    spans.push((begin, Instant::now()));
                }
            }
            (before, last_look) = (counters, now);
            if now >= next_second {
                next_second += Duration::from_secs(1);
                let second = self.second()?;
                watched.seconds.push(second);
                if let Some(file) = &mut series {
                    self.write(file, started.elapsed(), &second, counters.since(&at_second))?;
                }
                at_second = counters;
                if now >= next_line {
                    next_line += self.time / 10;
                    self.show(started.elapsed(), &second, &counters);
                }
            }
        }
        watched.last = before;
        for spans in &mut watched.spans {
            spans.sort_unstable();
        }
        Ok(watched)
    }

    fn second(&self) -> anyhow::Result<Second> {
        let memory = usage::memory_now(self.pid);
        let (open_files, threads) = usage::handles(self.pid);
        Ok(Second {
            rss_bytes: memory.rss_bytes,
            anon_bytes: memory.anon_bytes,
            open_files,
            threads,
            disk_bytes: files::allocated(&self.dir, BALLAST)?,
            store_bytes: files::allocated(&self.dir.join("store"), BALLAST)?,
            kept_bytes: self.kept.load(Ordering::Relaxed) * PAYLOAD_BYTES as u64,
        })
    }

    fn write(
        &self,
        file: &mut File,
        at: Duration,
        second: &Second,
        works: [Option<Duration>; WORKS.len()],
    ) -> anyhow::Result<()> {
        let names: Vec<&str> =
            WORKS.into_iter().zip(works).filter_map(|(name, took)| took.map(|_| name)).collect();
        let line = json!({
            "at_s": at.as_secs(),
            "rss_bytes": second.rss_bytes,
            "anon_bytes": second.anon_bytes,
            "open_files": second.open_files,
            "threads": second.threads,
            "disk_bytes": second.disk_bytes,
            "store_bytes": second.store_bytes,
            "kept_bytes": second.kept_bytes,
            "pushed": self.pushed.load(Ordering::Relaxed),
            "work": names,
        });
        Ok(writeln!(file, "{line}")?)
    }

    fn show(&self, at: Duration, second: &Second, counters: &Counters) {
        println!(
            "{:5} s: rss {} MiB, {} open files, {} threads, disk {} MiB, {} pushed, {} checkpoints, {} rewrites, \
             {} files removed",
            at.as_secs(),
            second.rss_bytes >> 20,
            second.open_files,
            second.threads,
            second.disk_bytes >> 20,
            self.pushed.load(Ordering::Relaxed),
            counters.checkpoints,
            counters.rewrites,
            counters.files_removed,
        );
    }
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| path.display().to_string())
}

async fn read(client: &mut Client) -> anyhow::Result<Counters> {
    let answer = client.get("/metrics/prometheus").await?;
    ensure!(answer.status == 200, "metrics: {} {}", answer.status, answer.excerpt());
    Ok(Counters::of(&Metrics::parse(std::str::from_utf8(answer.body)?)))
}
