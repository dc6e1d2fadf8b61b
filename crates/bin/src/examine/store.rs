//! `queen store dump DIR`: the rows of the last checkpoint, after all of it was verified.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use queen_doctor::describe_row;
use queen_io::{Disk, RealDisk};
use queen_state::Keyspace;
use queen_store::{Checkpoint, ImageStore, StoreError};

use super::lines::{line, object};
use super::lock;
use crate::client::failure::Failure;
use crate::client::output::Output;

/// Exit code 0: everything is verified. 1: it is not, or cannot be read; no row is printed then.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data directory.
    dir: PathBuf,
    /// Print one JSON document per row.
    #[arg(long)]
    json: bool,
    /// Only the rows of this table: meta, queues, groups, partitions, cursors or dlq.
    #[arg(long, value_name = "NAME", value_parser = keyspace)]
    keyspace: Option<Keyspace>,
    /// Print so many rows of each table; all of them are counted.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

fn keyspace(name: &str) -> Result<Keyspace, String> {
    let found = Keyspace::ALL.into_iter().find(|known| known.name() == name);
    found.ok_or_else(|| {
        let names = Keyspace::ALL.map(Keyspace::name).join(", ");
        format!("there is no such table; there are {names}")
    })
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let _lock = lock::take(&args.dir)?;
    let path = args.dir.join("store").join("data.mdb");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut store = ImageStore::of_file(disk, &path);
    let failed = |error: StoreError| Failure::said(error.to_string());
    // Rows are handed out before the end of the file was seen; so it is seen first.
    let loaded = store.load(&mut |_, _, _| Ok(())).map_err(failed)?;
    if loaded.fresh {
        return Err(Failure::said(format!("there is no {}", path.display())));
    }
    let mut output = Output::new();
    let mut counts = [0u64; Keyspace::ALL.len()];
    let mut written = Ok(());
    let limit = args.limit.unwrap_or(u64::MAX);
    let again = store.load(&mut |keyspace, key, row| {
        let place = Keyspace::ALL.iter().position(|known| *known == keyspace);
        let Some(count) = place.and_then(|place| counts.get_mut(place)) else { return Ok(()) };
        *count += 1;
        let is_wanted = args.keyspace.is_none_or(|wanted| wanted == keyspace) && *count <= limit;
        if !is_wanted || written.is_err() {
            return Ok(());
        }
        let described = describe_row(keyspace, key, row).map_err(|error| error.to_string())?;
        written = if args.json {
            output.json_of(&object(&described))
        } else {
            output.line(&line(&described))
        };
        Ok(())
    });
    again.map_err(failed)?;
    written?;
    if !args.json {
        let counts = Keyspace::ALL.iter().zip(counts);
        let counts: Vec<String> =
            counts.map(|(keyspace, count)| format!("{} {count}", keyspace.name())).collect();
        output.line(&format!("rows: {}", counts.join(", ")))?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}
