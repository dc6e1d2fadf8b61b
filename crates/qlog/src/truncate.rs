//! Truncation: the newest entries of a running node's logs go, because other entries take their places.
//!
//! - U1: nothing at or below the last durable point goes, and nothing that it names.
//! - U2: what went is durably gone before this returns: an index is never used while an old part of it may come back.
//! - U3: a crash in between leaves logs that end at different entries above `last`; the next start cuts at the first gap,
//!   so what is left is `last` and some of the old entries behind it, without a hole.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queen_record::header::HEADER_LEN;
use queen_record::ids::EntryIndex;

use crate::cut::{Again, LogCutting};
use crate::error::Fault;
use crate::log::Log;
use crate::names::{Ext, file_path};
use crate::shared::{Qlog, Shared};

impl Qlog {
    /// Removes every entry above `last` from every log, durably; `last + 1` may be appended then.
    ///
    /// Shape: called by the thread that appends, when nothing of it waits for a sync that somebody else makes. What is
    /// above `last` was applied by nobody.
    ///
    /// # Errors
    /// [`Fault`]: the logs accept nothing from now on and the node must stop.
    ///
    /// # Panics
    /// When `last` is below the last written durable point, or before recovery has ended.
    pub fn truncate_after(&self, last: EntryIndex) -> Result<(), Fault> {
        let shared = &self.shared;
        assert!(shared.recovered.load(Ordering::SeqCst), "truncation before recovery has ended");
        assert!(last >= shared.written_index(), "truncation below the durable point");
        shared.check_poison()?;
        let _truncating = shared.truncating.lock();
        // In this order: whoever sees the count that follows does not ask for what goes.
        shared.appended.fetch_min(last.0, Ordering::SeqCst);
        shared.terms.lock().cut(last);
        shared.truncations.fetch_add(1, Ordering::SeqCst);
        let done = shared.all_logs().iter().try_for_each(|log| shared.truncate_log(log, last));
        shared.truncations.fetch_add(1, Ordering::SeqCst);
        done.map_err(|fault| shared.poisoned(fault))
    }
}

impl Shared {
    fn truncate_log(&self, log: &Arc<Log>, last: EntryIndex) -> Result<(), Fault> {
        let _writer = log.writer.lock();
        // An empty file that an earlier truncation left may be for an entry that is above the next one now.
        let is_above = log.active().is_some_and(|active| active.first_seq > last.next());
        if log.is_gone() || (log.tail.lock().last <= last && !is_above) {
            return Ok(());
        }
        // Whoever makes side files of a file that is about to go, or to be written again, ends first.
        let _sealing = log.sealing.lock();
        let mut next = log.next.lock();
        let (files, to, physical_len) = {
            let mut tail = log.tail.lock();
            while tail.marks.back().is_some_and(|mark| mark.index > last) {
                tail.marks.pop_back();
            }
            let sealed = tail.sealed.iter().map(|file| (file.number, file.len));
            let files: Vec<(u64, u64)> = sealed.chain([(tail.number, tail.end)]).collect();
            let kept = tail.marks.back().map(|mark| tail.moved_on(*mark));
            // Without a mark all of the log is above `last`: it was made behind the durable point.
            let to = kept.map_or_else(
                || (files.first().map_or(0, |file| file.0), HEADER_LEN as u64),
                |mark| (mark.number, mark.end),
            );
            (files, to, tail.allocated)
        };
        self.dirty.lock().remove(&log.id);
        let active = files.last().map_or(0, |file| file.0);
        self.handles.unpin(log.key(active));
        if let Some(made) = next.number.take() {
            self.handles.forget(log.key(made));
            let path = file_path(&log.dir, made, Ext::Log);
            self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            self.sync_dir(&log.dir)?;
        }
        {
            // A reader that meets a missing file sees another view from now on.
            let _swap = log.swap.lock();
            for file in log.files().iter().filter(|file| file.number >= to.0) {
                for ext in [Ext::Log, Ext::Index, Ext::Hashes] {
                    self.handles.forget(file.key(ext));
                }
            }
            let (next, again) = (last.next(), Again::default());
            LogCutting { log, files: &files, physical_len, to, next, again }.run(self)?;
        }
        let mut tail = log.tail.lock();
        tail.unsynced_bytes = 0;
        tail.dropped = tail.dropped.min(tail.end);
        tail.start_durable = true;
        tail.retiring = None;
        Ok(())
    }
}
