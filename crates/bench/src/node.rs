//! A server process on a fresh directory: the broker, or the floor in its place.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::http::Client;

const START_LIMIT: Duration = Duration::from_mins(2);

/// A directory of our own, removed when dropped.
pub(crate) struct Scratch {
    path: PathBuf,
    is_kept: bool,
}

impl Scratch {
    pub(crate) fn new(base: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = base.join(format!("queen-bench-{process}-{number}"));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, is_kept: std::env::var_os("QUEEN_BENCH_KEEP").is_some() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it for a person to look at.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.is_kept {
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

/// What to start.
pub(crate) enum Program<'a> {
    /// The broker with settings.
    Broker { binary: &'a Path, settings: &'a [(String, String)] },
    /// This program's own floor.
    Floor,
}

/// A running server, killed when dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) port: u16,
    /// Whether it has the broker's metrics page.
    pub(crate) is_broker: bool,
    scratch: PathBuf,
}

impl Node {
    /// Starts a server over `scratch` and waits until it serves.
    pub(crate) async fn start(program: &Program<'_>, scratch: &Path) -> anyhow::Result<Self> {
        let mut node = Self::launch(program, scratch)?;
        let until = Instant::now() + START_LIMIT;
        while !node.serves().await {
            node.check_running()?;
            if Instant::now() > until {
                bail!("the server does not serve\n{}", node.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(node)
    }

    /// Starts a server without waiting.
    pub(crate) fn launch(program: &Program<'_>, scratch: &Path) -> anyhow::Result<Self> {
        Self::launch_at(program, scratch, free_port()?)
    }

    /// The same on a port that others were told.
    pub(crate) fn launch_at(
        program: &Program<'_>,
        scratch: &Path,
        port: u16,
    ) -> anyhow::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(scratch.join("log"))?;
        let mut command = match program {
            Program::Broker { binary, settings } => {
                let mut command = Command::new(binary);
                command
                    .env_clear()
                    .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                    .env("PORT", port.to_string())
                    .env("QUEEN_BIND_ADDR", "127.0.0.1")
                    // This machine may be fuller than one that runs a broker.
                    .env("QUEEN_RAFT_DISK_HIGH_PCT", "100")
                    .env("QUEEN_RAFT_DIR", scratch.join("data"))
                    .envs(settings.iter().map(|(name, value)| (name, value)));
                command
            }
            Program::Floor => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["floor", &port.to_string()]).arg(scratch.join("floor.log"));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| command.get_program().display().to_string())?;
        let is_broker = matches!(program, Program::Broker { .. });
        Ok(Self { child, port, is_broker, scratch: scratch.to_owned() })
    }

    async fn serves(&self) -> bool {
        let Ok(mut client) = Client::connect(self.port).await else { return false };
        client.get("/health").await.is_ok_and(|answer| answer.status == 200)
    }

    /// Fails when it has ended by itself.
    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended with {status}\n{}", self.log_tail());
        }
        Ok(())
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its scratch directory.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Asks it to stop; it must end well.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no id")?;
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait()?;
        if self.is_broker && !status.success() {
            bail!("the server stopped with {status}\n{}", self.log_tail());
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.scratch.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(8).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Counters of the metrics page, by name; labelled series are left out.
    pub(crate) async fn metrics(&self) -> anyhow::Result<Metrics> {
        if !self.is_broker {
            return Ok(Metrics(Vec::new()));
        }
        let mut client = Client::connect(self.port).await?;
        let answer = client.get("/metrics/prometheus").await?;
        Ok(Metrics::parse(std::str::from_utf8(answer.body)?))
    }

    /// Makes a queue.
    pub(crate) async fn configure(&self, queue: &str) -> anyhow::Result<()> {
        if !self.is_broker {
            return Ok(());
        }
        let mut client = Client::connect(self.port).await?;
        let body = format!("{{\"queue\":\"{queue}\",\"options\":{{}}}}");
        let answer = client.post("/api/v1/configure", body.as_bytes()).await?;
        if answer.status != 200 {
            bail!("configure: {} {}", answer.status, answer.excerpt());
        }
        Ok(())
    }
}

/// A port of loopback that nobody listened on a moment ago.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A reading of the metrics page.
pub(crate) struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads the page.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let values = lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        Self(values.collect())
    }

    /// A series without labels; 0 when it is not there.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.0.iter().find(|(known, _)| known == name).map_or(0.0, |(_, value)| *value)
    }
}
