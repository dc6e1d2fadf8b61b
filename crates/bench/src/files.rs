//! The files of a data directory: their sizes, out of the page cache, and what reading them costs.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

/// Every file below a directory.
fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Bytes of all files below a directory; one that goes meanwhile counts as none.
pub(crate) fn bytes(dir: &Path) -> anyhow::Result<u64> {
    Ok(files(dir)?.iter().filter_map(|file| fs::metadata(file).ok()).map(|file| file.len()).sum())
}

/// Bytes that all files below a directory take on the disk, those named `except` left out; one that goes meanwhile counts as
/// none.
pub(crate) fn allocated(dir: &Path, except: &str) -> anyhow::Result<u64> {
    const BLOCK: u64 = 512;
    let mut sum = 0;
    // A directory may go as well while it is read.
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry?;
        let Ok(found) = entry.metadata() else { continue };
        if found.is_dir() {
            sum += allocated(&entry.path(), except)?;
        } else if entry.file_name() != except {
            sum += found.blocks() * BLOCK;
        }
    }
    Ok(sum)
}

/// Drops all files below a directory from the page cache. Only what is synced goes; a server that holds them mapped keeps
/// its part.
pub(crate) fn evict(dir: &Path) -> anyhow::Result<()> {
    for path in files(dir)? {
        let file = File::open(path)?;
        file.sync_data()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Seconds that reading all files below a directory takes, from a cold page cache, which is left cold.
pub(crate) fn read_seconds(dir: &Path) -> anyhow::Result<f64> {
    evict(dir)?;
    let started = Instant::now();
    let mut buffer = vec![0; 1 << 20];
    for path in files(dir)? {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
    }
    let took = started.elapsed().as_secs_f64();
    evict(dir)?;
    Ok(took)
}
