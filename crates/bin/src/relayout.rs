//! `queen relayout`: a data directory made of another one, with its queues spread over another number of logs.
//!
//! The work is in `queen_relayout`; here are the locks, the names, and what is printed.

use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use queen_io::{Disk, RealDisk};
use queen_record::layout::{LANES_MAX, Layout, SHARDS_MAX, Shards};
use queen_relayout::{Job, Outcome, Progress, Report, Stage, relayout};
use queen_store::{Checkpoint, LmdbOptions, LmdbStore, StoreError};
use serde_json::{Value, json};

use crate::client::backup::{beside, open, said};
use crate::client::failure::Failure;
use crate::client::output::Output;
use crate::client::{counted, ended};
use crate::config::{Environment, Settings};
use crate::examine::{doctor, lock};
use crate::watch::watched;

/// What is made of what.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen relayout --from /var/lib/queen/raft --to /var/lib/queen/raft.new --shards 4
  queen relayout --from ./data --to ./data.new --shards 0 --lanes 2

The node must be stopped. DIR is only read; NEWDIR grows as NEWDIR.partial beside its name, on a volume with room for
everything that is live, and gets its name when all of it is durable, was read again and compared. Then the commands that
switch are printed. Whatever interrupts it, the same command again begins anew or finishes. Set QUEEN_ENCRYPTION_KEY as for
a start, where payloads are encrypted.

With shared logs an entry over many queues is synced in few files; with a log per queue, space comes back queue by queue.
QUEEN_QLOG_SHARDS chooses only for a directory that a start makes.

