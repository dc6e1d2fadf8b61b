//! One run, from the old directory to the new one's name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_broker::StartError;
use queen_broker::recover::Kind;
use queen_doctor::{Target, examine};
use queen_io::Disk;
use queen_record::hash::checksum;
use queen_record::layout::{Layout, Shards};
use queen_store::{Checkpoint, StoreError};

use crate::content::{Content, Tallies};
use crate::copy::{self, Copied};
use crate::error::RelayoutError;
use crate::place::{Found, MARK, Place, parent};
use crate::progress::{Progress, Stage};

/// Room for names, headers and what a file system adds.
const SLACK: u64 = 1 << 20;

/// Makes the store of a directory: of its `store` directory, whose parent is there.
pub type OpenStore<'s> = &'s dyn Fn(&Path) -> Result<Box<dyn Checkpoint>, StoreError>;

/// What is to be done. Nobody else is at work on either directory.
#[derive(Clone, Debug)]
pub struct Job {
    /// The old directory, and what a start on it would know.
    pub from: Target,
    /// The new directory: missing, empty, or the result of the same job. Its parent is there.
    pub to: PathBuf,
    /// Shared logs of the new directory.
    pub shards: Shards,
    /// Its lanes; `None` for as many as the old one has.
    pub lanes: Option<u32>,
    /// Size at which its files are sealed.
    pub segment_bytes: u64,
}

/// Whether anything had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The directory was made.
    Made,
    /// An earlier run had made it: it was compared with the old one once more.
    WasThere,
}

/// What the new directory holds, and what was compared.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether anything had to be done.
    pub outcome: Outcome,
    /// Layouts of the old and the new directory.
    pub layouts: (Layout, Layout),
    /// The last entry of both.
    pub applied: u64,
    /// Entries of which the old directory has only a part: no answer stood for them, and a start cuts them.
    pub cut_entries: u64,
    /// Queues.
    pub queues: u64,
    /// Partitions with and without messages.
    pub partitions: u64,
    /// Records with messages.
    pub records: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of the records.
    pub bytes: u64,
    /// Bytes of message records of the old directory that nobody needs, and that were left out.
    pub dead_bytes: u64,
    /// Logs of the old and the new directory.
    pub logs: (u64, u64),
    /// Of all rows of both.
    pub digest: u64,
    /// What the doctor says of the new directory.
    pub doctor: queen_doctor::Report,
}

/// Does it.
///
/// # Errors
/// [`RelayoutError`]: the new name was not given, and the old directory is as it was. The same job may be run again.
pub fn relayout(
    disk: &Arc<dyn Disk>,
    open_store: OpenStore<'_>,
    job: &Job,
    progress: &Progress,
) -> Result<Report, RelayoutError> {
    progress.enter(Stage::Start, 0);
    let place = Place::new(&**disk, &job.to);
    let lock = Lock::look(&**disk, &job.from.dir)?;
    let kind = Kind::of(&**disk, &job.from.dir);
    if kind.map_err(|source| refused(&job.from.dir, source))? == Kind::Member {
        return Err(RelayoutError::Member { dir: job.from.dir.clone() });
    }
    let mut old =
        Content::open(disk, &job.from).map_err(|source| refused(&job.from.dir, source))?;
    let lanes = job.lanes.unwrap_or_else(|| old.layout().lanes());
    let layout = Layout::new(lanes, job.shards).ok_or(RelayoutError::Layout)?;
    let found = place.look()?;
    if let Found::Unmarked(dir) = found {
        let report = adopt(disk, (&old, layout), &place, &dir, job, progress)?;
        return lock.check().map(|()| report);
    }
    check_room(&**disk, &old, job)?;
    let made = make(disk, open_store, (&mut old, layout), &place, job, progress);
    let made = made.and_then(|made| lock.check().map(|()| made));
    match made {
        Ok((tallies, dead_bytes, logs, doctor)) => {
            place.finish()?;
            Ok(report(Outcome::Made, (&old, layout), (&tallies, dead_bytes), logs, doctor))
        }
        // For whoever wants to look.
        Err(differs @ RelayoutError::Differs { .. }) => Err(differs),
        Err(first) => Err(match place.remove() {
            Ok(()) => first,
            Err(second) => RelayoutError::Left { first: Box::new(first), second: Box::new(second) },
        }),
    }
}

