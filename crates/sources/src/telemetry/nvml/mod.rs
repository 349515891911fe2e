//! GPUs through NVML, which is loaded at run time: the program also starts without it.

mod calls;
mod gpm;
mod trouble;

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs,
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use calls::{Calls, QuerySession};
use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{Clock, GpuVirtualizationMode, TemperatureThreshold},
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::ProcessInfo,
};
use trouble::{absence, is_lost};

use super::{GpuProbe, ProbeError, Selection, Tier, absent::Absence, users::Users};
use llmprof_base::tools::{System, under::is_of_same_run};
use llmprof_event::{CallCost, GpuInfo, GpuProcess, GpuSample, GpuSource, Refusal, Refused, Stamp};

/// Locations of the library: the loader's path, WSL, NixOS.
#[cfg(not(windows))]
const LIBRARIES: &[&str] =
    &["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvml.dll"];

/// Every GPU of this machine through NVML.
pub struct NvmlProbe {
    nvml: &'static Nvml,
    cards: Vec<Card>,
    wsl: bool,
}

struct Card {
    info: GpuInfo,
    calls: Calls,
    lost: bool,
}

impl NvmlProbe {
    pub fn open() -> Result<NvmlProbe, Absence> {
        let mut first_failure = None;
        for path in LIBRARIES {
            match NvmlProbe::open_library(path.as_ref()) {
                Err(absence @ Absence::LibraryMissing { .. }) => first_failure.get_or_insert(absence),
                opened => return opened,
            };
        }
        Err(first_failure.unwrap_or(Absence::NoDevices))
    }

    /// Like [`NvmlProbe::open`], from one library file.
    pub fn open_library(path: &OsStr) -> Result<NvmlProbe, Absence> {
        let nvml = opened(path).map_err(absence)?;
        let driver = nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_owned());
        let count = nvml.device_count().map_err(absence)?;
        let wsl = System::here().is_wsl();
        let cards: Vec<Card> = (0..count).map(|index| Card::open(nvml, index, &driver, wsl)).collect();
        if cards.is_empty() { Err(Absence::NoDevices) } else { Ok(NvmlProbe { nvml, cards, wsl }) }
    }

    /// The newest CUDA version that the driver supports, as 13000 for 13.0.
    pub fn cuda_version(&self) -> Option<u32> {
        self.nvml.sys_cuda_driver_version().ok().and_then(|version| u32::try_from(version).ok())
    }

    /// An id that GPUs on one board share; `None` if NVML does not report it.
    pub fn board(&self, gpu: u32) -> Option<u32> {
        let device = self.nvml.device_by_index(gpu).ok()?;
        device.board_id().ok()
    }

    fn card(&self, gpu: u32) -> Option<&Card> {
        self.cards.iter().find(|card| card.info.index == gpu)
    }

    fn card_mut(&mut self, gpu: u32) -> Result<&mut Card, ProbeError> {
        let lost = || ProbeError::Lost { gpu, reason: NvmlError::NotFound.to_string() };
        self.cards.iter_mut().find(|card| card.info.index == gpu).ok_or_else(lost)
    }
}

/// The library, loaded once and kept: GPM samples borrow it for the rest of the run.
fn opened(path: &OsStr) -> Result<&'static Nvml, NvmlError> {
    static OPEN: LazyLock<Mutex<HashMap<OsString, &'static Nvml>>> = LazyLock::new(Mutex::default);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(nvml) = open.get(path) {
        return Ok(nvml);
    }
    let nvml: &'static Nvml = Box::leak(Box::new(Nvml::builder().lib_path(path).init()?));
    open.insert(path.to_owned(), nvml);
    Ok(nvml)
}

impl GpuProbe for NvmlProbe {
    fn gpus(&self) -> Vec<GpuInfo> {
        self.cards.iter().map(|card| card.info.clone()).collect()
    }

    fn slow_calls(&self, gpu: u32) -> usize {
        self.card(gpu).map_or(0, |card| card.calls.count(Tier::Slow))
    }

    fn sample(&mut self, gpu: u32, selection: Selection, _now: Stamp) -> Result<GpuSample, ProbeError> {
        let (nvml, wsl) = (self.nvml, self.wsl);
        let card = self.card_mut(gpu)?;
        let lost = |error: NvmlError| ProbeError::Lost { gpu, reason: error.to_string() };
        if card.lost {
            return Err(lost(NvmlError::GpuLost));
        }
        let started = Instant::now();
        let device = match nvml.device_by_index(gpu) {
            Ok(device) => device,
            Err(error) if is_lost(&error) => return Err(lost(error)),
            Err(error) => return Err(ProbeError::Unreadable { gpu, reason: error.to_string() }),
        };
        let mut session = QuerySession { nvml, device, info: &mut card.info, wsl, failure: None };
        let mut sample = GpuSample::new(gpu);
        match selection {
            Selection::Tier(tier) => card.calls.make(tier, None, &mut session, &mut sample),
            Selection::SlowCall(index) => card.calls.make(Tier::Slow, Some(index), &mut session, &mut sample),
        }
        if let Some(error) = session.failure {
            if is_lost(&error) {
                card.lost = true;
                return Err(lost(error));
            }
            if sample.is_empty() {
                return Err(ProbeError::Unreadable { gpu, reason: error.to_string() });
            }
        }
        sample.read_us = Some(started.elapsed().as_micros() as u32);
        Ok(sample)
    }

    fn refused(&self, gpu: u32) -> &[Refused] {
        self.card(gpu).map_or(&[], |card| &card.info.refused)
    }

