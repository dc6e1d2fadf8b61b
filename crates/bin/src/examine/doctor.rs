//! `queen doctor DIR`: the examination as a table or as JSON, with its progress and its exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use queen_doctor::{
    Figures, Finding, Progress, Report, Severity, Stage, StoreKind, Target, Verdict, examine,
};
use queen_io::{Clock, RealDisk, SystemClock};
use queen_record::ids::Micros;
use serde_json::{Value, json};

use super::lock;
use crate::client::failure::Failure;
use crate::client::output::Output;
use crate::client::table::{Column, Table, or_dash};
use crate::config::{Environment, Settings};
use crate::node;
use crate::watch::watched;

/// A node would start, and something was found all the same. 2 says that the arguments are wrong.
const EXIT_FINDINGS: u8 = 3;

/// Exit code 0: a node would start, and nothing was found. 1: a node would refuse to start, or the directory cannot be
/// examined. 3: a node would start, but something is damaged, cut or made again.
///
/// `QUEEN_ENCRYPTION_KEY` is compared with the directory's when it is set.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data directory, as in `QUEEN_RAFT_DIR`. Nothing in it is changed.
    dir: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let target = target(&lock::resolved(&args.dir))?;
    let _lock = lock::take(&target.dir)?;
    node::check_finished(&target.dir).map_err(|error| Failure::said(crate::fatal::text(&error)))?;
    let report = examine_watched(&target).map_err(|error| {
        Failure::said(format!("{} cannot be examined: {error}", args.dir.display()))
    })?;
    match show(&report, &target.dir, args.json) {
        // The verdict stands, whoever has stopped reading.
        Ok(()) | Err(Failure::ReaderGone) => {}
        Err(failure) => return Err(failure),
    }
    Ok(exit_code(&report))
}

/// What is examined, under the settings of a start.
///
/// # Errors
/// The settings are wrong.
pub(crate) fn target(dir: &Path) -> Result<Target, Failure> {
    let said = |error: anyhow::Error| Failure::said(crate::fatal::text(&error));
    let settings = Settings::read(&Environment::of_process()).map_err(said)?;
    Ok(Target {
        dir: dir.to_path_buf(),
        store: StoreKind::Lmdb,
        key: settings.encryption_key().map_err(said)?,
        now: Micros(SystemClock::new().wall_us()),
        hash_window_min_s: i64::try_from(settings.txn_window_min_s).unwrap_or(i64::MAX),
    })
}

/// The verdict as an exit code.
pub(crate) fn exit_code(report: &Report) -> ExitCode {
    match (report.starts(), report.is_clean()) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(EXIT_FINDINGS),
    }
}

fn show(report: &Report, dir: &Path, json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    if json {
        output.json_of(&document(report))?;
    } else {
        print(report, dir, &mut output)?;
    }
    output.flush()
}

/// Examines on another thread and shows on standard error how far it is.
pub(crate) fn examine_watched(target: &Target) -> std::io::Result<Report> {
    let progress = Progress::new();
    let shown = progress.clone();
    watched(
        |elapsed| state_of(&shown, elapsed),
        move || {
            let disk: Arc<dyn queen_io::Disk> = Arc::new(RealDisk);
            examine(&disk, target, &progress)
        },
    )
}

/// How far an examination is, as a line.
pub(crate) fn state_of(progress: &Progress, elapsed: Duration) -> String {
    let (read, total) = (progress.read_bytes() >> 20, progress.total_bytes() >> 20);
    let seconds = elapsed.as_secs();
    match progress.stage() {
        Stage::Start => format!("{seconds} s: starting in memory, {read} MiB read"),
        Stage::Read => format!("{seconds} s: reading everything, {read} of {total} MiB"),
        Stage::Done => format!("{seconds} s: done"),
    }
}

pub(crate) fn print(report: &Report, dir: &Path, output: &mut Output) -> Result<(), Failure> {
    if !report.findings.is_empty() {
        let mut table = Table::new(&[
            Column::Text("FINDING"),
            Column::Text("FILE"),
            Column::Number("BYTE"),
            Column::Text("WHAT"),
        ]);
        for found in &report.findings {
            let file = found.file.strip_prefix(dir).unwrap_or(&found.file).display().to_string();
            let what = without_place(found);
            table.row(&[&found.severity.name(), &file, &or_dash(found.offset), &what]);
        }
        output.table(&table, "")?;
        output.line("")?;
    }
    let Figures { files, bytes, rows, queues, partitions, records, messages, encrypted, entries } =
        report.figures;
    output.line(&format!(
        "read {files} files, {bytes} bytes: {rows} rows of the store, {records} records with {messages} messages \
         ({encrypted} encrypted) and {entries} entries"
    ))?;
    match &report.verdict {
        Verdict::Starts { applied, durable, cut_entries, cut_bytes } => {
            output.line(&format!(
                "a node would start: {queues} queues, {partitions} partitions, entry {applied} is the last, the \
                 checkpoint is of {durable}"
            ))?;
            if *cut_bytes > 0 {
                output.line(&format!(
                    "it would cut {cut_bytes} bytes of {cut_entries} entries that no answer stood for, unless they \
                     were damaged after their answer"
                ))?;
            }
        }
        Verdict::Refuses(_) => output.line("a node would NOT start")?,
    }
    // What a start that refuses would say of the rest helps nobody yet.
    let advised = if report.starts() { Severity::Damage } else { Severity::Refuses };
    if let Some(found) = report.findings.iter().find(|found| found.severity == advised) {
        output.line(&format!("{}: {}", advised.name(), found.advice))?;
    }
    Ok(())
}

/// The text of a finding; a refusal's own text is the FATAL line of the start.
fn without_place(found: &Finding) -> String {
    match found.severity {
        Severity::Refuses => format!("FATAL: {}", found.what),
        _ => found.what.clone(),
    }
}

/// A report as JSON.
pub(crate) fn document(report: &Report) -> Value {
    let finding = |found: &Finding| {
        json!({
            "severity": found.severity.name(),
            "file": found.file.display().to_string(),
            "offset": found.offset,
            "what": found.what,
            "advice": found.advice,
        })
    };
    let figures = report.figures;
    let mut document = json!({
        "starts": report.starts(),
        "clean": report.is_clean(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "figures": {
            "files": figures.files,
            "bytes": figures.bytes,
            "rows": figures.rows,
            "queues": figures.queues,
            "partitions": figures.partitions,
            "records": figures.records,
            "messages": figures.messages,
            "encrypted": figures.encrypted,
            "entries": figures.entries,
        },
    });
    let more = match &report.verdict {
        Verdict::Starts { applied, durable, cut_entries, cut_bytes } => json!({
            "applied": applied,
            "durable": durable,
            "cutEntries": cut_entries,
            "cutBytes": cut_bytes,
        }),
        Verdict::Refuses(text) => json!({ "fatal": text }),
    };
    if let (Some(document), Value::Object(more)) = (document.as_object_mut(), more) {
        document.extend(more);
    }
    document
}
