//! A small generator whose seed repeats what it gave.

use crate::wire::now_us;

/// xorshift64*.
pub(super) struct Rng(u64);

impl Rng {
    /// Of a seed, and a stream of it.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mixed = seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self((mixed ^ (mixed >> 27)) | 1)
    }

    /// A seed of the time.
    pub(super) fn fresh_seed() -> u64 {
        now_us() & 0xffff_ffff
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
