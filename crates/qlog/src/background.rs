//! Work off the write path: side files of sealed files, the next file ahead of its roll, the page cache.

use std::sync::atomic::Ordering;

use queen_record::header::FIRST_SEQ_UNUSED;
use queen_record::ids::EntryIndex;

use crate::error::Fault;
use crate::file::{FileIndex, LogFile};
use crate::log::{Log, NextFile};
use crate::names::{Ext, file_path};
use crate::read::seq_range;
use crate::shared::{Qlog, Shared};
use crate::side::{BuildError, Flaw, SealedFile, SidePlace};

/// Rounds without a next file after the disk was full: about a second of a node's rounds.
const AHEAD_WAIT: u32 = 50;

impl Qlog {
    /// Does one step of background work; `false` when there was nothing to do.
    ///
    /// A step makes the side files of one sealed file, or the next file of one log, or gives pages of one log back.
    ///
    /// # Errors
    /// [`Fault`]: the node must stop. A damaged record in a file that was just sealed is [`Fault::Damage`].
    pub fn background(&self) -> Result<bool, Fault> {
        let shared = &self.shared;
        if !shared.recovered.load(Ordering::SeqCst) {
            return Ok(false);
        }
        shared.check_poison()?;
        for log in shared.all_logs() {
            let did = shared.step(&log).map_err(|fault| shared.poisoned(fault))?;
            if did {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Shared {
    fn step(&self, log: &Log) -> Result<bool, Fault> {
        Ok(self.seal_one(log)? || self.make_ahead(log)? || self.drop_behind(log)?)
    }

    /// Writes the side files of one sealed file and moves its index out of RAM.
    fn seal_one(&self, log: &Log) -> Result<bool, Fault> {
        let _sealing = log.sealing.lock();
        if log.is_gone() {
            return Ok(false);
        }
        let bare = log.tail.lock().sealed.iter().find(|file| file.bare).copied();
        let Some(sealed) = bare else { return Ok(false) };
        let files = log.files();
        let place = files.iter().position(|file| file.number == sealed.number);
        let Some((place, file)) = place.and_then(|place| Some((place, files.get(place)?))) else {
            return Ok(false);
        };
        let handle = self
            .handles
            .open(&*self.disk, file.key(Ext::Log), &file.path)
            .map_err(Fault::io(&file.path, "open"))?;
        let seqs = seq_range(&files, place);
        let ram = match &file.index {
            FileIndex::Ram(index) => Some(index),
            FileIndex::Side(_) => None,
        };
        let job = SealedFile {
            disk: &*self.disk,
            dir: &log.dir,
            path: &file.path,
            file: handle,
            number: sealed.number,
            len: sealed.len,
            seqs: (seqs.from, seqs.to),
            place: SidePlace::Own,
        };
        let index = job.build(ram).map_err(|error| match error {
            BuildError::Fault(fault) => fault,
            BuildError::Flaw(Flaw { at, reason }) => {
                Fault::Damage { file: file.path.clone(), offset: at, reason }
            }
        })?;
        // A reader that met this file when it was longer, before a truncation, may have left handles of what it had then.
        for ext in [Ext::Index, Ext::Hashes] {
            self.handles.forget(file.key(ext));
        }
        let index = FileIndex::Side(index);
        let (number, first_seq) = (file.number, file.first_seq);
        let done = LogFile::new(log.id, number, first_seq, file.path.clone(), index, file.epoch);
        log.replace(&done);
        if let Some(entry) =
            log.tail.lock().sealed.iter_mut().find(|file| file.number == sealed.number)
        {
            entry.bare = false;
        }
        Ok(true)
    }

    /// Makes the next file once the active one is half full.
    fn make_ahead(&self, log: &Log) -> Result<bool, Fault> {
        let half_full = |log: &Log| {
            let tail = log.tail.lock();
            let due = tail.number > 0
                && !log.is_gone()
                && tail.end.saturating_mul(2) >= self.options.segment_bytes;
            due.then_some(tail.number)
        };
        if !self.options.precreate || half_full(log).is_none() {
            return Ok(false);
        }
        let mut next = log.next.lock();
        // Looked at again: a roll may have come in between.
        let Some(number) = half_full(log) else { return Ok(false) };
        if next.number.is_some() {
            return Ok(false);
        }
        if next.wait > 0 {
            next.wait -= 1;
            return Ok(false);
        }
        self.create_next(log, &mut next, number + 1)
    }

    /// Sees to it that the file after the active one, `number`, is there; `false` when it cannot be, or `number` is no longer
    /// active.
    pub(crate) fn next_file_for(&self, log: &Log, number: u64) -> Result<bool, Fault> {
        let mut next = log.next.lock();
        if log.is_gone() || log.tail.lock().number != number {
            return Ok(false);
        }
        Ok(next.number.is_some() || self.create_next(log, &mut next, number + 1)?)
    }

    fn create_next(&self, log: &Log, next: &mut NextFile, number: u64) -> Result<bool, Fault> {
        match self.create_file(log, number, FIRST_SEQ_UNUSED) {
            Ok(()) => {
                next.number = Some(number);
                Ok(true)
            }
            Err(fault) if fault.is_full() => {
                tracing::warn!(%fault, "the next file is not made ahead");
                next.wait = AHEAD_WAIT;
                self.remove_ahead(log, number)?;
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Removes what is there of a file that could not be made. A power cut may bring its name back: a file without
    /// a seq counts as unused.
    fn remove_ahead(&self, log: &Log, number: u64) -> Result<(), Fault> {
        let path = file_path(&log.dir, number, Ext::Log);
        if self.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
            self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
        }
        Ok(())
    }

    /// Gives back the pages that lie further behind the log's end than the settings allow.
    fn drop_behind(&self, log: &Log) -> Result<bool, Fault> {
        let keep = self.options.drop_behind_bytes;
        if keep == 0 {
            return Ok(false);
        }
        let job = {
            let mut tail = log.tail.lock();
            let mut behind = if tail.number == 0 { 0 } else { tail.end };
            let active = behind.saturating_sub(keep);
            if active > tail.dropped + keep / 4 {
                let from = tail.dropped;
                tail.dropped = active;
                Some((tail.number, from, active - from))
            } else {
                let mut found = None;
                for sealed in tail.sealed.iter_mut().rev() {
                    if behind >= keep && !sealed.dropped && !sealed.bare {
                        sealed.dropped = true;
                        found = Some((sealed.number, 0, sealed.len));
                        break;
                    }
                    behind += sealed.len;
                }
                found
            }
        };
        let Some((number, from, len)) = job else { return Ok(false) };
        // Reclaim may have taken the file away in the meantime; while this is held it does not.
        let _swap = log.swap.lock();
        let files = log.files();
        let Some(file) = files.iter().find(|file| file.number == number && !log.is_gone()) else {
            return Ok(true);
        };
        let handle = self
            .handles
            .open(&*self.disk, file.key(Ext::Log), &file.path)
            .map_err(Fault::io(&file.path, "open"))?;
        handle.forget_range(from, len);
        Ok(true)
    }
}

/// Lowest and highest seq a sealed file may hold, from its own and the next file's header.
pub(crate) fn sealed_seqs(first: EntryIndex, next_first: EntryIndex) -> (EntryIndex, EntryIndex) {
    (first, EntryIndex(next_first.0.saturating_sub(1)))
}
