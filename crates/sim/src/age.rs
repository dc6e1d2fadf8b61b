//! Months of steady traffic on one node, in minutes: time jumps from step to step, everything else is the product's own,
//! on real files.
//!
//! After each step, disk use is held against what a naive model says must still be there; at the end, and over every restart,
//! the state against itself and all content against the model.

mod model;
mod node;
mod traffic;

use std::path::PathBuf;
use std::time::Instant;

use queen_record::layout::Shards;

use crate::rng::Rng;
use model::Model;
use node::Aging;
use traffic::{QUEUES, Traffic};

/// Simulated time of one step, µs.
pub const STEP_US: i64 = 3_600 * 1_000_000;
const STEPS_PER_DAY: u32 = 24;
/// Size at which files are sealed: small, so that a day fills several.
const SEGMENT_BYTES: u64 = 32 << 10;
/// Days between two restarts.
const RESTART_DAYS: u32 = 10;
/// Days after which the figures must be flat.
const WARM_UP_DAYS: u32 = 15;

/// A directory for a node that ages: in memory where the system has such a place, because months of syncs take hours on a
/// disk, and no power is cut here.
///
/// # Errors
/// When none can be made.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    const IN_MEMORY: &str = "/dev/shm";
    tempfile::Builder::new()
        .prefix("queen-age")
        .tempdir_in(IN_MEMORY)
        .or_else(|_| tempfile::tempdir())
}

/// What is run.
#[derive(Clone, Debug)]
pub struct AgeOptions {
    /// An empty directory.
    pub dir: PathBuf,
    /// Simulated days.
    pub days: u32,
    /// Seed of the traffic.
    pub seed: u64,
    /// How many shared logs; `None` for a log per queue.
    pub shards: Option<u32>,
}

impl AgeOptions {
    fn layout(&self) -> Shards {
        self.shards.map_or(Shards::None, Shards::Count)
    }

    /// Bytes on disk for each live byte, in hundredths: a queue's own log is rewritten at its first dead message, a
    /// shared one at half.
    fn share_max(&self) -> u64 {
        if self.shards.is_some() { 200 } else { 130 }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct AgeReport {
    /// Messages pushed.
    pub pushed: u64,
    /// Messages that must be there at the end.
    pub live: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    /// Bytes of log files at the end.
    pub log_bytes: u64,
    /// The most log bytes beside two files for each log, over live bytes, in hundredths, after the warm-up.
    pub share_max: u64,
    /// The most log files at once.
    pub files_max: u64,
    /// Partitions at the end of the warm-up, and the most after it.
    pub partitions: (u64, u64),
    /// Bytes of the store at the end of the warm-up, and the most after it.
    pub store_bytes: (u64, u64),
    /// Anonymous memory at the end of the warm-up, and the most after it.
    pub anon_bytes: (u64, u64),
    /// Files removed, files rewritten, logs removed, files sealed early.
    pub reclaimed: [u64; 4],
    /// Restarts.
    pub restarts: u32,
    /// Real time.
    pub seconds: f64,
    /// What was wrong, the first few.
    pub violations: Vec<String>,
}

/// Runs it; `progress` is called after every simulated day.
///
/// # Errors
/// Why the node stopped or refused.
pub fn run(options: &AgeOptions, progress: &mut dyn FnMut(u32)) -> Result<AgeReport, String> {
    let began = Instant::now();
    let mut report = AgeReport::default();
    let mut model = Model::default();
    let mut traffic = Traffic::new(Rng::new(options.seed));
    let mut node = Aging::open(&options.dir, options.layout(), SEGMENT_BYTES, node::EPOCH)?;
    for queue in &QUEUES {
        node.configure(queue.name, queue.options())?;
    }
    for day in 1..=options.days {
        for _ in 0..STEPS_PER_DAY {
            node.pass_time(STEP_US);
            traffic.step(&mut node, &mut model)?;
            node.look_after_itself()?;
            model.forget(node.now());
            if day > WARM_UP_DAYS.min(options.days / 2) {
                measure(options, &node, &model, &mut report);
            }
        }
        if day == WARM_UP_DAYS.min(options.days / 2) {
            report.partitions.0 = node.partitions();
            report.store_bytes.0 = node.store_bytes()?;
            report.anon_bytes.0 = anon_bytes();
        } else if day > WARM_UP_DAYS.min(options.days / 2) {
            report.partitions.1 = report.partitions.1.max(node.partitions());
            report.store_bytes.1 = report.store_bytes.1.max(node.store_bytes()?);
            report.anon_bytes.1 = report.anon_bytes.1.max(anon_bytes());
        }
        if day % RESTART_DAYS == 0 {
            let (digest, now) = (node.digest(), node.now());
            add(&mut report.reclaimed, node.reclaimed());
            drop(node);
            node = Aging::open(&options.dir, options.layout(), SEGMENT_BYTES, now)?;
            report.restarts += 1;
            if node.digest() != digest {
                violate(&mut report, format!("day {day}: another state after a restart"));
            }
        }
        progress(day);
    }
    for wrong in model.compare(&node)? {
        violate(&mut report, wrong);
    }
    flat(&mut report);
    let stats = node.log_stats();
    report.pushed = model.pushed;
    report.live = model.live_messages();
    report.live_bytes = model.live_bytes();
    report.log_bytes = stats.bytes;
    add(&mut report.reclaimed, node.reclaimed());
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

fn add(sums: &mut [u64; 4], more: [u64; 4]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}

fn violate(report: &mut AgeReport, wrong: String) {
    const KEPT: usize = 20;
    if report.violations.len() < KEPT {
        report.violations.push(wrong);
    }
}

/// Holds the disk against the bound.
fn measure(options: &AgeOptions, node: &Aging, model: &Model, report: &mut AgeReport) {
    let stats = node.log_stats();
    let spare = 2 * SEGMENT_BYTES * stats.logs;
    let live = model.live_bytes().max(1);
    let share = stats.bytes.saturating_sub(spare) * 100 / live;
    report.share_max = report.share_max.max(share);
    report.files_max = report.files_max.max(stats.files);
    if share > options.share_max() {
        let day = (node.now() - node::EPOCH) / (86_400 * 1_000_000);
        violate(
            report,
            format!(
                "day {day}: {} bytes of logs for {live} live bytes and {} logs",
                stats.bytes, stats.logs
            ),
        );
    }
}

/// Nothing but what is live may grow after the warm-up.
fn flat(report: &mut AgeReport) {
    let (before, most) = report.partitions;
    if most > before + before / 4 + 8 {
        violate(report, format!("partitions grew from {before} to {most}"));
    }
    // Live messages of the queue that keeps everything are in the model's own memory too.
    let (before, most) = report.anon_bytes;
    if most > before + before / 4 + (16 << 20) {
        violate(report, format!("memory grew from {before} to {most} bytes"));
    }
    let (before, most) = report.store_bytes;
    if most > before * 2 + (1 << 20) {
        violate(report, format!("the store grew from {before} to {most} bytes"));
    }
}

/// Anonymous memory of the process; 0 where the system does not say.
fn anon_bytes() -> u64 {
    queen_store::trim_memory();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = kib.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
