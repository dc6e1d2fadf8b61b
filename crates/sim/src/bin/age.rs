//! `cargo xtask age`: three months of steady traffic in minutes.
//!
//! ```text
//! age [--days N] [--seed S]    exit 1 when disk, memory or content are not as they should be
//! ```
#![expect(clippy::print_stdout, reason = "this program talks to the person who called it")]

use std::process::ExitCode;

use queen_sim::age::{AgeOptions, AgeReport, run, scratch};

const DAYS: u32 = 90;

struct Options {
    days: u32,
    seed: u64,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { days: DAYS, seed: 1 };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let no_number = || format!("{value} is no number");
        match word.as_str() {
            "--days" => options.days = value.parse().map_err(|_| no_number())?,
            "--seed" => options.seed = value.parse().map_err(|_| no_number())?,
            _ => return Err(format!("not understood: {word}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let done = parse(std::env::args().skip(1)).and_then(|options| {
        println!("seed               {}", options.seed);
        let mut is_good = true;
        for (name, shards) in [("a log per queue", None), ("two shared logs", Some(2))] {
            let dir = scratch().map_err(|error| error.to_string())?;
            let dir_path = dir.path().to_owned();
            let one = AgeOptions { dir: dir_path, days: options.days, seed: options.seed, shards };
            let report = run(&one, &mut |day| {
                if day % 10 == 0 {
                    println!("{name}: day {day}");
                }
            })?;
            print(name, options.days, &report);
            is_good &= report.violations.is_empty();
        }
        Ok(is_good)
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            println!("age: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn print(name: &str, days: u32, report: &AgeReport) {
    let kib = |bytes: u64| bytes >> 10;
    let [files, rewrites, logs, sealed] = report.reclaimed;
    let share = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
    println!("{name}, {days} days");
    println!("  pushed           {}", report.pushed);
    println!("  live             {} messages, {} KiB", report.live, kib(report.live_bytes));
    println!("  log files        {} KiB, {} at most", kib(report.log_bytes), report.files_max);
    println!(
        "  disk over live   {} at most, beside two files for each log",
        share(report.share_max)
    );
    println!(
        "  reclaimed        {files} files, {rewrites} rewritten, {logs} logs, {sealed} sealed early"
    );
    println!("  partitions       {}, then {} at most", report.partitions.0, report.partitions.1);
    let (before, most) = report.store_bytes;
    println!("  store            {} KiB, then {} at most", kib(before), kib(most));
    let (before, most) = report.anon_bytes;
    println!("  memory           {} KiB, then {} at most", kib(before), kib(most));
    println!("  restarts         {}, all to the same state", report.restarts);
    println!("  seconds          {:.1}", report.seconds);
    println!("  violations       {}", report.violations.len());
    for violation in &report.violations {
        println!("    {violation}");
    }
}
