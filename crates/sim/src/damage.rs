//! Damage: a small directory, everything that can be wrong with one or two of its files, and the judge.
//!
//! `make` writes the directory, `kinds` lists the damage, `judge` starts a node on each damaged image and reads all of
//! it. The image is a scratch disk, so a thousand of them share the bytes of one directory.
//!
//! What may be, by the verification page:
//! - *refused*: the start says why and names the place;
//! - *repaired*, *harmless*: the content is that of the model; repaired when the start changed another file than it
//!   changes of the good directory;
//! - *cut*: the content is that of the model as of an entry that is not below the last durable point;
//! - *told*: the start does not read the place; who reads it is told, and everything else is that of the model.
//!
//! Anything else is wrong. So is a doctor that sees another verdict than the start, or not the damage that a reader sees.

pub mod judge;
pub mod kinds;
pub mod make;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_broker::cipher::EncryptionKey;
use queen_doctor::StoreKind;
use queen_io::{Disk, SimDisk};

use crate::history::History;
use crate::node::Setup;

/// Names and bytes of all files.
pub type Files = BTreeMap<PathBuf, Arc<[u8]>>;

/// A directory to be damaged, and all that is known of it.
pub struct Directory {
    /// How its logs are laid out.
    pub setup: Setup,
    /// What keeps its checkpoint.
    pub store: StoreKind,
    /// Its files.
    pub files: Files,
    /// Its files as of the checkpoint before the last.
    pub old: Files,
    /// What it holds.
    pub history: History,
    /// Its last entry.
    pub last: u64,
    /// The entry of its last checkpoint.
    pub durable: u64,
    /// When a start comes, µs.
    pub now: i64,
    /// Its key.
    pub key: EncryptionKey,
}

impl Directory {
    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.files.values().map(|bytes| bytes.len()).sum()
    }

    /// A disk with the files on it; every thread has its own, so that none waits for another.
    pub fn disk(&self) -> Arc<dyn Disk> {
        let disk = SimDisk::new();
        for (path, bytes) in &self.files {
            disk.set_contents(path, bytes);
        }
        disk.settle();
        Arc::new(disk)
    }

    /// The files whose name ends so.
    pub fn named<'a>(&'a self, end: &'a str) -> impl Iterator<Item = &'a Path> + 'a {
        let names = self.files.keys().map(PathBuf::as_path);
        names.filter(move |path| path.to_string_lossy().ends_with(end))
    }
}
