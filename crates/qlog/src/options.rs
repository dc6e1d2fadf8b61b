//! How a set of logs is opened.

use std::path::PathBuf;

use queen_record::layout::Shards;

/// Settings of one `qlog` directory.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `qlog` directory; its parent must exist.
    pub dir: PathBuf,
    /// A file is sealed once it has reached this many bytes; it may pass them by one group.
    pub segment_bytes: u64,
    /// Lanes of a new directory; an existing one keeps its own.
    pub lanes: u32,
    /// Shared logs of a new directory; an existing one keeps its own.
    pub shards: Shards,
    /// Largest run of zeros written ahead of the end, KiB; 0 turns it off.
    pub prealloc_kb: u32,
    /// Syncs a log must have had before zeros are written ahead.
    pub prealloc_min_syncs: u32,
    /// Whether the next file is made once the active one is half full.
    pub precreate: bool,
    /// Bytes behind a log's end that stay in the page cache; 0 keeps all.
    pub drop_behind_bytes: u64,
    /// Threads that sync logs beside the calling one; 0 syncs one after the other.
    pub fsync_threads: usize,
    /// Most files kept open, for reading and for writing. When as many logs are unsynced, an append syncs them.
    pub fd_cache: usize,
}

impl Options {
    /// The settings a node has when its operator chose none.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_bytes: 64 * 1024 * 1024,
            lanes: 1,
            shards: Shards::None,
            prealloc_kb: 1024,
            prealloc_min_syncs: 64,
            precreate: true,
            drop_behind_bytes: 256 * 1024 * 1024,
            fsync_threads: 32,
            fd_cache: 256,
        }
    }
}
