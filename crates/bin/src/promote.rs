//! `queen promote-dir`: the directory of a node alone becomes that of a cluster whose only member it is.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use queen_broker::recover::Kind;
use queen_io::{Disk, RealDisk, ScratchDisk};
use queen_raft::Member;
use queen_record::ids::EntryIndex;

use crate::client::ended;
use crate::client::failure::Failure;
use crate::client::output::Output;
use crate::config::{Environment, Replicator, Settings, is_address};
use crate::examine::{doctor, lock};
use crate::runtime::Hooks;
use crate::start::{Boot, Broker};
use crate::{fatal, node};

/// Whose the directory becomes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  queen promote-dir /var/lib/queen/raft --node 1 --raft 10.0.0.11:7400 --http 10.0.0.11:6632

The node must be stopped; take a copy or a backup first, since there is no way back. Set QUEEN_ENCRYPTION_KEY as for a start,
where payloads are encrypted. Then start it with QUEEN_RAFT_REPLICATOR=openraft, the same number in QUEEN_RAFT_NODE_ID, and
QUEEN_RAFT_PEERS; start the others empty with QUEEN_RAFT_JOIN=true, and add them (docs/cluster.md).

Interrupted, the same command again finishes it. Exit code 0: the directory is a cluster's. 1: it is as it was, and a line
says why. 2: the arguments are wrong.")]
pub(crate) struct Args {
    /// The data directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The node's number in its cluster.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    node: u64,
    /// Where other members will reach its replication.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    raft: String,
    /// Where other members will reach its API.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    http: String,
}

fn address(text: &str) -> Result<String, String> {
    if is_address(text) { Ok(text.to_owned()) } else { Err("is not host:port".to_owned()) }
}

/// Does it.
pub(crate) fn run(args: &Args) -> ExitCode {
    ended(promote(args))
}

fn promote(args: &Args) -> Result<ExitCode, Failure> {
    let dir = &*lock::resolved(&args.dir);
    let said = |error: anyhow::Error| Failure::said(fatal::text(&error));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    if lock::take(dir)?.is_none() {
        let dir = dir.display();
        return Err(Failure::said(format!("{dir} holds no node's data: nothing to promote")));
    }
    let kind = Kind::of(&*disk, dir).map_err(|error| Failure::said(error.to_string()))?;
    if kind == Kind::Member {
        let dir = dir.display();
        return Err(Failure::said(format!("{dir} is a cluster's already: start it as it is")));
    }
    checkpoint(dir).map_err(said)?;
    let _lock = lock::take(dir)?;
    let applied = applied(&disk, dir)?;
    let member = Member::at(&*args.raft, &*args.http);
    queen_raft::promote(&disk, dir, (args.node, member), applied)
        .map_err(|error| Failure::said(error.to_string()))?;
    let mut output = Output::new();
    let (node, entry) = (args.node, applied.0);
    output.line(&format!(
        "{} is node {node} of a cluster now, its only member, at entry {entry}.",
        dir.display()
    ))?;
    output.line(&format!(
        "Start it with QUEEN_RAFT_REPLICATOR=openraft QUEEN_RAFT_NODE_ID={node} QUEEN_RAFT_PEERS={node}={}/{},...",
        args.raft, args.http
    ))?;
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the node without its edges and stops it: everything in its logs is in the checkpoint then.
fn checkpoint(dir: &Path) -> anyhow::Result<()> {
    let mut settings = Settings::read(&Environment::of_process())?;
    dir.to_str()
        .ok_or_else(|| anyhow::anyhow!("{} is not UTF-8", dir.display()))?
        .clone_into(&mut settings.dir);
    settings.replicator = Replicator::Local;
    let boot = Boot {
        settings: &settings,
        recorder: Arc::new(PrometheusBuilder::new().build_recorder()),
        hooks: Hooks::default(),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    };
    node::open(&boot)?.stop()
}

/// What the checkpoint covers, which must be all there is.
fn applied(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(EntryIndex, u64), Failure> {
    let over: Arc<dyn Disk> = Arc::new(ScratchDisk::new(disk.clone(), dir));
    let opened = queen_doctor::start(&over, &doctor::target(dir)?)
        .map_err(|error| Failure::said(error.to_string()))?;
    let (applied, durable) = (opened.state.applied(), opened.durable);
    if applied != durable {
        return Err(Failure::said(format!(
            "the checkpoint of {} is at entry {durable}, its logs at {applied}: start and stop the node once, then ask again",
            dir.display()
        )));
    }
    Ok((applied, opened.state.term()))
}
