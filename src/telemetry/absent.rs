//! Why there is no GPU to look at, and what would change that.

use thiserror::Error;

use crate::event::GpuAbsent;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Absence {
    #[error("NVML is not installed: {detail}")]
    LibraryMissing { detail: String },
    #[error("the NVIDIA kernel driver is not loaded")]
    DriverNotLoaded,
    #[error("the NVIDIA kernel module and libnvidia-ml are of different versions")]
    VersionMismatch,
    #[error("NVML may not talk to the driver: permission denied")]
    NoPermission,
    #[error("the driver works but shows no GPU")]
    NoDevices,
    #[error("{setting} turns GPU telemetry off")]
    TurnedOff { setting: &'static str },
    #[error("{detail}")]
    Lost { detail: String },
    #[error("NVML does not start: {detail}")]
    Broken { detail: String },
}

impl Absence {
    pub fn remedy(&self) -> &'static str {
        match self {
            Absence::LibraryMissing { .. } => {
                "install the NVIDIA driver, which brings libnvidia-ml.so.1; \
                 in a container, start it with `--gpus all` (NVIDIA Container Toolkit)"
            }
            Absence::DriverNotLoaded => {
                "load it with `sudo modprobe nvidia`, or reboot after an update of the driver"
            }
            Absence::VersionMismatch => {
                "the driver was updated while it was loaded: reboot, or reload the nvidia module"
            }
            Absence::NoPermission => "give this user access to /dev/nvidiactl and /dev/nvidia0",
            Absence::NoDevices => {
                "see whether `lspci` lists the card; in a container or a virtual machine, pass it through"
            }
            Absence::TurnedOff { .. } => "set telemetry.probe=auto and profiling.nvml.enable=true",
            Absence::Lost { .. } => {
                "look for `Xid` in `sudo dmesg`; the card needs a reset (`nvidia-smi --gpu-reset`) or the machine a reboot"
            }
            Absence::Broken { .. } => "see whether `nvidia-smi` works on this machine",
        }
    }
}

impl From<&Absence> for GpuAbsent {
    fn from(absence: &Absence) -> GpuAbsent {
        GpuAbsent { reason: absence.to_string(), remedy: absence.remedy().to_owned() }
    }
}
