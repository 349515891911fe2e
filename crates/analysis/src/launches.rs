//! Launch overhead: launches per step, and the time that the GPU waits for them.

use llmprof_base::units::{millis, percent};
use llmprof_event::KernelWindow;

/// A mean step, by the GPU's own clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchMeter {
    /// Kernels, copies and memsets.
    pub launches: f64,
    /// The share of nodes of CUDA graphs among them, 0–1.
    pub graph_share: f64,
    /// Time in which something ran.
    pub busy_ns: f64,
    /// Gaps between the kernels of the step.
    pub gaps_ns: f64,
    /// The gap to the next step.
    pub between_ns: f64,
}

/// From this idle share on, a step is launch-bound.
pub(super) const BOUND_SHARE: f64 = 0.2;
/// The assumed gap between two nodes of a CUDA graph; programmatic dependent launches have less.
const GRAPH_GAP_NS: f64 = 500.0;
/// A smaller idle share is negligible.
pub(super) const SMALL_SHARE: f64 = 0.05;
/// Steps in graphs may have a few launches outside of them.
const MOSTLY_GRAPHS: f64 = 0.9;
/// A program with a larger share of its launches in graphs uses them: they are not recommended.
pub(super) const SOME_GRAPHS: f64 = 0.1;

impl LaunchMeter {
    /// The mean step of `window`; `None` without a step.
    pub fn from_window(window: &KernelWindow) -> Option<LaunchMeter> {
        let n = (window.steps > 0).then_some(window.steps as f64)?;
        let graph_launches = window.graph_launches.min(window.launches);
        Some(LaunchMeter {
            launches: window.launches as f64 / n,
            graph_share: graph_launches as f64 / window.launches.max(1) as f64,
            busy_ns: window.busy_ns as f64 / n,
            gaps_ns: window.span_ns.saturating_sub(window.busy_ns) as f64 / n,
            between_ns: window.between_ns as f64 / n,
        })
    }

    /// From the start of a step to the start of the next.
    pub fn step_ns(&self) -> f64 {
        self.busy_ns + self.gaps_ns + self.between_ns
    }

    /// The share of the time in which nothing ran on the GPU, 0–1.
    pub fn idle_share(&self) -> Option<f64> {
        (self.step_ns() > 0.0).then(|| (self.gaps_ns + self.between_ns) / self.step_ns())
    }

    /// Whether its steps are CUDA graphs, apart from a few launches.
    pub fn in_graphs(&self) -> bool {
        self.graph_share >= MOSTLY_GRAPHS
    }

    /// Whether it launches CUDA graphs, at least for a part of its steps.
    pub fn uses_graphs(&self) -> bool {
        self.graph_share >= SOME_GRAPHS
    }

    /// The estimated time that running each step as one CUDA graph would save; `None` if the program launches graphs already.
    pub fn saved_by_graphs_ns(&self) -> Option<f64> {
        let gaps_of_a_graph = GRAPH_GAP_NS * (self.launches - 1.0).max(0.0);
        (!self.uses_graphs()).then_some((self.gaps_ns - gaps_of_a_graph).max(0.0))
    }

    /// Whether it is launch-bound, and what CUDA graphs change or would change.
    pub fn describe(&self) -> String {
        let idle = self.idle_share().unwrap_or(0.0);
        let pct = percent(idle * 100.0);
        let text = match idle {
            share if share >= BOUND_SHARE => format!("Launch-bound: the GPU is idle {pct} of the time."),
            share if share >= SMALL_SHARE => format!("The GPU is idle {pct} of the time."),
            _ => format!("Not launch-bound: the GPU is idle {pct} of the time."),
        };
        text + &match self.saved_by_graphs_ns() {
            None if self.in_graphs() => " Each step runs as a CUDA graph.".to_owned(),
            None => {
                format!(" CUDA graphs have {} of the launches.", percent(100.0 * self.graph_share))
            }
            Some(0.0) => " CUDA graphs would save nothing.".to_owned(),
            Some(ns) => {
                let share = if self.step_ns() > 0.0 { ns / self.step_ns() * 100.0 } else { 0.0 };
                format!(
                    " A CUDA graph would save about {} per step ({}), estimated from the gaps between kernels.",
                    millis(ns / 1e6),
                    percent(share)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(graph_launches: u64, busy_us: u64, gaps_us: u64, between_us: u64) -> KernelWindow {
        KernelWindow {
            steps: 10,
            launches: 2260,
            graph_launches,
            span_ns: (busy_us + gaps_us) * 10_000,
            busy_ns: busy_us * 10_000,
            between_ns: between_us * 10_000,
            ..KernelWindow::default()
        }
    }

    #[test]
    fn a_step_is_described() {
        for (given, wanted) in [
            (
                steps(2250, 3740, 50, 20),
                "Not launch-bound: the GPU is idle 1.8 % of the time. Each step runs",
            ),
            (
                steps(1400, 3740, 1740, 20),
                "Launch-bound: the GPU is idle 32 % of the time. CUDA graphs have 62 % of the launches.",
            ),
            (
                steps(0, 3740, 250, 20),
                "The GPU is idle 6.7 % of the time. A CUDA graph would save about 0.138 ms per step (3.4 %)",
            ),
            (
                steps(0, 4000, 5000, 1000),
                "Launch-bound: the GPU is idle 60 % of the time. A CUDA graph would save about 4.89 ms per step (49 %)",
            ),
        ] {
            let meter = LaunchMeter::from_window(&given).unwrap();
            assert!(meter.describe().starts_with(wanted), "{}", meter.describe());
            assert_eq!(meter.launches, 226.0);
        }
    }

    #[test]
    fn steps_without_launches() {
        assert_eq!(LaunchMeter::from_window(&KernelWindow::default()), None);
        let empty = LaunchMeter::from_window(&KernelWindow { steps: 1, ..KernelWindow::default() }).unwrap();
        assert_eq!(empty.idle_share(), None);
        assert!(empty.describe().contains("0 %"), "{}", empty.describe());
        // A clock that went backwards gives no negative gap.
        let odd = KernelWindow { steps: 1, span_ns: 5, busy_ns: 9, ..KernelWindow::default() };
        assert_eq!(LaunchMeter::from_window(&odd).unwrap().gaps_ns, 0.0);
    }
}