Exit code 0: NEWDIR is there, and was compared with DIR. 1: it is not, and a line says why. 2: the arguments are wrong.")]
pub(crate) struct Args {
    /// The data directory. Nothing in it is changed.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The new directory: missing, or empty.
    #[arg(long, value_name = "NEWDIR")]
    to: PathBuf,
    /// How many logs all queues share; 0 gives every queue its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(SHARDS_MAX)))]
    shards: u32,
    /// Logs of one queue, where queues do not share them; as many as before without this.
    #[arg(long, value_name = "N", value_parser = lanes)]
    lanes: Option<NonZeroU32>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

fn lanes(text: &str) -> Result<NonZeroU32, String> {
    let number = text.parse::<NonZeroU32>().ok().filter(|number| number.get() <= LANES_MAX);
    number.ok_or_else(|| format!("1 to {LANES_MAX}"))
}

/// Does it.
pub(crate) fn run(args: &Args) -> ExitCode {
    ended(make(args))
}

fn make(args: &Args) -> Result<ExitCode, Failure> {
    let settings = Settings::read(&Environment::of_process());
    let settings = settings.map_err(|error| Failure::said(crate::fatal::text(&error)))?;
    let from = doctor::target(&lock::resolved(&args.from))?;
    let _old = lock::take(&from.dir)?;
    if !from.qlog_dir().is_dir() && !from.store_dir().is_dir() {
        let dir = args.from.display();
        return Err(Failure::said(format!(
            "{dir} holds no node's data: name the directory that has `qlog` and `store` in it"
        )));
    }
    let partial = beside(&args.to, "partial")?;
    let to = partial.with_file_name(args.to.file_name().unwrap_or_default());
    check_apart(&args.from, &to)?;
    let _new = if to.is_dir() { lock::take(&to)? } else { None };
    let job = Job {
        from,
        to: to.clone(),
        shards: Shards::from_number(args.shards).unwrap_or(Shards::None),
        lanes: args.lanes.map(NonZeroU32::get),
        segment_bytes: settings.segment_bytes,
    };
    let done = {
        let _growing = take(&partial)?;
        let done = relayout_watched(&job);
        remove_if_empty(&partial)?;
        done
    };
    let report = done.map_err(|error| Failure::said(error.to_string()))?;
    match show(&report, &to, args) {
        // The directory is there, whoever has stopped reading.
        Ok(()) | Err(Failure::ReaderGone) => Ok(ExitCode::SUCCESS),
        Err(failure) => Err(failure),
    }
}

/// The new directory must not lie in the old one, which stays as it is.
fn check_apart(from: &Path, to: &Path) -> Result<(), Failure> {
    let old = from.canonicalize().map_err(said(from, "cannot be looked at"))?;
    let around = to.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let around = around.canonicalize().map_err(said(around, "cannot be looked at"))?;
    if around.join(to.file_name().unwrap_or_default()).starts_with(&old) {
        let (to, from) = (to.display(), from.display());
        return Err(Failure::said(format!(
            "{to} lies in {from}, which stays as it is: name another"
        )));
    }
    Ok(())
}

/// Takes the growing directory for this process.
fn take(partial: &Path) -> Result<File, Failure> {
    RealDisk.create_dir(partial).map_err(said(partial, "cannot be made"))?;
    let dir = open(partial)?;
    match dir.try_lock() {
        Ok(()) => Ok(dir),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Failure::said(format!("{} is being made already", partial.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(said(partial, "cannot be locked")(error)),
    }
}

/// What was refused leaves no empty directory behind.
fn remove_if_empty(partial: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir(partial) {
        Ok(()) => Ok(()),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(said(partial, "cannot be removed")(error)),
    }
}

fn relayout_watched(job: &Job) -> Result<Report, queen_relayout::RelayoutError> {
    queen_store::bound_memory();
    let progress = Progress::new();
    let shown = progress.clone();
    watched(
        |elapsed| state_of(&shown, elapsed),
        move || {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk);
            relayout(&disk, &open_store, job, &progress)
        },
    )
}

fn open_store(dir: &Path) -> Result<Box<dyn Checkpoint>, StoreError> {
    let options = LmdbOptions::for_disk(dir.parent().unwrap_or(dir))?;
    Ok(Box::new(LmdbStore::open(dir, options)?))
}

fn state_of(progress: &Progress, elapsed: Duration) -> String {
    let (done, total, seconds) = (progress.done(), progress.total() >> 20, elapsed.as_secs());
    match progress.stage() {
        Stage::Start => format!("{seconds} s: starting in memory"),
        Stage::Copy => format!("{seconds} s: copying, {} of {total} MiB read", done >> 20),
        Stage::Store => format!("{seconds} s: writing the store, {done} rows"),
        Stage::Compare => format!("{seconds} s: comparing, {} of {total} MiB read", done >> 20),
        Stage::Examine => doctor::state_of(progress.doctor(), elapsed),
    }
}

fn show(report: &Report, to: &Path, args: &Args) -> Result<(), Failure> {
    let mut output = Output::new();
    if args.json {
        output.json_of(&document(report, to, &args.from))?;
        return output.flush();
    }
    print(report, to, &args.from, &mut output)?;
    output.flush()
}

fn print(report: &Report, to: &Path, from: &Path, output: &mut Output) -> Result<(), Failure> {
    let (old, new) = report.layouts;
    let (old_logs, new_logs) = report.logs;
    let done = match report.outcome {
        Outcome::Made => "made",
        Outcome::WasThere => "there already",
    };
    output.line(&format!(
        "{} is {done}: {} ({new_logs} in use); {} had {} ({old_logs} in use)",
        to.display(),
        of_layout(new),
        from.display(),
        of_layout(old),
    ))?;
    let Report { queues, partitions, records, messages, bytes, dead_bytes, .. } = *report;
    output.line(&format!(
        "{queues} queues, {partitions} partitions, {messages} messages in {records} records of {bytes} bytes; \
         {dead_bytes} bytes that nobody needs are left out"
    ))?;
    if report.cut_entries > 0 {
        output.line(&format!(
            "left out as a start would cut it: what there was of {} behind entry {}, not complete in every log",
            match report.cut_entries {
                1 => "1 entry".to_owned(),
                count => format!("{count} entries"),
            },
            report.applied
        ))?;
    }
    output.line(&format!(
        "compared: entry {} is the last of both, all rows are equal (digest {:016x}), and so are the records of every \
         partition",
        report.applied, report.digest
    ))?;
    doctor::print(&report.doctor, &report_dir(report, to), output)?;
    output.line("")?;
    let (from_text, to_text) = (quoted(from), quoted(to));
    let kept = quoted(&with_end(from, ".old"));
    output.line(&format!("{} is as it was. To switch, while no node runs:", from.display()))?;
    output.line(&format!("  mv {from_text} {kept}"))?;
    output.line(&format!("  mv {to_text} {from_text}"))?;
    output.line(&format!("and when all is well:\n  rm -r {kept}"))?;
    output.line("Once a node has run on the old directory again, the new one is out of date: make it anew then.")
}

/// Where the directory was when the doctor looked.
fn report_dir(report: &Report, to: &Path) -> PathBuf {
    match report.outcome {
        Outcome::Made => with_end(to, ".partial"),
        Outcome::WasThere => to.to_path_buf(),
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    path.with_file_name(name)
}

fn of_layout(layout: Layout) -> String {
    match (layout.shards(), layout.lanes()) {
        (Shards::Count(count), _) => counted(u64::from(count), "shared log"),
        (Shards::None, 1) => "a log per queue".to_owned(),
        (Shards::None, lanes) => format!("{lanes} logs per queue"),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@%".contains(c);
    if text.chars().all(is_plain) && !text.starts_with('-') {
        return text;
    }
    let mut out = String::from("'");
    for c in text.chars() {
        if c == '\'' { out.push_str("'\\''") } else { out.push(c) }
    }
    out.push('\'');
    out
}

fn document(report: &Report, to: &Path, from: &Path) -> Value {
    let layout =
        |layout: Layout| json!({ "lanes": layout.lanes(), "shards": layout.shards().number() });
    json!({
        "from": from.display().to_string(),
        "to": to.display().to_string(),
        "made": report.outcome == Outcome::Made,
        "oldLayout": layout(report.layouts.0),
        "newLayout": layout(report.layouts.1),
        "oldLogs": report.logs.0,
        "newLogs": report.logs.1,
        "applied": report.applied,
        "cutEntries": report.cut_entries,
        "queues": report.queues,
        "partitions": report.partitions,
        "records": report.records,
        "messages": report.messages,
        "bytes": report.bytes,
        "deadBytes": report.dead_bytes,
        "digest": format!("{:016x}", report.digest),
        "doctor": doctor::document(&report.doctor),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_what_a_shell_takes() {
        for (path, text) in [
            ("/var/lib/queen", "/var/lib/queen"),
            ("/a b", "'/a b'"),
            ("it's", "'it'\\''s'"),
            ("-x", "'-x'"),
        ] {
            assert_eq!(quoted(Path::new(path)), text);
        }
    }
}
