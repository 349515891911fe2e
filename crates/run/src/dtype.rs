//! Chooses the type of the weights if `model.dtype` is `auto`.

use std::fmt;

use llmprof_config::{Dtype, DtypeChoice};
use llmprof_event::Device;

/// The type of the weights, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenDtype {
    pub dtype: Dtype,
    pub reason: DtypeReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DtypeReason {
    /// The configuration sets it.
    Given,
    /// The published type of the weights.
    Published,
    /// The GPU does not support bf16. The capability is 75 for 7.5.
    NoBf16 { capability: u32 },
    /// The fastest type of this engine on the CPU with which the run fits into memory.
    FastestOnCpu,
    /// A faster type does not fit into memory.
    DoesNotFit { faster: Dtype },
}

/// The input of the choice.
pub struct Circumstances<'a> {
    pub published: Dtype,
    pub device: &'a Device,
    /// The compute capability of the GPU (75 for 7.5), if it is known.
    pub capability: Option<u32>,
    /// The types on the CPU, fastest first.
    pub fastest_on_cpu: &'a [Dtype],
    /// Whether the run fits into memory with a type.
    pub fits: &'a dyn Fn(Dtype) -> bool,
}

impl ChosenDtype {
    pub fn new(choice: DtypeChoice, given: &Circumstances<'_>) -> ChosenDtype {
        if let Some(dtype) = choice.given() {
            return ChosenDtype { dtype, reason: DtypeReason::Given };
        }
        match (given.device, given.published, given.capability) {
            (Device::Cpu, ..) => Self::on_cpu(given),
            (_, Dtype::Bf16, Some(capability)) if capability < 80 => {
                ChosenDtype { dtype: Dtype::F16, reason: DtypeReason::NoBf16 { capability } }
            }
            (_, dtype, _) => ChosenDtype { dtype, reason: DtypeReason::Published },
        }
    }

    /// The fastest type that fits. If none does, the smallest: its refusal has the numbers.
    fn on_cpu(given: &Circumstances<'_>) -> ChosenDtype {
        let order = given.fastest_on_cpu;
        let fitting = order.iter().copied().find(|&dtype| (given.fits)(dtype));
        let smallest = order.iter().copied().min_by_key(|dtype| dtype.bytes());
        let dtype = fitting.or(smallest).unwrap_or(given.published);
        let reason = match order.first() {
            Some(&faster) if faster != dtype => DtypeReason::DoesNotFit { faster },
            _ => DtypeReason::FastestOnCpu,
        };
        ChosenDtype { dtype, reason }
    }

    /// The choice and its reason; `None` for an expected type.
    pub fn remark(&self) -> Option<String> {
        let expected = matches!(self.reason, DtypeReason::Given | DtypeReason::Published);
        (!expected).then(|| format!("model.dtype=auto is {}: {}", self.dtype.name(), self.reason))
    }
}

impl fmt::Display for DtypeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DtypeReason::Given => write!(f, "as configured"),
            DtypeReason::Published => write!(f, "the type of the published weights"),
            DtypeReason::NoBf16 { capability } => {
                write!(f, "this GPU (compute capability {}.{}) has no bf16", capability / 10, capability % 10)
            }
            DtypeReason::FastestOnCpu => write!(f, "the fastest type of this engine on the CPU"),
            DtypeReason::DoesNotFit { faster } => {
                write!(f, "{} is faster on the CPU and does not fit into memory", faster.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        choice: DtypeChoice,
        published: Dtype,
        device: Device,
        capability: Option<u32>,
        fits: &[Dtype],
    ) -> (Dtype, DtypeReason) {
        let given = Circumstances {
            published,
            device: &device,
            capability,
            fastest_on_cpu: &[Dtype::F32, Dtype::Bf16],
            fits: &|dtype| fits.contains(&dtype),
        };
        let ChosenDtype { dtype, reason } = ChosenDtype::new(choice, &given);
        (dtype, reason)
    }

    #[test]
    fn the_type_follows_the_device() {
        use Dtype::{Bf16, F16, F32};
        let gpu = Device::Cuda(0);
        let all = &[F32, F16, Bf16];
        let auto = DtypeChoice::Auto;
        let cases = [
            (chosen(auto, Bf16, gpu.clone(), Some(90), all), (Bf16, DtypeReason::Published)),
            (chosen(auto, Bf16, gpu.clone(), Some(75), all), (F16, DtypeReason::NoBf16 { capability: 75 })),
            (chosen(auto, F16, gpu.clone(), Some(75), all), (F16, DtypeReason::Published)),
            (chosen(auto, F32, gpu.clone(), Some(90), all), (F32, DtypeReason::Published)),
            (chosen(auto, Bf16, gpu.clone(), None, all), (Bf16, DtypeReason::Published)),
            (chosen(DtypeChoice::Unquantised(F32), Bf16, gpu, Some(90), all), (F32, DtypeReason::Given)),
            (chosen(auto, Bf16, Device::Sim, None, all), (Bf16, DtypeReason::Published)),
            (chosen(auto, Bf16, Device::Cpu, None, all), (F32, DtypeReason::FastestOnCpu)),
            (chosen(auto, Bf16, Device::Cpu, None, &[Bf16]), (Bf16, DtypeReason::DoesNotFit { faster: F32 })),
            (chosen(auto, Bf16, Device::Cpu, None, &[]), (Bf16, DtypeReason::DoesNotFit { faster: F32 })),
        ];
        for (index, (got, wanted)) in cases.into_iter().enumerate() {
            assert_eq!(got, wanted, "case {index}");
        }
    }
}
