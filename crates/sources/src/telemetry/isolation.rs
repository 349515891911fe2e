//! External load at the start of a run, which would distort the measurements.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::host::procfs::{self, CoreTicks, TICKS_PER_S};
use llmprof_base::{own_children::own_children, units::percent};
use llmprof_config::HardwareConfig;
use llmprof_event::{GpuInfo, GpuProcess};

/// Remarks on the GPU that the workload runs on: a slice of it, an unexpected power limit, other processes.
///
/// `others` is `None` if processes cannot be listed.
pub(super) fn remarks_on_gpu(
    hardware: &HardwareConfig,
    gpu: &GpuInfo,
    others: Option<&[GpuProcess]>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    if !gpu.profiled {
        return remarks;
    }
    let name = format!("GPU {} ({})", gpu.index, gpu.name);
    if gpu.mig == Some(true) {
        remarks.push(format!(
            "{name} is in MIG mode, and the model runs on a slice of it: power, energy, clocks, temperature and throttle reasons are those \
             of the whole GPU, which other slices share; MFU and MBU need the peaks of the slice (llmprof-tui doctor --peaks measures \
             them)"
        ));
    }
    match (hardware.expected_power_limit_w, gpu.power_limit_w) {
        (Some(wanted), Some(is)) if (wanted - f64::from(is)).abs() >= 0.5 => remarks.push(format!(
            "{name} has a power limit of {is} W, but hardware.expected_power_limit_w is {wanted}; set it with nvidia-smi -pl"
        )),
        (Some(wanted), None) => remarks.push(format!(
            "{name} does not report its power limit: hardware.expected_power_limit_w={wanted} cannot be checked"
        )),
        _ => {}
    }
    if let Some(others) = others.filter(|others| !others.is_empty() && hardware.isolation.check) {
        let others = others.iter().map(GpuProcess::to_string).collect::<Vec<_>>().join(", ");
        remarks.push(format!("other processes use {name}: {others}; measurements include their load"));
    }
    remarks
}

/// CPU counters at the start of the measurement of external load.
pub(super) struct ExternalLoad {
    proc: PathBuf,
    cores: Vec<CoreTicks>,
    own: u64,
}

impl ExternalLoad {
    /// The duration of the measurement.
    pub(super) const DURATION: Duration = Duration::from_millis(400);

    /// The first reading; `None` if the machine has no such counters.
    pub(super) fn start(proc: &Path) -> Option<ExternalLoad> {
        let (cores, own) = counters(proc)?;
        Some(ExternalLoad { proc: proc.to_owned(), cores, own })
    }

    /// The share of all cores that other processes have used since, in percent; `None` if it is not known.
    fn others_pct(&self) -> Option<f64> {
        let (cores, own) = counters(&self.proc)?;
        let of = |cores: &[CoreTicks], part: fn(&CoreTicks) -> u64| cores.iter().map(part).sum::<u64>();
        let passed = |part: fn(&CoreTicks) -> u64| of(&cores, part).checked_sub(of(&self.cores, part));
        let (busy, total) = (passed(|core| core.busy)?, passed(|core| core.total)?);
        // With only a few ticks, a share would be mostly rounding.
        if (total as f64) < Self::DURATION.as_secs_f64() * TICKS_PER_S / 4.0 {
            return None;
        }
        let others = busy.saturating_sub(own.saturating_sub(self.own));
        Some(others as f64 / total as f64 * 100.0)
    }

    /// A remark if other processes use more than `hardware` allows.
    pub(super) fn remark(&self, hardware: &HardwareConfig) -> Option<String> {
        let allowed = hardware.isolation.max_other_cpu_pct;
        let others = self.others_pct().filter(|others| *others > allowed)?;
        Some(format!(
            "other processes use {} of the cores (hardware.isolation.max_other_cpu_pct={allowed}): measurements include \
             their load",
            percent(others)
        ))
    }
}

fn counters(proc: &Path) -> Option<(Vec<CoreTicks>, u64)> {
    let cores = procfs::core_ticks(&fs::read_to_string(proc.join("stat")).ok()?);
    let ticks =
        |process: &Path| procfs::process_ticks(&fs::read_to_string(proc.join(process).join("stat")).ok()?);
    let children = own_children().into_iter().filter_map(|pid| ticks(Path::new(&pid.to_string())));
    let own = children.fold(ticks(Path::new("self"))?, u64::saturating_add);
    (!cores.is_empty()).then_some((cores, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(expected_power_limit_w: Option<f64>) -> HardwareConfig {
        HardwareConfig { expected_power_limit_w, ..HardwareConfig::default() }
    }

    fn gpu(power_limit_w: Option<f32>) -> GpuInfo {
        GpuInfo { name: "H200".into(), profiled: true, power_limit_w, ..GpuInfo::default() }
    }

    #[test]
    fn power_limits() {
        let remarks = |wanted, is| remarks_on_gpu(&hardware(wanted), &gpu(is), None);
        assert!(remarks(None, Some(700.0)).is_empty());
        assert!(remarks(Some(700.0), Some(700.0)).is_empty());
        assert!(remarks(Some(500.0), Some(700.0))[0].starts_with("GPU 0 (H200) has a power limit of 700 W"));
        assert!(remarks(Some(500.0), None)[0].contains("cannot be checked"));
        let other = GpuInfo { profiled: false, ..gpu(Some(1.0)) };
        assert!(remarks_on_gpu(&hardware(Some(700.0)), &other, None).is_empty());
    }

    #[test]
    fn other_processes_are_reported() {
        let others = [
            GpuProcess {
                pid: 7,
                name: Some("vllm".into()),
                mem_bytes: Some(3 << 20),
                ..GpuProcess::default()
            },
            GpuProcess { pid: 8, ..GpuProcess::default() },
        ];
        let mut hardware = hardware(None);
        let remarks = remarks_on_gpu(&hardware, &gpu(None), Some(&others));
        assert_eq!(
            remarks,
            ["other processes use GPU 0 (H200): vllm (pid 7, 3 MiB), pid 8; measurements include their load"]
        );
        assert!(remarks_on_gpu(&hardware, &gpu(None), Some(&[])).is_empty());
        hardware.isolation.check = false;
        assert!(remarks_on_gpu(&hardware, &gpu(None), Some(&others)).is_empty());
    }

    #[test]
    fn external_cpu_load_is_measured() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        let write = |busy: u64, idle: u64, own: u64| {
            let stat = format!("cpu  0 0 0 0\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\n");
            fs::write(proc.path().join("stat"), stat).unwrap();
            let own = format!("1 (me) S 1 1 1 0 -1 0 0 0 0 0 {own} 0 0 0");
            fs::write(proc.path().join("self/stat"), own).unwrap();
        };
        write(100, 100, 10);
        let load = ExternalLoad::start(proc.path()).unwrap();
        let hardware = hardware(None);
        assert_eq!(load.remark(&hardware), None, "no time has passed");
        write(150, 150, 50);
        assert_eq!(load.remark(&hardware), None, "10 % external load is allowed");
        write(150, 150, 15);
        assert!(load.remark(&hardware).unwrap().starts_with("other processes use 45 % of the cores"));
        assert!(ExternalLoad::start(Path::new("/nowhere")).is_none());
    }
}
