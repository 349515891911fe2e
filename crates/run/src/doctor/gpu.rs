//! Checks of the GPUs: what NVML reports, and what slows them down.

use super::{
    Context, Finding, Status,
    inventory::{Gpu, Inventory},
    parse,
};
use llmprof_analysis::throttle;
use llmprof_base::units::bytes;
use llmprof_event::{GpuProcess, Query, readings::Reading, reasons::APPLICATION_CLOCKS};
use llmprof_sources::telemetry::absent::Absence;

/// Degrees below the slowdown temperature at which a GPU that may be idle is hot.
const HOT_MARGIN_C: f64 = 10.0;

const ACTIVITY: [Reading; 4] = [Reading::SmActive, Reading::Occupancy, Reading::Tensor, Reading::Dram];

pub(super) fn nvml(context: &Context) -> Finding {
    match &*context.inventory {
        Inventory::Absent { absence: absence @ Absence::LibraryMissing { .. }, .. }
            if context.machine.is_wsl() =>
        {
            Finding::skip(format!("no NVIDIA GPU: {absence}")).remedy(
                "if the machine has a GPU: install the NVIDIA driver on Windows, not in WSL, and run wsl --update; \
                 its libraries are then in /usr/lib/wsl/lib",
            )
        }
        Inventory::Found { gpus, .. } if gpus.len() == 1 => Finding::pass("works, 1 GPU"),
        Inventory::Found { gpus, .. } => Finding::pass(format!("works, {} GPUs", gpus.len())),
        Inventory::Absent { absence, evidence: Some(evidence) } => {
            Finding::fail(format!("{absence}, but {evidence}")).remedy(absence.remedy())
        }
        // Any other absence is reported by a driver, which only machines with a GPU have.
        Inventory::Absent {
            absence:
                absence @ (Absence::LibraryMissing { .. } | Absence::DriverNotLoaded | Absence::NoDevices),
            evidence: None,
        } => Finding::skip(format!("no NVIDIA GPU: {absence}"))
            .remedy(format!("if the machine has a GPU: {}", absence.remedy())),
        Inventory::Absent { absence, evidence: None } => {
            Finding::fail(absence.to_string()).remedy(absence.remedy())
        }
        Inventory::NoAnswer(why) => Finding::fail(format!("NVML {why}")).remedy(
            "check that `nvidia-smi` works; if the driver hangs, reboot (and search `sudo dmesg` for `Xid`)",
        ),
    }
}

pub(super) fn driver(context: &Context) -> Finding {
    let module =
        context.machine.read("/proc/driver/nvidia/version").and_then(|text| parse::kernel_driver(&text));
    let kind = |open: bool| if open { "open kernel module" } else { "proprietary kernel module" };
    match (&*context.inventory, module) {
        (Inventory::Found { gpus, .. }, module) => {
            let version = gpus.first().map_or("unknown", |gpu| gpu.info.driver.as_str());
            let module = module.map_or_else(String::new, |module| format!(", {}", kind(module.open)));
            Finding::pass(format!("{version}{module}"))
        }
        (_, Some(module)) => Finding::pass(format!("{}, {}", module.version, kind(module.open))),
        (Inventory::Absent { evidence: None, .. }, None) => Finding::skip("no GPU"),
        (Inventory::NoAnswer(_), None) => Finding::skip("unknown: NVML does not answer (see nvml)"),
        (_, None) => {
            Finding::fail("the kernel module is not loaded").remedy(Absence::DriverNotLoaded.remedy())
        }
    }
}

pub(super) fn gpu(gpu: &Gpu) -> Finding {
    let info = &gpu.info;
    let mut parts = vec![info.name.clone()];
    parts.extend(info.compute_capability.as_ref().map(|cap| format!("compute capability {cap}")));
    parts.extend(info.mem_total_bytes.map(bytes));
    parts.extend(info.virtualization.clone());
    let text = parts.join(", ");
    match &gpu.error {
        Some(error) => {
            Finding::fail(format!("{text}: {error}")).remedy(Absence::Lost { detail: String::new() }.remedy())
        }
        None if info.mig == Some(true) => {
            Finding::warn(format!("{text}, MIG enabled: some readings cover the whole GPU or are refused"))
                .remedy(format!("sudo nvidia-smi -i {} -mig 0, to use the whole GPU", info.index))
        }
        None => Finding::pass(text),
    }
}

pub(super) fn gpm(gpu: &Gpu) -> Finding {
    if gpu.refused(Query::Gpm).is_some() {
        return gpu.unavailable("activity counters", Query::Gpm);
    }
    let read: Vec<&str> =
        ACTIVITY.into_iter().filter(|reading| gpu.get(*reading).is_some()).map(Reading::label).collect();
    match read.is_empty() {
        true => Finding::warn("no activity counter could be read").remedy("update the driver"),
        false => Finding::pass(format!("{}{}", read.join(", "), refusals(gpu, &ACTIVITY))),
    }
}

/// The refused readings of `readings`, in parentheses.
fn refusals(gpu: &Gpu, readings: &[Reading]) -> String {
    let refused: Vec<&str> = readings
        .iter()
        .filter(|reading| gpu.refused(**reading).is_some())
        .map(|reading| reading.label())
        .collect();
    if refused.is_empty() { String::new() } else { format!(" (unavailable: {})", refused.join(", ")) }
}

pub(super) fn throttle_counters(gpu: &Gpu) -> Finding {
    if gpu.sample.reasons.is_none() {
        return gpu.unavailable("clock event reasons", Query::ClockEventReasons);
    }
    let counters = throttle::COUNTERS.map(|(_, reading)| reading);
    match counters.iter().filter(|reading| gpu.get(**reading).is_some()).count() {
        0 => {
            let unavailable =
                gpu.unavailable("clock event reasons, but no time counters", counters[0].label());
            Finding { status: Status::Warn, ..unavailable }
        }
        read => Finding::pass(format!(
            "clock event reasons, {read} of {} time counters{}",
            counters.len(),
            refusals(gpu, &counters)
        )),
    }
}

