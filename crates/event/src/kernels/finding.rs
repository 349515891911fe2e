//! Findings about the steps of another program, and their basis.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The known facts about the steps of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    Steps {
        basis: Basis,
        layers: u16,
        confidence: Confidence,
        /// The basis for steps between bursts; `None` if no copy marks them.
        between_bursts: Option<Basis>,
    },
    NotFound(NoSteps),
}

impl Finding {
    /// Whether both have the same reason. The confidence is ignored, because it changes all the time.
    pub fn is_like(&self, other: &Finding) -> bool {
        match (self, other) {
            (
                Finding::Steps { basis, layers, between_bursts, .. },
                Finding::Steps { basis: b, layers: l, between_bursts: m, .. },
            ) => (basis, layers, between_bursts) == (b, l, m),
            (a, b) => a == b,
        }
    }
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

/// Why steps are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoSteps {
    /// Nothing was recorded yet.
    NoKernels,
    NoAttention,
    Training,
    Convolution,
    /// Less than two steps were recorded together.
    TooFew,
    /// No kernel recurs at equal numbers of layers.
    Irregular,
}

impl fmt::Display for NoSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoSteps::NoKernels => "no kernels were recorded yet",
            NoSteps::NoAttention => "no attention kernels among those recorded",
            NoSteps::Training => "backward or optimiser kernels: this is training, not inference",
            NoSteps::Convolution => "convolutions in every repetition: not a language model",
            NoSteps::TooFew => "fewer than two steps in a recorded burst: record longer bursts",
            NoSteps::Irregular => "nothing recurs at equal numbers of layers",
        })
    }
}

/// The basis on which steps are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Ranges that the program reports.
    Nvtx,
    /// The kernels that choose the next token.
    Sampler,
    /// The lookup of the tokens' embeddings.
    Embedding,
    /// A copy between the host and the device.
    Copy,
    /// Launches of a CUDA graph.
    Graph,
    /// A kernel that recurs at equal numbers of layers.
    Repeats,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Basis::Nvtx => "NVTX ranges of the program",
            Basis::Sampler => "the sampling kernels",
            Basis::Embedding => "the embedding lookup",
            Basis::Copy => "a copy that every step has",
            Basis::Graph => "the CUDA graph that every step launches",
            Basis::Repeats => "a kernel that recurs once per step",
        })
    }
}

/// The confidence in steps: of recent steps, those that confirm the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confidence {
    /// Steps with a sequence of kernels that other recent steps have too; between bursts, recorded steps with the usual
    /// number of marks.
    pub confirmed: u32,
    pub of: u32,
}

impl Confidence {
    /// Reported by the program itself.
    pub const EXACT: Confidence = Confidence { confirmed: 1, of: 1 };

    /// From 0 to 1.
    pub fn share(self) -> f64 {
        if self.of == 0 { 0.0 } else { f64::from(self.confirmed) / f64::from(self.of) }
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} recent steps confirm it", self.confirmed, self.of)
    }
}
