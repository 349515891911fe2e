//! What NVML's errors mean here: a refusal that stays, a card that has gone, no NVML at all.

use nvml_wrapper::error::NvmlError;

use crate::{event::GpuInfo, telemetry::absent::Absence};

/// Return codes that are newer than the wrapper.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;
const DEPRECATED: u32 = 26;
const GPU_NOT_FOUND: u32 = 28;

/// It will say the same next time.
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

/// Why this card refuses, and what would change that.
pub(super) fn explained(error: &NvmlError, card: &GpuInfo, wsl: bool) -> (String, Option<&'static str>) {
    use NvmlError as E;
    match error {
        E::NoPermission => (
            "permission denied".to_owned(),
            Some("run as a user that may read it; in a container, with the host's device files"),
        ),
        E::FunctionNotFound | E::FailedToLoadSymbol(_) | E::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH) => {
            (format!("driver {} does not know the call", card.driver), Some("update the driver"))
        }
        E::NotSupported | E::InvalidArg | E::UnexpectedVariant(DEPRECATED) => match () {
            () if wsl => {
                ("not told under WSL".to_owned(), Some("read it on Windows, or on Linux without WSL"))
            }
            () if card.mig == Some(true) => {
                ("not told while the card is split (MIG)".to_owned(), Some("turn MIG mode off"))
            }
            () if card.virtualization.is_some() => {
                ("not told of a virtual GPU".to_owned(), Some("read it on the machine that has the card"))
            }
            () => ("this card does not tell it".to_owned(), None),
        },
        error => (error.to_string(), None),
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

/// Whether this is Linux inside of Windows.
pub(super) fn under_wsl() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .is_ok_and(|release| release.to_lowercase().contains("microsoft"))
}
