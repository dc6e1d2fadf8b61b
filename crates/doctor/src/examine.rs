//! One examination: the start, what it changed, and the reading of everything.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_broker::backup::STAGING;
use queen_broker::recover::Opened;
use queen_io::{Disk, ScratchDisk};
use queen_qlog::walk::{is_leftover, log_of_name, number_of_name, number_of_side};
use queen_state::Keyspace;
use queen_store::{Checkpoint, DiskStore, ImageStore};

use crate::changes;
use crate::logs::Reading;
use crate::progress::{Progress, Stage};
use crate::report::{Figures, Findings, Report, Severity, Verdict};
use crate::start::{self, StoreKind, Target};

/// Files directly in the data directory that belong there.
const TOP: [&str; 3] = ["queen.lock", "ballast", "ENCRYPTION"];
/// Of a member that was sent a snapshot.
const MARKERS: [&str; 2] = ["snapshot.pending", "snapshot.swapping"];
/// What a member of a cluster keeps beside its log.
const MEMBER: [&str; 3] = ["state.json", "membership.json", "committed.json"];

/// Examines a directory. `disk` is only listed and opened for reading.
///
/// # Errors
/// When the directory cannot be listed or read; what is wrong inside of it is in the report.
pub fn examine(disk: &Arc<dyn Disk>, target: &Target, progress: &Progress) -> io::Result<Report> {
    let mut figures = Figures::default();
    let mut findings = Findings::default();
    let files = all_files(&**disk, &target.dir)?;
    figures.files = files.len() as u64;
    for file in &files {
        // What cannot be opened is reported by whoever needs it.
        let len = disk.open(file, queen_io::OpenMode::Read).and_then(|file| file.len());
        figures.bytes += len.unwrap_or(0);
        unknown(&target.dir, file, &mut findings);
    }
    progress.set_total(figures.bytes);

    progress.enter(Stage::Start);
    let scratch = ScratchDisk::new(disk.clone(), &target.dir).counting(progress.counter());
    let over: Arc<dyn Disk> = Arc::new(scratch.clone());
    let started = start::start(&over, target);
    let (verdict, opened) = match started {
        Ok(opened) => {
            changes::findings(&**disk, &opened, &scratch.changes()?, &mut findings)?;
            (served(&opened, target, &mut findings, &mut figures), Some(opened))
        }
        Err(error) => {
            let (file, offset) = start::place(&error).unwrap_or((&target.dir, None));
            let text = error.to_string();
            findings.add(Severity::Refuses, file, offset, &text);
            (Verdict::Refuses(text), None)
        }
    };

    progress.enter(Stage::Read);
    let counted = ScratchDisk::new(disk.clone(), &target.dir).counting(progress.counter());
    let reading = Reading::new(&counted, opened.as_ref(), &mut findings, &mut figures);
    reading.all(&target.qlog_dir())?;
    let mark = target.dir.join("ENCRYPTION");
    if figures.encrypted > 0 && !disk.exists(&mark)? {
        let what = format!(
            "is gone, but {} messages are encrypted: no start can tell a wrong key; one with the right key writes it again",
            figures.encrypted
        );
        findings.add(Severity::Damage, &mark, None, what);
    }
    if opened.is_none() {
        store(&counted, target, &mut findings, &mut figures);
    }
    progress.enter(Stage::Done);
    Ok(Report { verdict, findings: findings.sorted(), figures })
}

/// The verdict of a start that serves, and what it says of the whole directory.
fn served(
    opened: &Opened,
    target: &Target,
    findings: &mut Findings,
    figures: &mut Figures,
) -> Verdict {
    let state = &opened.state;
    let stats = opened.qlog.stats();
    figures.rows = opened.rows;
    figures.queues = state.all_queues().count() as u64;
    figures.partitions = state.partition_count();
    if opened.fresh && stats.files > 0 {
        let what = format!(
            "there is no checkpoint: a start applies all {} entries again; nothing says whether the logs end where they did",
            opened.cut.delivered
        );
        findings.add(Severity::Repaired, &target.store_dir(), None, what);
    }
    Verdict::Starts {
        applied: state.applied().0,
        durable: opened.durable.0,
        cut_entries: opened.cut.entries,
        cut_bytes: opened.cut.bytes,
    }
}

/// Verifies the store of a directory that a start refuses, unless it was the store that was refused.
fn store(disk: &ScratchDisk, target: &Target, findings: &mut Findings, figures: &mut Figures) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let dir = target.store_dir();
    let opened: Result<Box<dyn Checkpoint>, _> = match target.store {
        StoreKind::Lmdb => ImageStore::open(disk, &dir).map(|store| Box::new(store) as _),
        StoreKind::Plain => DiskStore::open(disk, &dir).map(|store| Box::new(store) as _),
    };
    let mut take = |_: Keyspace, _: &[u8], _: &[u8]| Ok(());
    let loaded = opened.and_then(|mut store| store.load(&mut take));
    match loaded {
        Ok(loaded) => figures.rows = loaded.rows,
        Err(error) => {
            let (path, text) = (error.path().unwrap_or(&dir), error.to_string());
            findings.add_once(Severity::Refuses, path, None, &text);
        }
    }
}

/// Every file below a directory, by path.
fn all_files(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in disk.list(dir)? {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            files.extend(all_files(disk, &path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// Notes a file that no build of this program makes.
fn unknown(dir: &Path, file: &Path, findings: &mut Findings) {
    let inside = file.strip_prefix(dir).unwrap_or(file);
    let parts: Vec<_> = inside.iter().filter_map(|part| part.to_str()).collect();
    let is_known = match *parts {
        [name] => TOP.contains(&name) || name == "ENCRYPTION.tmp" || MARKERS.contains(&name),
        ["snapshots", ..] => {
            let what = "a snapshot was being sent to this member; a start loads it or removes it";
            findings.add(Severity::Note, file, None, what);
            true
        }
        ["raft", name] => MEMBER.contains(&name.strip_suffix(".tmp").unwrap_or(name)),
        ["store", name] => ["data.mdb", "lock.mdb", "image", "image.tmp"].contains(&name),
        [STAGING, _] => {
            let what = "a backup was being taken; a start removes it";
            findings.add(Severity::Note, file, None, what);
            true
        }
        ["store", "new", _] => true,
        ["qlog", name] => {
            ["LANES", "SHARDS", "RECLAIMED", "FILES"].contains(&name) || is_leftover(name)
        }
        ["qlog", log, name] if log_of_name(log).is_some() => {
            number_of_name(name).is_some() || number_of_side(name).is_some() || is_leftover(name)
        }
        ["qlog", log, _] => is_leftover(log),
        _ => false,
    };
    if !is_known {
        findings.add(
            Severity::Note,
            file,
            None,
            "not a file of this program; a start leaves it alone",
        );
    }
}
