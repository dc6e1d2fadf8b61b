//! Writing an archive in one pass, piece by piece.

use std::path::PathBuf;

use queen_io::{Disk, OpenMode};
use xxhash_rust::xxh3::Xxh3;

use crate::error::PackError;
use crate::manifest::{Manifest, Member};
use crate::tar::{END_LEN, head, member_bytes, padding};
use crate::{MANIFEST, PIECE, SUMS};

/// A file to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name in the data directory.
    pub name: String,
    /// Where it is; not looked at when `len` is 0.
    pub path: PathBuf,
    /// Bytes of it that are taken: what lies behind belongs to a later moment.
    pub len: u64,
}

/// Who takes the pieces wants no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// Takes a piece; an error ends the packing.
pub type Take<'t> = &'t mut dyn FnMut(Vec<u8>) -> Result<(), Stopped>;

/// An archive that can be written.
#[derive(Debug)]
pub struct Pack {
    manifest: Manifest,
    paths: Vec<PathBuf>,
}

impl Pack {
    /// An archive of these files.
    ///
    /// # Errors
    /// `Name`: one has no name of a data directory, or comes twice.
    pub fn new(index: u64, taken_at_us: i64, mut sources: Vec<Source>) -> Result<Self, PackError> {
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        let (mut members, mut paths) = (Vec::new(), Vec::new());
        for Source { name, path, len } in sources {
            members.push(Member { name, len, sum: None });
            paths.push(path);
        }
        Ok(Self { manifest: Manifest::new(index, taken_at_us, members)?, paths })
    }

    /// What it holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes of the archive.
    pub fn bytes(&self) -> u64 {
        let list = member_bytes(self.manifest.encode().len() as u64);
        let files = self.manifest.members.iter().map(|member| member_bytes(member.len));
        files.fold(2 * list + END_LEN, u64::saturating_add)
    }

    /// Writes it in pieces of about a quarter of a mebibyte.
    ///
    /// # Errors
    /// A file cannot be read, or `take` wants no more: what was taken is no archive.
    pub fn write(&self, disk: &dyn Disk, take: Take<'_>) -> Result<(), PackError> {
        let time_s = u64::try_from(self.manifest.taken_at_us / 1_000_000).unwrap_or(0);
        let mut out = Out { piece: Vec::with_capacity(PIECE), take };
        out.text(MANIFEST, &self.manifest.encode(), time_s)?;
        let mut sums = self.manifest.clone();
        for (member, path) in sums.members.iter_mut().zip(&self.paths) {
            out.put(&head(&member.name, member.len, time_s))?;
            let mut hash = Xxh3::new();
            if member.len > 0 {
                let io = |source| PackError::Io { path: path.clone(), source };
                let file = disk.open(path, OpenMode::Read).map_err(io)?;
                let mut at = 0;
                while at < member.len {
                    let room = out.room()?;
                    let want = usize::try_from(member.len - at).unwrap_or(usize::MAX).min(room);
                    let from = out.piece.len();
                    out.piece.resize(from + want, 0);
                    let slot = out.piece.get_mut(from..).unwrap_or_default();
                    let count = file.read_at(slot, at).map_err(io)?;
                    if count < want {
                        let (path, len) = (path.clone(), at + count as u64);
                        return Err(PackError::Short { path, len, expected: member.len });
                    }
                    hash.update(slot);
                    at += count as u64;
                }
            }
            member.sum = Some(hash.digest());
            out.zeros(padding(member.len))?;
        }
        out.text(SUMS, &sums.encode(), time_s)?;
        out.zeros(usize::try_from(END_LEN).unwrap_or(0))?;
        out.flush()
    }
}

/// Bytes on their way out.
struct Out<'t> {
    piece: Vec<u8>,
    take: Take<'t>,
}

impl Out<'_> {
    fn text(&mut self, name: &str, text: &str, time_s: u64) -> Result<(), PackError> {
        self.put(&head(name, text.len() as u64, time_s))?;
        self.put(text.as_bytes())?;
        self.zeros(padding(text.len() as u64))
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<(), PackError> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.piece.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn zeros(&mut self, count: usize) -> Result<(), PackError> {
        static ZEROS: [u8; 1024] = [0; 1024];
        self.put(ZEROS.get(..count).unwrap_or(&ZEROS))
    }

    /// Room in the piece, at least one byte.
    fn room(&mut self) -> Result<usize, PackError> {
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(PIECE - self.piece.len())
    }

    fn flush(&mut self) -> Result<(), PackError> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        (self.take)(piece).map_err(|Stopped| PackError::Stopped)
    }
}
