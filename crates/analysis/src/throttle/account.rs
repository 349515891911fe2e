//! One kind of work: its time, and how long each limit was active in it.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::Serialize;

use super::{Episodes, observation::Observation};
use llmprof_event::{
    Phase,
    readings::Reading,
    reasons::{self, ClockLimit},
};

/// The activity of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuActivity {
    Idle,
    Preparing,
    Vision,
    Prefill,
    Decode,
    /// External load, or load without a known phase.
    Busy,
}

impl GpuActivity {
    pub const ALL: [GpuActivity; 6] = [
        GpuActivity::Idle,
        GpuActivity::Preparing,
        GpuActivity::Vision,
        GpuActivity::Prefill,
        GpuActivity::Decode,
        GpuActivity::Busy,
    ];

    /// The work in `phase`. Without a phase, `idle` decides between load and none.
    pub(super) fn from_phase(phase: Phase, idle: bool) -> GpuActivity {
        match phase {
            Phase::Preparing => GpuActivity::Preparing,
            Phase::Vision => GpuActivity::Vision,
            Phase::Prefill => GpuActivity::Prefill,
            Phase::Decode => GpuActivity::Decode,
            Phase::Idle if idle => GpuActivity::Idle,
            Phase::Idle | Phase::Mixed => GpuActivity::Busy,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            GpuActivity::Idle => "idle",
            GpuActivity::Preparing => "preparing",
            GpuActivity::Vision => "vision",
            GpuActivity::Prefill => "prefill",
            GpuActivity::Decode => "decode",
            GpuActivity::Busy => "load",
        }
    }

    /// Whether it is work that a limit could slow down.
    pub fn is_load(self) -> bool {
        matches!(self, GpuActivity::Vision | GpuActivity::Prefill | GpuActivity::Decode | GpuActivity::Busy)
    }
}

impl fmt::Display for GpuActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A limit of the clock: a bit of NVML's mask, or a limit that only has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    Bit(u64),
    Board,
    Reliability,
}

impl Limit {
    /// Its texts; `None` for a bit that NVML does not document.
    pub fn known(self) -> Option<&'static ClockLimit> {
        match self {
            Limit::Bit(bit) => reasons::REASONS.iter().find(|reason| reason.bit == bit),
            Limit::Board => Some(&reasons::BOARD),
            Limit::Reliability => Some(&reasons::RELIABILITY),
        }
    }

    pub fn name(self) -> Cow<'static, str> {
        match self {
            Limit::Bit(bit) => reasons::named(bit).name(),
            Limit::Board => reasons::BOARD.name.into(),
            Limit::Reliability => reasons::RELIABILITY.name.into(),
        }
    }

    /// The state of a GPU under the limit.
    pub fn participle(self) -> Cow<'static, str> {
        match self.known() {
            Some(limit) => limit.participle.into(),
            None => format!("limited by the {}", self.name()).into(),
        }
    }

    /// Whether it keeps the GPU below its configured speed; `None` if that is not known.
    pub fn fault(self) -> Option<bool> {
        self.known().map(|limit| limit.fault)
    }
}

/// The counters of limits. If a limit has two, the first takes precedence.
pub const COUNTERS: [(Limit, Reading); 8] = [
    (Limit::Bit(reasons::SW_POWER_CAP), Reading::PowerCapNs),
    (Limit::Bit(reasons::SYNC_BOOST), Reading::SyncBoostNs),
    (Limit::Bit(reasons::SW_THERMAL), Reading::SwThermalNs),
    (Limit::Bit(reasons::HW_THERMAL), Reading::HwThermalNs),
    (Limit::Bit(reasons::HW_POWER_BRAKE), Reading::PowerBrakeNs),
    (Limit::Board, Reading::BoardLimitNs),
    (Limit::Reliability, Reading::ReliabilityNs),
    (Limit::Bit(reasons::SW_THERMAL), Reading::ThermalNs),
];

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WeightedMean {
    sum: f64,
    weight: f64,
}

