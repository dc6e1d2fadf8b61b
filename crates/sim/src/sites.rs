//! Sync sites left out, one at a time: a test of the tests. Each must be missed by some image.

use std::path::Path;
use std::sync::Arc;

use queen_io::SimDisk;
use queen_io::sim::Choice;
use queen_state::Keyspace;
use queen_store::{Change, Checkpoint, DiskStore};

use crate::crash::{Depth, Exploration, drop_sites};
use crate::faults;
use crate::node::{DATA, new_disk};
use crate::variant::{VARIANTS, Variant};

/// Nothing but the images themselves.
const SHALLOW: Depth =
    Depth { look: 1, slice: (0, 1), reopen: 1 << 60, recovery: 1 << 60, second: 1 << 60 };

/// What came of leaving one site out.
pub struct Verdict {
    /// Disks opened until then.
    pub looked: u64,
    /// What was wrong with the last one.
    pub violation: Option<String>,
}

/// Every site that syncs in any variant, in recovery or in the work after it, sorted.
///
/// # Errors
/// What an uncrashed run got wrong.
pub fn all(seed: u64) -> Result<Vec<String>, String> {
    let mut sites = Vec::new();
    let sparse = Depth { look: 60, second: 400, ..SHALLOW };
    for variant in VARIANTS {
        let explored = exploration(variant, seed, &[], sparse).explore();
        if let Some(line) = explored.violations.first() {
            return Err(format!("without leaving anything out: {line}"));
        }
        sites.extend(explored.sites);
    }
    sites.sort();
    sites.dedup();
    Ok(sites)
}

/// Explores without the site until something is wrong.
pub fn catch(site: &str, seed: u64) -> Verdict {
    let dropped = [site.to_owned()];
    if let Err(reason) = store_alone(&dropped) {
        return Verdict { looked: 1, violation: Some(format!("the store alone: {reason}")) };
    }
    let mut looked = 1;
    // What the first start does wrong shows in the images themselves; what a recovery leaves out shows after it.
    let images = Depth { look: 16, ..SHALLOW };
    let work = Depth { look: 64, second: 8, ..SHALLOW };
    let all = Depth { look: 8, recovery: 8, second: 2, ..SHALLOW };
    let steps = [("shards", Some(images)), ("shards", None), ("grouped-bare", Some(images))]
        .into_iter()
        .chain(["shards", "grouped-bare", "plain"].map(|name| (name, Some(work))))
        .chain(VARIANTS.map(|variant| (variant.name, Some(all))));
    for (name, depth) in steps {
        let Some(variant) = Variant::named(name) else { continue };
        let explored = match depth {
            Some(depth) => exploration(variant, seed, &dropped, depth).explore(),
            None => faults::explore(variant, seed, &dropped, (0, 8), 1),
        };
        looked += explored.opened;
        if let Some(line) = explored.violations.into_iter().next() {
            return Verdict { looked, violation: Some(line) };
        }
    }
    Verdict { looked, violation: None }
}

/// A node syncs the directory above its store once more when it opens its logs, so only a store by itself shows
/// whether it does so too.
fn store_alone(dropped: &[String]) -> Result<(), String> {
    let open = |disk: &SimDisk| {
        drop_sites(disk, dropped);
        let path = Path::new(DATA).join("store");
        DiskStore::open(Arc::new(disk.clone()), &path).map_err(|error| error.to_string())
    };
    let disk = new_disk();
    let mut store = open(&disk)?;
    store.load(&mut |_, _, _| Ok(())).map_err(|error| error.to_string())?;
    let (keyspace, key, value) = (Keyspace::Meta, b"k".to_vec(), Some(b"v".to_vec()));
    let mut changes = std::iter::once(Change { keyspace, key, value });
    store.write(&mut changes).map_err(|error| error.to_string())?;
    let mut left = open(&disk.crash_now(&Choice::AllLost))?;
    let loaded = left.load(&mut |_, _, _| Ok(())).map_err(|error| error.to_string())?;
    if loaded.rows == 1 { Ok(()) } else { Err("a reported write is gone".to_owned()) }
}

fn exploration(variant: Variant, seed: u64, dropped: &[String], depth: Depth) -> Exploration<'_> {
    Exploration { variant, seed, depth, dropped, repeating: false, violations_max: 1 }
}
