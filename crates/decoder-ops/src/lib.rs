//! The operators of a decoder on candle's tensors: fused vector loops on the CPU, candle's operations elsewhere.
//!
//! A crate of its own because its loops are fast only if everything in them is inlined, which needs one codegen unit.
//! For the same reason nothing public here is generic: a generic function is compiled in the crate that calls it.

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
pub use uniform::{Uniform, mix64, uniform};
