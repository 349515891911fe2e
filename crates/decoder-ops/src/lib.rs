#![doc = include_str!("../README.md")]

mod attention;
mod blocks;
mod eight_bits;
mod gemv;
mod ops;
mod panels;
mod quantised;
mod random_blocks;
mod simd;
mod uniform;

pub use attention::{QUERY_BLOCK, Sight, attention, attention_step_by_step};
pub use blocks::Format;
pub use eight_bits::{EightBitRows, EightBits, Q8_0_BLOCK};
pub use gemv::gemv;
pub use ops::{
    Activation, gated, gated_step_by_step, linear, scaled, softcapped, softcapped_step_by_step, sum, widen,
};
pub use panels::Panels;
pub use quantised::{quantised_linear, quantised_rows};
pub use random_blocks::random_blocks;
pub use simd::Stored;
pub use uniform::{Uniform, mix64, uniform};
