//! The GPUs, looked at once for all checks.

use std::{thread, time::Duration};

use super::{Finding, Machine, Status};
use crate::{
    event::{GpuInfo, GpuProcess, GpuSample, Query, Refused, Stamp, readings::Reading},
    telemetry::{GpuProbe, Selection, Tier, absent::Absence, nvml::NvmlProbe},
};

/// Two looks at activity counters have to lie so far apart.
const APART: Duration = Duration::from_millis(110);

/// What NVML says of this machine.
#[derive(Debug, Clone)]
pub(super) enum Cards {
    Found {
        cards: Vec<Card>,
        /// The newest CUDA that the driver runs, as 13000 for 13.0.
        cuda: Option<u32>,
    },
    Absent {
        absence: Absence,
        /// What nevertheless speaks for a GPU here.
        sign: Option<String>,
    },
    /// NVML did not come back with anything; why.
    Unanswered(String),
}

/// One GPU and a sample of everything that it tells.
#[derive(Debug, Clone)]
pub(super) struct Card {
    pub(super) info: GpuInfo,
    pub(super) sample: GpuSample,
    /// `None` where they cannot be listed.
    pub(super) others: Option<Vec<GpuProcess>>,
    /// Why it could not be read.
    pub(super) trouble: Option<String>,
}

impl Cards {
    pub(super) fn look(machine: &Machine) -> Cards {
        let opened = match &machine.nvml {
            Some(library) => NvmlProbe::open_library(library.as_os_str()),
            None => NvmlProbe::open(),
        };
        match opened {
            Ok(probe) => Cards::Found { cuda: probe.cuda_version(), cards: cards(probe) },
            Err(absence) => Cards::Absent { absence, sign: sign_of_a_gpu(machine) },
        }
    }

    /// The GPUs, or what a check of them says where there are none.
    pub(super) fn found(&self) -> Result<&[Card], Finding> {
        match self {
            Cards::Found { cards, .. } => Ok(cards),
            Cards::Absent { sign: None, .. } => Err(Finding::skip("no GPU here")),
            Cards::Absent { .. } | Cards::Unanswered(_) => Err(Finding::skip("NVML shows no GPU (see nvml)")),
        }
    }

    /// The newest CUDA that the driver runs: major and minor version.
    pub(super) fn cuda(&self) -> Option<(u32, u32)> {
        match self {
            Cards::Found { cuda, .. } => cuda.map(|version| (version / 1000, version % 1000 / 10)),
            _ => None,
        }
    }

    /// Runs `check` on every GPU and puts the findings into one, the worst status first.
    pub(super) fn each(&self, check: impl Fn(&Card) -> Finding) -> Finding {
        let cards = match self.found() {
            Ok(cards) => cards,
            Err(none) => return none,
        };
        let findings: Vec<Finding> = cards.iter().map(check).collect();
        merged(cards.iter().map(|card| card.info.index).zip(findings).collect())
    }
}

/// Several GPUs' findings as one; what is the same of all is said once.
fn merged(mut findings: Vec<(u32, Finding)>) -> Finding {
    if findings.len() == 1 {
        return findings.remove(0).1;
    }
    let same = findings.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if let Some((_, first)) = findings.first().filter(|_| same) {
        return Finding { found: format!("each of {}: {}", findings.len(), first.found), ..first.clone() };
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

impl Card {
    pub(super) fn refused(&self, query: impl Into<Query>) -> Option<&Refused> {
        let query = query.into();
        self.info.refused.iter().find(|refused| refused.reading == query)
    }

    pub(super) fn get(&self, reading: Reading) -> Option<f64> {
        self.sample.get(reading)
    }

    /// What to say where `what` is not told, by the reason that was given for `reading`.
    pub(super) fn untold(&self, what: &str, reading: impl Into<Query>) -> Finding {
        match self.refused(reading) {
            Some(Refused { reason, remedy: Some(remedy), .. }) => {
                Finding::warn(format!("{what}: {reason}")).remedy(remedy)
            }
            Some(Refused { reason, .. }) => Finding::skip(format!("{what}: {reason}")),
            None => Finding::skip(format!("{what}: not told")),
        }
    }
}

fn cards(mut probe: NvmlProbe) -> Vec<Card> {
    let mut cards: Vec<Card> = probe
        .gpus()
        .into_iter()
        .map(|info| {
            let (sample, others) = (GpuSample::of(info.index), probe.other_processes(info.index));
            Card { info, sample, others, trouble: None }
        })
        .collect();
    for card in &mut cards {
        let gpu = card.info.index;
        let slow = (0..probe.slow_calls(gpu)).map(Selection::SlowCall);
        for selection in [Tier::Fast, Tier::Gpm].map(Selection::Tier).into_iter().chain(slow) {
            card.take(&mut probe, selection);
        }
    }
    thread::sleep(APART);
    for card in &mut cards {
        card.take(&mut probe, Selection::Tier(Tier::Gpm));
        card.info.refused = probe.refused(card.info.index).to_vec();
    }
    cards
}

impl Card {
    fn take(&mut self, probe: &mut NvmlProbe, selection: Selection) {
        match probe.sample(self.info.index, selection, Stamp::default()) {
            Ok(part) => self.sample.merge(&part),
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }
}

/// Whatever tells of an NVIDIA GPU without asking NVML.
fn sign_of_a_gpu(machine: &Machine) -> Option<String> {
    if machine.has("/proc/driver/nvidia/version") {
        return Some("its kernel module is loaded".to_owned());
    }
    let display = |device: &&std::path::PathBuf| {
        let says = |file: &str| machine.read(&device.join(file).to_string_lossy()).unwrap_or_default();
        says("vendor").trim() == "0x10de" && says("class").starts_with("0x03")
    };
    if let Some(device) = machine.matching("/sys/bus/pci/devices/*").iter().find(display) {
        let slot = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Some(format!("an NVIDIA card is on the PCI bus ({slot})"));
    }
    machine.has("/dev/nvidia0").then(|| "/dev/nvidia0 is there".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_gpus_say() {
        let pass = |text: &str| Finding::pass(text);
        assert_eq!(merged(vec![(0, pass("700 W"))]).found, "700 W");
        assert_eq!(merged(vec![(0, pass("700 W")), (1, pass("700 W"))]).found, "each of 2: 700 W");
        let one = merged(vec![(0, pass("700 W")), (1, Finding::warn("500 W").remedy("raise it"))]);
        assert_eq!((one.status, one.found.as_str()), (Status::Warn, "GPU 0: 700 W; GPU 1: 500 W"));
        assert_eq!(one.remedy.as_deref(), Some("raise it"));
    }
}
