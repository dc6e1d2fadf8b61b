//! Second names for the files of a durable point, so that they outlive their first ones.
//!
//! Called between the write of that point and the write of the next: until then nothing goes but what the point says is
//! going (G1), and that is left out. Of a file that is being rewritten either one may be met; both belong to the point.
//! The newest file of a log goes on growing: of it only what the point covers counts.

use std::path::{Path, PathBuf};

use queen_io::OpenMode;

use crate::durable::{DurablePoint, LogTail};
use crate::error::Fault;
use crate::layout::{LANES, SHARDS};
use crate::log::Log;
use crate::names::{Ext, file_path};
use crate::reclaim::RECLAIMED;
use crate::shared::{Qlog, Shared};

/// A file under its second name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    /// Its path below the logs' directory.
    pub name: String,
    /// Where it is; nothing is there when `len` is 0.
    pub path: PathBuf,
    /// Bytes of it that belong to the point.
    pub len: u64,
}

impl Qlog {
    /// Links every file of the last written point into an empty directory, with the side files that fit.
    ///
    /// # Errors
    /// [`Fault`]: the links that were made are left; the logs are as they were.
    pub fn link_point(&self, point: &DurablePoint, into: &Path) -> Result<Vec<Linked>, Fault> {
        let mut links = Links { shared: &self.shared, into, made: Vec::new() };
        for name in [LANES, SHARDS] {
            let path = self.shared.options.dir.join(name);
            if self.shared.disk.exists(&path).map_err(Fault::io(&path, "look for"))? {
                links.link(&path, name.to_owned(), None)?;
            }
        }
        links.reclaimed(point)?;
        for tail in point.logs.iter().filter(|tail| !tail.retired) {
            let log = self.shared.log(tail.log).ok_or_else(|| {
                let path = self.shared.options.dir.join(format!("q{}", tail.log));
                Fault::io(&path, "link")(std::io::ErrorKind::NotFound.into())
            })?;
            links.log(&log, tail)?;
        }
        Ok(links.made)
    }
}

struct Links<'a> {
    shared: &'a Shared,
    into: &'a Path,
    made: Vec<Linked>,
}

impl Links<'_> {
    /// The mark of logs that are not whole: due as soon as the point leaves something out.
    fn reclaimed(&mut self, point: &DurablePoint) -> Result<(), Fault> {
        let path = self.shared.options.dir.join(RECLAIMED);
        let leaves_out =
            |tail: &LogTail| tail.retired || !tail.doomed.is_empty() || !tail.rewriting.is_empty();
        let there = self.shared.disk.exists(&path).map_err(Fault::io(&path, "look for"))?;
        if there || point.logs.iter().any(leaves_out) {
            self.made.push(Linked { name: RECLAIMED.to_owned(), path, len: 0 });
        }
        Ok(())
    }

    fn log(&mut self, log: &Log, tail: &LogTail) -> Result<(), Fault> {
        // The three files of a number change their names under this lock: those that are linked fit each other.
        let _swap = log.swap.lock();
        let newest = tail.files.last().map_or(0, |file| file.number);
        for file in &tail.files {
            let (number, name) = (file.number, |ext| name_of(log, file.number, ext));
            let path = file_path(&log.dir, number, Ext::Log);
            if number == newest {
                self.link(&path, name(Ext::Log), Some(file.len))?;
                continue;
            }
            let len = self.link(&path, name(Ext::Log), None)?;
            let rewritten = tail.rewriting.iter().find(|new| new.number == number);
            let len = rewritten.filter(|new| new.len == len).map_or(file.len, |new| new.len);
            if let Some(linked) = self.made.last_mut() {
                linked.len = len;
            }
            let sides = [Ext::Index, Ext::Hashes];
            let mut both = true;
            for ext in sides {
                let path = file_path(&log.dir, number, ext);
                both &= self.shared.disk.exists(&path).map_err(Fault::io(&path, "look for"))?;
            }
            if both {
                for ext in sides {
                    self.link(&file_path(&log.dir, number, ext), name(ext), None)?;
                }
            }
        }
        Ok(())
    }

    /// Links one file; returns its length now.
    fn link(&mut self, from: &Path, name: String, len: Option<u64>) -> Result<u64, Fault> {
        let disk = &*self.shared.disk;
        let path = self.into.join(format!("f{}", self.made.len()));
        disk.link(from, &path).map_err(Fault::io(from, "link"))?;
        let file = disk.open(&path, OpenMode::Read).map_err(Fault::io(&path, "open"))?;
        let found = file.len().map_err(Fault::io(&path, "read"))?;
        self.made.push(Linked { name, path, len: len.unwrap_or(found) });
        Ok(found)
    }
}

fn name_of(log: &Log, number: u64, ext: Ext) -> String {
    let path = file_path(Path::new(&format!("q{}", log.id)), number, ext);
    path.to_string_lossy().into_owned()
}
