//! The keys of a `config.json`, validated and with their defaults.

use serde_json::{Map, Value};

use super::{Activation, MAX_LAYERS, RopeScaling, SpecError};
use crate::architectures::Gate;

/// Keeps every product of two sizes inside `u64`.
const MAX_SIZE: u64 = u32::MAX as u64;

/// The rotary embedding.
pub(super) struct Rotation {
    pub theta: f64,
    pub scaling: Option<RopeScaling>,
    /// The base of windowed layers, if it differs.
    pub local_theta: Option<f64>,
}

/// The sizes of attention and the number of layers.
pub(crate) struct Sizes {
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub layers: u64,
}

/// The keys of a config or of an object inside it. Null counts as absent.
pub(crate) struct Keys<'a>(pub &'a Map<String, Value>);

impl<'a> Keys<'a> {
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn optional_size(&self, key: &'static str) -> Result<Option<u64>, SpecError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().ok_or_else(|| wrong(key, "a positive integer", value))? {
            0 => Err(SpecError::Zero { key }),
            n if n > MAX_SIZE => Err(SpecError::TooLarge { key, value: n, limit: MAX_SIZE }),
            n => Ok(Some(n)),
        }
    }

    pub(crate) fn size(&self, key: &'static str) -> Result<u64, SpecError> {
        self.optional_size(key)?.ok_or(missing(key))
    }

    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, SpecError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => Err(wrong(key, "a positive number", value)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, SpecError> {
        self.get(key).map(|v| v.as_bool().ok_or_else(|| wrong(key, "true or false", v))).transpose()
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, SpecError> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| wrong(key, "a string", v))).transpose()
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Keys<'a>>, SpecError> {
        let object = |v: &'a Value| v.as_object().map(Keys).ok_or_else(|| wrong(key, "an object", v));
        self.get(key).map(object).transpose()
    }

    pub(crate) fn sizes(&self) -> Result<Sizes, SpecError> {
        let heads = self.size("num_attention_heads")?;
        let kv_heads = self.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(not_divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads));
        }
        let (hidden, layers) = (self.size("hidden_size")?, self.size("num_hidden_layers")?);
        if layers > MAX_LAYERS {
            return Err(SpecError::TooLarge { key: "num_hidden_layers", value: layers, limit: MAX_LAYERS });
        }
        Ok(Sizes { hidden, heads, kv_heads, layers })
    }

    /// The size of a head: given, or the share of a head in the hidden size.
    pub(crate) fn head_dim(&self, sizes: &Sizes) -> Result<u64, SpecError> {
        let Sizes { hidden, heads, .. } = *sizes;
        match self.optional_size("head_dim")? {
            Some(head_dim) => Ok(head_dim),
            None if hidden % heads != 0 => {
                Err(not_divisible("hidden_size", hidden, "num_attention_heads", heads))
            }
            None => Ok(hidden / heads),
        }
    }

    /// The layers that `layer_types` gives this kind; `None` without that key.
    pub(crate) fn layers_of_type(&self, kind: &str, count: u64) -> Result<Option<Vec<bool>>, SpecError> {
        let key = "layer_types";
        let Some(types) = self.get(key) else { return Ok(None) };
        let list = types.as_array().ok_or_else(|| wrong(key, "a list", types))?;
        if list.len() as u64 != count {
            return Err(SpecError::WrongLength { key: key.to_owned(), expected: count, found: list.len() });
        }
        Ok(Some(list.iter().map(|value| value.as_str() == Some(kind)).collect()))
    }

    /// A list of `count` positive numbers.
    fn numbers(&self, key: &str, count: u64) -> Result<Vec<f64>, SpecError> {
        let value = self.get(key).ok_or(missing(key))?;
        let list = value.as_array().ok_or_else(|| wrong(key, "a list", value))?;
        if list.len() as u64 != count {
            return Err(SpecError::WrongLength { key: key.to_owned(), expected: count, found: list.len() });
        }
        let number = |v: &Value| match v.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(x),
            _ => Err(wrong(key, "a list of positive numbers", v)),
        };
        list.iter().map(number).collect()
    }

    /// Refuses features that the decoder does not have.
    pub(super) fn refuse_unsupported(&self) -> Result<(), SpecError> {
        match self.positive("partial_rotary_factor")? {
            None | Some(1.0) => {}
            Some(factor) => return Err(unsupported("partial_rotary_factor", &factor.to_string(), "1")),
        }
        for key in ["mlp_bias", "attention_out_bias", "use_bidirectional_attention"] {
            if self.flag(key)? == Some(true) {
                return Err(unsupported(key, "true", "false"));
            }
        }
        Ok(())
    }

    pub(super) fn activation(&self, gate: Gate) -> Result<Activation, SpecError> {
        let key = if gate == Gate::HiddenActivation { "hidden_activation" } else { "hidden_act" };
        match self.text(key)? {
            None | Some("silu") if gate == Gate::SwigluOai => match self.positive("swiglu_limit")? {
                None | Some(7.0) => Ok(Activation::SwigluOai),
                Some(other) => Err(unsupported("swiglu_limit", &other.to_string(), "7")),
            },
            None | Some("silu") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::Gelu),
            Some(other) => Err(unsupported(key, other, "silu, gelu_pytorch_tanh or gelu")),
        }
    }

    /// The layers that `layer_types` gives a window; `None` without that key.
    pub(crate) fn windowed_layers(&self, layers: u64) -> Result<Option<Vec<bool>>, SpecError> {
        self.get("layer_types").map(|types| layer_types(types, layers)).transpose()
    }

    /// Newer configs have base and scaling under `rope_parameters`, once or for each layer type.
    pub(super) fn rope(&self, has_local: bool, head_dim: u64) -> Result<Rotation, SpecError> {
        let parameters = self.object("rope_parameters")?;
        let of_kind = |kind| parameters.as_ref().map_or(Ok(None), |p| p.object(kind));
        let (local, global) = (of_kind("sliding_attention")?, of_kind("full_attention")?);
        let global = global.or(parameters);
        let theta_in = |keys: &Option<Keys<'_>>| keys.as_ref().map_or(Ok(None), |k| k.positive("rope_theta"));
        let theta = match theta_in(&global)? {
            Some(theta) => theta,
            None => self.positive("rope_theta")?.unwrap_or(10_000.0),
        };
        let local_theta = match (has_local, theta_in(&local)?) {
            (true, Some(theta)) => Some(theta),
            (true, None) => self.positive("rope_local_base_freq")?,
            (false, _) => None,
        };
        if let Some(kind) = local.as_ref().map_or(Ok(None), Keys::rope_kind)? {
            return Err(unsupported("rope_parameters.sliding_attention", kind, "default"));
        }
        let scaling = match self.object("rope_scaling")?.or(global) {
            Some(scaling) => scaling.rope_scaling(self, head_dim)?,
            None => None,
        };
        Ok(Rotation { theta, scaling, local_theta })
    }

    /// The type of the scaling; `None` for no scaling.
    fn rope_kind(&self) -> Result<Option<&'a str>, SpecError> {
        let kind = match self.text("rope_type")? {
            Some(kind) => Some(kind),
            None => self.text("type")?,
        };
        Ok(kind.filter(|&kind| kind != "default"))
    }

    /// `model` is the config that contains these keys.
    fn rope_scaling(&self, model: &Keys<'_>, head_dim: u64) -> Result<Option<RopeScaling>, SpecError> {
        let Some(kind) = self.rope_kind()? else { return Ok(None) };
        let number = |key| self.positive(key)?.ok_or(missing(key));
        let original = || self.optional_size("original_max_position_embeddings");
        let positions = || model.optional_size("max_position_embeddings");
        Ok(Some(match kind {
            "linear" => RopeScaling::Linear { factor: number("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_positions: self.size("original_max_position_embeddings")? as usize,
            },
            "yarn" => {
                let factor = number("factor")?;
                let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
                let attention_factor = match (self.positive("attention_factor")?, self.positive("mscale")?) {
                    (Some(given), _) => given,
                    (None, Some(mscale)) => {
                        scale(mscale) / self.positive("mscale_all_dim")?.map_or(1.0, scale)
                    }
                    (None, None) => scale(1.0),
                };
                RopeScaling::Yarn {
                    factor,
                    beta_fast: self.positive("beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("beta_slow")?.unwrap_or(1.0),
                    // The default is the context of the model.
                    original_max_positions: original()?
                        .or(positions()?)
                        .ok_or(missing("original_max_position_embeddings"))?
                        as usize,
                    truncate: self.flag("truncate")?.unwrap_or(true),
                    attention_factor,
                }
            }
            // Phi-3 used "su" before "longrope".
            "su" | "longrope" => {
                // Phi-3 has this key next to `rope_scaling`.
                let original = match model.optional_size("original_max_position_embeddings")? {
                    Some(original) => Some(original),
                    None => original()?,
                }
                .ok_or(missing("original_max_position_embeddings"))?;
                let factor = match (self.positive("factor")?, positions()?) {
                    (Some(factor), _) => factor,
                    (None, Some(positions)) => positions as f64 / original as f64,
                    (None, None) => 1.0,
                };
                let default_factor = match factor > 1.0 && original > 1 {
                    true => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
                    false => 1.0,
                };
                RopeScaling::LongRope {
                    short: self.numbers("short_factor", head_dim / 2)?,
                    long: self.numbers("long_factor", head_dim / 2)?,
                    original_max_positions: original as usize,
                    attention_factor: self.positive("attention_factor")?.unwrap_or(default_factor),
                }
            }
            other => return Err(unsupported("rope_scaling", other, "linear, llama3, yarn or longrope")),
        }))
    }
}

/// The windowed layers in `layer_types`.
fn layer_types(types: &Value, layers: u64) -> Result<Vec<bool>, SpecError> {
    let key = "layer_types";
    let list = types.as_array().ok_or_else(|| wrong(key, "a list", types))?;
    if list.len() as u64 != layers {
        return Err(SpecError::WrongLength { key: key.to_owned(), expected: layers, found: list.len() });
    }
    let is_windowed = |v: &Value| match v.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        Some(other) => Err(unsupported(key, other, "sliding_attention or full_attention")),
        None => Err(wrong(key, "a list of strings", v)),
    };
    list.iter().map(is_windowed).collect()
}

pub(crate) fn missing(key: &str) -> SpecError {
    SpecError::MissingKey { key: key.to_owned() }
}

pub(crate) fn wrong(key: &str, expected: &'static str, found: &Value) -> SpecError {
    let found = match found {
        Value::Number(_) | Value::Bool(_) | Value::String(_) => found.to_string(),
        other => kind_of(other).to_owned(),
    };
    SpecError::WrongType { key: key.to_owned(), expected, found }
}

pub(crate) fn unsupported(key: &'static str, found: &str, supported: &'static str) -> SpecError {
    SpecError::Unsupported { key, found: found.to_owned(), supported }
}

fn not_divisible(key: &'static str, value: u64, divisor_key: &'static str, divisor: u64) -> SpecError {
    SpecError::NotDivisible { key, value, divisor_key, divisor }
}

pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
