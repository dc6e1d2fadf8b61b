//! Reading a backup in one pass: every length, every checksum, and the end.

use std::io::{ErrorKind, Read};
use std::path::Path;

use queen_io::{Disk, OpenMode};
use xxhash_rust::xxh3::Xxh3;

use crate::error::ArchiveError;
use crate::manifest::{LIST_BYTES_MAX, Manifest, Member};
use crate::progress::Progress;
use crate::tar::{BLOCK, Head, padding, parse};
use crate::{MANIFEST, PIECE, SUMS};

/// Zeros that may follow the end: other tars fill up their last record.
const END_BYTES_MAX: u64 = 1 << 20;

/// What becomes of the bytes.
pub trait Sink {
    /// What will come.
    ///
    /// # Errors
    /// It cannot be taken.
    fn begin(&mut self, manifest: &Manifest) -> Result<(), ArchiveError>;
    /// A file begins; the one before is whole.
    ///
    /// # Errors
    /// It cannot be taken.
    fn file(&mut self, member: &Member) -> Result<(), ArchiveError>;
    /// Its next bytes, which begin at `at`.
    ///
    /// # Errors
    /// They cannot be taken.
    fn bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), ArchiveError>;
    /// Everything came and is what was sent; `sums` says so.
    ///
    /// # Errors
    /// It cannot be kept.
    fn end(&mut self, sums: &Manifest) -> Result<(), ArchiveError>;
}

/// Only verifies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verify;

impl Sink for Verify {
    fn begin(&mut self, _: &Manifest) -> Result<(), ArchiveError> {
        Ok(())
    }

    fn file(&mut self, _: &Member) -> Result<(), ArchiveError> {
        Ok(())
    }

    fn bytes(&mut self, _: u64, _: &[u8]) -> Result<(), ArchiveError> {
        Ok(())
    }

    fn end(&mut self, _: &Manifest) -> Result<(), ArchiveError> {
        Ok(())
    }
}

/// Reads an archive to its end; the list with its sums.
///
/// # Errors
/// Any refusal, with the member's name: then the sink has seen bytes that do not count.
pub fn read_archive(
    input: &mut dyn Read,
    sink: &mut dyn Sink,
    progress: &Progress,
) -> Result<Manifest, ArchiveError> {
    let mut input = Input { input, buf: vec![0; PIECE] };
    let first = Manifest::decode(&input.list(MANIFEST)?)?;
    progress.set_total(first.bytes());
    sink.begin(&first)?;
    let mut sums = Vec::with_capacity(first.members.len());
    for member in &first.members {
        let head = input.head(&member.name)?;
        if head.len != member.len {
            let (found, expected) = (head.len, member.len);
            return Err(ArchiveError::Length { name: head.name, found, expected });
        }
        sink.file(member)?;
        sums.push(input.file(member, sink, progress)?);
    }
    let last = Manifest::decode(&input.list(SUMS)?)?;
    if !last.is_of(&first) {
        return Err(ArchiveError::Lists);
    }
    for (member, sum) in last.members.iter().zip(sums) {
        if member.sum != Some(sum) {
            return Err(ArchiveError::Sum(member.name.clone()));
        }
    }
    input.end()?;
    sink.end(&last)?;
    Ok(last)
}

/// Reads a backup that was unpacked into a directory.
///
/// # Errors
/// As [`read_archive`].
pub fn read_directory(
    disk: &dyn Disk,
    dir: &Path,
    sink: &mut dyn Sink,
    progress: &Progress,
) -> Result<Manifest, ArchiveError> {
    let path = dir.join(SUMS);
    let file = disk.open(&path, OpenMode::Read).map_err(|error| match error.kind() {
        ErrorKind::NotFound => ArchiveError::Foreign(format!("{} has no {SUMS}", dir.display())),
        _ => ArchiveError::io(&path, "open")(error),
    })?;
    let len = file.len().map_err(ArchiveError::io(&path, "read"))?;
    let len = list_len(SUMS, len)?;
    let mut text = vec![0; len];
    let count = file.read_at(&mut text, 0).map_err(ArchiveError::io(&path, "read"))?;
    text.truncate(count);
    let sums = Manifest::decode(&text)?;
    progress.set_total(sums.bytes());
    sink.begin(&sums)?;
    let mut buf = vec![0; PIECE];
    for member in &sums.members {
        let path = dir.join(&member.name);
        let file = disk.open(&path, OpenMode::Read).map_err(ArchiveError::io(&path, "open"))?;
        let found = file.len().map_err(ArchiveError::io(&path, "read"))?;
        if found != member.len {
            let (name, expected) = (member.name.clone(), member.len);
            return Err(ArchiveError::Length { name, found, expected });
        }
        sink.file(member)?;
        let mut hash = Xxh3::new();
        let mut at = 0;
        while at < member.len {
            let want = usize::try_from(member.len - at).unwrap_or(usize::MAX).min(PIECE);
            let slot = buf.get_mut(..want).unwrap_or_default();
            let count = file.read_at(slot, at).map_err(ArchiveError::io(&path, "read"))?;
            if count < want {
                let (name, expected) = (member.name.clone(), member.len);
                return Err(ArchiveError::Length { name, found: at + count as u64, expected });
            }
            hash.update(slot);
            sink.bytes(at, slot)?;
            progress.add(count as u64);
            at += count as u64;
        }
        if member.sum != Some(hash.digest()) {
            return Err(ArchiveError::Sum(member.name.clone()));
        }
    }
    sink.end(&sums)?;
    Ok(sums)
}

