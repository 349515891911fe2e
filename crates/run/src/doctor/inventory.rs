//! The GPUs of the machine, read once for all checks.

use std::{path::PathBuf, thread, time::Duration};

use super::{Finding, Machine, Status};
use llmprof_event::{GpuInfo, GpuProcess, GpuSample, Query, Refused, Stamp, readings::Reading};
use llmprof_sources::telemetry::{GpuProbe, Selection, Tier, absent::Absence, nvml::NvmlProbe};

/// Minimum time between two samples of activity counters.
const GPM_INTERVAL: Duration = Duration::from_millis(110);

/// What NVML reports about this machine.
#[derive(Debug, Clone)]
pub(super) enum Inventory {
    Found {
        gpus: Vec<Gpu>,
        /// The newest CUDA version that the driver supports, as 13000 for 13.0.
        cuda: Option<u32>,
    },
    Absent {
        absence: Absence,
        /// Evidence of a GPU that NVML does not show.
        evidence: Option<String>,
    },
    /// NVML gave no result; the reason.
    NoAnswer(String),
}

/// One GPU and a sample of all its readings.
#[derive(Debug, Clone)]
pub(super) struct Gpu {
    pub(super) info: GpuInfo,
    pub(super) sample: GpuSample,
    /// `None` if they cannot be listed.
    pub(super) others: Option<Vec<GpuProcess>>,
    /// The reason why it could not be read.
    pub(super) error: Option<String>,
}

impl Inventory {
    pub(super) fn read(machine: &Machine) -> Inventory {
        let opened = match &machine.nvml {
            Some(library) => NvmlProbe::open_library(library.as_os_str()),
            None => NvmlProbe::open(),
        };
        match opened {
            Ok(probe) => Inventory::Found { cuda: probe.cuda_version(), gpus: read_gpus(probe) },
            Err(absence) => Inventory::Absent { absence, evidence: evidence_of_gpu(machine) },
        }
    }

    /// The GPUs, or the finding of a check that needs one.
    pub(super) fn gpus(&self) -> Result<&[Gpu], Finding> {
        match self {
            Inventory::Found { gpus, .. } => Ok(gpus),
            Inventory::Absent { evidence: None, .. } => Err(Finding::skip("no GPU")),
            Inventory::Absent { .. } | Inventory::NoAnswer(_) => {
                Err(Finding::skip("NVML shows no GPU (see nvml)"))
            }
        }
    }

    /// The newest CUDA version that the driver supports: major and minor.
    pub(super) fn cuda(&self) -> Option<(u32, u32)> {
        match self {
            Inventory::Found { cuda, .. } => cuda.map(|version| (version / 1000, version % 1000 / 10)),
            _ => None,
        }
    }
}

/// Runs `check` on every GPU and merges the findings: identical ones into one, the status being the worst.
pub(super) fn merged(gpus: &[Gpu], check: fn(&Gpu) -> Finding) -> Finding {
    merge(gpus.iter().map(|gpu| (gpu.info.index, check(gpu))).collect())
}

fn merge(mut findings: Vec<(u32, Finding)>) -> Finding {
    if findings.len() == 1 {
        return findings.remove(0).1;
    }
    let same = findings.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if let Some((_, first)) = findings.first().filter(|_| same) {
        return Finding { found: format!("all {}: {}", findings.len(), first.found), ..first.clone() };
    }
    let found: Vec<String> = findings.iter().map(|(gpu, one)| format!("GPU {gpu}: {}", one.found)).collect();
    let mut remedies: Vec<&str> = findings.iter().filter_map(|(_, one)| one.remedy.as_deref()).collect();
    remedies.dedup();
    Finding {
        status: findings.iter().map(|(_, one)| one.status).max().unwrap_or(Status::Skip),
        found: found.join("; "),
        remedy: (!remedies.is_empty()).then(|| remedies.join("; ")),
    }
}

impl Gpu {
    pub(super) fn refused(&self, query: impl Into<Query>) -> Option<&Refused> {
        self.info.refusal(query)
    }

    pub(super) fn get(&self, reading: Reading) -> Option<f64> {
        self.sample.get(reading)
    }

    /// The compute capability, as 90 for 9.0.
    pub(super) fn capability(&self) -> Option<u32> {
        self.info.compute_capability.as_ref()?.replace('.', "").parse().ok()
    }

    /// The finding if `what` is unavailable because `reading` was refused: a warning if that can be changed.
    pub(super) fn unavailable(&self, what: &str, reading: impl Into<Query>) -> Finding {
        match self.refused(reading) {
            Some(Refused { reason, remedy: Some(remedy), .. }) => {
                Finding::warn(format!("{what}: {reason}")).remedy(remedy)
            }
            Some(Refused { reason, .. }) => Finding::skip(format!("{what}: {reason}")),
            None => Finding::skip(format!("{what}: not reported")),
        }
    }

    fn read(&mut self, probe: &mut NvmlProbe, selection: Selection) {
        match probe.sample(self.info.index, selection, Stamp::default()) {
            Ok(part) => self.sample.merge(&part),
            Err(error) => self.error = Some(error.to_string()),
        }
    }
}

fn read_gpus(mut probe: NvmlProbe) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = probe
        .gpus()
        .into_iter()
        .map(|info| {
            let (sample, others) = (GpuSample::new(info.index), probe.other_processes(info.index));
            Gpu { info, sample, others, error: None }
        })
        .collect();
    for gpu in &mut gpus {
        let slow = (0..probe.slow_calls(gpu.info.index)).map(Selection::SlowCall);
        for selection in [Selection::Tier(Tier::Fast), Selection::Tier(Tier::Gpm)].into_iter().chain(slow) {
            gpu.read(&mut probe, selection);
        }
    }
    thread::sleep(GPM_INTERVAL);
    for gpu in &mut gpus {
        gpu.read(&mut probe, Selection::Tier(Tier::Gpm));
        gpu.info.refused = probe.refused(gpu.info.index).to_vec();
    }
    gpus
}

/// Signs of an NVIDIA GPU outside of NVML.
fn evidence_of_gpu(machine: &Machine) -> Option<String> {
    if machine.has("/proc/driver/nvidia/version") {
        return Some("its kernel module is loaded".to_owned());
    }
    let is_nvidia_display = |device: &&PathBuf| {
        let read = |file: &str| machine.read(&device.join(file).to_string_lossy()).unwrap_or_default();
        read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
    };
    if let Some(device) = machine.matching("/sys/bus/pci/devices/*").iter().find(is_nvidia_display) {
        let slot = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Some(format!("an NVIDIA GPU is on the PCI bus ({slot})"));
    }
    machine.has("/dev/nvidia0").then(|| "/dev/nvidia0 exists".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_several_gpus_are_merged() {
        let pass = |text: &str| Finding::pass(text);
        assert_eq!(merge(vec![(0, pass("700 W"))]).found, "700 W");
        assert_eq!(merge(vec![(0, pass("700 W")), (1, pass("700 W"))]).found, "all 2: 700 W");
        let one = merge(vec![(0, pass("700 W")), (1, Finding::warn("500 W").remedy("raise it"))]);
        assert_eq!((one.status, one.found.as_str()), (Status::Warn, "GPU 0: 700 W; GPU 1: 500 W"));
        assert_eq!(one.remedy.as_deref(), Some("raise it"));
    }
}
