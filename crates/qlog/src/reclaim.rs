//! Giving space back: what may go, what is planned, and carrying it out once a written point says so.
//!
//! ```text
//! plan  ->  durable_point names it  ->  point_written  ->  carry_out  ->  the next point forgets it
//! ```
//!
//! - G1: nothing goes before a written point says that it may be gone; a crash at any place leaves either state, and the
//!   next start finishes it.
//! - G2: only files below the log's place in the last written point: all their entries are applied in what the store has;
//!   and of these only files that hold nothing above the floor, if one is set: others may still ask for its entries.
//! - G3: a name that went is synced before a point forgets it.
//! - G4: a log that is appended to before its directory went stays; behind that it starts anew.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use queen_io::OpenMode;
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, LogId};

use crate::durable::DurablePoint;
use crate::error::Fault;
use crate::file::{FileIndex, LogFile};
use crate::log::{Fate, Log, Retiring, SealedLen, Tail};
use crate::names::{Ext, dead_dir, file_path, log_dir, rewrite_path};
use crate::open::remove_sides;
use crate::retired::remove_dir;
use crate::shared::{Qlog, Shared};
use crate::side::SideIndex;

/// Beside the logs once anything was reclaimed: without a store they cannot be applied again.
pub(crate) const RECLAIMED: &str = "RECLAIMED";

/// A file that waits to take another one's place.
pub(crate) struct Replacement {
    pub(crate) index: SideIndex,
    pub(crate) len: u64,
}

/// A sealed file that reclaim may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdFile {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub len: u64,
}

/// What one call of [`Qlog::carry_out`] did.
#[derive(Debug, Default)]
pub struct Reclaimed {
    /// Files removed.
    pub files: u64,
    /// Files replaced by a shorter one.
    pub rewrites: u64,
    /// Logs removed.
    pub logs: u64,
    /// Bytes of log files given back.
    pub bytes: u64,
    /// A removal that the system refused, and that is tried again.
    pub failed: Option<Fault>,
}

impl Qlog {
    /// The logs from `from` on, ascending, at most `max`.
    pub fn logs_from(&self, from: LogId, max: usize) -> Vec<LogId> {
        self.shared.logs.read().range(from..).take(max).map(|(id, _)| *id).collect()
    }

    /// Sees to it that no entry above `index` is reclaimed from now on, even when a written point covers it.
    ///
    /// Shape: without a call only written points decide. A floor that rises lets entries go; one that falls does not bring
    /// back what went, or was planned to go, above it.
    pub fn set_floor(&self, index: EntryIndex) {
        self.shared.floor.store(index.0, Ordering::SeqCst);
    }

    /// Files of a log that hold nothing above the last written point and the floor, and of which nothing is planned;
    /// ascending.
    pub fn cold_files(&self, log: LogId) -> Vec<ColdFile> {
        let Some(log) = self.shared.log(log) else { return Vec::new() };
        let files = log.files();
        let tail = log.tail.lock();
        let floor = self.shared.cold_below(&files, &tail);
        let cold = tail.sealed.iter().take_while(|file| file.number < floor);
        let idle = cold.filter(|file| file.fate == Fate::Stays && !file.bare);
        idle.map(|file| ColdFile { number: file.number, len: file.len }).collect()
    }

    /// Plans the removal of cold files; how many of `numbers` were.
    pub fn plan_unlink(&self, log: LogId, numbers: &[u64]) -> u64 {
        let Some(log) = self.shared.log(log) else { return 0 };
        let files = log.files();
        let mut tail = log.tail.lock();
        let floor = self.shared.cold_below(&files, &tail);
        let mut planned = 0;
        for file in &mut tail.sealed {
            let idle = file.number < floor && file.fate == Fate::Stays && !file.bare;
            if idle && numbers.contains(&file.number) {
                file.fate = Fate::Doomed;
                planned += 1;
            }
        }
        if planned > 0 {
            self.shared.unrecorded.store(true, Ordering::SeqCst);
        }
        planned
    }

    /// Plans the removal of a log whose last entry is `last`, which the last written point covers and which is not above the
    /// floor.
    ///
    /// `false` when it has sealed files, or was appended to.
    pub fn plan_retire(&self, log: LogId, last: EntryIndex) -> bool {
        let Some(log) = self.shared.log(log) else { return false };
        let mut tail = log.tail.lock();
        let marked = tail.marks.back().is_some_and(|mark| mark.index == last);
        let fits = tail.last == last && last <= self.shared.reclaimable() && marked;
        if !fits || !tail.sealed.is_empty() || !tail.leaving.is_empty() || tail.retiring.is_some() {
            return false;
        }
        tail.retiring = Some(Retiring { last, recorded: false });
        self.shared.unrecorded.store(true, Ordering::SeqCst);
        true
    }

    /// Whether a point should be written although no entry was applied: it would say what is planned.
    pub fn wants_point(&self) -> bool {
        self.shared.unrecorded.load(Ordering::SeqCst)
    }

