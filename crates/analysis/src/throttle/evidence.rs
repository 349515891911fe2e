//! The evidence for a verdict on a GPU.

use jiff::civil::DateTime;
use serde::Serialize;

use super::{Basis, Cost, FreeClock, GpuActivity, Ledger, Limit, TimeSource, slowdown::Workload};
use crate::as_text;
use llmprof_event::{GpuInfo, GpuLost, GpuProcess};

/// A smaller loss of a phase's speed is not reported.
pub(super) const MIN_COST_PCT: f64 = 0.5;
/// A smaller share of a phase's time is not reported.
pub(super) const MIN_TIME_SHARE: f64 = 0.02;

/// The evidence about a GPU and its work.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub info: &'a GpuInfo,
    pub ledger: &'a Ledger,
    pub workload: Option<Workload>,
    /// Mean time of a decode step.
    pub tpot_ms: Option<f64>,
    /// The share of the decode time in which the GPU worked, by its own clock.
    pub device_share: Option<f64>,
    pub fan_pct: Option<f64>,
    pub pcie_width: Option<f64>,
    /// All other processes that used the GPU.
    pub others: &'a [GpuProcess],
    pub lost: Option<&'a GpuLost>,
    /// The date and time of the ledger's start, if a log has them.
    pub began: Option<DateTime>,
}

/// The severity of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    Fine,
    /// Information; nothing is wrong.
    Note,
    Bad,
    Unknown,
}

/// A limit, the work in which it was active, and its cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    pub reason: String,
    #[serde(skip)]
    pub limit: Limit,
    #[serde(serialize_with = "as_text")]
    pub phase: GpuActivity,
    /// Whether it keeps the GPU below its configured speed; null for an unknown reason.
    pub fault: Option<bool>,
    /// The share of the phase's time in which it was active, 0–1.
    pub time_share: f64,
    pub active_s: f64,
    pub time_source: TimeSource,
    /// By samples only.
    pub sampled_s: f64,
    /// The part of that time in which no other fault was active.
    #[serde(skip)]
    pub alone_s: f64,
    pub clock_mhz: Option<f64>,
    /// The clock without the limit; the middle of its range if it was not sampled.
    pub clock_free_mhz: Option<f64>,
    #[serde(skip)]
    pub free_clock: Option<FreeClock>,
    /// Loss of speed over the phase; the middle of its range.
    pub cost_pct: Option<f64>,
    /// The range, unless it is one value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_range_pct: Option<[f64; 2]>,
    #[serde(skip)]
    pub cost: Option<Cost>,
    pub ms_per_token: Option<f64>,
    pub tokens_lost: Option<f64>,
    /// The share of the run in which it was active during this phase.
    pub run_share: f64,
    #[serde(serialize_with = "as_text")]
    pub basis: Basis,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    pub verdict: String,
    pub tone: Tone,
    /// Whether a limit costs speed.
    pub throttled: bool,
    pub causes: Vec<Cause>,
    pub advice: Vec<String>,
}
