//! Opening the directory: what is there, whether it is what was recorded, and each log up to its end.
//!
//! Nothing that holds a record is changed here but what the durable point says is going: doomed files and retired logs.
//! Removed besides are leftovers that never counted: temporary files, retired directories, files made ahead of a roll,
//! and the side files of a file that is active again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};
use queen_io::{Disk, DiskFile, OpenMode};
use queen_record::header::{FIRST_SEQ_UNUSED, FileHeader, HEADER_LEN};
use queen_record::ids::{EntryIndex, LogId};

use crate::active::{ActiveScan, scan_file, unused};
use crate::background::sealed_seqs;
use crate::durable::{DurablePoint, LogTail, Rewriting};
use crate::error::{Fault, OpenError};
use crate::file::{FileIndex, LogFile};
use crate::handles::{Handles, SparingDisk};
use crate::inventory::{self, Inventory};
use crate::log::{Log, Mark, SealedLen, Tail};
use crate::names::{Ext, file_path, is_dead_dir, is_leftover, log_dir, parse_file, parse_log_dir};
use crate::options::Options;
use crate::pool::SyncPool;
use crate::reclaim::RECLAIMED;
use crate::recover::{Opened, Recovery};
use crate::retired::{Retired, finish_retiring, remove_dir, retired};
use crate::scan::{find_record_behind, read_exact_at};
use crate::shared::{Qlog, Shared};
use crate::side::{BuildError, Flaw, LoadError, SealedFile, SideIndex, SidePlace};
use crate::stats::Counters;

pub(crate) fn open(
    disk: Arc<dyn Disk>,
    options: Options,
    durable: &DurablePoint,
) -> Result<(Qlog, Recovery), OpenError> {
    let ids = prepare_dir(&*disk, &options.dir)?;
    let reclaimed = options.dir.join(RECLAIMED);
    let is_reclaimed = disk.exists(&reclaimed).map_err(Fault::io(&reclaimed, "look for"))?;
    if durable.layout.is_none() {
        if is_reclaimed {
            return Err(OpenError::Reclaimed { file: reclaimed });
        }
        inventory::check(&*disk, &options.dir)?;
    }
    let layout = crate::layout::open(&*disk, &options, durable, &ids)?;
    for tail in &durable.logs {
        if !tail.retired && !ids.contains(&tail.log) {
            return Err(OpenError::LogMissing { dir: log_dir(&options.dir, tail.log) });
        }
    }
    let recorded: BTreeMap<LogId, &LogTail> =
        durable.logs.iter().map(|tail| (tail.log, tail)).collect();
    let mut opened = Vec::with_capacity(ids.len());
    for id in ids {
        let dir = log_dir(&options.dir, id);
        let mut recorded = recorded.get(&id).copied();
        if let Some(tail) = recorded.filter(|tail| tail.retired) {
            match retired(&*disk, &dir, tail)? {
                Retired::AsRecorded => {}
                Retired::Anew => recorded = None,
            }
        }
        let opened_log = Opener { disk: &*disk, id, dir: dir.clone(), recorded, durable }.open()?;
        let last = opened_log.log.tail.lock().last;
        if recorded.is_some_and(|tail| tail.retired && last <= tail.tail_index) {
            // The process before ended between saying so and doing so.
            finish_retiring(&*disk, &options.dir, id)?;
        } else {
            opened.push(opened_log);
        }
    }
    let found = opened.iter().map(|log| log.log.tail.lock().last).max().unwrap_or_default();
    // With recorded logs each one's own tail decides: the one that held the last entry may have been removed.
    if durable.layout.is_none() && found < durable.index {
        return Err(OpenError::LogsShort { found, durable: durable.index });
    }
    let pool = SyncPool::new(options.fsync_threads)
        .map_err(Fault::io(&options.dir, "start sync threads for"))?;
    let logs = opened.iter().map(|log| (log.log.id, log.log.clone())).collect();
    let handles = Arc::new(Handles::new(options.fd_cache));
    let disk = Arc::new(SparingDisk::new(disk, handles.clone()));
    let shared = Arc::new(Shared {
        disk,
        options,
        layout,
        logs: RwLock::new(logs),
        dirty: Mutex::default(),
        appended: AtomicU64::new(durable.index.0),
        terms: Mutex::default(),
        truncations: AtomicU64::new(0),
        truncating: Mutex::default(),
        poison: Mutex::default(),
        recovered: AtomicBool::new(false),
        handles,
        pool,
        // Files of this opening have epoch 0.
        epochs: AtomicU64::new(1),
        written: AtomicU64::new(durable.index.0),
        floor: AtomicU64::new(u64::MAX),
        unrecorded: AtomicBool::new(false),
        inventory: Mutex::new(Inventory::new(is_reclaimed)),
        counters: Counters::default(),
    });
    let recovery = Recovery::new(shared.clone(), durable.index, opened);
    Ok((Qlog { shared }, recovery))
}

