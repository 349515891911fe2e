//! Errors of a GPU, with their remedies.

use cudarc::driver::{DriverError, sys::CUresult};
use thiserror::Error;

use crate::launch::LaunchError;
use llmprof_workload::EngineError;

#[derive(Debug, Error)]
pub enum CudaError {
    #[error(
        "the NVIDIA driver does not respond ({0}); check that it is installed and loaded (nvidia-smi) and visible in the container, or use runtime.device=cpu"
    )]
    NoDriver(String),
    #[error(
        "libcuda.so.1 is not found; under WSL the driver is installed on Windows and its libraries are in /usr/lib/wsl/lib: update it there and run wsl --update, or use runtime.device=cpu"
    )]
    NoWindowsDriver,
    #[error(
        "no CUDA device is visible; check nvidia-smi (a GPU in MIG mode needs a slice) and CUDA_VISIBLE_DEVICES, or use runtime.device=cpu"
    )]
    NoDevice,
    #[error(
        "there is no cuda:{asked}; this machine has {count} CUDA devices, counted from 0 (runtime.device=cuda:0)"
    )]
    NoSuchDevice { asked: usize, count: usize },
    #[error(
        "{name} has compute capability {found}, and the built-in kernels need {lowest} or later; use runtime.device=cpu"
    )]
    TooOld { name: String, found: String, lowest: String },
    #[error(
        "{what} needs {asked} on the GPU, {free} are free; try a smaller model, batch or prompt, or stop other processes on the GPU (nvidia-smi)"
    )]
    OutOfMemory { what: &'static str, asked: String, free: String },
    #[error(
        "the GPU has no free memory to start with; stop other processes on the GPU (nvidia-smi) and try again"
    )]
    NoRoom,
    #[error(
        "the GPU stopped: {0}; its context is lost, and a process gets only one: quit and start the program again"
    )]
    Poisoned(String),
    #[error("the driver is too old for this binary ({0}); update it, or build against an older CUDA")]
    DriverTooOld(String),
    #[error(
        "the CUDA kernels were compiled from older sources than this program; run `just kernels` and build again, or use runtime.device=cpu"
    )]
    StaleKernels,
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("CUDA: {0}")]
    Driver(String),
    #[error("cuBLAS failed with status {0}")]
    Blas(i32),
}

impl From<DriverError> for CudaError {
    fn from(error: DriverError) -> Self {
        use CUresult::*;
        let text = match (error.error_name(), error.error_string()) {
            (Ok(name), Ok(string)) => format!("{}, {}", string.to_string_lossy(), name.to_string_lossy()),
            _ => format!("{:?}", error.0),
        };
        match error.0 {
            CUDA_ERROR_NO_DEVICE => CudaError::NoDevice,
            CUDA_ERROR_OUT_OF_MEMORY => CudaError::NoRoom,
            CUDA_ERROR_NOT_INITIALIZED
            | CUDA_ERROR_STUB_LIBRARY
            | CUDA_ERROR_SYSTEM_NOT_READY
            | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => CudaError::NoDriver(text),
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                CudaError::DriverTooOld(text)
            }
            CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED => CudaError::Poisoned(text),
            _ => CudaError::Driver(text),
        }
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        EngineError::Backend(error.to_string())
    }
}
