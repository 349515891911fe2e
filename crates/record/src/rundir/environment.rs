//! The machine of a run: `env.json`.

use serde::Serialize;

use llmprof_base::build::Build;
use llmprof_event::{GpuInfo, HostInfo};

/// The facts that show whether two runs had the same machine.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    pub program: String,
    pub commit: &'static str,
    pub rustc: &'static str,
    pub features: Vec<&'static str>,
    pub arch: &'static str,
    pub host: Option<HostInfo>,
    pub gpus: Vec<GpuInfo>,
    /// Why there is no GPU.
    pub gpu_absent: Option<String>,
    /// Environment variables that affect performance.
    pub variables: Vec<(String, String)>,
}

const RELEVANT_VARIABLES: [&str; 9] = [
    "CANDLE_",
    "CUBLAS_",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "LLMPROF_",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "RAYON_",
];

impl Environment {
    pub fn here() -> Environment {
        let is_relevant = |name: &str| RELEVANT_VARIABLES.iter().any(|prefix| name.starts_with(prefix));
        let mut variables: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| is_relevant(name))
            .collect();
        variables.sort();
        let build = Build::get();
        Environment {
            program: format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
            commit: build.commit,
            rustc: build.rustc,
            features: Vec::new(),
            arch: std::env::consts::ARCH,
            host: None,
            gpus: Vec::new(),
            gpu_absent: None,
            variables,
        }
    }
}
