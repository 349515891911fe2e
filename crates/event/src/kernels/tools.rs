//! Runs under nsys and ncu, and their reports.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::KernelTable;
use crate::Phase;
use llmprof_base::tools::nsight;

/// A profiler of NVIDIA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Nsys,
    Ncu,
}

impl Tool {
    pub fn installation(self) -> &'static nsight::Tool {
        match self {
            Tool::Nsys => &nsight::NSYS,
            Tool::Ncu => &nsight::NCU,
        }
    }

    pub fn name(self) -> &'static str {
        self.installation().name
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The progress of a run under nsys or ncu.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolRun {
    /// "nsys", "ncu"
    pub tool: String,
    /// `Idle` if all phases are captured.
    pub phase: Phase,
    pub state: ToolState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolState {
    /// The current step, and its progress if that is known.
    Working {
        doing: String,
        share: Option<f64>,
    },
    /// The report follows.
    Done,
    Failed {
        reason: String,
        remedy: String,
    },
    Cancelled,
}

/// The report of nsys or ncu about a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// With its version: "ncu 2025.3.1".
    pub tool: String,
    /// The phase that was captured; `None` for all phases, or if it is not known.
    pub phase: Option<Phase>,
    /// The report's path, relative to the run or as the user gave it.
    pub file: String,
    pub tables: Vec<KernelTable>,
}
