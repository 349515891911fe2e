//! The definition of GPU idle time during decode.

use std::fmt;

use serde::Serialize;

use super::launches::LaunchMeter;
use llmprof_base::units::percent;

/// The share of the decode time in which nothing runs on the GPU: no kernel, no copy, no memset.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GpuIdle {
    pub share: f64,
    pub basis: IdleBasis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleBasis {
    /// The gaps between recorded kernels, within steps and between them.
    Kernels,
    /// The gaps between steps by the GPU's clock. Gaps within a step are not included, so the share is a lower bound.
    Steps,
}

impl GpuIdle {
    /// By recorded kernels of decode steps; else by the share of the decode time in which a step was on the GPU.
    pub fn find(kernels: Option<&LaunchMeter>, device_share: Option<f64>) -> Option<GpuIdle> {
        let by_kernels = kernels.and_then(LaunchMeter::idle_share);
        let by_steps = || device_share.map(|share| (1.0 - share).max(0.0));
        by_kernels
            .map(|share| GpuIdle { share, basis: IdleBasis::Kernels })
            .or_else(|| by_steps().map(|share| GpuIdle { share, basis: IdleBasis::Steps }))
    }
}

impl fmt::Display for GpuIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = percent(100.0 * self.share);
        match self.basis {
            IdleBasis::Kernels => {
                write!(f, "The GPU is idle {share} of the decode time, by the gaps between recorded kernels.")
            }
            IdleBasis::Steps => write!(
                f,
                "The GPU is idle at least {share} of the decode time: between steps, by its own clock."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::KernelWindow;

    #[test]
    fn kernels_take_precedence_over_the_clock_of_the_steps() {
        let window = KernelWindow {
            steps: 10,
            span_ns: 38_000_000,
            busy_ns: 37_900_000,
            between_ns: 80_000,
            ..KernelWindow::default()
        };
        let meter = LaunchMeter::from_window(&window).unwrap();
        let idle = GpuIdle::find(Some(&meter), Some(0.999)).unwrap();
        assert_eq!(idle.basis, IdleBasis::Kernels);
        assert!((idle.share - 180_000.0 / 38_080_000.0).abs() < 1e-12);
        let described = meter.describe();
        assert!(described.contains(&percent(100.0 * idle.share)), "one number: {described}");
        let by_steps = GpuIdle::find(None, Some(0.999)).unwrap();
        assert!(by_steps.to_string().starts_with("The GPU is idle at least 0.1"), "{by_steps}");
        assert_eq!(GpuIdle::find(None, None), None);
        assert_eq!(GpuIdle::find(None, Some(1.01)).unwrap().share, 0.0);
    }
}
