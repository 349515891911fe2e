//! What the fold gives back, apart from steps.

use std::fmt;

use super::{Basis, Confidence, NoSteps, Overlaps, StepPhase};
use crate::event::{KernelWindow, StepTimeline};

/// Kernels of the steps of one phase that ended since the last window, with what ran beside them.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramWindow {
    /// `Other` has the work outside of steps; its `steps` are 0.
    pub phase: StepPhase,
    pub window: KernelWindow,
    pub overlaps: Overlaps,
}

/// A step with its timeline. Its time by the run's clock is not set yet.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedTimeline {
    pub phase: StepPhase,
    /// The start of its first kernel, by the clock of the records.
    pub first_ns: u64,
    pub timeline: StepTimeline,
}

/// What is known about the steps of the program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finding {
    Steps {
        basis: Basis,
        layers: u16,
        confidence: Confidence,
        /// How steps are counted between bursts; `None` where nothing marks them.
        between_bursts: Option<Basis>,
    },
    NotFound(NoSteps),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::NotFound(why) => write!(f, "No steps found: {why}."),
            Finding::Steps { basis: Basis::Nvtx, .. } => write!(f, "Steps by {}.", Basis::Nvtx),
            Finding::Steps { basis, layers, confidence, between_bursts } => {
                write!(f, "Steps by {basis}: {layers} layers, {confidence}.")?;
                match between_bursts {
                    Some(basis) => write!(f, " Between bursts: by {basis}."),
                    None => write!(f, " Between bursts nothing marks a step."),
                }
            }
        }
    }
}

/// The number of steps since the beginning, by phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub prefill: u64,
    pub decode: u64,
    pub mixed: u64,
    pub other: u64,
}

impl Counts {
    pub fn total(&self) -> u64 {
        self.prefill + self.decode + self.mixed + self.other
    }
}
