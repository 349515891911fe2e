//! The basis of the cost of a limit.

use std::fmt;

use super::GpuActivity;
use llmprof_base::units::{percent, percent_digits};

/// The basis of the cost of a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Basis {
    /// Durations of steps in the run, with the limit and without it.
    Measured { work: GpuActivity, limited_ms: f64, limited_n: u64, free_ms: f64, free_n: u64 },
    /// Estimated from the clock.
    Estimated { sensitivity: ClockSensitivity, free_clock: FreeClock },
    /// The clock without the limit is not known.
    Unknown,
    /// There was no load to slow down.
    NoLoad,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Measured { work, limited_ms, limited_n, free_ms, free_n } => write!(
                f,
                "measured: {limited_ms:.2} ms per {} with the limit (n={limited_n}), {free_ms:.2} ms without (n={free_n})",
                if *work == GpuActivity::Prefill { "prefill" } else { "token" },
            ),
            Basis::Estimated { sensitivity, free_clock } => {
                write!(f, "estimated: {sensitivity}; the clock without the limit ")?;
                match *free_clock {
                    FreeClock::Sampled { mhz, work } => {
                        write!(f, "is {mhz:.0} MHz (sampled in {work} without it)")
                    }
                    FreeClock::Bounded { stated_mhz: Some(stated), max_mhz } if stated < max_mhz => write!(
                        f,
                        "was not sampled: between the vendor's stated clock ({stated:.0} MHz) and the maximum ({max_mhz:.0} MHz)"
                    ),
                    FreeClock::Bounded { max_mhz, .. } => {
                        write!(f, "was not sampled: at most {max_mhz:.0} MHz, the GPU's maximum")
                    }
                }
            }
            Basis::Unknown => f.write_str("cost unknown: no clock without the limit was sampled"),
            Basis::NoLoad => f.write_str("no load to slow down"),
        }
    }
}

/// The clock without a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FreeClock {
    /// In samples of this work without the limit.
    Sampled { mhz: f64, work: GpuActivity },
    /// Not sampled. Many GPUs do not reach their maximum under load; they do reach the clock of the stated peaks.
    Bounded { stated_mhz: Option<f64>, max_mhz: f64 },
}

impl FreeClock {
    /// The range in which it lies, for a GPU that ran at `limited_mhz` with the limit.
    pub fn range(self, limited_mhz: f64) -> (f64, f64) {
        match self {
            FreeClock::Sampled { mhz, .. } => (mhz, mhz),
            FreeClock::Bounded { stated_mhz, max_mhz } => {
                (stated_mhz.unwrap_or(limited_mhz).max(limited_mhz).min(max_mhz), max_mhz)
            }
        }
    }
}

impl fmt::Display for FreeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FreeClock::Bounded { stated_mhz: Some(stated), max_mhz } if stated < max_mhz => {
                write!(f, "{stated:.0}–{max_mhz:.0}")
            }
            FreeClock::Bounded { stated_mhz: None, max_mhz } => write!(f, "at most {max_mhz:.0}"),
            FreeClock::Sampled { mhz, .. } | FreeClock::Bounded { max_mhz: mhz, .. } => write!(f, "{mhz:.0}"),
        }
    }
}

/// The share of speed that a limit costs, 0–1: one value or a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub least: f64,
    pub most: f64,
}

/// A narrower range counts as one value, in percent of the speed.
const ONE_VALUE_PCT: f64 = 1.0;

impl Cost {
    pub(super) fn exactly(share: f64) -> Cost {
        Cost { least: share, most: share }
    }

    /// The cost over a time, of which the limit was active for `share`.
    pub(super) fn over(self, share: f64) -> Cost {
        Cost { least: share * self.least, most: share * self.most }
    }

    /// The middle of the range.
    pub fn expected(self) -> f64 {
        (self.least + self.most) / 2.0
    }

    /// The range in percent, unless it is one value.
    pub fn range_pct(self) -> Option<[f64; 2]> {
        let range = [100.0 * self.least, 100.0 * self.most];
        (range[1] - range[0] >= ONE_VALUE_PCT).then_some(range)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range_pct() {
            Some([least, most]) if least < ONE_VALUE_PCT => write!(f, "at most {}", percent(most)),
            Some([least, most]) => write!(f, "{} to {}", percent_digits(least), percent(most)),
            None => f.write_str(&percent(100.0 * self.expected())),
        }
    }
}

/// How strongly a kind of work follows the SM clock, and the basis for that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ClockSensitivity {
    /// By activity counters, in percent.
    Counters {
        tensor: f64,
        dram: f64,
    },
    /// By the number of tokens that a step processes.
    Shape {
        tokens: u32,
    },
    /// By memory utilisation, in percent.
    MemoryUtilisation(f64),
    /// A prefill is assumed to be compute-bound.
    AssumedPrefill,
    /// A decode is assumed to be memory-bound.
    AssumedDecode,
    Unknown,
}

/// A pipe with lower utilisation is not the bottleneck.
pub(super) const BUSY_PIPE_PCT: f64 = 40.0;
/// With this many tokens per step, a GEMM with the weights is compute-bound on any current GPU.
const COMPUTE_BOUND_TOKENS: u32 = 256;
/// The assumption for memory-bound work without activity counters.
const ASSUMED_SHARE: f64 = 0.2;

impl ClockSensitivity {
    /// The part of a loss of clock that becomes a loss of speed, 0–1.
    pub fn share(self) -> f64 {
        match self {
            ClockSensitivity::Counters { tensor, dram } if dram > tensor && dram >= BUSY_PIPE_PCT => {
                (1.0 - dram / 100.0).max(0.0)
            }
            ClockSensitivity::Shape { tokens } => {
                (f64::from(tokens) / f64::from(COMPUTE_BOUND_TOKENS)).clamp(ASSUMED_SHARE, 1.0)
            }
            ClockSensitivity::MemoryUtilisation(_) | ClockSensitivity::AssumedDecode => ASSUMED_SHARE,
            ClockSensitivity::Counters { .. }
            | ClockSensitivity::AssumedPrefill
            | ClockSensitivity::Unknown => 1.0,
        }
    }
}

impl fmt::Display for ClockSensitivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockSensitivity::Counters { tensor, dram } => {
                let bound = match self.share() {
                    share if share < 1.0 => "memory-bound",
                    _ if *tensor >= BUSY_PIPE_PCT => "compute-bound",
                    _ => "neither pipe is busy",
                };
                let (tensor, dram) = (percent(*tensor), percent(*dram));
                write!(f, "{bound} (tensor pipe {tensor}, DRAM {dram} by activity counters)")?;
            }
            ClockSensitivity::Shape { tokens } => {
                let bound = match self.share() {
                    1.0 => "compute-bound",
                    ASSUMED_SHARE => "memory-bound",
                    _ => "between memory- and compute-bound",
                };
                let s = if *tokens == 1 { "" } else { "s" };
                write!(f, "{bound} by its shape ({tokens} token{s} per step)")?;
            }
            ClockSensitivity::MemoryUtilisation(pct) => write!(f, "memory utilisation is {}", percent(*pct))?,
            ClockSensitivity::AssumedPrefill => f.write_str("a prefill is assumed to be compute-bound")?,
            ClockSensitivity::AssumedDecode => f.write_str("a decode is assumed to be memory-bound")?,
            ClockSensitivity::Unknown => f.write_str("the bottleneck is not known")?,
        }
        match self.share() {
            1.0 => f.write_str(": speed follows the clock"),
            share => write!(f, ": speed follows the clock by {}", percent(100.0 * share)),
        }
    }
}
