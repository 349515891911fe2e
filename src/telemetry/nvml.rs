//! GPUs through NVML, which is loaded at run time: the program starts without it too.

use std::{ffi::OsStr, time::Instant};

use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{Clock, TemperatureSensor, TemperatureThreshold},
    enums::device::{SampleValue, UsedGpuMemory},
    error::{Bits, NvmlError},
    structs::device::FieldId,
};

use super::{GpuProbe, ProbeError, absent::Absence, isolation::OtherProcess};
use crate::event::{GpuInfo, GpuSample, Refused, Stamp};

/// Where the driver puts the library: on the loader's path, under WSL, under NixOS.
#[cfg(not(windows))]
const LIBRARIES: &[&str] =
    &["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvml.dll"];

/// `NVML_FI_DEV_POWER_INSTANT`: `power_usage` is a mean over a second on Ampere and later.
const POWER_INSTANT: FieldId = FieldId(186);

/// Return codes that are newer than the wrapper.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;
const DEPRECATED: u32 = 26;
const GPU_NOT_FOUND: u32 = 28;

/// Every GPU of this machine, by NVML.
pub struct NvmlProbe {
    nvml: Nvml,
    cards: Vec<Card>,
}

struct Card {
    info: GpuInfo,
    lost: bool,
}

impl NvmlProbe {
    /// `profiled` is the index of the GPU that the workload runs on, if on any.
    pub fn open(profiled: Option<u32>) -> Result<NvmlProbe, Absence> {
        let mut first_failure = None;
        for path in LIBRARIES {
            match NvmlProbe::open_library(path.as_ref(), profiled) {
                Err(absence @ Absence::LibraryMissing { .. }) => first_failure.get_or_insert(absence),
                opened => return opened,
            };
        }
        Err(first_failure.unwrap_or(Absence::NoDevices))
    }

    /// As [`NvmlProbe::open`], from one library file.
    pub fn open_library(path: &OsStr, profiled: Option<u32>) -> Result<NvmlProbe, Absence> {
        let nvml = Nvml::builder().lib_path(path).init().map_err(absence)?;
        let driver = nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_owned());
        let count = nvml.device_count().map_err(absence)?;
        let cards: Vec<Card> = (0..count).map(|index| Card::open(&nvml, index, &driver, profiled)).collect();
        if cards.is_empty() { Err(Absence::NoDevices) } else { Ok(NvmlProbe { nvml, cards }) }
    }
}

impl GpuProbe for NvmlProbe {
    fn gpus(&self) -> Vec<GpuInfo> {
        self.cards.iter().map(|card| card.info.clone()).collect()
    }

    fn sample(&mut self, gpu: u32, _now: Stamp) -> Result<GpuSample, ProbeError> {
        let lost = |error: NvmlError| ProbeError::Lost { gpu, reason: error.to_string() };
        let Some(card) = self.cards.iter_mut().find(|card| card.info.index == gpu) else {
            return Err(lost(NvmlError::NotFound));
        };
        if card.lost {
            return Err(lost(NvmlError::GpuLost));
        }
        let started = Instant::now();
        let device = match self.nvml.device_by_index(gpu) {
            Ok(device) => device,
            Err(error) if is_lost(&error) => return Err(lost(error)),
            Err(error) => return Err(ProbeError::Unreadable { gpu, reason: error.to_string() }),
        };
        let mut asking = Asking { refused: &mut card.info.refused, failure: None };
        let mut sample = asking.readings(&device, gpu);
        let Asking { failure, .. } = asking;
        if let Some(error) = failure {
            if is_lost(&error) {
                card.lost = true;
                return Err(lost(error));
            }
            if sample == (GpuSample { gpu, ..GpuSample::default() }) {
                return Err(ProbeError::Unreadable { gpu, reason: error.to_string() });
            }
        }
        sample.read_us = Some(started.elapsed().as_micros() as u32);
        Ok(sample)
    }

    fn other_processes(&self, gpu: u32) -> Option<Vec<OtherProcess>> {
        let running = self.nvml.device_by_index(gpu).ok()?.running_compute_processes().ok()?;
        let others = running.into_iter().filter(|process| process.pid != std::process::id());
        let other = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| OtherProcess {
            pid: process.pid,
            mem_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        };
        Some(others.map(other).collect())
    }
}

