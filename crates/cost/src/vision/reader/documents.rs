//! Encoders of documents: Segment Anything, and what follows it in GOT-OCR 2 and DeepSeek-OCR.

use serde_json::{Map, Value};

use super::{MAX_INTERMEDIATE, MAX_PATCH, MAX_SIDE, MAX_WIDTH, Sizes, head_dim, layers, plain};
use crate::{
    SpecError,
    architectures::bounded,
    spec::{
        MAX_LAYERS,
        keys::{Keys, missing},
    },
    vision::{
        Convolution, Encoder, EncoderKind, EncoderLayers, Patches, Projector, Tiling, Views, VisionShape,
    },
};

/// Channels between the layers of Segment Anything and what follows.
const NECK: u64 = 256;
/// Queries for tiles of 768 and views of 1,024 pixels.
const QUERIES: [u64; 2] = [144, 256];
/// Convolutions after an encoder.
const MAX_CONVOLUTIONS: u64 = 16;

/// The keys of an object inside `keys`, none of them where it is missing.
fn inside<'a>(keys: &Keys<'a>, key: &str, none: &'a Map<String, Value>) -> Result<Sizes<'a>, SpecError> {
    Ok(Sizes(keys.object(key)?.unwrap_or(Keys(none))))
}

/// The image encoder of Segment Anything, with the names of its keys in transformers, then convolutions that halve each side.
fn sam(keys: &Sizes<'_>, channels_after: &[u64]) -> Result<Encoder, SpecError> {
    let width = keys.or("hidden_size", 768, MAX_WIDTH)?;
    let heads = keys.or("num_attention_heads", 12, MAX_WIDTH)?;
    let intermediate = match keys.0.optional_size("mlp_dim")? {
        Some(wide) => wide,
        None => (width as f64 * keys.ratio("mlp_ratio", 4.0)?) as u64,
    };
    let patch = keys.or("patch_size", 16, MAX_PATCH)?;
    let side = keys.or("image_size", 1024, MAX_SIDE)? / patch;
    let count = keys.or("num_hidden_layers", 12, MAX_LAYERS)?;
    let full = keys.list("global_attn_indexes", &[2, 5, 8, 11])?;
    let neck = keys.or("output_channels", NECK, MAX_WIDTH)?;
    let mut convolutions = vec![
        Convolution { inputs: width, outputs: neck, kernel: 1, stride: 1, norm: true },
        Convolution { inputs: neck, outputs: neck, kernel: 3, stride: 1, norm: true },
    ];
    bounded("downsample_channels", channels_after.len() as u64, MAX_CONVOLUTIONS)?;
    let mut inputs = neck;
    for &outputs in channels_after {
        let outputs = bounded("downsample_channels", outputs, MAX_WIDTH)?;
        convolutions.push(Convolution { inputs, outputs, kernel: 3, stride: 2, norm: false });
        inputs = outputs;
    }
    let has_positions = keys.flag("use_abs_pos", true)?;
    Ok(Encoder {
        patches: Some(Patches {
            size: patch,
            channels: keys.or("num_channels", 3, MAX_PATCH)?,
            frames: 1,
            bias: true,
        }),
        intermediate: bounded("mlp_dim", intermediate, MAX_INTERMEDIATE)?,
        layers: layers(count, keys.or("window_size", 14, MAX_SIDE)?, &full),
        plain_mlp: true,
        qkv_bias: keys.flag("qkv_bias", true)?,
        output_bias: true,
        mlp_bias: true,
        norm_bias: true,
        position_table: if has_positions { side * side } else { 0 },
        relative_positions: if keys.flag("use_rel_pos", true)? { side } else { 0 },
        padded_windows: true,
        convolutions,
        ..plain(EncoderKind::Sam, width, heads, head_dim("hidden_size", width, "num_attention_heads", heads)?)
    })
}

pub(super) fn got_ocr2(keys: &Sizes<'_>, hidden: u64) -> Result<VisionShape, SpecError> {
    let neck = keys.or("output_channels", NECK, MAX_WIDTH)?;
    let side = keys.or("image_size", 1024, MAX_SIDE)?;
    let tiling = Tiling {
        base: side,
        tile: side,
        crop: false,
        min_tiles: 1,
        max_tiles: 12,
        is_fixed: true,
        patch: keys.or("patch_size", 16, MAX_PATCH)?,
        downsample: 4,
        row_ends: false,
        separator: false,
    };
    let projector = Projector { merge: 1, norm: 0, products: vec![(hidden, hidden)], separators: 0 };
    Ok(VisionShape::new(Views::Tiled(tiling), vec![sam(keys, &[2 * neck, hidden])?], projector))
}

/// The tiles of DeepSeek-OCR.
fn tiling(patch: u64, base: u64) -> Tiling {
    Tiling {
        base,
        tile: 640,
        crop: true,
        min_tiles: 2,
        max_tiles: 9,
        is_fixed: false,
        patch,
        downsample: 4,
        row_ends: true,
        separator: true,
    }
}

