//! The part of a run that is compared: its individual requests, and its conditions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{blocks::BlockHistogram, token_blocks::TokenBlocks};
use crate::{
    account::OwnerTimes,
    distribution::Counts,
    interval::MIN_VALUES,
    trust::{Conditions, Trust, TrustInput, trust},
};
use llmprof_event::{Outcome, Phase, RunStarted};

/// Version of a sample on disk.
pub const SAMPLE_SCHEMA: u32 = 1;

/// Values of a histogram, whose minimum is 1: a request that kept every SLO, one that did not, and the limit between
/// them.
pub const KEPT_SLO: f64 = 2.0;
pub const BROKEN_SLO: f64 = 4.0;
pub const SLO_LIMIT: f64 = 3.0;

/// The data of a run, or of a window of one, that a comparison needs. Warm-up is excluded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub schema: u32,
    /// The path of the run, or the name of a snapshot.
    pub name: String,
    pub facts: Facts,
    /// Completed requests in order of time; if there are very many, every second, fourth, …
    pub requests: Vec<RequestSample>,
    /// The number of completed requests.
    pub measured: u64,
    /// The times of consecutive tokens, including those of incomplete requests.
    #[serde(default)]
    pub token_blocks: TokenBlocks,
    /// Gaps between tokens in nanoseconds, in blocks of complete requests; `None` if they were not kept.
    pub itl_ns: Option<BlockHistogram>,
    /// Measured requests of a server that has SLOs: [`KEPT_SLO`] or [`BROKEN_SLO`] each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_slos: Option<BlockHistogram>,
    /// Like `itl_ns`, for a histogram, including incomplete requests. Not saved.
    #[serde(skip)]
    pub itl: Option<Counts>,
    pub clocks: Clocks,
    /// The limits that throttled the GPU, with their share of each phase.
    pub limits: Vec<LimitShare>,
    /// The phases in which the limits are known completely.
    #[serde(default)]
    pub limits_known_in: Vec<Phase>,
    #[serde(flatten)]
    pub conditions: Conditions,
    /// Peak memory after the model was ready: of the GPU, or of this process if there is none.
    pub peak_mem_bytes: Option<u64>,
    /// The kernels of the decode.
    pub decode: Option<KernelProfile>,
    /// The operators of the decode by wall time, if it runs on the CPU.
    #[serde(default)]
    pub decode_on_cpu: Option<KernelProfile>,
    /// The owners of the time between tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: OwnerTimes,
}

/// One completed request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestSample {
    /// `None` if its beginning was not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ns: Option<u64>,
    /// From the first token to the last.
    pub decode_ns: u64,
    /// Tokens of one sequence after the first.
    pub steps: u32,
    pub batch: u32,
    /// Prompt tokens of one sequence.
    pub prompt_tokens: u32,
    /// SM cycles of the decode, in millions, if the clock was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_mcycles: Option<f64>,
    /// Energy of the GPU over the decode, if power was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_j: Option<f64>,
}

impl RequestSample {
    /// `None` for a request of one token.
    pub fn tpot_ns(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.decode_ns as f64 / f64::from(self.steps)).filter(|ns| *ns > 0.0)
    }
}

/// The workload and the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub run: RunStarted,
    pub gpu: Option<GpuFacts>,
    /// Its name and the number of cores.
    pub cpu: Option<String>,
    /// `None` while the run is being written, or if it was killed.
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

/// Mean clocks of the GPU in each phase, if there are enough samples.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Clocks {
    pub prefill_sm_mhz: Option<f64>,
    pub decode_sm_mhz: Option<f64>,
    pub decode_mem_mhz: Option<f64>,
}

/// A limit that throttled the GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitShare {
    pub phase: Phase,
    pub limit: String,
    /// The share of the phase's time, 0 to 1.
    pub share: f64,
}

/// The time of one phase, by operator and by family of kernels. On the CPU there are no launches and no families.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KernelProfile {
    pub steps: u64,
    pub launches: u64,
    /// From the first kernel of a step to the end of its last, and to the next step.
    pub span_ns: f64,
    pub busy_ns: f64,
    pub between_ns: f64,
    /// Total nanoseconds of each operator, or of the family if the operator is not known.
    pub operators: BTreeMap<String, f64>,
    /// Launches of each family.
    pub families: BTreeMap<String, u64>,
}

impl KernelProfile {
    pub fn launches_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.launches as f64 / self.steps as f64)
    }
}

impl Sample {
    /// Several runs of the same workload as one sample.
    pub fn pooled(samples: &[Sample]) -> Option<Sample> {
        let (first, others) = samples.split_first()?;
        let mut all = first.clone();
        for other in others {
            all.requests.extend(&other.requests);
            all.measured += other.measured;
            all.peak_mem_bytes = all.peak_mem_bytes.max(other.peak_mem_bytes);
            all.conditions = all.conditions.worst(other.conditions);
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
        all.itl_ns = kept.map(|kept| BlockHistogram::concat(&kept));
        all.itl = None;
        let kept = samples.iter().map(|sample| sample.kept_slos.as_ref()).collect::<Option<Vec<_>>>();
        all.kept_slos = kept.map(|kept| BlockHistogram::concat(&kept));
        all.limits_known_in.retain(|phase| samples.iter().all(|sample| sample.knows_limits_in(*phase)));
        all.limits = Vec::new();
        for limit in samples.iter().flat_map(|sample| &sample.limits) {
            let share = limit.share / samples.len() as f64;
            let same = |known: &&mut LimitShare| (known.phase, &known.limit) == (limit.phase, &limit.limit);
            match all.limits.iter_mut().find(same) {
                Some(known) => known.share += share,
                None => all.limits.push(LimitShare { share, ..limit.clone() }),
            }
        }
        Some(all)
    }

    /// Whether the limits that throttled the GPU in a phase are known.
    pub fn knows_limits_in(&self, phase: Phase) -> bool {
        self.limits_known_in.contains(&phase)
    }

    /// Whether all requests took exactly the same time. With fewer requests than an interval needs, the tokens decide.
    pub fn has_equal_requests(&self) -> bool {
        let times = |request: &RequestSample| (request.ttft_ns, request.decode_ns, request.steps);
        self.requests.len() >= MIN_VALUES
            && self.requests.windows(2).all(|pair| times(&pair[0]) == times(&pair[1]))
    }

    /// Whether the GPU was sampled at all.
    pub fn has_telemetry(&self) -> bool {
        self.clocks != Clocks::default() || !self.limits.is_empty() || !self.limits_known_in.is_empty()
    }

    pub fn limits_in(&self, phase: Phase) -> impl Iterator<Item = &LimitShare> {
        self.limits.iter().filter(move |limit| limit.phase == phase)
    }

    /// The share of a phase in which the GPU was throttled.
    pub fn throttled_share(&self, phase: Phase) -> f64 {
        self.limits_in(phase).map(|limit| limit.share).fold(0.0, f64::max)
    }

    /// Whether its times can be trusted, as one run or as `interleaved` runs of both sides.
    pub fn trust(&self, interleaved: bool) -> Trust {
        trust(&TrustInput {
            conditions: self.conditions,
            tool: self.facts.run.perturbed.as_deref(),
            outcome: self.facts.outcome,
            tpots_ns: &self.tpots_ns(),
            interleaved,
        })
    }

    /// TPOT of every request that has one, in nanoseconds.
    pub fn tpots_ns(&self) -> Vec<f64> {
        self.requests.iter().filter_map(RequestSample::tpot_ns).collect()
    }
}