/// Makes the directory if need be, removes leftovers, and lists the logs, ascending.
fn prepare_dir(disk: &dyn Disk, dir: &Path) -> Result<Vec<LogId>, Fault> {
    if !disk.exists(dir).map_err(Fault::io(dir, "look for"))? {
        disk.create_dir(dir).map_err(Fault::io(dir, "create"))?;
    }
    // Also when it is there: the process before may have ended between the two.
    if let Some(parent) = dir.parent() {
        disk.sync_dir(parent).map_err(Fault::io(parent, "sync"))?;
    }
    let mut logs = Vec::new();
    for entry in disk.list(dir).map_err(Fault::io(dir, "list"))? {
        let path = dir.join(&entry.name);
        if !entry.is_dir {
            if is_leftover(&entry.name) {
                disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            }
        } else if let Some(id) = parse_log_dir(&entry.name) {
            logs.push(id);
        } else if is_dead_dir(&entry.name) {
            remove_dir(disk, &path)?;
        } else {
            tracing::warn!(path = %path.display(), "unknown directory beside the logs");
        }
    }
    logs.sort_unstable();
    Ok(logs)
}

/// Removes the side files of a number; `true` when there were some.
pub(crate) fn remove_sides(disk: &dyn Disk, dir: &Path, number: u64) -> Result<bool, Fault> {
    let mut removed = false;
    for ext in [Ext::Index, Ext::Hashes] {
        let path = file_path(dir, number, ext);
        if disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
            disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            removed = true;
        }
    }
    Ok(removed)
}

/// One file's name, header and length.
struct Found {
    number: u64,
    path: PathBuf,
    len: u64,
    header: FileHeader,
}

struct Opener<'a> {
    disk: &'a dyn Disk,
    id: LogId,
    dir: PathBuf,
    recorded: Option<&'a LogTail>,
    durable: &'a DurablePoint,
}

