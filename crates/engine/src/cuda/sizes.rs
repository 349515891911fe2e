//! The sizes of a decoder on a GPU.

use crate::kv::KvShape;

/// Sizes of a decoder.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub cache: KvShape,
    /// The maximum number of positions of a prompt.
    pub prompt: usize,
    /// The maximum number of positions of a step after the prompt.
    pub step: usize,
}
