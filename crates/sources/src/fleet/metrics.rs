//! The queried metrics and their meaning: those of NVIDIA's DCGM exporter and of llmprof-tui.

use std::{collections::HashMap, sync::LazyLock};

use crate::server::{DCGM_FIELDS, DCGM_REASONS};
use llmprof_analysis::fleet::GpuErrors;
use llmprof_event::readings::{PROMETHEUS, Reading};

/// The meaning of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meaning {
    /// A reading, and the factor to its unit.
    Reading(Reading, f64),
    /// The share of time with work, for exporters without `DCGM_FI_DEV_GPU_UTIL`.
    EngineActive,
    /// NVML's bits.
    Reasons,
    /// Free memory in MiB.
    MemoryFree,
    /// The number of the last Xid; 0 for none.
    LastXid,
    /// The number of Xids, with the Xid in a label.
    XidCount,
    Error(ErrorKind),
}

/// Errors that are counted since the driver was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    PcieReplays,
    NvlinkCrc,
    NvlinkReplays,
    NvlinkRecoveries,
    EccCorrected,
    EccUncorrected,
    RowsRemapped,
    RowsRemappedUncorrectable,
    /// 1 if a row could not be remapped.
    RowRemapFailure,
}

impl ErrorKind {
    pub fn counter(self, errors: &mut GpuErrors) -> &mut Option<llmprof_analysis::fleet::Counted> {
        match self {
            ErrorKind::PcieReplays => &mut errors.pcie_replays,
            ErrorKind::NvlinkCrc => &mut errors.nvlink_crc,
            ErrorKind::NvlinkReplays => &mut errors.nvlink_replays,
            ErrorKind::NvlinkRecoveries => &mut errors.nvlink_recoveries,
            ErrorKind::EccCorrected => &mut errors.ecc_corrected,
            ErrorKind::EccUncorrected => &mut errors.ecc_uncorrected,
            ErrorKind::RowsRemapped => &mut errors.rows_remapped,
            ErrorKind::RowsRemappedUncorrectable => &mut errors.rows_remapped_uncorrectable,
            ErrorKind::RowRemapFailure => &mut errors.row_remap_failure,
        }
    }
}

const ERRORS: [(&str, ErrorKind); 12] = [
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", ErrorKind::PcieReplays),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", ErrorKind::NvlinkCrc),
    ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", ErrorKind::NvlinkCrc),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", ErrorKind::NvlinkReplays),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", ErrorKind::NvlinkRecoveries),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", ErrorKind::EccCorrected),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", ErrorKind::EccUncorrected),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", ErrorKind::RowsRemapped),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", ErrorKind::RowsRemappedUncorrectable),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", ErrorKind::RowRemapFailure),
    // Names of older exporters.
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT", ErrorKind::NvlinkCrc),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT", ErrorKind::NvlinkReplays),
];

static MEANINGS: LazyLock<Vec<(&'static str, Meaning)>> = LazyLock::new(|| {
    let is_error = |name: &str| ERRORS.iter().any(|(error, _)| *error == name);
    let readings = DCGM_FIELDS.iter().filter(|(name, ..)| !is_error(name));
    let readings = readings.map(|(name, reading, factor)| (*name, Meaning::Reading(*reading, *factor)));
    let own =
        PROMETHEUS.iter().map(|(reading, name, unit, _)| (*name, Meaning::Reading(*reading, 1.0 / unit)));
    let reasons = DCGM_REASONS.iter().map(|name| (*name, Meaning::Reasons));
    let others = [
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Meaning::EngineActive),
        ("DCGM_FI_DEV_FB_FREE", Meaning::MemoryFree),
        ("DCGM_FI_DEV_XID_ERRORS", Meaning::LastXid),
        ("DCGM_EXP_XID_ERRORS_COUNT", Meaning::XidCount),
    ];
    let errors = ERRORS.iter().map(|(name, kind)| (*name, Meaning::Error(*kind)));
    readings.chain(own).chain(reasons).chain(others).chain(errors).collect()
});

pub fn meaning(name: &str) -> Option<Meaning> {
    known(name).map(|(_, meaning)| meaning)
}

/// The metric with its static name: an answer has thousands of each.
pub fn known(name: &str) -> Option<(&'static str, Meaning)> {
    static BY_NAME: LazyLock<HashMap<&'static str, Meaning>> =
        LazyLock::new(|| MEANINGS.iter().copied().collect());
    BY_NAME.get_key_value(name).map(|(name, meaning)| (*name, *meaning))
}

/// The factor from the values of a metric to the unit of its reading.
pub fn factor(name: &str) -> f64 {
    match meaning(name) {
        Some(Meaning::Reading(_, factor)) => factor,
        Some(Meaning::EngineActive) => 100.0,
        _ => 1.0,
    }
}

/// Every queried name.
pub fn names() -> impl Iterator<Item = &'static str> {
    MEANINGS.iter().map(|(name, _)| *name)
}

/// The metrics that are compared with their value at the beginning of the window.
pub fn counters() -> impl Iterator<Item = &'static str> {
    let counts = |meaning: &Meaning| {
        matches!(
            meaning,
            Meaning::Error(_)
                | Meaning::LastXid
                | Meaning::Reading(Reading::PowerCapNs | Reading::ThermalNs | Reading::BoardLimitNs, _)
        )
    };
    MEANINGS.iter().filter(move |(_, meaning)| counts(meaning)).map(|(name, _)| *name)
}

/// The metrics that show that a GPU is scraped, the usual ones first.
pub const HEARTBEATS: [&str; 6] = [
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_UTIL",
    "llmprof_gpu_sm_clock_hertz",
    "llmprof_gpu_power_watts",
];

/// One per kind of exporter.
pub const ONE_HEARTBEAT_EACH: [&str; 2] = [HEARTBEATS[0], HEARTBEATS[4]];

/// DCGM's numbers for "not available", which old exporters pass on.
pub fn is_blank(value: f64) -> bool {
    value >= 9.223_372_036_854_775e18
        || (2_147_483_632.0..=2_147_483_635.0).contains(&value)
        || (140_737_488_355_328.0..=140_737_488_355_331.0).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_meaning() {
        let mut all: Vec<&str> = names().collect();
        all.sort_unstable();
        let before = all.len();
        all.dedup();
        assert_eq!(all.len(), before);
        assert_eq!(
            meaning("llmprof_gpu_sm_clock_hertz"),
            Some(Meaning::Reading(Reading::SmClock, 1.0 / 1e6))
        );
        assert_eq!(meaning("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), Some(Meaning::Error(ErrorKind::EccUncorrected)));
        assert_eq!(meaning("up"), None);
        assert!(HEARTBEATS.iter().all(|name| meaning(name).is_some()));
    }

    #[test]
    fn blanks_are_missing_values() {
        for blank in [9_223_372_036_854_775_792.0, 2_147_483_632.0, 140_737_488_355_328.0] {
            assert!(is_blank(blank), "{blank}");
        }
        // A counter of ns since the driver was loaded, an energy in mJ.
        assert!(!is_blank(1.2e15) && !is_blank(0.0) && !is_blank(1980.0));
    }
}