    fn processes(&mut self, gpu: u32) -> Option<Vec<GpuProcess>> {
        let started = Instant::now();
        let (nvml, wsl) = (self.nvml, self.wsl);
        let device = nvml.device_by_index(gpu).ok()?;
        let mut running = device.running_compute_processes().ok()?;
        // Games and desktops are load too.
        running.extend(device.running_graphics_processes().unwrap_or_default());
        running.sort_by_key(|process| process.pid);
        running.dedup_by_key(|process| process.pid);
        let card = self.card_mut(gpu).ok()?;
        let mut session = QuerySession { nvml, device, info: &mut card.info, wsl, failure: None };
        // The call takes several milliseconds, so it is not made for a run that is alone on the GPU.
        let shared = running.iter().any(|process| !is_of_same_run(process.pid));
        let used = if shared { session.process_utilisation() } else { None };
        card.calls.listed(started.elapsed());
        let users = if running.is_empty() { Users::default() } else { Users::of_this_machine() };
        let process = |process: ProcessInfo| GpuProcess {
            pid: process.pid,
            name: process_name(process.pid),
            user: users.of_process(process.pid),
            mem_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
            sm_pct: used.as_ref().map(|used| used.get(&process.pid).copied().unwrap_or(0)),
            own: is_of_same_run(process.pid),
        };
        Some(running.into_iter().map(process).collect())
    }

    fn costs(&self, gpu: u32) -> Vec<CallCost> {
        self.card(gpu).map_or_else(Vec::new, |card| card.calls.costs())
    }

    fn take_spent(&mut self) -> Duration {
        self.cards.iter_mut().map(|card| card.calls.take_spent()).sum()
    }

    fn take_remarks(&mut self) -> Vec<String> {
        self.cards.iter_mut().flat_map(|card| card.calls.take_remarks()).collect()
    }
}

/// The name of a process, if it is known.
fn process_name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

impl Card {
    /// Queries every reading once, so that refusals are known before the first sample.
    fn open(nvml: &'static Nvml, index: u32, driver: &str, wsl: bool) -> Card {
        let mut info = GpuInfo {
            index,
            name: format!("GPU {index}"),
            driver: driver.to_owned(),
            source: GpuSource::Nvml,
            ..GpuInfo::default()
        };
        let mut calls = Calls::new();
        let lost = match nvml.device_by_index(index) {
            Ok(device) => {
                let mut session = QuerySession { nvml, device, info: &mut info, wsl, failure: None };
                describe(&mut session);
                let mut sample = GpuSample::new(index);
                for tier in [Tier::Fast, Tier::Gpm, Tier::Slow] {
                    calls.make(tier, None, &mut session, &mut sample);
                }
                session.is_lost()
            }
            Err(error) => {
                info.refused.push(Refused::new("all", Refusal::Other(error.to_string())));
                is_lost(&error)
            }
        };
        Card { info, calls: calls.reset(), lost }
    }
}

/// Queries the constant properties of a GPU.
fn describe(session: &mut QuerySession<'_>) {
    let watts = |milliwatts: u32| milliwatts as f32 / 1e3;
    if let Some(name) = session.query("name", |device| device.name()) {
        session.info.name = name;
    }
    // These come first: they explain refusals.
    session.info.mig = session.query("MIG mode", |device| device.mig_mode()).map(|mode| mode.current == 1);
    session.info.virtualization = match session.query("virtualization", |device| device.virtualization_mode())
    {
        Some(GpuVirtualizationMode::Vgpu) => Some("vGPU".to_owned()),
        Some(GpuVirtualizationMode::HostVgpu | GpuVirtualizationMode::HostVsga) => {
            Some("vGPU host".to_owned())
        }
        _ => None,
    };
    session.info.architecture =
        session.query("architecture", |device| device.architecture()).map(|kind| format!("{kind:?}"));
    session.info.compute_capability = session
        .query("compute capability", |device| device.cuda_compute_capability())
        .map(|cc| format!("{}.{}", cc.major, cc.minor));
    session.info.uuid = session.query("uuid", |device| device.uuid()).unwrap_or_default();
    session.info.mem_total_bytes =
        session.query("memory", |device| device.memory_info()).map(|memory| memory.total);
    session.info.cores = session.query("cores", |device| device.num_cores());
    session.info.mem_bus_bits = session.query("memory bus", |device| device.memory_bus_width());
    session.info.power_limit_w =
        session.query("power limit", |device| device.enforced_power_limit()).map(watts);
    session.info.power_limit_default_w =
        session.query("default power limit", |device| device.power_management_limit_default()).map(watts);
    session.info.power_limit_max_w = session
        .query("max power limit", |device| device.power_management_limit_constraints())
        .map(|range| watts(range.max_limit));
    session.info.sm_clock_max_mhz = session.query("max SM clock", |device| device.max_clock_info(Clock::SM));
    session.info.sm_clock_application_mhz =
        session.query("application clock", |device: &Device<'_>| device.applications_clock(Clock::SM));
    session.info.mem_clock_max_mhz =
        session.query("max memory clock", |device| device.max_clock_info(Clock::Memory));
    session.info.slowdown_temp_c = session
        .query("slowdown temperature", |device| device.temperature_threshold(TemperatureThreshold::Slowdown));
    session.info.pcie_gen_max = session.query("max PCIe generation", |device| device.max_pcie_link_gen());
    session.info.pcie_width_max = session.query("max PCIe lanes", |device| device.max_pcie_link_width());
    session.info.persistence = session.query("persistence mode", |device| device.is_in_persistent_mode());
}
