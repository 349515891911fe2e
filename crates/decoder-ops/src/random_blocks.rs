//! Random quantised weights: blocks as a GGUF file has them, of any format.

use half::f16;
use rayon::prelude::*;

use crate::{
    blocks::{E2M1, Format, IQ4},
    uniform::mix64,
};

/// Blocks of `rows` × `columns` weights with a mean near zero and a variance of 1
/// columns. A block is a function of key, row and position only.
pub fn random_blocks(format: Format, key: u64, rows: usize, columns: usize) -> Vec<u8> {
    let (bytes, row_blocks) = (format.bytes(), columns / format.weights());
    let deviation = (1.0 / columns.max(1) as f64).sqrt();
    let mut out = vec![0; rows * row_blocks * bytes];
    out.par_chunks_mut((row_blocks * bytes).max(1)).enumerate().for_each(|(row, blocks)| {
        let key = mix64(key.wrapping_add(row as u64));
        for (i, block) in blocks.chunks_exact_mut(bytes).enumerate() {
            fill(block, key.wrapping_add((i as u64) << 32));
            scale(format, block, deviation);
        }
    });
    out
}

/// Random bits.
fn fill(block: &mut [u8], key: u64) {
    for (i, part) in block.chunks_mut(8).enumerate() {
        part.copy_from_slice(&mix64(key.wrapping_add(i as u64)).to_le_bytes()[..part.len()]);
    }
}

/// Sets the scales of a block such that its weights have this deviation. Small scales stay random within the upper half
/// of their range; the offsets make the mean zero.
fn scale(format: Format, block: &mut [u8], deviation: f64) {
    // The root mean square of numbers from `low` to `high`, minus `zero`.
    let rms = |low: i32, high: i32, zero: f64| {
        let squares = (low..=high).map(|n| (f64::from(n) - zero).powi(2)).sum::<f64>();
        (squares / f64::from(high - low + 1)).sqrt()
    };
    let of_table = |table: [i8; 16]| (table.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 16.0).sqrt();
    let table = || of_table(IQ4);
    // From f32, whose rounding is the same on every CPU; that of f64 is not.
    let mut float =
        |at: usize, value: f64| block[at..at + 2].copy_from_slice(&f16::from_f32(value as f32).to_le_bytes());
    match format {
        Format::Q4_0 => float(0, deviation / rms(0, 15, 8.0)),
        Format::Q5_0 => float(0, deviation / rms(0, 31, 16.0)),
        Format::Q8_0 => float(0, deviation / rms(-128, 127, 0.0)),
        Format::Iq4Nl => float(0, deviation / table()),
        Format::Mxfp4 => {
            // A power of two or the next one, with the frequency that gives the right mean square.
            let scale = deviation / of_table(E2M1);
            let exponent = scale.log2().floor();
            let share = ((scale / exponent.exp2()).powi(2) - 1.0) / 3.0;
            block[0] = (exponent as i32 + 128 + i32::from(f64::from(block[0]) < 256.0 * share)) as u8;
        }
        Format::Q4_1 | Format::Q5_1 => {
            let middle = if format == Format::Q4_1 { 7.5 } else { 15.5 };
            let d = deviation / rms(0, (2.0 * middle) as i32, middle);
            float(0, d);
            float(2, -middle * d);
        }
        Format::Q4K | Format::Q5K => {
            let middle = if format == Format::Q4K { 7.5 } else { 15.5 };
            let d = deviation / rms(0, (2.0 * middle) as i32, middle) / rms(32, 63, 0.0);
            float(0, d);
            float(2, middle * d);
            // Six bits for scales and minima, which are equal here: 32 to 63.
            for i in 4..8 {
                let (low, high) = (block[i] & 31 | 32, block[i + 4] & 31 | 32);
                block[i] = low | (high >> 4) << 6;
                block[i + 4] = block[i];
                block[i + 8] = (high & 15) | (high & 15) << 4;
            }
        }
        Format::Q6K => {
            float(208, deviation / rms(0, 63, 32.0) / rms(32, 63, 0.0));
            block[192..208].iter_mut().for_each(|scale| *scale = *scale & 31 | 32);
        }
        Format::Q3K => {
            float(108, deviation / rms(0, 7, 4.0) / rms(16, 31, -0.5));
            // Six bits, from which 32 is subtracted: the upper two are equal, so that scales of both signs are far from
            // zero. Codes have a mean below zero.
            block[104..108].iter_mut().for_each(|upper| *upper = (*upper & 0x55) | (*upper & 0x55) << 1);
        }
        Format::Q2K => {
            let d = deviation / rms(0, 3, 1.5) / rms(8, 15, 0.0);
            float(80, d);
            float(82, 1.5 * d);
            block[..16].iter_mut().for_each(|both| {
                let scale = *both & 7 | 8;
                *both = scale | scale << 4;
            });
        }
        Format::Iq4Xs => {
            float(0, deviation / table() / rms(16, 31, 0.0));
            block[2..4].fill(0xff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Panels, quantised_rows};

    #[test]
    fn weights_of_every_format_have_the_deviation() {
        for format in Format::ALL {
            let (rows, columns) = (64, 512);
            let blocks = random_blocks(format, 7, rows, columns);
            assert_eq!(blocks, random_blocks(format, 7, rows, columns));
            assert_ne!(blocks, random_blocks(format, 8, rows, columns));
            let panels = Panels::new(format, &blocks, columns).unwrap();
            let ids: Vec<u32> = (0..rows as u32).collect();
            let values: Vec<f32> =
                quantised_rows(&ids, &panels).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let rms = (values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt();
            let wanted = (1.0 / columns as f64).sqrt();
            assert!((rms / wanted - 1.0).abs() < 0.03, "{format:?}: {rms} instead of {wanted}");
            assert!(mean.abs() < 0.12 * wanted, "{format:?}: mean {mean}");
        }
    }
}