    /// The store has this point, durably: what it says may be carried out.
    pub fn point_written(&self, point: &DurablePoint) {
        let shared = &self.shared;
        shared.written.fetch_max(point.index.0, Ordering::SeqCst);
        shared.terms.lock().forget_below(point.index);
        shared.inventory.lock().keep(&*shared.disk, &shared.options.dir, point);
        for said in &point.logs {
            if said.doomed.is_empty() && said.rewriting.is_empty() && !said.retired {
                continue;
            }
            let Some(log) = self.shared.log(said.log) else { continue };
            let mut tail = log.tail.lock();
            for file in &mut tail.sealed {
                let rewritten = |len| said.rewriting.iter().any(|new| (new.number, new.len) == len);
                file.recorded |= match file.fate {
                    Fate::Stays => false,
                    Fate::Doomed => said.doomed.contains(&file.number),
                    Fate::Rewriting(len) => rewritten((file.number, len)),
                };
            }
            if let Some(retiring) = &mut tail.retiring {
                retiring.recorded |= said.retired && retiring.last == said.tail_index;
            }
        }
    }

    /// Does what is planned and recorded.
    ///
    /// # Errors
    /// [`Fault`]: the node must stop. A removal that failed is no fault: it stands in the result and is tried again by
    /// the next call.
    pub fn carry_out(&self) -> Result<Reclaimed, Fault> {
        let shared = &self.shared;
        shared.check_poison()?;
        let mut done = Reclaimed::default();
        for log in shared.all_logs() {
            shared.carry_out_log(&log, &mut done).map_err(|fault| shared.poisoned(fault))?;
        }
        Ok(done)
    }
}

impl Shared {
    /// The index of the last point that the store has.
    pub(crate) fn written_index(&self) -> EntryIndex {
        EntryIndex(self.written.load(Ordering::SeqCst))
    }

    /// Entries above this one are kept.
    pub(crate) fn reclaimable(&self) -> EntryIndex {
        let floor = EntryIndex(self.floor.load(Ordering::SeqCst));
        self.written_index().min(floor)
    }

    /// Files of a log below this number hold nothing above the last written point and the floor.
    pub(crate) fn cold_below(&self, files: &[Arc<LogFile>], tail: &Tail) -> u64 {
        let floor = EntryIndex(self.floor.load(Ordering::SeqCst));
        let covered = tail.floor(self.written_index());
        if floor >= self.written_index() {
            return covered;
        }
        // No record is as high as the first seq of the next file.
        let next = files.partition_point(|file| file.first_seq <= floor.next());
        let kept = next.checked_sub(1).and_then(|place| files.get(place));
        covered.min(kept.map_or(0, |file| file.number))
    }

    fn carry_out_log(&self, log: &Arc<Log>, done: &mut Reclaimed) -> Result<(), Fault> {
        let (removals, rewrites, retired) = {
            let tail = log.tail.lock();
            let due = tail.sealed.iter().filter(|file| file.recorded);
            let (doomed, rewritten): (Vec<&SealedLen>, Vec<&SealedLen>) =
                due.partition(|file| file.fate == Fate::Doomed);
            let removals = !doomed.is_empty() || !tail.leaving.is_empty();
            let rewrites: Vec<u64> = rewritten.iter().map(|file| file.number).collect();
            (removals, rewrites, tail.retiring.is_some_and(|retiring| retiring.recorded))
        };
        if !removals && rewrites.is_empty() && !retired {
            return Ok(());
        }
        self.mark_reclaimed()?;
        if removals {
            self.unlink_doomed(log, done)?;
        }
        for number in rewrites {
            self.swap_rewritten(log, number, done)?;
        }
        if retired {
            self.retire(log, done)?;
        }
        Ok(())
    }

