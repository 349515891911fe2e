//! The types of weights and of the KV cache, and how weights are quantised.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// How the KV cache keeps its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCacheDtype {
    /// In the model's type.
    #[default]
    Auto,
    /// FP8 (e4m3), limited to ±448.
    Fp8,
    /// Eight bits and a scale for each 32.
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl KvCacheDtype {
    /// Bits of 32 numbers, where plain ones are `dtype`.
    pub fn bits_of_32(self, dtype: Dtype) -> u64 {
        match self {
            KvCacheDtype::Auto => 32 * 8 * dtype.bytes(),
            KvCacheDtype::Fp8 => 32 * 8,
            KvCacheDtype::Q8_0 => 32 * 8 + 16,
        }
    }
}

/// How weights are quantised: a mix of types as llama.cpp names its files, or one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3KM,
    Q4KM,
    Q5KM,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    /// Four bits with an exponent in the MLP or the experts, eight elsewhere.
    Mxfp4,
    /// FP8 (e4m3), on a GPU.
    Fp8,
}

impl Scheme {
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Q4_0 => "q4_0",
            Scheme::Q4_1 => "q4_1",
            Scheme::Q5_0 => "q5_0",
            Scheme::Q5_1 => "q5_1",
            Scheme::Q8_0 => "q8_0",
            Scheme::Q2K => "q2_k",
            Scheme::Q3KM => "q3_k_m",
            Scheme::Q4KM => "q4_k_m",
            Scheme::Q5KM => "q5_k_m",
            Scheme::Q6K => "q6_k",
            Scheme::Iq4Nl => "iq4_nl",
            Scheme::Iq4Xs => "iq4_xs",
            Scheme::Mxfp4 => "mxfp4",
            Scheme::Fp8 => "fp8",
        }
    }
}
