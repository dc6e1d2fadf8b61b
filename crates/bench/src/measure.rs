//! A window of measurement, and the line that it ends in.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::check::Verdict;
use crate::node::{Metrics, Node};
use crate::usage::{self, SyncCounter, Usage};

/// One line of output.
#[derive(Default)]
pub(crate) struct Line {
    map: Map<String, Value>,
    /// Whether a check failed.
    pub(crate) is_wrong: bool,
}

impl Line {
    /// Adds a number with three digits.
    pub(crate) fn number(&mut self, name: &str, value: f64) {
        self.map.insert(name.to_owned(), json!((value * 1000.0).round() / 1000.0));
    }

    /// Adds anything.
    pub(crate) fn add(&mut self, name: &str, value: impl Into<Value>) {
        self.map.insert(name.to_owned(), value.into());
    }

    /// A figure that was added; 0 when there is none.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.map.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Adds p50, p99 and p99.9 of latencies in microseconds.
    pub(crate) fn latency(&mut self, name: &str, mut micros: Vec<u32>) {
        micros.sort_unstable();
        for (suffix, rank) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            let last = micros.len().saturating_sub(1);
            let value = micros.get((last as f64 * rank).round() as usize).copied().unwrap_or(0);
            self.number(&format!("{name}_{suffix}_ms"), f64::from(value) / 1000.0);
        }
    }

    /// Adds what the content check found.
    pub(crate) fn verdict(&mut self, verdict: Verdict) {
        self.add("missing", verdict.missing);
        self.add("duplicates", verdict.duplicates);
        self.add("out_of_order", verdict.out_of_order);
        self.is_wrong |= !verdict.is_clean();
    }

    /// Takes over another line's figures under longer names.
    pub(crate) fn adopt(&mut self, prefix: &str, other: Self) {
        for (name, value) in other.map {
            self.map.insert(format!("{prefix}{name}"), value);
        }
        self.is_wrong |= other.is_wrong;
    }

    /// The JSON text.
    pub(crate) fn text(self) -> String {
        Value::Object(self.map).to_string()
    }
}

/// The window.
pub(crate) struct Window {
    started: Instant,
    server: Usage,
    own: Usage,
    busy_s: f64,
    metrics: Metrics,
    syncs: Option<SyncCounter>,
}

impl Window {
    /// Opens it; the server should be idle.
    pub(crate) async fn open(node: &Node) -> anyhow::Result<Self> {
        let syncs = SyncCounter::start(node.pid(), node.scratch());
        tokio::time::sleep(SyncCounter::SETTLE).await;
        Ok(Self {
            metrics: node.metrics().await?,
            syncs,
            server: usage::usage(node.pid()),
            own: usage::usage(std::process::id()),
            busy_s: usage::machine_busy_s(),
            started: Instant::now(),
        })
    }

    /// Closes it; `messages` and `requests` are what costs are divided by.
    pub(crate) async fn close(
        self,
        node: &Node,
        messages: u64,
        requests: u64,
        line: &mut Line,
    ) -> anyhow::Result<()> {
        let elapsed = self.started.elapsed().as_secs_f64();
        let busy = usage::machine_busy_s() - self.busy_s;
        let own = usage::usage(std::process::id()).cpu_s - self.own.cpu_s;
        let server = usage::usage(node.pid());
        let cpu = server.cpu_s - self.server.cpu_s;
        let counted = self.syncs.and_then(SyncCounter::stop);
        let metrics = node.metrics().await?;
        let (messages, requests) = (messages.max(1) as f64, requests.max(1) as f64);
        let written = (server.write_bytes - self.server.write_bytes) as f64;
        line.number("server_cpu_us_per_msg", cpu * 1e6 / messages);
        line.number("server_cores", cpu / elapsed);
        line.number("driver_cores", own / elapsed);
        line.number("other_cores", ((busy - cpu - own) / elapsed).max(0.0));
        line.number("device_bytes_per_msg", written / messages);
        if node.is_broker {
            let since = |name: &str| metrics.value(name) - self.metrics.value(name);
            let per_request = |name: &str| since(name) / requests;
            line.number("syncs_per_request", per_request("queen_raft_log_syncs_total"));
            line.number("rounds_per_request", per_request("queen_raft_drain_commands_count"));
            line.number(
                "log_bytes_per_msg",
                since("queen_raft_log_appended_bytes_total") / messages,
            );
            for (stage, name) in [
                ("plan", "queen_raft_plan_seconds_sum"),
                ("write", "queen_raft_log_write_seconds_sum"),
                ("sync", "queen_raft_log_fsync_seconds_sum"),
                ("apply", "queen_raft_apply_entry_seconds_sum"),
                ("checkpoint", "queen_raft_durable_point_seconds_sum"),
            ] {
                line.number(&format!("{stage}_us_per_request"), per_request(name) * 1e6);
            }
        }
        if let Some(counted) = counted {
            line.number("syncs_per_request_perf", counted as f64 / requests);
        }
        let memory = usage::memory(node.pid());
        line.number("rss_mib", memory.rss_bytes as f64 / f64::from(1 << 20));
        line.number("anon_mib", memory.anon_bytes as f64 / f64::from(1 << 20));
        Ok(())
    }
}
