//! Other effects on the run: other processes, the PCIe link, set clocks, unknown reasons, waiting for the CPU.

use super::{
    Account, Cause, Evidence, GpuActivity, Limit, Tone, WeightedMean,
    evidence::{MIN_COST_PCT, MIN_TIME_SHARE},
    ledger::FAR_BELOW,
};
use llmprof_base::units::percent;
use llmprof_event::{GpuProcess, reasons::APPLICATION_CLOCKS};

/// A clock that is low for a smaller share of the time at full load is not reported.
const MIN_LOW_SHARE: f64 = 0.1;
/// A shorter time at full load may be the start of the load.
const MIN_FULL_LOAD_NS: f64 = 1e9;

/// A GPU that works for a smaller share of the decode time waits for the CPU.
const BUSY_ENOUGH: f64 = 0.85;

pub(super) struct Finding {
    pub(super) sentence: String,
    pub(super) remedy: String,
    pub(super) tone: Tone,
}

impl Finding {
    fn bad(sentence: String, remedy: &str) -> Finding {
        Finding { sentence, remedy: remedy.to_owned(), tone: Tone::Bad }
    }

    fn note(sentence: String, remedy: String) -> Finding {
        Finding { sentence, remedy, tone: Tone::Note }
    }
}

/// Clocks far below their maximum at full load for which the GPU reports no reason.
pub(super) fn unexplained_clocks(evidence: &Evidence<'_>, causes: &[Cause]) -> Vec<Finding> {
    let info = evidence.info;
    let index = info.index;
    let mut found = Vec::new();
    let sm = |account: &Account| account.full_load_mhz;
    let counted = |cause: &Cause| !matches!(cause.limit, Limit::Bit(_)) && cause.time_share >= MIN_TIME_SHARE;
    let clock = far_below(evidence, sm, info.sm_clock_max_mhz).or_else(|| falls_far_below(evidence));
    if let Some(clock) = clock.filter(|_| !causes.iter().any(counted)) {
        found.push(Finding::bad(
            format!("The SM clock is below its maximum for an unknown reason: {clock} at full load."),
            &format!(
                "Candidates: a locked clock (`sudo nvidia-smi -i {index} -rgc` resets it), a power profile of the laptop or the \
                 BIOS, a limit of the hypervisor, a reason that the driver does not report. `nvidia-smi -i {index} -q -d \
                 CLOCK,PERFORMANCE` shows clocks and performance state"
            ),
        ));
    }
    let memory = |account: &Account| account.full_load_mem_mhz;
    if let Some(clock) = far_below(evidence, memory, info.mem_clock_max_mhz) {
        found.push(Finding::bad(
            format!("The memory clock is below its maximum for an unknown reason: {clock} at full load."),
            &format!(
                "Candidates: a locked memory clock (`sudo nvidia-smi -i {index} -rmc` resets it), application clocks (`-rac`), a \
                 performance state that the driver does not leave. `nvidia-smi -i {index} -q -d CLOCK,PERFORMANCE` shows them"
            ),
        ));
    }
    found
}

/// "1200 of 1980 MHz", if the clock of the work with most time at full load is far below its maximum.
fn far_below(
    evidence: &Evidence<'_>,
    clock: fn(&Account) -> WeightedMean,
    max_mhz: Option<u32>,
) -> Option<String> {
    let loads = [GpuActivity::Prefill, GpuActivity::Decode, GpuActivity::Busy]
        .map(|work| evidence.ledger.account(work));
    let account = loads.into_iter().max_by(|a, b| clock(a).weight().total_cmp(&clock(b).weight()))?;
    let mean = clock(account);
    let long_enough = mean.weight() >= MIN_FULL_LOAD_NS.max(0.1 * account.time_ns);
    let (mhz, max_mhz) = mean.value().filter(|_| long_enough).zip(max_mhz)?;
    (mhz < FAR_BELOW * f64::from(max_mhz)).then(|| format!("{mhz:.0} of {max_mhz} MHz"))
}

