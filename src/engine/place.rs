//! Where a model runs, and the engine made for that place.

use super::{
    Engine, EngineError, Progress,
    candle::{CandleEngine, CandleOptions, LoadedCpu},
    load::Loadable,
};

/// A device of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// By its number as CUDA counts.
    Cuda(usize),
}

impl Place {
    /// What `asked` means here: `auto`, `cpu`, `cuda` or `cuda:0`, `cuda:1`, …. `auto` is the GPU numbered `index`
    /// where this build can use one, the CPU otherwise.
    pub fn resolve(asked: &str, index: usize) -> Result<Place, EngineError> {
        let no_device =
            |remedy: &str| EngineError::NoDevice { asked: asked.to_owned(), remedy: remedy.to_owned() };
        let named = asked.strip_prefix("cuda").map(|rest| match rest.strip_prefix(':') {
            Some(number) => number.parse().ok(),
            None if rest.is_empty() => Some(index),
            None => None,
        });
        match (asked, named) {
            ("cpu", _) => Ok(Place::Cpu),
            ("auto", _) if gpu_there() => Ok(Place::Cuda(index)),
            ("auto", _) => Ok(Place::Cpu),
            (_, Some(Some(number))) if cfg!(feature = "cuda") => Ok(Place::Cuda(number)),
            (_, Some(Some(_))) => Err(no_device("CUDA is not in it; use runtime.device=cpu")),
            _ => Err(no_device("devices are auto, cpu and cuda:0, cuda:1, …")),
        }
    }

    /// Whether the model could be made here, without making it.
    pub fn check(self, options: &CandleOptions) -> Result<(), EngineError> {
        match self {
            Place::Cpu => CandleEngine::check(options),
            #[cfg(feature = "cuda")]
            Place::Cuda(index) => super::cuda::CudaEngine::check(options, index),
            #[cfg(not(feature = "cuda"))]
            Place::Cuda(_) => Place::resolve(&self.to_string(), 0).map(|_| ()),
        }
    }

    /// Checks that the model fits, then makes it here. `progress` may stop that.
    pub fn make(
        self,
        options: &CandleOptions,
        progress: Progress<'_>,
    ) -> Result<Box<dyn Engine>, EngineError> {
        match self {
            #[cfg(feature = "cuda")]
            Place::Cuda(index) => Ok(Box::new(super::cuda::CudaEngine::new(options, index, progress)?)),
            _ => Ok(Box::new(CandleEngine::new(options, progress)?)),
        }
    }

    /// The device itself, to be put under load; the CPU with so many `threads`, or one for each core.
    pub fn loadable(self, threads: Option<u32>) -> Result<Box<dyn Loadable>, EngineError> {
        match self {
            #[cfg(feature = "cuda")]
            Place::Cuda(index) => Ok(Box::new(super::cuda::LoadedGpu::new(index)?)),
            _ => Ok(Box::new(LoadedCpu::new(threads)?)),
        }
    }

    /// What the driver calls the GPU everywhere; `None` where there is none, or nobody to ask.
    pub fn gpu_uuid(self) -> Option<String> {
        match self {
            #[cfg(feature = "cuda")]
            Place::Cuda(index) => super::cuda::Gpu::uuid(index),
            _ => None,
        }
    }

    /// The engine's name in records.
    pub fn engine(self) -> &'static str {
        match self {
            Place::Cpu => "candle",
            Place::Cuda(_) => "cuda",
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// The compute capability that the kernels of this build are for, as 90 for 9.0; `None` in a build without CUDA.
pub fn built_for() -> Option<u32> {
    option_env!("LLMPROF_CUDA_CAP").filter(|_| cfg!(feature = "cuda")).and_then(|text| text.parse().ok())
}

/// Whether kernels for `built` run on a GPU of the capability `found`: machine code of one generation's own features
/// runs on that generation alone, other code on all later ones.
pub fn runs_on(built: u32, found: u32) -> bool {
    if built >= 90 { found == built } else { found >= built }
}

#[cfg(feature = "cuda")]
fn gpu_there() -> bool {
    super::cuda::Gpu::count().is_ok_and(|count| count > 0)
}

#[cfg(not(feature = "cuda"))]
fn gpu_there() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_run_where_they_can() {
        let cases = [
            (80, 80, true),
            (80, 86, true),
            (80, 90, true),
            (86, 80, false),
            (90, 90, true),
            (90, 100, false),
        ];
        for (built, found, wanted) in cases {
            assert_eq!(runs_on(built, found), wanted, "{built} on {found}");
        }
        assert_eq!(built_for().is_some(), cfg!(feature = "cuda"));
    }

    #[test]
    fn devices_are_found_by_name() {
        assert_eq!(Place::resolve("cpu", 0).unwrap(), Place::Cpu);
        let refused = |asked: &str| Place::resolve(asked, 0).unwrap_err().to_string();
        assert!(refused("tpu").contains("devices are auto, cpu and cuda:0"));
        assert!(refused("cuda0").contains("devices are"));
        assert!(refused("cuda:x").contains("devices are"));
        if cfg!(feature = "cuda") {
            assert_eq!(Place::resolve("cuda", 1).unwrap(), Place::Cuda(1));
            assert_eq!(Place::resolve("cuda:3", 1).unwrap(), Place::Cuda(3));
        } else {
            assert_eq!(Place::resolve("auto", 0).unwrap(), Place::Cpu);
            let words = "no device \"cuda:0\" in this build; CUDA is not in it; use runtime.device=cpu";
            assert_eq!(refused("cuda:0"), words);
        }
    }
}
