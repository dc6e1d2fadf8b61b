//! What a process and the machine used: processor time, bytes sent to the disk, memory, syncs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// Ticks of `/proc` per second; Linux shows 100 whatever the kernel's own clock is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counters of one process since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    /// Bytes that reached the block layer.
    pub(crate) write_bytes: u64,
    /// Bytes that came from the block layer.
    pub(crate) read_bytes: u64,
}

/// Memory of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) rss_bytes: u64,
    pub(crate) anon_bytes: u64,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A `name: value` line of a `/proc` file; 0 when there is none.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The counters of a process.
pub(crate) fn usage(pid: u32) -> Usage {
    let stat = read(&format!("/proc/{pid}/stat"));
    // The name may hold anything; the numbers follow its closing bracket.
    let numbers = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = numbers
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|text| text.parse::<f64>().ok())
        .sum();
    let io = read(&format!("/proc/{pid}/io"));
    let (write_bytes, read_bytes) = (field(&io, "write_bytes"), field(&io, "read_bytes"));
    Usage { cpu_s: ticks / TICKS_PER_SECOND, write_bytes, read_bytes }
}

/// Bytes that one thread of a process sent to the block layer; the system keeps 15 letters of a thread's name.
pub(crate) fn thread_write_bytes(pid: u32, name: &str) -> u64 {
    let known = name.get(..15).unwrap_or(name);
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut named = threads.map(|thread| thread.path().display().to_string());
    let found = named.find(|thread| read(&format!("{thread}/comm")).trim() == known);
    found.map_or(0, |thread| field(&read(&format!("{thread}/io")), "write_bytes"))
}

/// The memory of a process.
pub(crate) fn memory(pid: u32) -> Memory {
    let text = read(&format!("/proc/{pid}/smaps_rollup"));
    Memory { rss_bytes: field(&text, "Rss") << 10, anon_bytes: field(&text, "Anonymous") << 10 }
}

/// The same from the kernel's running counts, which cost nothing to read and may be off by some pages.
pub(crate) fn memory_now(pid: u32) -> Memory {
    let text = read(&format!("/proc/{pid}/status"));
    Memory { rss_bytes: field(&text, "VmRSS") << 10, anon_bytes: field(&text, "RssAnon") << 10 }
}

/// Open files and threads of a process.
pub(crate) fn handles(pid: u32) -> (u64, u64) {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |found| found.count() as u64);
    (files, field(&read(&format!("/proc/{pid}/status")), "Threads"))
}

/// Raises the limit of open files of this process, and of those it starts, to `wanted` at least.
///
/// # Errors
/// The system allows fewer.
pub(crate) fn raise_open_files(wanted: u64) -> anyhow::Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let most = now.maximum.map(|most| most.max(wanted));
    let tries = [most, now.maximum].map(|maximum| Rlimit { current: maximum, maximum });
    // Only the superuser may raise the hard limit.
    let raised = tries.into_iter().any(|limit| setrlimit(Resource::Nofile, limit).is_ok());
    let current = getrlimit(Resource::Nofile).current;
    ensure!(
        raised && current.is_none_or(|current| current >= wanted),
        "{wanted} open files are needed, the system allows {current:?}: raise `ulimit -Hn`"
    );
    Ok(())
}

/// Busy processor seconds of the whole machine.
pub(crate) fn machine_busy_s() -> f64 {
    let text = read("/proc/stat");
    let line = text.lines().next().unwrap_or_default();
    let numbers = line.split_whitespace().skip(1).filter_map(|text| text.parse::<f64>().ok());
    // user nice system (idle iowait) irq softirq steal
    let busy: f64 =
        numbers.enumerate().filter(|(at, _)| !matches!(at, 3 | 4 | 8..)).map(|(_, n)| n).sum();
    busy / TICKS_PER_SECOND
}

/// Counts `fsync` and `fdatasync` calls of a process with `perf`.
pub(crate) struct SyncCounter {
    child: Child,
    out: PathBuf,
}

impl SyncCounter {
    /// Attaches to a process; `None` where `perf` is not installed. It counts from a moment after the return.
    pub(crate) fn start(pid: u32, scratch: &Path) -> Option<Self> {
        let out = scratch.join("perf.csv");
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", "syscalls:sys_enter_fdatasync"]);
        command.args(["-e", "syscalls:sys_enter_fsync", "-p", &pid.to_string(), "-o"]).arg(&out);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(Self { child: command.spawn().ok()?, out })
    }

    /// Ends the count; `None` when `perf` may not count here.
    pub(crate) fn stop(mut self) -> Option<u64> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)?;
        kill_process(pid, Signal::INT).ok()?;
        self.child.wait().ok()?;
        let text = fs::read_to_string(&self.out).ok()?;
        let counts = text.lines().filter(|line| line.contains("sys_enter_f"));
        let counts: Vec<u64> =
            counts.filter_map(|line| line.split(',').next()?.parse().ok()).collect();
        (!counts.is_empty()).then(|| counts.iter().sum())
    }

    /// How long attaching takes.
    pub(crate) const SETTLE: Duration = Duration::from_millis(300);
}

impl Drop for SyncCounter {
    fn drop(&mut self) {
        // It has ended already after `stop`.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_by_its_whole_name() {
        let text = "Rss:  12 kB\nPss_Anon: 5 kB\nAnonymous:   7 kB\n";
        assert_eq!((field(text, "Anonymous"), field(text, "Anon"), field(text, "Rss")), (7, 0, 12));
    }

    #[test]
    fn open_files_are_raised_within_the_hard_limit() {
        let most = getrlimit(Resource::Nofile).maximum;
        raise_open_files(most.unwrap_or(1 << 20)).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).maximum, most);
    }

    #[test]
    fn this_process_uses_something() {
        assert!(memory(std::process::id()).rss_bytes > 0);
        let now = memory_now(std::process::id());
        assert!(now.rss_bytes > now.anon_bytes && now.anon_bytes > 0);
        assert!(machine_busy_s() > 0.0);
        let (files, threads) = handles(std::process::id());
        assert!(files > 2 && threads > 0);
    }
}