pub(super) fn deepseek_ocr2(vision: &Keys<'_>, hidden: u64) -> Result<VisionShape, SpecError> {
    let none = Map::new();
    let (first, second) = (inside(vision, "sam_config", &none)?, inside(vision, "encoder_config", &none)?);
    let width = second.or("hidden_size", 4096, MAX_WIDTH)?;
    let heads = second.or("num_attention_heads", 32, MAX_WIDTH)?;
    let queried = Queried {
        width,
        intermediate: second.or("intermediate_size", 22016, MAX_INTERMEDIATE)?,
        layers: second.or("num_hidden_layers", 32, MAX_LAYERS)?,
        heads,
        kv_heads: second.or("num_key_value_heads", heads, MAX_WIDTH)?,
    };
    let channels = first.list("downsample_channels", &[512, 896])?;
    queried.shape(sam(&first, &channels)?, hidden)
}

/// The second encoder of DeepSeek-OCR 2.
struct Queried {
    width: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
}

impl Queried {
    fn shape(self, first: Encoder, hidden: u64) -> Result<VisionShape, SpecError> {
        let Queried { width, intermediate, layers, heads, kv_heads } = self;
        let second = Encoder {
            kv_heads,
            intermediate,
            layers: vec![EncoderLayers { count: layers, window: None }],
            qkv_bias: true,
            rotary: true,
            queries: QUERIES.to_vec(),
            last_norm: true,
            ..plain(
                EncoderKind::Qwen2,
                width,
                heads,
                head_dim("hidden_size", width, "num_attention_heads", heads)?,
            )
        };
        let patch = first.patches.map_or(16, |patches| patches.size);
        let tiling = Tiling { tile: 768, max_tiles: 6, row_ends: false, ..tiling(patch, 1024) };
        let projector = Projector { merge: 1, norm: 0, products: vec![(width, hidden)], separators: 1 };
        Ok(VisionShape::new(Views::Tiled(tiling), vec![first, second], projector))
    }
}

/// DeepSeek-OCR and DeepSeek-OCR 2 as published: Segment Anything, then CLIP or a decoder of Qwen2. Other models with this `model_type`
/// have other encoders.
pub(super) fn deepseek_ocr(
    config: &Keys<'_>,
    vision: &Keys<'_>,
    hidden: u64,
) -> Result<Option<VisionShape>, SpecError> {
    let Some(width) = vision.get("width").and_then(Value::as_object).map(Keys) else { return Ok(None) };
    let Some(first) = width.object("sam_vit_b")? else { return Ok(None) };
    let (first, side) = (Sizes(first), Sizes(Keys(vision.0)).or("image_size", 1024, MAX_SIDE)?);
    let channels = first.list("downsample_channels", &[512, 1024])?;
    // The published code has the other sizes of it as constants.
    let mut renamed = Map::new();
    for (key, name) in
        [("width", "hidden_size"), ("layers", "num_hidden_layers"), ("heads", "num_attention_heads")]
    {
        let value = first.0.get(key).ok_or_else(|| missing(key))?;
        renamed.insert(name.to_owned(), value.clone());
    }
    renamed.insert("image_size".to_owned(), side.into());
    renamed.extend(first.0.get("global_attn_indexes").map(|v| ("global_attn_indexes".to_owned(), v.clone())));
    let sam_keys = Sizes(Keys(&renamed));
    if let Some(second) = width.object("qwen2-0-5b")? {
        let width = Sizes(second).or("dim", 896, MAX_WIDTH)?;
        // Its code has 896 as the last number of channels, whatever the file has.
        let first = sam(&sam_keys, &[512, width])?;
        let queried = Queried { width, intermediate: 4864, layers: 24, heads: 14, kv_heads: 2 };
        return queried.shape(first, hidden).map(Some);
    }
    let Some(second) = width.object("clip-l-14-224")?.map(Sizes) else { return Ok(None) };
    let encoders = vec![sam(&sam_keys, &channels)?, clip(&second)?];
    let none = Map::new();
    let last = channels.last().copied().unwrap_or(NECK);
    let outer = inside(config, "projector_config", &none)?;
    let inputs = outer.or("input_dim", last + encoders[1].width, MAX_WIDTH)?;
    let projector = Projector {
        merge: 1,
        norm: 0,
        products: vec![(inputs, outer.or("n_embed", hidden, MAX_WIDTH)?)],
        separators: 2,
    };
    let patch = encoders[0].patches.map_or(16, |patches| patches.size);
    Ok(Some(VisionShape::new(Views::Tiled(tiling(patch, side)), encoders, projector)))
}

/// CLIP over the rows of another encoder; its own embedding of pixels is stored and not used.
fn clip(keys: &Sizes<'_>) -> Result<Encoder, SpecError> {
    let width = keys.or("width", 1024, MAX_WIDTH)?;
    let heads = keys.or("heads", 16, MAX_WIDTH)?;
    let patch = keys.or("patch_size", 14, MAX_PATCH)?;
    let side = keys.or("image_size", 224, MAX_SIDE)? / patch;
    Ok(Encoder {
        intermediate: 4 * width,
        layers: vec![EncoderLayers { count: keys.or("layers", 24, MAX_LAYERS)?, window: None }],
        plain_mlp: true,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        norm_bias: true,
        position_table: side * side + 1,
        class_token: true,
        first_norm: true,
        unused: 3 * patch * patch * width,
        ..plain(EncoderKind::Clip, width, heads, head_dim("width", width, "heads", heads)?)
    })
}