impl Opener<'_> {
    fn open(self) -> Result<Opened, OpenError> {
        let numbers = self.numbers()?;
        let mut found = self.drop_unused(numbers)?;
        self.check_order(&found)?;
        let Some(active) = found.pop() else {
            let log = Log::new(self.id, self.dir, Vec::new(), Tail::empty(), 0);
            return Ok(Opened { log, from: None, recorded: false, torn_bytes: 0, physical_len: 0 });
        };
        let mut files = Vec::with_capacity(found.len() + 1);
        let mut tail = Tail::empty();
        let mut below = None;
        for (place, file) in found.iter().enumerate() {
            let next_first =
                found.get(place + 1).map_or(active.header.first_seq, |next| next.header.first_seq);
            files.push(self.open_sealed(file, next_first)?);
            tail.sealed.push(SealedLen::new(file.number, file.len, false));
            below = Some(EntryIndex(next_first.0.saturating_sub(1)));
        }
        let scan = self.scan_active(&active)?;
        self.check_newer(&found, &active, &scan)?;
        if remove_sides(self.disk, &self.dir, active.number)? {
            self.disk.sync_dir(&self.dir).map_err(Fault::io(&self.dir, "sync"))?;
        }
        let recorded_tail = self.recorded.map_or(EntryIndex(0), |tail| tail.tail_index);
        tail.number = active.number;
        tail.end = scan.end;
        tail.allocated = active.len;
        // Recovery syncs it before anything else is written.
        tail.start_durable = true;
        tail.oldest = scan.first.map(|(_, time)| time);
        tail.last = if scan.last > EntryIndex(0) {
            scan.last
        } else {
            below.unwrap_or_default().max(recorded_tail)
        };
        if tail.last < recorded_tail {
            return Err(OpenError::TailShort {
                dir: self.dir,
                found: tail.last,
                recorded: recorded_tail,
            });
        }
        let newest = self.recorded.and_then(|tail| tail.files.last());
        if let (Some(newest), Some(recorded)) = (newest, self.recorded) {
            let mark = Mark { index: recorded.tail_index, number: newest.number, end: newest.len };
            tail.marks.push_back(mark);
        }
        let torn_bytes = if scan.bad.is_some() { active.len - scan.end } else { 0 };
        tail.points = scan.points;
        let index = FileIndex::Ram(RwLock::new(scan.index));
        files.push(LogFile::new(
            self.id,
            active.number,
            active.header.first_seq,
            active.path.clone(),
            index,
            0,
        ));
        let from = match newest {
            Some(file) => Some((file.number, file.len)),
            None => self.unrecorded_start(&files, &mut tail),
        };
        let recorded = self.recorded.is_some();
        let log = Log::new(self.id, self.dir, files, tail, 0);
        Ok(Opened { log, from, recorded, torn_bytes, physical_len: active.len })
    }

    /// Where entries above the durable index start when nothing was recorded; the tail before it is marked.
    fn unrecorded_start(&self, files: &[Arc<LogFile>], tail: &mut Tail) -> Option<(u64, u64)> {
        let mut pairs = files.iter().zip(files.iter().skip(1));
        let start = pairs
            .rfind(|(_, next)| next.first_seq <= self.durable.index.next())
            .map_or_else(|| files.first(), |(_, next)| Some(next))?;
        if let Some(sealed) = tail.sealed.iter().rfind(|sealed| sealed.number < start.number) {
            // The bound from the headers stands for the exact index.
            let index = EntryIndex(start.first_seq.0.saturating_sub(1));
            tail.marks.push_back(Mark { index, number: sealed.number, end: sealed.len });
        }
        Some((start.number, HEADER_LEN as u64))
    }

    /// Numbers of the record files, ascending, checked against the recorded ones; leftovers are removed.
    fn numbers(&self) -> Result<Vec<u64>, OpenError> {
        let mut numbers = Vec::new();
        for entry in self.disk.list(&self.dir).map_err(Fault::io(&self.dir, "list"))? {
            if let Some(number) = parse_file(&entry.name) {
                numbers.push(number);
            } else if is_leftover(&entry.name) {
                let path = self.dir.join(&entry.name);
                self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            }
        }
        numbers.sort_unstable();
        let Some(recorded) = self.recorded else { return Ok(numbers) };
        for number in &recorded.doomed {
            remove_sides(self.disk, &self.dir, *number)?;
            if let Ok(at) = numbers.binary_search(number) {
                let path = self.path(*number);
                self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
                numbers.remove(at);
            }
        }
        for file in &recorded.files {
            if numbers.binary_search(&file.number).is_err() {
                return Err(OpenError::FileMissing { file: self.path(file.number) });
            }
        }
        let newest = self.newest_recorded();
        let extra = numbers
            .iter()
            .take_while(|number| **number < newest)
            .find(|number| !recorded.files.iter().any(|file| file.number == **number));
        match extra {
            Some(number) => Err(OpenError::FileUnexpected { file: self.path(*number) }),
            None => Ok(numbers),
        }
    }

    /// Opens the files and removes the newest ones while they were never used.
    fn drop_unused(&self, numbers: Vec<u64>) -> Result<Vec<Found>, OpenError> {
        let mut rest = numbers;
        while let Some(number) = rest.last().copied().filter(|n| *n > self.newest_recorded()) {
            let path = self.path(number);
            let file = self.disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
            if !unused(&*file).map_err(Fault::io(&path, "read"))? {
                break;
            }
            remove_sides(self.disk, &self.dir, number)?;
            self.disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            // One at a time: a crash must not bring back a newer name without the older one (Q3).
            self.disk.sync_dir(&self.dir).map_err(Fault::io(&self.dir, "sync"))?;
            rest.pop();
        }
        rest.into_iter().map(|number| self.header(number)).collect()
    }

    fn header(&self, number: u64) -> Result<Found, OpenError> {
        let path = self.path(number);
        let file = self.disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
        let len = file.len().map_err(Fault::io(&path, "read"))?;
        let recorded = self.recorded_len(number, len);
        if len < recorded.max(HEADER_LEN as u64) {
            let recorded = recorded.max(HEADER_LEN as u64);
            return Err(OpenError::FileShort { file: path, len, recorded });
        }
        let mut bytes = [0; HEADER_LEN];
        read_exact_at(&*file, &mut bytes, 0).map_err(Fault::io(&path, "read"))?;
        let wrong = |reason: String| OpenError::Header { file: path.clone(), reason };
        let header = FileHeader::decode(&bytes).map_err(|error| wrong(error.to_string()))?;
        if header.number != number {
            return Err(wrong(format!("it is the header of file {}", header.number)));
        }
        if header.first_seq == FIRST_SEQ_UNUSED {
            return Err(wrong("it says that the file was never used".to_string()));
        }
        Ok(Found { number, path, len, header })
    }

    fn check_order(&self, found: &[Found]) -> Result<(), OpenError> {
        // A log that is newer than the durable point has lost nothing to reclaim.
        let fresh = self.recorded.is_none() && self.durable.layout.is_some();
        if fresh && found.first().is_some_and(|file| file.number != 1) {
            return Err(OpenError::FileMissing { file: self.path(1) });
        }
        for (file, next) in found.iter().zip(found.iter().skip(1)) {
            // Below the newest recorded file the recorded numbers are exactly those that are there.
            if next.number != file.number + 1 && next.number > self.newest_recorded() {
                return Err(OpenError::FileMissing { file: self.path(file.number + 1) });
            }
            if next.header.first_seq <= file.header.first_seq {
                let reason = "its first seq is not above that of the file before".to_string();
                return Err(OpenError::Header { file: next.path.clone(), reason });
            }
        }
        Ok(())
    }

    /// A log that the point does not name is newer than the point: one with an older entry is another's, or was removed.
    fn check_newer(
        &self,
        sealed: &[Found],
        active: &Found,
        scan: &ActiveScan,
    ) -> Result<(), OpenError> {
        if self.recorded.is_some() || self.durable.layout.is_none() {
            return Ok(());
        }
        // A sealed file has records: at the least its last one is below the next file's.
        let highest_of_first = match sealed {
            [] => scan.first.map(|(seq, _)| seq),
            [_] => Some(EntryIndex(active.header.first_seq.0.saturating_sub(1))),
            [_, next, ..] => Some(EntryIndex(next.header.first_seq.0.saturating_sub(1))),
        };
        if highest_of_first.is_some_and(|seq| seq <= self.durable.index) {
            return Err(OpenError::LogUnexpected { dir: self.dir.clone() });
        }
        Ok(())
    }

    fn open_sealed(&self, file: &Found, next_first: EntryIndex) -> Result<Arc<LogFile>, OpenError> {
        let recorded = self.recorded_len(file.number, file.len);
        if file.number < self.newest_recorded() && file.len > recorded {
            return Err(OpenError::FileLong { file: file.path.clone(), len: file.len, recorded });
        }
        let index = match self.load_sides(file)? {
            Some(index) => index,
            None => self.rebuild_sides(file, next_first)?,
        };
        let index = FileIndex::Side(index);
        let path = file.path.clone();
        Ok(LogFile::new(self.id, file.number, file.header.first_seq, path, index, 0))
    }

    fn load_sides(&self, file: &Found) -> Result<Option<SideIndex>, Fault> {
        let (Some(index), Some(hashes)) =
            (self.side(file.number, Ext::Index)?, self.side(file.number, Ext::Hashes)?)
        else {
            return Ok(None);
        };
        match SideIndex::load(file.number, file.len, &*index, &*hashes) {
            Ok(index) => Ok(Some(index)),
            Err(LoadError::Side(error)) => {
                tracing::info!(file = %file.path.display(), %error, "side files are made again");
                Ok(None)
            }
            Err(LoadError::Io(error)) => Err(Fault::io(&file.path, "read side files of")(error)),
        }
    }

    fn side(&self, number: u64, ext: Ext) -> Result<Option<Arc<dyn DiskFile>>, Fault> {
        let path = file_path(&self.dir, number, ext);
        if !self.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
            return Ok(None);
        }
        self.open_file(&path).map(Some)
    }

    fn rebuild_sides(&self, file: &Found, next_first: EntryIndex) -> Result<SideIndex, OpenError> {
        let job = SealedFile {
            disk: self.disk,
            dir: &self.dir,
            path: &file.path,
            file: self.open_file(&file.path)?,
            number: file.number,
            len: file.len,
            seqs: sealed_seqs(file.header.first_seq, next_first),
            place: SidePlace::Own,
        };
        job.build(None).map_err(|error| match error {
            BuildError::Fault(fault) => fault.into(),
            BuildError::Flaw(Flaw { at, reason }) => {
                OpenError::SealedDamage { file: file.path.clone(), offset: at, reason }
            }
        })
    }

    fn scan_active(&self, file: &Found) -> Result<ActiveScan, OpenError> {
        let opened = self.open_file(&file.path)?;
        let scan = scan_file(opened.clone(), file.len, file.header.first_seq)
            .map_err(Fault::io(&file.path, "read"))?;
        if let Some(reason) = scan.disorder {
            return Err(OpenError::OutOfOrder {
                file: file.path.clone(),
                offset: scan.end,
                reason,
            });
        }
        let damage = |reason: String| OpenError::ActiveDamage {
            file: file.path.clone(),
            offset: scan.end,
            reason,
        };
        let why = scan.bad.clone().unwrap_or_else(|| "the records end here".to_string());
        let recorded = self.recorded_len(file.number, file.len);
        if scan.end < recorded {
            return Err(damage(format!("{why}, but {recorded} bytes were durable")));
        }
        // With a recorded length the question is settled; without one a durable record behind the bad one decides.
        let unknown = self.durable.logs.is_empty() && self.durable.index > EntryIndex(0);
        if scan.bad.is_some() && unknown {
            let lowest = scan.last.max(file.header.first_seq);
            let seqs = (lowest, self.durable.index);
            let behind = find_record_behind(&*opened, scan.end, file.len, seqs)
                .map_err(Fault::io(&file.path, "read"))?;
            if let Some((at, seq)) = behind {
                return Err(damage(format!("{why}, but durable entry {seq} follows at byte {at}")));
            }
        }
        Ok(scan)
    }

    fn open_file(&self, path: &Path) -> Result<Arc<dyn DiskFile>, Fault> {
        self.disk.open(path, OpenMode::Read).map_err(Fault::io(path, "open"))
    }

    fn path(&self, number: u64) -> PathBuf {
        file_path(&self.dir, number, Ext::Log)
    }

    fn newest_recorded(&self) -> u64 {
        self.recorded.and_then(|tail| tail.files.last()).map_or(0, |file| file.number)
    }

    /// The length that a file of `len` bytes must have. One that is being rewritten may have its new one.
    fn recorded_len(&self, number: u64, len: u64) -> u64 {
        let Some(recorded) = self.recorded else { return 0 };
        let rewritten = |new: &&Rewriting| (new.number, new.len) == (number, len);
        if let Some(new) = recorded.rewriting.iter().find(rewritten) {
            return new.len;
        }
        recorded.files.iter().find(|file| file.number == number).map_or(0, |file| file.len)
    }
}
