//! The sizes of vision encoders in a `config.json`.

use super::{Encoder, EncoderKind, EncoderLayers, Patches, Projector, Scaling, Views, VisionShape};
use crate::{
    Dtype, SpecError,
    architectures::{bounded, numbers},
    spec::{
        MAX_LAYERS,
        keys::{Keys, wrong},
    },
};

mod documents;

use documents::{deepseek_ocr, deepseek_ocr2, got_ocr2};

/// Limits of sizes, so that parameter counts are exact.
const MAX_WIDTH: u64 = 1 << 16;
const MAX_INTERMEDIATE: u64 = 1 << 20;
const MAX_SIDE: u64 = 1 << 14;
const MAX_PATCH: u64 = 1 << 10;
const MAX_MERGE: u64 = 1 << 6;

/// The models whose encoders are known.
const KNOWN: [&str; 5] = ["qwen2_5_vl", "qwen2_vl", "got_ocr2", "deepseek_ocr2", "deepseek_vl_v2"];
/// The default limits of the image processors in transformers, in pixels; a checkpoint has its own.
const MIN_PIXELS: u64 = 56 * 56;
const MAX_PIXELS: u64 = 28 * 28 * 1280;

/// Keys with the defaults of transformers.
struct Sizes<'a>(Keys<'a>);

impl Sizes<'_> {
    fn or(&self, key: &'static str, default: u64, limit: u64) -> Result<u64, SpecError> {
        bounded(key, self.0.optional_size(key)?.unwrap_or(default), limit)
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        Ok(self.0.flag(key)?.unwrap_or(default))
    }

    fn list(&self, key: &'static str, default: &[u64]) -> Result<Vec<u64>, SpecError> {
        match self.0.get(key) {
            None => Ok(default.to_vec()),
            Some(_) => numbers(&self.0, key),
        }
    }

    fn ratio(&self, key: &str, default: f64) -> Result<f64, SpecError> {
        match self.0.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_f64()
                .filter(|number| number.is_finite() && (0.0..=1024.0).contains(number))
                .ok_or_else(|| wrong(key, "a number from 0 to 1024", value)),
        }
    }
}

/// Groups of layers with a window, and of the layers in `full` without one.
fn layers(count: u64, window: u64, full: &[u64]) -> Vec<EncoderLayers> {
    let mut full: Vec<u64> = full.iter().copied().filter(|layer| *layer < count).collect();
    full.sort_unstable();
    full.dedup();
    let whole = full.len() as u64;
    let groups = [
        EncoderLayers { count: count - whole, window: Some(window) },
        EncoderLayers { count: whole, window: None },
    ];
    groups.into_iter().filter(|group| group.count > 0).collect()
}

fn head_dim(width_key: &'static str, width: u64, key: &'static str, heads: u64) -> Result<u64, SpecError> {
    match width % heads {
        0 => Ok(width / heads),
        _ => Err(SpecError::NotDivisible { key: width_key, value: width, divisor_key: key, divisor: heads }),
    }
}

impl VisionShape {
    /// The encoders in a parsed `config.json`, for a decoder of this width; `None` for a model without known ones.
    pub(crate) fn from_hf(
        config: &Keys<'_>,
        hidden: u64,
        dtype: Dtype,
    ) -> Result<Option<VisionShape>, SpecError> {
        let Some(model_type) = config.text("model_type")?.filter(|name| KNOWN.contains(name)) else {
            return Ok(None);
        };
        let Some(vision) = config.object("vision_config")? else { return Ok(None) };
        let shape = match model_type {
            "qwen2_5_vl" => Some(qwen2_5_vl(&Sizes(vision), hidden)?),
            "qwen2_vl" => Some(qwen2_vl(&Sizes(vision), hidden)?),
            "got_ocr2" => Some(got_ocr2(&Sizes(vision), hidden)?),
            "deepseek_ocr2" => Some(deepseek_ocr2(&vision, hidden)?),
            _ => deepseek_ocr(config, &vision, hidden)?,
        };
        let Some(shape) = shape else { return Ok(None) };
        let mut shape = VisionShape { number_bytes: dtype.bytes(), ..shape };
        shape.weight_bytes = shape.parameters().saturating_mul(dtype.bytes());
        Ok(Some(shape))
    }

