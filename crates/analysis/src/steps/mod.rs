//! Steps, phases, layers and operators of a program that was not written to be observed, from the work of its GPU.
//!
//! [`Fold`] takes device work in bursts and gives back steps, windows and timelines. Kernels are recorded in bursts only,
//! because each record costs time; between bursts, steps are counted by what the bursts have shown to happen once per step.
//!
//! - `class`: what a kernel does, by its name
//! - `cut`: where steps begin and end
//! - `phase`: prefill or decode, and an estimate of the tokens
//! - `layers`: the operator and the layer of each kernel of a step
//! - `marks`: what happens once per step and is seen between bursts too
//! - `nvtx`: steps that the program itself reports

mod class;
mod cut;
mod fold;
mod found;
mod layers;
mod marks;
mod nvtx;
mod overlap;
mod phase;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

pub use class::{Class, Collective, Fused};
pub use fold::{Fold, KernelTime};
pub use found::{Counts, ProgramWindow, RecordedTimeline};
pub use nvtx::{Range, step_of_engine};

use llmprof_event::Phase;
pub use llmprof_event::kernels::{Basis, Confidence, Exposed, Finding, NoSteps, Overlaps};

/// A step of the program: a forward pass and the choice of the next tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Step {
    pub start_ns: u64,
    pub end_ns: u64,
    pub phase: StepPhase,
    pub basis: Basis,
    pub confidence: Confidence,
    /// Attention layers, where its kernels were recorded.
    pub layers: Option<u16>,
    /// Tokens of the step: reported by the program, or an estimate from the blocks of row-wise kernels.
    pub tokens: Option<Tokens>,
    /// Time in attention, where its kernels were recorded.
    pub attention_ns: Option<u64>,
    /// Kernels, copies and memsets; `None` where kernels were not recorded.
    pub launches: Option<u32>,
    /// A burst began or ended during it, or its end is not known exactly: neither a step with recording nor one without.
    pub is_cut: bool,
}

impl Step {
    /// All of its kernels were recorded.
    pub fn is_recorded(&self) -> bool {
        self.launches.is_some()
    }
}

/// The phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPhase {
    Prefill,
    Decode,
    /// Prompts and single tokens in one step.
    Mixed,
    /// Not known, or no step.
    Other,
}

impl StepPhase {
    pub const ALL: [StepPhase; 4] =
        [StepPhase::Prefill, StepPhase::Decode, StepPhase::Mixed, StepPhase::Other];

    /// The phase of a run in which such steps are shown.
    pub fn shown_as(self) -> Phase {
        match self {
            StepPhase::Prefill => Phase::Prefill,
            StepPhase::Mixed => Phase::Mixed,
            StepPhase::Decode => Phase::Decode,
            StepPhase::Other => Phase::Idle,
        }
    }
}

impl fmt::Display for StepPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StepPhase::Prefill => "prefill",
            StepPhase::Decode => "decode",
            StepPhase::Mixed => "mixed",
            StepPhase::Other => "other",
        })
    }
}

/// The tokens of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokens {
    Reported(u32),
    Estimated(u32),
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tokens::Reported(tokens) => write!(f, "{tokens}"),
            Tokens::Estimated(tokens) => write!(f, "about {tokens}"),
        }
    }
}
