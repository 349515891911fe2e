//! What of a run is held against another: its requests one by one, and the circumstances.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::blocks::Blocks;
use crate::event::{KernelWindow, Outcome, RunStarted};

/// Version of a sample on disk.
pub const SAMPLE_SCHEMA: u32 = 1;

/// A run, or a stretch of one, as far as comparing needs it. Warm-up is not in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub schema: u32,
    /// What it is called: where it was read, or a snapshot's name.
    pub name: String,
    pub facts: Facts,
    /// Those that were completed, in the order of time; of very many every second, fourth, … is kept.
    pub requests: Vec<RequestSample>,
    /// How many there were.
    pub measured: u64,
    /// Gaps between tokens in nanoseconds, in blocks of whole requests; `None` where they were not kept.
    pub itl_ns: Option<Blocks>,
    pub clocks: Clocks,
    /// What held the card back, and for how much of each phase.
    pub limits: Vec<LimitShare>,
    /// Others who were on the card.
    pub others: u32,
    /// The share of the CPU that others took, where the workload runs on it.
    pub cpu_taken: Option<f32>,
    pub events_lost: u64,
    /// The most memory that was used after the model was ready: the card's, or this process's where there is none.
    pub peak_mem_bytes: Option<u64>,
    pub decode: Option<KernelProfile>,
    pub prefill: Option<KernelProfile>,
}

/// One completed request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestSample {
    pub ttft_ns: u64,
    /// From the first token to the last.
    pub decode_ns: u64,
    /// Tokens of one sequence after the first.
    pub steps: u32,
    pub batch: u32,
    /// Of one sequence.
    pub prompt_tokens: u32,
    /// The SM clock over the decode, in millions of cycles, where it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_mcycles: Option<f64>,
    /// The card's energy over the decode, where power was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_j: Option<f64>,
}

impl RequestSample {
    /// `None` for a request of one token.
    pub fn tpot_ns(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.decode_ns as f64 / f64::from(self.steps)).filter(|ns| *ns > 0.0)
    }
}

/// What was run, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub run: RunStarted,
    pub gpu: Option<GpuFacts>,
    /// Its name and how many cores it has.
    pub cpu: Option<String>,
    /// `None` while it is being written, or when it was killed.
    pub outcome: Option<Outcome>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    pub name: String,
    pub driver: String,
    pub power_limit_w: Option<f32>,
    pub sm_clock_application_mhz: Option<u32>,
    pub mig: Option<bool>,
}

/// Mean clocks of the card, phase by phase, where enough looks tell of them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Clocks {
    pub prefill_sm_mhz: Option<f64>,
    pub decode_sm_mhz: Option<f64>,
    pub decode_mem_mhz: Option<f64>,
}

/// A limit that took speed away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitShare {
    pub phase: String,
    pub limit: String,
    /// Of the phase's time, 0 to 1.
    pub share: f64,
}

/// What the kernels of one phase took, by operator and by family.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KernelProfile {
    pub steps: u64,
    pub launches: u64,
    /// From the first kernel of a step to the end of its last, and to the next step.
    pub span_ns: f64,
    pub busy_ns: f64,
    pub between_ns: f64,
    /// Operator, or family where no operator was told; with its nanoseconds in all.
    pub operators: BTreeMap<String, f64>,
    /// Families, with their launches.
    pub families: BTreeMap<String, u64>,
}

impl KernelProfile {
    /// `None` where no kernel was seen, or some were lost.
    pub fn of(window: &KernelWindow) -> Option<KernelProfile> {
        if window.steps == 0 || window.rows.is_empty() || window.dropped > 0 {
            return None;
        }
        let mut profile = KernelProfile {
            steps: window.steps,
            launches: window.launches,
            span_ns: window.span_ns as f64,
            busy_ns: window.busy_ns as f64,
            between_ns: window.between_ns as f64,
            ..KernelProfile::default()
        };
        for row in &window.rows {
            let family = if row.family.is_empty() { row.name.clone() } else { row.family.clone() };
            let operator = row.operator.map_or_else(|| family.clone(), |operator| operator.name().to_owned());
            *profile.operators.entry(operator).or_default() += row.total_ns.unwrap_or(0.0);
            *profile.families.entry(family).or_default() += row.calls;
        }
        Some(profile)
    }

    pub fn launches_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.launches as f64 / self.steps as f64)
    }
}

impl Sample {
    /// Several runs of the same as one.
    pub fn pooled(samples: &[Sample]) -> Option<Sample> {
        let (first, others) = samples.split_first()?;
        let mut all = first.clone();
        for other in others {
            all.requests.extend(&other.requests);
            all.measured += other.measured;
            all.others = all.others.max(other.others);
            all.events_lost += other.events_lost;
            all.peak_mem_bytes = all.peak_mem_bytes.max(other.peak_mem_bytes);
            all.cpu_taken = [all.cpu_taken, other.cpu_taken].into_iter().flatten().reduce(f32::max);
        }
        let mean = |of: fn(&Sample) -> Option<f64>| -> Option<f64> {
            let known: Vec<f64> = samples.iter().filter_map(of).collect();
            (known.len() == samples.len()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        all.clocks = Clocks {
            prefill_sm_mhz: mean(|sample| sample.clocks.prefill_sm_mhz),
            decode_sm_mhz: mean(|sample| sample.clocks.decode_sm_mhz),
            decode_mem_mhz: mean(|sample| sample.clocks.decode_mem_mhz),
        };
        let kept = samples.iter().map(|sample| sample.itl_ns.as_ref()).collect::<Option<Vec<_>>>();
        all.itl_ns = kept.map(|kept| Blocks::joined(&kept));
        let mut limits: BTreeMap<(String, String), f64> = BTreeMap::new();
        for limit in samples.iter().flat_map(|sample| &sample.limits) {
            *limits.entry((limit.phase.clone(), limit.limit.clone())).or_default() +=
                limit.share / samples.len() as f64;
        }
        let share = |((phase, limit), share)| LimitShare { phase, limit, share };
        all.limits = limits.into_iter().map(share).collect();
        Some(all)
    }

    /// How much of a phase something held the card back.
    pub fn held_back(&self, phase: &str) -> f64 {
        self.limits.iter().filter(|limit| limit.phase == phase).map(|limit| limit.share).fold(0.0, f64::max)
    }

    /// TPOT of every request that has one, in nanoseconds.
    pub fn tpots_ns(&self) -> Vec<f64> {
        self.requests.iter().filter_map(RequestSample::tpot_ns).collect()
    }
}
