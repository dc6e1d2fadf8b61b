//! What the operator chooses about this edge.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::auth::Authenticator;
use crate::stats::HttpStats;

/// Where a new group starts when its pop says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeDefault {
    /// At the pop's own time.
    New,
    /// Before the oldest retained message.
    All,
}

impl SubscribeDefault {
    /// Reads a mode's text: `new`, `new-only`, `new_only`, `newonly`, any case, trimmed; all else is `All`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let new = ["new", "new-only", "new_only", "newonly"];
        if new.iter().any(|mode| text.eq_ignore_ascii_case(mode)) { Self::New } else { Self::All }
    }
}

/// A figure or text that this edge shows and somebody else knows.
pub type Source<T> = Arc<dyn Fn() -> T + Send + Sync>;

/// The settings of the routes.
#[derive(Clone)]
pub struct AppOptions {
    /// The build's version, shown by `/health`.
    pub version: &'static str,
    /// Bytes of a request body at most.
    pub body_bytes_max: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Duration,
    /// Wait of a pop and deadline of a push that name none.
    pub default_timeout: Duration,
    /// Deadline of every other write.
    pub statement_timeout: Duration,
    /// Used by a pop that names neither a mode nor a start.
    pub subscribe_default: SubscribeDefault,
    /// Lets callers in; none lets everybody do everything.
    pub auth: Option<Arc<Authenticator>>,
    /// Whether the header `x-queen-tenant` names the tenant.
    pub tenancy_header: bool,
    /// Partitions in a queue's detail at most.
    pub partitions_max: usize,
    /// Counts of requests and messages.
    pub stats: Arc<HttpStats>,
    /// Text of `/metrics/prometheus`.
    pub prometheus: Source<String>,
    /// Resident memory of the process in bytes.
    pub resident_bytes: Source<u64>,
}

impl fmt::Debug for AppOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppOptions")
            .field("version", &self.version)
            .field("body_bytes_max", &self.body_bytes_max)
            .field("body_timeout", &self.body_timeout)
            .field("default_timeout", &self.default_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("subscribe_default", &self.subscribe_default)
            .field("auth", &self.auth)
            .field("tenancy_header", &self.tenancy_header)
            .field("partitions_max", &self.partitions_max)
            .finish_non_exhaustive()
    }
}

/// The settings of the listener.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Open connections at most; further ones wait in the kernel's backlog.
    pub connections_max: u32,
    /// How long a request head may take from its first byte; also from connecting to the first byte.
    pub head_timeout: Duration,
    /// How long a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// How long requests in flight may take to finish at a stop.
    pub stop_timeout: Duration,
}

impl Default for ServeOptions {
    /// Limits that protect a node without being noticed by clients.
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stop_timeout: Duration::from_secs(20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_spellings_mean_new() {
        for text in ["new", "NEW", " new-only ", "New_Only", "newonly"] {
            assert_eq!(SubscribeDefault::parse(text), SubscribeDefault::New, "{text}");
        }
        for text in ["all", "from_beginning", "", "newest"] {
            assert_eq!(SubscribeDefault::parse(text), SubscribeDefault::All, "{text}");
        }
    }
}
