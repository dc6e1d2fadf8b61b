//! Starts a node on a damaged image, reads all of it, asks the doctor, and compares.

use std::path::Path;
use std::sync::Arc;

use queen_broker::cipher::fingerprint;
use queen_broker::recover::{self, Kind, Opened};
use queen_doctor::{Progress, Report, Severity, StoreKind, Target, Verdict as Start, examine};
use queen_io::{Change, Disk, ScratchDisk};
use queen_planner::filter::DuplicateFilter;
use queen_qlog::{ReadError, ReadLimit, SeqRange};
use queen_record::hash::{queue_id, tx_hash};
use queen_record::ids::{EntryIndex, Micros, Offset, Tenant};
use queen_state::Keyspace;
use queen_store::{Checkpoint, DiskStore, ImageStore};

use super::Directory;
use super::kinds::Damage;
use crate::node::DATA;
use crate::oracle::messages_of;

/// What became of one damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The start refuses, with this text.
    Refused(String),
    /// The start made something again, and the content is right.
    Repaired,
    /// The content is right.
    Harmless,
    /// The content is right up to an entry at or above the last durable point, and the start says what it cut.
    Cut,
    /// As cut, but whole records are missing, so that the start could not see it.
    Shorter,
    /// A read says damage; all that is served is right.
    Told,
    /// None of these.
    Wrong(String),
}

/// The columns of the table, in the order of [`Verdict::column`].
pub const COLUMNS: [&str; 7] =
    ["refused", "repaired", "harmless", "cut", "shorter", "told", "WRONG"];

impl Verdict {
    /// Its place in [`COLUMNS`].
    pub fn column(&self) -> usize {
        match self {
            Self::Refused(_) => 0,
            Self::Repaired => 1,
            Self::Harmless => 2,
            Self::Cut => 3,
            Self::Shorter => 4,
            Self::Told => 5,
            Self::Wrong(_) => 6,
        }
    }
}

/// One image, judged.
pub struct Judged {
    /// What became of it.
    pub verdict: Verdict,
    /// Findings of the doctor that are more than notes; `None` when it was not asked.
    pub findings: Option<usize>,
}

/// The judge of one directory.
pub struct Judge<'a> {
    directory: &'a Directory,
    disk: Arc<dyn Disk>,
    /// What a start changes of the good directory.
    usual: Vec<Change>,
    /// The rows of the good store.
    rows: u64,
}

