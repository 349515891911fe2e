//! The `quantization_config` of a `config.json`: how large the weights are, and in which type they are multiplied.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    SpecError,
    spec::keys::{Keys, missing, unsupported, wrong},
};

/// How the matrices of layers are stored. Embeddings, norms and routers keep the model's type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantisation {
    /// The `quant_method`.
    pub method: String,
    /// Weights that share a scale.
    pub block_weights: u64,
    /// Bits of them, with scale and zero point.
    pub block_bits: u64,
    /// The type of the matrix products where activations are quantised too: "fp8" or "int8".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<String>,
    /// Layers of the model, and those with quantised attention and MLP.
    pub layers: u64,
    pub attention_layers: u64,
    pub mlp_layers: u64,
    #[serde(default)]
    pub lm_head: bool,
    /// Bits of a number in the KV cache, where it is quantised too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bits: Option<u64>,
}

/// A part of a model by its storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Attention,
    Mlp,
    Head,
    /// Embeddings, norms, biases, routers.
    Other,
}

impl Quantisation {
    /// Bits of a quantised weight with its share of scales.
    pub fn bits(&self) -> f64 {
        self.block_bits as f64 / self.block_weights.max(1) as f64
    }

    /// Mean bytes of a weight of `part`, where those that are not quantised have `plain` bytes.
    pub(super) fn bytes(&self, part: Part, plain: f64) -> f64 {
        let layers = self.layers.max(1) as f64;
        let share = match part {
            Part::Attention => self.attention_layers as f64 / layers,
            Part::Mlp => self.mlp_layers as f64 / layers,
            Part::Head => f64::from(u8::from(self.lm_head)),
            Part::Other => 0.0,
        };
        share * self.bits() / 8.0 + (1.0 - share) * plain
    }

    /// From a `config.json` with `layers` layers; `None` where its weights are not quantised.
    pub(super) fn from_hf(
        config: &Map<String, Value>,
        layers: u64,
    ) -> Result<Option<Quantisation>, SpecError> {
        let Some(keys) = Keys(config).object("quantization_config")? else { return Ok(None) };
        let method = keys.text("quant_method")?.unwrap_or(match keys.flag("load_in_4bit")?.is_some() {
            true => "bitsandbytes",
            false => "",
        });
        let Some(storage) = Storage::from_method(method, &keys)? else {
            return Err(unsupported("quantization_config.quant_method", method, METHODS));
        };
        let excluded = excluded_modules(&keys);
        let is_quantised = |name: &str| !excluded.iter().any(|pattern| pattern.matches(name));
        let count = |module: &str| {
            (0..layers).filter(|layer| is_quantised(&format!("model.layers.{layer}.{module}"))).count() as u64
        };
        Ok(Some(Quantisation {
            method: method.to_owned(),
            block_weights: storage.block_weights,
            block_bits: storage.block_bits,
            arithmetic: storage.arithmetic.map(str::to_owned),
            layers,
            attention_layers: count("self_attn.o_proj"),
            mlp_layers: count("mlp.down_proj").min(count("mlp.experts.0.down_proj")),
            lm_head: keys.flag("lm_head")?.unwrap_or(false),
            kv_bits: match keys.object("kv_cache_scheme")? {
                Some(scheme) => scheme.optional_size("num_bits")?,
                None => (keys.text("kv_cache_quant_algo")? == Some("FP8")).then_some(8),
            },
        }))
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match (self.attention_layers, self.mlp_layers) {
            (0, 0) => "no matrices".to_owned(),
            (0, _) => "the matrices of the MLP".to_owned(),
            (_, 0) => "the matrices of attention".to_owned(),
            (a, b) if a == self.layers && b == self.layers => "the matrices of attention and MLP".to_owned(),
            (a, b) => {
                format!("the matrices of attention in {a} and of the MLP in {b} of {} layers", self.layers)
            }
        };
        write!(f, "{} stores {parts} in {:.2} bits per weight, scales included", self.method, self.bits())?;
        if let Some(arithmetic) = &self.arithmetic {
            write!(f, ", and multiplies in {arithmetic}")?;
        }
        match self.kv_bits {
            Some(bits) => write!(f, "; the KV cache has {bits} bits per number"),
            None => Ok(()),
        }
    }
}

const METHODS: &str = "awq, gptq, fp8, fbgemm_fp8, bitsandbytes, compressed-tensors, mxfp4 and modelopt; \
                       for others pass --weight-bits";

/// Scales of AWQ, GPTQ and compressed-tensors are f16.
const SCALE_BITS: u64 = 16;

struct Storage {
    block_weights: u64,
    block_bits: u64,
    arithmetic: Option<&'static str>,
}

impl Storage {
    /// Without scales worth counting: one for a channel or a tensor.
    fn plain(bits: u64, arithmetic: Option<&'static str>) -> Storage {
        Storage { block_weights: 1, block_bits: bits, arithmetic }
    }

    /// Groups of `size` weights (`None`: a channel) with a scale, and with a zero point of `zero_bits`.
    fn grouped(bits: u64, size: Option<u64>, zero_bits: u64) -> Storage {
        match size {
            Some(size) => Storage {
                block_weights: size,
                block_bits: bits * size + SCALE_BITS + zero_bits,
                arithmetic: None,
            },
            None => Storage::plain(bits, None),
        }
    }

    const FP8: Storage = Storage { block_weights: 1, block_bits: 8, arithmetic: Some("fp8") };
    /// 16 weights of 4 bits share an fp8 scale.
    const NVFP4: Storage = Storage { block_weights: 16, block_bits: 72, arithmetic: None };

