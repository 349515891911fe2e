//! A sample of a GPU as the ledger uses it, and whether the GPU was idle.

use super::GpuActivity;
use llmprof_event::{
    Stamp,
    readings::{GpuSample, Reading},
    reasons,
};

/// A GPU with lower utilisation is idle.
const BUSY_PCT: f64 = 5.0;
/// A GPU with higher utilisation has no capacity for more work.
const FULL_LOAD_PCT: f64 = 90.0;
/// If utilisation is not known, a GPU below this share of its maximum clock or of its power limit is idle.
const IDLE_CLOCK: f64 = 0.3;
const IDLE_POWER: f64 = 0.2;

/// The state at one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Observation {
    pub(super) t: Stamp,
    pub(super) work: GpuActivity,
    /// The independent clock event reasons.
    pub(super) reasons: Option<u64>,
    pub(super) clock_mhz: Option<f64>,
    pub(super) mem_clock_mhz: Option<f64>,
    pub(super) power_w: Option<f64>,
    pub(super) temp_c: Option<f64>,
    pub(super) full_load: bool,
}

impl Observation {
    pub(super) fn new(t: Stamp, work: GpuActivity, sample: &GpuSample) -> Observation {
        let clock = |reading| sample.get(reading).filter(|mhz| *mhz > 0.0);
        Observation {
            t,
            work,
            reasons: sample.reasons.map(reasons::distinct),
            clock_mhz: clock(Reading::SmClock),
            mem_clock_mhz: clock(Reading::MemClock),
            power_w: sample.get(Reading::Power),
            temp_c: sample.get(Reading::Temp),
            full_load: sample.get(Reading::GpuUtil).is_some_and(|pct| pct >= FULL_LOAD_PCT),
        }
    }
}

/// The maximum clock and the power limit, if they were read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Maxima {
    clock_mhz: Option<f64>,
    power_w: Option<f64>,
}

impl Maxima {
    pub(super) fn update(&mut self, sample: &GpuSample) {
        self.clock_mhz = sample.get(Reading::SmClockMax).or(self.clock_mhz);
        self.power_w = sample.get(Reading::PowerLimit).or(self.power_w);
    }

    /// Whether the GPU is idle: by its utilisation, otherwise by the idle reason, or by a low clock or a low power that
    /// no limit explains.
    pub(super) fn is_idle(&self, sample: &GpuSample) -> bool {
        if let Some(pct) = sample.get(Reading::GpuUtil).or(sample.get(Reading::SmActive)) {
            return pct < BUSY_PCT;
        }
        let bits = sample.reasons.unwrap_or(0);
        let below = |reading, maximum: Option<f64>, share: f64| {
            sample.get(reading).zip(maximum).is_some_and(|(value, maximum)| value < share * maximum)
        };
        bits & reasons::GPU_IDLE != 0
            || reasons::faults(bits) == 0
                && (below(Reading::SmClock, self.clock_mhz, IDLE_CLOCK)
                    || below(Reading::Power, self.power_w, IDLE_POWER))
    }
}