pub(super) fn power_limit(gpu: &Gpu) -> Finding {
    let info = &gpu.info;
    let Some(limit) = info.power_limit_w else { return gpu.unavailable("power limit", "power limit") };
    let max = info.power_limit_max_w.map_or_else(String::new, |max| format!(", maximum {max:.0} W"));
    match info.power_limit_default_w {
        Some(default) if limit < default - 0.5 => Finding::warn(format!(
            "{limit:.0} W, below the default of {default:.0} W{max}: it will be slower"
        ))
        .remedy(format!("sudo nvidia-smi -i {} -pl {default:.0}", info.index)),
        Some(default) => Finding::pass(format!("{limit:.0} W (default {default:.0} W{max})")),
        None => Finding::pass(format!("{limit:.0} W{max}")),
    }
}

pub(super) fn clocks(gpu: &Gpu) -> Finding {
    let info = &gpu.info;
    let Some(max) = info.sm_clock_max_mhz else { return gpu.unavailable("SM clock", "max SM clock") };
    let now = gpu.get(Reading::SmClock).map_or_else(String::new, |now| format!(", now {now:.0} MHz"));
    let text = format!("SM clock up to {max} MHz{now}");
    let limits = gpu.sample.reasons.is_some_and(|bits| bits & APPLICATION_CLOCKS != 0);
    match info.sm_clock_application_mhz {
        Some(set) if set < max && limits => {
            Finding::warn(format!("{text}; limited to the application clock of {set} MHz"))
                .remedy(format!("sudo nvidia-smi -i {} -rac", info.index))
        }
        Some(set) if set < max => {
            Finding::pass(format!("{text}; the application clock is {set} MHz, which is not limiting now"))
        }
        _ => Finding::pass(text),
    }
}

pub(super) fn pcie(gpu: &Gpu) -> Finding {
    let now = (gpu.get(Reading::PcieGen), gpu.get(Reading::PcieWidth));
    let (Some(generation), Some(width)) = now else {
        return gpu.unavailable("PCIe link", Reading::PcieWidth.label());
    };
    let max = (gpu.info.pcie_gen_max.map(f64::from), gpu.info.pcie_width_max.map(f64::from));
    let text = format!("PCIe gen{generation} x{width}");
    match max {
        (_, Some(lanes)) if width < lanes => {
            Finding::warn(format!("{text}, but the GPU supports x{lanes}: model loading is slower"))
                .remedy("use a slot with all lanes and reseat the GPU; decode is hardly affected")
        }
        (Some(max), _) if generation < max => {
            Finding::pass(format!("{text}; up to gen{max} under load (an idle link slows down)"))
        }
        _ => Finding::pass(text),
    }
}

pub(super) fn persistence(gpu: &Gpu) -> Finding {
    match gpu.info.persistence {
        Some(true) => Finding::pass("on"),
        Some(false) => Finding::warn("off: the driver initialises the GPU again for every first program")
            .remedy("sudo nvidia-smi -pm 1, or run nvidia-persistenced"),
        None => gpu.unavailable("persistence mode", "persistence mode"),
    }
}

pub(super) fn temperature(gpu: &Gpu) -> Finding {
    let Some(now) = gpu.get(Reading::Temp) else {
        return gpu.unavailable("temperature", Reading::Temp.label());
    };
    let Some(slowdown) = gpu.info.slowdown_temp_c.map(f64::from) else {
        return Finding::pass(format!("{now:.0} °C; slowdown temperature not reported"));
    };
    let text = format!("{now:.0} °C, slowdown at {slowdown:.0} °C");
    if now > slowdown - HOT_MARGIN_C {
        return Finding::warn(format!("{text}: runs will be throttled by heat")).remedy(
            "let it cool down, check fans and airflow; hardware.cooldown_until_c waits between jobs",
        );
    }
    Finding::pass(text)
}

pub(super) fn ecc(gpu: &Gpu) -> Finding {
    match (gpu.get(Reading::EccUncorrected), gpu.get(Reading::EccCorrected)) {
        (Some(uncorrected), _) if uncorrected > 0.0 => Finding::warn(format!(
            "{uncorrected} uncorrected memory errors since the driver was loaded"
        ))
        .remedy(format!(
            "reset the GPU (sudo nvidia-smi -i {} --gpu-reset) and monitor it: its results may be wrong",
            gpu.info.index
        )),
        (Some(_), Some(corrected)) if corrected > 0.0 => {
            Finding::pass(format!("{corrected} memory errors since the driver was loaded, all corrected"))
        }
        (Some(_), _) => Finding::pass("no memory errors since the driver was loaded"),
        (None, _) => match gpu.unavailable("memory errors", Reading::EccUncorrected.label()) {
            // Many GPUs have no ECC.
            unavailable if unavailable.remedy.is_none() => Finding::skip("no ECC, or disabled"),
            unavailable => unavailable,
        },
    }
}

pub(super) fn other_processes(gpu: &Gpu) -> Finding {
    match &gpu.others {
        None => Finding::skip("processes cannot be listed"),
        Some(others) if others.is_empty() => Finding::pass("none"),
        Some(others) => {
            let names: Vec<String> = others.iter().map(GpuProcess::to_string).collect();
            Finding::warn(format!("{}: a run would share the GPU with them", names.join(", ")))
                .remedy("stop them, or select another GPU with hardware.device_index")
        }
    }
}
