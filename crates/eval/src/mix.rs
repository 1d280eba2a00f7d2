//! The mixing function: what an operator of unknown meaning makes of its operands.

use bucketeer::ir::DType;
use bucketeer_types::class::{Class, class};
use bucketeer_types::num::store_float;

/// A running hash, the same on every machine and in every run.
#[derive(Clone, Copy, Debug)]
pub struct Mixer(u64);

impl Mixer {
    /// The hash of a seed and a text.
    #[must_use]
    pub fn new(seed: u64, text: &str) -> Self {
        let mut mixer = Self(0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixer.bytes(text.as_bytes());
        mixer
    }

    /// The hash that an opaque value stands for.
    #[must_use]
    pub const fn resume(state: u64) -> Self {
        Self(state)
    }

    /// What an opaque value keeps of it.
    #[must_use]
    pub const fn state(self) -> u64 {
        self.0
    }

    /// Takes in a number.
    pub fn number(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x0100_0000_01b3_9e37 | 1);
    }

    /// Takes in bytes and how many there are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
        self.number(bytes.len() as u64);
    }

    /// A number that depends on all that was taken in, and on `index`.
    #[must_use]
    pub fn at(self, index: u64) -> u64 {
        let mut z = self.0.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Elements of so many bytes that may hold anything.
    #[must_use]
    pub fn bits(self, width: usize, count: usize) -> Vec<u8> {
        (0..count as u64).flat_map(|index| self.at(index).to_le_bytes().repeat(2).into_iter().take(width)).collect()
    }

    /// Elements of a dtype: floats in [-2, 2), integers in `[0, integers)`, so that sums stay finite and indices small.
    #[must_use]
    pub fn elements(self, dtype: DType, count: usize, integers: u64) -> Vec<u8> {
        let width = dtype.bytes() as usize;
        let mut out = Vec::with_capacity(count * width);
        for index in 0..count as u64 {
            let bits = self.at(index);
            match class(dtype) {
                Class::Float => store_float(dtype, (bits >> 44) as f64 / f64::from(1 << 18) - 2.0, &mut out),
                Class::Bool => out.push((bits >> 40) as u8 & 1),
                Class::Int => {
                    let value = (bits >> 8) % integers.max(1).min(1 << (8 * width as u64 - 1).min(62));
                    out.extend_from_slice(&value.to_le_bytes()[..width]);
                }
                Class::Opaque => out.extend_from_slice(&bits.to_le_bytes().repeat(2)[..width]),
            }
        }
        out
    }
}
