//! Vision encoders: the sizes of what turns images into rows of the decoder, before the prefill.

use serde::{Deserialize, Serialize};

use super::defaults::{is_false, is_zero};

pub mod cost;
mod preprocess;
mod reader;
mod views;

pub use cost::{PartCost, VisionCost};
pub use preprocess::PreprocessConfig;
pub use views::{Encoded, Scaling, Tiling, View, Views};

/// The encoders of a model and what is between them and the decoder. It is recorded with a run, as the [`Shape`](super::Shape) is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisionShape {
    /// The views of an image that the encoders process.
    pub views: Views,
    /// In the order of execution: each but the first reads the rows of the one before it.
    pub encoders: Vec<Encoder>,
    pub projector: Projector,
    /// Type of activations: bytes of one number.
    pub number_bytes: u64,
    /// Bytes of all weights as stored.
    pub weight_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderKind {
    /// A vision transformer of the model's own.
    Vit,
    /// The image encoder of Segment Anything.
    Sam,
    Clip,
    /// A decoder of Qwen2 whose learned queries read the patches.
    Qwen2,
}

impl EncoderKind {
    pub fn name(self) -> &'static str {
        match self {
            EncoderKind::Vit => "vit",
            EncoderKind::Sam => "sam",
            EncoderKind::Clip => "clip",
            EncoderKind::Qwen2 => "qwen2",
        }
    }
}

/// A transformer over patches, and the convolutions after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoder {
    pub kind: EncoderKind,
    /// The embedding of pixels, in the first encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<Patches>,
    pub width: u64,
    pub intermediate: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    /// The layers, grouped by equal cost.
    pub layers: Vec<EncoderLayers>,
    /// Whether the MLP has no gate: up and down only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub plain_mlp: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub qkv_bias: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub output_bias: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub norm_bias: bool,
    /// Whether queries and keys are rotated by their positions.
    #[serde(default, skip_serializing_if = "is_false")]
    pub rotary: bool,
    /// Rows of the table of learned positions; 0 without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub position_table: u64,
    /// Patches of each side of the image that the tables of relative positions are made for; 0 without them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub relative_positions: u64,
    /// Whether windows at the edges are filled up to their full size.
    #[serde(default, skip_serializing_if = "is_false")]
    pub padded_windows: bool,
    /// Whether one more row, which is dropped at the end, stands before the patches.
    #[serde(default, skip_serializing_if = "is_false")]
    pub class_token: bool,
    /// Rows of the tables of learned queries, ascending. The smallest that has a row for each patch follows the patches, and only its
    /// rows are the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<u64>,
    /// A norm before the first layer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub first_norm: bool,
    /// A norm after the last layer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub last_norm: bool,
    /// Weights that are stored and never used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unused: u64,
    /// The projection after the layers, which yields fewer and wider rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub convolutions: Vec<Convolution>,
}

/// The embedding of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patches {
    /// Pixels of each side.
    pub size: u64,
    pub channels: u64,
    /// Frames of a video that one patch covers; a single image is repeated.
    pub frames: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    pub bias: bool,
}

/// Layers with equal cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderLayers {
    pub count: u64,
    /// Patches of each side of the window of attention; `None` for attention over the whole view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// A convolution without bias over the grid of patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convolution {
    pub inputs: u64,
    pub outputs: u64,
    /// Patches of each side that one output covers.
    pub kernel: u64,
    pub stride: u64,
    /// Whether a norm follows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub norm: bool,
}

/// From the last encoder to the decoder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Projector {
    /// Patches of each side of the square that becomes one row.
    pub merge: u64,
    /// Weights of the norm before it; 0 without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub norm: u64,
    /// Matrices with a bias, as (inputs, outputs), with an activation between two.
    pub products: Vec<(u64, u64)>,
    /// Learned rows between views and at the end of rows of patches.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub separators: u64,
}

impl VisionShape {
    /// Parameters of encoders and projector.
    pub fn parameters(&self) -> u64 {
        self.cost_of(&[View { count: 1, width: 1, height: 1 }]).total().parameters as u64
    }

    /// Mean bytes per weight as stored, where `parameters` are all of them.
    fn bytes_per_weight(&self, parameters: f64) -> f64 {
        self.weight_bytes as f64 / parameters.max(1.0)
    }
}

#[cfg(test)]
mod tests;
