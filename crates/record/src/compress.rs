//! Compression of a message record's payload.
//!
//! One zstd frame with its content size in the header. Small payloads are left alone and a frame is kept only
//! when it saves a tenth, so that reading most records costs no decompression at all.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe;

/// Payloads below this many bytes are never compressed.
pub const COMPRESS_MIN: usize = 512;
/// Most bytes a payload may decompress to: the limit of a record's body.
pub const CONTENT_MAX: u64 = 256 * 1024 * 1024;

/// Why a payload cannot be decompressed. Both mean damage: the record's own checksum was right.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// Not one zstd frame with a content size of at most 256 MiB.
    #[error("the payload is not one zstd frame of a known, permitted size")]
    Frame,
    /// The frame does not decompress to the size it states, or the library failed.
    #[error("zstd: {0}")]
    Zstd(String),
}

/// A reusable compression context; keep one per thread.
pub struct PayloadCompressor {
    context: Option<Compressor<'static>>,
}

impl PayloadCompressor {
    /// A context for `level`; level 0 never compresses.
    ///
    /// # Errors
    /// [`CompressError::Zstd`]: the level is outside of what the library knows.
    pub fn new(level: i32) -> Result<Self, CompressError> {
        if level == 0 {
            return Ok(Self { context: None });
        }
        let mut context = Compressor::new(level).map_err(|e| zstd_error(&e))?;
        context.include_contentsize(true).map_err(|e| zstd_error(&e))?;
        context.include_checksum(false).map_err(|e| zstd_error(&e))?;
        Ok(Self { context: Some(context) })
    }

    /// The compressed form of `payload` when it is worth keeping, else `None`: store it as it is.
    pub fn compress(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        let context = self.context.as_mut()?;
        if payload.len() < COMPRESS_MIN || payload.len() as u64 > CONTENT_MAX {
            return None;
        }
        let packed = context.compress(payload).ok()?;
        (packed.len() * 10 <= payload.len() * 9).then_some(packed)
    }
}

/// A reusable decompression context; keep one per thread.
pub struct PayloadDecompressor {
    context: Decompressor<'static>,
}

impl PayloadDecompressor {
    /// A context.
    ///
    /// # Errors
    /// [`CompressError::Zstd`]: the library could not allocate it.
    pub fn new() -> Result<Self, CompressError> {
        Ok(Self { context: Decompressor::new().map_err(|e| zstd_error(&e))? })
    }

    /// The payload inside `packed`.
    ///
    /// # Errors
    /// [`CompressError`]: `packed` is damaged. The stated size is checked before anything is allocated.
    pub fn decompress(&mut self, packed: &[u8]) -> Result<Vec<u8>, CompressError> {
        let size = content_size(packed)?;
        self.decompress_exact(packed, usize::try_from(size).map_err(|_| CompressError::Frame)?)
    }

    /// The payload inside `packed`, which must be one frame of exactly `len` bytes; no more than that is allocated,
    /// whatever the frame says.
    ///
    /// # Errors
    /// [`CompressError`]: it is not.
    pub fn decompress_exact(
        &mut self,
        packed: &[u8],
        len: usize,
    ) -> Result<Vec<u8>, CompressError> {
        if zstd_safe::find_frame_compressed_size(packed) != Ok(packed.len()) {
            return Err(CompressError::Frame);
        }
        let payload = self.context.decompress(packed, len).map_err(|e| zstd_error(&e))?;
        if payload.len() == len { Ok(payload) } else { Err(CompressError::Frame) }
    }
}

/// Bytes that `packed` states to decompress to.
///
/// # Errors
/// [`CompressError::Frame`]: no single frame, no stated size, or above [`CONTENT_MAX`].
pub fn content_size(packed: &[u8]) -> Result<u64, CompressError> {
    let size = zstd_safe::get_frame_content_size(packed)
        .map_err(|_| CompressError::Frame)?
        .ok_or(CompressError::Frame)?;
    let one_frame = zstd_safe::find_frame_compressed_size(packed) == Ok(packed.len());
    (size <= CONTENT_MAX && one_frame).then_some(size).ok_or(CompressError::Frame)
}

/// Bytes at the start of a zstd frame that hold its stated size.
pub const STATED_SIZE_IN: usize = 18;

/// Bytes that the zstd frame which starts with `start` states to decompress to, by its first [`STATED_SIZE_IN`] bytes;
/// whether the rest fits is not looked at.
///
/// # Errors
/// [`CompressError::Frame`]: no frame begins here, or it states no size or one above [`CONTENT_MAX`].
pub fn stated_size(start: &[u8]) -> Result<u64, CompressError> {
    let size = zstd_safe::get_frame_content_size(start).map_err(|_| CompressError::Frame)?;
    size.filter(|size| *size <= CONTENT_MAX).ok_or(CompressError::Frame)
}

fn zstd_error(error: &std::io::Error) -> CompressError {
    CompressError::Zstd(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(payload: &[u8], compressed: bool) {
        let mut packer = PayloadCompressor::new(1).unwrap();
        let packed = packer.compress(payload);
        assert_eq!(packed.is_some(), compressed, "{} bytes", payload.len());
        if let Some(packed) = packed {
            let start = &packed[..packed.len().min(STATED_SIZE_IN)];
            assert_eq!(stated_size(start).unwrap(), payload.len() as u64);
            let mut reader = PayloadDecompressor::new().unwrap();
            assert_eq!(reader.decompress(&packed).unwrap(), payload);
        }
    }

    #[test]
    fn only_what_saves_a_tenth_is_kept() {
        check(&[b'a'; COMPRESS_MIN - 1], false);
        check(&[b'a'; COMPRESS_MIN], true);
        let mut state = 1u64;
        let noise: Vec<u8> = (0..4096)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33).to_le_bytes()[0]
            })
            .collect();
        check(&noise, false);
        assert!(PayloadCompressor::new(0).unwrap().compress(&[0; 4096]).is_none());
    }

    #[test]
    fn a_stated_size_is_never_trusted() {
        let mut reader = PayloadDecompressor::new().unwrap();
        // Magic, a descriptor with an 8-byte content size, and a size of 2^60.
        let mut huge = vec![0x28, 0xb5, 0x2f, 0xfd, 0b1110_0000];
        huge.extend_from_slice(&(1u64 << 60).to_le_bytes());
        huge.extend_from_slice(&[1, 0, 0]);
        assert!(reader.decompress(&huge).is_err());
        assert!(stated_size(&huge).is_err() && stated_size(b"not zstd at all").is_err());
        assert!(reader.decompress(b"").is_err());
        assert!(reader.decompress(b"not zstd at all").is_err());
        let mut twice = PayloadCompressor::new(1).unwrap().compress(&[7; 600]).unwrap();
        twice.extend_from_within(..);
        assert!(reader.decompress(&twice).is_err());
    }
}
