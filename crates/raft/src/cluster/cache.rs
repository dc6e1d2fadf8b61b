//! The newest entries of the log in memory: what a follower asks for is mostly here.

use std::collections::VecDeque;

use queen_model::{AppendPayload, Effect};

use super::types::{LogEntry, Payload};

/// The run of entries that ends with the log's last one.
pub(crate) struct Cache {
    entries: VecDeque<(LogEntry, usize)>,
    /// The library's index of the first entry here, or of the next one when there is none.
    first: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    /// Nothing yet; the log goes on at `next`.
    pub(crate) fn new(next: u64, bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), first: next, bytes: 0, bytes_max }
    }

    /// The index of the first entry that is here.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The index behind the last entry.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Adds the next entry.
    ///
    /// # Panics
    /// When it leaves a gap.
    pub(crate) fn push(&mut self, entry: LogEntry) {
        if self.entries.is_empty() {
            self.first = entry.log_id.index;
        }
        assert!(entry.log_id.index == self.end(), "entry {} leaves a gap", entry.log_id);
        let bytes = size(&entry);
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
    }

    /// Goes on at `next` at least: what is below is of no use any more when the log did not reach it.
    pub(crate) fn skip_to(&mut self, next: u64) {
        if self.end() < next {
            self.entries.clear();
            (self.first, self.bytes) = (next, 0);
        }
    }

    /// Lets the oldest go while they take more room than they may; none at or above `keep_from`.
    pub(crate) fn trim(&mut self, keep_from: u64) {
        while self.bytes > self.bytes_max && self.first < keep_from {
            let Some((_, bytes)) = self.entries.pop_front() else { return };
            self.bytes -= bytes;
            self.first += 1;
        }
    }

    /// Forgets everything from `end` on.
    pub(crate) fn truncate(&mut self, end: u64) {
        while self.end() > end {
            let Some((_, bytes)) = self.entries.pop_back() else { break };
            self.bytes -= bytes;
        }
        if self.entries.is_empty() {
            self.first = end;
        }
    }

    /// The entries from `start` to `end`, as many as fit `bytes_max` but at least one; all must be here.
    pub(crate) fn range(&self, start: u64, end: u64, bytes_max: usize) -> Vec<LogEntry> {
        let place = |index: u64| usize::try_from(index.saturating_sub(self.first)).unwrap_or(0);
        let (from, to) = (place(start), place(end).min(self.entries.len()));
        let mut left = bytes_max;
        let mut found = Vec::new();
        for (entry, bytes) in self.entries.range(from.min(to)..to) {
            if !found.is_empty() && *bytes > left {
                break;
            }
            left = left.saturating_sub(*bytes);
            found.push(entry.clone());
        }
        found
    }
}

/// About what an entry takes in memory and on the wire.
pub(crate) fn size(entry: &LogEntry) -> usize {
    let Payload::Normal(command) = &entry.payload else { return 256 };
    let effect = |effect: &Effect| match effect {
        Effect::Append(append) => {
            let AppendPayload::Stored { bytes, .. } = &append.payload else { return 128 };
            128 + bytes.len() + 16 * append.hashes.len()
        }
        Effect::DlqInsert(letter) => 256 + letter.payload.len(),
        _ => 256,
    };
    64 + command.0.effects.iter().map(effect).sum::<usize>()
}
