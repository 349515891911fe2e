//! The rank that the others wait for, and the reason.

use std::fmt;

use super::{LaneTotals, Totals};
use llmprof_base::units::{grouped, percent};
use llmprof_event::ranks::RankLane;

/// The minimum number of collectives for a significant last rank.
const MIN_MATCHED: u64 = 10;
/// A smaller lateness is not reported.
const MIN_BEHIND: f64 = 0.01;
/// Clocks and counts with a smaller difference are equal.
const NOTABLE: f64 = 0.03;

/// A GPU's clock in the time of the windows, and what limited it for most of that time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Clock {
    pub sm_mhz: Option<f64>,
    /// Names of the reasons.
    pub limits: Vec<String>,
}

/// The rank that the others wait for.
#[derive(Debug, Clone, PartialEq)]
pub struct Straggler {
    pub lane: RankLane,
    /// How much of the time the others wait for it, in the median.
    pub behind: f64,
    /// The share of collectives in which it was last.
    pub last: f64,
    pub reason: Reason,
}

/// Why it is late.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// A lower clock than the others, and what limits it.
    LowerClock {
        sm_mhz: f64,
        others_mhz: f64,
        limits: Vec<String>,
    },
    /// More kernels in the same time.
    MoreWork {
        kernels: u64,
        others: u64,
    },
    /// The GPU waits for its host more than the others do.
    SlowHost {
        idle: f64,
        others: f64,
    },
    /// As many kernels, which take longer; `None` if clocks are not known.
    SlowerKernels {
        sm_mhz: Option<f64>,
    },
    Unknown,
}

/// The findings about late ranks.
#[derive(Debug, Clone, PartialEq)]
pub enum Late {
    /// Too few collectives were seen on all ranks.
    NotKnown,
    /// No rank is late: the longest waiting of one, as a share of the time.
    Balanced {
        longest_wait: f64,
    },
    Straggler(Straggler),
}

/// The late rank, if there is one. `clock` returns the clock of a lane's GPU in the same time.
pub fn straggler(totals: &Totals, clock: impl Fn(&RankLane) -> Clock) -> Late {
    let lanes: Vec<&LaneTotals> =
        totals.lanes.iter().filter(|lane| lane.span_ns > 0 && lane.sums.matched >= MIN_MATCHED).collect();
    if lanes.len() < 2 {
        return Late::NotKnown;
    }
    let wait = |lane: &LaneTotals| lane.wait_share().unwrap_or(0.0);
    let Some(late) = lanes.iter().copied().max_by_key(|lane| lane.sums.caused_ns) else {
        return Late::NotKnown;
    };
    let others: Vec<&LaneTotals> =
        lanes.iter().copied().filter(|lane| !lane.lane().is(late.lane())).collect();
    let usual = |of: &dyn Fn(&LaneTotals) -> f64| median(others.iter().map(|lane| of(lane)).collect());
    let behind = usual(&wait) - wait(late);
    let last = late.sums.last as f64 / late.sums.matched as f64;
    // If n ranks are equally fast, each is the last one in 1/n of the operations.
    if behind < MIN_BEHIND || last < 1.5 / lanes.len() as f64 {
        return Late::Balanced { longest_wait: lanes.iter().map(|lane| wait(lane)).fold(0.0, f64::max) };
    }
    let compute = |lane: &LaneTotals| lane.share(lane.sums.compute_ns).unwrap_or(0.0);
    let idle = |lane: &LaneTotals| lane.share(lane.sums.idle_ns).unwrap_or(0.0);
    let kernels = |lane: &LaneTotals| lane.sums.kernels as f64 / lane.sums.matched as f64;
    let own = clock(late.lane());
    let clocks: Vec<f64> = others.iter().filter_map(|lane| clock(lane.lane()).sm_mhz).collect();
    let others_mhz = (!clocks.is_empty()).then(|| median(clocks));
    let computes_longer = compute(late) - usual(&compute) >= behind / 2.0;
    let idles_longer = idle(late) - usual(&idle) >= behind / 2.0;
    let reason = match (own.sm_mhz, others_mhz) {
        _ if computes_longer && kernels(late) > usual(&kernels) * (1.0 + NOTABLE) => Reason::MoreWork {
            kernels: late.sums.kernels,
            others: (usual(&kernels) * late.sums.matched as f64).round() as u64,
        },
        (Some(sm_mhz), Some(others_mhz)) if computes_longer && sm_mhz < others_mhz * (1.0 - NOTABLE) => {
            Reason::LowerClock { sm_mhz, others_mhz, limits: own.limits }
        }
        (sm_mhz, others_mhz) if computes_longer => {
            Reason::SlowerKernels { sm_mhz: sm_mhz.filter(|_| others_mhz.is_some()) }
        }
        _ if idles_longer => Reason::SlowHost { idle: idle(late), others: usual(&idle) },
        _ => Reason::Unknown,
    };
    Late::Straggler(Straggler { lane: late.lane().clone(), behind, last, reason })
}

/// The middle value; of an even number, the mean of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::LowerClock { sm_mhz, others_mhz, limits } => {
                match limits.as_slice() {
                    [] => write!(f, "its clock is lower: {sm_mhz:.0} MHz")?,
                    limits => write!(f, "{} at {sm_mhz:.0} MHz", limits.join(" and "))?,
                }
                write!(f, ", the others run at {others_mhz:.0} MHz")
            }
            Reason::MoreWork { kernels, others } => {
                write!(
                    f,
                    "more work: {} kernels, the others {}",
                    grouped(*kernels as i64),
                    grouped(*others as i64)
                )
            }
            Reason::SlowHost { idle, others } => write!(
                f,
                "slow host: its launches are late, the GPU is idle {} of the time, the others {}",
                percent(100.0 * idle),
                percent(100.0 * others)
            ),
            Reason::SlowerKernels { sm_mhz: Some(sm_mhz) } => {
                write!(f, "its kernels are slower at the same clock ({sm_mhz:.0} MHz)")
            }
            Reason::SlowerKernels { sm_mhz: None } => {
                f.write_str("its kernels take longer; the clocks are not known")
            }
            Reason::Unknown => {
                f.write_str("neither its kernels nor its host take longer than those of the others")
            }
        }
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lane = self.lane.to_string();
        let gpu = match self.lane.gpu {
            Some(gpu) if !lane.contains("GPU") => format!(" (GPU {gpu})"),
            _ => String::new(),
        };
        let mut letters = lane.chars();
        let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
        write!(
            f,
            "{first}{}{gpu} is {} behind, last in {} of collectives: {}",
            letters.as_str(),
            percent(100.0 * self.behind),
            percent(100.0 * self.last),
            self.reason
        )
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Late::NotKnown => {
                f.write_str("Who waits for whom is not known: too few collectives were seen on all ranks.")
            }
            Late::Balanced { longest_wait } => {
                write!(
                    f,
                    "No rank is late: the longest wait is {} of the time.",
                    percent(100.0 * longest_wait)
                )
            }
            Late::Straggler(straggler) => write!(f, "{straggler}."),
        }
    }
}
