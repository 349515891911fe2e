//! The kernels that are built into the program, compiled ahead of time from `kernels/`. `build.rs` chooses the directory.

use std::{fmt, sync::LazyLock};

use serde::Deserialize;

use llmprof_config::Dtype;

macro_rules! image {
    ($name:expr) => {
        include_bytes!(concat!(env!("LLMPROF_KERNELS"), "/", $name, ".fatbin"))
    };
}

macro_rules! images_of {
    ($dtype:literal) => {
        [
            image!(concat!("decode_attention.", $dtype)),
            image!(concat!("prefill_attention.", $dtype)),
            image!(concat!("product.", $dtype)),
            image!(concat!("rope.", $dtype)),
            image!(concat!("rows.", $dtype)),
            image!(concat!("skinny.", $dtype)),
            image!(concat!("synthetic.", $dtype)),
        ]
    };
}

pub const HOPPER: u32 = 90;

pub(super) const MANIFEST_JSON: &str = include_str!(concat!(env!("LLMPROF_KERNELS"), "/manifest.json"));

/// Whether the images were compiled from older sources, so that they may not fit the code that launches them.
pub(super) const ARE_STALE: bool = cfg!(stale_kernels);

/// Kernels that only some models need.
#[derive(Debug, Clone, Copy, Default)]
pub struct Needs {
    pub quantised: bool,
    pub experts: bool,
    pub fp8: bool,
    pub eight_bit_cache: bool,
    /// All layers of a step as one kernel, in bf16 on 9.0.
    pub layers: bool,
}

/// The images of the kernels for numbers of one type: machine code for each capability of the manifest, and PTX for later GPUs.
pub fn images(dtype: Dtype, needs: Needs, capability: u32) -> Vec<&'static [u8]> {
    let of_dtype: [&[u8]; 7] = match dtype {
        Dtype::Bf16 => images_of!("bf16"),
        Dtype::F16 => images_of!("f16"),
        Dtype::F32 => images_of!("f32"),
    };
    let for_hopper: &[&[u8]] = match dtype {
        _ if capability != HOPPER => &[],
        Dtype::Bf16 => &[image!("product_hopper.bf16"), image!("prefill_attention_hopper.bf16")],
        Dtype::F16 => &[image!("product_hopper.f16"), image!("prefill_attention_hopper.f16")],
        Dtype::F32 => &[],
    };
    let sampling: &[u8] = image!("sampling");
    let quantised: &[u8] = match dtype {
        Dtype::Bf16 => image!("quantised.bf16"),
        Dtype::F16 => image!("quantised.f16"),
        Dtype::F32 => image!("quantised.f32"),
    };
    let experts: &[u8] = match dtype {
        Dtype::Bf16 => image!("experts.bf16"),
        Dtype::F16 => image!("experts.f16"),
        Dtype::F32 => image!("experts.f32"),
    };
    let fp8: &[u8] = match dtype {
        Dtype::Bf16 => image!("fp8.bf16"),
        Dtype::F16 => image!("fp8.f16"),
        Dtype::F32 => image!("fp8.f32"),
    };
    let eight_bit_cache: &[u8] = match dtype {
        Dtype::Bf16 => image!("eight_bit_cache.bf16"),
        Dtype::F16 => image!("eight_bit_cache.f16"),
        Dtype::F32 => image!("eight_bit_cache.f32"),
    };
    let layers: &[u8] = image!("layers.bf16");
    let wanted = [
        (needs.quantised, quantised),
        (needs.quantised, image!("quantised_rows")),
        (needs.quantised, image!("tiles")),
        (needs.experts, experts),
        (needs.fp8, fp8),
        (needs.fp8, image!("fp8_rows")),
        (needs.eight_bit_cache, eight_bit_cache),
        (needs.layers && dtype == Dtype::Bf16 && capability == HOPPER, layers),
    ];
    let rest = wanted.into_iter().filter(|(needed, _)| *needed).map(|(_, image)| image);
    of_dtype.into_iter().chain([sampling]).chain(for_hopper.iter().copied()).chain(rest).collect()
}

/// The inputs and targets of the images' compilation.
#[derive(Debug, Deserialize)]
pub struct Manifest {
    /// The version of the compiler.
    pub cuda: String,
    /// Capabilities with machine code, e.g. 90 for 9.0.
    pub capabilities: Vec<u32>,
    /// Capabilities with PTX, which the driver compiles for every later capability.
    pub ptx: Vec<u32>,
}

/// `compiled with CUDA 13.0 for compute capability 8.0, 9.0; PTX of 8.0, 9.0 for later GPUs`.
impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[u32]| all.iter().copied().map(dotted).collect::<Vec<_>>().join(", ");
        let (code, ptx) = (list(&self.capabilities), list(&self.ptx));
        write!(
            f,
            "compiled with CUDA {} for compute capability {code}; PTX of {ptx} for later GPUs",
            self.cuda
        )
    }
}

impl Manifest {
    pub fn get() -> &'static Manifest {
        static MANIFEST: LazyLock<Manifest> =
            LazyLock::new(|| serde_json::from_str(MANIFEST_JSON).expect("a test reads it"));
        &MANIFEST
    }

    /// Whether the images are older than their sources: then they do not run.
    pub fn is_stale(&self) -> bool {
        ARE_STALE
    }

    pub fn cuda_major(&self) -> u32 {
        self.cuda.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
    }

    pub fn lowest(&self) -> u32 {
        self.capabilities.iter().chain(&self.ptx).copied().min().unwrap_or(u32::MAX)
    }
}

/// `9.0` for the capability 90.
pub fn dotted(capability: u32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_read() {
        let manifest = Manifest::get();
        assert_eq!((manifest.lowest(), manifest.cuda_major()), (80, 13));
        let text = manifest.to_string();
        assert!(text.contains("8.0, 8.6, 8.9, 9.0, 10.0, 12.0; PTX of 8.0, 9.0"), "{text}");
    }
}
