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
/// What a member of a cluster keeps beside its log.
const MEMBER: [&str; 5] =
    ["state.json", "committed.json", "membership.json", "seen.json", "force_recovered.json"];

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
    no_data(&**disk, target, &mut findings)?;
    needed(&**disk, target, &mut findings)?;
    progress.set_total(figures.bytes);

    progress.enter(Stage::Start);
    let disk = &match staged(disk, target, &mut findings)? {
        Ok(disk) => disk,
        Err(refused) => {
            let verdict = Verdict::Refuses(refused);
            return Ok(Report { verdict, findings: findings.sorted(), figures });
        }
    };
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

/// The directory as a start looks at it: with the snapshot of another member in place, when one waits. Else the text of the
/// refusal.
fn staged(
    disk: &Arc<dyn Disk>,
    target: &Target,
    findings: &mut Findings,
) -> io::Result<Result<Arc<dyn Disk>, String>> {
    let mut waits = None;
    for name in queen_raft::STAGED {
        let path = target.dir.join(name);
        if disk.exists(&path)? {
            waits = Some(path);
        }
    }
    let Some(marker) = waits else { return Ok(Ok(disk.clone())) };
    let over: Arc<dyn Disk> = Arc::new(ScratchDisk::new(disk.clone(), &target.dir));
    // Whose the directory is plays no part in what is examined.
    match queen_raft::load_staged(&over, &target.dir, 0) {
        Ok(loaded) => {
            let index = loaded.map_or(0, |index| index.0);
            let what = format!(
                "a snapshot of entry {index} waits: a start loads it first; this is about the directory with it in place"
            );
            findings.add(Severity::Note, &marker, None, what);
            Ok(Ok(over))
        }
        Err(error) => {
            findings.add(Severity::Refuses, &marker, None, error.to_string());
            Ok(Err(error.to_string()))
        }
    }
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

/// Notes a directory in which no node has ever been: a start would make a new one.
fn no_data(disk: &dyn Disk, target: &Target, findings: &mut Findings) -> io::Result<()> {
    let dir = &target.dir;
    if disk.exists(&target.qlog_dir())? || disk.exists(&target.store_dir())? {
        return Ok(());
    }
    let mut what = "no node's data is in this directory: a start would begin anew".to_owned();
    for entry in disk.list(dir)? {
        if entry.is_dir && disk.exists(&dir.join(&entry.name).join("qlog"))? {
            what =
                format!("{what}; {} looks like a data directory", dir.join(&entry.name).display());
            break;
        }
    }
    findings.add(Severity::Note, dir, None, what);
    Ok(())
}

/// Notes what a start must be told that is not looked at here.
fn needed(disk: &dyn Disk, target: &Target, findings: &mut Findings) -> io::Result<()> {
    let mark = target.dir.join("ENCRYPTION");
    if target.key.is_none() && disk.exists(&mark)? {
        let what = "payloads are encrypted: a start needs QUEEN_ENCRYPTION_KEY, which is not set here and was not compared";
        findings.add(Severity::Note, &mark, None, what);
    }
    let state = target.dir.join(queen_raft::DIR).join(queen_raft::STATE);
    if disk.exists(&state)? {
        let what =
            "the directory of a cluster's member: a start needs QUEEN_RAFT_REPLICATOR=openraft";
        findings.add(Severity::Note, &state, None, what);
    }
    Ok(())
}

/// Notes a file that no build of this program makes.
fn unknown(dir: &Path, file: &Path, findings: &mut Findings) {
    let inside = file.strip_prefix(dir).unwrap_or(file);
    let parts: Vec<_> = inside.iter().filter_map(|part| part.to_str()).collect();
    let is_known = match *parts {
        [name] => {
            let name = name.strip_suffix(".tmp").unwrap_or(name);
            TOP.contains(&name) || queen_raft::STAGED.contains(&name)
        }
        ["store", name] => ["data.mdb", "lock.mdb", "image", "image.tmp"].contains(&name),
        [STAGING, _] => {
            let what = "a backup was being taken; a start removes it";
            findings.add(Severity::Note, file, None, what);
            true
        }
        ["store", "new", _] => true,
        ["raft", name] => MEMBER.contains(&name.strip_suffix(".tmp").unwrap_or(name)),
        ["snapshots", ..] => {
            let what = "of a snapshot of another member; a start loads it or removes it";
            findings.add_once(Severity::Note, &dir.join("snapshots"), None, what);
            true
        }
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
