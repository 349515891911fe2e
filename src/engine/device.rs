//! Resolves the device of a run, and makes the engine for it.

use super::{
    Engine, EngineError, Progress,
    candle::{CandleEngine, CandleOptions, LoadedCpu},
    load::Loadable,
};
use crate::event::Device;

/// The device that `asked` means here: `auto`, `cpu`, `cuda` or `cuda:0`, `cuda:1`, …. `auto` is the GPU numbered
/// `index` where this build can use one, the CPU otherwise.
pub fn resolve(asked: &str, index: u32) -> Result<Device, EngineError> {
    let named = asked.strip_prefix("cuda").map(|rest| match rest.strip_prefix(':') {
        Some(number) => number.parse().ok(),
        None if rest.is_empty() => Some(index),
        None => None,
    });
    match (asked, named) {
        ("cpu", _) => Ok(Device::Cpu),
        ("auto", _) if has_gpu() => Ok(Device::Cuda(index)),
        ("auto", _) => Ok(Device::Cpu),
        (_, Some(Some(number))) if cfg!(feature = "cuda") => Ok(Device::Cuda(number)),
        (_, Some(Some(_))) => Err(no_device(asked, NO_CUDA)),
        _ => Err(no_device(asked, "devices are auto, cpu, cuda and cuda:0, cuda:1, …")),
    }
}

const NO_CUDA: &str = "this build has no CUDA; use runtime.device=cpu";

fn no_device(asked: &str, remedy: &str) -> EngineError {
    EngineError::NoDevice { asked: asked.to_owned(), remedy: remedy.to_owned() }
}

/// The error for a device that this build has no engine for.
pub(super) fn unsupported(device: &Device) -> EngineError {
    no_device(&device.to_string(), NO_CUDA)
}

/// Whether the model could be made on `device`, without making it.
pub fn check(device: &Device, options: &CandleOptions) -> Result<(), EngineError> {
    match device {
        Device::Cpu => CandleEngine::check(options),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => super::cuda::CudaEngine::check(options, *index as usize),
        other => Err(unsupported(other)),
    }
}

/// Checks that the model fits on `device`, then makes it there. `progress` may stop that.
pub fn make_engine(
    device: &Device,
    options: &CandleOptions,
    progress: Progress<'_>,
) -> Result<Box<dyn Engine>, EngineError> {
    match device {
        Device::Cpu => Ok(Box::new(CandleEngine::new(options, progress)?)),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            Ok(Box::new(super::cuda::CudaEngine::new(options, *index as usize, progress)?))
        }
        other => Err(unsupported(other)),
    }
}

/// The device itself, to run loads on; the CPU with so many `threads`, or one for each core.
pub fn loadable(device: &Device, threads: Option<u32>) -> Result<Box<dyn Loadable>, EngineError> {
    match device {
        Device::Cpu => Ok(Box::new(LoadedCpu::new(threads)?)),
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => Ok(Box::new(super::cuda::LoadedGpu::new(*index as usize)?)),
        other => Err(unsupported(other)),
    }
}

/// The driver's identifier of the GPU; `None` for other devices, and where the driver does not report it.
pub fn gpu_uuid(device: &Device) -> Option<String> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => super::cuda::Gpu::uuid(*index as usize),
        _ => None,
    }
}

/// The compute capability of a GPU, as 90 for 9.0; `None` for other devices, and where the driver does not report it.
pub fn compute_capability(device: &Device) -> Option<u32> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => super::cuda::Gpu::capability(*index as usize),
        _ => None,
    }
}

/// The compute capability that the kernels of this build are for, as 90 for 9.0; `None` in a build without CUDA.
pub fn built_for() -> Option<u32> {
    option_env!("LLMPROF_CUDA_CAP").filter(|_| cfg!(feature = "cuda")).and_then(|text| text.parse().ok())
}

/// Whether kernels for `built` run on a GPU of the capability `found`: code with the features of one generation runs only
/// there, other code on all later ones.
pub fn runs_on(built: u32, found: u32) -> bool {
    if built >= 90 { found == built } else { found >= built }
}

#[cfg(feature = "cuda")]
fn has_gpu() -> bool {
    super::cuda::Gpu::count().is_ok_and(|count| count > 0)
}

#[cfg(not(feature = "cuda"))]
fn has_gpu() -> bool {
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
        assert_eq!(resolve("cpu", 0).unwrap(), Device::Cpu);
        let refused = |asked: &str| resolve(asked, 0).unwrap_err().to_string();
        assert!(refused("tpu").contains("devices are auto, cpu, cuda and cuda:0"));
        assert!(refused("cuda0").contains("devices are"));
        assert!(refused("cuda:x").contains("devices are"));
        if cfg!(feature = "cuda") {
            assert_eq!(resolve("cuda", 1).unwrap(), Device::Cuda(1));
            assert_eq!(resolve("cuda:3", 1).unwrap(), Device::Cuda(3));
        } else {
            assert_eq!(resolve("auto", 0).unwrap(), Device::Cpu);
            let message =
                "device \"cuda:0\" is not available: this build has no CUDA; use runtime.device=cpu";
            assert_eq!(refused("cuda:0"), message);
        }
    }
}