fn list_len(name: &str, len: u64) -> Result<usize, ArchiveError> {
    let fits = usize::try_from(len).ok().filter(|_| len <= LIST_BYTES_MAX);
    fits.ok_or_else(|| ArchiveError::Foreign(format!("{name:?} of {len} bytes is no list")))
}

struct Input<'i> {
    input: &'i mut dyn Read,
    buf: Vec<u8>,
}

impl Input<'_> {
    /// A member that is a list.
    fn list(&mut self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let Head { len, .. } = self.head(name)?;
        let mut left = list_len(name, len)?;
        let mut text = Vec::new();
        // Grown by what comes, not by what the head says.
        while left > 0 {
            let piece = self.take(left, name)?;
            text.extend_from_slice(piece);
            left -= piece.len();
        }
        self.skip(padding(len), name)?;
        Ok(text)
    }

    fn head(&mut self, expected: &str) -> Result<Head, ArchiveError> {
        let mut block = [0; BLOCK];
        self.exact(&mut block, expected)?;
        match parse(&block)? {
            Some(head) if head.name == expected => Ok(head),
            Some(head) if expected == MANIFEST => {
                let found = head.name;
                Err(ArchiveError::Foreign(format!("its first member is {found:?}")))
            }
            Some(head) => {
                let expected = expected.to_owned();
                Err(ArchiveError::Unexpected { found: head.name, expected })
            }
            None => Err(ArchiveError::EndsEarly(expected.to_owned())),
        }
    }

    /// Hands a file's bytes on; their checksum.
    fn file(
        &mut self,
        member: &Member,
        sink: &mut dyn Sink,
        progress: &Progress,
    ) -> Result<u64, ArchiveError> {
        let mut hash = Xxh3::new();
        let mut at = 0;
        while at < member.len {
            let left = usize::try_from(member.len - at).unwrap_or(usize::MAX);
            let piece = self.take(left, &member.name)?;
            hash.update(piece);
            sink.bytes(at, piece)?;
            progress.add(piece.len() as u64);
            at += piece.len() as u64;
        }
        self.skip(padding(member.len), &member.name)?;
        Ok(hash.digest())
    }

    fn skip(&mut self, count: usize, name: &str) -> Result<(), ArchiveError> {
        let mut block = [0; BLOCK];
        match block.get_mut(..count) {
            Some(slot) => self.exact(slot, name),
            None => Ok(()),
        }
    }

    /// Two blocks of zeros, and nothing else behind them.
    fn end(&mut self) -> Result<(), ArchiveError> {
        let mut blocks = [0; 2 * BLOCK];
        self.exact(&mut blocks, "its end")?;
        let mut zeros = blocks.iter().all(|byte| *byte == 0);
        let mut bytes = 0;
        loop {
            let count = self.read(PIECE)?;
            if count == 0 && zeros {
                return Ok(());
            }
            bytes += count as u64;
            zeros &= self.buf.iter().take(count).all(|byte| *byte == 0);
            if !zeros || bytes > END_BYTES_MAX {
                return Err(ArchiveError::Foreign("something follows its end".to_owned()));
            }
        }
    }

    /// Some of the next bytes, at most `most`.
    fn take(&mut self, most: usize, name: &str) -> Result<&[u8], ArchiveError> {
        match self.read(most.min(PIECE))? {
            0 => Err(ArchiveError::EndsEarly(name.to_owned())),
            count => Ok(self.buf.get(..count).unwrap_or_default()),
        }
    }

    fn exact(&mut self, slot: &mut [u8], name: &str) -> Result<(), ArchiveError> {
        self.input.read_exact(slot).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ArchiveError::EndsEarly(name.to_owned()),
            _ => ArchiveError::Read(error),
        })
    }

    fn read(&mut self, most: usize) -> Result<usize, ArchiveError> {
        loop {
            let slot = self.buf.get_mut(..most).unwrap_or_default();
            match self.input.read(slot) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other.map_err(ArchiveError::Read),
            }
        }
    }
}
