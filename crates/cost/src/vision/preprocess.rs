//! How images are prepared for a vision-language model.

use serde::{Deserialize, Serialize};

/// How images are prepared. A key that is missing or null has the value that the model was published with; a
/// model ignores keys that it has no use for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreprocessConfig {
    /// False ignores the other keys; null is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Pixels of each side of the view of the whole image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_size: Option<u32>,
    /// Pixels of each side of a tile; of the whole image if `crop_mode` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<u32>,
    /// Cut large images into tiles, in addition to the view of the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop_mode: Option<bool>,
    /// Pixels of each side of a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_size: Option<u32>,
    /// Patches of each side of the square that becomes one token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downsample_ratio: Option<u32>,
    /// The fewest and the most pixels that an image is scaled to, by models that keep its aspect ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_pixels: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pixels: Option<u32>,
}

impl PreprocessConfig {
    pub fn is_enabled(&self) -> bool {
        self.enable.unwrap_or(true)
    }
}