/// "600 of 1980 MHz in 30 % of the time", if the SM clock falls far below its maximum at times.
fn falls_far_below(evidence: &Evidence<'_>) -> Option<String> {
    let loads = [GpuActivity::Prefill, GpuActivity::Decode, GpuActivity::Busy]
        .map(|work| evidence.ledger.account(work));
    let account = loads.into_iter().max_by(|a, b| a.low_mhz.weight().total_cmp(&b.low_mhz.weight()))?;
    let (low_ns, all_ns) = (account.low_mhz.weight(), account.full_load_mhz.weight());
    let (mhz, max_mhz) = account.low_mhz.value().zip(evidence.info.sm_clock_max_mhz)?;
    (low_ns >= MIN_FULL_LOAD_NS.max(MIN_LOW_SHARE * all_ns))
        .then(|| format!("{mhz:.0} of {max_mhz} MHz in {} of the time", percent(100.0 * low_ns / all_ns)))
}

pub(super) fn findings(evidence: &Evidence<'_>, causes: &[Cause]) -> Vec<Finding> {
    let info = evidence.info;
    let mut found = Vec::new();
    if !evidence.others.is_empty() {
        let names = evidence.others.iter().map(GpuProcess::to_string).collect::<Vec<_>>().join(", ");
        found.push(Finding::bad(
            format!("The GPU is shared with {names}: the figures include their load."),
            "End the other process, or run on another GPU (hardware.device_index)",
        ));
    }
    if let (Some(width), Some(max)) = (evidence.pcie_width, info.pcie_width_max)
        && width > 0.0
        && width < f64::from(max)
    {
        found.push(Finding::bad(
            format!("The PCIe link runs at x{width:.0} instead of x{max}."),
            "Reseat the GPU, try another slot, or check the slot's lanes in the BIOS: loading weights and copies between host \
             and GPU are slower, decode on the GPU hardly",
        ));
    }
    if let (Some(generation), Some(max)) = (evidence.ledger.pcie_gen_under_load(), info.pcie_gen_max)
        && generation < f64::from(max)
    {
        found.push(Finding::bad(
            format!("The PCIe link runs at gen{generation:.0} instead of gen{max} under load."),
            "Check the slot, the riser and the BIOS setting of its speed: loading weights and copies between host and GPU are \
             slower",
        ));
    }
    if let Some(cause) = set_clock(causes) {
        let clock = cause.clock_mhz.unwrap_or_default();
        let max = info.sm_clock_max_mhz.map_or_else(String::new, |mhz| format!(" of {mhz}"));
        let cost = cause.cost.filter(|cost| 100.0 * cost.expected() >= MIN_COST_PCT);
        let cost = cost.map_or_else(String::new, |cost| {
            let about = if cost.range_pct().is_some() { "" } else { "about " };
            format!(": {} is {about}{cost} slower", cause.phase)
        });
        found.push(Finding::note(
            format!("The SM clock is set to {clock:.0}{max} MHz{cost}."),
            format!(
                "`sudo nvidia-smi -i {0} -rgc` and `sudo nvidia-smi -i {0} -rac` reset the clock, if it was not intended",
                info.index
            ),
        ));
    }
    let unknown = |cause: &&Cause| cause.fault.is_none() && cause.time_share >= MIN_TIME_SHARE;
    let mut reported: Vec<Limit> = Vec::new();
    for cause in causes.iter().filter(unknown) {
        if !reported.contains(&cause.limit) {
            reported.push(cause.limit);
            found.push(Finding::note(
                format!(
                    "The GPU reports an unknown clock event reason ({}), {} of the {} time.",
                    cause.reason,
                    percent(100.0 * cause.time_share),
                    cause.phase
                ),
                "`nvidia-smi -q -d PERFORMANCE` of the same driver may name it".to_owned(),
            ));
        }
    }
    if let Some(share) = evidence.device_share.filter(|share| *share < BUSY_ENOUGH) {
        found.push(Finding::bad(
            format!("The GPU waits for the CPU {} of the decode time.", percent(100.0 * (1.0 - share))),
            "Kernel launches are the bottleneck: use CUDA graphs, fewer kernels, or a faster or less busy core",
        ));
    }
    found
}

/// The clock that a user set, if it is below the GPU's own clock.
fn set_clock(causes: &[Cause]) -> Option<&Cause> {
    let set = |cause: &&Cause| cause.limit == Limit::Bit(APPLICATION_CLOCKS) && cause.phase.is_load();
    let slower = |cause: &&Cause| {
        cause.clock_mhz.zip(cause.clock_free_mhz).is_some_and(|(clock, free)| clock < 0.98 * free)
    };
    causes.iter().filter(set).find(slower)
}
