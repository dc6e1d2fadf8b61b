//! From a directory to a state: load the store, open the logs, replay what is above the checkpoint, cut the rest.

use std::sync::Arc;

use queen_io::Disk;
use queen_qlog::{DurablePoint, Qlog};
use queen_raft::replay;
use queen_state::State;
use queen_store::Checkpoint;

use crate::node::{NodeOptions, Opened, StartError, no_point};

/// Opens a directory.
///
/// # Errors
/// Every refusal of store, logs and replay.
pub(crate) fn open(
    disk: &Arc<dyn Disk>,
    options: &NodeOptions,
    store: &mut dyn Checkpoint,
) -> Result<Opened, StartError> {
    let foreign = options.dir.join("raft").join("state.json");
    if disk.exists(&foreign).map_err(|error| directory(&foreign, &error))? {
        return Err(StartError::Directory(format!(
            "{} exists: this directory was written by the openraft replicator, not by the local one",
            foreign.display()
        )));
    }
    let mut state = State::new();
    let loaded = store.load(&mut |keyspace, key, value| {
        state.load_row(keyspace, key, value).map_err(|error| error.to_string())
    })?;
    let point = match state.logs_point() {
        [] => no_point(),
        bytes => DurablePoint::decode(bytes).map_err(|error| {
            StartError::Directory(format!(
                "the store's record of the logs does not decode: {error}"
            ))
        })?,
    };
    if point.index != state.applied() {
        return Err(StartError::Directory(format!(
            "the store is at entry {}, its record of the logs at {}",
            state.applied(),
            point.index
        )));
    }
    tracing::info!(rows = loaded.rows, applied = state.applied().0, "store loaded");
    let (qlog, recovery) = Qlog::open(disk.clone(), options.qlog.clone(), &point)?;
    let cut = replay(recovery, &mut |index, term, entry| {
        state.apply(index, term, entry).map_err(|error| error.to_string())
    })?;
    if cut.bytes > 0 {
        tracing::warn!(
            entries = cut.entries,
            bytes = cut.bytes,
            "cut an unfinished group from the logs"
        );
    }
    tracing::info!(replayed = cut.delivered, last = cut.last.0, "logs recovered");
    Ok(Opened { state, qlog, durable: point.index })
}

fn directory(path: &std::path::Path, error: &std::io::Error) -> StartError {
    StartError::Directory(format!("{}: {error}", path.display()))
}
