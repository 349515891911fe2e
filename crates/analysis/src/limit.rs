//! What limits decode, as the first sentence of a verdict.

use std::fmt;

use super::gpu_idle::{GpuIdle, IdleBasis};
use llmprof_base::units::percent;

/// A smaller idle share does not limit the speed.
const MIN_IDLE: f64 = 0.1;
/// Above this share of the peak bandwidth, only fewer bytes make decode faster.
const NEAR_PEAK: f64 = 0.6;

/// What limits decode. A lowered clock is reported by the diagnosis of the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// The GPU waits for the CPU.
    Cpu(GpuIdle),
    /// Decode reads nearly as fast as the memory can.
    Bandwidth { share: f64 },
    /// The GPU is busy, but reads more slowly than it could.
    Kernels { share: f64 },
    /// It reads more slowly than it could; the idle share is not known.
    Unknown { share: f64 },
}

impl Limit {
    /// By the idle share and the share of the peak bandwidth; `None` if a lowered clock costs more, or if neither is
    /// known.
    pub fn find(idle: Option<GpuIdle>, bandwidth: Option<f64>, lost_to_clock: f64) -> Option<Limit> {
        let waits = idle.filter(|idle| idle.share >= MIN_IDLE);
        match (waits, bandwidth) {
            (Some(idle), _) if idle.share > lost_to_clock => Some(Limit::Cpu(idle)),
            _ if lost_to_clock > 0.0 => None,
            (_, Some(share)) if share >= NEAR_PEAK => Some(Limit::Bandwidth { share }),
            (None, Some(share)) if idle.is_some_and(|idle| idle.basis == IdleBasis::Kernels) => {
                Some(Limit::Kernels { share })
            }
            (_, Some(share)) => Some(Limit::Unknown { share }),
            (_, None) => None,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = |share: f64| percent(100.0 * share);
        match self {
            Limit::Cpu(GpuIdle { share, basis: IdleBasis::Kernels }) => write!(
                f,
                "The CPU limits decode: the GPU is idle {} of the time, by the gaps between recorded kernels.",
                pct(*share)
            ),
            Limit::Cpu(GpuIdle { share, basis: IdleBasis::Steps }) => write!(
                f,
                "The CPU limits decode: the GPU is idle at least {} of the time, between steps by its own clock.",
                pct(*share)
            ),
            Limit::Bandwidth { share } => {
                write!(
                    f,
                    "Memory bandwidth limits decode: it reads at {} of the peak, estimated from the model's shape.",
                    pct(*share)
                )
            }
            Limit::Kernels { share } => write!(
                f,
                "Kernels limit decode: the GPU is busy, but reads at {} of its peak bandwidth, estimated from the model's shape.",
                pct(*share)
            ),
            Limit::Unknown { share } => write!(
                f,
                "Decode reads at {} of the peak bandwidth, estimated from the model's shape. Whether the CPU or the kernels limit it is known once kernels are recorded.",
                pct(*share)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_loss_is_the_limit() {
        let idle = |share, basis| Some(GpuIdle { share, basis });
        let (kernels, steps) = (IdleBasis::Kernels, IdleBasis::Steps);
        let first =
            |idle, bandwidth, clock| Limit::find(idle, bandwidth, clock).map(|limit| limit.to_string());
        for (idle, bandwidth, clock, begins) in [
            (
                idle(0.7, kernels),
                Some(0.2),
                0.0,
                Some("The CPU limits decode: the GPU is idle 70 % of the time, by the gaps"),
            ),
            (idle(0.3, steps), None, 0.0, Some("The CPU limits decode: the GPU is idle at least 30 %")),
            (
                idle(0.02, kernels),
                Some(0.83),
                0.0,
                Some("Memory bandwidth limits decode: it reads at 83 % of the peak, estimated"),
            ),
            (idle(0.02, kernels), Some(0.3), 0.0, Some("Kernels limit decode")),
            // The gaps within steps are not known.
            (idle(0.02, steps), Some(0.3), 0.0, Some("Decode reads at 30 %")),
            (None, Some(0.3), 0.0, Some("Decode reads at 30 %")),
            (None, None, 0.0, None),
            // A clock that costs more is reported first.
            (idle(0.12, kernels), Some(0.7), 0.2, None),
            (idle(0.5, kernels), Some(0.7), 0.2, Some("The CPU limits decode")),
        ] {
            let said = first(idle, bandwidth, clock);
            match begins {
                Some(begins) => {
                    assert!(said.as_ref().is_some_and(|text| text.starts_with(begins)), "{said:?}")
                }
                None => assert_eq!(said, None),
            }
        }
    }
}
