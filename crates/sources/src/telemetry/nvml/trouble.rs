//! The meaning of NVML's errors: a permanent refusal, a lost GPU, or no NVML at all.

use nvml_wrapper::error::NvmlError;

use crate::telemetry::absent::Absence;
use llmprof_event::{GpuInfo, Refusal};

/// Return codes that the wrapper does not know.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;
const DEPRECATED: u32 = 26;
const GPU_NOT_FOUND: u32 = 28;

/// Whether the error is permanent.
pub(super) fn is_refusal(error: &NvmlError) -> bool {
    use NvmlError as E;
    matches!(
        error,
        E::NotSupported
            | E::NoPermission
            | E::InvalidArg
            | E::FunctionNotFound
            | E::FailedToLoadSymbol(_)
            | E::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH | DEPRECATED)
            | E::Utf8Error(_)
    )
}

pub(super) fn is_lost(error: &NvmlError) -> bool {
    use NvmlError as E;
    matches!(error, E::GpuLost | E::ResetRequired | E::Uninitialized | E::UnexpectedVariant(GPU_NOT_FOUND))
}

/// The reason of a refusal by this GPU.
pub(super) fn refusal(error: &NvmlError, gpu: &GpuInfo, wsl: bool) -> Refusal {
    use NvmlError as E;
    match error {
        E::NoPermission if gpu.mig == Some(true) => Refusal::MigPermission,
        E::NoPermission => Refusal::PermissionDenied,
        E::FunctionNotFound | E::FailedToLoadSymbol(_) | E::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH) => {
            Refusal::OldDriver
        }
        E::NotSupported | E::InvalidArg | E::UnexpectedVariant(DEPRECATED) => match () {
            () if wsl => Refusal::Wsl,
            () if gpu.mig == Some(true) => Refusal::Mig,
            () if gpu.virtualization.is_some() => Refusal::VirtualGpu,
            () => Refusal::Unsupported,
        },
        error => Refusal::Other(error.to_string()),
    }
}

pub(super) fn absence(error: NvmlError) -> Absence {
    match error {
        NvmlError::LibloadingError(error) => Absence::LibraryMissing { detail: error.to_string() },
        NvmlError::LibraryNotFound => Absence::LibraryMissing { detail: error.to_string() },
        NvmlError::DriverNotLoaded => Absence::DriverNotLoaded,
        NvmlError::LibRmVersionMismatch => Absence::VersionMismatch,
        NvmlError::NoPermission => Absence::NoPermission,
        NvmlError::NotFound => Absence::NoDevices,
        error => Absence::Broken { detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_reason_of_its_machine() {
        let whole = GpuInfo::default();
        let slice = GpuInfo { mig: Some(true), ..GpuInfo::default() };
        let part = GpuInfo { virtualization: Some("vGPU".to_owned()), ..GpuInfo::default() };
        let cases = [
            (NvmlError::NotSupported, &whole, false, Refusal::Unsupported),
            (NvmlError::NotSupported, &whole, true, Refusal::Wsl),
            (NvmlError::NotSupported, &slice, false, Refusal::Mig),
            (NvmlError::NotSupported, &part, false, Refusal::VirtualGpu),
            (NvmlError::NoPermission, &whole, false, Refusal::PermissionDenied),
            (NvmlError::NoPermission, &slice, false, Refusal::MigPermission),
            (NvmlError::FunctionNotFound, &slice, true, Refusal::OldDriver),
        ];
        for (error, gpu, wsl, expected) in cases {
            assert_eq!(refusal(&error, gpu, wsl), expected, "{error}");
        }
    }
}