    /// Says in the directory that its logs are no longer whole.
    fn mark_reclaimed(&self) -> Result<(), Fault> {
        let path = self.options.dir.join(RECLAIMED);
        if self.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
            return Ok(());
        }
        self.inventory.lock().end(&*self.disk, &self.options.dir);
        // Its name is all it says.
        self.disk.open(&path, OpenMode::Truncate).map_err(Fault::io(&path, "create"))?;
        self.sync_dir(&self.options.dir)
    }

    fn unlink_doomed(&self, log: &Log, done: &mut Reclaimed) -> Result<(), Fault> {
        let leaving = {
            let mut tail = log.tail.lock();
            let doomed = |fate, recorded| recorded && fate == Fate::Doomed;
            let going = tail.sealed.iter().filter(|file| doomed(file.fate, file.recorded));
            let going: Vec<(u64, u64)> = going.map(|file| (file.number, file.len)).collect();
            tail.sealed.retain(|file| !doomed(file.fate, file.recorded));
            tail.leaving.extend(going.iter().map(|(number, _)| *number));
            done.bytes += going.iter().map(|(_, len)| len).sum::<u64>();
            done.files += going.len() as u64;
            tail.leaving.clone()
        };
        {
            // A reader that meets a missing file sees another view from now on.
            let _swap = log.swap.lock();
            for file in log.remove(&leaving) {
                self.let_go(&file);
            }
        }
        let mut left = Vec::new();
        for number in leaving {
            if let Err(fault) = self.unlink(&log.dir, number) {
                left.push(number);
                done.failed.get_or_insert(fault);
            }
        }
        {
            let _site = queen_io::site("reclaim");
            self.sync_dir(&log.dir)?;
        }
        log.tail.lock().leaving = left;
        Ok(())
    }

    fn unlink(&self, dir: &Path, number: u64) -> Result<(), Fault> {
        remove_sides(&*self.disk, dir, number)?;
        let path = file_path(dir, number, Ext::Log);
        if self.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
            self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
        }
        Ok(())
    }

    /// The file's name goes: nobody else closes its handles, and an open file holds its space.
    fn let_go(&self, file: &LogFile) {
        file.gone.store(true, Ordering::SeqCst);
        for ext in [Ext::Log, Ext::Index, Ext::Hashes] {
            self.handles.forget(file.key(ext));
        }
    }

    /// Gives a rewritten file its name. The side files come first: on their own they do not match and are made again.
    fn swap_rewritten(&self, log: &Log, number: u64, done: &mut Reclaimed) -> Result<(), Fault> {
        let Some(new) = log.replacements.lock().remove(&number) else { return Ok(()) };
        {
            let _swap = log.swap.lock();
            let files = log.files();
            let Some(old) = files.iter().find(|file| file.number == number) else { return Ok(()) };
            // Whoever opens the name from here on may meet the other file.
            old.gone.store(true, Ordering::SeqCst);
            for ext in [Ext::Index, Ext::Hashes, Ext::Log] {
                let path = file_path(&log.dir, number, ext);
                let from = rewrite_path(&log.dir, number, ext);
                self.disk.rename(&from, &path).map_err(Fault::io(&path, "rename to"))?;
            }
            let index = FileIndex::Side(new.index);
            log.replace(&old.replaced(index, self.next_epoch(), new.len));
            self.let_go(old);
        }
        {
            let _site = queen_io::site("reclaim");
            self.sync_dir(&log.dir)?;
        }
        let mut tail = log.tail.lock();
        if let Some(file) = tail.sealed.iter_mut().find(|file| file.number == number) {
            done.bytes += file.len.saturating_sub(new.len);
            done.rewrites += 1;
            file.len = new.len;
            (file.fate, file.recorded, file.dropped) = (Fate::Stays, false, false);
        }
        Ok(())
    }

    /// Takes a log's directory away, unless it was appended to.
    fn retire(&self, log: &Arc<Log>, done: &mut Reclaimed) -> Result<(), Fault> {
        let _writer = log.writer.lock();
        // Whoever makes side files in the directory ends first.
        let _sealing = log.sealing.lock();
        let _next = log.next.lock();
        let bytes = {
            let mut tail = log.tail.lock();
            let still = tail.retiring.is_some_and(|retiring| retiring.last == tail.last)
                && tail.sealed.is_empty()
                && tail.leaving.is_empty();
            if !still || self.dirty.lock().contains_key(&log.id) {
                tail.retiring = None;
                return Ok(());
            }
            tail.bytes()
        };
        let dead = self.unused_dead_dir(log.id)?;
        {
            let _swap = log.swap.lock();
            if let Err(error) = self.disk.rename(&log.dir, &dead) {
                done.failed.get_or_insert(Fault::io(&log.dir, "rename")(error));
                return Ok(());
            }
            {
                // A removal must not outlive the name that says that it is one.
                let _site = queen_io::site("retire");
                self.sync_dir(&self.options.dir)?;
            }
            for file in log.files().iter() {
                self.let_go(file);
            }
            self.handles.forget(log.key(log.tail.lock().number + 1));
            log.set_gone();
            self.logs.write().remove(&log.id);
        }
        done.logs += 1;
        done.files += 1;
        done.bytes += bytes.saturating_sub(HEADER_LEN as u64);
        if let Err(fault) = remove_dir(&*self.disk, &dead) {
            // The next start removes what is left.
            done.failed.get_or_insert(fault);
        }
        Ok(())
    }

    /// A name for a retired log that no earlier removal has left behind.
    fn unused_dead_dir(&self, log: LogId) -> Result<std::path::PathBuf, Fault> {
        let first = dead_dir(&self.options.dir, log);
        let mut path = first.clone();
        let mut count = 1;
        while self.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
            count += 1;
            path = first.with_extension(format!("dead.{count}"));
        }
        debug_assert!(path != log_dir(&self.options.dir, log), "a dead name is another name");
        Ok(path)
    }
}
