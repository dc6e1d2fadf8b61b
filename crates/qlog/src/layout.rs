//! `LANES` and `SHARDS` on disk.
//!
//! Both are durable before the first log directory is made, so a file that is missing beside logs was removed.

use std::path::Path;

use queen_io::{Disk, OpenMode};
use queen_record::ids::LogId;
use queen_record::layout::{Layout, Shards, parse, render};

use crate::durable::DurablePoint;
use crate::error::{Fault, OpenError};
use crate::inventory;
use crate::names::log_dir;
use crate::options::Options;
use crate::scan::read_whole;

pub(crate) const LANES: &str = "LANES";
pub(crate) const SHARDS: &str = "SHARDS";

/// The directory's layout; written from `options` when the directory is new.
pub(crate) fn open(
    disk: &dyn Disk,
    options: &Options,
    durable: &DurablePoint,
    logs: &[LogId],
) -> Result<Layout, OpenError> {
    let dir = &options.dir;
    let lanes = read(disk, dir, LANES)?;
    let shards = read(disk, dir, SHARDS)?;
    if logs.is_empty() && durable.layout.is_none() {
        return create(disk, options, lanes, shards);
    }
    let lanes_path = dir.join(LANES);
    let shards_path = dir.join(SHARDS);
    let found_lanes = match (lanes, durable.layout) {
        (Some(lanes), _) => lanes,
        (None, Some(_)) => return Err(OpenError::LayoutMissing { file: lanes_path }),
        (None, None) if inventory::is_there(disk, dir)? => {
            return Err(OpenError::LayoutMissing { file: lanes_path });
        }
        // Directories of early builds have logs and neither this file nor that record.
        (None, None) => {
            write(disk, dir, LANES, 1)?;
            1
        }
    };
    let found_shards = shards.unwrap_or(0);
    if let Some((recorded_lanes, recorded_shards)) = durable.layout {
        if shards.is_none() && recorded_shards > 0 {
            return Err(OpenError::LayoutMissing { file: shards_path });
        }
        for (file, found, recorded) in [
            (&lanes_path, found_lanes, recorded_lanes),
            (&shards_path, found_shards, recorded_shards),
        ] {
            if found != recorded {
                return Err(OpenError::LayoutChanged { file: file.clone(), found, recorded });
            }
        }
    }
    let layout = Shards::from_number(found_shards)
        .ok_or(OpenError::LayoutUnreadable { file: shards_path.clone() })
        .and_then(|shards| {
            Layout::new(found_lanes, shards)
                .ok_or(OpenError::LayoutUnreadable { file: lanes_path.clone() })
        })?;
    match logs.iter().find(|log| !layout.fits(**log)) {
        None => Ok(layout),
        Some(_) if shards.is_none() => Err(OpenError::LayoutMissing { file: shards_path }),
        Some(log) => Err(OpenError::LogForeign { dir: log_dir(dir, *log) }),
    }
}

/// A new directory: what a crash left half written is written again.
fn create(
    disk: &dyn Disk,
    options: &Options,
    lanes: Option<u32>,
    shards: Option<u32>,
) -> Result<Layout, OpenError> {
    let dir = &options.dir;
    // LANES is written last, so its presence means that both files are as they should be.
    let (found_lanes, found_shards) = match lanes {
        Some(lanes) => (lanes, shards.unwrap_or(0)),
        None => (options.lanes, options.shards.number()),
    };
    let layout = Shards::from_number(found_shards)
        .and_then(|shards| Layout::new(found_lanes, shards))
        .ok_or_else(|| OpenError::LayoutUnreadable { file: dir.join(LANES) })?;
    if lanes.is_none() {
        if found_shards > 0 {
            write(disk, dir, SHARDS, found_shards)?;
        } else if shards.is_some() {
            let path = dir.join(SHARDS);
            disk.remove_file(&path).map_err(Fault::io(&path, "remove"))?;
            disk.sync_dir(dir).map_err(Fault::io(dir, "sync"))?;
        }
        write(disk, dir, LANES, found_lanes)?;
    } else {
        // The process before may have ended between the rename and its sync.
        disk.sync_dir(dir).map_err(Fault::io(dir, "sync"))?;
    }
    Ok(layout)
}

/// Writes the files of a layout into a directory that has none.
pub(crate) fn write_new(disk: &dyn Disk, dir: &Path, layout: Layout) -> Result<(), Fault> {
    let shards = layout.shards().number();
    if shards > 0 {
        write(disk, dir, SHARDS, shards)?;
    }
    write(disk, dir, LANES, layout.lanes())
}

fn read(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Option<u32>, OpenError> {
    let path = dir.join(name);
    if !disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
        return Ok(None);
    }
    let file = disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
    let len = file.len().map_err(Fault::io(&path, "read"))?;
    if len > 16 {
        return Err(OpenError::LayoutUnreadable { file: path });
    }
    let bytes = read_whole(&*file).map_err(Fault::io(&path, "read"))?;
    let number = parse(&bytes).ok_or(OpenError::LayoutUnreadable { file: path })?;
    Ok(Some(number))
}

fn write(disk: &dyn Disk, dir: &Path, name: &str, number: u32) -> Result<(), Fault> {
    let path = dir.join(name);
    let tmp = dir.join(format!("{name}.tmp"));
    let file = disk.open(&tmp, OpenMode::Truncate).map_err(Fault::io(&tmp, "create"))?;
    file.write_all_at(render(number).as_bytes(), 0).map_err(Fault::io(&tmp, "write"))?;
    file.sync_data().map_err(Fault::io(&tmp, "sync"))?;
    disk.rename(&tmp, &path).map_err(Fault::io(&path, "rename to"))?;
    disk.sync_dir(dir).map_err(Fault::io(dir, "sync"))
}
