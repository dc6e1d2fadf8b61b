//! The bytes of one file: blocks in memory over what lies below.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use super::ChangeKind;
use crate::disk::{Disk, DiskFile, OpenMode};

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// The same, for places in memory.
const BLOCK_LEN: usize = 4096;

/// A file, whatever name it has.
pub(super) struct ScratchFile {
    below: Option<PathBuf>,
    content: RwLock<Content>,
}

/// - a block in `blocks` counts alone; zeros fill it behind the file's end;
/// - elsewhere the bytes below count as far as `kept`, and zeros behind it.
#[derive(Default)]
struct Content {
    /// Unknown until the file was opened once.
    len: Option<u64>,
    kept: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl ScratchFile {
    pub(super) fn new(below: Option<PathBuf>) -> Self {
        let len = if below.is_none() { Some(0) } else { None };
        Self { below, content: RwLock::new(Content { len, ..Content::default() }) }
    }

    pub(super) fn below(&self) -> Option<&Path> {
        self.below.as_deref()
    }

    /// How the file differs from the one below.
    pub(super) fn difference(&self, disk: &dyn Disk) -> io::Result<Option<ChangeKind>> {
        let content = self.read();
        let (Some(path), Some(len)) = (&self.below, content.len) else { return Ok(None) };
        let file = disk.open(path, OpenMode::Read)?;
        let from = file.len()?;
        let mut below = vec![0; BLOCK_LEN];
        for (number, block) in &content.blocks {
            let at = number * BLOCK;
            let known = read_up_to(&*file, &mut below, at, from)?;
            below.get_mut(known..).unwrap_or_default().fill(0);
            let end = usize::try_from(len.saturating_sub(at).min(BLOCK)).unwrap_or(0);
            let pairs = block.iter().zip(&below).take(end);
            if let Some(step) = pairs.into_iter().position(|(now, was)| now != was) {
                return Ok(Some(ChangeKind::Written { at: at + step as u64 }));
            }
        }
        Ok(match len.cmp(&from) {
            std::cmp::Ordering::Less => Some(ChangeKind::Cut { to: len, from }),
            std::cmp::Ordering::Equal if content.kept >= from => None,
            std::cmp::Ordering::Equal => Some(ChangeKind::Written { at: content.kept }),
            std::cmp::Ordering::Greater => Some(ChangeKind::Written { at: from }),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open file.
pub(super) struct Handle {
    file: Arc<ScratchFile>,
    below: Option<Arc<dyn DiskFile>>,
    writable: bool,
    read: Arc<AtomicU64>,
}

impl Handle {
    pub(super) fn open(
        file: &Arc<ScratchFile>,
        disk: &dyn Disk,
        writable: bool,
        read: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let below = match &file.below {
            Some(path) => Some(disk.open(path, OpenMode::Read)?),
            None => None,
        };
        if let Some(below) = &below {
            let mut content = file.write();
            if content.len.is_none() {
                content.kept = below.len()?;
                content.len = Some(content.kept);
            }
        }
        Ok(Self { file: Arc::clone(file), below, writable, read })
    }

    /// Reads one piece that lies in one block, or in none.
    fn piece(&self, content: &Content, buf: &mut [u8], at: u64) -> io::Result<()> {
        if let Some(block) = content.blocks.get(&(at / BLOCK)) {
            let from = usize::try_from(at % BLOCK).unwrap_or(0);
            let bytes = block.get(from..from + buf.len()).ok_or(Errno::IO)?;
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let known = match &self.below {
            Some(below) => read_up_to(&**below, buf, at, content.kept)?,
            None => 0,
        };
        buf.get_mut(known..).unwrap_or_default().fill(0);
        Ok(())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(Errno::BADF.into()) }
    }
}

/// Reads what lies before `end`; returns the number of bytes.
fn read_up_to(file: &dyn DiskFile, buf: &mut [u8], at: u64, end: u64) -> io::Result<usize> {
    let there = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(buf.len());
    let wanted = buf.get_mut(..there).unwrap_or_default();
    if wanted.is_empty() { Ok(0) } else { file.read_at(wanted, at) }
}

impl DiskFile for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.file.read();
        let left = content.len.unwrap_or(0).saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let mut rest = buf.get_mut(..count).unwrap_or_default();
        let mut at = offset;
        while !rest.is_empty() {
            let in_block = usize::try_from(BLOCK - at % BLOCK).unwrap_or(usize::MAX);
            // Up to the next block that is in memory in one go.
            let until = content.blocks.range(at / BLOCK..).next().map(|(number, _)| number * BLOCK);
            let piece = match until {
                Some(start) if start <= at => in_block,
                Some(start) => usize::try_from(start - at).unwrap_or(usize::MAX),
                None => rest.len(),
            };
            let (now, later) = rest.split_at_mut(piece.min(rest.len()));
            self.piece(&content, now, at)?;
            at += now.len() as u64;
            rest = later;
        }
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.read_at(buf, offset).map(Some)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut content = self.file.write();
        let len = content.len.unwrap_or(0);
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            let from = usize::try_from(at % BLOCK).unwrap_or(0);
            let (now, later) = rest.split_at(rest.len().min(BLOCK_LEN - from));
            let number = at / BLOCK;
            let mut block = vec![0; BLOCK_LEN].into_boxed_slice();
            self.piece(&content, &mut block, number * BLOCK)?;
            let target = block.get_mut(from..from + now.len()).unwrap_or_default();
            let same = target == now && at + now.len() as u64 <= len;
            if !same || content.blocks.contains_key(&number) {
                target.copy_from_slice(now);
                content.blocks.insert(number, block);
            }
            at += now.len() as u64;
            rest = later;
        }
        if !bytes.is_empty() {
            content.len = Some(len.max(at));
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut content = self.file.write();
        content.kept = content.kept.min(len);
        let whole = len.div_ceil(BLOCK);
        content.blocks.split_off(&whole);
        if let Some(block) = content.blocks.get_mut(&(len / BLOCK)) {
            let from = usize::try_from(len % BLOCK).unwrap_or(0);
            block.get_mut(from..).unwrap_or_default().fill(0);
        }
        content.len = Some(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.read().len.unwrap_or(0))
    }

    fn forget_range(&self, offset: u64, len: u64) {
        if let Some(below) = &self.below {
            below.forget_range(offset, len);
        }
    }
}
