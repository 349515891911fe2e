//! The results of the fold, apart from steps.

use super::StepPhase;
use llmprof_event::{KernelWindow, StepTimeline};

/// Kernels of the steps of one phase that ended since the last window, with what ran beside them.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramWindow {
    /// `Other` has the work outside of steps; its `steps` are 0.
    pub phase: StepPhase,
    pub window: KernelWindow,
}

/// A step with its timeline. Its time by the run's clock is not set yet.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedTimeline {
    pub phase: StepPhase,
    /// The start of its first kernel, by the clock of the records.
    pub first_ns: u64,
    pub timeline: StepTimeline,
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
