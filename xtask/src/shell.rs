//! Processes and directories: run one quietly, wait with a limit, leave nothing behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A `cargo` to add arguments to, started in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // What `cargo run` sets for us describes this crate, not the one to be built.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// `cargo metadata` of the members.
pub(crate) fn metadata() -> anyhow::Result<&'static serde_json::Value> {
    static METADATA: OnceLock<serde_json::Value> = OnceLock::new();
    if let Some(known) = METADATA.get() {
        return Ok(known);
    }
    let value = metadata_by(cargo())?;
    Ok(METADATA.get_or_init(|| value))
}

/// What a `cargo` says of its workspace.
pub(crate) fn metadata_by(mut cargo: Command) -> anyhow::Result<serde_json::Value> {
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).stderr(Stdio::inherit());
    let output = cargo.output().context("cargo metadata does not run")?;
    ensure!(output.status.success(), "cargo metadata ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("cargo metadata: no JSON")
}

/// Where cargo builds.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    let directory = metadata()?.get("target_directory").and_then(serde_json::Value::as_str);
    Ok(directory.context("cargo metadata names no target directory")?.into())
}

/// Waits this long; tools pace a load or poll a process with it.
pub(crate) fn pause(time: Duration) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// A child process that does not outlive its owner.
pub(crate) struct Running(Child);

impl Running {
    /// Starts one.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn();
        let name = command.get_program().to_string_lossy();
        Ok(Self(child.with_context(|| format!("{name} does not run"))?))
    }

    /// The process.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }

    /// Waits until it ends, at most this long.
    pub(crate) fn wait(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > until {
                self.kill();
                bail!("still running after {} s, killed", limit.as_secs());
            }
            pause(Duration::from_millis(10));
        }
    }

    /// Ends it at once and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command's end and everything it printed, both streams in order.
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) text: String,
}

/// Runs a command to its end, keeping what it prints.
pub(crate) fn capture(command: &mut Command, limit: Duration) -> anyhow::Result<Done> {
    let scratch = Scratch::new("output")?;
    let path = scratch.path().join("text");
    let file = File::create(&path)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut running = Running::start(command)?;
    let status = running.wait(limit);
    let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    match status {
        Ok(status) => Ok(Done { status, text }),
        Err(error) => bail!("{error:#}\n{}", tail(&text, 60)),
    }
}

/// Runs a command that must succeed; its output is shown only when it does not.
pub(crate) fn must(command: &mut Command, limit: Duration) -> anyhow::Result<String> {
    let line = format!("{command:?}");
    let done = capture(command, limit).with_context(|| line.clone())?;
    if !done.status.success() {
        bail!("{line}: {}\n{}", done.status, tail(&done.text, 200));
    }
    Ok(done.text)
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> &str {
    let mut ends = text.trim_end().rmatch_indices('\n');
    ends.nth(lines.saturating_sub(1)).map_or(text, |(at, _)| text.get(at + 1..).unwrap_or(text))
}

/// Seconds with one digit.
pub(crate) fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

/// A directory of our own, removed when dropped.
pub(crate) struct Scratch {
    path: PathBuf,
    is_kept: bool,
}

impl Scratch {
    /// Makes an empty one in the system's directory for such.
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("queen-xtask-{process}-{number}-{name}"));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, is_kept: false })
    }

    /// Where it is.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_whole_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }

    #[test]
    fn a_command_that_fails_says_what_it_printed() {
        let mut command = Command::new("sh");
        let error = must(command.args(["-c", "echo reason; exit 3"]), Duration::from_mins(1));
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("reason") && text.contains('3'), "{text}");
    }
}
