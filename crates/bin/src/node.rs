//! Opens the data directory and makes the node of it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use metrics::{NoopRecorder, Recorder};
use queen_broker::cycle::CycleLimits;
use queen_broker::{
    Broker, BrokerOptions, End, Node, NodeOptions, NodeParts, RetentionOptions, ScrubPace,
    SpaceLimits, StoreScrubPace,
};
use queen_http::Gate;
use queen_io::{RealDisk, SystemClock};
use queen_planner::limits::Limits;
use queen_raft::ClusterOptions;
use queen_record::layout::Shards;
use queen_store::{LmdbOptions, LmdbStore};

use crate::config::{Replicator, Settings};
use crate::examine::lock::resolved;
use crate::start::{self, Boot};

/// A running node and its hold on the directory.
pub(crate) struct OpenNode {
    node: Node,
    /// Held until the process ends, so that no second one uses the directory.
    _lock: File,
}

/// Opens the node of the settings' data directory; blocks until it has loaded.
///
/// # Errors
/// The start is refused; the text is that of the FATAL line.
pub(crate) fn open(boot: &Boot<'_>) -> anyhow::Result<OpenNode> {
    queen_store::bound_memory();
    let settings = boot.settings;
    let dir = resolved(Path::new(&settings.dir));
    make_dir(&dir)?;
    check_finished(&dir)?;
    warn_of_others(&dir)?;
    let lock = lock(&dir)?;
    if settings.replicator != Replicator::Local {
        let disk: Arc<dyn queen_io::Disk> = Arc::new(RealDisk);
        queen_raft::load_staged(&disk, &dir, settings.node_number()?)?;
    }
    let store_dir = dir.join("store");
    let lmdb = LmdbOptions::for_disk(&dir)?;
    let parts = NodeParts {
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock::new()),
        store: Box::new(LmdbStore::open(&store_dir, lmdb)?),
        ids: None,
    };
    let recorder: &dyn Recorder = if settings.metrics { &*boot.recorder } else { &NoopRecorder };
    let node = Node::open(&options(settings, dir)?, parts, recorder)?;
    boot.hooks.set(node.idle_hook(), Arc::new(|| {}));
    Ok(OpenNode { node, _lock: lock })
}

impl start::Broker for OpenNode {
    type Api = Broker;

    fn open(&self, gate: &Gate<Broker>) {
        gate.open(self.node.api());
    }

    fn must_end(&self) -> impl Future<Output = End> + Send + 'static {
        self.node.must_end()
    }

    fn begin_stop(&self) {
        self.node.begin_stop();
    }

    fn stop(self) -> anyhow::Result<()> {
        self.node.stop().map_err(|reason| anyhow::anyhow!(reason))
    }
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| {
        format!(
            "QUEEN_RAFT_DIR={} cannot be made; name a directory you may write to",
            dir.display()
        )
    })
}

/// Refuses what `queen relayout` has not finished: the rest of the messages is not in it, and the next run would remove it.
///
/// # Errors
/// The text of the FATAL line.
pub(crate) fn check_finished(dir: &Path) -> anyhow::Result<()> {
    if dir.join(queen_relayout::MARK).exists() {
        bail!(
            "{} is the unfinished work of `queen relayout`: run the same command again, or remove the directory",
            dir.display()
        );
    }
    Ok(())
}

/// Warns before a data directory is begun among the files of something else: the name may be wrong.
fn warn_of_others(dir: &Path) -> anyhow::Result<()> {
    // A new volume has this one.
    const USUAL: [&str; 3] = ["lost+found", "queen.lock", "ballast"];
    if ["qlog", "store", queen_raft::DIR].iter().any(|name| dir.join(name).exists()) {
        return Ok(());
    }
    let listed = || format!("{} cannot be listed", dir.display());
    let mut others = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(listed)? {
        let name = entry.with_context(listed)?.file_name().to_string_lossy().into_owned();
        if !USUAL.contains(&&*name) {
            others.push(name);
        }
    }
    others.sort();
    if let Some(first) = others.first() {
        tracing::warn!(
            dir = %dir.display(),
            "QUEEN_RAFT_DIR holds no node's data but {} other files, {first:?} among them: a new data directory is begun there",
            others.len()
        );
    }
    Ok(())
}

/// Takes the directory for this process.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("queen.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("{} cannot be opened", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            bail!("QUEEN_RAFT_DIR={} is in use by another process", dir.display())
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} cannot be locked", path.display()))
        }
    }
}

