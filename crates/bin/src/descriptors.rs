//! How many file descriptors the process may have, and how many of them connections may take.
//!
//! Connections and logs draw from one number, and a log that gets no descriptor stops the node. So the limit
//! is raised as far as the system lets it, and connections get what the logs leave.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// Descriptors kept from connections at least: logs written to, the store, directories.
const RESERVE_MIN: u64 = 256;
/// Descriptors kept beside the log files that are open for reading.
const RESERVE_BESIDE_CACHE: u64 = 128;
/// Connections of a process that may have next to no descriptors; enough to look after it.
const CONNECTIONS_MIN: u64 = 16;

/// Raises the limit; the connections that may be open at once, `wanted` at most.
pub(crate) fn connections_max(wanted: u32, fd_cache: u64) -> u32 {
    let limit = raise();
    let connections = connections_within(limit, wanted, fd_cache);
    let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    info!(descriptors = shown, connections, "limits");
    if connections < wanted {
        warn!("connections are limited by RLIMIT_NOFILE (ulimit -n): {wanted} were wanted");
    }
    connections
}

/// Raises the soft limit to the hard one; the limit in force, none when there is none.
fn raise() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    if now.current == now.maximum {
        return now.current;
    }
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => now.maximum,
        Err(error) => {
            warn!(%error, "RLIMIT_NOFILE cannot be raised to its hard limit");
            now.current
        }
    }
}

fn connections_within(limit: Option<u64>, wanted: u32, fd_cache: u64) -> u32 {
    let reserve = RESERVE_MIN.max(fd_cache.saturating_add(RESERVE_BESIDE_CACHE));
    let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(reserve));
    u32::try_from(left.max(CONNECTIONS_MIN)).unwrap_or(u32::MAX).min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_what_the_logs_leave() {
        for (limit, fd_cache, expected) in [
            (None, 256, 16_384),
            (Some(1 << 20), 256, 16_384),
            (Some(1024), 256, 640),
            (Some(1024), 1, 768),
            (Some(1024), u64::MAX, 16),
            (Some(64), 256, 16),
        ] {
            assert_eq!(
                connections_within(limit, 16_384, fd_cache),
                expected,
                "{limit:?} {fd_cache}"
            );
        }
    }

    #[test]
    fn the_limit_is_raised() {
        let limit = raise();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, limit);
        assert_eq!(now.current, now.maximum);
    }
}
