//! Every record of every log file: checksums, order, frames, entries, offsets.

use std::io;
use std::path::{Path, PathBuf};

use queen_broker::recover::Opened;
use queen_io::Disk;
use queen_qlog::Fault;
use queen_qlog::walk::{FileWalk, Walked, log_of_name, number_of_name};
use queen_raft::StoredEntry;
use queen_record::compress::PayloadDecompressor;
use queen_record::frame::Frames;
use queen_record::hash::tx_hash;
use queen_record::ids::{EntryIndex, LogId};
use queen_record::record::{EntryBody, Record};

use crate::changes::is_unused;
use crate::extents::Extents;
use crate::report::{Figures, Findings, Severity};
use crate::sealed::{Sides, wrong_hash};

/// Findings of one file after which the rest of it is only counted.
const FINDINGS_MAX: u32 = 100;

/// The reading of all logs.
pub(crate) struct Reading<'a> {
    disk: &'a dyn Disk,
    /// Of a start that serves.
    opened: Option<&'a Opened>,
    findings: &'a mut Findings,
    figures: &'a mut Figures,
    extents: Extents,
    decompressor: Option<PayloadDecompressor>,
}

/// One file among those of its log.
struct LogFile {
    log: LogId,
    path: PathBuf,
    number: u64,
    /// First seq of the next file; `None` for the active one.
    next_first: Option<EntryIndex>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(
        disk: &'a dyn Disk,
        opened: Option<&'a Opened>,
        findings: &'a mut Findings,
        figures: &'a mut Figures,
    ) -> Self {
        let decompressor = PayloadDecompressor::new().ok();
        Self { disk, opened, findings, figures, extents: Extents::default(), decompressor }
    }

    /// Reads all logs below `dir`.
    pub(crate) fn all(mut self, dir: &Path) -> io::Result<()> {
        if !self.disk.exists(dir)? {
            return Ok(());
        }
        for entry in self.disk.list(dir)? {
            if let Some(log) = log_of_name(&entry.name).filter(|_| entry.is_dir) {
                self.log(log, &dir.join(&entry.name))?;
            }
        }
        if let Some(opened) = self.opened {
            for (log, what) in self.extents.against(opened) {
                self.findings.add(Severity::Damage, &dir.join(format!("q{log}")), None, what);
            }
        }
        Ok(())
    }

