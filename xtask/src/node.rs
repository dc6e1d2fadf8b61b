//! One real broker process on a directory and an address of its own.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::http::Client;
use crate::network::Namespace;
use crate::shell::{self, Running};

/// How long a start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(1);
/// How long an orderly stop may take.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// What to start.
#[derive(Clone)]
pub(crate) struct NodeOptions {
    pub(crate) binary: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) address: SocketAddr,
    /// The network that it runs in, where it is not everybody's.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// Standard error is appended here.
    pub(crate) log: PathBuf,
    pub(crate) settings: Vec<(String, String)>,
}

impl NodeOptions {
    /// A node below `base`, with a free port of loopback and the settings' defaults.
    pub(crate) fn below(base: &Path, binary: &Path) -> anyhow::Result<Self> {
        Ok(Self::at(free_address()?, base, binary))
    }

    /// A node below `base` that listens there.
    pub(crate) fn at(address: SocketAddr, base: &Path, binary: &Path) -> Self {
        let (directory, log) = (base.join("data"), base.join("node.log"));
        let (binary, settings, namespace) = (binary.into(), Vec::new(), None);
        Self { binary, directory, address, namespace, log, settings }
    }

    /// Adds a setting.
    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Where it answers.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        shell::tail(&String::from_utf8_lossy(&text), 12).to_owned()
    }
}

/// A running broker, killed when dropped.
pub(crate) struct Node {
    options: NodeOptions,
    process: Running,
}

impl Node {
    /// Starts one and waits until it serves.
    ///
    /// # Errors
    /// It ended instead, or did not serve in time; with the end of its log.
    pub(crate) fn start(options: &NodeOptions) -> anyhow::Result<Self> {
        let mut node = Self::launch(options)?;
        node.wait_serving()?;
        Ok(node)
    }

    /// Starts one without waiting.
    pub(crate) fn launch(options: &NodeOptions) -> anyhow::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(&options.log);
        let log: File = log.with_context(|| options.log.display().to_string())?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut command = Command::new(&options.binary);
        command
            .env_clear()
            .env("PATH", path)
            .env("PORT", options.address.port().to_string())
            .env("QUEEN_BIND_ADDR", options.address.ip().to_string())
            // This machine may be fuller than one that runs a broker.
            .env("QUEEN_RAFT_DISK_HIGH_PCT", "100")
            .env("QUEEN_RAFT_DIR", &options.directory)
            .envs(options.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = match &options.namespace {
            Some(namespace) => namespace.run(|| Running::start(&mut command))??,
            None => Running::start(&mut command)?,
        };
        Ok(Self { options: options.clone(), process })
    }

    /// Waits until `GET /health` answers 200.
    pub(crate) fn wait_serving(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + START_LIMIT;
        let mut client = Client::new(self.options.address, Duration::from_secs(5));
        loop {
            if client.get("/health").is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if let Some(status) = self.process.ended()? {
                bail!("the node ended with {status}\n{}", self.options.log_tail());
            }
            ensure!(
                Instant::now() < until,
                "the node does not serve after {} s\n{}",
                START_LIMIT.as_secs(),
                self.options.log_tail()
            );
            shell::pause(Duration::from_millis(10));
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.process.ended()
    }

    /// Fails if it has ended by itself.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.ended()? {
            bail!("the node ended with {status}\n{}", self.options.log_tail());
        }
        Ok(())
    }

    /// Sends a signal.
    pub(crate) fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.process.child().id())?;
        kill_process(Pid::from_raw(pid).context("no such process id")?, signal)?;
        Ok(())
    }

    /// The process id.
    pub(crate) fn id(&mut self) -> u32 {
        self.process.child().id()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// Asks it to stop and requires exit code 0 in time.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.check_running()?;
        self.signal(Signal::TERM)?;
        let status = self.process.wait(STOP_LIMIT).context("stopping the node")?;
        ensure!(
            status.success(),
            "the node stopped with {status} (signal {:?})\n{}",
            status.signal(),
            self.options.log_tail()
        );
        Ok(())
    }
}

/// An address of loopback that nobody listened on a moment ago.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Builds the release broker, once per run, and says where it is.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let mut command = shell::cargo();
    command.args(["build", "--quiet", "--release", "--package", "queen"]);
    shell::must(&mut command, Duration::from_hours(1))?;
    let binary = shell::target()?.join("release").join("queen");
    ensure!(binary.is_file(), "{} was not built", binary.display());
    Ok(binary)
}