impl WeightedMean {
    pub fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }

    pub(super) fn join(&mut self, other: WeightedMean) {
        self.sum += other.sum;
        self.weight += other.weight;
    }

    pub fn value(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    pub fn weight(self) -> f64 {
        self.weight
    }
}

/// Number and total duration of steps (decode steps or prefills) by the length of their context.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepTimes(BTreeMap<u16, (u64, u64)>);

/// Bins per octave of context: steps in one bin differ by less than a percent.
const PER_OCTAVE: f64 = 16.0;

impl StepTimes {
    pub(super) fn add(&mut self, context: u64, step_ns: u64) {
        let (n, ns) = self.0.entry((PER_OCTAVE * (context as f64 + 1.0).log2()) as u16).or_default();
        *n += 1;
        *ns += step_ns;
    }

    /// Both at equal context: the number of steps and their mean milliseconds in each. Steps grow with the context,
    /// whatever the clock does.
    pub(super) fn compared(&self, other: &StepTimes) -> Option<[(u64, f64); 2]> {
        let (mut counts, mut sums, mut weight) = ([0; 2], [0.0; 2], 0.0);
        for (bin, (n, ns)) in &self.0 {
            let Some((other_n, other_ns)) = other.0.get(bin) else { continue };
            let common = *n.min(other_n) as f64;
            weight += common;
            for (i, (n, ns)) in [(n, ns), (other_n, other_ns)].into_iter().enumerate() {
                counts[i] += n;
                sums[i] += common * *ns as f64 / *n as f64 / 1e6;
            }
        }
        (weight > 0.0).then(|| [0, 1].map(|i| (counts[i], sums[i] / weight)))
    }
}

/// How long a limit was active during one kind of work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LimitTime {
    /// By samples: the time in which it was active, and the part of that without another fault.
    pub sampled_ns: f64,
    pub alone_ns: f64,
    /// By the GPU's own counter, if it has one, and the time between the readings of the counter.
    pub counted_ns: Option<f64>,
    pub covered_ns: f64,
    pub clock_mhz: WeightedMean,
    /// The highest temperature while it was active.
    pub max_temp_c: Option<f64>,
    /// Steps that ended while it was active.
    pub steps: StepTimes,
    /// When it was active.
    pub episodes: Episodes,
}

/// The source of a limit's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeSource {
    /// The GPU's own counter.
    Counter,
    Samples,
}

impl fmt::Display for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeSource::Counter => "counter",
            TimeSource::Samples => "samples",
        })
    }
}

/// A counter that reports less than this share of the samples' time counts something else.
const DEAD_COUNTER: f64 = 0.1;

/// The work while a class of limits was not active.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unlimited {
    pub clock_mhz: WeightedMean,
    pub steps: StepTimes,
}

/// One kind of work: its time, and what limited it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Account {
    pub time_ns: f64,
    /// The part of it that samples in the same phase represent.
    pub sampled_ns: f64,
    pub samples: u64,
    pub limits: Vec<(Limit, LimitTime)>,
    /// While no fault was active, except clocks set by a user and unknown reasons.
    pub faultless: Unlimited,
    /// While no reason at all was active.
    pub unlimited: Unlimited,
    pub clock_mhz: WeightedMean,
    /// The SM clock at full utilisation while no reason was active, and the memory clock at full utilisation.
    pub full_load_mhz: WeightedMean,
    /// The clock while it was far below the highest one seen, at full load and without a reason.
    pub low_mhz: WeightedMean,
    pub full_load_mem_mhz: WeightedMean,
    /// By activity counters, in percent.
    pub tensor_pct: WeightedMean,
    pub dram_pct: WeightedMean,
    pub mem_util_pct: WeightedMean,
    pub power_w: WeightedMean,
    /// Tokens of all sequences: those of the prompts in a prefill, the generated ones in a decode.
    pub tokens: u64,
}

