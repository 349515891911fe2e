//! What starting kernels costs: how many a step takes, and how long the GPU waits for the next one.

use crate::base::units::{millis, percent};

/// A mean step, by the GPU's own clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchMeter {
    /// Kernels, copies and memsets.
    pub launches: f64,
    /// The part of them that were nodes of CUDA graphs, 0–1.
    pub graph_share: f64,
    /// In which something was at work.
    pub busy_ns: f64,
    /// Between the kernels of the step.
    pub gaps_ns: f64,
    /// Between the step and the next.
    pub between_ns: f64,
}

/// What steps took together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Steps {
    pub steps: u64,
    pub launches: u64,
    pub graph_launches: u64,
    /// From each step's first kernel to the end of its last.
    pub span_ns: u64,
    pub busy_ns: u64,
    pub between_ns: u64,
}

/// From here on, waiting for kernels is what a step is about.
const BOUND_SHARE: f64 = 0.2;
/// What is assumed to lie between two nodes of a CUDA graph; those that are let in early have less.
const GRAPH_GAP_NS: f64 = 500.0;
/// Up to here it is not worth a word.
const SMALL_SHARE: f64 = 0.05;
/// Steps of graphs may have a launch or two outside of them.
const MOSTLY_GRAPHS: f64 = 0.9;

impl LaunchMeter {
    /// `None` without a step.
    pub fn of(all: Steps) -> Option<LaunchMeter> {
        let n = (all.steps > 0).then_some(all.steps as f64)?;
        Some(LaunchMeter {
            launches: all.launches as f64 / n,
            graph_share: all.graph_launches.min(all.launches) as f64 / all.launches.max(1) as f64,
            busy_ns: all.busy_ns as f64 / n,
            gaps_ns: all.span_ns.saturating_sub(all.busy_ns) as f64 / n,
            between_ns: all.between_ns as f64 / n,
        })
    }

    /// From the beginning of a step to that of the next.
    pub fn step_ns(&self) -> f64 {
        self.busy_ns + self.gaps_ns + self.between_ns
    }

    /// The part of a step in which the GPU was at work, from its first kernel to the end of its last, 0–1.
    pub fn busy_share(&self) -> Option<f64> {
        let span = self.busy_ns + self.gaps_ns;
        (span > 0.0).then(|| self.busy_ns / span)
    }

    /// The part of a step in which the GPU waited for work, 0–1.
    pub fn waiting_share(&self) -> Option<f64> {
        (self.step_ns() > 0.0).then(|| (self.gaps_ns + self.between_ns) / self.step_ns())
    }

    /// Its steps are CUDA graphs, but for a launch or two.
    pub fn in_graphs(&self) -> bool {
        self.graph_share >= MOSTLY_GRAPHS
    }

    /// What running each step as one CUDA graph would save, about; `None` where that is done.
    pub fn saved_by_graphs_ns(&self) -> Option<f64> {
        let gaps_of_a_graph = GRAPH_GAP_NS * (self.launches - 1.0).max(0.0);
        (!self.in_graphs()).then_some((self.gaps_ns - gaps_of_a_graph).max(0.0))
    }

    /// Whether it is launch-bound, and what graphs do or would do about it.
    pub fn words(&self) -> String {
        let waiting = self.waiting_share().unwrap_or(0.0);
        let pct = percent(waiting * 100.0);
        let mut words = match waiting {
            w if w >= BOUND_SHARE => format!("Launch-bound: the GPU waits for work {pct} of the time."),
            w if w >= SMALL_SHARE => format!("The GPU waits for work {pct} of the time."),
            _ => format!("Not launch-bound: the GPU waits for work {pct} of the time."),
        };
        words += &match self.saved_by_graphs_ns() {
            None => " Each step runs as a CUDA graph.".to_owned(),
            Some(0.0) => " CUDA graphs would save nothing.".to_owned(),
            Some(ns) => {
                let share = if self.step_ns() > 0.0 { ns / self.step_ns() * 100.0 } else { 0.0 };
                format!(
                    " As one CUDA graph a step would save about {} ({}): an estimate, by the gaps between its kernels.",
                    millis(ns / 1e6),
                    percent(share)
                )
            }
        };
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(graph_launches: u64, busy_us: u64, gaps_us: u64, between_us: u64) -> Steps {
        Steps {
            steps: 10,
            launches: 2260,
            graph_launches,
            span_ns: (busy_us + gaps_us) * 10_000,
            busy_ns: busy_us * 10_000,
            between_ns: between_us * 10_000,
        }
    }

    #[test]
    fn a_step_in_words() {
        for (given, wanted) in [
            (
                steps(2250, 3740, 50, 20),
                "Not launch-bound: the GPU waits for work 1.84 % of the time. Each step runs",
            ),
            (
                steps(0, 3740, 250, 20),
                "The GPU waits for work 6.73 % of the time. As one CUDA graph a step would save about 0.138 ms (3.43 %)",
            ),
            (
                steps(0, 4000, 5000, 1000),
                "Launch-bound: the GPU waits for work 60.0 % of the time. As one CUDA graph a step would save about 4.89 ms (48.9 %)",
            ),
        ] {
            let meter = LaunchMeter::of(given).unwrap();
            assert!(meter.words().starts_with(wanted), "{}", meter.words());
            assert_eq!(meter.launches, 226.0);
        }
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        assert_eq!(LaunchMeter::of(Steps::default()), None);
        let still = LaunchMeter::of(Steps { steps: 1, ..Steps::default() }).unwrap();
        assert_eq!((still.busy_share(), still.waiting_share()), (None, None));
        assert!(still.words().contains("0 %"), "{}", still.words());
        // A clock that went backwards gives no negative gap.
        let odd = LaunchMeter::of(Steps { steps: 1, span_ns: 5, busy_ns: 9, ..Steps::default() }).unwrap();
        assert_eq!(odd.gaps_ns, 0.0);
    }
}