    fn new(views: Views, encoders: Vec<Encoder>, projector: Projector) -> VisionShape {
        VisionShape { views, encoders, projector, number_bytes: 0, weight_bytes: 0 }
    }
}

/// The encoder of Qwen: rotated positions, and a merger of neighbouring patches.
fn qwen(
    keys: &Sizes<'_>,
    width: (&'static str, u64),
    out: u64,
    change: impl FnOnce(Encoder, u64, u64) -> Result<Encoder, SpecError>,
) -> Result<VisionShape, SpecError> {
    let heads = keys.or("num_heads", 16, MAX_WIDTH)?;
    let patch = keys.or("patch_size", 14, MAX_PATCH)?;
    let merge = keys.or("spatial_merge_size", 2, MAX_MERGE)?;
    let channels = match keys.0.optional_size("in_channels")? {
        Some(channels) => bounded("in_channels", channels, MAX_PATCH)?,
        None => keys.or("in_chans", 3, MAX_PATCH)?,
    };
    let (width_key, width) = width;
    let encoder = Encoder {
        patches: Some(Patches {
            size: patch,
            channels,
            frames: keys.or("temporal_patch_size", 2, MAX_PATCH)?,
            bias: false,
        }),
        layers: vec![EncoderLayers { count: keys.or("depth", 32, MAX_LAYERS)?, window: None }],
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        rotary: true,
        ..plain(EncoderKind::Vit, width, heads, head_dim(width_key, width, "num_heads", heads)?)
    };
    let encoder = change(encoder, patch, merge)?;
    let merged = width * merge * merge;
    let projector = Projector {
        merge,
        norm: if encoder.norm_bias { 2 * width } else { width },
        products: vec![(merged, merged), (merged, out)],
        separators: 0,
    };
    let scaling = Scaling { patch, merge, min_pixels: MIN_PIXELS, max_pixels: MAX_PIXELS };
    Ok(VisionShape::new(Views::Scaled(scaling), vec![encoder], projector))
}

fn qwen2_5_vl(keys: &Sizes<'_>, hidden: u64) -> Result<VisionShape, SpecError> {
    let width = keys.or("hidden_size", 3584, MAX_WIDTH)?;
    let out = keys.or("out_hidden_size", hidden, MAX_WIDTH)?;
    qwen(keys, ("hidden_size", width), out, |encoder, patch, merge| {
        // A window covers whole squares that become one token.
        let window = keys.or("window_size", 112, MAX_SIDE)? / merge / patch * merge;
        if window == 0 {
            return Err(SpecError::Zero { key: "window_size / patch_size / spatial_merge_size" });
        }
        let full = keys.list("fullatt_block_indexes", &[7, 15, 23, 31])?;
        Ok(Encoder {
            intermediate: keys.or("intermediate_size", 3420, MAX_INTERMEDIATE)?,
            layers: layers(keys.or("depth", 32, MAX_LAYERS)?, window, &full),
            ..encoder
        })
    })
}

fn qwen2_vl(keys: &Sizes<'_>, hidden: u64) -> Result<VisionShape, SpecError> {
    let width = keys.or("embed_dim", 1280, MAX_WIDTH)?;
    let out = keys.or("hidden_size", hidden, MAX_WIDTH)?;
    qwen(keys, ("embed_dim", width), out, |encoder, _, _| {
        let intermediate = (width as f64 * keys.ratio("mlp_ratio", 4.0)?) as u64;
        Ok(Encoder {
            intermediate: bounded("mlp_ratio", intermediate, MAX_INTERMEDIATE)?,
            plain_mlp: true,
            norm_bias: true,
            ..encoder
        })
    })
}

/// A transformer with full attention, gated MLPs, and nothing else.
fn plain(kind: EncoderKind, width: u64, heads: u64, head_dim: u64) -> Encoder {
    Encoder {
        kind,
        patches: None,
        width,
        intermediate: 0,
        heads,
        kv_heads: heads,
        head_dim,
        layers: Vec::new(),
        plain_mlp: false,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        norm_bias: false,
        rotary: false,
        position_table: 0,
        relative_positions: 0,
        padded_windows: false,
        class_token: false,
        queries: Vec::new(),
        first_norm: false,
        last_norm: false,
        unused: 0,
        convolutions: Vec::new(),
    }
}