    fn log(&mut self, log: LogId, dir: &Path) -> io::Result<()> {
        let mut numbers: Vec<u64> =
            self.disk.list(dir)?.iter().filter_map(|entry| number_of_name(&entry.name)).collect();
        numbers.sort_unstable();
        let path = |number: u64| dir.join(format!("r{number:08}.qlog"));
        while let Some(newest) = numbers.last().copied() {
            match is_unused(self.disk, &path(newest)) {
                Ok(true) => numbers.truncate(numbers.len() - 1),
                Ok(false) => break,
                Err(error) => {
                    let what = format!("cannot be read: {error}");
                    self.findings.add(Severity::Damage, &path(newest), None, what);
                    break;
                }
            }
        }
        for (place, number) in numbers.iter().copied().enumerate() {
            let next_first = numbers.get(place + 1).map(|next| {
                let walk = FileWalk::open(self.disk, &path(*next)).ok();
                let header = walk.and_then(|walk| walk.header().as_ref().ok().copied());
                // A header that cannot be read bounds nothing; it is reported with its own file.
                header.map_or(EntryIndex(u64::MAX), |header| header.first_seq)
            });
            let file = LogFile { log, path: path(number), number, next_first };
            match self.file(&file) {
                Ok(()) => {}
                Err(Fault::Io { source, operation, .. }) => {
                    let what = format!("cannot be read: {operation}: {source}");
                    self.findings.add(Severity::Damage, &file.path, None, what);
                }
                Err(fault) => {
                    self.findings.add(Severity::Damage, &file.path, None, fault.to_string());
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, file: &LogFile) -> Result<(), Fault> {
        let walk = FileWalk::open(self.disk, &file.path)?;
        let len = walk.file_len();
        let mut lowest = EntryIndex(0);
        match walk.header() {
            Ok(header) if header.number == file.number => lowest = header.first_seq,
            Ok(header) => {
                let what = format!("it is the header of file {}", header.number);
                self.damage(file, 0, &what);
            }
            Err(error) => self.damage(file, 0, &error.to_string()),
        }
        let mut sides = file.next_first.is_some().then(Sides::default);
        let mut found = 0u32;
        walk.each(&file.path, &mut |step| {
            match step {
                Walked::Record { at, record } => {
                    self.figures.records += 1;
                    if let Some(sides) = &mut sides {
                        sides.add(at, &record);
                    }
                    if let Err(what) = self.record(file, &mut lowest, &record)
                        && found < FINDINGS_MAX
                    {
                        found += 1;
                        self.damage(file, at, &what);
                    }
                }
                Walked::Bad { at, until, reason } => {
                    // Its side files cannot be told from right ones any more.
                    sides = None;
                    if found < FINDINGS_MAX {
                        found += 1;
                        let what = format!("{} bytes are no record: {reason}", until - at);
                        self.damage(file, at, &what);
                    }
                }
                Walked::End { at } if at < len && file.next_first.is_some() => {
                    sides = None;
                    self.damage(file, at, "zeros to the end of a sealed file");
                }
                Walked::End { .. } => {}
            }
            true
        })?;
        if let Some(sides) = sides {
            sides.compare(self.disk, &file.path, file.number, len, self.findings).map_err(
                |source| Fault::Io {
                    path: file.path.clone(),
                    operation: "read the side files of",
                    source,
                },
            )?;
        }
        Ok(())
    }

    /// Adds damage, unless a start cuts it or refuses for it: then it is known already.
    fn damage(&mut self, file: &LogFile, at: u64, what: &str) {
        if !self.findings.is_cut(&file.path, at) && !self.findings.has(&file.path, at) {
            self.findings.add(Severity::Damage, &file.path, Some(at), what);
        }
    }

    /// What is wrong with a record whose checksum holds.
    fn record(
        &mut self,
        file: &LogFile,
        lowest: &mut EntryIndex,
        record: &Record<'_>,
    ) -> Result<(), String> {
        let seq = record.head.seq;
        if seq < *lowest {
            return Err(format!("entry {seq} after entry {lowest}"));
        }
        *lowest = seq;
        if let Some(next) = file.next_first.filter(|next| seq >= *next) {
            return Err(format!("entry {seq}, but the next file begins with entry {next}"));
        }
        if let Some(part) = record.entry_part() {
            if let EntryBody::Whole(bytes) = part.body {
                self.figures.entries += 1;
                StoredEntry::read(bytes).map_err(|error| format!("entry {seq}: {error}"))?;
            }
            return Ok(());
        }
        self.messages(record)?;
        let end = record.head.end().ok_or("the offsets pass their limit")?;
        let is_known = self.opened.is_none_or(|opened| seq <= opened.state.applied());
        if is_known {
            self.extents.add(file.log, record.head.partition, record.head.base, end)?;
        }
        Ok(())
    }

    fn messages(&mut self, record: &Record<'_>) -> Result<(), String> {
        let seq = record.head.seq;
        let raw;
        let payload = if record.head.compressed {
            let decompressor = self.decompressor.as_mut().ok_or("no memory to decompress")?;
            raw = decompressor
                .decompress(record.payload)
                .map_err(|error| format!("entry {seq}: {error}"))?;
            &*raw
        } else {
            record.payload
        };
        let mut hashes = record.tx_hashes();
        let mut count = 0;
        for frame in Frames::new(payload) {
            let frame = frame.map_err(|error| format!("entry {seq}: {error}"))?;
            count += 1;
            self.figures.encrypted += u64::from(frame.encrypted);
            if let Some(what) = wrong_hash(tx_hash(frame.transaction_id), hashes.next(), seq) {
                return Err(what);
            }
        }
        self.figures.messages += u64::from(record.head.count);
        if count == record.head.count {
            Ok(())
        } else {
            Err(format!("entry {seq}: {count} frames of {} messages", record.head.count))
        }
    }
}