    fn from_method(method: &str, keys: &Keys<'_>) -> Result<Option<Storage>, SpecError> {
        Ok(Some(match method {
            "awq" | "gptq" => {
                let bits =
                    first_size(keys, &["bits", "w_bit"])?.ok_or(missing("quantization_config.bits"))?;
                let zero = method == "gptq" || keys.flag("zero_point")? != Some(false);
                Storage::grouped(bits, group_size(keys)?, if zero { bits } else { 0 })
            }
            "fp8" => match keys.get("weight_block_size").and_then(Value::as_array) {
                // A block has an f32 scale.
                Some(block) => {
                    let weights = block.iter().filter_map(Value::as_u64).fold(1, u64::saturating_mul);
                    let weights = weights.clamp(1, 1 << 32);
                    Storage { block_weights: weights, block_bits: 8 * weights + 32, ..Storage::FP8 }
                }
                None => Storage::FP8,
            },
            "fbgemm_fp8" => Storage::FP8,
            "bitsandbytes" => match keys.flag("load_in_8bit")?.unwrap_or(false) {
                true => Storage::plain(8, Some("int8")),
                // Blocks of 64 with an f32 scale; with double quantisation 8 bits, and an f32 for 256 of them.
                false if keys.flag("bnb_4bit_use_double_quant")? == Some(true) => {
                    Storage { block_weights: 64 * 256, block_bits: (4 * 64 + 8) * 256 + 32, arithmetic: None }
                }
                false => Storage { block_weights: 64, block_bits: 4 * 64 + 32, arithmetic: None },
            },
            "mxfp4" => Storage { block_weights: 32, block_bits: 4 * 32 + 8, arithmetic: None },
            "modelopt" => match keys.text("quant_algo")?.unwrap_or_default() {
                "FP8" => Storage::FP8,
                "NVFP4" => Storage::NVFP4,
                other => {
                    return Err(unsupported("quantization_config.quant_algo", other, "FP8 or NVFP4"));
                }
            },
            "compressed-tensors" => Self::compressed(keys)?,
            _ => return Ok(None),
        }))
    }

    /// compressed-tensors: groups of modules, of which one is for linear layers.
    fn compressed(keys: &Keys<'_>) -> Result<Storage, SpecError> {
        let groups = keys.object("config_groups")?.ok_or(missing("quantization_config.config_groups"))?;
        let mut found: Option<Storage> = None;
        for group in groups.0.values().filter_map(Value::as_object) {
            let group = Keys(group);
            let Some(weights) = group.object("weights")? else { continue };
            let bits = weights.size("num_bits")?;
            let is_float = weights.text("type")? == Some("float");
            let activations = group.object("input_activations")?;
            let activation_bits = activations.map_or(Ok(None), |keys| keys.optional_size("num_bits"))?;
            let zero_bits = if weights.flag("symmetric")? == Some(false) { bits } else { 0 };
            let storage = match (bits, is_float) {
                (4, true) => Storage::NVFP4,
                _ => Storage {
                    arithmetic: match (activation_bits, is_float) {
                        (Some(8), true) => Some("fp8"),
                        (Some(8), false) => Some("int8"),
                        _ => None,
                    },
                    ..Storage::grouped(bits, group_size(&weights)?, zero_bits)
                },
            };
            let bits_of = |storage: &Storage| storage.block_bits as f64 / storage.block_weights as f64;
            if found.as_ref().is_some_and(|other| bits_of(other) != bits_of(&storage)) {
                let key = "quantization_config.config_groups";
                return Err(unsupported(
                    key,
                    "groups of different sizes",
                    "one size of weights; pass --weight-bits",
                ));
            }
            found = Some(storage);
        }
        found.ok_or(missing("quantization_config.config_groups"))
    }
}

fn first_size(keys: &Keys<'_>, names: &[&'static str]) -> Result<Option<u64>, SpecError> {
    for name in names {
        if let Some(size) = keys.optional_size(name)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// The weights that share a scale; `None` for a whole channel (-1).
fn group_size(keys: &Keys<'_>) -> Result<Option<u64>, SpecError> {
    let value = keys.get("group_size").or(keys.get("q_group_size"));
    match value {
        None => Ok(None),
        Some(value) => match value.as_i64() {
            Some(-1) => Ok(None),
            Some(size @ 1..=0xffff) => Ok(Some(size as u64)),
            _ => Err(wrong("quantization_config.group_size", "-1 or a positive integer below 65536", value)),
        },
    }
}

/// A module or several that are not quantised: a name, with `*` for any text, or a regular expression after `re:`.
struct Pattern {
    pieces: Vec<String>,
    is_open: bool,
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let text = match text.strip_prefix("re:") {
            Some(expression) => expression.replace(".*", "*").replace(['^', '$', '\\'], ""),
            None => text.to_owned(),
        };
        let text = text.trim_start_matches("language_model.");
        let pieces = text.split('*').filter(|piece| !piece.is_empty()).map(str::to_owned).collect();
        Pattern { pieces, is_open: text.ends_with('*') }
    }

    /// Whether `module` is one of them or inside one.
    fn matches(&self, module: &str) -> bool {
        let mut rest = module;
        for piece in &self.pieces {
            let Some(at) = rest.find(piece.as_str()) else { return false };
            rest = &rest[at + piece.len()..];
        }
        !self.pieces.is_empty() && (self.is_open || rest.is_empty() || rest.starts_with('.'))
    }
}

fn excluded_modules(keys: &Keys<'_>) -> Vec<Pattern> {
    ["modules_to_not_convert", "ignore", "ignored_layers", "llm_int8_skip_modules", "exclude_modules"]
        .iter()
        .filter_map(|key| keys.get(key)?.as_array())
        .flatten()
        .filter_map(Value::as_str)
        .map(Pattern::new)
        .collect()
}

#[cfg(test)]
mod tests;
