//! `LANES` and `SHARDS`: how queues and partitions are spread over logs.
//!
//! Each file holds one decimal number and a newline. The layout is fixed when the directory is made: with
//! another one a partition's old records would lie in a log nobody looks into.

use xxhash_rust::xxh3::Xxh3Default;

use crate::hash::never_zero;
use crate::ids::{LogId, PartitionId, QueueId};

/// Most lanes of one queue.
pub const LANES_MAX: u32 = 64;
/// Most shared logs.
pub const SHARDS_MAX: u32 = 4096;
/// The log of entries that touch no queue.
pub const SYSTEM_LOG: LogId = LogId(0);

/// Whether queues share logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shards {
    /// Every queue has its own log, or its own lanes.
    #[default]
    None,
    /// All queues share this many logs, 1 to [`SHARDS_MAX`]; lanes are ignored.
    Count(u32),
}

impl Shards {
    /// The number as written: 0 for none.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Count(count) => count,
        }
    }

    /// The meaning of a written number; `None` above [`SHARDS_MAX`].
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1..=SHARDS_MAX => Some(Self::Count(number)),
            _ => None,
        }
    }
}

/// Lanes and shards of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    lanes: u32,
    shards: Shards,
}

impl Layout {
    /// A layout; `None` when lanes are not 1 to [`LANES_MAX`] or shards not 1 to [`SHARDS_MAX`].
    #[must_use]
    pub fn new(lanes: u32, shards: Shards) -> Option<Self> {
        let shards_valid = match shards {
            Shards::None => true,
            Shards::Count(count) => (1..=SHARDS_MAX).contains(&count),
        };
        ((1..=LANES_MAX).contains(&lanes) && shards_valid).then_some(Self { lanes, shards })
    }

    /// Lanes per queue, at least 1.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Shared logs.
    #[must_use]
    pub fn shards(&self) -> Shards {
        self.shards
    }

    /// The log of a partition's records, or of a queue's own effects when `partition` is `None`.
    #[must_use]
    pub fn log_of(&self, queue: QueueId, partition: Option<PartitionId>) -> LogId {
        match self.shards {
            Shards::Count(count) => LogId(2 + queue.0 % u64::from(count)),
            Shards::None => {
                let lane = partition.map_or(0, |id| id.0 % u64::from(self.lanes));
                lane_log(queue, lane)
            }
        }
    }

    /// The logs that hold this queue and nothing else; none when queues share their logs.
    pub fn logs_of(&self, queue: QueueId) -> impl Iterator<Item = LogId> + use<> {
        let own = matches!(self.shards, Shards::None);
        let lanes = if own { self.lanes } else { 0 };
        (0..lanes).map(move |lane| lane_log(queue, u64::from(lane)))
    }

    /// Whether a log of this id can exist under this layout: catches a lost or changed `SHARDS`.
    ///
    /// Queue ids are hashes, so one inside the range of shared logs has a probability of 2^-52.
    #[must_use]
    pub fn fits(&self, log: LogId) -> bool {
        match self.shards {
            _ if log == SYSTEM_LOG => true,
            Shards::Count(count) => (2..2 + u64::from(count)).contains(&log.0),
            Shards::None => !(2..2 + u64::from(SHARDS_MAX)).contains(&log.0),
        }
    }
}

fn lane_log(queue: QueueId, lane: u64) -> LogId {
    if lane == 0 {
        return LogId(queue.0);
    }
    let mut hasher = Xxh3Default::new();
    hasher.update(&queue.0.to_le_bytes());
    hasher.update(&lane.to_le_bytes());
    LogId(never_zero(hasher.digest()))
}

/// The text of a layout file.
#[must_use]
pub fn render(number: u32) -> String {
    format!("{number}\n")
}

/// Reads a layout file: decimal digits and one newline, the newline optional; anything else is `None`.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?;
    let digits = text.strip_suffix('\n').unwrap_or(text);
    let number = digits.parse::<u32>().ok()?;
    (number.to_string() == digits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::queue_id;
    use crate::ids::Tenant;

    #[test]
    fn layout_files_read_only_what_is_written() {
        assert_eq!(parse(render(7).as_bytes()), Some(7));
        assert_eq!(parse(b"7"), Some(7));
        for bad in [&b""[..], b"\n", b"+7\n", b"07\n", b"7\n\n", b" 7\n", b"99999999999\n", b"\xff"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn routing_follows_the_layout() {
        let queue = queue_id(Tenant::DEFAULT, "orders");
        let shared = Layout::new(8, Shards::Count(4)).unwrap();
        assert_eq!(shared.log_of(queue, Some(PartitionId(3))), LogId(4));
        let own = Layout::new(1, Shards::None).unwrap();
        assert_eq!(own.log_of(queue, Some(PartitionId(3))), LogId(queue.0));
        let lanes = Layout::new(4, Shards::None).unwrap();
        assert_eq!(lanes.log_of(queue, None), LogId(queue.0));
        assert_eq!(lanes.log_of(queue, Some(PartitionId(8))), LogId(queue.0));
        let other = lanes.log_of(queue, Some(PartitionId(9)));
        assert_ne!(other, LogId(queue.0));
        assert_eq!(other, lanes.log_of(queue, Some(PartitionId(1))));
        let all: Vec<LogId> = lanes.logs_of(queue).collect();
        let routed: Vec<LogId> =
            (8..12).map(|id| lanes.log_of(queue, Some(PartitionId(id)))).collect();
        assert_eq!(all, routed);
        assert_eq!(own.logs_of(queue).count(), 1);
        assert_eq!(shared.logs_of(queue).count(), 0, "they hold other queues too");
        assert!(Layout::new(0, Shards::None).is_none());
        assert!(Layout::new(65, Shards::None).is_none());
        assert!(Layout::new(1, Shards::Count(0)).is_none());
        assert!(!own.fits(LogId(4)) && shared.fits(LogId(4)) && !shared.fits(LogId(6)));
    }
}
