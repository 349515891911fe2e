//! The types of weights and of the KV cache, and how weights are quantised.

use serde::{Deserialize, Serialize};

/// An enum whose values have names, by which they are written in configurations and recordings.
macro_rules! named {
    ($(#[$about:meta])* $enum:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $enum {
            $($(#[$doc])* #[serde(rename = $name)] $value,)*
        }

        impl $enum {
            pub const ALL: &'static [$enum] = &[$($enum::$value),*];

            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$value => $name,)*
                }
            }
        }
    };
}

named! {
    /// How an unquantised number is stored.
    Dtype {
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
    }
}

impl Dtype {
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
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

named! {
    /// How weights are quantised: a mix of types as llama.cpp names its files, or one type.
    Scheme {
        Q4_0 = "q4_0",
        Q4_1 = "q4_1",
        Q5_0 = "q5_0",
        Q5_1 = "q5_1",
        Q8_0 = "q8_0",
        Q2K = "q2_k",
        Q3KM = "q3_k_m",
        Q4KM = "q4_k_m",
        Q5KM = "q5_k_m",
        Q6K = "q6_k",
        Iq4Nl = "iq4_nl",
        Iq4Xs = "iq4_xs",
        /// Four bits with an exponent in the MLP or the experts, eight elsewhere.
        Mxfp4 = "mxfp4",
        /// FP8 (e4m3), on a GPU.
        Fp8 = "fp8",
    }
}