impl Card {
    /// Asks every reading once, so that what is refused is known before the first sample.
    fn open(nvml: &Nvml, index: u32, driver: &str, profiled: Option<u32>) -> Card {
        let mut info = GpuInfo {
            index,
            name: format!("GPU {index}"),
            driver: driver.to_owned(),
            source: "nvml".to_owned(),
            profiled: profiled == Some(index),
            ..GpuInfo::default()
        };
        let mut refused = Vec::new();
        let lost = match nvml.device_by_index(index) {
            Ok(device) => {
                let mut asking = Asking { refused: &mut refused, failure: None };
                if let Some(name) = asking.ask("name", || device.name()) {
                    info.name = name;
                }
                info.uuid = asking.ask("uuid", || device.uuid()).unwrap_or_default();
                info.mem_total_bytes =
                    asking.ask("memory", || device.memory_info()).map(|memory| memory.total);
                info.power_limit_w = asking.ask("power limit", || device.enforced_power_limit()).map(watts);
                info.sm_clock_max_mhz = asking.ask("max SM clock", || device.max_clock_info(Clock::SM));
                info.mem_clock_max_mhz =
                    asking.ask("max memory clock", || device.max_clock_info(Clock::Memory));
                info.slowdown_temp_c = asking.ask("slowdown temperature", || {
                    device.temperature_threshold(TemperatureThreshold::Slowdown)
                });
                asking.readings(&device, index);
                asking.failure.as_ref().is_some_and(is_lost)
            }
            Err(error) => {
                refused.push(Refused { reading: "all".to_owned(), reason: error.to_string() });
                is_lost(&error)
            }
        };
        info.refused = refused;
        Card { info, lost }
    }
}

/// Asks a device, and never again for what it has refused.
struct Asking<'a> {
    refused: &'a mut Vec<Refused>,
    /// The worst error that was no refusal.
    failure: Option<NvmlError>,
}

impl Asking<'_> {
    fn ask<T>(&mut self, reading: &str, call: impl FnOnce() -> Result<T, NvmlError>) -> Option<T> {
        let gone = self.failure.as_ref().is_some_and(is_lost);
        if gone || self.refused.iter().any(|refused| refused.reading == reading) {
            return None;
        }
        match call() {
            Ok(value) => return Some(value),
            Err(error) if is_refusal(&error) => {
                self.refused.push(Refused { reading: reading.to_owned(), reason: error.to_string() });
            }
            Err(error) => self.failure = Some(error),
        }
        None
    }

    /// The cheap readings, a few microseconds each.
    fn readings(&mut self, device: &Device<'_>, gpu: u32) -> GpuSample {
        let utilization = self.ask("utilisation", || device.utilization_rates());
        let memory = self.ask("memory", || device.memory_info());
        GpuSample {
            gpu,
            gpu_util_pct: utilization.as_ref().map(|rates| rates.gpu as f32),
            mem_util_pct: utilization.as_ref().map(|rates| rates.memory as f32),
            sm_clock_mhz: self.ask("SM clock", || device.clock_info(Clock::SM)),
            mem_clock_mhz: self.ask("memory clock", || device.clock_info(Clock::Memory)),
            power_w: self
                .ask("instant power", || instant_power_mw(device))
                .or_else(|| self.ask("power", || device.power_usage()))
                .map(watts),
            temp_c: self.ask("temperature", || device.temperature(TemperatureSensor::Gpu)).map(|c| c as f32),
            mem_used_bytes: memory.as_ref().map(|memory| memory.used),
            mem_total_bytes: memory.as_ref().map(|memory| memory.total),
            reasons: self.ask("clock event reasons", || reason_bits(device)),
            read_us: None,
        }
    }
}

fn watts(milliwatts: u32) -> f32 {
    milliwatts as f32 / 1e3
}

fn instant_power_mw(device: &Device<'_>) -> Result<u32, NvmlError> {
    // The wrapper hands back translated field ids, so the answer is known by its place alone.
    let answer = device.field_values_for(&[POWER_INSTANT])?.into_iter().next().ok_or(NvmlError::NoData)??;
    match answer.value? {
        SampleValue::U32(milliwatts) => Ok(milliwatts),
        SampleValue::U64(milliwatts) => u32::try_from(milliwatts).map_err(|_| NvmlError::NoData),
        SampleValue::I64(milliwatts) => u32::try_from(milliwatts).map_err(|_| NvmlError::NoData),
        SampleValue::F64(milliwatts) if milliwatts >= 0.0 => Ok(milliwatts as u32),
        SampleValue::F64(_) => Err(NvmlError::NoData),
    }
}

/// The mask with the bits that the wrapper has no name for: its lenient call drops them, its strict one
/// refuses them but hands the whole mask over in the error.
fn reason_bits(device: &Device<'_>) -> Result<u64, NvmlError> {
    match device.current_throttle_reasons_strict() {
        Ok(reasons) => Ok(reasons.bits()),
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => Ok(bits),
        Err(error) => Err(error),
    }
}

/// It will say the same next time.
fn is_refusal(error: &NvmlError) -> bool {
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

fn is_lost(error: &NvmlError) -> bool {
    use NvmlError as E;
    matches!(error, E::GpuLost | E::ResetRequired | E::Uninitialized | E::UnexpectedVariant(GPU_NOT_FOUND))
}

fn absence(error: NvmlError) -> Absence {
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
