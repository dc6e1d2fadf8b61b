//! What lies in a data directory, as tests look at it from outside.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::program::Program;

/// Every file below a directory, with its bytes.
pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Copies a directory's files into another one.
pub(crate) fn copy(from: &Path, to: &Path) {
    for (path, bytes) in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

/// Record files that a later one with records follows.
pub(crate) fn sealed(dir: &Path) -> Vec<PathBuf> {
    // A node may be at work: what goes away meanwhile is passed over.
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut logs: Vec<PathBuf> = Vec::new();
    for log in entries(&dir.join("qlog")) {
        let with_records = entries(&log.path()).filter(|file| {
            let is_log = file.path().extension().is_some_and(|ext| ext == "qlog");
            is_log && file.metadata().is_ok_and(|data| data.len() > 32)
        });
        logs.extend(with_records.map(|file| file.path()));
    }
    logs.sort();
    let next =
        |path: &PathBuf| logs.iter().any(|other| other > path && other.parent() == path.parent());
    logs.iter().filter(|path| next(path)).cloned().collect()
}

/// Waits until a file of a node at work is sealed and each that is has its side files: a thread of their own makes them, and a
/// node that stops does not wait for it.
pub(crate) fn settle(node: &Program, dir: &Path) {
    let has_sides =
        |path: &PathBuf| ["qidx", "qhsh"].iter().all(|side| path.with_extension(side).exists());
    while sealed(dir).is_empty() || !sealed(dir).iter().all(has_sides) {
        node.ask("GET", "/health", "");
    }
}
