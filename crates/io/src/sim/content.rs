//! The bytes of a simulated file: chunks that copies share until one of them is written.
//!
//! A test builds hundreds of thousands of disk images that differ in a few sectors. A copy costs one pointer
//! a file, a write copies one chunk, and a chunk remembers its hash.
//!
//! Invariant C1: bytes of the last chunk behind the length are zero.

use std::sync::{Arc, LazyLock, OnceLock};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

const CHUNK: usize = 4096;

static ZEROS_HASH: LazyLock<u128> = LazyLock::new(|| xxh3_128(&[0; CHUNK]));

struct Chunk {
    bytes: Box<[u8]>,
    hash: OnceLock<u128>,
}

impl Clone for Chunk {
    /// Copies are made to be written, so the hash stays behind.
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), hash: OnceLock::new() }
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self { bytes: vec![0; CHUNK].into_boxed_slice(), hash: OnceLock::new() }
    }
}

/// A file's bytes. `None` stands for a chunk of zeros.
#[derive(Clone, Default)]
pub(super) struct Content {
    len: u64,
    chunks: Arc<Vec<Option<Arc<Chunk>>>>,
}

impl Content {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Writes, growing the file as needed; a hole before `offset` reads as zeros.
    pub(super) fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        if end > self.len {
            self.set_len(end);
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        let (mut index, mut start) = place(offset);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - start));
            let chunk = chunks.get_mut(index).map(Option::get_or_insert_default);
            if let Some(chunk) = chunk.map(Arc::make_mut) {
                chunk.hash = OnceLock::new();
                if let Some(target) = chunk.bytes.get_mut(start..start + now.len()) {
                    target.copy_from_slice(now);
                }
            }
            bytes = later;
            index += 1;
            start = 0;
        }
    }

    /// Cuts, or extends with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        let count = usize::try_from(len.div_ceil(CHUNK as u64)).unwrap_or(usize::MAX);
        let chunks = Arc::make_mut(&mut self.chunks);
        chunks.resize(count, None);
        let (index, start) = place(len);
        if len < self.len
            && start > 0
            && let Some(Some(chunk)) = chunks.get_mut(index)
        {
            let chunk = Arc::make_mut(chunk);
            chunk.hash = OnceLock::new();
            if let Some(tail) = chunk.bytes.get_mut(start..) {
                tail.fill(0);
            }
        }
        self.len = len;
    }

    /// Fills `buf` from `offset`; returns how many bytes there were.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let left = self.len.saturating_sub(offset);
        let count = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (mut index, mut start) = place(offset);
        let mut done = 0;
        while done < count {
            let step = (count - done).min(CHUNK - start);
            if let Some(target) = buf.get_mut(done..done + step) {
                let chunk = self.chunks.get(index).and_then(Option::as_ref);
                match chunk.and_then(|chunk| chunk.bytes.get(start..start + step)) {
                    Some(bytes) => target.copy_from_slice(bytes),
                    None => target.fill(0),
                }
            }
            done += step;
            index += 1;
            start = 0;
        }
        count
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len).unwrap_or(usize::MAX)];
        self.read(&mut bytes, 0);
        bytes
    }

    /// Equal for equal bytes, however they came about.
    pub(super) fn fingerprint(&self, hash: &mut Xxh3) {
        hash.update(&self.len.to_le_bytes());
        for chunk in self.chunks.iter() {
            let chunk = match chunk {
                Some(chunk) => *chunk.hash.get_or_init(|| xxh3_128(&chunk.bytes)),
                None => *ZEROS_HASH,
            };
            hash.update(&chunk.to_le_bytes());
        }
    }
}

/// Chunk number and place in the chunk.
fn place(offset: u64) -> (usize, usize) {
    let chunk = CHUNK as u64;
    let index = usize::try_from(offset / chunk).unwrap_or(usize::MAX);
    (index, usize::try_from(offset % chunk).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(content: &Content) -> u128 {
        let mut hash = Xxh3::new();
        content.fingerprint(&mut hash);
        hash.digest128()
    }

    #[test]
    fn agrees_with_a_plain_vector() {
        let mut content = Content::default();
        let mut model: Vec<u8> = Vec::new();
        let mut random = super::super::random::Random::new(7);
        for step in 0..400_u64 {
            let offset = random.below(3 * CHUNK as u64);
            if random.below(4) == 0 {
                content.set_len(offset);
                model.resize(usize::try_from(offset).unwrap(), 0);
            } else {
                let len = usize::try_from(random.below(2 * CHUNK as u64)).unwrap();
                let bytes = vec![step.to_le_bytes()[0]; len];
                content.write(offset, &bytes);
                let at = usize::try_from(offset).unwrap();
                if len > 0 {
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
            }
            assert_eq!(content.to_vec(), model, "step {step}");
            assert_eq!(fingerprint(&content), fingerprint(&Content::from_bytes(&model)));
        }
    }

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut content = Content::from_bytes(b"before");
        let copy = content.clone();
        let before = fingerprint(&copy);
        content.write(0, b"behind");
        assert_eq!(copy.to_vec(), b"before");
        assert_eq!(fingerprint(&copy), before);
        assert_ne!(fingerprint(&content), before);
    }
}