impl<'a> Judge<'a> {
    /// Judges the good directory first, which must be harmless and clean.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(directory: &'a Directory) -> Result<Self, String> {
        let disk = directory.disk();
        let mut judge = Self { directory, disk, usual: Vec::new(), rows: 0 };
        let image = judge.image();
        let scratch = ScratchDisk::new(image.clone(), Path::new(DATA));
        judge.start(&(Arc::new(scratch.clone()) as Arc<dyn Disk>))?;
        judge.usual = scratch.changes().map_err(|error| error.to_string())?;
        judge.rows = judge.store_rows(&image)?;
        let judged = judge.judge_image(&image);
        match judged.verdict {
            Verdict::Harmless if judged.findings == Some(0) => Ok(judge),
            verdict => Err(format!("the good directory is {verdict:?}, {:?}", judged.findings)),
        }
    }

    fn image(&self) -> Arc<dyn Disk> {
        Arc::new(ScratchDisk::new(self.disk.clone(), Path::new(DATA)))
    }

    /// Judges one damage.
    pub fn judge(&self, damage: &Damage) -> Judged {
        match self.damaged(damage) {
            Ok(image) => self.judge_image(&image),
            Err(verdict) => Judged { verdict, findings: None },
        }
    }

    fn damaged(&self, damage: &Damage) -> Result<Arc<dyn Disk>, Verdict> {
        let image = self.image();
        let applied = damage.apply(&*image, self.directory);
        applied.map_err(|error| Verdict::Wrong(format!("not damaged: {error}")))?;
        Ok(image)
    }

    /// Judges damage of the store's file by its rows alone: a start that loads the same rows is the same start, and
    /// one that cannot load them refuses. Rows that differ are judged by the whole start.
    pub fn judge_store(&self, damage: &Damage) -> Judged {
        let image = match self.damaged(damage) {
            Ok(image) => image,
            Err(verdict) => return Judged { verdict, findings: None },
        };
        let verdict = match self.store_rows(&image) {
            Ok(rows) if rows == self.rows => Verdict::Harmless,
            Ok(_) => return self.judge_image(&image),
            Err(text) => named(text),
        };
        Judged { verdict, findings: None }
    }

    fn open_store(&self, disk: &Arc<dyn Disk>) -> Result<Box<dyn Checkpoint>, String> {
        let dir = Path::new(DATA).join("store");
        let text = |error: queen_store::StoreError| error.to_string();
        Ok(match self.directory.store {
            StoreKind::Plain => Box::new(DiskStore::open(disk.clone(), &dir).map_err(text)?),
            StoreKind::Lmdb => Box::new(ImageStore::open(disk.clone(), &dir).map_err(text)?),
        })
    }

    /// A hash over all rows, in order.
    fn store_rows(&self, disk: &Arc<dyn Disk>) -> Result<u64, String> {
        let mut hash = xxhash_rust::xxh3::Xxh3Default::new();
        let mut row = |keyspace: Keyspace, key: &[u8], value: &[u8]| {
            hash.update(keyspace.name().as_bytes());
            for part in [key, value] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
            Ok(())
        };
        self.open_store(disk)?.load(&mut row).map_err(|error| error.to_string())?;
        Ok(hash.digest())
    }

    /// A start, by the node's own steps in their order.
    fn start(&self, disk: &Arc<dyn Disk>) -> Result<Opened, String> {
        let dir = Path::new(DATA);
        let mut store = self.open_store(disk)?;
        fingerprint::check(&**disk, dir, Some(&self.directory.key))
            .map_err(|error| error.to_string())?;
        let qlog = self.directory.setup.qlog();
        recover::open(disk, dir, &qlog, &mut *store, Kind::Local).map_err(|error| error.to_string())
    }

    fn judge_image(&self, image: &Arc<dyn Disk>) -> Judged {
        let report = self.doctor(image);
        let scratch = ScratchDisk::new(image.clone(), Path::new(DATA));
        let disk = Arc::new(scratch.clone()) as Arc<dyn Disk>;
        let started = self.start(&disk);
        // A supervisor starts it again: what the first one left behind must not turn the refusal into a start.
        if let Err(text) = &started
            && self.start(&disk).is_ok()
        {
            let verdict = Verdict::Wrong(format!("refused once, and then started: {text}"));
            return Judged { verdict, findings: None };
        }
        let findings = report.as_ref().ok().map(|report| {
            report.findings.iter().filter(|found| found.severity != Severity::Note).count()
        });
        let verdict = match report {
            Err(error) => Verdict::Wrong(format!("the doctor cannot read: {error}")),
            Ok(report) => self.compare(started, &scratch, &report),
        };
        Judged { verdict, findings }
    }

    fn doctor(&self, image: &Arc<dyn Disk>) -> std::io::Result<Report> {
        let target = Target {
            dir: DATA.into(),
            store: self.directory.store,
            key: Some(self.directory.key.clone()),
            now: Micros(self.directory.now),
            hash_window_min_s: 900,
        };
        examine(image, &target, &Progress::new())
    }

    fn compare(
        &self,
        started: Result<Opened, String>,
        scratch: &ScratchDisk,
        report: &Report,
    ) -> Verdict {
        let opened = match (started, &report.verdict) {
            (Err(text), Start::Refuses(other)) if text == *other => {
                return match named(text) {
                    Verdict::Refused(_) if report.is_clean() => {
                        Verdict::Wrong("the doctor has no finding of a refusal".to_owned())
                    }
                    verdict => verdict,
                };
            }
            (Err(text), other) => {
                return Verdict::Wrong(format!("the start refuses: {text}; the doctor: {other:?}"));
            }
            (Ok(opened), _) => opened,
        };
        let start = Start::Starts {
            applied: opened.state.applied().0,
            durable: opened.durable.0,
            cut_entries: opened.cut.entries,
            cut_bytes: opened.cut.bytes,
        };
        if start != report.verdict {
            return Verdict::Wrong(format!("{start:?}; the doctor: {:?}", report.verdict));
        }
        let has = |severity| report.findings.iter().any(|found| found.severity == severity);
        if opened.cut.bytes > 0 && !has(Severity::Cut) {
            return Verdict::Wrong("the doctor does not say what is cut".to_owned());
        }
        match self.read_all(&opened) {
            Err(wrong) => Verdict::Wrong(wrong),
            Ok(Some(told)) if !has(Severity::Damage) => {
                Verdict::Wrong(format!("a read is told {told}, but the doctor is not"))
            }
            Ok(Some(_)) => Verdict::Told,
            Ok(None) => self.served(&opened, scratch),
        }
    }

    /// The verdict on a start whose content is right.
    fn served(&self, opened: &Opened, scratch: &ScratchDisk) -> Verdict {
        let applied = opened.state.applied().0;
        if applied < self.directory.last {
            return if opened.cut.bytes > 0 { Verdict::Cut } else { Verdict::Shorter };
        }
        match scratch.changes() {
            Ok(changes) if changes == self.usual && !opened.fresh => Verdict::Harmless,
            Ok(_) => Verdict::Repaired,
            Err(error) => Verdict::Wrong(error.to_string()),
        }
    }

    /// Reads everything. `Ok` with a text when a read said that it cannot be served.
    ///
    /// # Errors
    /// What differs from the model without anybody saying so.
    fn read_all(&self, opened: &Opened) -> Result<Option<String>, String> {
        let history = &self.directory.history;
        let state = &opened.state;
        let applied = state.applied().0;
        if applied > self.directory.last {
            return Err(format!("entry {applied} was never sent"));
        }
        if applied < self.directory.durable {
            return Err(format!("entry {applied} is the last, the last durable one is above"));
        }
        if history.digests.get(&applied) != Some(&state.digest()) {
            return Err(format!("the state at entry {applied} is another"));
        }
        let mut told = None;
        let mut tell = |error: &ReadError| {
            told.get_or_insert_with(|| error.to_string());
        };
        let all = SeqRange { from: EntryIndex(0), to: EntryIndex(u64::MAX) };
        let one = ReadLimit { messages: 1, bytes: u64::MAX };
        for (id, row) in state.partitions().filter(|(id, _)| state.partition(*id).is_some()) {
            let part = history.parts.get(&id).ok_or("a partition that nobody made")?;
            let log = opened.qlog.log_of(queue_id(Tenant::DEFAULT, &part.queue), Some(id));
            for (offset, stored) in (0..row.next_offset().0).zip(&part.messages) {
                match opened.qlog.read(log, id, Offset(offset), one) {
                    Err(error) => tell(&error),
                    Ok(records) => {
                        let messages = messages_of(&records)?;
                        let found = messages.iter().find(|(at, _)| *at == offset);
                        if !found.is_some_and(|(_, found)| found.is(stored)) {
                            return Err(format!("partition {id} offset {offset} is another"));
                        }
                    }
                }
                let hash = tx_hash(&stored.transaction_id);
                let within = Offset(0)..row.next_offset();
                match opened.qlog.find_hash(log, id, hash, all, within) {
                    Err(error) => tell(&error),
                    Ok(found) if found.iter().any(|found| found.offset.0 == offset) => {}
                    Ok(_) => return Err(format!("partition {id} offset {offset} has no hash")),
                }
            }
        }
        let warmed: Result<DuplicateFilter, _> = recover::warm_filter(&opened.qlog, Micros(0));
        if let Err(error) = warmed {
            tell(&error);
        }
        Ok(told)
    }
}

/// A refusal must name what it is about.
fn named(text: String) -> Verdict {
    let names = ["/data", "entry ", "the store"];
    if names.iter().any(|name| text.contains(name)) {
        Verdict::Refused(text)
    } else {
        Verdict::Wrong(format!("a refusal that names nothing: {text}"))
    }
}