/// What a finished directory is reported with: tallies, bytes left out, logs of both, the doctor's report.
type Made = (Tallies, u64, (u64, u64), queen_doctor::Report);

/// Everything but the name.
fn make(
    disk: &Arc<dyn Disk>,
    open_store: OpenStore<'_>,
    (old, layout): (&mut Content, Layout),
    place: &Place<'_>,
    job: &Job,
    progress: &Progress,
) -> Result<Made, RelayoutError> {
    place.begin()?;
    let partial = &*place.partial;
    progress.enter(Stage::Copy, old.opened.qlog.stats().bytes);
    let at = (&*partial.join("qlog"), layout, job.segment_bytes);
    let Copied { tallies, dead_bytes, anew } = copy::records(disk, old, at, progress)?;
    check_whole(old, &tallies, job)?;
    progress.enter(Stage::Store, 0);
    let mut store = open_store(&partial.join("store"))?;
    copy::rows(&mut old.opened.state, &anew.point, &mut *store, progress)?;
    drop(store);
    copy::others(&**disk, &job.from.dir, partial)?;
    disk.sync_dir(partial).map_err(RelayoutError::io(partial, "sync"))?;

    let differs = |what| RelayoutError::Differs { dir: partial.to_path_buf(), what };
    progress.enter(Stage::Compare, anew.bytes);
    let target = Target { dir: partial.to_path_buf(), ..job.from.clone() };
    let new = Content::open(disk, &target).map_err(|error| differs(error.to_string()))?;
    // Damage of the old directory was found before: this is of what was written.
    let compared = old.difference(&tallies, &new, progress);
    let compared = compared.map_err(|error| match error {
        RelayoutError::Damaged(error) => differs(error.to_string()),
        other => other,
    });
    if let Some(what) = compared? {
        return Err(differs(what));
    }
    let logs = (old.opened.qlog.stats().logs, new.opened.qlog.stats().logs);
    // The doctor has one of its own.
    drop(new);
    let doctor = verdict(disk, &target, progress)?;
    Ok((tallies, dead_bytes, logs, doctor))
}

/// Whether the old directory has the file that a node locks. Where it has one, the caller holds it.
struct Lock<'d> {
    disk: &'d dyn Disk,
    dir: &'d Path,
    was_there: bool,
}

impl<'d> Lock<'d> {
    fn look(disk: &'d dyn Disk, dir: &'d Path) -> Result<Self, RelayoutError> {
        let was_there = Self::is_there(disk, dir)?;
        Ok(Self { disk, dir, was_there })
    }

    fn is_there(disk: &dyn Disk, dir: &Path) -> Result<bool, RelayoutError> {
        let path = dir.join("queen.lock");
        disk.exists(&path).map_err(RelayoutError::io(&path, "look for"))
    }

    /// Fails when it is there now and was not: a node has been at work.
    fn check(&self) -> Result<(), RelayoutError> {
        if self.was_there || !Self::is_there(self.disk, self.dir)? {
            return Ok(());
        }
        Err(RelayoutError::Started { dir: self.dir.to_path_buf() })
    }
}

fn refused(dir: &Path, source: StartError) -> RelayoutError {
    RelayoutError::Refused { dir: dir.to_path_buf(), source: Box::new(source) }
}

