//! The recorder of this node's metrics, and the figures of the process itself.
//!
//! The recorder is not installed for the process: whoever has something to count gets it and registers handles,
//! so several nodes in one process keep apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use queen_http::HttpStats;

/// The recorder and what it says about the process.
pub(crate) struct NodeMetrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    stats: Arc<HttpStats>,
    uptime: Gauge,
    resident: Gauge,
    /// In the order of [`served`].
    served: [Counter; 6],
}

const SERVED: [(&str, &str); 6] = [
    ("queen_process_push_requests_total", "Push requests served by this process"),
    ("queen_process_push_messages_total", "Messages pushed through this process"),
    ("queen_process_pop_requests_total", "Pop requests served by this process"),
    ("queen_process_pop_messages_total", "Messages popped through this process"),
    ("queen_process_ack_requests_total", "Ack requests served by this process"),
    ("queen_process_ack_messages_total", "Acknowledgments served by this process"),
];

impl NodeMetrics {
    /// A recorder that shows `stats` and the process.
    pub(crate) fn new(stats: Arc<HttpStats>, server_id: &str) -> Self {
        let recorder = Arc::new(PrometheusBuilder::new().build_recorder());
        let gauge = |name: &'static str, unit, text: &'static str| {
            recorder.describe_gauge(name.into(), Some(unit), text.into());
            recorder.register_gauge(&Key::from_static_name(name), &METADATA)
        };
        let uptime = gauge("queen_uptime_seconds", Unit::Seconds, "Time since the process started");
        let resident = gauge(
            "queen_process_resident_memory_bytes",
            Unit::Bytes,
            "Resident memory of the process",
        );
        let served = SERVED.map(|(name, text)| {
            recorder.describe_counter(name.into(), None, text.into());
            recorder.register_counter(&Key::from_static_name(name), &METADATA)
        });
        let labels = vec![
            Label::new("server", server_id.to_owned()),
            Label::new("version", env!("CARGO_PKG_VERSION")),
        ];
        recorder.describe_gauge("queen_build_info".into(), None, "Always 1".into());
        recorder.register_gauge(&Key::from_parts("queen_build_info", labels), &METADATA).set(1.0);
        let handle = recorder.handle();
        Self { recorder, handle, stats, uptime, resident, served }
    }

    /// Where the node registers its own series.
    pub(crate) fn recorder(&self) -> Arc<PrometheusRecorder> {
        Arc::clone(&self.recorder)
    }

    /// Keeps histograms from growing; to be called every few seconds.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The text of `/metrics/prometheus`.
    pub(crate) fn render(&self) -> String {
        self.uptime.set(self.stats.uptime().as_secs_f64());
        self.resident.set(approximate(resident_bytes()));
        for (counter, value) in self.served.iter().zip(served(&self.stats)) {
            counter.absolute(value.load(Ordering::Relaxed));
        }
        self.handle.render()
    }
}

const METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

fn served(stats: &HttpStats) -> [&AtomicU64; 6] {
    [
        &stats.push_requests,
        &stats.push_messages,
        &stats.pop_requests,
        &stats.pop_messages,
        &stats.ack_requests,
        &stats.ack_messages,
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a size in a graph needs no 54th bit")]
fn approximate(bytes: u64) -> f64 {
    bytes as f64
}

/// Resident memory as the kernel counts it; 0 where it does not say.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_of_one_process_count_apart() {
        let first = NodeMetrics::new(Arc::new(HttpStats::new()), "a\"b");
        let second = NodeMetrics::new(Arc::new(HttpStats::new()), "c");
        first.stats.push_messages.store(7, Ordering::Relaxed);
        let (first_text, second_text) = (first.render(), second.render());
        assert!(first_text.contains("queen_process_push_messages_total 7"), "{first_text}");
        assert!(second_text.contains("queen_process_push_messages_total 0"), "{second_text}");
        assert!(first_text.contains("server=\"a\\\"b\""), "{first_text}");
        for name in ["queen_uptime_seconds", "queen_process_resident_memory_bytes"] {
            assert!(first_text.contains(&format!("# TYPE {name} gauge")), "{first_text}");
        }
        assert!(resident_bytes() > 0);
    }
}