/// What the node is a member of.
fn cluster(settings: &Settings, dir: &Path) -> anyhow::Result<Option<ClusterOptions>> {
    if settings.replicator == Replicator::Local {
        return Ok(None);
    }
    let peers = settings.peers.0.clone();
    let is_alone = peers.len() < 2 && !settings.raft_join;
    let or = |given: u64, alone: u64, together: u64| {
        let default = if is_alone { alone } else { together };
        Duration::from_millis(if given == 0 { default } else { given })
    };
    let listen = settings.raft_address()?;
    let token = settings.raft_token.text().unwrap_or_default().to_owned();
    if token.is_empty() && listen.is_some_and(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            "QUEEN_RAFT_TOKEN is not set: anybody who reaches the raft port may vote and write the log"
        );
    }
    let node = settings.node_number()?;
    if let Some(forced) = settings.force_recover.0.filter(|forced| *forced != node) {
        anyhow::bail!("QUEEN_RAFT_FORCE_RECOVER is {forced}, and this is node {node}");
    }
    Ok(Some(ClusterOptions {
        dir: dir.to_owned(),
        node,
        peers,
        listen,
        token,
        join: settings.raft_join,
        force_recover: settings.force_recover.0.is_some(),
        heartbeat: or(settings.heartbeat_ms, 50, 100),
        election: or(settings.election_ms, 150, 1000),
        promote_lag_max: settings.promote_max_lag,
        log_keep: settings.log_keep,
        purge_hold: Duration::from_secs(settings.purge_hold_s),
        cache_bytes_max: usize::try_from(settings.log_cache_mb << 20).unwrap_or(usize::MAX),
    }))
}

const DAY_S: u64 = 86_400;

fn options(settings: &Settings, dir: PathBuf) -> anyhow::Result<NodeOptions> {
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let shards = u32::try_from(settings.shards.0).ok().and_then(std::num::NonZeroU32::new);
    let qlog = queen_qlog::Options {
        segment_bytes: settings.segment_bytes,
        lanes: small(settings.lanes),
        shards: shards
            .map_or(Shards::None, |count| Shards::from_number(count.get()).unwrap_or(Shards::None)),
        prealloc_kb: small(settings.prealloc_kb),
        prealloc_min_syncs: small(settings.prealloc_min_syncs),
        precreate: settings.precreate,
        drop_behind_bytes: settings.drop_behind_mb << 20,
        fsync_threads: size(settings.fsync_threads),
        fd_cache: size(settings.fd_cache),
        ..queen_qlog::Options::new(dir.join("qlog"))
    };
    let cluster = cluster(settings, &dir)?;
    Ok(NodeOptions {
        qlog,
        dir,
        cluster,
        encryption_key: settings.encryption_key()?,
        cycle: CycleLimits {
            planning: Limits { command_bytes_max: size(settings.entry_max_bytes) },
            plan_bytes_max: size(settings.batch_max_bytes),
            plan_commands_max: size(settings.batch_max_cmds),
            pop_margin_us: signed(settings.pop_reply_margin_ms).saturating_mul(1000),
            idle_unload_s: signed(settings.idle_unload_s),
            hash_window_min_s: signed(settings.txn_window_min_s),
            cleanup_s: settings.cleanup_enabled.then(|| signed(settings.cleanup_days * DAY_S)),
            ..CycleLimits::default()
        },
        retention: settings.retention_scan.then(|| RetentionOptions {
            interval: Duration::from_millis(settings.retention_interval_ms),
            partitions_per_s: settings.retention_scan_per_s,
            appends_max: size(settings.retention_batch_size),
        }),
        broker: BrokerOptions {
            zstd_level: i32::try_from(settings.zstd_level).unwrap_or(1),
            admit_bytes_max: size(settings.admit_max_mb << 20),
            admit_hold: Duration::from_millis(settings.admit_hold_ms),
        },
        commands_max: size(settings.command_queue_depth),
        durable_every: Duration::from_millis(settings.durable_every_ms),
        durable_every_bytes: settings.durable_every_bytes,
        lookup_threads: 2,
        scrub: ScrubPace {
            bytes_per_second: settings.scrub_kb_per_s << 10,
            every: Duration::from_secs(settings.scrub_every_s),
        },
        store_scrub: StoreScrubPace {
            rows_per_second: if settings.store_scrub_every_s == 0 {
                0
            } else {
                settings.store_scrub_rows_per_s
            },
            every: Duration::from_secs(settings.store_scrub_every_s),
            at_start: settings.store_verify,
        },
        space: SpaceLimits {
            high_percent: small(settings.disk_high_pct),
            low_percent: small(settings.disk_low_pct.min(settings.disk_high_pct)),
            every: Duration::from_millis(settings.disk_check_ms),
        },
        reclaim: queen_reclaim::Options {
            dead_pct_min: settings.compact_min_dead_pct.0,
            seal_age_us: signed(settings.seal_age_s).saturating_mul(1_000_000),
            ..queen_reclaim::Options::new(settings.segment_bytes)
        },
    })
}
