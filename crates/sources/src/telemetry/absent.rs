//! Why no GPU is sampled, and the remedy.

use thiserror::Error;

use llmprof_event::GpuAbsent;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Absence {
    #[error("NVML is not installed: {detail}")]
    LibraryMissing { detail: String },
    #[error("the NVIDIA kernel driver is not loaded")]
    DriverNotLoaded,
    #[error("the NVIDIA kernel module and libnvidia-ml have different versions")]
    VersionMismatch,
    #[error("NVML cannot access the driver: permission denied")]
    NoPermission,
    #[error("the driver works but lists no GPU")]
    NoDevices,
    #[error("GPU telemetry is off: {setting}")]
    TurnedOff { setting: &'static str },
    #[error("the DCGM exporter has no readings yet: telemetry.dcgm")]
    Elsewhere,
    #[error("{detail}")]
    Lost { detail: String },
    #[error("NVML does not start: {detail}")]
    Broken { detail: String },
}

impl Absence {
    pub fn remedy(&self) -> &'static str {
        match self {
            Absence::LibraryMissing { .. } => {
                "install the NVIDIA driver, which includes libnvidia-ml.so.1; in a container, start it with `--gpus \
                 all` (NVIDIA Container Toolkit)"
            }
            Absence::DriverNotLoaded => {
                "load it with `sudo modprobe nvidia`, or reboot after a driver update"
            }
            Absence::VersionMismatch => {
                "the driver was updated while loaded: reboot, or reload the nvidia module"
            }
            Absence::NoPermission => "give this user access to /dev/nvidiactl and /dev/nvidia0",
            Absence::NoDevices => {
                "check that `lspci` lists the GPU; in a container or a virtual machine, pass it through"
            }
            Absence::TurnedOff { .. } => "set telemetry.probe=auto and profiling.nvml.enable=true",
            Absence::Elsewhere => "check that its URL shows lines that begin with DCGM_FI_DEV_",
            Absence::Lost { .. } => {
                "search `sudo dmesg` for `Xid`; reset the GPU (`nvidia-smi --gpu-reset`) or reboot"
            }
            Absence::Broken { .. } => "check that `nvidia-smi` works on this machine",
        }
    }
}

impl From<&Absence> for GpuAbsent {
    fn from(absence: &Absence) -> GpuAbsent {
        GpuAbsent { reason: absence.to_string(), remedy: absence.remedy().to_owned() }
    }
}