impl Account {
    pub fn limit(&self, limit: Limit) -> Option<&LimitTime> {
        self.limits.iter().find(|(known, _)| *known == limit).map(|(_, time)| time)
    }

    /// The share of the time in which a limit was active, 0–1. A counter that does not grow while samples find the limit is
    /// not trusted.
    pub fn active_share(&self, limit: &LimitTime) -> (f64, TimeSource) {
        let sampled = if self.sampled_ns > 0.0 { limit.sampled_ns / self.sampled_ns } else { 0.0 };
        let counted = limit.counted_ns.filter(|_| limit.covered_ns > 0.0);
        match counted.map(|ns| (ns / limit.covered_ns).min(1.0)) {
            Some(counted) if counted >= DEAD_COUNTER * sampled => (counted, TimeSource::Counter),
            _ => (sampled, TimeSource::Samples),
        }
    }

    pub(super) fn limit_mut(&mut self, limit: Limit) -> &mut LimitTime {
        let index = match self.limits.binary_search_by_key(&limit, |(known, _)| *known) {
            Ok(index) => index,
            Err(index) => {
                self.limits.insert(index, (limit, LimitTime::default()));
                index
            }
        };
        &mut self.limits[index].1
    }

    /// A step ended while the reasons in `bits` were active.
    pub(super) fn add_step(&mut self, bits: u64, context: u64, step_ns: u64) {
        self.for_each_class(bits, |class| class.steps.add(context, step_ns));
        for reason in reasons::active(bits) {
            self.limit_mut(Limit::Bit(reason.bit())).steps.add(context, step_ns);
        }
    }

    /// A sample with the reasons in `bits` represents `ns` of the work.
    pub(super) fn add_sampled(&mut self, bits: u64, sample: &Observation, ns: f64) {
        let Observation { t, clock_mhz, temp_c, .. } = *sample;
        self.sampled_ns += ns;
        if let Some(mhz) = clock_mhz {
            self.for_each_class(bits, |class| class.clock_mhz.add(mhz, ns));
        }
        for reason in reasons::active(bits) {
            let alone = reasons::faults(bits & !reason.bit()) == 0;
            let limit = self.limit_mut(Limit::Bit(reason.bit()));
            limit.sampled_ns += ns;
            limit.alone_ns += if alone { ns } else { 0.0 };
            limit.max_temp_c = limit.max_temp_c.into_iter().chain(temp_c).reduce(f64::max);
            if let Some(mhz) = clock_mhz {
                limit.clock_mhz.add(mhz, ns);
            }
            limit.episodes.add(t, clock_mhz, ns);
        }
    }

    /// The classes of time to which the reasons in `bits` belong.
    fn for_each_class(&mut self, bits: u64, mut add: impl FnMut(&mut Unlimited)) {
        if reasons::faults(bits) == 0 && bits & reasons::GPU_IDLE == 0 {
            add(&mut self.faultless);
        }
        if bits == 0 {
            add(&mut self.unlimited);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_compared_at_equal_context() {
        let (mut limited, mut free) = (StepTimes::default(), StepTimes::default());
        // A step takes 4 ms, plus 1 µs per token of context; the limit became active late and cost nothing.
        let ns = |context: u64| 4_000_000 + 1_000 * context;
        (0..3_000).for_each(|context| free.add(context, ns(context)));
        (2_500..8_000).for_each(|context| limited.add(context, ns(context)));
        let [(limited_n, limited_ms), (free_n, free_ms)] = limited.compared(&free).unwrap();
        assert!((limited_ms / free_ms - 1.0).abs() < 0.02, "{limited_ms} and {free_ms}");
        assert!(limited_n < 700 && free_n < 700, "{limited_n} and {free_n} have the same context");
        let mut later = StepTimes::default();
        later.add(100_000, 1);
        assert_eq!(later.compared(&free), None, "nothing in common");
    }
}
