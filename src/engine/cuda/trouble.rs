//! What can go wrong with a GPU, and what to do about it.

use cudarc::{
    cublas::{result::CublasError, sys::cublasStatus_t},
    driver::{DriverError, sys::CUresult},
};
use thiserror::Error;

use crate::engine::EngineError;

/// Every message names the thing and the remedy.
#[derive(Debug, Error)]
pub enum CudaTrouble {
    #[error(
        "the NVIDIA driver does not answer ({0}); is it installed and loaded (nvidia-smi), and does the container have it?"
    )]
    NoDriver(String),
    #[error(
        "no CUDA device is visible; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use runtime.device=cpu"
    )]
    NoDevice,
    #[error("there is no cuda:{asked}; this machine has {count}, counted from 0 (runtime.device=cuda:0)")]
    NoSuchDevice { asked: usize, count: usize },
    #[error(
        "this binary was built for compute capability {built}, {name} has {found}; build again with CUDA_COMPUTE_CAP={remedy}"
    )]
    WrongCapability { built: String, name: String, found: String, remedy: String },
    #[error(
        "{what} needs {asked} on the GPU, {free} are free; try a smaller model, batch or prompt, or end what else runs there (nvidia-smi)"
    )]
    OutOfMemory { what: &'static str, asked: String, free: String },
    #[error(
        "the GPU has no memory left to begin with; end what else runs there (nvidia-smi), and start again"
    )]
    NoRoom,
    #[error(
        "the GPU stopped: {0}; its context is lost, and CUDA gives a process no other: quit and start the program again"
    )]
    Poisoned(String),
    #[error("the driver is too old for this binary ({0}); update it, or build against an older CUDA")]
    DriverTooOld(String),
    #[error("CUDA: {0}")]
    Driver(String),
    #[error("cuBLAS: {0}")]
    Blas(String),
}

impl From<DriverError> for CudaTrouble {
    fn from(error: DriverError) -> Self {
        use CUresult::*;
        let words = match (error.error_name(), error.error_string()) {
            (Ok(name), Ok(text)) => format!("{}, {}", text.to_string_lossy(), name.to_string_lossy()),
            _ => format!("{:?}", error.0),
        };
        match error.0 {
            CUDA_ERROR_NO_DEVICE => CudaTrouble::NoDevice,
            CUDA_ERROR_OUT_OF_MEMORY => CudaTrouble::NoRoom,
            CUDA_ERROR_NOT_INITIALIZED
            | CUDA_ERROR_STUB_LIBRARY
            | CUDA_ERROR_SYSTEM_NOT_READY
            | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => CudaTrouble::NoDriver(words),
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                CudaTrouble::DriverTooOld(words)
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
            | CUDA_ERROR_CONTEXT_IS_DESTROYED => CudaTrouble::Poisoned(words),
            _ => CudaTrouble::Driver(words),
        }
    }
}

impl From<CublasError> for CudaTrouble {
    fn from(error: CublasError) -> Self {
        match error.0 {
            cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => CudaTrouble::NoRoom,
            status => CudaTrouble::Blas(format!("{status:?}")),
        }
    }
}

impl From<CudaTrouble> for EngineError {
    fn from(trouble: CudaTrouble) -> Self {
        EngineError::Backend(trouble.to_string())
    }
}
