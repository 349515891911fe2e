//! Resolves the device of a run, and creates the engine for it.

use super::{
    candle::{CandleEngine, CandleOptions, LoadedCpu},
    cuda::{self, CudaError, Gpu},
    load::Loadable,
    speculation::Revisable,
};
use llmprof_event::Device;
use llmprof_workload::{EngineError, Progress};

/// Resolves `asked` on this machine: `auto`, `cpu`, `cuda` or `cuda:0`, `cuda:1`, …. `auto` is GPU number `index` if
/// the driver and the built-in kernels can use it, otherwise the CPU.
pub fn resolve(asked: &str, index: u32) -> Result<Device, EngineError> {
    let named = asked.strip_prefix("cuda").map(|rest| match rest.strip_prefix(':') {
        Some(number) => number.parse().ok(),
        None if rest.is_empty() => Some(index),
        None => None,
    });
    match (asked, named) {
        ("cpu", _) => Ok(Device::Cpu),
        ("auto", _) if usable_gpu(index).is_ok() => Ok(Device::Cuda(index)),
        ("auto", _) => Ok(Device::Cpu),
        (_, Some(Some(number))) => Ok(Device::Cuda(number)),
        _ => Err(no_device(asked, "devices are auto, cpu, cuda and cuda:0, cuda:1, …")),
    }
}

fn no_device(asked: &str, remedy: &str) -> EngineError {
    EngineError::NoDevice { asked: asked.to_owned(), remedy: remedy.to_owned() }
}

/// The error for a device that has no engine.
pub(super) fn unsupported(device: &Device) -> EngineError {
    let remedy = match device {
        Device::Cuda(_) => {
            "candle's own kernels are not in this build (feature candle-cuda); use runtime=candle or runtime.device=cpu"
        }
        _ => "there is no engine for it; use runtime.device=cpu",
    };
    no_device(&device.to_string(), remedy)
}

/// Checks that the model fits on `device`, without creating it.
pub fn check(device: &Device, options: &CandleOptions) -> Result<(), EngineError> {
    match device {
        Device::Cpu => CandleEngine::check(options),
        Device::Cuda(index) => cuda::CudaEngine::check(options, usable(*index)?),
        other => Err(unsupported(other)),
    }
}

/// Checks that the model fits on `device`, then creates the engine. `progress` may stop that.
pub fn make_engine(
    device: &Device,
    options: &CandleOptions,
    progress: Progress<'_>,
) -> Result<Box<dyn Revisable>, EngineError> {
    match device {
        Device::Cpu => Ok(Box::new(CandleEngine::new(options, progress)?)),
        Device::Cuda(index) => Ok(Box::new(cuda::CudaEngine::new(options, usable(*index)?, progress)?)),
        other => Err(unsupported(other)),
    }
}

/// A device to run loads on; the CPU with the given number of `threads`, or one per core.
pub fn loadable(device: &Device, threads: Option<u32>) -> Result<Box<dyn Loadable>, EngineError> {
    match device {
        Device::Cpu => Ok(Box::new(LoadedCpu::new(threads)?)),
        Device::Cuda(index) => Ok(Box::new(cuda::LoadedGpu::new(usable(*index)?)?)),
        other => Err(unsupported(other)),
    }
}

/// The driver's identifier of the GPU; `None` for other devices, and if the driver does not report it.
pub fn gpu_uuid(device: &Device) -> Option<String> {
    match device {
        Device::Cuda(index) => cuda::Gpu::uuid(*index as usize),
        _ => None,
    }
}

/// The compute capability of a GPU, e.g. 90 for 9.0; `None` for other devices, and if the driver does not report it.
pub fn compute_capability(device: &Device) -> Option<u32> {
    match device {
        Device::Cuda(index) => cuda::Gpu::capability(*index as usize),
        _ => None,
    }
}

/// Whether a model can run on GPU number `index`; otherwise why not.
pub fn usable_gpu(index: u32) -> Result<(), CudaError> {
    Gpu::check_usable(index as usize)
}

/// Why an installed GPU is not used.
pub fn unused_gpu(index: u32) -> Option<String> {
    match usable_gpu(index) {
        Err(error @ (CudaError::TooOld { .. } | CudaError::StaleKernels)) => Some(error.to_string()),
        _ => None,
    }
}

/// The device of a model of candle-transformers: a GPU only in a build with candle's own kernels.
pub fn for_stock(asked: &str, resolved: Device) -> Device {
    match resolved {
        Device::Cuda(_) if asked == "auto" && !cfg!(feature = "candle-cuda") => Device::Cpu,
        resolved => resolved,
    }
}

/// The number of a usable GPU.
fn usable(index: u32) -> Result<usize, EngineError> {
    usable_gpu(index).map_err(|error| no_device(&Device::Cuda(index).to_string(), &error.to_string()))?;
    Ok(index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_name() {
        assert_eq!(resolve("cpu", 0).unwrap(), Device::Cpu);
        let refused = |asked: &str| resolve(asked, 0).unwrap_err().to_string();
        assert!(refused("tpu").contains("devices are auto, cpu, cuda and cuda:0"));
        assert!(refused("cuda0").contains("devices are"));
        assert!(refused("cuda:x").contains("devices are"));
        assert_eq!(resolve("cuda", 1).unwrap(), Device::Cuda(1));
        assert_eq!(resolve("cuda:3", 1).unwrap(), Device::Cuda(3));
    }
}
