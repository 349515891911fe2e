//! Random matrices, reproducible from a key.

use rayon::prelude::*;

use crate::simd::{Stored, vectorised};

/// Elements per work item.
const UNIT: usize = 64 * 1024;

/// Rows of evenly distributed values. A value is a function of (key, row, column) alone, so it does not depend on
/// the number of threads or on earlier draws, and any device can compute it.
#[derive(Debug, Clone, Copy)]
pub struct Uniform {
    pub key: u64,
    pub centre: f32,
    pub half_width: f32,
    pub rows: usize,
    pub columns: usize,
}

/// The values of `parts`, one after the other: f32, f16 or bf16.
pub fn uniform<T: Stored>(parts: &[Uniform]) -> Vec<T> {
    let mut values = vec![T::default(); parts.iter().map(|part| part.rows * part.columns).sum()];
    let mut rest = values.as_mut_slice();
    for part in parts {
        let (mine, others) = rest.split_at_mut(part.rows * part.columns);
        fill(part, mine);
        rest = others;
    }
    values
}

fn fill<T: Stored>(part: &Uniform, out: &mut [T]) {
    let &Uniform { key, centre, half_width, columns, .. } = part;
    let rows_per_unit = (UNIT / columns).max(1);
    out.par_chunks_mut(rows_per_unit * columns).enumerate().for_each(|(unit, out)| {
        vectorised(
            #[inline(always)]
            || {
                let mut wide = [0f32; 256];
                for (row, out) in out.chunks_mut(columns).enumerate() {
                    let key = mix64(key.wrapping_add((unit * rows_per_unit + row) as u64));
                    let (low, high) = (key as u32, (key >> 32) as u32);
                    for (block, out) in out.chunks_mut(wide.len()).enumerate() {
                        let first = (block * wide.len()) as u32;
                        for (i, value) in wide.iter_mut().enumerate() {
                            *value = centre + half_width * unit_interval(first + i as u32, low, high);
                        }
                        T::narrow_slice(&wide[..out.len()], out);
                    }
                }
            },
        );
    });
}

/// Uniform in [-1, 1). In 32-bit arithmetic, of which a vector holds twice as much as of 64-bit.
#[inline(always)]
fn unit_interval(column: u32, low: u32, high: u32) -> f32 {
    let mut h = column.wrapping_mul(0x9e37_79b9) ^ low;
    h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d);
    h = (h ^ (h >> 15)).wrapping_add(high).wrapping_mul(0x846c_a68b);
    h ^= h >> 16;
    // The top 24 bits are what f32 holds exactly.
    ((h >> 8) as i32 - (1 << 23)) as f32 * (1.0 / (1 << 23) as f32)
}

/// SplitMix64's finaliser.
pub fn mix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