/// Something without a mark is there: it is the result of this job, or it stays as it is.
fn adopt(
    disk: &Arc<dyn Disk>,
    (old, layout): (&Content, Layout),
    place: &Place<'_>,
    dir: &Path,
    job: &Job,
    progress: &Progress,
) -> Result<Report, RelayoutError> {
    let taken = |what: String| RelayoutError::Taken { dir: dir.to_path_buf(), what };
    let target = Target { dir: dir.to_path_buf(), ..job.from.clone() };
    let new = Content::open(disk, &target);
    let new = new.map_err(|error| taken(format!("is no data directory that starts ({error})")))?;
    if new.layout() != layout {
        return Err(taken("holds another layout than is asked for".to_owned()));
    }
    if new.opened.fresh {
        return Err(taken("has no store".to_owned()));
    }
    progress.enter(Stage::Copy, old.opened.qlog.stats().bytes);
    let (tallies, dead_bytes) = old.tally(progress, &mut |_| Ok(()))?;
    check_whole(old, &tallies, job)?;
    progress.enter(Stage::Compare, new.opened.qlog.stats().bytes);
    let compared = old.difference(&tallies, &new, progress);
    let compared = compared.map_err(|error| match error {
        RelayoutError::Damaged(error) => taken(format!("is damaged: {error}")),
        other => other,
    });
    if let Some(what) = compared? {
        return Err(taken(format!("does not hold what {} does: {what}", job.from.dir.display())));
    }
    let doctor = verdict(disk, &target, progress)?;
    place.adopt(dir)?;
    let logs = (old.opened.qlog.stats().logs, new.opened.qlog.stats().logs);
    Ok(report(Outcome::WasThere, (old, layout), (&tallies, dead_bytes), logs, doctor))
}

/// What the doctor says of a directory that must be without a fault.
fn verdict(
    disk: &Arc<dyn Disk>,
    target: &Target,
    progress: &Progress,
) -> Result<queen_doctor::Report, RelayoutError> {
    let dir = &target.dir;
    progress.enter(Stage::Examine, 0);
    let report = examine(disk, target, progress.doctor());
    let mut report = report.map_err(RelayoutError::io(dir, "examine"))?;
    let mark = dir.join(MARK);
    report.findings.retain(|finding| finding.file != mark);
    if report.starts() && report.is_clean() {
        return Ok(report);
    }
    let worst = report.findings.iter().min_by_key(|finding| finding.severity);
    let what = worst.map_or_else(String::new, |finding| {
        let byte = finding.offset.map(|at| format!(" at byte {at}")).unwrap_or_default();
        format!("the doctor says of {}{byte}: {}", finding.file.display(), finding.what)
    });
    Err(RelayoutError::Differs { dir: dir.clone(), what })
}

fn check_whole(old: &Content, tallies: &Tallies, job: &Job) -> Result<(), RelayoutError> {
    match old.lacks(tallies) {
        None => Ok(()),
        Some((log, what)) => {
            let dir = job.from.dir.join("qlog").join(format!("q{log}"));
            Err(RelayoutError::Missing { dir, what })
        }
    }
}

fn check_room(disk: &dyn Disk, old: &Content, job: &Job) -> Result<(), RelayoutError> {
    let around = parent(&job.to);
    let space = disk.space(around).map_err(RelayoutError::io(around, "statvfs"))?;
    let needed = old.live_bytes()? + copy::other_bytes(disk, &job.from.dir)? + SLACK;
    match space {
        Some(space) if space.available < needed => {
            let (dir, available) = (job.to.clone(), space.available);
            Err(RelayoutError::NoRoom { dir, needed, available })
        }
        _ => Ok(()),
    }
}

fn report(
    outcome: Outcome,
    (old, layout): (&Content, Layout),
    (tallies, dead_bytes): (&Tallies, u64),
    logs: (u64, u64),
    doctor: queen_doctor::Report,
) -> Report {
    let opened = &old.opened;
    let sum = |of: fn(&crate::content::Tally) -> u64| tallies.values().map(of).sum::<u64>();
    let digest: Vec<u8> = old.digest().iter().flat_map(|table| table.to_le_bytes()).collect();
    Report {
        outcome,
        layouts: (old.layout(), layout),
        applied: opened.state.applied().0,
        cut_entries: opened.cut.entries,
        queues: opened.state.all_queues().count() as u64,
        partitions: opened.state.partition_count(),
        records: sum(|tally| tally.records),
        messages: sum(|tally| tally.messages),
        bytes: sum(|tally| tally.bytes),
        dead_bytes,
        logs,
        digest: checksum(&digest),
        doctor,
    }
}
